"""Fingerprints: the same for the same contents in every process, another for any others."""

import functools
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch

from epsilometer.core.record import Record
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.errors import InvalidArgument
from tests.engine.jobs import ROOT


def some(x: int, y: int = 0) -> int:
    return x + y


@dataclass
class Settings:
    noise: float
    names: tuple[str, ...] = ("a", "b")

    def __call__(self) -> float:
        return self.noise


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x


def different() -> list[Any]:
    """Values no two of which are alike, made again at every call."""
    return [
        None,
        0,
        0.0,
        False,
        "0",
        b"0",
        "",
        [],
        (),
        {},
        set(),
        [0],
        [[0]],
        [0, 0],
        (0,),
        ["ab", "c"],
        ["a", "bc"],
        {"a": 1, "b": 2},
        {"a": 2, "b": 1},
        {1: "a", "1": "b"},
        {"a", "b", "c"},
        np.zeros(4),
        np.zeros(4, np.float32),
        np.zeros((2, 2)),
        np.zeros(4, np.int64),
        np.array([0.0, 0.0, 0.0, -0.0]),
        np.array(["a", None], object),
        np.array([None, "a"], object),
        np.float64(0),
        torch.zeros(4),
        torch.zeros(4, dtype=torch.bfloat16),
        torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.arange(3)),
        torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.arange(1, 4)),
        pyarrow.chunked_array([[1, 2], [3]]),
        pyarrow.chunked_array([[1, 2], [4]]),
        pyarrow.table({"x": [1, 2], "y": ["a", "b"]}),
        pyarrow.table({"x": [1, 2], "z": ["a", "b"]}),
        Record([0.0], 1),
        Record([0.0], 2),
        Settings(1.0),
        Settings(2.0),
        Settings(1.0).__call__,
        Slotted(1),
        Slotted(2),
        some,
        functools.partial(some, 1),
        functools.partial(some, y=1),
        functools.partial(some, x=1),
        len,
        Settings,
        np.random.default_rng(0),
        np.random.default_rng(1),
    ]


def test_values_have_the_same_fingerprint_exactly_where_their_contents_are_the_same() -> None:
    first, second = ([fingerprint(value) for value in different()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


def test_another_process_finds_the_same() -> None:
    """Hashes of text are salted in each process; nothing here may rest on them."""
    program = (
        "from tests.engine.test_fingerprints import different, fingerprint\n"
        "print(*map(fingerprint, different()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [fingerprint(value) for value in different()]


def test_order_counts_where_there_is_one() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint([1, 2]) != fingerprint([2, 1])
    turned = np.arange(6.0).reshape(2, 3).T
    assert fingerprint(turned) == fingerprint(turned.copy())


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_counts_by_its_contents(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    absent = fingerprint(kind(path))
    path.write_text("1")
    one = fingerprint(kind(path))
    path.write_text("2")
    assert len({absent, one, fingerprint(kind(path))}) == 3


def test_what_is_part_of_itself_ends() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    other: list[Any] = [2]
    other.append(other)
    assert fingerprint(loop) != fingerprint(other)


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), [threading.Lock()], (i for i in ()), sys.stdout.buffer],
    ids=["lock", "list of a lock", "generator", "file"],
)
def test_what_has_no_contents_is_told(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="contents that can be compared"):
        fingerprint(value)


def test_names_are_those_of_functions_and_of_types_that_can_be_called() -> None:
    here = "tests.engine.test_fingerprints"
    assert name_of(some) == f"{here}.some"
    assert name_of(functools.partial(functools.partial(some, 1), 2)) == f"{here}.some"
    assert name_of(Settings(1.0)) == f"{here}.Settings"
    assert name_of(Settings(1.0).__call__) == f"{here}.Settings.__call__"


def test_functions_of_numpy_count_by_their_names() -> None:
    """A pipeline with FunctionTransformer(np.log1p) was refused: such a function has no parts."""
    assert fingerprint([np.log1p]) == fingerprint([np.log1p])
    assert fingerprint([np.log1p]) != fingerprint([np.log])
