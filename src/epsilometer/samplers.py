"""Samplers: how the batches of an epoch are drawn.

Example:
    >>> import epsilometer as em
    >>> for sampler in (em.samplers.Shuffle(), em.samplers.BallsInBins()):
    ...     print(em.shuffle_epsilon(noise_multiplier=1, steps=100, delta=1e-5, sampler=sampler))
    ε = 4.066 at δ = 1e-05 (4.066 to 4.066, numerical error, exact)
    ε = 0.6209 at δ = 1e-05 (0.6209 to 0.6209, numerical error, exact)
"""

from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    Law,
    PartialShuffle,
    Poisson,
    Sampler,
    Sequential,
    Shuffle,
    WithoutReplacement,
)

__all__ = [
    "BallsInBins",
    "BatchThenShuffle",
    "Law",
    "PartialShuffle",
    "Poisson",
    "Sampler",
    "Sequential",
    "Shuffle",
    "WithoutReplacement",
]
