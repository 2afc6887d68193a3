"""Draw batches: samplers, their random numbers, and recognition of a user's loader.

Example:
    >>> import epsilometer as em
    >>> sampler = em.sampling.BallsInBins()
    >>> batches = em.sampling.BatchSampler(sampler, records=6, batch_size=2, seed=1)
    >>> sorted(index for batch in batches for index in batch)
    [0, 1, 2, 3, 4, 5]
"""

from epsilometer.sampling.batch_sampler import BatchSampler, FixedSize
from epsilometer.sampling.samplers import BallsInBins, Poisson, Shuffle

__all__ = ["BallsInBins", "BatchSampler", "FixedSize", "Poisson", "Shuffle"]
