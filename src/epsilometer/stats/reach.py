"""Compute what an audit could have found: its reach, and its power against a claim.

Both are computed with the bound that the audit used, on scores that were not observed: perfectly
separated ones for the reach, scores of a known law for the power.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import scipy.special

from epsilometer.observations import ScoreCounts, Scores
from epsilometer.stats import search
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.thresholds import Observed
from epsilometer.types import FloatArray

Bound: TypeAlias = Callable[[Observed], float]

POWER = 0.8  # with which a claim is refuted at the ε that ``compute_power`` returns
_REPLICATES = 16
_LARGEST_SHIFT = 64.0
_GOLDEN = (math.sqrt(5) - 1) / 2
# Of simulated scores: what more would tell is below the accuracy of the simulation, because
# the noise of larger samples is scaled down to theirs.
_SIMULATED = 20_000
_COUNTED = 20_000  # scores beyond which even quantiles are counted at thresholds
_THRESHOLDS = 400


def separate_scores(n_in: int, n_out: int) -> Scores:
    """Return the scores of a perfect attack: all different, and all inside above all outside."""
    return Scores(inside=1.0 + np.arange(n_in), outside=-1.0 - np.arange(n_out))


def compute_reach(bound: Callable[[Observed], float], observed: Observed) -> float:
    """Return the bound that a perfect attack gives on as many observations.

    No larger claim could have been refuted by them.

    Args:
        bound: The bound that the audit used.
        observed: What was observed; only the numbers count.
    """
    if isinstance(observed, ScoreCounts):
        bins = np.zeros((2, observed.thresholds.size + 1), np.int64)
        bins[0, -1], bins[1, 0] = observed.n_in, observed.n_out
        return bound(ScoreCounts(observed.thresholds, bins[0], bins[1]))
    return bound(separate_scores(observed.n_in, observed.n_out))


def compute_power(
    bound: Bound,
    *,
    claim: float,
    delta: float,
    n_in: int,
    n_out: int,
    epsilon_of: Callable[[float], float] | None = None,
    counted: bool = True,
    largest: float = _LARGEST_SHIFT,
) -> float:
    """Return the smallest true ε at which a claim is refuted with probability 0.8.

    The family is scores N(0, 1) against N(μ, 1); Laplace where δ = 0, for no Gaussian has a finite
    ε there. μ is found where even quantiles of both laws just refute the claim, and moved by the
    spread of the bound over simulated samples there (delta method).

    Args:
        bound: ε proved by scores.
        claim: The claimed ε.
        delta: δ of both.
        n_in: Scores with the record.
        n_out: Scores without it.
        epsilon_of: The true ε of a shift μ, where the family is another one.
        counted: Whether ``bound`` takes scores counted at thresholds, which is faster for many.
        largest: The largest shift to try; ``bound`` must rise up to there.

    Returns:
        Infinite where no ε is large enough.
    """
    laplace = delta == 0
    quantile = _laplace_quantile if laplace else scipy.special.ndtri
    true = epsilon_of or ((lambda mu: mu) if laplace else (lambda mu: gdp_epsilon(mu, delta)))
    scale = min(1.0, _SIMULATED / max(n_in, n_out))
    if scale < 1 and min(n_in, n_out) * scale < 100:
        scale = 1.0  # a small side must not vanish
    size_in, size_out = (max(2, round(n * scale)) for n in (n_in, n_out))

    def proved(mu: float) -> float:
        if counted and max(n_in, n_out) > _COUNTED:
            return bound(_expected_counts(n_in, n_out, mu, laplace=laplace))
        inside, outside = quantile(_even(n_in)) + mu, quantile(_even(n_out))
        # A fixed order, as if drawn: methods that bet on pairs must not see them sorted alike.
        apart = np.argsort(np.arange(1, n_out + 1) * _GOLDEN % 1)
        return bound(Scores(inside=inside, outside=outside[apart]))

    def stands(mu: FloatArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return np.asarray(proved(float(mu)) <= claim)

    if stands(np.asarray(largest)):
        return math.inf
    _, found = search.bisect(stands, 0.0, largest, relative=1e-3)
    middle = float(found)
    rng = np.random.default_rng(0)  # for every audit the same: power does not depend on its seed
    drawn = [
        bound(
            Scores(
                inside=quantile(rng.uniform(size=size_in)) + middle,
                outside=quantile(rng.uniform(size=size_out)),
            )
        )
        for _ in range(_REPLICATES)
    ]
    step = 0.05 * middle
    reached = proved(middle)  # above the claim, and so above 0
    slope = (proved(middle + step) - reached) / step
    spread = float(np.std(drawn, ddof=1)) * math.sqrt(scale)
    if slope <= 0:  # the bound is at its end: only a larger shift can tell
        slope = reached / middle
    return true(middle + float(scipy.special.ndtri(POWER)) * spread / slope)


def _expected_counts(n_in: int, n_out: int, mu: float, *, laplace: bool) -> ScoreCounts:
    """Return even quantiles of both laws, counted at thresholds: 10⁹ scores in 400 numbers."""
    cdf = _laplace_cdf if laplace else scipy.special.ndtr
    edge = 30.0 if laplace else 7.0
    thresholds = np.linspace(-edge, edge + mu, _THRESHOLDS)
    below = [
        np.rint(n * np.concatenate([[0.0], cdf(thresholds - shift), [1.0]])).astype(np.int64)
        for n, shift in ((n_in, mu), (n_out, 0.0))
    ]
    return ScoreCounts(thresholds, np.diff(below[0]), np.diff(below[1]))


def _even(count: int) -> FloatArray:
    return (np.arange(count) + 0.5) / count


def _laplace_quantile(share: FloatArray) -> FloatArray:
    return np.where(share < 0.5, np.log(2 * share), -np.log(2 * (1 - share)))


def _laplace_cdf(value: FloatArray) -> FloatArray:
    return np.where(value < 0, 0.5 * np.exp(value), 1 - 0.5 * np.exp(-np.abs(value)))
