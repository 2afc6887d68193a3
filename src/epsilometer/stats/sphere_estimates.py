"""Estimate ε from cosines of canaries: between normal distributions, as in the one-shot papers.

One run shows one cosine for each of k canaries that took part; for one that did not, the
distribution of its cosine is known. An estimate is not a bound; ``stats.sphere`` has those.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epsilometer import _validate
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.errors import InvalidArgument
from epsilometer.stats import search
from epsilometer.stats.gaussians import (
    Rule,
    gdp_epsilon,
    solve_two_gaussians,
    two_gaussians_directions,
)
from epsilometer.stats.sphere import check_cosines
from epsilometer.types import FloatArray

Spread: TypeAlias = Literal["fitted", "tied"]
FEW = 300  # cosines below which a fitted normal distribution is a guess
_FEWEST_TO_TEST = 8  # below it Stephens gives no limit
_RESAMPLES = 400
_NEAR = 1e-4  # relative: far below what resampling scatters
_UNEVEN = 1.25  # the wider spread in units of the other, from which tails make up most of ε
_GRID = 801  # shifts that are tried
_FARTHEST_THRESHOLD = 40.0  # standard deviations: beyond it normal numbers have no chance
_FARTHEST = 10.0  # standard deviations beyond the highest cosine: no shift is larger
_MOST = 1e9  # rounds, for each canary: nobody trains for longer
_STRAY = 1.63  # √k times Kolmogorov's distance, which 1 of 100 samples of the distribution exceeds
_CAVEATS: dict[Spread, str] = {
    "fitted": "Too large where ε is small: a standard deviation that exceeds the null's by "
    "chance counts as leakage.",
    "tied": "Correct only if all canaries take part equally often.",
}


class Fit(NamedTuple):
    """A normal distribution of cosines."""

    mean: float
    std: float


def fit_cosines(cosines: ArrayLike, *, dimension: int, spread: Spread = "fitted") -> Fit:
    """Fit the normal distribution of the cosines of canaries that took part.

    Args:
        cosines: One for each canary, shape ``(k,)``; two or more.
        dimension: Dimension of the space.
        spread: ``"fitted"`` has divisor k, as the papers have it; ``"tied"`` takes the 1/√d of the
            null, which is correct if every canary takes part equally often.
    """
    if spread not in _CAVEATS:
        raise InvalidArgument(f"Expected spread to be 'fitted' or 'tied', got {spread!r}.")
    fit = _fit_normal(check_cosines(cosines, dimension=dimension))
    return fit if spread == "fitted" else Fit(fit.mean, 1 / math.sqrt(dimension))


def cosine_epsilon(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    spread: Spread = "fitted",
    rule: Rule = "exact",
) -> float:
    """Return ε between the fitted distribution of the cosines and the null, N(0, 1/d).

    A mean of 0 or below shows no leakage and gives 0, whatever its spread.

    Args:
        cosines: One for each canary that took part.
        dimension: Dimension of the space.
        delta: δ.
        spread: See ``fit_cosines``. The fitted one is biased upwards: a spread that happens to be
            wider than the null's counts as leakage.
        rule: ``"exact"`` as in version 2 of the paper, ``"threshold"`` as in version 1.

    Example:
        >>> even = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> cosines = (even + 1 / 1.54) / 1000  # of the Gaussian mechanism with σ = 1.54
        >>> round(cosine_epsilon(cosines, dimension=10**6, delta=1e-6, spread="tied"), 2)
        3.01
    """
    fit = fit_cosines(cosines, dimension=dimension, spread=spread)
    return float(_compute_epsilon(fit.mean, 1 / math.sqrt(dimension), fit.std, delta, rule))


def cosine_estimate(
    cosines: ArrayLike,
    *,
    dimension: int,
    delta: float,
    spread: Spread = "fitted",
    rule: Rule = "exact",
    confidence: float = DEFAULT_CONFIDENCE,
    rng: np.random.Generator,
    subject: str = "cosines of canaries",
) -> EpsilonEstimate:
    """Return ``cosine_epsilon`` with a bootstrap interval (percentiles of 400 resamples).

    Guarantee: none; an estimate is not a bound, and never refutes. ``caveats`` says where the
        cosines are few, or not normal.
    Assumption: cosines are normal, and independent.
    """
    ends = _list_ends(confidence)
    values = check_cosines(cosines, dimension=dimension)
    present = fit_cosines(values, dimension=dimension, spread=spread)
    absent = Fit(0.0, 1 / math.sqrt(dimension))
    means, stds = _resample(values, rng)
    if spread == "tied":  # ε rises with the mean: two evaluations instead of hundreds
        limits = _compute_epsilon(np.quantile(means, ends), absent.std, present.std, delta, rule)
    else:
        again = _compute_epsilon(means, absent.std, stds, delta, rule, _NEAR)
        limits = np.nanquantile(again, ends)
    return _make_estimate(
        present,
        absent,
        limits,
        rule=rule,
        delta=delta,
        confidence=confidence,
        method=f"normal distribution of {values.size} cosines, {spread} spread, {rule} rule",
        subject=subject,
        caveats=(*_warn_of_sample(values), _CAVEATS[spread]),
    )


def two_sample_estimate(
    observed: ArrayLike,
    unobserved: ArrayLike,
    *,
    delta: float,
    rule: Rule = "exact",
    confidence: float = DEFAULT_CONFIDENCE,
    rng: np.random.Generator,
    subject: str = "largest cosines of canaries",
) -> EpsilonEstimate:
    """Return ε between normal distributions of canaries that took part and of those that did not.

    For statistics whose null distribution is not known exactly. The one-shot papers take it for the
    largest cosine of all rounds, which is not normal; ``largest_estimate`` has its distribution.

    Guarantee: none; see ``cosine_estimate``. Where the spreads differ much the estimate may lie
        far above the true ε, and ``caveats`` says so.
    Assumption: both samples are normal, and independent.
    """
    ends = _list_ends(confidence)
    samples = [_validate.scores("observed", observed), _validate.scores("unobserved", unobserved)]
    present, absent = (_fit_normal(sample.astype(np.float64)) for sample in samples)
    (means, stds), (null_means, null_stds) = (_resample(sample, rng) for sample in samples)
    again = _compute_epsilon(means - null_means, null_stds, stds, delta, rule, _NEAR)
    caveats = [text for sample in samples for text in _warn_of_sample(sample)]
    ratio = max(present.std / absent.std, absent.std / present.std)
    if ratio >= _UNEVEN:
        caveats.append(
            f"One spread is {ratio:.2g} times the other: most of this ε comes from normal tails "
            "without any observation, and it may be far above what accounting allows."
        )
    return _make_estimate(
        present,
        absent,
        np.nanquantile(again, ends),
        rule=rule,
        delta=delta,
        confidence=confidence,
        method=f"normal distributions of {samples[0].size} observed and {samples[1].size} "
        f"unobserved canaries, {rule} rule",
        subject=subject,
        caveats=tuple(dict.fromkeys(caveats)),
    )


def _make_estimate(
    present: Fit, absent: Fit, limits: FloatArray, *, rule: Rule, delta: float, **fields: Any
) -> EpsilonEstimate:
    """Return the ε between two normal distributions, with its direction and what it rests on."""
    gap = present.mean - absent.mean
    epsilon = float(_compute_epsilon(gap, absent.std, present.std, delta, rule))
    # Compared roughly: rounding must not choose between directions of nearly the same ε.
    forward, backward = two_gaussians_directions(*absent, *present, delta, rule, relative=_NEAR)
    return EpsilonEstimate(
        epsilon=epsilon,
        low=min(float(limits[0]), epsilon),
        high=max(float(limits[1]), epsilon),
        delta=delta,
        direction="present→absent" if forward >= backward else "absent→present",
        cites=("andrew2024",),
        basis=(
            ("mean present", present.mean),
            ("spread present", present.std),
            ("mean absent", absent.mean),
            ("spread absent", absent.std),
        ),
        **fields,
    )


def _list_ends(confidence: float) -> list[float]:
    """Return the shares of resamples below either end of an interval."""
    _validate.open_unit(confidence=confidence)
    return [(1 - confidence) / 2, (1 + confidence) / 2]


def anderson_darling(sample: ArrayLike) -> float:
    """Return the Anderson–Darling statistic for normality with unknown mean and spread.

    Example:
        >>> even = special.ndtri((np.arange(1000) + 0.5) / 1000)
        >>> anderson_darling(even) < 0.1, anderson_darling(even**3) > 1.088
        (True, True)
    """
    ranked = np.sort(_validate.scores("sample", sample).astype(np.float64))
    fit = _fit_normal(ranked, ddof=1)
    z = (ranked - fit.mean) / fit.std
    odd = 2 * np.arange(z.size) + 1
    return float(-z.size - np.mean(odd * (special.log_ndtr(z) + special.log_ndtr(-z[::-1]))))


def anderson_darling_limit(size: int) -> float:
    """Return what 1 in 100 statistics of normal samples exceeds (Stephens 1974).

    Example:
        >>> round(anderson_darling_limit(1000), 3)
        1.088
    """
    _validate.whole(_FEWEST_TO_TEST, size=size)
    return 1.092 / (1 + 4 / size - 25 / size**2)


def _compute_epsilon(
    gap: FloatArray | float,
    std_absent: FloatArray | float,
    std_present: FloatArray | float,
    delta: float,
    rule: Rule,
    relative: float = 0.0,
) -> FloatArray:
    """Return ε between pairs of normal distributions: nan for resamples without spread."""
    gap, absent, present = np.broadcast_arrays(gap, std_absent, std_present)
    epsilon = np.where(np.minimum(absent, present) > 0, 0.0, np.nan)
    # Where the mean fell no leakage was seen; the symmetry of an exact rule would make some of it.
    rose = (gap > 0) & (epsilon == 0)
    pairs = (gap[rose], absent[rose], present[rose])
    epsilon[rose] = solve_two_gaussians(*pairs, delta, rule, relative=relative).max(axis=0)
    return epsilon


def _fit_normal(sample: FloatArray, ddof: int = 0) -> Fit:
    if sample.size < 2:
        raise InvalidArgument(
            "Expected two values or more to fit a distribution to, got 1. One shows no spread; "
            "plant some hundred canaries, they cost little."
        )
    fit = Fit(float(sample.mean()), float(sample.std(ddof=ddof)))
    if not fit.std > np.finfo(np.float32).eps * abs(fit.mean):
        raise InvalidArgument(
            f"Expected values that differ, got {sample.size} times {fit.mean:.6g}. Without noise, "
            "or with the same canary planted repeatedly, no distribution can be fitted."
        )
    return fit


def _resample(values: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return means and standard deviations of resamples with replacement: ``(2, resamples)``."""
    # One by one: all resamples at once would take hundreds of times the memory of the sample.
    drawn = (values[rng.integers(values.size, size=values.size)] for _ in range(_RESAMPLES))
    return np.array([(each.mean(), each.std()) for each in drawn], np.float64).T


def _warn_of_sample(values: FloatArray) -> list[str]:
    """Say where a sample is too small for a normal distribution, or has another."""
    caveats = []
    if values.size < FEW:
        caveats.append(f"{values.size} canaries are few: below {FEW} the estimate varies widely.")
    if values.size >= _FEWEST_TO_TEST:
        statistic, limit = anderson_darling(values), anderson_darling_limit(values.size)
        if statistic > limit:
            caveats.append(
                f"The cosines are not normal (Anderson–Darling {statistic:.3g}, at most "
                f"{limit:.4g} in 99 of 100 normal samples): the estimate assumes that they are, "
                "the bound by ranks does not."
            )
    return caveats


def rounds_epsilon(mu: float, rounds: float, delta: float) -> float:
    r"""Return ε between the largest of ``rounds`` normal numbers and one of them shifted by ``mu``.

    In units of 1/√d, the cosine of a canary with the update of a round is N(0, 1) where it took no
    part, and N(μ, 1) where it did. The largest of n rounds then has the distribution

    - :math:`F_0(x) = \Phi(x)^n` of a canary that took part in none,
    - :math:`F_1(x) = \Phi(x - \mu)\,\Phi(x)^{n-1}` of one that took part once.

    The ratio of their densities, :math:`(e^{\mu x - \mu^2/2} + (n-1)\Phi(x-\mu)/\Phi(x))/n`, rises
    with x, so that thresholds are the best attacks. A maximum is computed from what all rounds
    show, so this ε is never above that of the Gaussian mechanism with σ = 1/μ. Two fitted normal
    distributions of unequal spread can be any distance apart.

    Guarantee: at most ``gdp_epsilon(mu, delta)``, which it is for one round; falls with rounds.

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
        return float(_log_likelihood(t, mu, rounds)) - math.log(rounds)

    def above(t: float) -> float:
        """Return how much the attack at t, where the density ratio is e^ε, exceeds δ."""
        present = -math.expm1(_log_cdf(t, mu, rounds))
        return present - math.exp(log_ratio(t) + _log_exceeded(t, rounds)) - delta

    def below(t: float) -> float:
        """Return the same of the attack that says "absent" below t."""
        present, absent = (float(_log_cdf(t, shift, rounds)) for shift in (mu, 0.0))
        return math.exp(absent) - math.exp(present - log_ratio(t)) - delta

    far = mu + _FARTHEST_THRESHOLD
    even = _find_last(lambda t: log_ratio(t) <= 0, -far, far)  # where ε is 0
    epsilons = [0.0]
    if above(even) > 0:
        epsilons.append(log_ratio(_find_last(lambda t: above(t) > 0, even, far)))
    if below(even) > 0:
        epsilons.append(-log_ratio(_find_last(lambda t: below(t) <= 0, -far, even)))
    return max(epsilons)


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
    """Estimate ε from the largest cosines over rounds, by the distribution of a maximum.

    The number of rounds is fitted to canaries that took no part (rounds that resemble each other
    count for fewer), the shift to those that did, both by their likelihood. The interval is that
    of resampling canaries that took part.

    Guarantee: none; an estimate is not a bound, and never refutes. It is at most the ε of the
        Gaussian mechanism with the fitted shift.
    Assumption: every canary took part in one round, and none moves the update of another. Taking
        part more often looks like a larger shift. ``caveats`` says where the model does not fit.
    """
    ends = _list_ends(confidence)
    _validate.open_unit(delta=delta)
    scale = math.sqrt(dimension)
    inside, outside = (
        scale * check_cosines(sample, dimension=dimension) for sample in (observed, unobserved)
    )
    rounds = max(1.0, outside.size / max(-float(special.log_ndtr(outside).sum()), 1 / _MOST))
    shifts = np.linspace(0.0, max(float(inside.max()), 0.0) + _FARTHEST, _GRID)
    likely = _log_likelihood(inside, shifts[:, None], rounds)
    again = rng.multinomial(inside.size, np.full(inside.size, 1 / inside.size), size=_RESAMPLES)
    best = _find_peak(shifts, likely.sum(axis=1)[None])[0]
    low, high = np.quantile(_find_peak(shifts, again @ likely.T), ends)
    epsilon, least, most = (
        rounds_epsilon(float(mu), rounds, delta) for mu in (best, min(low, best), max(high, best))
    )
    return EpsilonEstimate(
        epsilon=epsilon,
        low=least,
        high=most,
        delta=delta,
        confidence=confidence,
        method=f"distribution of the largest of {rounds:.0f} rounds, one shifted by {best:.3g}/√d",
        direction="both",
        subject=subject,
        cites=("andrew2024",),
        caveats=_warn_of_misfit(inside, outside, float(best), rounds),
        basis=(("rounds", rounds), ("shift", float(best))),
    )


def _find_last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the last point at which ``holds`` is true, between one that is and one that is not."""
    return float(search.bisect(lambda t: np.asarray(holds(float(t))), low, high)[0])


def _log_exceeded(t: float, rounds: float) -> float:
    """Return ln of the chance that the largest of some normal numbers exceeds t."""
    all_below = rounds * float(special.log_ndtr(t))
    if all_below < -1e-9:
        return math.log(-math.expm1(all_below))
    return math.log(rounds) + float(special.log_ndtr(-t))


def _log_cdf(x: FloatArray | float, shift: FloatArray | float, rounds: float) -> FloatArray:
    """Return ln of the chance that the largest of some normal numbers, one shifted, is below x."""
    return np.asarray(special.log_ndtr(x - shift) + (rounds - 1) * special.log_ndtr(x))


def _log_likelihood(x: FloatArray | float, shift: FloatArray | float, rounds: float) -> FloatArray:
    """Return the log-likelihood of largest cosines, up to a constant."""
    here = shift * x - shift * shift / 2
    if rounds == 1:
        return np.asarray(here)
    elsewhere = special.log_ndtr(x - shift) - special.log_ndtr(x) + math.log(rounds - 1)
    return np.asarray(np.logaddexp(here, elsewhere))


def _find_peak(at: FloatArray, heights: FloatArray) -> FloatArray:
    """Return where each row is highest, by the parabola through the three highest points."""
    rows, top = np.arange(len(heights)), heights.argmax(axis=1)
    inner = np.clip(top, 1, at.size - 2)
    left, mid, right = (heights[rows, inner + i] for i in (-1, 0, 1))
    bent = left - 2 * mid + right
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.where((bent < 0) & (top == inner), (left - right) / (2 * bent), 0.0)
    return np.asarray(at[top] + off * (at[1] - at[0]))


def _warn_of_misfit(
    inside: FloatArray, outside: FloatArray, mu: float, rounds: float
) -> tuple[str, ...]:
    """Say which of the samples the distribution does not fit."""
    caveats = []
    for sample, shift, who in (
        (inside, mu, "that took part"),
        (outside, 0.0, "that did not take part"),
    ):
        k, ranked = sample.size, np.sort(np.exp(_log_cdf(sample, shift, rounds)))
        steps = np.arange(k + 1) / k
        apart = float(np.maximum(steps[1:] - ranked, ranked - steps[:-1]).max())
        if math.sqrt(k) * apart > _STRAY:
            caveats.append(
                f"The largest cosines of canaries {who} are not distributed like a maximum of "
                f"independent rounds (Kolmogorov's distance {apart:.2g}): the estimate assumes "
                "that they are, the bound does not."
            )
    return tuple(caveats)
