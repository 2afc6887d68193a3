"""What accountants are held to: ε computed elsewhere, losses drawn, a step by its definition."""

import math

import numpy as np
import scipy.optimize
import scipy.special
from scipy.stats import norm

from epsilometer.accounting.epochs import Epoch

P, Q = "present→absent", "absent→present"
# σ, T, E, ε present→absent, ε absent→present at δ = 1e-5: computed elsewhere, confirmed by plays
TABLE = {
    "T100-σ0.5": (0.5, 100, 1, 9.9972, 3.9921),
    "T100-σ1": (1.0, 100, 1, 4.0660, 0.8795),
    "T100-σ1.5": (1.5, 100, 1, 1.4669, 0.3949),
    "T1000-σ0.5": (0.5, 1000, 1, 9.9965, 2.5092),
    "T1000-σ1": (1.0, 1000, 1, 2.8834, 0.3693),
    "T1000-σ1.5": (1.5, 1000, 1, 0.3560, 0.1360),
    "SST-2": (0.79, 117, 10, 17.754, 7.344),
    "QNLI": (0.87, 195, 30, 20.661, 10.271),
    "MNLI": (0.73, 781, 50, 35.308, 16.299),
    "Persona-Chat": (0.82, 254, 30, 23.563, 11.217),
    "CIFAR-10": (3.00, 11, 168, 7.732, 7.473),
    "Places-365": (1.00, 440, 509, 43.824, 32.966),
}


def drawn_losses(
    epoch: Epoch, count: int, rng: np.random.Generator, *, present: bool
) -> np.ndarray:
    """Simulated, and by the definition: the ratio of two mixtures of normal densities."""
    x = epoch.noise * rng.standard_normal((count, epoch.steps))
    x[np.arange(count), rng.integers(0, epoch.steps, count)] += epoch.absent + present

    def log_density(mean: int) -> np.ndarray:
        # Of x if batch t has the mean, up to what both worlds share.
        exponents = ((x**2) - (x - mean) ** 2) / (2 * epoch.noise**2)
        return scipy.special.logsumexp(exponents, axis=1) - math.log(epoch.steps)

    return log_density(epoch.absent + 1) - log_density(epoch.absent)


def one_step_epsilon(noise: float, rate: float, delta: float) -> float:
    """ε of one step by its definition: the hockey-stick divergence of a mixture, both directions.

    Without the record the sum is N(0, σ²); with it, N(1, σ²) with probability ``rate``.
    """

    def divergence(epsilon: float) -> float:
        ratio = (math.exp(epsilon) - 1 + rate) / rate  # of N(1) to N(0), where the losses are ε
        at = noise**2 * math.log(ratio) + 0.5
        removed = (1 - rate - math.exp(epsilon)) * norm.sf(at / noise) + rate * norm.sf(
            (at - 1) / noise
        )
        ratio = (math.exp(-epsilon) - 1 + rate) / rate
        if ratio <= 0:  # this far the other direction never goes
            return float(removed)
        at = noise**2 * math.log(ratio) + 0.5
        added = norm.cdf(at / noise) - math.exp(epsilon) * (
            (1 - rate) * norm.cdf(at / noise) + rate * norm.cdf((at - 1) / noise)
        )
        return float(max(removed, added))

    return float(scipy.optimize.brentq(lambda e: divergence(e) - delta, 1e-9, 50.0, xtol=1e-10))
