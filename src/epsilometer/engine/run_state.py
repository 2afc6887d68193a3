"""Read the progress of a run from its directory, without changing it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from epsilometer.core.printing import name_error
from epsilometer.core.words import announce
from epsilometer.engine.events import is_number, read_events
from epsilometer.engine.run import read_finished_result
from epsilometer.engine.store import Store, is_busy

State: TypeAlias = Literal["running", "finished", "stopped"]
_POINTS = 400  # that a chart can show


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Hold the progress of a run.

    Attributes:
        directory: Directory of the run.
        audit: The subject's name.
        state: Whether a process works on it, it has a result, or neither.
        units: Number of units.
        finished: Number of units that are finished.
        failures: (unit, kind of error) pairs.
        points: (units used, ε so far) pairs over the course of the run.
        claim: The claimed ε, if any.
        until: When it stops early, in words; empty if it does not.
        rate: Units per second; 0 if unknown.
        verdict: Verdict of its result; empty without a result.
        headline: The main finding, in a sentence; empty without a result.
    """

    directory: Path
    audit: str
    state: State
    units: int
    finished: int
    failures: tuple[tuple[int, str], ...]
    points: tuple[tuple[int, float], ...]
    claim: float | None
    until: str
    rate: float
    verdict: str = ""
    headline: str = ""

    @property
    def left(self) -> float | None:
        """Seconds left at this rate; None if unknown."""
        remaining = self.units - self.finished - len(self.failures)
        if self.state != "running" or self.rate <= 0:
            return None
        return remaining / self.rate

    @property
    def epsilon(self) -> float | None:
        """The ε that is proved so far."""
        return self.points[-1][1] if self.points else None


def read_state(directory: Path) -> RunState:
    """Return the progress of the run in a directory.

    Guarantee: nothing is written, and no text of an error is returned.

    Raises:
        UnreadableFile: There is no run.
    """
    store = Store.open(directory)
    store.look()
    result = read_finished_result(store)
    events = [*read_events(directory / "log.jsonl")]
    parameters = store.plan.parameters
    claim, until = parameters.get("claim"), parameters.get("until")
    points = [
        (int(event["used"]), float(event["epsilon"]))
        for event in events
        if event.get("event") == "progress" and is_number(event.get("epsilon"))
    ]
    busy = is_busy(directory)
    return RunState(
        directory=directory,
        audit=store.plan.audit,
        state="running" if busy else "finished" if result is not None else "stopped",
        units=store.plan.units,
        finished=len(store.finished),
        failures=tuple((unit, name_error(text)) for unit, text in store.failures().items()),
        points=tuple(points[:: max(1, -(-len(points) // _POINTS))]),
        claim=claim.get("epsilon") if isinstance(claim, dict) else None,
        until="" if until is None else str(until.get("type", until)),
        rate=_find_rate(events),
        verdict="" if result is None else result.verdict,
        headline="" if result is None else announce(result),
    )


def _find_rate(events: list[dict[str, Any]]) -> float:
    """Return units per second since the run was last started."""
    places = [i for i, event in enumerate(events) if event.get("event") == "started"]
    recent = events[places[-1] :] if places else []
    progress = [event for event in recent if event.get("event") == "progress"]
    if not progress:
        return 0.0
    first, last = recent[0], progress[-1]
    done = last.get("finished", 0) - first.get("finished", 0)
    return float(done / max(last["time"] - first["time"], 1e-3))
