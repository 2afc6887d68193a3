"""Choices by name, whole numbers and lists, as options take them."""

import click
import pytest

from epsilometer import samplers
from epsilometer.cli.options import (
    NOISE,
    OPTIMIZER,
    ORDERED_SAMPLER,
    RULE,
    SAMPLER,
    Listed,
    Named,
    Whole,
)
from epsilometer.engine.engines import Dask, InProcess, Local, make_engine
from epsilometer.errors import InvalidArgument


def read(kind: Named, text: str) -> object:
    return kind.convert(text, None, None)


def test_every_sampler_there_is_has_a_name() -> None:
    named = {type(read(SAMPLER, name.replace("BUFFER", "12"))).__name__ for name in SAMPLER.shown}
    there = {name for name in samplers.__all__ if hasattr(getattr(samplers, name), "batches")}
    assert named == there - {"Sampler"}
    assert read(SAMPLER, "partial:12") == samplers.PartialShuffle(12)


@pytest.mark.parametrize(
    "text",
    [
        *("", "Shuffle", "partial", "partial:", "partial:²", "partial:-1", "shuffle:", "poisson:1"),
        *("shuffle:1", "partial:0", "partial:1.5"),
    ],
)
def test_what_is_no_name_is_told_with_those_that_are(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"shuffle, partial:BUFFER, .*, without-replacement"):
        read(SAMPLER, text)


def test_only_those_are_taken_that_the_caller_knows() -> None:
    with pytest.raises(InvalidArgument, match="balls-in-bins, sequential; got 'poisson'"):
        read(ORDERED_SAMPLER, "poisson")


def test_numbers_may_be_left_out_where_they_are_in_brackets() -> None:
    assert read(RULE, "hold-out") == read(RULE, "hold-out:0.3")
    assert read(OPTIMIZER, "sgd:0.9").momentum == 0.9  # type: ignore[attr-defined]
    assert {type(read(NOISE, name)).__name__ for name in NOISE.shown} == {
        *("IndependentNoise", "TreeNoise", "MatrixNoise"),
    }


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("1e7", 10**7), ("2.0", 2)])
def test_whole_numbers_may_be_written_short(text: str, number: int) -> None:
    assert Whole().convert(text, None, None) == number


@pytest.mark.parametrize("text", ["1.5", "nan", "inf", "many", ""])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Whole().convert(text, None, None)


def test_lists_are_separated_by_commas() -> None:
    assert Listed(click.INT).convert("1, 2,4", None, None) == (1, 2, 4)
    assert Listed(click.STRING).convert("none", None, None) == ()


def test_engines_by_name() -> None:
    assert make_engine(None, 0, None) is None  # the subject's own choice
    assert make_engine("in-process", 0, None) == InProcess()
    assert make_engine("threads", 3, None) == Local(count=3, kind="threads")
    assert make_engine(None, 3, None) == Local(count=3, kind="processes")
    for name, address in (("dask", None), ("local", "tcp://host:8786"), (None, "tcp://host:8786")):
        with pytest.raises(InvalidArgument, match="--address with --engine dask"):
            make_engine(name, 0, address)


def test_a_timeout_goes_to_engines_that_can_end_a_unit() -> None:
    assert make_engine(None, timeout=600.0) == Local(timeout=600.0)
    assert make_engine("local", 3, timeout=600.0) == Local(count=3, timeout=600.0)
    assert make_engine("dask", address="tcp://a:1", timeout=9.0) == Dask("tcp://a:1", timeout=9.0)
    for name in ("in-process", "threads"):
        with pytest.raises(InvalidArgument, match="timeout"):
            make_engine(name, timeout=600.0)
    with pytest.raises(InvalidArgument, match="timeout"):
        make_engine("local", timeout=-1.0)
