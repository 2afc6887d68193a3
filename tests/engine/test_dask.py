"""A real Dask cluster: a scheduler and workers, each a process, some of which die."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer.engine.engines import Dask, InProcess
from epsilometer.engine.leases import EngineLost
from epsilometer.engine.run import run
from epsilometer.engine.shards import Arrays
from epsilometer.engine.store import Store, is_busy
from epsilometer.errors import InvalidArgument
from tests.engine.jobs import ROOT, Digest, a_plan, in_order, wobble
from tests.engine.test_engines import Holding, pools, touchy
from tests.faults.counting import count
from tests.faults.processes import MARK, kill_marked, until

pytest.importorskip("distributed")

ENVIRONMENT = {
    **os.environ,
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    # Workers need the code of the units.
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    "SPT_NOENV": "1",  # Dask writes its title over the environment, by which they are found
}


@dataclass
class Cluster:
    """Processes on this machine; ``address`` is the scheduler's."""

    folder: Path
    nanny: bool
    protocol: str = "tcp"
    address: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        file = self.folder / "scheduler.json"
        self.scheduler = self._dask(
            *("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)),
            *("--protocol", self.protocol),
        )
        until(lambda: file.exists() and '"address"' in file.read_text(), "a scheduler was there")
        (self.address,) = (
            part
            for part in file.read_text().split('"')
            if part.startswith(f"{self.protocol}://127")
        )

    def join(self) -> subprocess.Popen[bytes]:
        """Starts one more worker, of one thread."""
        nanny = "--nanny" if self.nanny else "--no-nanny"
        worker = self._dask("worker", self.address, "--nthreads", "1", nanny)
        self.workers.append(worker)
        return worker

    def _dask(self, *arguments: str) -> subprocess.Popen[bytes]:
        call = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        quiet = (self.folder / "log").open("ab")
        with quiet:
            environment = {**ENVIRONMENT, MARK: self.mark}
            return subprocess.Popen(
                call, cwd=self.folder, env=environment, stdout=quiet, stderr=quiet
            )

    def close(self) -> None:
        killer = threading.Thread(target=kill_marked, args=(self.mark,))
        killer.start()
        for process in (*self.workers, self.scheduler):
            process.wait()
        killer.join()


@contextmanager
def cluster(
    folder: Path, *, workers: int = 2, nanny: bool = False, protocol: str = "tcp"
) -> Iterator[Cluster]:
    found = Cluster(folder, nanny, protocol)
    try:
        for _ in range(workers):
            found.join()
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return in_order(tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for the cases that leave it as it was."""
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def result_of(directory: Path, address: str, **changed: Any) -> bytes:
    job = Digest(**{"plan": a_plan(), **changed})
    run(job, directory, engine=Dask(address=address, retries=1))
    return (directory / "result.json").read_bytes()


def test_a_cluster_gives_the_same_bytes(lasting: Cluster, tmp_path: Path, expected: bytes) -> None:
    before = threading.active_count()
    assert result_of(tmp_path / "run", lasting.address, act=wobble) == expected
    until(lambda: threading.active_count() <= before + 2, "the client was closed")
    stopped = in_order(tmp_path / "here", plan=a_plan(60), limit=40.0)
    found = result_of(tmp_path / "there", lasting.address, plan=a_plan(60), limit=40.0, act=wobble)
    assert found == stopped


def test_a_unit_that_raises_on_a_cluster_is_an_outcome(lasting: Cluster) -> None:
    engine = Dask(address=lasting.address)
    found = {outcome.unit: outcome for outcome in engine.outcomes(touchy, range(12))}
    assert sorted(found) == list(range(12))
    failed = {unit: outcome.error for unit, outcome in found.items() if outcome.arrays is None}
    assert sorted(failed) == [3, 4, 5, 6, 7, 8, 9]
    assert "in touchy" in failed[3]
    assert "SystemExit" in failed[4]
    assert engine.workers >= 1


def test_units_on_a_cluster_sum_with_one_thread(lasting: Cluster) -> None:
    for outcome in Dask(address=lasting.address).outcomes(pools, range(4)):
        assert outcome.arrays is not None
        assert set(outcome.arrays["threads"].tolist()) == {1}


def test_work_that_cannot_be_sent_to_a_cluster_is_told(lasting: Cluster, tmp_path: Path) -> None:
    job = Digest(plan=a_plan(4), act=Holding(threading.Lock()))
    with pytest.raises(InvalidArgument, match=r"can be sent to another process .*lock"):
        run(job, tmp_path, engine=Dask(address=lasting.address))
    assert not is_busy(tmp_path)


def test_more_units_than_are_sent_ahead_all_come_back(lasting: Cluster) -> None:
    found = [o.unit for o in Dask(address=lasting.address).outcomes(tiny, range(350))]
    assert sorted(found) == list(range(350))


def tiny(unit: int) -> Arrays:
    return {"unit": np.array(unit)}


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense://x", "tcp://"])
def test_a_wrong_address_is_told(address: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"Expected a Dask scheduler at '{address}'"):
        run(Digest(plan=a_plan(2)), tmp_path, engine=Dask(address=address, patience=0.5))
    assert not is_busy(tmp_path)


@pytest.mark.parametrize("wrong", [{"patience": 0.0}, {"retries": -1}, {"patience": float("nan")}])
def test_bad_settings_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Dask(address="tcp://x:1", **wrong)


@pytest.mark.slow
def test_a_cluster_without_workers_is_told(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=0) as found:
        engine = Dask(address=found.address, patience=1.0)
        with pytest.raises(InvalidArgument, match=r"none came in 1 s. Start one with: dask worker"):
            run(Digest(plan=a_plan(2)), tmp_path / "run", engine=engine)


@dataclass(frozen=True)
class Deadly:
    """Kills its worker in some units, ``deaths`` times each; the others take a moment."""

    folder: Path
    units: tuple[int, ...]
    deaths: int = 10**9

    def __call__(self, unit: int) -> None:
        marks = len(list(self.folder.glob(f"{unit}-*")))
        if unit in self.units and marks < self.deaths:
            (self.folder / f"{unit}-{marks}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("nanny", [False, True])
def test_a_worker_killed_amid_a_unit_changes_nothing(
    nanny: bool, tmp_path: Path, expected: bytes
) -> None:
    with cluster(tmp_path, workers=3, nanny=nanny) as found:
        act = Deadly(tmp_path, (0, 5), deaths=1)
        assert result_of(tmp_path / "run", found.address, act=act) == expected
    assert len(list(tmp_path.glob("[05]-0"))) == 2
    assert not Store.open(tmp_path / "run").failures()
    count("Dask worker killed (SIGKILL)", 2)


@pytest.mark.slow
def test_a_unit_that_always_kills_its_worker_fails_and_the_others_finish(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=2, nanny=True) as found:
        result_of(tmp_path / "run", found.address, act=Deadly(tmp_path, (4,)))
    failures = Store.open(tmp_path / "run").failures()
    assert list(failures) == [4]
    assert "tried 1 times with nothing else under way" in failures[4]
    # Twice under Dask's own rule (ALLOWED_FAILURES), then as often alone, once.
    assert len(list(tmp_path.glob("4-*"))) == 4


def background(
    directory: Path, address: str, job: Digest, patience: float = 15.0
) -> tuple[threading.Thread, list[Any]]:
    """The run in a thread, and what it raised."""
    raised: list[Any] = []

    def work() -> None:
        try:
            run(job, directory, engine=Dask(address=address, patience=patience))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: list((directory / "shards").glob("*.shard")), "units were finished")
    return thread, raised


def slowly(unit: int) -> None:
    time.sleep(0.05)


LONG = a_plan(120)


@pytest.mark.slow
def test_all_workers_killed_and_a_new_one_finish_the_run(tmp_path: Path) -> None:
    expected = in_order(tmp_path / "here", plan=LONG)
    with cluster(tmp_path) as found:
        job = Digest(plan=LONG, act=slowly)
        thread, raised = background(tmp_path / "run", found.address, job, patience=60.0)
        for worker in found.workers:
            worker.kill()
        found.join()
        thread.join()
    assert raised == []
    assert (tmp_path / "run" / "result.json").read_bytes() == expected
    count("Dask worker killed (SIGKILL)", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whom", "number", "said"),
    [
        ("scheduler", signal.SIGKILL, "went away"),
        ("scheduler", signal.SIGSTOP, "gave no answer for 15 s"),
        ("workers", signal.SIGKILL, "there was none for 15 s"),
    ],
)
def test_a_cluster_that_goes_away_is_told_and_the_run_goes_on_here(
    whom: str, number: signal.Signals, said: str, tmp_path: Path
) -> None:
    expected = in_order(tmp_path / "here", plan=LONG)
    with cluster(tmp_path) as found:
        job = Digest(plan=LONG, act=slowly)
        thread, raised = background(tmp_path / "run", found.address, job)
        for process in [found.scheduler] if whom == "scheduler" else found.workers:
            process.send_signal(number)
        thread.join()
    (error,) = raised
    assert isinstance(error, EngineLost)
    assert "Finished units are kept" in str(error)
    assert said in str(error)
    assert not is_busy(tmp_path / "run")
    store = Store.open(tmp_path / "run")
    assert store.look() == {}
    assert store.finished
    run(Digest(plan=LONG), tmp_path / "run", engine=InProcess())
    assert (tmp_path / "run" / "result.json").read_bytes() == expected
    count(f"Dask {whom} lost for good, finished here")


@pytest.mark.slow
def test_workers_that_do_not_have_the_code_are_told(tmp_path: Path) -> None:
    ENVIRONMENT["PYTHONPATH"] = ""
    try:
        with (
            cluster(tmp_path, workers=1) as found,
            pytest.raises(EngineLost, match=r"could not take the work .*(tests|environments)"),
        ):
            result_of(tmp_path / "run", found.address)
    finally:
        ENVIRONMENT["PYTHONPATH"] = str(ROOT)
