"""DP-SGD by privacy loss distributions: a thin layer over dp-accounting.

The numbers are dp-accounting's own, which rounds up: safe as a claim. Only those of
``poisson_epsilon_at_least`` are rounded down: safe as a lower bound. All hold for batches drawn by
Poisson sampling, or for the full batch; a loader that shuffles is another mechanism.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtr

from epsilometer import _validate
from epsilometer.accounting.losses import Losses
from epsilometer.core.claim import Adjacency
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.tradeoff import envelope_curve
from epsilometer.types import FloatArray

INTERVAL = 1e-4  # of privacy loss; at 1e-3 the error of 200,000 steps adds up
_COARSE = 1e-3
_FINEST = 3e-6  # of privacy loss, where it is rounded down
_CELLS = 250_000  # of one step's losses at most; a tenth, where there is next to no noise
_WIDE = 1e3
_REACH = 7.5  # standard deviations: what lies beyond counts as no more
_TAIL = 1e-15  # of a composition, that may be cut off
_GATHERED = 64  # cells that are taken together to find where to cut
_LOST = 1e-10  # what FFT and cut tails may add to a probability


def poisson_epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    adjacency: Adjacency = "add_remove",
) -> float:
    """The ε of DP-SGD whose batches take each record with probability ``sampling_rate``.

    Example:
        >>> noise = dict(noise_multiplier=1.0, sampling_rate=0.01)
        >>> round(poisson_epsilon(**noise, steps=100, delta=1e-5), 2)
        0.72
    """
    _validate.open_unit(delta=delta)
    accountant = _composed(noise_multiplier, sampling_rate, steps, adjacency)
    return float(accountant.get_epsilon(delta))


def varied_poisson_epsilon(
    noise: Sequence[tuple[float, int]], *, sampling_rate: float, delta: float
) -> float:
    """The ε of DP-SGD by Poisson sampling whose noise changes: pairs of noise multiplier and steps.

    Example:
        >>> round(varied_poisson_epsilon([(1.0, 60), (1.0, 40)], sampling_rate=0.01, delta=1e-5), 2)
        0.72
    """
    _validate.open_unit(delta=delta)
    accountant = _accountant("add_remove", INTERVAL)
    for multiplier, steps in noise:
        accountant.compose(_event(multiplier, sampling_rate, steps))
    return float(accountant.get_epsilon(delta))


def poisson_epsilon_at_least(parts: Sequence[tuple[float, float, int]], *, delta: float) -> float:
    """The ε of DP-SGD by Poisson sampling, rounded *down*, where noise and rate may change.

    Guarantee: at most the true ε. Each loss is rounded down to a cell, of 1e-5 to 3e-6 where noise
        is usual: ε is too small by about 0.002 after 100 steps and 0.05 after thousands. What
        numerics may add to a probability is taken off δ.
    Assumption: one neighbour has a record more than the other; a record is in each batch by chance.

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
    for noise, rate, steps in parts:
        _validate.at_least(0, noise_multiplier=noise)
        _validate.probability(sampling_rate=rate)
        _validate.whole(1, steps=steps)
    # ln of the probability that the record is in no step without noise; log1p(−1) is −∞.
    missed = sum(
        steps * (math.log1p(-rate) if rate < 1 else -math.inf)
        for noise, rate, steps in parts
        if noise == 0 and rate > 0
    )
    if -math.expm1(missed) > delta:
        return math.inf
    known = [part for part in parts if 0 < part[0] < math.inf and part[1] > 0]
    squares = sum(steps / noise**2 for noise, rate, steps in known if rate == 1)
    sampled = [part for part in known if part[1] < 1]
    if not sampled:
        return gdp_epsilon(math.sqrt(squares), delta) * (1 - 1e-11)
    if squares:  # full batches together are one Gaussian
        sampled.append((1 / math.sqrt(squares), 1.0, 1))
    law = _round_down(sampled)
    return law.epsilon(delta + _LOST) if delta + _LOST < 1 else 0.0


def _round_down(parts: Sequence[tuple[float, float, int]]) -> Losses:
    """Compose the laws of all parts on one grid, each loss at the lower end of its cell."""
    ends = [_ends(noise, rate) for noise, rate, _ in parts]
    total = sum(steps for _, _, steps in parts)
    widest = max(top - least for least, top in ends)
    widest /= _CELLS if widest < _WIDE else _CELLS // 10
    cell = max(min(max(1e-3 / total, _FINEST), INTERVAL), widest)
    start, laws = 0, []
    for (noise, rate, steps), (least, top) in zip(parts, ends, strict=True):
        first = math.floor(least / cell)
        masses = _masses(noise, rate, cell * np.arange(first, math.ceil(top / cell) + 1))
        start += steps * first
        laws.append((masses, steps))
    low, high = _find_window(laws)
    longest = max(masses.size for masses, _ in laws)
    size = scipy.fft.next_fast_len(max(high - low + 1, longest), real=True)
    spectrum = np.ones(size // 2 + 1, np.complex128)
    for masses, steps in laws:
        spectrum *= scipy.fft.rfft(masses, size) ** steps
    composed = np.roll(scipy.fft.irfft(spectrum, size), -low)[: high - low + 1]
    return Losses(start=cell * (start + low), step=cell, masses=np.maximum(composed, 0.0))


def _find_window(laws: Sequence[tuple[FloatArray, int]]) -> tuple[int, int]:
    """Return ends of the sum of all cells, beyond which lies less than ``_TAIL`` (Chernoff)."""
    most = sum(steps * (masses.size - 1) for masses, steps in laws)
    low, high = 0.0, float(most)
    longest = max(masses.size for masses, _ in laws)
    for order in 2.0 ** np.arange(-8, 12) / longest:
        above = below = math.log(2 / _TAIL)
        for masses, steps in laws:
            starts = np.arange(0, masses.size, _GATHERED)
            few = np.add.reduceat(masses, starts)  # cells together, all at their worse end
            last = np.minimum(starts + _GATHERED, masses.size) - 1
            above += steps * float(logsumexp(order * last, b=few))
            below += steps * float(logsumexp(-order * starts, b=few))
        high, low = min(high, above / order), max(low, -below / order)
    return math.floor(low), min(most, math.ceil(high))


def _ends(noise: float, rate: float) -> tuple[float, float]:
    """Return the least loss of a step and one that is hardly ever exceeded."""
    half, wide = 0.5 / noise**2, _REACH / noise
    if rate == 1:
        return half - wide, half + wide
    least = math.log1p(-rate)
    return least, float(np.logaddexp(least, math.log(rate) + half + wide))


def _masses(noise: float, rate: float, edges: FloatArray) -> FloatArray:
    """Masses between edges of a step's loss with the record; the last one of all beyond.

    With it a step is N(1, s²) with probability q and else N(0, s²), without it N(0, s²): the loss
    at x is ln(1 − q + q e^{(2x − 1)/2s²}), rising.
    """
    least = math.log1p(-rate) if rate < 1 else -math.inf
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        x = noise**2 * (edges + np.log1p(-np.exp(least - edges)) - math.log(rate)) + 0.5
    x = np.where(edges > least, x, -np.inf)  # below the least loss there is nothing
    beyond = (1 - rate) * ndtr(-x / noise) + rate * ndtr((1 - x) / noise)
    return np.asarray(beyond - np.append(beyond[1:], 0.0))


def poisson_noise(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    adjacency: Adjacency = "add_remove",
) -> float:
    """The least noise multiplier with which Poisson-sampled DP-SGD is (ε, δ)-DP, to 1e-4."""
    import dp_accounting

    _validate.positive(epsilon=epsilon)
    _validate.open_unit(delta=delta)

    def spent(noise: float) -> float:
        return float(_composed(noise, sampling_rate, steps, adjacency).get_epsilon(delta))

    # A coarse grid rounds up more, and is ten times quicker: it ends close by. Then two looks at
    # the fine one lead to the answer, but for what grids and a straight line leave out.
    noise = float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: _accountant(adjacency, _COARSE),
            lambda noise: _event(noise, sampling_rate, steps),
            epsilon,
            delta,
            dp_accounting.LowerEndpointAndGuess(0.0, 1.0),
        )
    )
    here, beyond = spent(noise), spent(1.002 * noise)
    noise *= 1 + 0.002 * (epsilon - here) / (beyond - here)
    step = 5e-6
    while spent(noise) > epsilon:
        noise, step = noise * (1 + step), 2 * step
    return noise


def full_batch_epsilon(*, noise_multiplier: float, steps: int, delta: float) -> float:
    """The ε of DP gradient descent where every record takes part in every step."""
    return poisson_epsilon(
        noise_multiplier=noise_multiplier, sampling_rate=1.0, steps=steps, delta=delta
    )


def full_batch_noise(*, epsilon: float, delta: float, steps: int) -> float:
    """The least noise multiplier of full-batch DP gradient descent for (ε, δ)."""
    return poisson_noise(epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=steps)


def poisson_curve(
    fpr: ArrayLike,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    adjacency: Adjacency = "add_remove",
) -> FloatArray:
    """Least FNR that the whole privacy profile of DP-SGD by Poisson sampling allows."""
    _validate.rates(fpr=fpr)
    accountant = _composed(noise_multiplier, sampling_rate, steps, adjacency)
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 50.0, 80)])
    deltas = np.clip([accountant.get_delta(float(epsilon)) for epsilon in epsilons], 0.0, 1.0)
    return envelope_curve(fpr, epsilons=epsilons, deltas=deltas)


def _composed(
    noise_multiplier: float, sampling_rate: float, steps: int, adjacency: Adjacency
) -> Any:
    return _cached(noise_multiplier, sampling_rate, steps, adjacency, INTERVAL)


@lru_cache(maxsize=4)
def _cached(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    adjacency: Adjacency,
    interval: float,
) -> Any:
    """One composition serves ε and the curve; accountants are not changed once composed."""
    accountant = _accountant(adjacency, interval)
    try:
        accountant.compose(_event(noise_multiplier, sampling_rate, steps))
    except MemoryError as error:
        raise InvalidArgument(
            f"Expected more noise than noise_multiplier={noise_multiplier!r}: the privacy loss is "
            f"spread too wide to tabulate in steps of {interval:g}. For an upper bound take "
            "accounting.rdp.poisson_epsilon."
        ) from error
    return accountant


def _accountant(adjacency: Adjacency, interval: float) -> Any:
    from dp_accounting import NeighboringRelation, pld

    relations = {
        "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "zero_out": NeighboringRelation.REPLACE_SPECIAL,
    }
    if adjacency not in relations:
        raise InvalidArgument(
            f"Expected adjacency to be add_remove or zero_out, got {adjacency!r}: "
            "dp-accounting has no privacy loss distribution of DP-SGD for others."
        )
    return pld.PLDAccountant(relations[adjacency], value_discretization_interval=interval)


def _event(noise_multiplier: float, sampling_rate: float, steps: int) -> Any:
    import dp_accounting

    _validate.at_least(0, noise_multiplier=noise_multiplier)
    if math.isinf(noise_multiplier):
        raise InvalidArgument("Expected a finite noise_multiplier, got inf.")
    _validate.probability(sampling_rate=sampling_rate)
    _validate.whole(1, steps=steps)
    if sampling_rate == 1:  # the composition of Gaussians is a Gaussian
        return dp_accounting.GaussianDpEvent(noise_multiplier / math.sqrt(steps))
    step = dp_accounting.GaussianDpEvent(noise_multiplier)
    sampled = dp_accounting.PoissonSampledDpEvent(sampling_rate, step)
    return dp_accounting.SelfComposedDpEvent(sampled, steps)
