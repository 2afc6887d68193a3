"""``runs status --watch`` follows a run that another process works on, until it ends."""

import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from epsilometer import Claim, InProcess, Runs, Scores, audit
from epsilometer.cli import watching
from epsilometer.engine.run_state import RunState, read_state
from tests.cli.calls import call, told


def draw_slowly(runs: int, rng: np.random.Generator) -> Scores:
    time.sleep(0.02)
    return Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))


def start(directory: Path, *, runs: int = 400) -> Any:
    claim = Claim(9.0, delta=1e-5)
    return audit(Runs(draw_slowly, runs=runs), claim, out=directory, engine=InProcess())


def show(state: RunState) -> str:
    out = io.StringIO()
    Console(file=out, width=100, legacy_windows=False).print(watching.show_state(state))
    return out.getvalue()


def test_it_follows_a_run_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "run"
    seen: list[str] = []
    worker = threading.Thread(target=start, args=(directory,))
    worker.start()
    while not (directory / "plan.json").exists() or read_state(directory).state != "running":
        assert worker.is_alive(), "it ended before anybody looked"
    plain = watching.read_state
    monkeypatch.setattr(watching, "read_state", lambda each: seen.append("looked") or plain(each))
    ended = watching.watch_run(directory, between=0.05)
    worker.join()
    assert len(seen) > 2
    assert ended.state != "running"
    assert read_state(directory).finished == ended.units


def test_a_finished_run_is_shown_once_with_its_verdict(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    found = start(directory, runs=100)
    done = call("runs", "status", directory, "--watch")
    assert done.exit_code == 0, done.output
    said = show(read_state(directory))
    assert "finished" in said
    assert "100 of 100 units finished" in said
    assert found.verdict in said.lower()
    assert "100 of 100 units finished" in done.output


def test_watching_is_for_people(tmp_path: Path) -> None:
    start(tmp_path / "run", runs=100)
    assert "--watch or --json" in told(
        call("runs", "status", tmp_path / "run", "--watch", "--json")
    )
    told(call("runs", "status", tmp_path / "nowhere", "--watch"))
