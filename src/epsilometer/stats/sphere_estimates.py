"""What the cosines of canaries estimate: ε between normal laws, as the one-shot papers have it.

One run shows one cosine for each of k canaries that took part; for one that did not, the law of
its cosine is known. An estimate is no bound; ``stats.sphere_bounds`` has those.
"""

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epsilometer import _validate
from epsilometer.core.bound import Direction, EpsilonEstimate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import two_gaussians_directions, two_gaussians_epsilon
from epsilometer.stats.sphere import cosines_of, log_ratio
from epsilometer.types import FloatArray

Spread: TypeAlias = Literal["fitted", "tied"]
Attack: TypeAlias = Literal["exact", "threshold"]
FEW = 300  # cosines below which a fitted normal law is a guess
_RESAMPLES = 400
_NEAR = 1e-4  # relative: far below what resampling scatters
_UNEVEN = 1.25  # the wider spread in units of the other, from which tails make up most of ε
_DIRECTIONS: tuple[Direction, Direction] = ("present→absent", "absent→present")


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
    above = log_ratio(special.ndtr(-u) - delta, special.log_ndtr(-t))
    below = log_ratio(special.ndtr(t) - delta, special.log_ndtr(u))
    return np.stack([above, below])


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
