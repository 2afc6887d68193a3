"""Units whose arrays are the result themselves: gathered in order, on an engine, resumable."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from epsilometer.core.printing import name_error
from epsilometer.engine.code import find_code
from epsilometer.engine.engines import Engine, EngineLost, Local
from epsilometer.engine.environment import read_environment, versions
from epsilometer.engine.events import Event, Listener, log_to
from epsilometer.engine.locking import lock
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import heeding_sigterm
from epsilometer.engine.shards import Arrays
from epsilometer.engine.store import Store
from epsilometer.engine.writer import Writer
from epsilometer.errors import EpsilometerError

_LOCAL = Local()
_BETWEEN_WORDS = 0.5  # seconds


class UnitFailed(EpsilometerError):
    """A unit raised: says what, and ``traceback`` where."""

    def __init__(self, unit: int, traceback: str) -> None:
        """Takes what the engine was told of the unit."""
        self.unit, self.traceback = unit, traceback
        *_, last = traceback.strip().splitlines() or ["Nothing is known of why."]
        kind, _, said = last.partition(": ")
        super().__init__(said if kind.endswith("InvalidArgument") else last)
        self.shareable = f"Unit {unit} failed: {name_error(traceback)}."


def gather(
    plan: Plan,
    unit: Callable[[int], Arrays],
    directory: Path | str | None = None,
    *,
    engine: Engine = _LOCAL,
    listen: Sequence[Listener] = (),
) -> list[Arrays]:
    """What each unit of a plan returned, in the order of units.

    Guarantees: the same plan gives the same arrays, byte for byte, on every engine, with any number
        of workers, however often it was killed and called again with the same directory.
    Assumes: ``unit`` is a pure function of the plan and its argument, and can be pickled.

    Args:
        plan: Everything that determines the arrays.
        unit: One piece of the work.
        directory: Where the run lives; by default in memory alone, which cannot be resumed.
        engine: What executes units.
        listen: Who is told what happens.

    Raises:
        UnitFailed: A unit raised. What is finished is safe in the directory.

    Example:
        >>> import numpy as np
        >>> from epsilometer.engine.engines import InProcess
        >>> plan = Plan(audit="mine", parameters={}, units=3, seed=0)
        >>> found = gather(plan, lambda unit: {"twice": np.array(2 * unit)}, engine=InProcess())
        >>> [int(arrays["twice"]) for arrays in found]
        [0, 2, 4]
    """
    if directory is None:
        held: dict[int, Arrays] = {}
        _work(plan, unit, range(plan.units), held.__setitem__, engine=engine, listen=listen)
        return [held[index] for index in range(plan.units)]
    folder = Path(directory)
    plan = _with_code(plan, unit)
    with lock(folder), heeding_sigterm():
        store = Store.create(folder, plan)
        store.prepare()
        todo = [index for index in range(plan.units) if index not in store.finished]
        told = [log_to(folder / "log.jsonl"), *listen]
        with Writer(store) as writer:
            _work(plan, unit, todo, writer.add, engine=engine, listen=told)
        return [store.read(index) for index in range(plan.units)]


def _with_code(plan: Plan, unit: Callable[[int], Arrays]) -> Plan:
    """Return the plan with the code of its units, so that other code does not go on with it."""
    code = find_code(unit)
    return replace(
        plan,
        code=code.digests,
        source=code.source,
        versions=versions(code.packages),
        environment=read_environment(),
    )


def _work(
    plan: Plan,
    unit: Callable[[int], Arrays],
    todo: Sequence[int],
    keep: Callable[[int, Arrays], None],
    *,
    engine: Engine,
    listen: Sequence[Listener],
) -> None:
    """Executes units and hands what they returned to ``keep``, as they come."""

    def tell(name: str, **details: object) -> None:
        for listener in listen:
            listener(Event(name, details))

    if not todo:
        return
    finished, shown = plan.units - len(todo), time.monotonic()
    tell(
        "started",
        units=plan.units,
        finished=finished,
        engine=type(engine).__name__,
        workers=engine.workers,
        process=os.getpid(),
        host=socket.gethostname(),
    )
    outcomes = engine.outcomes(unit, todo)
    with closing(outcomes):
        for outcome in outcomes:
            if outcome.arrays is None:
                tell("failed", unit=outcome.unit, error=outcome.error)
                raise UnitFailed(outcome.unit, outcome.error)
            keep(outcome.unit, outcome.arrays)
            finished += 1
            if finished == plan.units or time.monotonic() - shown > _BETWEEN_WORDS:
                shown = time.monotonic()
                tell("progress", finished=finished, failed=0, units=plan.units, epsilon=None)
    if finished < plan.units:
        raise EngineLost(
            f"Expected an outcome of each of {plan.units} units, the engine gave {finished}. "
            "What is finished is safe."
        )
    tell("finished", used=finished, failed=0)
