"""A measurement, taken in a fresh process of the interpreter that has the tool."""

import functools
import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import environments

_HERE = Path(__file__).resolve().parent
OURS = "epsilometer"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What ``stopwatch.answer`` prints.

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
    """Asks a tool one question in a process of its own; the same question is asked only once."""
    python = sys.executable if tool == OURS else environments.python_of(tool)
    script = _HERE / f"measure_{tool}.py"
    printed = subprocess.run(
        [python, "-W", "ignore", script, question, size],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return Measurement(**json.loads(printed.splitlines()[-1]))


def command_seconds(command: list[str]) -> float | None:
    """CPU seconds of a command from its start to its end; None where it is not there or fails."""
    before = _children_seconds()
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return _children_seconds() - before


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
