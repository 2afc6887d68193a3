"""DP-SGD by privacy loss distributions: a thin layer over dp-accounting.

The numbers are dp-accounting's own, which rounds up: safe as a claim. They hold for batches drawn
by Poisson sampling, or for the full batch; a loader that shuffles is another mechanism.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.core.claim import Adjacency
from epsilometer.errors import InvalidArgument
from epsilometer.stats.tradeoff import envelope_curve
from epsilometer.types import FloatArray

INTERVAL = 1e-4  # of privacy loss; at 1e-3 the error of 200,000 steps adds up
_COARSE = 1e-3


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
