"""Ctrl-C and SIGTERM: what is finished is safe, the way on is said, nobody is left behind."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from epsilometer.engine.engines import InProcess
from epsilometer.engine.events import EVENTS
from epsilometer.engine.run import run
from epsilometer.engine.store import Store, is_busy
from tests.engine.jobs import in_order
from tests.faults.processes import Family, Keeper, started, until, works
from tests.faults.program import job

COMMAND = ("-m", "tests.faults.command")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return in_order(tmp_path_factory.mktemp("expected"), plan=job().plan)


def ended(family: Family, directory: Path) -> tuple[int, str, str]:
    """Exit code, standard output and error of a program that was sent a signal."""
    out, err = family.process.communicate()
    until(lambda: not family.alive(), "its workers were gone")
    assert not is_busy(directory)
    Keeper(directory).look()
    return family.process.returncode, out, err


def interrupted(directory: Path, engine: str, number: int, delay: float, *, group: bool) -> int:
    """Sends a signal while the program works; returns its exit code, 0 if the work was done."""
    with started(*COMMAND, directory, "--engine", engine, "--workers", 2) as family:
        process = family.process
        until(lambda: works(directory, process), "the run began")
        try:
            process.wait(delay)
        except Exception:
            (os.killpg if group else os.kill)(process.pid, number)
        code, _, err = ended(family, directory)
        if (directory / "result.json").exists():
            return 0
        said = f"Finished units are kept. Resume with: epsilometer runs resume {directory}"
        assert err.strip().splitlines()[-1] == f"Interrupted. {said}"
        assert "Traceback" not in err
        return code


@pytest.mark.parametrize(
    ("engine", "number", "group", "times"),
    [
        ("local", signal.SIGINT, True, 1),  # as a terminal sends it: to the workers too
        ("local", signal.SIGTERM, False, 1),
        pytest.param("local", signal.SIGINT, True, 15, marks=pytest.mark.slow),
        pytest.param("local", signal.SIGTERM, True, 10, marks=pytest.mark.slow),
        pytest.param("threads", signal.SIGINT, True, 5, marks=pytest.mark.slow),
        pytest.param("in-process", signal.SIGINT, True, 5, marks=pytest.mark.slow),
        pytest.param("in-process", signal.SIGTERM, False, 5, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_run_cleanly_and_it_goes_on_to_the_same_bytes(
    engine: str,
    number: signal.Signals,
    group: bool,
    times: int,
    tmp_path: Path,
    expected: bytes,
    rng: np.random.Generator,
) -> None:
    for i in range(times):
        directory = tmp_path / str(i)
        delay = rng.uniform(0, 0.8 if engine == "local" else 0.25)
        code = interrupted(directory, engine, number, delay, group=group)
        assert code in (0, CODES[number])  # 0: it was faster than the signal
        run(job(), directory, engine=InProcess())
        assert (directory / "result.json").read_bytes() == expected


@pytest.mark.slow
def test_an_impatient_user_loses_nothing_either(
    tmp_path: Path, expected: bytes, rng: np.random.Generator
) -> None:
    """Ctrl-C again and again: the exit may be rough, the directory may not."""
    for i in range(8):
        directory = tmp_path / str(i)
        with started(*COMMAND, directory, "--workers", 2) as family:
            until(lambda d=directory, f=family: works(d, f.process), "the run began")  # type: ignore[misc]
            for _ in range(4):
                try:
                    family.process.wait(rng.uniform(0, 0.05))
                except Exception:
                    os.killpg(family.process.pid, signal.SIGINT)
            ended(family, directory)
        with started(*COMMAND, directory, "--quiet") as family:
            assert ended(family, directory)[0] == 0
        assert (directory / "result.json").read_bytes() == expected


def test_a_second_process_on_the_same_run_is_told_who_works(tmp_path: Path) -> None:
    with started(*COMMAND, tmp_path, "--engine", "in-process") as first:
        until(lambda: works(tmp_path, first.process), "the run began")
        os.kill(first.process.pid, signal.SIGSTOP)
        with started("-m", "tests.faults.program", tmp_path, "in-process", 1) as second:
            _, err = second.process.communicate()
            assert second.process.returncode != 0
            assert "RunBusy" in err
            assert f"process {first.process.pid} on " in err
        os.kill(first.process.pid, signal.SIGCONT)
        assert first.process.wait() == 0


def test_progress_is_json_lines_where_asked(tmp_path: Path) -> None:
    with started(*COMMAND, tmp_path, "--engine", "in-process", "--log-json") as family:
        code, _, err = ended(family, tmp_path)
    assert code == 0
    events = [json.loads(line) for line in err.splitlines()]
    assert {event["event"] for event in events} <= set(EVENTS)
    assert (events[0]["event"], events[-1]["event"]) == ("started", "finished")
    assert err == (tmp_path / "log.jsonl").read_text("utf-8")


def test_quiet_is_quiet_and_plain_lines_are_plain(tmp_path: Path) -> None:
    with started(*COMMAND, tmp_path / "quiet", "--engine", "threads", "--quiet") as family:
        assert ended(family, tmp_path / "quiet")[2] == ""
    with started(*COMMAND, tmp_path / "plain", "--engine", "threads", "--workers", 3) as family:
        _, out, err = ended(family, tmp_path / "plain")
    first, *_, last = err.splitlines()
    assert first == "60 units, 3 at a time."
    assert last.startswith("60/60 units, ")
    assert "\x1b" not in err
    assert f"Report: {tmp_path / 'plain' / 'report.html'}" in out


@pytest.mark.slow
def test_the_demonstration_resumes_to_the_same_bytes_on_another_engine(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    script = "from epsilometer.cli.main import main; main()"
    arguments = ("demo", "--runs", 1500, "--quiet", "--out")
    with started("-c", script, *arguments, tmp_path / "whole", "--engine", "threads") as family:
        assert family.process.wait() == 0
    with started("-c", script, *arguments, tmp_path / "cut", "--workers", 2) as family:
        until(lambda: list((tmp_path / "cut" / "shards").glob("*.shard")), "it worked")
        os.killpg(family.process.pid, signal.SIGINT)
        code, _, err = ended(family, tmp_path / "cut")
    assert code == 130
    assert "Traceback" not in err
    store = Store.open(tmp_path / "cut")
    store.look()
    assert 0 < len(store.finished) < store.plan.units
    resume = ("runs", "resume", tmp_path / "cut", "--quiet", "--engine", "in-process")
    with started("-c", script, *resume) as family:
        assert ended(family, tmp_path / "cut")[0] == 1  # one claim is refuted
    for name in ("result.json", "report.html"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
