"""What a run shows while it works: who is late, what was lost, and failures by their causes."""

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
