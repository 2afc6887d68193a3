"""Give the samplers: how the batches of an epoch are drawn."""

from epsilometer.mechanisms.samplers import (
    BallsInBins,
    BatchThenShuffle,
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
    "PartialShuffle",
    "Poisson",
    "Sampler",
    "Sequential",
    "Shuffle",
    "WithoutReplacement",
]
