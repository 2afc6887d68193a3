"""Account for Poisson sampling by Rényi orders, as in papers. ``pld`` is tighter."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epsilometer import _validate
from epsilometer.types import FloatArray

_FRACTIONAL = np.arange(11, 110) / 10
_WHOLE = np.arange(12, 64)  # with the above: the orders of papers that used Opacus
_LARGE = np.append(_WHOLE, [64, 128, 256, 512, 1024])  # for small ε
_ROUNDING = 2e-12  # of the logarithm of an integral, which is added
_REACH, _FINE = 40.0, 200  # the integral in standard deviations, and points per deviation


def varied_poisson_epsilon(
    noise: Sequence[tuple[float, int]], *, sampling_rate: float, delta: float
) -> float:
    """Return the ε of Poisson-sampled DP-SGD from pairs of noise multiplier and steps.

    Guarantees: an upper bound; at small sampling rates it is several times that of ``pld``.

    Example:
        >>> round(varied_poisson_epsilon([(1.0, 60), (1.0, 40)], sampling_rate=0.01, delta=1e-5), 2)
        1.21
    """
    return _compute_epsilon(noise, sampling_rate, delta, _LARGE)


def poisson_epsilon(
    *, noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """Return the ε of Poisson-sampled DP-SGD by Opacus' 151 Rényi orders, as papers print it.

    Guarantees: an upper bound for add/remove neighbours; ``pld`` is tighter.

    Example:
        >>> paper = dict(noise_multiplier=0.5, sampling_rate=256 / 50_000, steps=60 * 195)
        >>> round(poisson_epsilon(**paper, delta=1e-5), 2)
        25.63
    """
    return _compute_epsilon([(noise_multiplier, steps)], sampling_rate, delta, _WHOLE)


def _compute_epsilon(
    noise: Sequence[tuple[float, int]], rate: float, delta: float, whole: NDArray[np.int_]
) -> float:
    """Add up moments of all steps and convert them by Canonne et al. (2020) at the best order."""
    _validate.open_unit(delta=delta)
    _validate.probability(sampling_rate=rate)
    orders = np.append(_FRACTIONAL, whole)
    spent = np.zeros(orders.size)
    for multiplier, steps in noise:
        _validate.positive(noise_multiplier=multiplier)
        _validate.whole(1, steps=steps)
        moments = np.append(
            _integrate_moments(multiplier, rate, _FRACTIONAL), _sum_moments(multiplier, rate, whole)
        )
        spent += steps * np.maximum(moments, 0.0) / (orders - 1)
    epsilons = spent + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    # A divergence r bounds the total variation by √(1 − e^{−r}): if δ is more, ε is 0.
    epsilons[delta**2 + np.expm1(-spent) > 0] = 0.0
    return float(max(0.0, epsilons.min()))


def _sum_moments(sigma: float, rate: float, orders: NDArray[np.int_]) -> FloatArray:
    """Return ln E[(P/Q)^α] under Q of the sampled Gaussian at whole orders α (Mironov et al. 2019).

    By the binomial theorem: Σ_k C(α, k) (1 − q)^{α−k} q^k e^{k(k−1)/2σ²}.
    """
    moments = []
    for order in orders:
        k = np.arange(order + 1)
        log_binomial = -special.betaln(k + 1, order - k + 1) - math.log(order + 1)
        log_chance = special.xlog1py(order - k, -rate) + special.xlogy(k, rate)
        moments.append(special.logsumexp(log_binomial + log_chance + k * (k - 1) / (2 * sigma**2)))
    return np.array(moments)


def _integrate_moments(sigma: float, rate: float, orders: FloatArray) -> FloatArray:
    """Return the same at fractional orders, where there is no finite sum, by integration.

    The integrand is analytic and vanishes at both ends: equal weights are right to all digits.
    """
    step = sigma / _FINE
    z = np.arange(-_REACH * sigma, _REACH * sigma + orders.max(), step)
    log_law = -0.5 * (z / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi))
    with np.errstate(divide="ignore"):
        ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (z - 0.5) / sigma**2)
    logs = [special.logsumexp(order * ratio + log_law) for order in orders]
    return np.array(logs) + math.log(step) + _ROUNDING
