"""Log-likelihood ratios of adversaries and samplers as papers print them, of sums as they are seen.

Each takes noisy sums of shape ``(..., epochs, steps)`` and returns ln Λ of shape ``(...)``.
"""

import numpy as np
from numpy.typing import ArrayLike

from epsilometer.stats.likelihood_ratio import each_with, one_of
from epsilometer.types import FloatArray


def target_canary(seen: ArrayLike, *, sigma: float) -> FloatArray:
    """Know the target's gradient only: its batch has mean 1 or 0, the others 0."""
    return one_of(np.asarray(seen), sigma=sigma, present=1, absent=0)


balls_in_bins = target_canary


def partially_informed(seen: ArrayLike, *, sigma: float) -> FloatArray:
    """Set the last record of every other batch to −1: means 1 or 0 in the target's, else −1."""
    return one_of(np.asarray(seen) + 1, sigma=sigma, present=2, absent=1)


def worst_case(seen: ArrayLike, *, sigma: float, batch_size: int = 1) -> FloatArray:
    """Set all other records to −1: means 2 − B or 1 − B in the target's batch, else −B."""
    return one_of(np.asarray(seen) + batch_size, sigma=sigma, present=2, absent=1)


def batch_then_shuffle(seen: ArrayLike, *, sigma: float, batch_size: int) -> FloatArray:
    """Shuffle whole batches: the target's has mean B or B − 1, the others −B."""
    twice = 2 * batch_size
    return one_of(np.asarray(seen) + batch_size, sigma=sigma, present=twice, absent=twice - 1)


def poisson(seen: ArrayLike, *, sigma: float, rate: float | None = None) -> FloatArray:
    """Put the target into each batch with probability ``rate``, one in the number of steps."""
    x = np.asarray(seen)
    rate = 1 / x.shape[-1] if rate is None else rate
    return each_with(x, sigma=sigma, present=1, absent=0, rate=rate)


def without_replacement(
    seen: ArrayLike, *, sigma: float, batch_size: int = 1, rate: float | None = None
) -> FloatArray:
    """Draw B records for each batch: means 2 − B or 1 − B with the target, else −B."""
    x = np.asarray(seen) + batch_size
    rate = 1 / x.shape[-1] if rate is None else rate
    return each_with(x, sigma=sigma, present=2, absent=1, rate=rate)
