"""Compute what an audit could have found: its reach, and its power against a claim.

Both are computed with the bound that the audit used, on scores that were not observed: perfectly
separated ones for the reach, simulated ones of a known distribution for the power.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.stats import search
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.thresholds import Observed
from epsilometer.types import FloatArray

Bound: TypeAlias = Callable[[Observed], float]

POWER = 0.8  # with which a claim is refuted at the ε that ``compute_power`` returns
# Simulated audits below so many scores: the more there are, the less they spread, and the longer
# each takes. The r-th smallest of R crossings exceeds r / (R + 1) of all: 20 / 25, 8 / 10, 4 / 5.
_AUDITS = {5_000: 24, 20_000: 9, math.inf: 4}
_STRATIFIED = 40_000  # scores whose noise is kept for all audits
_COUNTED_FROM = 200_000  # scores that are counted at thresholds instead of drawn one by one
_THRESHOLDS = 400
_SMALLEST_SHIFT, _LARGEST_SHIFT = 1e-3, 64.0
_STRIDE, _NEAR = 1.25, 1.02  # ratios of shifts: of neighbours that are tried, and of the answer's
_SHARES = scipy.special.ndtr(np.array([-1.0, 0.0, 1.0]))  # of scores below one σ, 0, one σ
_FAR = 1e150  # beyond any fixed threshold


def separate_scores(n_in: int, n_out: int) -> Scores:
    """Return the scores of a perfect attack: all distinct, and all inside above all outside."""
    return Scores(
        inside=_FAR * (1 + np.arange(n_in) / n_in), outside=-_FAR * (1 + np.arange(n_out) / n_out)
    )


def compute_reach(bound: Bound, observed: Observed) -> float:
    """Return the bound that a perfect attack gives on as many observations.

    No larger claim could have been refuted by them. Some methods gain by scores that are all
    alike on each side, others by scores that all differ: the larger of both is returned.

    Args:
        bound: The bound that the audit used.
        observed: The observations; only their numbers matter.
    """
    if isinstance(observed, ScoreCounts):
        bins = np.zeros((2, observed.thresholds.size + 1), np.int64)
        bins[0, -1], bins[1, 0] = observed.n_in, observed.n_out
        return bound(replace(observed, inside_bins=bins[0], outside_bins=bins[1]))
    perfect = separate_scores(observed.n_in, observed.n_out)
    alike = np.full(observed.n_in, _FAR), np.full(observed.n_out, -_FAR)
    return max(
        bound(replace(observed, inside=inside, outside=outside))
        for inside, outside in (alike, (perfect.inside, perfect.outside))
    )


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
    outside: "Outside | None" = None,
) -> float:
    """Return the smallest true ε at which a claim is refuted with probability 0.8.

    The family is scores N(0, 1) against N(μ, 1); Laplace where δ = 0, for no Gaussian has a finite
    ε there. Audits are simulated with the same random numbers at every μ, so that each of them
    refutes the claim from some μ on. Of these crossings the 0.8-quantile is returned, which is
    known to a few percent.

    Args:
        bound: ε proved by scores.
        claim: The claimed ε.
        delta: δ of both.
        n_in: Scores with the record.
        n_out: Scores without it.
        epsilon_of: The true ε of a shift μ, where the family is another one.
        counted: Whether ``bound`` takes scores counted at thresholds, which is faster for many.
        largest: Shift up to which ``bound`` rises, if it falls again.
        outside: Scores without the record, as :func:`describe_outside` describes them: simulated
            ones get their scale, which matters where a threshold was fixed.

    Returns:
        Infinite where no ε is large enough.
    """
    laplace = delta == 0
    audits = next(many for below, many in _AUDITS.items() if max(n_in, n_out) < below)
    draw = _Draw(
        n_in, n_out, laplace=laplace, counted=counted, outside=outside or Outside(), audits=audits
    )
    crossings = _Crossings(lambda audit, mu: bound(draw(audit, mu)) > claim, audits=audits)
    found = crossings.quantile(largest=largest)
    if math.isinf(found):
        return math.inf
    if epsilon_of is not None:
        return epsilon_of(found)
    return found if laplace else gdp_epsilon(found, delta)


class Outside(NamedTuple):
    """Scores without the record: their scale, and where they are counted, if they are."""

    centre: float = 0.0
    spread: float = 1.0
    thresholds: tuple[float, ...] = ()


def describe_outside(observed: Observed) -> Outside:
    """Describe scores without the record by their quantiles; some of them may be infinite."""
    thresholds: tuple[float, ...] = ()
    if isinstance(observed, ScoreCounts):
        thresholds = tuple(observed.thresholds.tolist())
        edges = np.append(observed.thresholds, observed.thresholds[-1])
        places = np.searchsorted(np.cumsum(observed.outside_bins), _SHARES * observed.n_out)
        low, centre, high = edges[places]
    else:
        low, centre, high = np.quantile(observed.outside, _SHARES, method="lower")
    if not np.isfinite(centre):
        return Outside(thresholds=thresholds)
    spread = (high - low) / 2
    usable = bool(np.isfinite(spread) and spread > 0)
    return Outside(float(centre), float(spread) if usable else 1.0, thresholds)


class _Crossings:
    """Simulated audits, and what is known of the shift from which each refutes the claim."""

    def __init__(self, refutes: Callable[[int, float], bool], *, audits: int) -> None:
        self._refutes = refutes
        self._low, self._high = np.zeros(audits), np.full(audits, np.inf)
        self._wanted = math.ceil(POWER * (audits + 1))

    def quantile(self, *, largest: float) -> float:
        """Return the shift from which enough audits refute the claim; infinite where none is."""
        high = self._begin(largest)
        low = high
        while not self._enough(high):
            low, high = high, high * _STRIDE
            if high > _STRIDE * _LARGEST_SHIFT:
                return math.inf
        while low == high or (self._enough(low) and low > _SMALLEST_SHIFT):
            low, high = low / _STRIDE, low
        while high > _NEAR * low:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._enough(middle) else (middle, high)
        return high

    def _begin(self, largest: float) -> float:
        """Return about where the first audit begins to refute."""

        def stands(mu: FloatArray) -> NDArray[np.bool_]:
            return np.asarray(not self._ask(0, float(mu)))

        high = float(search.grow(stands, min(0.25, largest), limit=largest))
        return float(search.bisect(stands, _SMALLEST_SHIFT, high, relative=_STRIDE - 1)[1])

    def _enough(self, mu: float) -> bool:
        return sum(self._ask(audit, mu) for audit in range(self._low.size)) >= self._wanted

    def _ask(self, audit: int, mu: float) -> bool:
        if self._low[audit] < mu < self._high[audit]:
            side = self._high if self._refutes(audit, mu) else self._low
            side[audit] = mu
        return bool(mu >= self._high[audit])


class _Draw:
    """Scores of simulated audits: the same random numbers for the same audit at every shift."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        laplace: bool,
        counted: bool,
        outside: "Outside",
        audits: int,
    ) -> None:
        self._n_in, self._n_out, self._laplace = n_in, n_out, laplace
        self._centre, self._spread, self._thresholds = outside
        self._counted = bool(outside.thresholds) or (counted and max(n_in, n_out) > _COUNTED_FROM)
        quantile = _laplace_quantile if laplace else scipy.special.ndtri
        self._noise = (
            quantile(_stratify(audits, n_in + n_out))
            if n_in + n_out < _STRATIFIED and not self._counted
            else None
        )

    def __call__(self, audit: int, mu: float) -> Observed:
        rng = np.random.default_rng(audit)  # power does not depend on the seed of the audit
        if self._counted:
            return self._count(rng, mu)
        size = self._n_in + self._n_out
        if self._noise is not None:
            noise = self._noise[audit]
        else:
            noise = rng.laplace(size=size) if self._laplace else rng.normal(size=size)
        scores = self._centre + self._spread * noise
        return Scores(inside=scores[: self._n_in] + self._spread * mu, outside=scores[self._n_in :])

    def _count(self, rng: np.random.Generator, mu: float) -> ScoreCounts:
        """Draw counts at thresholds: 10⁹ scores are some hundred numbers."""
        cdf = _laplace_cdf if self._laplace else scipy.special.ndtr
        edge = 30.0 if self._laplace else 7.0
        at: FloatArray
        if self._thresholds:
            thresholds = np.array(self._thresholds)
            at = (thresholds - self._centre) / self._spread
        else:
            at = np.linspace(-edge, edge + mu, _THRESHOLDS)
            thresholds = self._centre + self._spread * at
        bins = [
            rng.multinomial(n, np.diff(np.concatenate([[0.0], cdf(at - shift), [1.0]])))
            for n, shift in ((self._n_in, mu), (self._n_out, 0.0))
        ]
        return ScoreCounts(thresholds, bins[0], bins[1])


def _stratify(audits: int, size: int) -> FloatArray:
    """Return uniform numbers that are independent within each audit, and even across audits.

    A Latin hypercube: what one audit finds by luck, others lack, so that fewer of them suffice.
    """
    rng = np.random.default_rng(0)
    strata = rng.permuted(np.tile(np.arange(audits)[:, None], size), axis=0)
    return np.asarray((strata + rng.random((audits, size))) / audits)


def _laplace_quantile(share: FloatArray) -> FloatArray:
    return np.asarray(-np.sign(share - 0.5) * np.log(1 - 2 * np.abs(share - 0.5)))


def _laplace_cdf(value: FloatArray) -> FloatArray:
    return np.where(value < 0, 0.5 * np.exp(-np.abs(value)), 1 - 0.5 * np.exp(-np.abs(value)))
