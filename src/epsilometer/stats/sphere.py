"""Cosines of random directions: their exact null law, what they estimate, and what they prove.

One run shows one cosine for each of k canaries that took part; for one that did not, the law of
its cosine is known exactly. Estimates fit normal laws, as the one-shot papers do; bounds count.
"""

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.results import Direction, EpsilonEstimate, EpsilonLowerBound
from epsilometer.stats import binomial
from epsilometer.stats.gaussians import (
    gdp_epsilon,
    two_gaussians_directions,
    two_gaussians_epsilon,
)
from epsilometer.types import FloatArray, IntArray

Spread: TypeAlias = Literal["fitted", "tied"]
Attack: TypeAlias = Literal["exact", "threshold"]
FEW = 300  # cosines below which a fitted normal law is a guess
_RESAMPLES = 400
_NEAR = 1e-4  # relative: far below what resampling scatters
_RANK_RATIO = 4
_STEP = 0.5  # between thresholds at quantiles, in null standard deviations
_DIRECTIONS: tuple[Direction, Direction] = ("present→absent", "absent→present")


def cosine_cdf(x: ArrayLike, dimension: int) -> FloatArray:
    """Chance that a random direction has cosine at most ``x`` with a fixed one.

    Exact in every dimension: (1 + cos)/2 is Beta((d−1)/2, (d−1)/2) distributed (one-shot paper,
    Theorem 3.1); N(0, 1/d) is only its limit.

    Example:
        >>> cosine_cdf([-0.5, 0.0, 1.0], dimension=2).round(4)
        array([0.3333, 0.5   , 1.    ])
    """
    return cosine_sf(-np.asarray(x, np.float64), dimension)


def cosine_sf(x: ArrayLike, dimension: int) -> FloatArray:
    """Chance that the cosine exceeds ``x``, precise in the upper tail."""
    x, half = _checked(x, dimension)
    # cos² is Beta(½, (d−1)/2): squares of small cosines are exact, 1 − cos² would not be.
    beyond, within = (f(0.5, half, x * x) / 2 for f in (special.betaincc, special.betainc))
    return np.asarray(np.where(x > 0, beyond, 0.5 + within))


def cosine_logsf(x: ArrayLike, dimension: int) -> FloatArray:
    """Logarithm of ``cosine_sf``; does not underflow."""
    x, half = _checked(x, dimension)
    with np.errstate(divide="ignore"):
        plain = np.log(cosine_sf(x, dimension))
        far = np.isneginf(plain) & (x < 1)
        if not far.any():
            return plain
        return np.where(far, _log_tail(np.where(far, x, 0.5), half), plain)


def cosine_quantile(q: ArrayLike, dimension: int) -> FloatArray:
    """The cosine below which a random direction falls with probability ``q``.

    For the upper tail ask for ``-cosine_quantile(1 - q)`` with ``1 - q`` written out: the law is
    symmetric, and 1 − 1e-20 is 1 in floating point.

    Example:
        >>> cosine_quantile([0.05, 0.5], dimension=3).round(6)
        array([-0.9,  0. ])
    """
    q = np.asarray(q, np.float64)
    if np.any(~((q >= 0) & (q <= 1))):
        raise InvalidArgument(f"Expected q in [0, 1], got {q!r}.")
    _, half = _checked(0.0, dimension)
    tail = np.minimum(q, 1 - q)
    inner = (tail > 0) & (tail < 0.5)
    square = binomial.beta_quantile(0.5, half, np.where(inner, 2 * tail, 0.5), from_above=True)
    size = np.sqrt(np.where(inner, square, np.where(tail > 0, 0.0, 1.0)))
    return np.asarray(np.where(q < 0.5, -size, size))


def one_shot_epsilon_lo(
    cosines: ArrayLike, *, dimension: int, delta: float, confidence: float = 0.95
) -> EpsilonLowerBound:
    """ε_lo of the one-shot papers. **Not a valid bound**: to reproduce them.

    Every cosine is tried as threshold ("present" iff at or above it); the FPR there is known
    exactly, the FNR has Jeffreys' upper limit, and the largest ε of both directions is taken at
    no cost. It exceeds the true ε in 5 to 43 % of audits that say 95 %.
    """
    _validate.probability(delta=delta)
    _validate.open_unit(confidence=confidence)
    scores = np.sort(_validate.scores("cosines", cosines))
    log_fpr = cosine_logsf(scores, dimension)
    missed = np.searchsorted(scores, scores)  # cosines below each; equal ones stay together
    fnr, tpr = binomial.upper_limit(missed, scores.size, alpha=1 - confidence, kind="jeffreys")
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.log(tpr - delta) - log_fpr
        below = np.log(cosine_cdf(scores, dimension) - delta) - np.log(fnr)
    epsilons = np.nan_to_num(np.stack([above, below]), nan=0.0, neginf=0.0).clip(min=0.0)
    row, at = np.unravel_index(np.argmax(epsilons), epsilons.shape)
    return EpsilonLowerBound(
        epsilon=float(epsilons[row, at]),
        delta=delta,
        confidence=confidence,
        method="jeffreys",
        threshold_rule="Best(), FPR from the exact null law",
        valid=False,
        direction="present→absent" if row == 0 else "absent→present",
        threshold=float(scores[at]),
        n_in=scores.size,
        n_out=0,
        cites=("andrew2024",),
        caveats=(
            "Not a valid bound: the threshold was chosen on the scores it is used on, at no cost, "
            "and Jeffreys' limit is not exact.",
        ),
    )


class Fit(NamedTuple):
    """A normal law of cosines."""

    mean: float
    std: float


def fit_cosines(cosines: ArrayLike, *, dimension: int, spread: Spread = "fitted") -> Fit:
    """The normal law of the cosines of canaries that took part.

    Args:
        cosines: One for each canary, shape ``(k,)``; two or more.
        dimension: Of the space.
        spread: ``"fitted"`` has divisor k, as the papers have it; ``"tied"`` takes the 1/√d of the
            null, which is right where every canary takes part equally often.
    """
    known = cosines_of(cosines, dimension=dimension)
    if spread not in ("fitted", "tied"):
        raise InvalidArgument(f"Expected spread to be 'fitted' or 'tied', got {spread!r}.")
    if known.size < 2:
        raise InvalidArgument(
            "Expected the cosines of two canaries or more, got 1. One shows no spread; plant some "
            "hundred, they cost little."
        )
    mean, std = float(known.mean()), float(known.std())
    if std <= np.finfo(np.float32).eps * abs(mean):
        raise InvalidArgument(
            f"Expected cosines that differ, got {known.size} times {mean:.6g}. Without noise, or "
            "with the same canary planted again and again, no law can be fitted."
        )
    return Fit(mean, std if spread == "fitted" else 1 / math.sqrt(dimension))


def cosine_epsilon(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    spread: Spread = "fitted",
    rule: Attack = "exact",
) -> float:
    """The ε between the fitted law of the cosines and their null law, N(0, 1/d).

    A mean of 0 or below shows no leakage and gives 0, whatever its spread.

    Args:
        cosines: One for each canary that took part.
        dimension: Of the space.
        delta: δ.
        spread: See ``fit_cosines``. The fitted one is biased upwards: it takes a spread that is
            by chance wider than the null's for leakage.
        rule: ``"exact"`` as version 2 of the paper has it, ``"threshold"`` as version 1.

    Example:
        >>> even = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> cosines = (even + 1 / 1.54) / 1000  # of the Gaussian mechanism with σ = 1.54
        >>> round(cosine_epsilon(cosines, dimension=10**6, delta=1e-6, spread="tied"), 2)
        3.01
    """
    fit = fit_cosines(cosines, dimension=dimension, spread=spread)
    return _epsilon_of(fit, dimension, delta, rule)


def cosine_estimate(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    spread: Spread = "fitted",
    rule: Attack = "exact",
    confidence: float = 0.95,
    rng: np.random.Generator,
    subject: str = "cosines of canaries",
) -> EpsilonEstimate:
    """``cosine_epsilon`` with a bootstrap interval (percentiles of 400 resamples).

    Guarantees: none; an estimate is no bound, and never refutes. ``caveats`` says where the
        cosines are few, or not normal.
    Assumes: cosines are normal, and independent.
    """
    _validate.open_unit(confidence=confidence)
    known = cosines_of(cosines, dimension=dimension)
    fit = fit_cosines(known, dimension=dimension, spread=spread)
    epsilon = _epsilon_of(fit, dimension, delta, rule)
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    means, stds = _resampled(known, rng)
    if spread == "tied":  # ε rises with the mean: two evaluations instead of hundreds
        limits = [
            _epsilon_of(Fit(float(mean), fit.std), dimension, delta, rule)
            for mean in np.quantile(means, ends)
        ]
    else:
        again = [
            _epsilon_of(Fit(float(m), float(s)), dimension, delta, rule, relative=_NEAR)
            for m, s in zip(means, stds, strict=True)
            if s > 0
        ]
        limits = [float(limit) for limit in np.quantile(again, ends)]
    forward, backward = two_gaussians_directions(
        0.0, 1 / math.sqrt(dimension), fit.mean, fit.std, delta, rule, relative=_NEAR
    )
    return EpsilonEstimate(
        epsilon=epsilon,
        low=min(limits[0], epsilon),
        high=max(limits[1], epsilon),
        delta=delta,
        confidence=confidence,
        method=f"normal law of {known.size} cosines, {spread} spread, {rule} rule",
        direction=_DIRECTIONS[0] if forward >= backward else _DIRECTIONS[1],
        subject=subject,
        cites=("andrew2024",),
        caveats=(*_few(known), *_not_normal(known), *_of_spread(spread)),
    )


def two_sample_estimate(
    observed: ArrayLike,
    unobserved: ArrayLike,
    *,
    delta: float,
    rule: Attack = "exact",
    confidence: float = 0.95,
    rng: np.random.Generator,
    subject: str = "largest cosines of canaries",
) -> EpsilonEstimate:
    """The ε between normal laws fitted to canaries that took part and to canaries that did not.

    For statistics whose null law is not known exactly, such as the largest cosine of all rounds.

    Guarantees: none; see ``cosine_estimate``.
    Assumes: both samples are normal, and independent.
    """
    _validate.open_unit(confidence=confidence)
    samples = [_validate.scores("observed", observed), _validate.scores("unobserved", unobserved)]
    fits = [_fit_of(sample.astype(np.float64)) for sample in samples]

    def apart(present: Fit, absent: Fit, relative: float = 0.0) -> float:
        if present.mean <= absent.mean:
            return 0.0
        return two_gaussians_epsilon(*absent, *present, delta, rule, relative=relative)

    epsilon = apart(fits[0], fits[1])
    resampled = [
        [Fit(float(m), float(s)) for m, s in zip(*_resampled(sample, rng), strict=True)]
        for sample in samples
    ]
    again = [
        apart(present, absent, _NEAR)
        for present, absent in zip(*resampled, strict=True)
        if min(present.std, absent.std) > 0
    ]
    low, high = np.quantile(again, [(1 - confidence) / 2, (1 + confidence) / 2])
    forward, backward = two_gaussians_directions(*fits[1], *fits[0], delta, rule, relative=_NEAR)
    caveats = [text for sample in samples for text in (*_few(sample), *_not_normal(sample))]
    return EpsilonEstimate(
        epsilon=epsilon,
        low=min(float(low), epsilon),
        high=max(float(high), epsilon),
        delta=delta,
        confidence=confidence,
        method=f"normal laws of {samples[0].size} observed and {samples[1].size} unobserved "
        f"canaries, {rule} rule",
        direction=_DIRECTIONS[0] if forward >= backward else _DIRECTIONS[1],
        subject=subject,
        cites=("andrew2024",),
        caveats=tuple(dict.fromkeys(caveats)),
    )


def split_epsilon(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    spread: Spread = "fitted",
    rng: np.random.Generator,
) -> float:
    """ε at a threshold chosen on one half of the cosines and used on the other.

    The estimates above choose the best threshold of the law they are evaluated on, and so err
    upwards; this one does not, and scatters more (one-shot paper, version 1, after Tramèr et al.
    2022). Four canaries or more.
    """
    _validate.open_unit(delta=delta)
    known = rng.permutation(cosines_of(cosines, dimension=dimension))
    if known.size < 4:
        raise InvalidArgument(f"Expected four cosines or more to split, got {known.size}.")
    half, root = known.size // 2, math.sqrt(dimension)
    first, second = (
        fit_cosines(part, dimension=dimension, spread=spread)
        for part in (known[:half], known[half:])
    )
    if first.mean <= 0 or second.mean <= 0:
        return 0.0
    reach = root * (first.mean + 10 * first.std) + 10
    grid = np.linspace(-10.0, reach, 20_001)  # in null standard deviations
    row, at = np.unravel_index(
        np.argmax(_epsilons_at(grid, root * first.mean, root * first.std, delta)), (2, grid.size)
    )
    chosen = _epsilons_at(grid[at : at + 1], root * second.mean, root * second.std, delta)
    return float(chosen[row, 0])


def anderson_darling(sample: ArrayLike) -> float:
    """The Anderson–Darling statistic against a normal law of unknown mean and spread.

    Example:
        >>> even = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> anderson_darling(even) < 0.1, anderson_darling(even**3) > 1.088
        (True, True)
    """
    known = np.sort(_validate.scores("sample", sample).astype(np.float64))
    fit = _fit_of(known, divisor_less=1)
    z = (known - fit.mean) / fit.std
    odd = 2 * np.arange(known.size) + 1
    return float(-known.size - np.mean(odd * (special.log_ndtr(z) + special.log_ndtr(-z[::-1]))))


def anderson_darling_limit(size: int) -> float:
    """What the statistic of a normal sample exceeds in one of a hundred (Stephens 1974).

    Example:
        >>> round(anderson_darling_limit(1000), 3)
        1.088
    """
    _validate.whole(8, size=size)
    return 1.092 / (1 + 4 / size - 25 / size**2)


def cosine_bound(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    confidence: float = 0.95,
    rule: Literal["ranks", "quantiles"] = "ranks",
) -> EpsilonLowerBound:
    r"""Lower bound on ε from the cosines of canaries that took part, by counting.

    The chance that a canary which took no part reaches a threshold is known exactly, so only one
    rate has to be limited: by Clopper–Pearson, with 1 − confidence shared among thresholds and
    both directions.

    - ``"ranks"``: thresholds are the 1st, 4th, 16th, … highest and lowest cosine. The share of
      canaries above the j-th highest of k is Beta(j, k−j+1) distributed whatever their law, so that
      the limit holds though the cosines themselves place the threshold.
    - ``"quantiles"``: thresholds every half standard deviation of the null, the i-th at a share
      of 1/((i+1)(i+2)). Proves less, since none of them is where the cosines happen to be.

    Guarantees: exceeds the true ε with probability at most ``1 - confidence``, whatever the law of
        the cosines. Canaries need not take part equally often: their mean rate is bounded, and
        unequal rates make counts only less variable (Hoeffding 1956).
    Assumes: cosines are independent of each other, nearly so where canaries are far fewer than
        dimensions; directions could not be foreseen.

    Example:
        >>> even = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> bound = cosine_bound((even + 4) / 1000, dimension=10**6, delta=1e-6)
        >>> bound.valid, round(bound.epsilon, 1)
        (True, 18.0)
    """
    _validate.open_unit(confidence=confidence)
    _validate.probability(delta=delta)
    if rule not in ("ranks", "quantiles"):
        raise InvalidArgument(f"Expected rule to be 'ranks' or 'quantiles', got {rule!r}.")
    known = np.sort(cosines_of(cosines, dimension=dimension))
    alpha = 1 - confidence
    looks = _at_ranks(known, alpha) if rule == "ranks" else _at_quantiles(known, dimension, alpha)
    above, below = (
        _log_ratio(looks[0], cosine_logsf(looks[0].thresholds, dimension), delta),
        _log_ratio_below(looks[1], cosine_cdf(looks[1].thresholds, dimension), delta),
    )
    best = (int(np.argmax(above)), int(np.argmax(below)))
    row = 0 if above[best[0]] >= below[best[1]] else 1
    words = {
        "ranks": f"ranks 1, {_RANK_RATIO}, {_RANK_RATIO**2}, … from either end",
        "quantiles": f"every {_STEP:g} null standard deviations",
    }
    return EpsilonLowerBound(
        epsilon=float((above, below)[row][best[row]]),
        delta=delta,
        confidence=confidence,
        method="cosines",
        threshold_rule=f"{words[rule]}, FPR from the exact null law",
        valid=True,
        direction=_DIRECTIONS[row],
        threshold=float(looks[row].thresholds[best[row]]),
        n_in=known.size,
        n_out=0,
        cites=("clopper1934", "kairouz2015", "andrew2024"),
    )


def tied_bound(
    cosines: ArrayLike, *, dimension: int, delta: float, confidence: float = 0.95
) -> EpsilonLowerBound:
    """Lower bound on ε from the mean of the cosines: ε at μ̂ − z/√(kd).

    Guarantees: exceeds the true ε with probability at most ``1 - confidence`` for canaries that
        take part equally often in sums with Gaussian noise.
    Assumes: exactly that: all cosines are normal with one mean and the spread 1/√d of the null.

    Example:
        >>> even = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> round(tied_bound((even + 4) / 1000, dimension=10**6, delta=1e-6).epsilon, 1)
        25.9
    """
    _validate.open_unit(confidence=confidence, delta=delta)
    known = cosines_of(cosines, dimension=dimension)
    sure = math.sqrt(dimension) * float(known.mean())
    sure -= float(special.ndtri(confidence)) / math.sqrt(known.size)
    return EpsilonLowerBound(
        epsilon=gdp_epsilon(max(0.0, sure), delta),
        delta=delta,
        confidence=confidence,
        method="mean_cosine",
        threshold_rule="none: the mean of all cosines, spread tied to the null's",
        valid=True,
        direction="both",
        threshold=max(0.0, sure) / math.sqrt(dimension),
        n_in=known.size,
        n_out=0,
        cites=("andrew2024", "balle2018"),
        caveats=(
            "Holds only where all canaries take part equally often and noise is Gaussian: the "
            "cosines are taken to be normal, of one mean, with the spread of the null.",
        ),
    )


def cosines_of(cosines: ArrayLike, *, dimension: int) -> FloatArray:
    """Cosines of canaries that took part, as float64; what cannot be that is refused."""
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


class _Looks(NamedTuple):
    """Thresholds, and what is sure of the rate of canaries on the other side of each."""

    thresholds: FloatArray
    rates: FloatArray  # lower limits of TPR, or upper limits of FNR


def _at_ranks(known: FloatArray, alpha: float) -> tuple[_Looks, _Looks]:
    k = known.size
    ranks: IntArray = np.array(
        [_RANK_RATIO**i for i in range(64) if _RANK_RATIO**i <= k], dtype=np.int64
    )
    share = np.full(ranks.size, alpha / (2 * ranks.size))
    return (
        _Looks(known[k - ranks], _least_rate(ranks, k, share)),
        _Looks(known[ranks - 1], _largest_rate(ranks - 1, k, share)),
    )


def _at_quantiles(known: FloatArray, dimension: int, alpha: float) -> tuple[_Looks, _Looks]:
    k, step = known.size, _STEP / math.sqrt(dimension)
    count = 1 + int(max(float(known[-1]), 0.0) / step)  # above the highest cosine is nothing
    at = np.arange(count)
    thresholds = np.minimum(at * step, 1.0)
    share = alpha / (2 * (at + 1.0) * (at + 2.0))
    missed = np.searchsorted(known, thresholds)
    return (
        _Looks(thresholds, _least_rate(k - missed, k, share)),
        _Looks(thresholds, _largest_rate(missed, k, share)),
    )


def _least_rate(hits: IntArray, k: int, alpha: FloatArray) -> FloatArray:
    """Clopper–Pearson's lower limit of a mean rate, also where canaries have rates of their own.

    Hoeffding's comparison with equal rates begins at two hits. For one, the chance that any of k
    canaries hits is at most the sum of their rates.
    """
    some = np.maximum(hits, 1)
    limit = binomial.beta_at(some, k - some + 1, special.ndtri(alpha))
    return np.where(hits > 1, limit, np.where(hits == 1, np.minimum(limit, alpha / k), 0.0))


def _largest_rate(missed: IntArray, k: int, alpha: FloatArray) -> FloatArray:
    """Clopper–Pearson's upper limit of a mean rate."""
    fewer = np.minimum(missed, k - 1)
    limit = binomial.beta_at(fewer + 1, k - fewer, -special.ndtri(alpha))
    return np.where(missed < k, limit, 1.0)


def _log_ratio(looks: _Looks, log_fpr: FloatArray, delta: float) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(looks.rates - delta) - log_fpr
    return np.asarray(np.nan_to_num(found, nan=0.0, neginf=0.0).clip(min=0.0))


def _log_ratio_below(looks: _Looks, tnr: FloatArray, delta: float) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(tnr - delta) - np.log(looks.rates)
    return np.asarray(np.nan_to_num(found, nan=0.0, neginf=0.0).clip(min=0.0))


def _epsilon_of(
    fit: Fit, dimension: int, delta: float, rule: Attack, relative: float = 0.0
) -> float:
    if fit.mean <= 0:  # no leakage was seen; symmetry would make some of it
        return 0.0
    null = 1 / math.sqrt(dimension)
    return two_gaussians_epsilon(0.0, null, fit.mean, fit.std, delta, rule, relative=relative)


def _fit_of(sample: FloatArray, divisor_less: int = 0) -> Fit:
    if sample.size < 2:
        raise InvalidArgument("Expected two values or more to fit a law to, got 1.")
    fit = Fit(float(sample.mean()), float(sample.std(ddof=divisor_less)))
    if not fit.std > np.finfo(np.float32).eps * abs(fit.mean):
        raise InvalidArgument(
            f"Expected values that differ, got {sample.size} times {fit.mean:.6g}."
        )
    return fit


def _epsilons_at(t: FloatArray, mean: float, std: float, delta: float) -> FloatArray:
    """ε of both directions at thresholds, between N(mean, std²) and N(0, 1); shape ``(2, n)``."""
    u = (t - mean) / std
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.log(special.ndtr(-u) - delta) - special.log_ndtr(-t)
        below = np.log(special.ndtr(t) - delta) - special.log_ndtr(u)
    found = np.nan_to_num(np.stack([above, below]), nan=0.0, neginf=0.0)
    return np.asarray(found.clip(min=0.0))


def _resampled(known: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Means and standard deviations of resamples with replacement."""
    fits = np.empty((2, _RESAMPLES))
    for i in range(_RESAMPLES):
        again = known[rng.integers(known.size, size=known.size)]
        fits[:, i] = again.mean(), again.std()
    return fits[0], fits[1]


def _few(known: FloatArray) -> tuple[str, ...]:
    few = f"{known.size} canaries are few: below {FEW} the estimate scatters widely."
    return (few,) if known.size < FEW else ()


def _not_normal(known: FloatArray) -> tuple[str, ...]:
    if known.size < 8:
        return ()
    found, limit = anderson_darling(known), anderson_darling_limit(known.size)
    if found <= limit:
        return ()
    return (
        f"The cosines are not normal (Anderson–Darling {found:.3g}, at most {limit:.4g} in 99 of "
        "100 normal samples): the estimate rests on that they are, the bound by ranks does not.",
    )


def _of_spread(spread: Spread) -> tuple[str, ...]:
    if spread == "tied":
        return ("Right only where all canaries take part equally often.",)
    return (
        "Errs upwards where ε is small: a spread that is wider than the null's by chance counts "
        "as leakage.",
    )


def _checked(x: ArrayLike, dimension: int) -> tuple[FloatArray, float]:
    _validate.whole(2, dimension=dimension)
    array = np.asarray(x, np.float64)
    if np.any(~(np.abs(array) <= 1)):
        raise InvalidArgument(f"Expected cosines in [-1, 1], got {array!r}.")
    return array, (dimension - 1) / 2


def _log_tail(x: FloatArray, half: float) -> FloatArray:
    """ln of half the tail of cos² by its continued fraction (DLMF 8.17.22), for deep tails."""
    a, b, y = half, 0.5, (1 - x) * (1 + x)  # 1 − cos² is Beta(half, ½), and small here
    fraction = np.ones_like(y)
    for m in range(60, 0, -1):
        even = m * (b - m) * y / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * y / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1 + odd / (1 + even / fraction)
    front = a * np.log(y) + b * np.log(x * x) - special.betaln(a, b) - math.log(a)
    return np.asarray(front - np.log(fraction) - math.log(2))
