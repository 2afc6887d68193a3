"""Units hang and workers die: every unit has one outcome, and the innocent are not blamed."""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.cli.main import main
from epsilometer.engine import heartbeat, leases
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.events import Event
from epsilometer.engine.heartbeat import LEASES, read_heartbeat
from epsilometer.engine.leases import Board, Lease, Outcome, execute, post_leases
from epsilometer.engine.pool import DEVICES
from epsilometer.engine.run import run
from epsilometer.engine.shards import Arrays
from epsilometer.engine.store import Store
from epsilometer.errors import InvalidArgument
from tests.engine.jobs import Digest, a_plan, in_order
from tests.engine.test_run import Raising
from tests.faults.counting import count
from tests.faults.processes import until


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits and heartbeats that tests can wait for."""
    monkeypatch.setattr(leases, "BEAT", 0.05)
    monkeypatch.setattr(heartbeat, "BEAT", 0.05)
    monkeypatch.setattr(leases, "_LIMIT_FLOOR", 0.4)
    monkeypatch.setattr(leases, "_LATE_FLOOR", 0.1)
    monkeypatch.setattr(leases, "_UNSURE", 1.0)


@dataclass(frozen=True)
class Sleeping:
    """Sleeps in one unit."""

    unit: int
    seconds: float

    def __call__(self, unit: int) -> None:
        if unit == self.unit:
            time.sleep(self.seconds)


# Units that hang


def test_a_unit_that_hangs_is_ended_and_the_others_finish(tmp_path: Path) -> None:
    job, events = Digest(plan=a_plan(), act=Sleeping(5, 600)), list[Event]()
    engine = Local(count=2, retries=1, timeout=1.0)
    result = run(job, tmp_path, engine=engine, listen=[events.append])
    assert result.provenance.failed == 1
    failures = Store.open(tmp_path).failures()
    assert list(failures) == [5]
    assert failures[5].startswith("It took longer than 1 s and was ended")
    lost = [event.details["units"] for event in events if event.name == "lost"]
    assert lost[-2:] == [[5], [5]]  # in company, then alone
    assert all(5 in units for units in lost)
    count("unit hangs and is ended", len(lost))


@pytest.mark.usefixtures("fast")
def test_without_a_timeout_the_median_of_finished_units_gives_one(tmp_path: Path) -> None:
    job = Digest(plan=a_plan(), act=Sleeping(5, 600))
    run(job, tmp_path, engine=Local(count=2, retries=1))
    assert Store.open(tmp_path).failures()[5].startswith("It took longer than 0.4 s")


@pytest.mark.usefixtures("fast")
def test_a_unit_that_is_slow_by_nature_gets_more_time_and_the_same_bytes(tmp_path: Path) -> None:
    expected = in_order(tmp_path / "expected")
    job = Digest(plan=a_plan(), act=Sleeping(5, 0.8))
    run(job, tmp_path / "run", engine=Local(count=2, retries=3))
    assert (tmp_path / "run" / "result.json").read_bytes() == expected


def test_before_anything_is_finished_nothing_is_too_slow() -> None:
    board = Board()
    with post_leases(board):
        work = leases._Work(Faulty(random.Random(0), 0), [], retries=1, timeout=None)
    assert work._limit(Lease({0: None}, "w"), None) == float("inf")
    assert work._limit(Lease({0: None}, "w"), 0.001) == 600.0  # of a few units, or of before
    for _ in range(5):
        board.note(1.0)
    assert work._limit(Lease({0: None}, "w"), 0.001) == 60.0
    assert work._limit(Lease({0: None}, "w"), 10.0) == 300.0


@pytest.mark.usefixtures("fast")
def test_one_of_three_units_that_hangs_is_ended(tmp_path: Path) -> None:
    """Before five were finished, a unit that hung was waited for, and nobody was told."""
    events = list[Event]()
    job = Digest(plan=a_plan(3), act=Sleeping(2, 600))
    run(job, tmp_path, engine=Local(count=2, retries=1), listen=[events.append])
    assert 2 in Store.open(tmp_path).failures()
    assert "late" in [event.name for event in events]


@pytest.mark.usefixtures("fast")
def test_the_last_unit_hangs_when_a_run_is_called_again_and_is_ended(tmp_path: Path) -> None:
    """None finishes beside it: what is usual is known from the first call alone."""
    run(Digest(plan=a_plan(), act=Raising(frozenset({11}))), tmp_path, engine=InProcess())
    job = Digest(plan=a_plan(), act=Sleeping(11, 600))
    run(job, tmp_path, engine=Local(count=1, retries=1))
    assert Store.open(tmp_path).failures()[11].startswith("It took longer than 0.4 s")


@pytest.mark.parametrize("wrong", [{"timeout": 0.0}, {"timeout": float("nan")}])
def test_a_timeout_is_a_number_of_seconds(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        Local(**wrong)


def test_threads_cannot_be_ended() -> None:
    with pytest.raises(InvalidArgument, match="a thread cannot be ended"):
        Local(kind="threads", timeout=1.0)


# Who is late


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "engine", [InProcess(), Local(count=2), Local(count=2, kind="threads")], ids=repr
)
def test_a_run_says_who_is_late(engine: Engine, tmp_path: Path) -> None:
    go, events = tmp_path / "go", list[Event]()
    job = Digest(plan=a_plan(), act=Waiting(9, go))
    thread = threading.Thread(
        target=lambda: run(job, tmp_path / "run", engine=engine, listen=[events.append])
    )
    thread.start()
    try:
        until(lambda: _late(tmp_path / "run"), "somebody was late")
        beat = read_heartbeat(tmp_path / "run")
        status = CliRunner().invoke(main, ["runs", "status", str(tmp_path / "run")]).output
        plain = CliRunner().invoke(main, ["runs", "status", str(tmp_path / "run"), "--json"]).output
    finally:
        go.touch()
        thread.join()
    assert beat is not None
    assert beat.process == os.getpid()
    assert [each.unit for each in beat.under_way if each.late] == [9]
    assert "late" in status
    assert "unit 9 at " in status
    assert json.loads(plain)["heartbeat"]["under_way"][0]["unit"] == 9
    assert {event.details["unit"] for event in events if event.name == "late"} == {9}
    assert not (tmp_path / "run" / LEASES).exists()  # nobody works on it any more
    assert "late" not in CliRunner().invoke(main, ["runs", "status", str(tmp_path / "run")]).output


@dataclass(frozen=True)
class Waiting:
    """Waits in one unit until a file is there."""

    unit: int
    file: Path

    def __call__(self, unit: int) -> None:
        while unit == self.unit and not self.file.exists():
            time.sleep(0.01)


def _late(directory: Path) -> bool:
    beat = read_heartbeat(directory)
    return beat is not None and any(each.late for each in beat.under_way)


def test_a_run_that_is_silent_is_said_to_be(tmp_path: Path) -> None:
    old = heartbeat.Heartbeat(time.time() - 100, 7, "there", 1.0, ())
    assert 99 < old.silence < 110
    assert heartbeat.Heartbeat(time.time(), 7, "there", 1.0, ()).silence == 0
    (tmp_path / LEASES).write_text("{}")
    assert read_heartbeat(tmp_path) is None


# Who is to blame


@dataclass
class Faulty:
    """A crew that loses leases at random; some units kill their worker whenever they run."""

    rng: random.Random
    chance: float
    deadly: frozenset[int] = frozenset()
    workers: int = 3
    can_end: bool = True
    strange: int = 0
    held: dict[str, Lease] = field(default_factory=dict)
    alone: Counter[int] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        return self.workers

    def find_free(self, wanted: int) -> list[str]:
        names = [str(number) for number in range(self.workers)]
        return [name for name in names if name not in self.held][:wanted]

    def send(self, lease: Lease) -> None:
        if lease.alone:
            assert not self.held
            assert len(lease.units) == 1
        self.held[lease.worker] = lease

    def wait(self, seconds: float) -> Iterator[tuple[Lease, Outcome | str]]:
        for worker in self.rng.sample(sorted(self.held), len(self.held)):
            lease = self.held[worker]
            if lease.unit in self.deadly or self.rng.random() < self.chance:
                del self.held[worker]
                self.alone[lease.unit] += lease.alone
                yield lease, "The worker died."
                return
            outcome = Outcome(unit=lease.unit, arrays={}, error="", seconds=1e-4)
            if len(lease.units) == 1:
                del self.held[worker]
            yield lease, outcome

    def end(self, lease: Lease) -> None:
        del self.held[lease.worker]

    def close(self) -> None:
        self.held.clear()


@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.floats(0, 0.9),
    st.integers(0, 3),
    st.integers(0, 9),
)
def test_every_unit_has_one_outcome_and_is_blamed_only_after_it_was_lost_alone(
    seed: int, units: int, chance: float, retries: int, deadly: int
) -> None:
    crew = Faulty(random.Random(seed), chance, frozenset({deadly}))
    found = list(execute(crew, range(units), retries=retries))
    assert sorted(outcome.unit for outcome in found) == list(range(units))
    for outcome in found:
        if outcome.arrays is None:
            assert crew.alone[outcome.unit] == retries
    assert deadly >= units or any(o.unit == deadly and o.arrays is None for o in found)


def test_units_that_take_no_time_share_leases() -> None:
    crew = Faulty(random.Random(0), 0)
    sizes: list[int] = []
    send = crew.send
    crew.send = lambda lease: (sizes.append(len(lease.units)), send(lease))[1]  # type: ignore[method-assign]
    found = list(execute(crew, range(20_000), retries=1))
    assert len(found) == 20_000
    assert len(sizes) < 500
    assert max(sizes) <= leases._MOST


def test_a_death_that_others_explain_is_not_the_units(tmp_path: Path) -> None:
    """Where idle workers die too, somebody else kills them."""
    crew = Faulty(random.Random(0), 0, frozenset({0}), workers=1)
    wait = crew.wait

    def kill_idle(seconds: float) -> Iterator[tuple[Lease, Outcome | str]]:
        crew.strange += 1
        if crew.strange > 6:
            crew.deadly = frozenset()
        return wait(seconds)

    crew.wait = kill_idle  # type: ignore[method-assign]
    (outcome,) = execute(crew, [0], retries=2)
    assert outcome.arrays is not None


def test_a_board_knows_what_is_usual() -> None:
    assert Board().usual is None
    board = Board(before=7.0)
    assert board.usual == 7.0
    for seconds in (2.0, 1.0, 4.0, 3.0):
        board.note(seconds)
        assert not board.is_sure
    assert board.usual == 4.0  # the longest of a few
    board.note(100.0)
    assert board.is_sure
    assert board.usual == 3.0


# Devices


@dataclass(frozen=True)
class Meeting:
    """Waits until two processes are there."""

    folder: Path

    def __call__(self, unit: int) -> Arrays:
        (self.folder / str(os.getpid())).touch()
        until(lambda: len(list(self.folder.iterdir())) >= 2, "two processes were there")
        seen = os.environ.get(DEVICES, "none")
        return {"device": np.array(seen), "process": np.array(os.getpid())}


@pytest.mark.parametrize("devices", [("0", "1"), ("0", "0"), ("", "")])
def test_every_device_has_a_worker_that_sees_no_other(
    devices: tuple[str, ...], tmp_path: Path
) -> None:
    """Two devices, two processes on one device, and two that see none and use the CPU."""
    found = [o.arrays for o in Local(devices=devices).outcomes(Meeting(tmp_path), range(12))]
    where = {int(a["process"]): str(a["device"]) for a in found if a is not None}
    assert sorted(where.values()) == sorted(devices)


def test_devices_are_one_worker_each() -> None:
    assert Local(devices=("0", "1")).workers == 2
    with pytest.raises(InvalidArgument, match="one worker for each of 2 devices"):
        Local(devices=("0", "1"), count=3)
    with pytest.raises(InvalidArgument, match="all of them see the same GPUs"):
        Local(devices=("0",), kind="threads")


def test_the_engine_of_gpus_takes_those_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from epsilometer.engine.engines import make_engine

    monkeypatch.setenv(DEVICES, "2, GPU-abc")
    assert make_engine("gpus") == Local(devices=("2", "GPU-abc"))
    assert make_engine("gpus", 3) == Local(devices=("2", "GPU-abc", "2"))
    monkeypatch.setenv(DEVICES, "-1")
    with pytest.raises(InvalidArgument, match="Expected a GPU for --engine gpus, found none"):
        make_engine("gpus")
