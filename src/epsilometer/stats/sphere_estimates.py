"""What the cosines of canaries estimate: ε between normal laws, as the one-shot papers have it.

One run shows one cosine for each of k canaries that took part; for one that did not, the law of
its cosine is known. An estimate is no bound; ``stats.sphere_bounds`` has those.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epsilometer import _validate
from epsilometer.core.bound import Direction, EpsilonEstimate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.errors import InvalidArgument
from epsilometer.stats import search
from epsilometer.stats.gaussians import gdp_epsilon, two_gaussians_directions, two_gaussians_epsilon
from epsilometer.stats.sphere import cosines_of
from epsilometer.types import FloatArray

Spread: TypeAlias = Literal["fitted", "tied"]
Attack: TypeAlias = Literal["exact", "threshold"]
FEW = 300  # cosines below which a fitted normal law is a guess
_RESAMPLES = 400
_NEAR = 1e-4  # relative: far below what resampling scatters
_UNEVEN = 1.25  # the wider spread in units of the other, from which tails make up most of ε
_DIRECTIONS: tuple[Direction, Direction] = ("present→absent", "absent→present")
_GRID = 801  # shifts that are tried
_FARTHEST_THRESHOLD = 40.0  # standard deviations: beyond it normal numbers have no chance
_FARTHEST = 10.0  # standard deviations beyond the highest cosine: no shift is larger
_MOST = 1e9  # rounds, for each canary: nobody trains for longer
_STRAY = 1.63  # √k times Kolmogorov's distance, which 1 of 100 samples of the law exceeds


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
    confidence: float = DEFAULT_CONFIDENCE,
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
        basis=(
            ("mean present", fit.mean),
            ("spread present", fit.std),
            ("mean absent", 0.0),
            ("spread absent", 1 / math.sqrt(dimension)),
        ),
    )


def two_sample_estimate(
    observed: ArrayLike,
    unobserved: ArrayLike,
    *,
    delta: float,
    rule: Attack = "exact",
    confidence: float = DEFAULT_CONFIDENCE,
    rng: np.random.Generator,
    subject: str = "largest cosines of canaries",
) -> EpsilonEstimate:
    """The ε between normal laws fitted to canaries that took part and to canaries that did not.

    For statistics whose null law is not known exactly. The one-shot papers take it for the largest
    cosine of all rounds, which is not normal; ``stats.sphere_rounds`` has its law.

    Guarantees: none; see ``cosine_estimate``. Where the spreads differ much the estimate may lie
        far above the true ε, and ``caveats`` says so.
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
    caveats += _uneven(*fits)
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
        basis=(
            ("mean present", fits[0].mean),
            ("spread present", fits[0].std),
            ("mean absent", fits[1].mean),
            ("spread absent", fits[1].std),
        ),
    )


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


def _uneven(present: Fit, absent: Fit) -> tuple[str, ...]:
    wider, narrower = max(present.std, absent.std), min(present.std, absent.std)
    if wider < _UNEVEN * narrower:
        return ()
    return (
        f"One spread is {wider / narrower:.2g} times the other: most of this ε is that of normal "
        "tails where nothing was seen, and it may lie far above what accounting allows.",
    )


def _of_spread(spread: Spread) -> tuple[str, ...]:
    if spread == "tied":
        return ("Right only where all canaries take part equally often.",)
    return (
        "Errs upwards where ε is small: a spread that is wider than the null's by chance counts "
        "as leakage.",
    )


def rounds_epsilon(mu: float, rounds: float, delta: float) -> float:
    r"""Return ε between the largest of ``rounds`` normal numbers and one of them shifted by ``mu``.

    In units of 1/√d, the cosine of a canary with the update of a round is N(0, 1) where it took no
    part, and N(μ, 1) where it did. The largest of n rounds then has the law

    - :math:`F_0(x) = \Phi(x)^n` of a canary that took part in none,
    - :math:`F_1(x) = \Phi(x - \mu)\,\Phi(x)^{n-1}` of one that took part once.

    The ratio of their densities, :math:`(e^{\mu x - \mu^2/2} + (n-1)\Phi(x-\mu)/\Phi(x))/n`, rises
    with x, so that thresholds are the best attacks. A maximum is computed from what all rounds
    show, so this ε is never above that of the Gaussian mechanism with σ = 1/μ. Two fitted normal
    laws of unequal spread can be any distance apart.

    Guarantees: at most ``gdp_epsilon(mu, delta)``, which it is for one round; falls with rounds.

    Example:
        >>> round(rounds_epsilon(5.0, 1, 1e-5), 2), round(rounds_epsilon(5.0, 500, 1e-5), 2)
        (33.1, 26.89)
    """
    _validate.at_least(0, mu=mu)
    _validate.at_least(1, rounds=rounds)
    _validate.open_unit(delta=delta)
    if rounds == 1:
        return gdp_epsilon(mu, delta)
    if mu == 0:
        return 0.0

    def log_ratio(t: float) -> float:
        here = mu * t - mu * mu / 2
        elsewhere = special.log_ndtr(t - mu) - special.log_ndtr(t) + math.log(rounds - 1)
        return float(np.logaddexp(here, elsewhere)) - math.log(rounds)

    def above(t: float) -> float:
        """By how much the attack at threshold t, where the ratio of densities is e^ε, exceeds δ."""
        present = -math.expm1(special.log_ndtr(t - mu) + (rounds - 1) * special.log_ndtr(t))
        return present - math.exp(log_ratio(t) + _log_exceeded(t, rounds)) - delta

    def below(t: float) -> float:
        present = special.log_ndtr(t - mu) + (rounds - 1) * special.log_ndtr(t)
        absent = rounds * special.log_ndtr(t)
        return math.exp(absent) - math.exp(present - log_ratio(t)) - delta

    far = mu + _FARTHEST_THRESHOLD
    even = _last(lambda t: log_ratio(t) <= 0, -far, far)  # where ε is 0
    found = [0.0]
    if above(even) > 0:
        found.append(log_ratio(_last(lambda t: above(t) > 0, even, far)))
    if below(even) > 0:
        found.append(-log_ratio(_last(lambda t: below(t) <= 0, -far, even)))
    return max(found)


def largest_estimate(
    observed: ArrayLike,
    unobserved: ArrayLike,
    *,
    dimension: int,
    delta: float,
    confidence: float = DEFAULT_CONFIDENCE,
    rng: np.random.Generator,
    subject: str = "largest cosines of canaries",
) -> EpsilonEstimate:
    """ε from the largest cosines over rounds, by the law of a maximum.

    The number of rounds is fitted to canaries that took no part (rounds that resemble each other
    count for fewer), the shift to those that did, both by their likelihood; the interval is that
    of resampling canaries that took part.

    Guarantees: none; an estimate is no bound, and never refutes. It is at most the ε of the
        Gaussian mechanism with the fitted shift.
    Assumes: every canary took part in one round, and none moves the update of another. Taking part
        oftener looks like a larger shift. ``caveats`` says where the law does not fit.
    """
    _validate.open_unit(confidence=confidence, delta=delta)
    scale = math.sqrt(dimension)
    inside, outside = (
        scale * cosines_of(sample, dimension=dimension) for sample in (observed, unobserved)
    )
    rounds = max(1.0, outside.size / max(-float(special.log_ndtr(outside).sum()), 1 / _MOST))
    shifts = np.linspace(0.0, max(float(inside.max()), 0.0) + _FARTHEST, _GRID)
    likely = _log_likelihood(inside, shifts, rounds)
    again = rng.multinomial(inside.size, np.full(inside.size, 1 / inside.size), size=_RESAMPLES)
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    best = _peak(shifts, likely.sum(axis=1)[None])[0]
    low, high = np.quantile(_peak(shifts, again @ likely.T), ends)
    epsilon, least, most = (
        rounds_epsilon(float(mu), rounds, delta) for mu in (best, min(low, best), max(high, best))
    )
    return EpsilonEstimate(
        epsilon=epsilon,
        low=least,
        high=most,
        delta=delta,
        confidence=confidence,
        method=f"law of the largest of {rounds:.0f} rounds, one of them shifted by {best:.3g}/√d",
        direction="both",
        subject=subject,
        cites=("andrew2024",),
        caveats=_stray(inside, outside, float(best), rounds),
        basis=(("rounds", rounds), ("shift", float(best))),
    )


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The last point at which ``holds`` is true, between one where it is and one where not."""
    return float(search.bisect(lambda t: np.asarray(holds(float(t))), low, high)[0])


def _log_exceeded(t: float, rounds: float) -> float:
    """ln of the chance that the largest of some normal numbers exceeds t; does not underflow."""
    all_below = rounds * float(special.log_ndtr(t))
    if all_below < -1e-9:
        return math.log(-math.expm1(all_below))
    return math.log(rounds) + float(special.log_ndtr(-t))


def _log_likelihood(x: FloatArray, shifts: FloatArray, rounds: float) -> FloatArray:
    """Of every cosine at every shift, up to what does not depend on the shift: (shifts, k)."""
    here = shifts[:, None] * x - shifts[:, None] ** 2 / 2
    if rounds == 1:
        return here
    elsewhere = special.log_ndtr(x - shifts[:, None]) - special.log_ndtr(x) + math.log(rounds - 1)
    return np.asarray(np.logaddexp(here, elsewhere))


def _peak(at: FloatArray, heights: FloatArray) -> FloatArray:
    """Where each row of heights is highest, by the parabola through the three highest points."""
    rows, top = np.arange(len(heights)), heights.argmax(axis=1)
    inner = np.clip(top, 1, at.size - 2)
    left, mid, right = (heights[rows, inner + i] for i in (-1, 0, 1))
    bent = left - 2 * mid + right
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.where((bent < 0) & (top == inner), (left - right) / (2 * bent), 0.0)
    return np.asarray(at[top] + off * (at[1] - at[0]))


def _stray(inside: FloatArray, outside: FloatArray, mu: float, rounds: float) -> tuple[str, ...]:
    """Says which of the samples the law does not fit."""
    absent = np.exp(rounds * special.log_ndtr(outside))
    present = np.exp(special.log_ndtr(inside - mu) + (rounds - 1) * special.log_ndtr(inside))
    told = []
    for shares, who in ((present, "that took part"), (absent, "that did not take part")):
        k, ranked = shares.size, np.sort(shares)
        apart = max(
            float((np.arange(1, k + 1) / k - ranked).max()),
            float((ranked - np.arange(k) / k).max()),
        )
        if math.sqrt(k) * apart > _STRAY:
            told.append(
                f"The largest cosines of canaries {who} do not have the law of a maximum of "
                f"independent rounds (Kolmogorov's distance {apart:.2g}): the estimate rests on "
                "that they have, the bound does not."
            )
    return tuple(told)
