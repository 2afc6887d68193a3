"""A run is its plan: order, interruptions, failures and clocks leave no trace in its result."""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.engine import events as reporting
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.events import EVENTS, Event, log_to, read_events
from epsilometer.engine.leases import Outcome
from epsilometer.engine.run import Terminated, run
from epsilometer.engine.store import Store, is_busy
from tests.engine.jobs import Digest, Listed, Shuffled, Total, a_plan, in_order, names, wobble

UNITS = 12


class Broken(Exception):
    pass


@dataclass(frozen=True)
class Raising:
    """Raises in these units."""

    units: frozenset[int]

    def __call__(self, unit: int) -> None:
        if unit in self.units:
            raise Broken(f"unit {unit}")


@dataclass
class Interrupting:
    """Interrupts the run at its ``after``-th unit, whichever that is."""

    after: int
    by: type[BaseException] = KeyboardInterrupt

    def __call__(self, unit: int) -> None:
        self.after -= 1
        if self.after < 0:
            raise self.by


def bytes_of(directory: Path, engine: Engine | None = None, **changed: Any) -> bytes:
    job = Digest(**{"plan": a_plan(UNITS), **changed})
    run(job, directory, engine=engine or InProcess())
    return (directory / "result.json").read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return in_order(tmp_path_factory.mktemp("expected"), plan=a_plan(UNITS))


# Order


def stop_of(plan: Any, limit: float) -> int:
    """After how many units the rule stops, by adding up in order."""
    total = 0.0
    for unit in range(plan.units):
        total += float(plan.stream(unit).normal(1.0, 1.0, size=3).sum())
        if total > limit:
            return unit + 1
    return int(plan.units)


@pytest.mark.parametrize("limit", [0.0, 20.0, 60.0, 1e9])
def test_a_run_stops_where_the_rule_says_whatever_the_order(
    limit: float, tmp_path: Path, rng: np.random.Generator
) -> None:
    plan = a_plan(40)
    expected = in_order(tmp_path / "expected", plan=plan, limit=limit)
    assert json.loads(expected)["provenance"]["used"] == stop_of(plan, limit)
    for i in range(8):
        engine = Shuffled(rng=rng)
        assert bytes_of(tmp_path / str(i), engine, plan=plan, limit=limit) == expected


def test_a_run_stops_where_the_rule_says_on_real_workers(tmp_path: Path) -> None:
    plan, limit = a_plan(40), 40.0
    expected = in_order(tmp_path / "expected", plan=plan, limit=limit)
    for engine in (Local(count=3), Local(count=4, kind="threads"), Local(count=2)):
        directory = tmp_path / f"{engine.count}-{engine.kind}"
        assert bytes_of(directory, engine, plan=plan, limit=limit, act=wobble) == expected


def test_a_run_stopped_early_is_resumed_to_the_same_stop(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Interrupted anywhere, in any order; shards beyond the stop are there and not counted."""
    plan, limit = a_plan(40), 40.0
    expected = in_order(tmp_path / "expected", plan=plan, limit=limit)
    beyond = 0
    for i in range(10):
        directory = tmp_path / str(i)
        while True:
            act = Interrupting(int(rng.integers(1, 12)))
            try:
                found = bytes_of(directory, Shuffled(rng=rng), plan=plan, limit=limit, act=act)
                break
            except KeyboardInterrupt:
                assert not (directory / "result.json").exists()
        assert found == expected
        store = Store.open(directory)
        store.look()
        beyond += max(store.finished) >= stop_of(plan, limit)
        (directory / "result.json").unlink()  # and once more from the shards alone
        assert bytes_of(directory, plan=plan, limit=limit, act=Interrupting(0)) == expected
    assert beyond  # so the case was met


@given(st.permutations(range(6)), st.floats(-5, 25))
def test_a_watch_sees_units_in_their_order(order: list[int], limit: float) -> None:
    """Against a watch that is simply shown them in order."""
    job = Digest(plan=a_plan(6), limit=limit)
    plain = Total(limit)
    shown = 0
    for unit in range(6):
        plain.see(job.unit(unit))
        shown += 1
        if plain.enough():
            break
    given_ = [Outcome(unit=u, arrays=job.unit(u), error="", seconds=0.0) for u in order]
    closed: list[bool] = []
    result = run(job, engine=Listed(given=given_, closed=closed))
    assert result.provenance.used == shown
    assert closed == [True]


# Interruptions


@pytest.mark.parametrize("after", range(UNITS + 1))
@pytest.mark.parametrize("by", [KeyboardInterrupt, Terminated])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    after: int, by: type[BaseException], tmp_path: Path, expected: bytes
) -> None:
    events: list[Event] = []
    job = Digest(plan=a_plan(UNITS), act=Interrupting(after, by))
    if after < UNITS:
        with pytest.raises(by):
            run(job, tmp_path, engine=InProcess(), listen=[events.append])
        assert list(names(events)) == ["started", "cancelled"]
        assert events[-1].details == {"finished": after, "units": UNITS}
        store = Store.open(tmp_path)
        assert store.look() == {}
        assert store.finished == set(range(after))
    assert not is_busy(tmp_path)
    assert bytes_of(tmp_path) == expected


# It may come when threadpoolctl has opened that file and not yet begun to close it.
@pytest.mark.filterwarnings("ignore:.*proc/self/maps:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("number", "engine"),
    [
        (signal.SIGINT, InProcess()),
        (signal.SIGTERM, Local(count=2)),
        (signal.SIGINT, Local(count=2, kind="threads")),
        pytest.param(signal.SIGTERM, InProcess(), marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, Local(count=2), marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, Local(count=2, kind="threads"), marks=pytest.mark.slow),
    ],
)
def test_a_signal_interrupts_a_run_and_the_handlers_are_put_back(
    number: signal.Signals, engine: Engine, tmp_path: Path, expected: bytes
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    started = threading.Event()

    def send() -> None:
        started.wait()
        time.sleep(0.05)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Terminated if number == signal.SIGTERM else KeyboardInterrupt):
            run(
                Digest(plan=a_plan(3000), act=wobble),
                tmp_path / "long",
                engine=engine,
                listen=[lambda event: started.set()],
            )
    finally:
        started.set()
        sender.join()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert not is_busy(tmp_path / "long")
    assert Store.open(tmp_path / "long").look() == {}
    assert bytes_of(tmp_path / "next", engine) == expected  # nothing is left broken


def test_a_finished_run_is_not_done_again(tmp_path: Path, expected: bytes) -> None:
    bytes_of(tmp_path)
    stamp = (tmp_path / "result.json").stat().st_mtime_ns
    assert bytes_of(tmp_path, act=Interrupting(0)) == expected
    assert (tmp_path / "result.json").stat().st_mtime_ns == stamp


def test_a_run_without_a_directory_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    result = run(Digest(plan=a_plan(2)), engine=InProcess())
    assert result.provenance.used == 2
    assert not list(tmp_path.iterdir())


# Failures


@pytest.mark.parametrize(
    "engine", [InProcess(), Local(count=2), Local(count=2, kind="threads")], ids=repr
)
def test_failed_units_are_noted_counted_and_tried_again(
    engine: Engine, tmp_path: Path, expected: bytes
) -> None:
    broken = frozenset({0, 5, 6})
    events: list[Event] = []
    result = run(
        Digest(plan=a_plan(UNITS), act=Raising(broken)),
        tmp_path,
        engine=engine,
        listen=[events.append],
    )
    assert (result.provenance.used, result.provenance.failed) == (UNITS - 3, 3)
    failures = Store.open(tmp_path).failures()
    assert set(failures) == broken
    assert all(f"Broken: unit {unit}" in failures[unit] for unit in broken)
    assert {e.details["unit"] for e in events if e.name == "failed"} == broken

    fewer = frozenset({5})
    again = run(Digest(plan=a_plan(UNITS), act=Raising(fewer)), tmp_path, engine=engine)
    assert again.provenance.failed == 1
    assert set(Store.open(tmp_path).failures()) == fewer

    assert bytes_of(tmp_path, engine) == expected
    assert not list((tmp_path / "failures").iterdir())


def test_units_that_failed_beyond_the_stop_do_not_count(tmp_path: Path) -> None:
    plan, limit = a_plan(40), 20.0
    expected = in_order(tmp_path / "expected", plan=plan, limit=limit)
    stop = stop_of(plan, limit)
    last_first = [*range(39, stop + 2, -1), *range(stop + 2)]
    job = Digest(plan=plan, limit=limit)
    given_ = [
        Outcome(unit=u, arrays=None if u > stop else job.unit(u), error="x", seconds=0.0)
        for u in last_first
    ]
    run(job, tmp_path / "run", engine=Listed(given=given_, closed=[]))
    assert (tmp_path / "run" / "result.json").read_bytes() == expected
    assert not list((tmp_path / "run" / "failures").iterdir())


def test_the_sum_of_a_run_with_failures_is_that_of_what_they_count_as(tmp_path: Path) -> None:
    broken = frozenset({1, 4})
    result = run(Digest(plan=a_plan(UNITS), act=Raising(broken)), tmp_path, engine=InProcess())
    job = Digest(plan=a_plan(UNITS))
    replaced = [job.missing(u) if u in broken else job.unit(u) for u in range(UNITS)]
    digest = hashlib.sha256()
    for arrays in replaced:
        digest.update(arrays["unit"].tobytes() + arrays["draws"].tobytes())
    assert result.subject == digest.hexdigest()


# Clocks


def backwards() -> Iterator[float]:
    now = 1e9
    while True:
        now -= 3600
        yield now


def jumping() -> Iterator[float]:
    while True:
        yield from (1e9, 0.0, -1e9, 4e9)


@pytest.mark.parametrize("clock", [backwards, jumping])
def test_a_clock_that_runs_backwards_changes_nothing(
    clock: Any, tmp_path: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = clock()
    monkeypatch.setattr(time, "time", lambda: next(ticks))
    events: list[Event] = []
    job = Digest(plan=a_plan(UNITS))
    run(job, tmp_path, engine=Local(count=2, kind="threads"), listen=[events.append])
    assert (tmp_path / "result.json").read_bytes() == expected
    assert all(isinstance(event.time, float) for event in events)


# What is told


def test_every_event_is_one_line_of_json_with_a_known_name(tmp_path: Path) -> None:
    events: list[Event] = []
    job = Digest(plan=a_plan(UNITS), act=Raising(frozenset({2})), limit=20.0)
    run(job, tmp_path, engine=InProcess(), listen=[events.append])
    lines = (tmp_path / "log.jsonl").read_text("utf-8").splitlines()
    assert lines == [event.to_json() for event in events]
    for line, event in zip(lines, events, strict=True):
        plain = json.loads(line)
        assert plain.pop("event") == event.name
        assert event.name in EVENTS
        assert plain.pop("time") == round(event.time, 3)
        assert plain == event.details
    told = list(names(events))
    assert (told[0], told[-2:]) == ("started", ["stopped", "finished"])
    assert "failed" in told


def test_progress_counts_units_and_its_last_word_is_the_whole(tmp_path: Path) -> None:
    events: list[Event] = []
    job = Digest(plan=a_plan(UNITS), act=Raising(frozenset({2})))
    run(job, tmp_path, engine=InProcess(), listen=[events.append])
    last = [event for event in events if event.name == "progress"][-1].details
    assert (last["finished"], last["failed"], last["units"]) == (UNITS - 1, 1, UNITS)
    assert last["used"] == UNITS


def test_a_torn_log_is_harmless_and_stays_readable(tmp_path: Path, expected: bytes) -> None:
    with pytest.raises(KeyboardInterrupt):
        bytes_of(tmp_path, act=Interrupting(3))
    log = tmp_path / "log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-20] + b"\xff\xce")  # half a letter
    assert bytes_of(tmp_path) == expected
    started, torn, *others = log.read_bytes().splitlines()
    assert torn.endswith(b"\xce")
    told = [json.loads(line)["event"] for line in (started, *others)]
    assert told == ["started", "started", "progress", "finished"]


@pytest.mark.parametrize("kind", ["directory", "full"])
def test_a_log_that_cannot_be_written_stops_nothing(
    kind: str, tmp_path: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "directory":
        (tmp_path / "log.jsonl").mkdir()
    else:
        (tmp_path / "log.jsonl").symlink_to("/dev/full")
    assert bytes_of(tmp_path) == expected


def test_a_log_takes_any_text(tmp_path: Path) -> None:
    tell = log_to(tmp_path / "log.jsonl")
    tell(Event("failed", {"unit": 1, "error": "\udc80 ε \n\0"}))
    (line,) = (tmp_path / "log.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["error"] == "\udc80 ε \n\0"


def test_the_log_of_a_run_that_lasts_a_day_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, log = 0, tmp_path / "log.jsonl"
    clock = SimpleNamespace(monotonic=lambda: seconds, time=time.time)
    monkeypatch.setattr(reporting, "time", clock)
    tell = log_to(log)
    tell(Event("started", {}))
    for seconds in range(0, 86_400, 10):
        tell(Event("progress", {"finished": seconds}))
    tell(Event("finished", {}))
    logged = list(read_events(log))
    assert 1_440 < len(logged) < 1_800
    reported = [event["finished"] for event in logged if event["event"] == "progress"]
    assert reported == sorted(set(reported))
    assert [event["event"] for event in logged[-2:]] == ["progress", "finished"]
    assert reported[-1] == 86_390  # the last report is never left out


@pytest.mark.parametrize("other", ["pipe", "link", "folder"])
def test_a_log_that_is_no_plain_file_is_not_read(other: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    if other == "pipe":
        os.mkfifo(log)  # opened plainly, it is waited for
    elif other == "link":
        (tmp_path / "there").write_text(Event("started", {}).to_json())
        log.symlink_to(tmp_path / "there")
    else:
        log.mkdir()
    assert list(read_events(log)) == []


def test_a_listener_that_raises_loses_nothing(tmp_path: Path, expected: bytes) -> None:
    def listen(event: Event) -> None:
        if event.name == "progress":
            raise Broken

    with pytest.raises(Broken):
        run(Digest(plan=a_plan(UNITS)), tmp_path, engine=InProcess(), listen=[listen])
    store = Store.open(tmp_path)
    assert store.look() == {}
    assert store.finished == set(range(UNITS))
    assert not is_busy(tmp_path)
    assert bytes_of(tmp_path, act=Interrupting(0)) == expected


def test_what_waits_on_the_disk_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: bytes
) -> None:
    """Unit 0 is missing: the others are read when their turn comes, not before."""
    bytes_of(tmp_path)
    (tmp_path / "result.json").unlink()
    store = Store.open(tmp_path)
    store.look()
    arrays = {unit: store.read(unit) for unit in range(1, UNITS)}
    for path in (tmp_path / "shards").iterdir():
        path.unlink()
    for unit, found in arrays.items():
        store.write_shard({unit: found})
    read: list[int] = []
    plain = Store.read
    monkeypatch.setattr(Store, "read", lambda self, unit: read.append(unit) or plain(self, unit))
    assert bytes_of(tmp_path, act=lambda unit: read.append(-1)) == expected
    assert read[0] == -1
