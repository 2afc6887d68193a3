"""Account for DP-SGD with Poisson sampling by its privacy loss distribution.

All numbers are rounded up, which is safe for a claim, except those of ``poisson_epsilon_at_least``,
which are rounded down, for a lower bound. All hold for Poisson-sampled batches and for the full
batch; a loader that shuffles is another mechanism.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from epsilometer import _validate
from epsilometer.accounting.loss_distribution import (
    LossDistribution,
    Rounding,
    compose,
    find_epsilon,
    normal_masses,
)
from epsilometer.core.claim import Adjacency
from epsilometer.errors import InvalidArgument
from epsilometer.stats import search
from epsilometer.stats.gaussians import gaussian_sigma, gdp_epsilon
from epsilometer.stats.tradeoff import envelope_curve, gdp_curve
from epsilometer.types import FloatArray

_RELATIVE_CELL = 0.02  # of the spread of a step's loss: rounding up adds some 6e-5 of ε at most
_FEWEST_CELLS, _MOST_CELLS = 2**12, 3 * 2**18  # of one step's losses, rounded up
_FEW_DOWN, _MANY_DOWN = 180_000, 2**19  # cells of losses that are rounded down
_COARSEST = 1e-4
_MANY_STEPS = 300  # from which more cells pay
# Losses that are rarer than this part of δ are not tabulated: rounded up they are infinite, rounded
# down they are the largest one, which is usually above ε anyway.
_BEYOND: dict[Rounding, float] = {"up": 1e-9, "down": 1e-4}
_MOST_NOISE = 1e6  # beyond, a step's losses have no digits that differ
_CLOSED_FORM = 1e-11  # relative error of closed forms, which is added or taken off
_Z = np.linspace(-10.0, 10.0, 1001)
_WEIGHTS = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()
_FACTOR = 1.6  # by which noise is raised or lowered until the wanted one is passed
_NOISE = 1e-6  # relative: how near the least noise is found


@dataclass(frozen=True)
class SampledGaussian:
    """A number of identical steps of DP-SGD.

    A step with the record is N(1, s²) with probability q and else N(0, s²); without it N(0, s²).
    The loss at x is ln(1 − q + q e^{(2x − 1)/2s²}), rising from ln(1 − q).

    Attributes:
        noise: The noise multiplier s > 0.
        rate: The sampling rate q > 0.
        steps: Number of steps.
    """

    noise: float
    rate: float
    steps: int

    def find_ends(self, reach: float) -> tuple[float, float]:
        """Return the smallest loss of a step, and that of this many standard deviations."""
        half, wide = 0.5 / self.noise / self.noise, reach / self.noise
        if self.rate == 1:
            return half - wide, half + wide
        least = math.log1p(-self.rate)
        return least, float(np.logaddexp(least, math.log(self.rate) + half + wide))

    def compute_variance(self) -> float:
        """Return the variance of a step's loss with the record, by a sum over its noise."""
        stay = math.log1p(-self.rate) if self.rate < 1 else -math.inf
        x = self.noise * _Z + np.array([[0.0], [1.0]])
        losses = np.logaddexp(stay, math.log(self.rate) + (x - 0.5) / self.noise**2)
        weights = _WEIGHTS * np.array([[1 - self.rate], [self.rate]])
        losses[weights == 0] = 0.0  # −∞ of a rate of 1
        return float(np.sum(weights * (losses - np.sum(weights * losses)) ** 2))

    def tabulate(
        self, cell: float, reach: float, rounding: Rounding
    ) -> tuple[LossDistribution, LossDistribution]:
        """Return the distributions of a step's loss, with against without, and reversed."""
        least, top = self.find_ends(reach)
        # 0 is on the grid: with much noise, all losses lie near it.
        edges = cell * np.arange(math.floor(least / cell), math.ceil(top / cell) + 1)
        y = edges - math.log(self.rate)  # (2x − 1)/2s², where the loss is at an edge
        if self.rate < 1:  # the first edge is at or below the least loss: nothing lies there
            above = np.maximum(edges - least, 0.0)
            with np.errstate(divide="ignore"):
                y += np.log(-np.expm1(-above))  # by expm1: 1 − e^{−h} of a cell h may be 1e-7
        z = self.noise * y + 0.5 / self.noise
        absent, taken = normal_masses(z), normal_masses(z - 1 / self.noise)
        present = (1 - self.rate) * absent + self.rate * taken
        unseen, seen = float(ndtr(-z[-1])), float(ndtr(1 / self.noise - z[-1]))
        return (
            LossDistribution.from_cells(
                float(edges[0]),
                cell,
                present,
                absent,
                beyond=(1 - self.rate) * unseen + self.rate * seen,
                rounding=rounding,
            ),
            LossDistribution.from_cells(
                -float(edges[-1]),
                cell,
                absent[::-1],
                present[::-1],
                beyond=float(ndtr(z[0])),  # nothing, but for a rate of 1
                rounding=rounding,
            ),
        )


def poisson_epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    adjacency: Adjacency = "add_remove",
) -> float:
    """Return the ε of DP-SGD whose batches take each record with probability ``sampling_rate``.

    Guarantee: at least the true ε, and above it by at most about 6e-5 of it.

    Example:
        >>> noise = dict(noise_multiplier=1.0, sampling_rate=0.01)
        >>> round(poisson_epsilon(**noise, steps=100, delta=1e-5), 2)
        0.72
    """
    _validate.open_unit(delta=delta)
    _validate_adjacency(adjacency)
    return _round_up(_read_parts([(noise_multiplier, sampling_rate, steps)]), delta)


def varied_poisson_epsilon(
    noise: Sequence[tuple[float, int]], *, sampling_rate: float, delta: float
) -> float:
    """Return the ε of Poisson-sampled DP-SGD from pairs of noise multiplier and steps.

    Example:
        >>> round(varied_poisson_epsilon([(1.0, 60), (1.0, 40)], sampling_rate=0.01, delta=1e-5), 2)
        0.72
    """
    _validate.open_unit(delta=delta)
    parts = [(multiplier, sampling_rate, steps) for multiplier, steps in noise]
    return _round_up(_read_parts(parts), delta)


def _validate_adjacency(adjacency: Adjacency) -> None:
    if adjacency not in ("add_remove", "zero_out"):
        raise InvalidArgument(
            f"Expected adjacency to be add_remove or zero_out, got {adjacency!r}: replacing a "
            "record moves a sum by up to twice the clipping norm, which is not accounted for."
        )


def _read_parts(parts: Sequence[tuple[float, float, int]]) -> list[SampledGaussian]:
    """Check noise, rate and steps, and leave out steps that never take the record."""
    for noise, rate, steps in parts:
        _validate.at_least(0, noise_multiplier=noise)
        if math.isinf(noise):
            raise InvalidArgument("Expected a finite noise_multiplier, got inf.")
        _validate.probability(sampling_rate=rate)
        _validate.whole(1, steps=steps)
    return [SampledGaussian(*part) for part in parts if part[1] > 0]


def _merge_full_batches(parts: Sequence[SampledGaussian]) -> tuple[list[SampledGaussian], float]:
    """Return the parts with full batches merged, and μ if there are no others.

    The sum of Gaussian losses is the loss of one Gaussian, so full batches need no composition.
    """
    mu = math.sqrt(sum(part.steps / part.noise / part.noise for part in parts if part.rate == 1))
    sampled = [part for part in parts if part.rate < 1]
    if not sampled:
        return [], mu
    return sampled + ([SampledGaussian(1 / mu, 1.0, 1)] if mu else []), mu


def _round_up(parts: Sequence[SampledGaussian], delta: float) -> float:
    """Return ε of all parts, the larger of both directions."""
    if any(part.noise == 0 for part in parts):
        return math.inf
    composed, mu = _merge_full_batches(parts)
    if not composed or max(part.noise for part in parts) > _MOST_NOISE:
        # Full batches leak no less than sampled ones; here either leaks next to nothing.
        mu = math.sqrt(sum(part.steps / part.noise / part.noise for part in parts))
        return gdp_epsilon(mu, delta) * (1 + _CLOSED_FORM)
    with_record, without = _tabulate_up(composed, delta)
    # Usually the first is the larger one, and the other need not be composed.
    larger = find_epsilon(with_record, delta, rounding="up")
    return find_epsilon(without, delta, rounding="up", floor=larger)


def _tabulate_up(
    parts: Sequence[SampledGaussian], delta: float
) -> tuple[list[tuple[LossDistribution, int]], list[tuple[LossDistribution, int]]]:
    """Tabulate both directions on one grid that is as fine as these parts need.

    Moved to both ends of its cell, a loss gets a variance of up to h²/4, on average h²/6, and half
    of that as a mean. With the variance V of the loss itself, this adds h²/12V to a small ε,
    relatively, and h²/12 per step to one that is far above 1.
    """
    steps = sum(part.steps for part in parts)
    reach = _find_reach(delta, steps, "up")
    spans = [top - least for least, top in (part.find_ends(reach) for part in parts)]
    variance = sum(part.steps * part.compute_variance() for part in parts) / steps
    cell = min(_RELATIVE_CELL * math.sqrt(variance), max(spans) / _FEWEST_CELLS)
    cell = max(cell, max(spans) / _MOST_CELLS)
    laws = [(part.tabulate(cell, reach, "up"), part.steps) for part in parts]
    return [(law[0], n) for law, n in laws], [(law[1], n) for law, n in laws]


def _find_reach(delta: float, steps: int, rounding: Rounding) -> float:
    """Return how many standard deviations of the noise are tabulated."""
    return -float(ndtri(_BEYOND[rounding] * delta / steps))


def poisson_epsilon_at_least(parts: Sequence[tuple[float, float, int]], *, delta: float) -> float:
    """Return a lower end of the ε of Poisson-sampled DP-SGD whose noise and rate may change.

    Guarantee: at most the true ε, and below it by about 1e-4 of it after 100 steps, 2e-3 after ten
        thousand.
    Assumption: one neighbour has one record more than the other; batches are Poisson-sampled.

    Args:
        parts: Triples of noise multiplier, sampling rate and steps. Without noise ε is infinite,
            unless the record is drawn in such a step with a probability of at most δ.
        delta: δ.

    Example:
        >>> noise = [(1.0, 0.01, 60), (1.0, 0.01, 40)]
        >>> round(poisson_epsilon_at_least(noise, delta=1e-5), 2)
        0.72
    """
    _validate.open_unit(delta=delta)
    # A step of endless noise adds nothing, and one of nearly so much next to nothing.
    every = _read_parts([part for part in parts if not part[0] > _MOST_NOISE])
    # ln of the probability that the record is in no step without noise; log1p(−1) is −∞.
    missed = sum(
        part.steps * (math.log1p(-part.rate) if part.rate < 1 else -math.inf)
        for part in every
        if part.noise == 0
    )
    if -math.expm1(missed) > delta:
        return math.inf
    composed, mu = _merge_full_batches([part for part in every if part.noise > 0])
    if not composed:
        return gdp_epsilon(mu, delta) * (1 - _CLOSED_FORM)
    steps = sum(part.steps for part in composed)
    reach = _find_reach(delta, steps, "down")
    spans = [top - least for least, top in (part.find_ends(reach) for part in composed)]
    # The finest cells that keep the FFT short: a composition is some 16 standard deviations wide.
    spread = math.sqrt(sum(part.steps * part.compute_variance() for part in composed))
    cell = max(*spans, 16 * spread) / _MANY_DOWN
    if steps < _MANY_STEPS:  # fewer do, but where losses are large
        cell = max(max(spans) / _FEW_DOWN, min(3 * cell, _COARSEST))
    laws = [(part.tabulate(cell, reach, "down")[0], part.steps) for part in composed]
    return find_epsilon(laws, delta, rounding="down")


def poisson_noise(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    adjacency: Adjacency = "add_remove",
) -> float:
    """Return the smallest noise multiplier with which Poisson-sampled DP-SGD is (ε, δ)-DP.

    Guarantee: at least that noise, and above it by at most about 6e-5 of it.
    """
    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)
    _validate_adjacency(adjacency)
    if not _read_parts([(1.0, sampling_rate, steps)]):
        return 0.0
    if sampling_rate == 1:
        return math.sqrt(steps) * gaussian_sigma(epsilon, delta) * (1 + _CLOSED_FORM)

    def excess(log_noise: float) -> float:
        """Rise with the noise; logarithms of both are nearly on a line."""
        spent = _round_up([SampledGaussian(math.exp(log_noise), sampling_rate, steps)], delta)
        return math.log(epsilon) - math.log(max(spent, epsilon / 1e3))

    step = math.log(_FACTOR)
    low = high = 0.0
    if excess(0.0) > 0:
        while excess(low) > 0:
            low, high = low - step, low
    else:
        while excess(high) <= 0:
            low, high = high, high + step
    # Counted from ``low``, since the search ends at a width relative to the upper end.
    found = search.root(lambda more: excess(low + more), 0.0, high - low, relative=_NOISE)[1]
    return math.exp(low + found)


def full_batch_noise(*, epsilon: float, delta: float, steps: int) -> float:
    """Return the smallest noise multiplier of full-batch DP gradient descent for (ε, δ)."""
    return poisson_noise(epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=steps)


def poisson_curve(
    fpr: ArrayLike,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    adjacency: Adjacency = "add_remove",
) -> FloatArray:
    """Return the smallest FNR that the privacy profile of Poisson-sampled DP-SGD allows."""
    _validate.rates(fpr=fpr)
    _validate_adjacency(adjacency)
    parts = _read_parts([(noise_multiplier, sampling_rate, steps)])
    if not parts or noise_multiplier == 0:
        free = 0.0 if parts else 1.0
        return free * (1 - np.asarray(fpr, np.float64))
    if sampling_rate == 1:
        return gdp_curve(fpr, mu=math.sqrt(steps) / noise_multiplier)
    epsilons, deltas = poisson_profile(((noise_multiplier, sampling_rate, steps),))
    return envelope_curve(fpr, epsilons=epsilons, deltas=deltas)


@functools.lru_cache(maxsize=256)
def poisson_profile(parts: tuple[tuple[float, float, int], ...]) -> tuple[FloatArray, FloatArray]:
    """Compute δ of Poisson-sampled DP-SGD, whose noise may change, at 81 values of ε.

    Guarantee: δ is at least the true one, which is the larger of both directions.

    Args:
        parts: Triples of noise multiplier, sampling rate below 1, and steps.
    """
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 50.0, 80)])
    # Errors of 1e-15 are nothing to a curve, so one composition without a tilt serves every ε.
    laws = [compose(law, rounding="up") for law in _tabulate_up(_read_parts(parts), delta=1e-12)]
    deltas = np.max([law.delta(epsilons) for law in laws], axis=0)
    return epsilons, np.clip(deltas, 0.0, 1.0)
