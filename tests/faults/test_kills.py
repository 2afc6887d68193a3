"""Killed at any moment and begun again: the same bytes, nothing lost, nothing twice."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from epsilometer.engine.store import Store, is_busy
from tests.engine.jobs import a_plan, in_order
from tests.faults.counting import count
from tests.faults.processes import Keeper, started, until, works
from tests.faults.program import UNITS, job

PROGRAM = ("-m", "tests.faults.program")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return in_order(tmp_path_factory.mktemp("expected"), plan=job().plan)


def kills_until_finished(
    directory: Path, engine: str, workers: int, longest: float, rng: np.random.Generator
) -> int:
    """Kills a run at random moments of its work until it finishes; returns how often."""
    keeper, kills = Keeper(directory), 0
    while not (directory / "result.json").exists():
        with started(*PROGRAM, directory, engine, workers) as family:
            process = family.process
            until(
                lambda p=process: works(directory, p) or p.poll() is not None,  # type: ignore[misc]
                "the run began",
            )
            try:
                process.wait(rng.uniform(0, longest))
                assert process.returncode == 0, process.stderr and process.stderr.read()
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                kills += process.returncode == -signal.SIGKILL
                longest *= 1.2  # or a busy machine would never get to the end of a unit
                keeper.look()  # at once, while workers may still be dying
                until(lambda f=family: not f.alive(), "the workers followed")  # type: ignore[misc]
    keeper.look()
    assert keeper.finished == frozenset(range(UNITS))
    return kills


@pytest.mark.parametrize(
    ("engine", "workers", "longest", "wanted"),
    [
        pytest.param("in-process", 1, 0.3, 3, marks=pytest.mark.slow),
        pytest.param("threads", 3, 0.15, 3, marks=pytest.mark.slow),
        ("processes", 2, 0.8, 1),
        pytest.param("in-process", 1, 0.3, 35, marks=pytest.mark.slow),
        pytest.param("threads", 3, 0.15, 35, marks=pytest.mark.slow),
        pytest.param("processes", 2, 0.8, 40, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(
    engine: str,
    workers: int,
    longest: float,
    wanted: int,
    tmp_path: Path,
    expected: bytes,
    rng: np.random.Generator,
) -> None:
    kills = runs = 0
    while kills < wanted:
        directory = tmp_path / str(runs)
        kills += kills_until_finished(directory, engine, workers, longest, rng)
        assert (directory / "result.json").read_bytes() == expected
        assert not is_busy(directory)
        runs += 1
    assert kills >= wanted
    count("run killed (SIGKILL) and called again", kills)


def test_a_worker_killed_from_outside_changes_nothing(tmp_path: Path, expected: bytes) -> None:
    with started(*PROGRAM, tmp_path, "processes", 2) as family:
        until((tmp_path / "shards").exists, "the run began")
        until(lambda: list((tmp_path / "shards").glob("*.shard")), "units were finished")
        for pid in workers_of(family.alive()):
            with suppress(ProcessLookupError):  # where one dies, loky ends the others
                os.kill(pid, signal.SIGKILL)
        assert family.process.wait() == 0, family.process.stderr and family.process.stderr.read()
    assert (tmp_path / "result.json").read_bytes() == expected
    assert not Store.open(tmp_path).failures()


@pytest.mark.parametrize(
    ("kills", "shortest", "longest", "units", "seconds"),
    [(6, 0.3, 0.6, 40, 0.1), pytest.param(12, 0.5, 1.2, 60, 0.4, marks=pytest.mark.slow)],
)
def test_workers_killed_one_after_the_other_blame_nobody(
    kills: int,
    shortest: float,
    longest: float,
    units: int,
    seconds: float,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    """Twelve kills 0.5 to 1.2 s apart once blamed three innocent units."""
    expected = in_order(tmp_path / "expected", plan=a_plan(units))
    directory, killed = tmp_path / "run", 0
    with started(*PROGRAM, directory, "processes", 2, units, seconds) as family:
        until(lambda: list((directory / "shards").glob("*.shard")), "units were finished")
        while killed < kills and family.process.poll() is None:
            time.sleep(rng.uniform(shortest, longest))
            if there := workers_of(family.alive()):
                with suppress(ProcessLookupError):
                    os.kill(int(rng.choice(there)), signal.SIGKILL)
                    killed += 1
        assert family.process.wait() == 0, family.process.stderr and family.process.stderr.read()
    assert killed >= kills / 2  # or the run was over before
    assert (directory / "result.json").read_bytes() == expected
    assert not Store.open(directory).failures()
    count("worker process killed (SIGKILL)", killed)


def workers_of(pids: list[int]) -> list[int]:
    """Those that execute units: neither the master nor loky's trackers."""
    found = []
    for pid in pids:
        with suppress(OSError):  # gone meanwhile
            if b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
