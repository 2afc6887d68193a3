"""A question to a tool, asked in a fresh process of the interpreter that has it."""

import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environments
import psutil

_HERE = Path(__file__).resolve().parent
_LOOK_EVERY = 0.2  # seconds: looking takes time too
OURS = "epsilometer"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What ``stopwatch.answer`` prints of a call on scores or on a table.

    Attributes:
        version: Of the tool.
        epsilon: The answer.
        cpu_seconds: Of the call, the median where it was repeated.
        scores_bytes: Size of the scores the call was made on.
        peak_before_scores: Peak resident memory of the process up to then, in bytes.
        peak_with_scores: The same when the scores had just been made.
        peak_at_end: The same after the call.
    """

    version: str
    epsilon: float
    cpu_seconds: float
    scores_bytes: int
    peak_before_scores: int
    peak_with_scores: int
    peak_at_end: int

    @property
    def memory(self) -> float:
        """Peak growth since before the scores were made, they included, in sizes of the scores."""
        return (self.peak_at_end - self.peak_before_scores) / self.scores_bytes

    @property
    def memory_on_top(self) -> float:
        """Peak growth since the scores were there, in sizes of the scores."""
        return (self.peak_at_end - self.peak_with_scores) / self.scores_bytes


@functools.cache
def measure(tool: str, question: str, size: str) -> Measurement:
    """A call on scores or on a table; the same question is asked only once."""
    return Measurement(**ask(tool, question, size))


def ask(tool: str, question: str, given: str) -> dict[str, Any]:
    """What ``peers/ask_<tool>.py`` prints; see ``stopwatch.answer``."""
    command, environment = _asking(tool, question, given)
    printed = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return told


def watch(tool: str, question: str, given: str) -> dict[str, Any]:
    """The same, with what its process and all that it started took from start to end.

    Adds ``cpu_seconds``, ``wall_seconds``, and ``peak_bytes``: the largest sum of what the
    processes held (proportional set sizes, so that what they share counts once).
    """
    command, environment = _asking(tool, question, given)
    spent: dict[int, float] = {}
    peak, start = 0, time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryDirectory() as home:
        with subprocess.Popen(
            command, env={**environment, "FLWR_HOME": home}, stdout=printed
        ) as started:
            root = psutil.Process(started.pid)
            while started.poll() is None:
                held = 0
                with contextlib.suppress(psutil.Error):
                    for process in (root, *root.children(recursive=True)):
                        times = process.cpu_times()
                        spent[process.pid] = times.user + times.system
                        held += process.memory_full_info().pss
                peak = max(peak, held)
                time.sleep(_LOOK_EVERY)
        if started.returncode:
            raise RuntimeError(f"{tool} failed at {question}, {given}.")
        printed.seek(0)
        told: dict[str, Any] = json.loads(printed.read().splitlines()[-1])
    told["cpu_seconds"] = sum(spent.values())
    told["wall_seconds"] = time.perf_counter() - start
    told["peak_bytes"] = peak
    return told


def command_seconds(command: list[str]) -> float | None:
    """CPU seconds of a command from its start to its end; None where it is not there or fails."""
    before = _children_seconds()
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return _children_seconds() - before


def _asking(tool: str, question: str, given: str) -> tuple[list[str], dict[str, str]]:
    python = sys.executable if tool == OURS else str(environments.python_of(tool))
    script = str(_HERE / "peers" / f"ask_{tool}.py")
    path = f"{_HERE}{os.pathsep}{_HERE / 'peers'}"  # also of what they start
    alone = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [python, "-W", "ignore", script, question, given]
    return command, {**os.environ, **alone, **quiet}


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
