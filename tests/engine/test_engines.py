"""Whatever executes the units, and however it fails, every unit has exactly one outcome."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_info

from epsilometer.engine import pool
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.leases import EngineLost, Outcome
from epsilometer.engine.run import recompute, run
from epsilometer.engine.shards import Arrays
from epsilometer.engine.store import Store, group_causes
from epsilometer.errors import InvalidArgument
from tests.engine.jobs import Digest, Listed, a_plan, in_order, nothing, wobble

ENGINES = [
    InProcess(),
    Local(count=1),
    Local(count=3),
    Local(count=1, kind="threads"),
    Local(count=3, kind="threads"),
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return in_order(tmp_path_factory.mktemp("expected"))


def result_of(directory: Path, engine: Engine, **changed: Any) -> bytes:
    run(Digest(**{"plan": a_plan(), **changed}), directory, engine=engine)
    return (directory / "result.json").read_bytes()


def collected(engine: Engine, call: Any, units: Iterable[int]) -> dict[int, Outcome]:
    """Outcomes by unit; none comes twice."""
    every = list(engine.outcomes(call, units))
    found = {outcome.unit: outcome for outcome in every}
    assert len(found) == len(every)
    return found


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_every_engine_gives_the_same_bytes(engine: Engine, tmp_path: Path, expected: bytes) -> None:
    assert result_of(tmp_path, engine, act=wobble) == expected


def where(unit: int) -> Arrays:
    return {"process": np.array(os.getpid()), "thread": np.array(threading.get_ident())}


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_units_are_executed_where_the_engine_says(engine: Engine) -> None:
    """One worker too: a unit that kills its process must not kill this one."""
    found = collected(engine, where, range(10))
    assert all(outcome.arrays is not None for outcome in found.values())
    processes = {int(o.arrays["process"]) for o in found.values()}  # type: ignore[index]
    if isinstance(engine, Local) and engine.kind == "processes":
        assert os.getpid() not in processes
        assert len(processes) <= max(2, engine.workers)
    else:
        assert processes == {os.getpid()}


def test_one_worker_executes_one_unit_at_a_time() -> None:
    found = collected(Local(count=1), _clocked, range(6))
    spans = sorted(tuple(o.arrays["span"]) for o in found.values())  # type: ignore[index]
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def _clocked(unit: int) -> Arrays:
    start = time.monotonic()
    time.sleep(0.02)
    return {"span": np.array([start, time.monotonic()])}


def test_workers_are_counted() -> None:
    assert InProcess().workers == 1
    assert Local(count=5).workers == 5
    assert Local().workers >= 1
    for wrong in ({"count": -1}, {"retries": -1}, {"count": 1.5}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            Local(**wrong)  # type: ignore[arg-type]


# Units that fail


def touchy(unit: int) -> Arrays:
    if unit == 3:
        raise ValueError("three, \udc80 and ε")
    if unit == 4:
        sys.exit(0)
    if unit == 5:
        return [unit]  # type: ignore[return-value]
    if unit == 6:
        return {"x": object()}  # type: ignore[dict-item]
    if unit == 7:
        raise Unprintable
    if unit == 8:
        raise GeneratorExit
    if unit == 9:
        recurse()
    return {"unit": np.array(unit)}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def recurse() -> None:
    recurse()


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_a_unit_that_raises_is_an_outcome_with_its_traceback(engine: Engine) -> None:
    found = collected(engine, touchy, range(12))
    assert sorted(found) == list(range(12))
    failed = {unit: outcome.error for unit, outcome in found.items() if outcome.arrays is None}
    assert sorted(failed) == [3, 4, 5, 6, 7, 8, 9]
    assert "in touchy" in failed[3]
    assert failed[3].strip().endswith("ValueError: three, \udc80 and ε")
    assert "SystemExit" in failed[4]  # sys.exit(0) neither ends nor passes for success
    assert "Expected a unit to return named arrays as a dict, got list" in failed[5]
    assert "Nothing that would have to be unpickled is kept" in failed[6]
    assert all(outcome.error == "" for outcome in found.values() if outcome.arrays is not None)


def raise_much(unit: int) -> None:
    if unit == 0:
        raise ValueError("x" * 20_000_000)
    if unit == 1:
        raise ValueError("\n".join(["first", *["secret"] * 1_000_000]))
    if unit == 2:
        one_another(True)


def one_another(more: bool) -> None:
    if more:
        return one_another(not more)
    return one_another(not more)


def test_what_a_unit_raises_is_kept_however_long_it_is(tmp_path: Path) -> None:
    """A note of more than 8 MB was never read again: the unit was neither finished nor failed."""
    job = Digest(plan=a_plan(4), act=raise_much)
    run(job, tmp_path, engine=InProcess())
    failures = Store.open(tmp_path).failures()
    assert list(failures) == [0, 1, 2]
    assert all(len(error) < 10**6 for error in failures.values())
    assert group_causes(failures) == {"ValueError": [0, 1], "RecursionError": [2]}
    assert recompute(job, tmp_path).provenance.failed == 3


def hang_at_two(unit: int) -> Arrays:
    if unit == 2:
        time.sleep(600)
    return {"unit": np.array(unit)}


def test_processes_work_and_are_ended_where_there_are_no_signals_of_unix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Windows the tracker of shared memory cannot start, and it was started for every run."""

    def refuse() -> None:
        raise ModuleNotFoundError("No module named '_posixsubprocess'")

    collected(Local(count=1), nothing_but, range(1))  # what this very system needs
    monkeypatch.setattr(pool, "signal", SimpleNamespace())
    monkeypatch.setattr(pool, "resource_tracker", SimpleNamespace(ensure_running=refuse))
    found = collected(Local(count=2, retries=0, timeout=2.0), hang_at_two, range(4))
    assert [unit for unit, outcome in found.items() if outcome.arrays is None] == [2]


# Workers that die


@dataclass(frozen=True)
class Forking:
    """Kills its worker once, which leaves a process that has all its files."""

    mark: Path

    def __call__(self, unit: int) -> None:
        if unit == 5 and not self.mark.exists():
            child = os.fork()
            if not child:
                time.sleep(600)
                os._exit(0)
            self.mark.write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_is_noticed_though_a_fork_of_the_worker_lives(
    tmp_path: Path, expected: bytes
) -> None:
    mark = tmp_path / "child"
    try:
        assert result_of(tmp_path / "run", Local(count=2), act=Forking(mark)) == expected
    finally:
        os.kill(int(mark.read_text()), signal.SIGKILL)  # raises where it is gone


@dataclass(frozen=True)
class Fatal:
    """Kills its worker, at each call or only as long as the marks in ``folder`` are few."""

    folder: Path
    units: tuple[int, ...]
    deaths: int = 10**9

    def __call__(self, unit: int) -> None:
        if unit in self.units:
            marks = len(list(self.folder.glob(f"{unit}-*")))
            if marks < self.deaths:
                (self.folder / f"{unit}-{marks}").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def died(self, unit: int) -> int:
        return len(list(self.folder.glob(f"{unit}-*")))


def test_a_worker_that_dies_once_changes_nothing(tmp_path: Path, expected: bytes) -> None:
    fatal = Fatal(tmp_path, (0, 5), deaths=1)
    assert result_of(tmp_path / "run", Local(count=2), act=fatal) == expected
    assert (fatal.died(0), fatal.died(5)) == (1, 1)
    assert not list((tmp_path / "run" / "failures").iterdir())


@pytest.mark.parametrize("retries", [1, 2])
def test_a_unit_that_always_kills_is_tried_as_often_as_stated(retries: int, tmp_path: Path) -> None:
    fatal = Fatal(tmp_path, (4,))
    run(Digest(plan=a_plan(), act=fatal), tmp_path / "run", engine=Local(count=2, retries=retries))
    failures = Store.open(tmp_path / "run").failures()
    assert list(failures) == [4]  # and those beside it are not blamed
    assert "The worker died (exit code -9)" in failures[4]
    assert f"tried {retries} times with nothing else under way" in failures[4]
    assert fatal.died(4) == 1 + retries


def test_no_retries_blame_whoever_was_there(tmp_path: Path) -> None:
    fatal = Fatal(tmp_path, (0,))
    found = collected(Local(count=2, retries=0), Digest(plan=a_plan(), act=fatal).unit, range(12))
    assert sorted(found) == list(range(12))
    assert found[0].arrays is None
    assert fatal.died(0) == 1


def nothing_but(unit: int) -> Arrays:
    return {"unit": np.array(unit)}


# Engines that do not keep their word


class Hanging:
    """Work that is never loaded, as from a module that waits for a network."""

    def __reduce__(self) -> Any:
        return time.sleep, (600,)

    def __call__(self, unit: int) -> Arrays:
        return {}


def test_workers_that_never_become_ready_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_START", 1.0)
    with pytest.raises(EngineLost, match="importing what the units need seems to hang"):
        collected(Local(count=2), Hanging(), range(4))


def test_an_engine_that_forgets_a_unit_is_told(tmp_path: Path) -> None:
    job = Digest(plan=a_plan(3))
    given = [Outcome(unit=i, arrays=job.unit(i), error="", seconds=0.0) for i in (0, 2)]
    with pytest.raises(EngineLost, match="none for unit 1"):
        run(job, tmp_path, engine=Listed(given=given, closed=[]))
    assert not (tmp_path / "result.json").exists()
    run(job, tmp_path, engine=InProcess())
    assert Store.open(tmp_path).look() == {}


# What cannot be sent


@dataclass(frozen=True)
class Holding:
    """Work that holds a lock, which no other process can."""

    held: Any

    def __call__(self, unit: int) -> None:
        with self.held:
            pass


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_work_that_cannot_be_sent_is_told(kind: Any, tmp_path: Path) -> None:
    held = threading.Lock()
    job = Digest(plan=a_plan(4), act=Holding(held))
    if kind == "threads":
        run(job, tmp_path, engine=Local(count=2, kind=kind))
        return
    with pytest.raises(InvalidArgument, match=r"can be sent to another process .*lock"):
        run(job, tmp_path, engine=Local(count=2, kind=kind))
    run(Digest(plan=a_plan(4)), tmp_path, engine=Local(count=2))  # nothing is left broken


def test_a_lambda_can_be_sent(tmp_path: Path, expected: bytes) -> None:
    shift = 0
    job = Digest(plan=a_plan(), act=lambda unit: nothing(unit + shift))
    run(job, tmp_path, engine=Local(count=2))
    assert (tmp_path / "result.json").read_bytes() == expected


# Threads of linear algebra


def pools(unit: int) -> Arrays:
    np.ones((2, 2)) @ np.ones((2, 2))
    threads = [pool["num_threads"] for pool in threadpool_info()]
    return {"threads": np.array(threads)}


def here() -> list[int]:
    return [int(n) for n in pools(0)["threads"]]


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_units_sum_with_one_thread_and_this_process_is_left_as_it_was(engine: Engine) -> None:
    before = here()
    for outcome in engine.outcomes(pools, range(6)):
        assert outcome.arrays is not None
        assert set(outcome.arrays["threads"].tolist()) <= {1}
        assert outcome.arrays["threads"].size or not before
    assert here() == before


def test_threads_are_given_back_when_a_run_is_left_early() -> None:
    before = here()
    for engine in (InProcess(), Local(count=2, kind="threads")):
        outcomes = engine.outcomes(pools, range(50))
        next(outcomes)
        outcomes.close()
        assert here() == before


# Where it is called from


def test_a_run_in_another_thread_gives_the_same_bytes(tmp_path: Path, expected: bytes) -> None:
    """Signals can only be set in the main thread; a run elsewhere does without."""
    found: list[bytes] = []
    for engine in (Local(count=2), Local(count=2, kind="threads")):
        directory = tmp_path / engine.kind
        thread = threading.Thread(
            target=lambda d=directory, e=engine: found.append(result_of(d, e))  # type: ignore[misc]
        )
        thread.start()
        thread.join()
    assert found == [expected, expected]


def test_a_run_inside_a_worker_gives_the_same_bytes(tmp_path: Path, expected: bytes) -> None:
    with parallel_config(backend="loky"):
        found = Parallel(n_jobs=2)(
            delayed(result_of)(tmp_path / str(i), Local(count=2)) for i in range(2)
        )
    assert found == [expected, expected]


def test_closing_stops_what_is_under_way(tmp_path: Path) -> None:
    for engine in (Local(count=2), Local(count=2, kind="threads"), InProcess()):
        outcomes = engine.outcomes(nothing_but, range(10**6))
        next(outcomes)
        outcomes.close()
        with pytest.raises(StopIteration):
            next(outcomes)
