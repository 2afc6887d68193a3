"""A crash at every single trip to the disk, one after the other, and then a second run."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epsilometer.engine.engines import InProcess
from epsilometer.engine.run import run
from epsilometer.engine.store import Writer
from epsilometer.errors import EpsilometerError
from tests.engine.jobs import Digest, a_plan, in_order
from tests.engine.test_run import Raising
from tests.faults.counting import faults
from tests.faults.processes import Keeper

UNITS = 5


class Crash(BaseException):
    """The process is gone: nothing after it is cleaned up by us."""


@pytest.fixture(autouse=True)
def one_unit_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unit goes to the disk before the next: the crash points are the same each time."""

    def add(self: Writer, unit: int, arrays: Any) -> None:
        self._shelf.write_shard({unit: arrays})

    monkeypatch.setattr(Writer, "add", add)


def counted(plain: Callable[..., Any], at: int, error: BaseException, *, after: bool) -> Any:
    """Raises at the ``at``-th call, before or after it did what it does."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += not after
        if calls == at and not after:
            raise error
        done = plain(*args, **kwargs)
        calls += after  # one that raised by itself did nothing
        if calls == at and after:
            raise error
        return done

    return call


POINTS = [(os, "fsync"), (os, "replace"), (os, "open"), (os, "unlink"), (os, "mkdir")]


def crashes(
    directory: Path, owner: Any, name: str, error: BaseException, *, after: bool, broken: bool
) -> Iterator[Path]:
    """Runs that crashed at call 1, 2, … of a function, until one gets through."""
    first = Raising(frozenset({1, 3}) if broken else frozenset())
    for at in range(1, 200):
        run_directory = directory / str(at)
        if broken:  # a run with failures is continued: notes go, the result is written again
            run(Digest(plan=a_plan(UNITS), act=first), run_directory, engine=InProcess())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, counted(getattr(owner, name), at, error, after=after))
            try:
                run(Digest(plan=a_plan(UNITS)), run_directory, engine=InProcess())
                crashed = False
            except (Crash, EpsilometerError):
                crashed = True
        yield run_directory
        if not crashed:
            return
    raise AssertionError("there is no end to it")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [Crash(), OSError(5, "Input/output error")], ids=repr)
@pytest.mark.parametrize(
    ("owner", "name"),
    [  # A run opens many files, most of them near the calls of the others.
        pytest.param(*point, id=point[1], marks=pytest.mark.slow if point[1] == "open" else ())
        for point in POINTS
    ],
)
@pytest.mark.in_turn(3)
def test_a_crash_at_any_call_is_made_good(
    owner: Any, name: str, error: BaseException, after: bool, broken: bool, tmp_path: Path
) -> None:
    expected = in_order(tmp_path / "expected", plan=a_plan(UNITS))
    found = 0
    for directory in crashes(tmp_path, owner, name, error, after=after, broken=broken):
        found += 1
        kind = "process crashes" if isinstance(error, Crash) else "input/output error"
        with faults(f"{kind} at a call to the disk"):
            if directory.exists():
                Keeper(directory).look()
            result = directory / "result.json"
            assert not result.exists() or broken or result.read_bytes() == expected
            run(Digest(plan=a_plan(UNITS)), directory, engine=InProcess())
            assert result.read_bytes() == expected
            assert not list(directory.rglob("*.tmp"))
            assert not list((directory / "failures").iterdir())
    assert found > 1 or name in {"unlink", "mkdir"}


def test_a_shard_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut may not reorder: contents, then the name, then the folder."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(handle: int) -> None:
        target = os.readlink(f"/proc/self/fd/{handle}")
        size = os.fstat(handle).st_size if os.path.isfile(target) else 0
        order.append(f"fsync {os.path.basename(target)}" + (" empty" if size == 0 else ""))
        fsync(handle)

    def watched_replace(half: str, whole: str, **folders: int) -> None:
        order.append(f"{half} -> {whole}")
        replace(half, whole, **folders)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    run(Digest(plan=a_plan(1)), tmp_path, engine=InProcess())
    folder = f"fsync {tmp_path.name} empty"
    above = [f"fsync {tmp_path.parents[number].name} empty" for number in (1, 0)]
    assert order == [
        *above,  # which somebody may have made and not synced
        "fsync secret.tmp",
        "secret.tmp -> secret",
        folder,
        "fsync plan.json.tmp",
        "plan.json.tmp -> plan.json",
        folder,
        folder,  # after shards/ was made
        folder,  # and failures/
        "fsync 00000000.shard.tmp",
        "00000000.shard.tmp -> 00000000.shard",
        "fsync shards empty",
        "fsync chain.json.tmp",
        "chain.json.tmp -> chain.json",
        folder,
        "fsync result.json.tmp",
        "result.json.tmp -> result.json",
        folder,
    ]
