"""Bound ε by cosines of canaries, with the exact distribution for random directions."""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epsilometer import _validate
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.types import FloatArray, IntArray

_RANK_RATIO = 4
_STEP = 0.5  # between thresholds at quantiles, in null standard deviations
_SUM_SHARE = 1 / 20  # of the error is kept for the length of a sum of canaries
_REACH, _MISS = "cosines that reach it", "cosines that miss it"


def cosine_cdf(x: ArrayLike, dimension: int) -> FloatArray:
    """Return the chance that a random direction has cosine at most ``x`` with a fixed one.

    Exact in every dimension: (1 + cos)/2 is Beta((d−1)/2, (d−1)/2) distributed (one-shot paper,
    Theorem 3.1); N(0, 1/d) is only its limit.

    Example:
        >>> cosine_cdf([-0.5, 0.0, 1.0], dimension=2).round(4)
        array([0.3333, 0.5   , 1.    ])
    """
    return cosine_sf(-np.asarray(x, np.float64), dimension)


def cosine_sf(x: ArrayLike, dimension: int) -> FloatArray:
    """Return the chance that the cosine exceeds ``x``, precise in the upper tail."""
    x, half = _check_arguments(x, dimension)
    # cos² is Beta(½, (d−1)/2): squares of small cosines are exact, 1 − cos² would not be.
    beyond, within = (f(0.5, half, x * x) / 2 for f in (special.betaincc, special.betainc))
    return np.asarray(np.where(x > 0, beyond, 0.5 + within))


def cosine_logsf(x: ArrayLike, dimension: int) -> FloatArray:
    """Return the logarithm of ``cosine_sf``; it does not underflow."""
    x, half = _check_arguments(x, dimension)
    with np.errstate(divide="ignore"):
        plain = np.log(cosine_sf(x, dimension))
        far = np.isneginf(plain) & (x < 1)
        if not far.any():
            return plain
        return np.where(far, _log_tail(np.where(far, x, 0.5), half), plain)


def cosine_quantile(q: ArrayLike, dimension: int) -> FloatArray:
    """Return the cosine below which a random direction falls with probability ``q``.

    For the upper tail ask for ``-cosine_quantile(1 - q)`` with ``1 - q`` written out: the
    distribution is symmetric, and 1 − 1e-20 is 1 in floating point.

    Example:
        >>> cosine_quantile([0.05, 0.5], dimension=3).round(6)
        array([-0.9,  0. ])
    """
    q = np.asarray(q, np.float64)
    if np.any(~((q >= 0) & (q <= 1))):
        raise InvalidArgument(f"Expected q in [0, 1], got {q!r}.")
    _, half = _check_arguments(0.0, dimension)
    tail = np.minimum(q, 1 - q)
    inner = (tail > 0) & (tail < 0.5)
    square = binomial.beta_quantile(0.5, half, np.where(inner, 2 * tail, 0.5), from_above=True)
    size = np.sqrt(np.where(inner, square, np.where(tail > 0, 0.0, 1.0)))
    return np.asarray(np.where(q < 0.5, -size, size))


def check_cosines(cosines: ArrayLike, *, dimension: int) -> FloatArray:
    """Return cosines of canaries that took part as float64; refuse what cannot be cosines."""
    _validate.whole(2, dimension=dimension)
    known = np.atleast_1d(np.asarray(cosines, np.float64))
    if known.ndim != 1 or known.size == 0:
        raise InvalidArgument(
            f"Expected one cosine for each canary, got shape {known.shape}. "
            "If no canary took part, nothing was audited: train longer, or sample more clients."
        )
    lost = int(np.isnan(known).sum())
    if lost:
        raise InvalidArgument(
            f"Expected cosines of canaries that took part, found {lost} nan of {known.size}. "
            "Leave out canaries that never took part; a model that diverged has no cosines."
        )
    if not known.any():
        raise InvalidArgument(
            f"Expected cosines of canaries that took part, got {known.size} zeros. "
            "The update is zero, or no canary took part in it."
        )
    if known.size > dimension:
        raise InvalidArgument(
            f"Expected at most as many canaries as dimensions, got {known.size} in {dimension}. "
            "More are not independent of each other."
        )
    if np.abs(known).max() > 1 + 1e-5:  # float32 rounds; a sum of products does not exceed 1
        raise InvalidArgument(
            f"Expected cosines in [-1, 1], got {known[np.argmax(np.abs(known))]:.6g}. "
            "Divide by the norm of the update."
        )
    return np.clip(known, -1.0, 1.0)


def log_ratio(gain: FloatArray, log_loss: FloatArray) -> FloatArray:
    """Return ln of (a rate less δ) over the other rate: 0 for no evidence, ∞ where that is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.log(gain) - log_loss, posinf=np.inf).clip(min=0.0)


def _check_arguments(x: ArrayLike, dimension: int) -> tuple[FloatArray, float]:
    _validate.whole(2, dimension=dimension)
    array = np.asarray(x, np.float64)
    if np.any(~(np.abs(array) <= 1)):
        raise InvalidArgument(f"Expected cosines in [-1, 1], got {array!r}.")
    return array, (dimension - 1) / 2


def _log_tail(x: FloatArray, half: float) -> FloatArray:
    """Return ln of half the tail of cos² by its continued fraction (DLMF 8.17.22)."""
    a, b, y = half, 0.5, (1 - x) * (1 + x)  # 1 − cos² is Beta(half, ½), and small here
    fraction = np.ones_like(y)
    for m in range(60, 0, -1):
        even = m * (b - m) * y / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * y / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1 + odd / (1 + even / fraction)
    front = a * np.log(y) + b * np.log(x * x) - special.betaln(a, b) - math.log(a)
    return np.asarray(front - np.log(fraction) - math.log(2))


def cosine_bound(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    confidence: float = DEFAULT_CONFIDENCE,
    rule: Literal["ranks", "quantiles"] = "ranks",
    rounds: int = 1,
) -> EpsilonLowerBound:
    r"""Bound ε from below from the cosines of canaries that took part, by counting.

    The chance that a canary which took no part reaches a threshold is known exactly, so only one
    rate has to be limited. That is done by Clopper–Pearson, with 1 − confidence shared among
    thresholds and both directions.

    - ``"ranks"``: thresholds are the 1st, 4th, 16th, … highest and lowest cosine. The share of
      canaries above the j-th highest of k is Beta(j, k−j+1) distributed whatever their
      distribution, so that the limit holds though the cosines themselves place the threshold.
    - ``"quantiles"``: thresholds every half standard deviation of the null, the i-th at a share
      of 1/((i+1)(i+2)). Proves less, since none of them is where the cosines happen to be.

    With ``rounds`` each cosine is the largest of this many vectors, as the round in which a canary
    took part is unknown. A canary that took no part reaches a threshold in some round with at most
    ``rounds`` times the chance for one round, however similar the rounds are.

    Guarantee: exceeds the true ε with probability at most ``1 - confidence``, whatever the
        distribution of the cosines, given independent canaries. Canaries need not take part equally
        often: their mean rate is bounded, and unequal rates only make counts less variable
        (Hoeffding 1956).
    Assumption: cosines are independent of each other. That is nearly so where canaries are far
        fewer than dimensions, directions could not be foreseen, and nothing that matters is drawn
        once for all canaries of a run. A noise level drawn per run is: the bound then errs with
        about the chance of the low level. That can be seen only where δ is not much smaller than
        1/k, since (ε, δ)-DP allows a chance of δ·k/r of exposing r of k canaries.

    Example:
        >>> even = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> bound = cosine_bound((even + 4) / 1000, dimension=10**6, delta=1e-6)
        >>> bound.valid, round(bound.epsilon, 1)
        (True, 18.0)
    """
    _validate.open_unit(confidence=confidence)
    _validate.probability(delta=delta)
    _validate.whole(1, rounds=rounds)
    if rule not in ("ranks", "quantiles"):
        raise InvalidArgument(f"Expected rule to be 'ranks' or 'quantiles', got {rule!r}.")
    ranked = np.sort(check_cosines(cosines, dimension=dimension))
    if rule == "ranks":
        looks = _look_at_ranks(ranked, 1 - confidence)
        words = f"ranks 1, {_RANK_RATIO}, {_RANK_RATIO**2}, … from either end"
    else:
        looks = _look_at_quantiles(ranked, dimension, 1 - confidence)
        words = f"every {_STEP:g} null standard deviations"
    kind = "exact null distribution" if rounds == 1 else f"null distribution of {rounds:,} rounds"
    return EpsilonLowerBound(
        **_find_best_look(looks, ranked.size, dimension, delta, rounds),
        confidence=confidence,
        method="cosines",
        threshold_rule=f"{words}, FPR from the {kind}",
        valid=True,
        cites=("clopper1934", "kairouz2015", "andrew2024"),
    )


def tied_bound(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    confidence: float = DEFAULT_CONFIDENCE,
    orthonormal: bool = False,
) -> EpsilonLowerBound:
    r"""Bound ε from below from the mean c̄ of the cosines: ε at μ = √d·(k·c̄/s − q)/s.

    Let s be the length of the sum of k canaries, and q a quantile of the null. k·c̄/s is the cosine
    with that sum. With Gaussian noise its tangent times √(d−1) is a noncentral t of d − 1 degrees
    of freedom, shifted by s/σ. This distribution is exact. The chance that the bound is too large
    is 1 − confidence without leakage, and less with it, since canaries lengthen the sum. If
    canaries took part in different vectors, k·c̄ is a sum of such cosines, whose distribution lies
    between that of one and the normal one: q is the larger of both quantiles.

    For orthonormal canaries s is √k. Canaries drawn on the sphere sometimes have a longer sum. Then
    s is an upper limit, which takes a twentieth of the error (``limit_sum``).

    Guarantee: exceeds the true ε with probability at most ``1 - confidence`` for canaries that
        take part equally often in sums with Gaussian noise.
    Assumption: exactly that: all cosines have one mean and the spread 1/√d of the null. Canaries
        are orthonormal, or were drawn independently on the sphere.

    Example:
        >>> even = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> asked = {"dimension": 10**6, "delta": 1e-6}
        >>> round(tied_bound((even + 4) / 1000, **asked, orthonormal=True).epsilon, 1)
        25.9
        >>> round(tied_bound((even + 4) / 1000, **asked).epsilon, 1)
        25.7
    """
    _validate.open_unit(confidence=confidence, delta=delta)
    known = check_cosines(cosines, dimension=dimension)
    k, alpha = known.size, 1 - confidence
    length = math.sqrt(k)
    if not orthonormal:
        length = limit_sum(k, dimension, alpha=alpha * _SUM_SHARE)
        alpha *= 1 - _SUM_SHARE
    error = _find_error(alpha, dimension)
    mean = float(known.mean())
    sure = max(0.0, math.sqrt(dimension) * (k * mean / length - error) / length)
    return EpsilonLowerBound(
        epsilon=gdp_epsilon(sure, delta),
        delta=delta,
        confidence=confidence,
        method="mean_cosine",
        threshold_rule="none: the mean of all cosines, spread tied to the null's",
        valid=True,
        direction="both",
        threshold=sure / math.sqrt(dimension),
        n_in=k,
        n_out=0,
        cites=("andrew2024", "balle2018"),
        caveats=(
            "Holds only if all canaries take part equally often and noise is Gaussian: cosines "
            "are assumed to be normal, with one mean and the null's standard deviation.",
        ),
        basis=(
            ("mean cosine", mean),
            ("cosines", k),
            ("dimension", dimension),
            ("quantile", error),
            ("sum", length),
            ("μ", sure),
        ),
    )


def _find_error(alpha: float, dimension: int) -> float:
    """Return the larger quantile of one cosine and of the normal distribution, from above."""
    exact, normal = -cosine_quantile(alpha, dimension), -special.ndtri(alpha)
    return max(float(exact), float(normal) / math.sqrt(dimension))


def limit_sum(count: int, dimension: int, *, alpha: float) -> float:
    """Return the length that a sum of random directions exceeds with chance at most ``alpha``.

    A direction is the mean of the normal vectors along it, over their mean length m. So by Jensen
    e^(λ·length²) of a sum of directions is on average at most that of normal vectors over m, whose
    squared length is k/m² times χ² of d degrees of freedom: Chernoff's limit of that holds.

    Example:
        >>> round(limit_sum(100, 10_000, alpha=0.001), 2)
        10.26
    """
    # y − 1 − ln y = (2/d)·ln(1/α), y > 1
    y = -special.lambertw(-math.exp(-1 + 2 * math.log(alpha) / dimension), -1).real
    squared_mean = 2 * special.poch(dimension / 2, 0.5) ** 2
    return min(math.sqrt(count * dimension * y / squared_mean), float(count))


def one_shot_epsilon_lo(
    cosines: ArrayLike, *, dimension: int, delta: float, confidence: float = DEFAULT_CONFIDENCE
) -> EpsilonLowerBound:
    """Return ε_lo of the one-shot papers. **Not a valid bound**: to reproduce them.

    Every cosine is tried as threshold ("present" iff at or above it). The FPR there is known
    exactly, the FNR has Jeffreys' upper limit, and the largest ε of both directions is taken at
    no cost. It exceeds the true ε in 5 to 43 % of audits that say 95 %.
    """
    _validate.probability(delta=delta)
    _validate.open_unit(confidence=confidence)
    scores = np.sort(_validate.scores("cosines", cosines))
    missed = np.searchsorted(scores, scores)  # cosines below each; equal ones stay together
    alpha = 1 - confidence
    fnr, tpr = binomial.upper_limit(missed, scores.size, alpha=alpha, kind="jeffreys")
    levels = np.full(scores.size, alpha)
    above, below = (_Looks(scores, rates, _MISS, missed, levels) for rates in (tpr, fnr))
    return EpsilonLowerBound(
        **_find_best_look((above, below), scores.size, dimension, delta),
        confidence=confidence,
        method="jeffreys",
        threshold_rule="Best(), FPR from the exact null distribution",
        valid=False,
        cites=("andrew2024",),
        caveats=(
            "Not a valid bound: the threshold was chosen on the scores it is used on, at no cost, "
            "and Jeffreys' limit is not exact.",
        ),
    )


class _Looks(NamedTuple):
    """Thresholds, and what is sure of the rate of canaries on the other side of each."""

    thresholds: FloatArray
    rates: FloatArray  # lower limits of TPR, or upper limits of FNR
    counted: str  # which cosines
    counts: IntArray
    levels: FloatArray  # what each limit may cost


def _find_best_look(
    looks: tuple[_Looks, _Looks], k: int, dimension: int, delta: float, rounds: int = 1
) -> dict[str, Any]:
    """Return what a bound says of the look that proves most, from above or from below."""
    above, below = looks
    tnr = 1 - rounds * cosine_sf(below.thresholds, dimension)
    log_fpr = np.minimum(math.log(rounds) + cosine_logsf(above.thresholds, dimension), 0.0)
    epsilons = np.stack(
        [
            log_ratio(above.rates - delta, log_fpr),
            log_ratio(tnr - delta, np.log(below.rates)),
        ]
    )
    row, at = divmod(int(np.argmax(epsilons)), epsilons.shape[1])
    look = looks[row]
    return {
        "epsilon": float(epsilons[row, at]),
        "delta": delta,
        "direction": ("present→absent", "absent→present")[row],
        "threshold": float(look.thresholds[at]),
        "n_in": k,
        "n_out": 0,
        "basis": (
            (look.counted, look.counts[at]),
            ("cosines", k),
            ("level", look.levels[at]),
            ("dimension", dimension),
            *((("rounds", rounds),) if rounds > 1 else ()),
        ),
    }


def _look_at_ranks(known: FloatArray, alpha: float) -> tuple[_Looks, _Looks]:
    k = known.size
    # Half above k: the logarithm of a power of the ratio may round to below a whole number.
    ranks: IntArray = _RANK_RATIO ** np.arange(1 + int(math.log(k + 0.5, _RANK_RATIO)))
    share = np.full(ranks.size, alpha / (2 * ranks.size))
    return (
        _Looks(known[k - ranks], _limit_rate_below(ranks, k, share), _REACH, ranks, share),
        _Looks(known[ranks - 1], _limit_rate_above(ranks - 1, k, share), _MISS, ranks - 1, share),
    )


def _look_at_quantiles(known: FloatArray, dimension: int, alpha: float) -> tuple[_Looks, _Looks]:
    k, step = known.size, _STEP / math.sqrt(dimension)
    count = 1 + int(max(float(known[-1]), 0.0) / step)  # above the highest cosine is nothing
    at = np.arange(count)
    thresholds = np.minimum(at * step, 1.0)
    share = alpha / (2 * (at + 1.0) * (at + 2.0))
    missed = np.searchsorted(known, thresholds)
    return (
        _Looks(thresholds, _limit_rate_below(k - missed, k, share), _REACH, k - missed, share),
        _Looks(thresholds, _limit_rate_above(missed, k, share), _MISS, missed, share),
    )


def _limit_rate_below(hits: IntArray, k: int, alpha: FloatArray) -> FloatArray:
    """Return Clopper–Pearson's lower limit of a mean rate, also where canaries' rates differ.

    Hoeffding's comparison with equal rates begins at two hits. For one, the chance that any of k
    canaries hits is at most the sum of their rates.
    """
    some = np.maximum(hits, 1)
    limit = binomial.beta_at(some, k - some + 1, special.ndtri(alpha))
    return np.where(hits > 1, limit, np.where(hits == 1, np.minimum(limit, alpha / k), 0.0))


def _limit_rate_above(missed: IntArray, k: int, alpha: FloatArray) -> FloatArray:
    """Return Clopper–Pearson's upper limit of a mean rate."""
    fewer = np.minimum(missed, k - 1)
    limit = binomial.beta_at(fewer + 1, k - fewer, -special.ndtri(alpha))
    return np.where(missed < k, limit, 1.0)
