"""What commands share that are told how batches are drawn."""

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
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

_BY_NAME: dict[str, type[Sampler]] = {
    "shuffle": Shuffle,
    "batch-then-shuffle": BatchThenShuffle,
    "balls-in-bins": BallsInBins,
    "sequential": Sequential,
    "poisson": Poisson,
    "without-replacement": WithoutReplacement,
}
ORDERED = ("shuffle", "partial:BUFFER", "batch-then-shuffle", "balls-in-bins", "sequential")
EVERY = (*ORDERED, "poisson", "without-replacement")


def parse_sampler(text: str, *, known: tuple[str, ...] = EVERY) -> Sampler:
    """A sampler from its name and, after a colon, its number.

    Args:
        text: As ``shuffle`` or ``partial:1000``.
        known: The names that are taken.

    Example:
        >>> parse_sampler("partial:1000")
        PartialShuffle(buffer=1000, sliding=False, drop_last=False)
    """
    name, colon, value = text.partition(":")
    if colon and name == "partial" and value.isascii() and value.isdecimal() and len(value) < 19:
        return PartialShuffle(int(value))
    if text in known and text in _BY_NAME:
        return _BY_NAME[text]()
    raise InvalidArgument(f"Expected a sampler of {', '.join(known)}; got {_validate.short(text)}.")
