"""What executes units: this machine, or a Dask cluster. Outcomes come back as they come.

A unit that raises is an outcome like any other. A worker that *dies* (killed, out of memory, a
crash in native code) takes the units it held with it; those are tried again one by one, so that
the one that kills its worker is found and the others are not blamed.
"""

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias

from joblib import Parallel, cpu_count, delayed, parallel_config
from threadpoolctl import ThreadpoolController, threadpool_limits

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.engine.shards import Arrays, checked
from epsilometer.errors import EpsilometerError, InvalidArgument

Call: TypeAlias = Callable[[int], Any]
Outcomes: TypeAlias = Generator["Outcome", None, None]
_RETRIES = 3


class EngineLost(EpsilometerError):
    """What executes the units went away, and not because of a unit."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A unit that finished, or failed.

    Attributes:
        unit: Which.
        arrays: What it returned; None where it failed.
        error: Why it failed, with a traceback where there is one; empty where it did not.
        seconds: How long it took.
    """

    unit: int
    arrays: Arrays | None
    error: str
    seconds: float


class Engine(Protocol):
    """Executes units somewhere.

    Must keep: every unit has exactly one outcome, in any order; nothing of one unit reaches
    another; closing the iterator stops what is under way.
    """

    @property
    def workers(self) -> int:
        """How many units are executed at a time."""
        ...

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Calls ``call`` with each unit, and yields outcomes as they come."""
        ...


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """One unit after the other in this process: for work that fills a GPU by itself."""

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yields outcomes in the order of ``units``."""
        for unit in units:
            with threadpool_limits(1):
                outcome = _attempt(call, unit)
            yield outcome


@dataclass(frozen=True, kw_only=True)
class Local:
    """Workers on this machine.

    Attributes:
        count: How many; 0 for one a core.
        kind: Processes, or threads for work that lets go of Python's lock.
        retries: How often a unit whose worker died is tried before it counts as failed.
    """

    count: int = 0
    kind: Literal["processes", "threads"] = "processes"
    retries: int = _RETRIES

    def __post_init__(self) -> None:
        _validate.whole(0, count=self.count, retries=self.retries)

    @property
    def workers(self) -> int:
        """How many units are executed at a time."""
        return self.count or int(cpu_count())

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yields outcomes as they come."""
        if self.kind == "threads":
            with threadpool_limits(1), parallel_config(backend="threading"):
                yield from _stream(call, units, workers=self.workers)
            return
        with parallel_config(backend="loky", inner_max_num_threads=1):
            yield from _persistent(call, units, workers=self.workers, tries=self.retries)


@dataclass(frozen=True, kw_only=True)
class Dask:
    """The workers of a Dask cluster.

    Dask itself gives the units of a dead worker to others, up to the scheduler's
    ``allowed-failures``; a unit that Dask gives up on is tried again alone.

    Attributes:
        address: The scheduler's, as ``tcp://host:8786``.
        retries: How often a unit that Dask gave up on is tried before it counts as failed.
        patience: Seconds to wait for the scheduler, and for a first worker.
    """

    address: str
    retries: int = _RETRIES
    patience: float = 30.0

    @property
    def workers(self) -> int:
        """How many units the cluster executes at a time now."""
        with self._client() as client:
            return sum(client.ncores().values())

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yields outcomes as they come."""
        with self._client() as client:
            workers = sum(client.ncores().values())
            # Sent to the workers once, not with every unit.
            with parallel_config(backend="dask", client=client, scatter=[call]):
                yield from _persistent(call, units, workers=workers, tries=self.retries)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        with needs("distributed", extra="dask"):
            from distributed import Client
        try:
            client = Client(  # type: ignore[no-untyped-call]
                self.address, timeout=self.patience, set_as_default=False
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise InvalidArgument(
                f"Expected a Dask scheduler at {self.address!r}, found none ({error}). "
                "Start one with: dask scheduler"
            ) from error
        with client:
            try:
                client.wait_for_workers(1, timeout=self.patience)
            except TimeoutError as error:
                raise InvalidArgument(
                    f"Expected a worker at the Dask scheduler {self.address!r}, none came in "
                    f"{self.patience:g} s. Start one with: dask worker {self.address}"
                ) from error
            yield client


def _persistent(call: Call, units: Iterable[int], *, workers: int, tries: int) -> Outcomes:
    """Streams outcomes; when a worker dies, tries what was under way one by one, and goes on."""
    rest = iter(units)
    exhausted = False
    while not exhausted:
        under_way: set[int] = set()

        def fed(under_way: set[int] = under_way) -> Iterator[int]:
            for unit in rest:
                under_way.add(unit)
                yield unit

        try:
            for outcome in _stream(call, fed(), workers=workers):
                under_way.discard(outcome.unit)
                yield outcome
            exhausted = True
        except _died() as error:
            for unit in sorted(under_way):
                yield _alone(call, unit, error, workers=workers, tries=tries)


def _alone(call: Call, unit: int, error: BaseException, *, workers: int, tries: int) -> Outcome:
    """One unit that was under way when a worker died, with nobody beside it to blame."""
    for _ in range(tries):
        try:
            for outcome in _stream(call, [unit], workers=workers):
                return outcome
        except _died() as again:
            error = again
    said = f"The worker died {tries} times with nothing but this unit to do.\n{error}"
    return Outcome(unit=unit, arrays=None, error=said, seconds=0.0)


def _stream(call: Call, units: Iterable[int], *, workers: int) -> Outcomes:
    home = os.getpid()
    # joblib would run a single worker's calls in this very process: two then, of which one rests.
    ahead: int | str = 1 if workers == 1 else "2 * n_jobs"
    parallel = Parallel(n_jobs=max(2, workers), pre_dispatch=ahead, return_as="generator_unordered")
    stream = parallel(delayed(_attempt)(call, unit, home) for unit in units)
    try:
        yield from stream
    except CancelledError as error:
        raise EngineLost("The cluster cancelled the work: is the scheduler still there?") from error
    finally:
        stream.close()


def _died() -> tuple[type[BaseException], ...]:
    """What joblib raises when a worker is gone."""
    killed: list[type[BaseException]] = [BrokenProcessPool]
    with suppress(ImportError):
        from distributed.scheduler import KilledWorker

        killed.append(KilledWorker)
    return tuple(killed)


def _attempt(call: Call, unit: int, home: int | None = None) -> Outcome:
    """Calls the unit; whatever it raises is its outcome."""
    if home is not None and os.getpid() != home:
        _settle_worker()
    start = time.perf_counter()
    try:
        arrays = checked(call(unit))
        return Outcome(unit=unit, arrays=arrays, error="", seconds=time.perf_counter() - start)
    except Exception:  # the unit's, so any
        error = traceback.format_exc()
        return Outcome(unit=unit, arrays=None, error=error, seconds=time.perf_counter() - start)


@cache
def _settle_worker() -> None:
    """Once in each worker: sums in one order whatever the cores, and Ctrl-C left to the master."""
    ThreadpoolController().limit(limits=1)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
