"""What a run shows while it works: who is late, what was lost, and failures by their causes."""

import pytest

from epsilometer.cli.progress import _Lines
from epsilometer.engine.events import Event


def failing(kind: str, unit: int) -> Event:
    error = f"Traceback (most recent call last):\n  File …\n{kind}: ssn=123"
    return Event("failed", {"unit": unit, "error": error})


def test_many_failures_are_summarised_by_cause() -> None:
    said: list[str] = []
    lines = _Lines(said.append)
    for unit in range(1000):
        lines(failing("KeyError" if unit % 100 == 0 else "ValueError", unit))
    lines(Event("finished", {"used": 0, "failed": 1000}))
    assert len(said) == 7
    assert said[-1] == "1,000 units failed: 990 × ValueError, 10 × KeyError."
    assert not any("ssn" in line for line in said)


def test_who_is_late_and_what_was_lost_is_said() -> None:
    said: list[str] = []
    lines = _Lines(said.append)
    lines(Event("late", {"unit": 5, "worker": "process 7", "seconds": 81.4, "usual": 2.0}))
    lines(Event("lost", {"units": [5], "worker": "process 7", "reason": "The worker died."}))
    assert said == [
        "Unit 5 is late: 81 s at process 7, where 2 s is usual.",
        "1 unit at process 7 will be tried again: The worker died.",
    ]


def test_later_stages_are_named_only_if_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit of a classifier trains shadow models in a dozen stages, most within a second."""
    now = [100.0]
    monkeypatch.setattr("epsilometer.cli.progress.time.monotonic", lambda: now[0])
    said: list[str] = []
    lines = _Lines(said.append)
    for seconds in (0.1, 0.1, 9.0):
        lines(Event("started", {"units": 16, "finished": 0, "workers": 2}))
        now[0] += seconds
        lines(Event("progress", {"units": 16, "finished": 16, "failed": 0, "epsilon": None}))
    assert [line.split(",")[0] for line in said] == ["16 units", "16/16 units"] * 2
