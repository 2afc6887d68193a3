"""Rényi accounting of Poisson sampling, for audits whose papers have it. ``pld`` is tighter."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from epsilometer import _validate

_ORDERS = (*(1 + i / 10 for i in range(1, 100)), *range(12, 64))  # as papers of Opacus have them
_REACH, _FINE = 40.0, 200  # the integral in standard deviations, and points a deviation


def varied_poisson_epsilon(
    noise: Sequence[tuple[float, int]], *, sampling_rate: float, delta: float
) -> float:
    """The ε of DP-SGD by Poisson sampling whose noise changes: pairs of noise multiplier and steps.

    Guarantees: an upper bound; at small sampling rates it is several times that of ``pld``.

    Example:
        >>> round(varied_poisson_epsilon([(1.0, 60), (1.0, 40)], sampling_rate=0.01, delta=1e-5), 2)
        1.21
    """
    import dp_accounting
    from dp_accounting import rdp

    _validate.open_unit(delta=delta)
    accountant = rdp.RdpAccountant()
    for multiplier, steps in noise:
        event = dp_accounting.PoissonSampledDpEvent(
            sampling_rate, dp_accounting.GaussianDpEvent(multiplier)
        )
        accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


def poisson_epsilon(
    *, noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """The ε of DP-SGD by Poisson sampling, as papers that used Opacus print it.

    The moment of the sampled Gaussian at each order is integrated numerically (Mironov, Talwar and
    Zhang 2019; at fractional orders dp-accounting has a larger bound of it) and converted as by
    Balle et al. (2020), the least over 150 orders.

    Guarantees: an upper bound for neighbours with a record more or less; ``pld`` is tighter.

    Example:
        >>> paper = dict(noise_multiplier=0.5, sampling_rate=256 / 50_000, steps=60 * 195)
        >>> round(poisson_epsilon(**paper, delta=1e-5), 2)
        25.63
    """
    _validate.open_unit(delta=delta)
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.probability(sampling_rate=sampling_rate)
    _validate.whole(1, steps=steps)
    sigma = noise_multiplier
    step = sigma / _FINE
    z = np.arange(-_REACH * sigma, _REACH * sigma + max(_ORDERS), step)
    log_law = -0.5 * (z / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi))
    with np.errstate(divide="ignore"):
        ratio = np.logaddexp(np.log1p(-sampling_rate), np.log(sampling_rate) + (z - 0.5) / sigma**2)
    found = []
    for order in _ORDERS:
        moment = max(0.0, float(special.logsumexp(order * ratio + log_law)) + math.log(step))
        spent = steps * moment / (order - 1)
        found.append(
            spent + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        )
    return float(max(0.0, min(found)))
