"""Execute units through an engine into a store, in order, and end with a result."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Protocol, TypedDict

from msgspec.structs import replace

from epsilometer._files import Folder
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.chain import check_chain, read_secret
from epsilometer.core.printing import name_error
from epsilometer.core.serialisation import from_json, to_json
from epsilometer.engine.code import find_code
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.environment import read_environment, versions
from epsilometer.engine.events import Event, Listener, is_number, log_to, read_events
from epsilometer.engine.heartbeat import Heart
from epsilometer.engine.leases import Board, EngineLost, post_leases
from epsilometer.engine.plan import Plan, describe_difference
from epsilometer.engine.plan import accept_changes as accepting
from epsilometer.engine.shards import MEMORY, Arrays, count_bytes
from epsilometer.engine.store import Store, Writer, lock
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile

_LOCAL = Local()
_BETWEEN_REPORTS = 0.5  # seconds
_NAMED = 8  # changes that a caveat names


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run like Ctrl-C."""


class UnitFailed(EpsilometerError):
    """Raised when a unit raised an exception; see ``traceback``."""

    def __init__(self, unit: int, traceback: str) -> None:
        """Take the unit's outcome from the engine."""
        self.unit, self.traceback = unit, traceback
        *_, last = traceback.strip().splitlines() or ["The reason is unknown."]
        kind, _, said = last.partition(": ")
        super().__init__(said if kind.endswith("InvalidArgument") else last)
        self.shareable = f"Unit {unit} failed: {name_error(traceback)}."


class Counts(TypedDict):
    """Count the units that were planned, used, and failed."""

    units: int
    used: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Done:
    """Hold which part of a plan was done: its first ``seen`` units, some of which failed."""

    plan: Plan
    seen: int
    failed: frozenset[int]

    def counts(self, units: range) -> Counts:
        """Return the numbers of units that were planned, used, and failed."""
        failed = len(self.failed & frozenset(units))
        used = len(range(units.start, min(units.stop, self.seen))) - failed
        return {"units": len(units), "used": used, "failed": failed}

    @property
    def accepted(self) -> tuple[str, ...]:
        """Descriptions of changes in the code during the run."""
        changes = (change for each in self.plan.accepted for change in each.changes)
        return tuple(dict.fromkeys(changes))

    @property
    def provenance(self) -> Provenance:
        """The settings of the whole plan, and the counts of its units."""
        parameters = self.plan.parameters
        return Provenance(
            subject=self.plan.audit,
            settings=parameters["settings"],
            delta=parameters["delta"],
            confidence=parameters["confidence"],
            seed=self.plan.seed,
            until=parameters["until"],
            versions=self.plan.versions,
            shapes=tuple((name, shape) for name, shape in parameters.get("shapes", ())),
            plan=self.plan.public_hash,
            code=self.plan.source,
            accepted=self.accepted,
            **self.counts(range(self.plan.units)),
        )


class Watch(Protocol):
    """Receive the results of units in their order, whatever the order in which they finish."""

    def see(self, arrays: Arrays) -> None:
        """Take the next unit's arrays."""
        ...

    def epsilon(self) -> float | None:
        """Return the ε that is proved so far; None if nothing is known yet."""
        ...

    def enough(self) -> str:
        """Return why no further unit is needed, or "". Must depend only on the units seen."""
        ...


class Unwatched:
    """Watch a job that proves nothing before all its units have finished."""

    def see(self, arrays: Arrays) -> None:
        """Ignore the arrays."""

    def epsilon(self) -> float | None:
        """Return None: nothing is shown."""
        return None

    def enough(self) -> str:
        """Return "": all units are needed."""
        return ""


class Job(Protocol):
    """Define what to compute.

    Must keep: ``unit`` is a pure function of the plan and its argument, and picklable.
    """

    @property
    def plan(self) -> Plan:
        """Everything that determines the result."""
        ...

    def unit(self, index: int) -> Arrays:
        """Compute one piece of the work, as named arrays."""
        ...

    def missing(self, index: int) -> Arrays:
        """Return substitute arrays for a failed unit, which can only weaken the result."""
        ...

    def watch(self) -> Watch:
        """Return a new watch over the units."""
        ...

    def result(self, units: Iterable[Arrays], done: "Done") -> Audit:
        """Return the result of the first units, as many as were needed, in order."""
        ...


def run(
    job: Job,
    directory: Path | None = None,
    *,
    engine: Engine = _LOCAL,
    listen: Sequence[Listener] = (),
    accept_changes: bool = False,
) -> Audit:
    """Start or resume a run, and return its result.

    Guarantee: the same plan gives the same result, byte for byte, on every engine, with any number
        of workers, however often it was killed and called again.
    Assumption: the same versions and type of processor; units are pure functions of the plan.

    Args:
        job: What to compute.
        directory: Directory of the run; a temporary one by default, which cannot be resumed.
        engine: What executes units.
        listen: Callbacks that receive events.
        accept_changes: Continue with other code than the run began with; the result says so.

    Raises:
        CodeChanged: The code has changed, and that is not accepted.
    """
    if directory is None:
        with TemporaryDirectory(prefix="epsilometer-") as passing:
            return run(job, Path(passing), engine=engine, listen=listen)
    with accepting(accept_changes), lock(directory), handle_sigterm():
        store = Store.create(directory, job.plan)
        execution = _Run(job, store, engine, [log_to(directory / "log.jsonl"), *listen])
        result = read_finished_result(store)
        if result is None:
            result = execution.finish()
            store.write_result(to_json(result) + "\n")
        execution.tell("finished", used=result.provenance.used, failed=result.provenance.failed)
        return result


def recompute(job: Job, directory: Path) -> Audit:
    """Recompute the result of a run from its shards. No unit is computed, nothing is written.

    Raises:
        InvalidArgument: The job differs, or a unit is missing or damaged.
    """
    store = Store.open(directory)
    with Folder.hold(directory) as home:
        difference = describe_difference(store.plan, job.plan.seal(read_secret(home)))
    if difference:
        raise InvalidArgument(
            f"Expected the settings and data of the run in {str(directory)!r}, got others: "
            f"{difference}."
        )
    return _Run(job, store, InProcess(), ()).repeat()


def gather(
    plan: Plan,
    unit: Callable[[int], Arrays],
    directory: Path | str | None = None,
    *,
    engine: Engine = _LOCAL,
    listen: Sequence[Listener] = (),
) -> list[Arrays]:
    """Return the results of all units of a plan, in their order.

    Guarantee: the same plan gives the same arrays, byte for byte, on every engine, with any number
        of workers, however often it was killed.
    Assumption: ``unit`` is a pure function of the plan and its argument, and can be pickled.

    Args:
        plan: Everything that determines the arrays.
        unit: Function that computes one unit.
        directory: Directory of the run; by default only memory, which cannot be resumed.
        engine: What executes units.
        listen: Callbacks that receive events.

    Raises:
        UnitFailed: A unit raised. Finished units are kept in the directory.

    Example:
        >>> import numpy as np
        >>> from epsilometer.engine.engines import InProcess
        >>> plan = Plan(audit="mine", parameters={}, units=3, seed=0)
        >>> found = gather(plan, lambda unit: {"twice": np.array(2 * unit)}, engine=InProcess())
        >>> [int(arrays["twice"]) for arrays in found]
        [0, 2, 4]
    """
    if directory is None:
        return _gather_units(_Units(plan, unit), _Memory(), engine, listen)
    folder = Path(directory)
    plan = _with_code(plan, unit)
    with lock(folder), handle_sigterm():
        store = Store.create(folder, plan)
        listeners = [log_to(folder / "log.jsonl"), *listen]
        return _gather_units(_Units(plan, unit), store, engine, listeners)


def _gather_units(
    job: "_Units", store: "Store | _Memory", engine: Engine, listen: Sequence[Listener]
) -> list[Arrays]:
    damaged = store.prepare()
    if len(store.finished) < job.plan.units:
        execution = _Execution(job, store, engine, listen)
        execution.execute(damaged)
        execution.tell("finished", used=execution.seen, failed=0)
    return [store.read(unit) for unit in range(job.plan.units)]


def read_finished_result(store: Store) -> "Audit | None":
    """Return the result of a run without failed units; None if work is left.

    A result that is torn, foreign or changed does not count: it is recomputed from the shards.
    """
    try:
        check_chain(store.directory)
        text = store.text("result.json")
        if text is None:
            return None
        result = from_json(text)
    except (InvalidArgument, UnreadableFile):
        return None
    source = result.provenance
    return result if source.plan == store.plan.public_hash and not source.failed else None


class _Execution:
    """Hold the state of one call: units that finished, wait for an earlier one, or failed."""

    def __init__(
        self,
        job: "Job | _Units",
        store: "Store | _Memory",
        engine: Engine,
        listen: Sequence[Listener],
    ) -> None:
        self.job, self.store, self.engine, self.listeners = job, store, engine, listen
        self.units = job.plan.units
        self.watch = job.watch()
        self.seen = 0  # units 0, 1, … that the watch has seen
        self.waiting: set[int] = set()  # finished before an earlier one
        self.held: dict[int, Arrays] = {}  # of those, the ones that are in memory, too
        self.bytes = 0
        self.read: Callable[[int], Arrays] = store.read
        self.failed: set[int] = set()
        self.stopped = ""
        self.board = Board()
        self.told_at = time.monotonic()
        self.telling = threading.Lock()

    def execute(self, damaged: Mapping[str, str]) -> None:
        """Compute missing units, until all have finished or the watch has seen enough."""
        finished = self.store.finished
        self.tell(
            "started",
            units=self.units,
            finished=len(finished),
            engine=type(self.engine).__name__,
            workers=self.engine.workers,
            process=os.getpid(),
            host=socket.gethostname(),
        )
        for name, reason in damaged.items():
            self.tell("damaged", file=f"shards/{name}", reason=reason)
        for unit in sorted(finished):
            self.take(unit)
        if not self.stopped:
            try:
                self.compute([unit for unit in range(self.units) if unit not in finished])
            except KeyboardInterrupt:
                self.tell("cancelled", finished=self.count(), units=self.units)
                raise
        if not self.stopped and self.seen < self.units:
            raise EngineLost(
                f"Expected an outcome of each of {self.units} units, the engine gave none for "
                f"unit {self.seen}. Finished units are kept."
            )

    def compute(self, units: Sequence[int]) -> None:
        """Send units to the engine, and store outcomes as they come."""
        board = self.board = Board(self.tell, self.find_usual())
        outcomes = self.engine.outcomes(self.job.unit, units)
        with (
            post_leases(board),
            Heart(board, self.store.directory, self.tell),
            Writer(self.store) as writer,
            closing(outcomes),
        ):
            self.read = writer.read
            for outcome in outcomes:
                if outcome.arrays is None:
                    self.fail(outcome.unit, outcome.error)
                else:
                    writer.add(outcome.unit, outcome.arrays)
                    self.take(outcome.unit, outcome.arrays)
                self.tell_progress()
                if self.stopped:
                    break
        self.read = self.store.read
        self.tell_progress(last=True)

    def fail(self, unit: int, error: str) -> None:
        """Raise the failure; a subclass may count failures instead."""
        self.tell("failed", unit=unit, error=error)
        raise UnitFailed(unit, error)

    def take(self, unit: int, arrays: Arrays | None = None) -> None:
        """Pass the next unit, and those that waited for it, to the watch.

        Waiting units are held in memory within a budget; others are read from the store again.
        """
        self.waiting.add(unit)
        if arrays is not None and (unit == self.seen or self.bytes < MEMORY // 4):
            self.held[unit] = arrays
            self.bytes += count_bytes(arrays)
        while not self.stopped and self.seen in self.waiting:
            self.watch.see(self.find_arrays(self.seen))
            self.waiting.remove(self.seen)
            self.seen += 1
            self.stopped = self.watch.enough()

    def find_arrays(self, unit: int) -> Arrays:
        """Return the arrays of a unit, from memory or from the store."""
        held = self.held.pop(unit, None)
        if held is None:
            return self.read(unit)
        self.bytes -= count_bytes(held)
        return held

    def count(self) -> int:
        """Return the number of units that finished without failing."""
        return self.seen + len(self.waiting) - len(self.failed)

    def tell(self, name: str, **details: Any) -> None:
        """Send an event to all listeners."""
        event = Event(name, details)
        with self.telling:  # another thread reports late units
            for listener in self.listeners:
                listener(event)

    def tell_progress(self, *, last: bool = False) -> None:
        """Report progress at most twice per second: computing a bound must not slow the run."""
        if not last and time.monotonic() - self.told_at < _BETWEEN_REPORTS:
            return
        self.told_at = time.monotonic()
        self.tell(
            "progress",
            finished=self.count(),
            failed=len(self.failed),
            units=self.units,
            used=self.seen,
            epsilon=self.watch.epsilon(),
            usual=self.board.usual,
        )

    def find_usual(self) -> float | None:
        """Return how long a unit usually took in the last call of the run, by its log."""
        directory = self.store.directory
        events = () if directory is None else read_events(directory / "log.jsonl")
        said = [event["usual"] for event in events if is_number(event.get("usual"))]
        return float(said[-1]) if said else None


class _Run(_Execution):
    """Execute a job: failed units count against it, and the rest gives a result."""

    job: Job
    store: Store

    def finish(self) -> Audit:
        """Compute missing units, and return the result."""
        self.execute(self.store.prepare())
        if self.stopped:
            self.store.forget_failures(self.seen)
            self.tell("stopped", used=self.seen, reason=self.stopped)
        return self.conclude()

    def repeat(self) -> Audit:
        """Return the result from the units in the store alone."""
        damaged = self.store.look()
        failed = self.store.failures()
        for unit in sorted({*self.store.finished, *failed}):
            if unit in failed:
                self.failed.add(unit)
            self.take(unit)
        if not self.stopped and self.seen < self.units:
            why = "".join(f"; shards/{name}: {reason}" for name, reason in damaged.items())
            raise InvalidArgument(
                f"Expected all {self.units} units in {str(self.store.directory)!r}, unit "
                f"{self.seen} is missing{why}. Compute it again: epsilometer runs resume "
                f"{self.store.directory}"
            )
        return self.conclude()

    def conclude(self) -> Audit:
        """Return the result of the units seen."""
        used = (
            self.job.missing(unit) if unit in self.failed else self.store.read(unit)
            for unit in range(self.seen)
        )
        failed = frozenset(unit for unit in self.failed if unit < self.seen)
        done = Done(plan=self.store.plan, seen=self.seen, failed=failed)
        return _add_change_caveat(self.job.result(used, done), done.accepted)

    def fail(self, unit: int, error: str) -> None:
        """Count a failed unit against the attack."""
        self.store.write_failure(unit, error)
        self.failed.add(unit)
        self.take(unit)
        self.tell("failed", unit=unit, error=error)

    def find_arrays(self, unit: int) -> Arrays:
        """Return the arrays of a unit, or its substitute if it failed."""
        return self.job.missing(unit) if unit in self.failed else super().find_arrays(unit)


@dataclass(frozen=True)
class _Units(Unwatched):
    """Execute units whose arrays are themselves the result."""

    plan: Plan
    unit: Callable[[int], Arrays]

    def watch(self) -> Watch:
        return self


class _Memory(dict[int, Arrays]):
    """Store units in memory for the duration of the call."""

    directory = None

    @property
    def finished(self) -> Set[int]:
        return self.keys()

    def prepare(self) -> dict[str, str]:
        return {}

    def read(self, unit: int) -> Arrays:
        return self[unit]

    def write_shard(self, units: Mapping[int, Arrays]) -> None:
        self.update(units)


def _with_code(plan: Plan, unit: Callable[[int], Arrays]) -> Plan:
    """Return the plan with the code of its units, so that other code does not continue with it."""
    code = find_code(unit)
    return replace_fields(
        plan,
        code=code.digests,
        source=code.source,
        versions=versions(code.packages),
        environment=read_environment(),
    )


def _add_change_caveat(result: Audit, changes: Sequence[str]) -> Audit:
    """Add a caveat if units of one run come from several versions of the program."""
    if not changes:
        return result
    more = f" and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
    caveat = (
        f"The code changed during this run, and that was accepted: {'; '.join(changes[:_NAMED])}"
        f"{more}. Its units are not all of one program."
    )
    return replace(result, caveats=(*result.caveats, caveat))


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does; handlers can only be set in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
