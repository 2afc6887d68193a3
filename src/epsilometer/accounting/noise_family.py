"""Provide trade-off curves of Poisson-sampled DP-SGD with unknown noise, for one-run bounds."""

import numpy as np

from epsilometer.accounting.pld import poisson_epsilon_at_least, poisson_profile
from epsilometer.stats.estimators.one_run_fdp import CurveFamily
from epsilometer.types import FloatArray

Parts = tuple[tuple[float, float, int], ...]
_ASSUMED = (
    "Tests what the accountant assumes: Gaussian noise on sums of clipped gradients, batches "
    "drawn by Poisson sampling at the stated rate, and at least the stated noise. As a bound on "
    "ε it assumes all but the amount of noise; for other mechanisms it can be too large."
)


def scale_noise(parts: Parts) -> CurveFamily:
    """Return the mechanisms whose noise is that of ``parts`` divided by one number, the leak.

    Guarantee: no curve is above the true one, so that no more is refuted than is false.
    Assumption: each canary is included in every batch by its own coin toss, with the stated chance.

    Args:
        parts: Triples of noise multiplier, sampling rate below 1, and steps, as accounted for.

    Example:
        >>> family = scale_noise(((1.0, 0.1, 100),))
        >>> round(family.epsilon(1.0, 1e-5), 2)
        7.04
        >>> float(family.least_wrong(np.array([0.9]), 1.0).round(2)[0])
        0.53
    """

    def divide(leak: float) -> Parts:
        return tuple((noise / leak, rate, steps) for noise, rate, steps in parts)

    def least_wrong(right: FloatArray, leak: float) -> FloatArray:
        """Q(E) ≥ e^(−ε)·(P(E) − δ) and Q(E) ≥ 1 − δ − e^ε·(1 − P(E)), for every ε."""
        epsilons, deltas = poisson_profile(divide(leak))
        right = right[:, None]
        first = np.exp(-epsilons) * (right - deltas)
        second = 1 - deltas - np.exp(epsilons) * (1 - right)
        return np.asarray(np.maximum(np.maximum(first, second).max(axis=1), 0.0))

    return CurveFamily(
        least_wrong=least_wrong,
        epsilon=lambda leak, delta: poisson_epsilon_at_least(divide(leak), delta=delta),
        assumed=_ASSUMED,
    )
