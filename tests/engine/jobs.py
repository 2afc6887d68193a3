"""Jobs whose result is a digest of every number of every unit: no byte of it can differ unseen."""

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epsilometer.core.audit import Audit
from epsilometer.engine.engines import InProcess
from epsilometer.engine.events import Event
from epsilometer.engine.leases import Call, Outcome, Outcomes, attempt
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, run
from epsilometer.engine.shards import Arrays
from tests.examples import an_audit

ROOT = Path(__file__).parents[2]  # where ``python -m tests…`` finds itself
Act = Callable[[int], None]


def nothing(unit: int) -> None:
    """What most units do besides their work."""


def a_plan(units: int = 12, **changed: Any) -> Plan:
    plain = {
        "audit": "digest",
        "parameters": {
            "settings": {"rate": 0.5},
            "delta": 1e-5,
            "confidence": 0.95,
            "claim": None,
            "until": None,
        },
        "units": units,
        "seed": 0,
        "versions": (("digest", "1"),),
    }
    return Plan(**{**plain, **changed})


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Draws a few numbers a unit; ``act`` sleeps, raises or kills before it does.

    Stops when the sum of the numbers, in the order of units, has passed ``limit``.
    """

    plan: Plan
    act: Act = nothing
    limit: float = float("inf")
    size: int = 3

    def unit(self, index: int) -> Arrays:
        self.act(index)
        draws = self.plan.stream(index).normal(1.0, 1.0, size=self.size)
        return {"draws": draws, "unit": np.array(index)}

    def missing(self, index: int) -> Arrays:
        return {"draws": np.zeros(self.size), "unit": np.array(-1 - index)}

    def watch(self) -> "Total":
        return Total(self.limit)

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        digest = hashlib.sha256()
        for arrays in units:
            digest.update(arrays["unit"].tobytes() + arrays["draws"].tobytes())
        return an_audit(subject=digest.hexdigest(), provenance=done.provenance)


class Total:
    """Decides by a sum that rounds differently in another order."""

    def __init__(self, limit: float) -> None:
        self.limit, self.total = limit, 0.0

    def see(self, arrays: Arrays) -> None:
        self.total += float(arrays["draws"].sum())

    def epsilon(self) -> float | None:
        return self.total

    def enough(self) -> str:
        return f"the sum is {self.total!r}" if self.total > self.limit else ""


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """An engine whose outcomes come in a random order."""

    rng: np.random.Generator
    workers: int = 7

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        for unit in self.rng.permutation(list(units)):
            yield attempt(call, int(unit))


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An engine that hands out prepared outcomes, and remembers whether it was closed."""

    given: Sequence[Outcome]
    closed: list[bool]
    workers: int = 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        try:
            yield from self.given
        finally:
            self.closed.append(True)


def wobble(unit: int) -> None:
    """Another duration at each call: the order of arrival is never twice the same."""
    time.sleep(random.random() * 0.02)


def in_order(directory: Path, **changed: Any) -> bytes:
    """The bytes of the result of a run that nothing disturbed."""
    run(Digest(**{"plan": a_plan(), **changed}), directory, engine=InProcess())
    return (directory / "result.json").read_bytes()


def names(events: Iterable[Event]) -> Iterator[str]:
    return (event.name for event in events)
