"""The thread that writes: units of a moment in one file, none lost, errors told."""

import os
import threading
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer.engine.plan import Plan
from epsilometer.engine.store import CannotWrite, Store, Writer
from tests.engine.jobs import a_plan
from tests.engine.test_store import of


def no_room(*_: object, **__: object) -> Any:
    raise OSError(28, "No space left on device")


class Slow(Store):
    """A store whose disk waits for ``go``, and remembers what came in one trip."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        super().__init__(directory, plan)
        self.go = threading.Event()
        self.reached = threading.Event()
        self.trips: list[list[int]] = []

    def write_shard(self, units: Any) -> None:
        self.reached.set()
        self.go.wait()
        self.trips.append(list(units))
        super().write_shard(units)


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    store = Slow(tmp_path, a_plan(500))
    store.prepare()
    return store


def test_units_of_a_moment_share_a_file_and_none_is_lost(slow: Slow) -> None:
    with Writer(slow) as writer:
        writer.add(7, of(7))
        slow.reached.wait()  # the disk is busy with that one; the others wait
        for unit in (9, 3, 400, 12):
            writer.add(unit, of(unit))
        slow.go.set()
    assert sorted(chain(*slow.trips)) == [3, 7, 9, 12, 400]
    assert slow.trips[-1] == sorted(slow.trips[-1])
    assert 3 in slow.trips[-1]
    assert 400 in slow.trips[-1]
    again = Store(slow.directory, slow.plan)
    assert again.look() == {}
    assert again.finished == {3, 7, 9, 12, 400}


def test_a_slow_disk_makes_the_run_wait_and_not_the_memory_grow(slow: Slow) -> None:
    most, each, units = 16 * 2**20, 2 * 2**20, 30
    added: list[int] = []

    def produce() -> None:
        for unit in range(units):
            writer.add(unit, {"x": np.zeros(each // 8)})
            added.append(unit)

    with Writer(slow) as writer:
        thread = threading.Thread(target=produce)
        thread.start()
        slow.reached.wait()
        thread.join(0.2)  # it cannot end: the disk has not moved
        waits, held, taken = thread.is_alive(), writer._bytes, len(added)
        slow.go.set()
        thread.join()
    assert waits
    assert held <= most + each
    assert taken <= 2 * (most // each + 2)
    assert sorted(chain(*slow.trips)) == list(range(units))


@pytest.mark.parametrize("waits", [False, True])
def test_an_error_of_the_disk_reaches_whoever_adds_next(
    waits: bool, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one who waits for room meanwhile: he must not wait for ever."""
    monkeypatch.setattr(os, "fsync", no_room)
    slow.go.set()
    arrays = {"x": np.zeros(2**23 + 1)} if waits else of(9)  # of which not two may wait, or many

    def add_many() -> None:
        with Writer(slow) as writer:
            for _ in range(10**5):  # far more than any disk takes in a moment
                writer.add(0, arrays)

    advice = f"epsilometer runs resume {slow.directory}"
    with pytest.raises(CannotWrite, match=f"No space left.*{advice}"):
        add_many()


def test_an_error_of_the_disk_is_told_at_the_end_too(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", no_room)
    slow.go.set()
    with pytest.raises(CannotWrite, match="Free some space"), Writer(slow) as writer:
        writer.add(1, of(1))


def test_what_was_added_is_written_although_the_body_raises(slow: Slow) -> None:
    slow.go.set()

    def interrupted() -> None:
        with Writer(slow) as writer:
            writer.add(1, of(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert slow.finished == {1}


def test_nothing_to_write_writes_nothing(slow: Slow) -> None:
    with Writer(slow):
        pass
    assert slow.trips == []
