"""Samplers by name."""

import pytest

from epsilometer.cli.samplers import EVERY, ORDERED, parse_sampler
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms import samplers


def test_every_sampler_there_is_has_a_name() -> None:
    named = {type(parse_sampler(name.replace("BUFFER", "12"))).__name__ for name in EVERY}
    there = {
        name
        for name, kind in vars(samplers).items()
        if isinstance(kind, type) and hasattr(kind, "batches") and name != "Sampler"
    }
    assert named == there
    assert parse_sampler("partial:12") == samplers.PartialShuffle(12)


@pytest.mark.parametrize(
    "text",
    ["", "Shuffle", "partial", "partial:", "partial:²", "partial:-1", "shuffle:", "poisson:1"],
)
def test_what_is_no_name_is_told_with_those_that_are(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"shuffle, partial:BUFFER, .*, without-replacement"):
        parse_sampler(text)


def test_only_those_are_taken_that_the_caller_knows() -> None:
    with pytest.raises(InvalidArgument, match="balls-in-bins, sequential; got 'poisson'"):
        parse_sampler("poisson", known=ORDERED)


def test_an_empty_buffer_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="buffer"):
        parse_sampler("partial:0")
