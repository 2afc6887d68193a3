"""Execute units on this machine or on a Dask cluster, and yield outcomes as they finish.

A unit that raises is an outcome like any other. A worker that *dies* (killed, out of memory, a
crash in native code) takes the units it held with it; those are tried again one by one, so that
the one that kills its worker is found and the others are not blamed.
"""

import os
import signal
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from multiprocessing import resource_tracker
from pickle import PicklingError
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol, TypeAlias

from joblib import Parallel, cpu_count, delayed, parallel_config
from joblib.externals.loky.backend import resource_tracker as resource_tracker_of_loky
from threadpoolctl import ThreadpoolController, threadpool_limits

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.core.registry import Registry
from epsilometer.engine.shards import Arrays, check_arrays
from epsilometer.errors import EpsilometerError, InvalidArgument

Call: TypeAlias = Callable[[int], Any]
Outcomes: TypeAlias = Generator["Outcome", None, None]
_RETRIES = 3
_AHEAD = 100  # units a cluster is given before it asks, so that workers that join find work
_GLANCE = 1.0  # seconds between looks whether the other side is still there
_SETTLED = threading.local()
_HERE = uuid.uuid4().hex  # this process: the number of a process is another's on another machine


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
        """Call ``call`` with each unit, and yield outcomes as they finish."""
        ...


class MakeEngine(Protocol):
    """Builds an engine from the options of a command; a row of ``ENGINES``."""

    def __call__(self, workers: int, address: str | None) -> Engine:
        """Return an engine of so many workers, 0 for its own choice, at this address."""
        ...


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """One unit after the other in this process: for work that fills a GPU by itself.

    Example:
        >>> import epsilometer as em
        >>> def play(runs, rng):
        ...     return em.Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))
        >>> em.audit(em.Runs(play, runs=500), 1.0, delta=1e-5, engine=em.InProcess()).verdict
        'refuted'
    """

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yield outcomes in the order of ``units``."""
        for unit in units:
            with threadpool_limits(1):
                outcome = _attempt(call, unit)
            yield outcome


@dataclass(frozen=True, kw_only=True)
class Local:
    """Workers on this machine.

    Attributes:
        count: How many; 0 for one per core.
        kind: Processes, or threads for work that lets go of Python's lock.
        retries: How often a unit whose worker died is tried before it counts as failed.

    Example:
        >>> import epsilometer as em
        >>> em.Local(count=2).workers
        2
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
        """Yield outcomes as they finish."""
        if self.kind == "threads":
            with threadpool_limits(1), parallel_config(backend="threading"):
                yield from _stream(call, units, workers=self.workers, home="another thread")
            return
        for tracker in (resource_tracker, resource_tracker_of_loky):
            tracker.ensure_running()  # begun later, they would undo ``_hold_ctrl_c``
        # That a worker grew and is replaced. Where warnings are errors, the thread that replaces it
        # would die of this one, and everybody wait for ever.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        with parallel_config(
            backend="loky",
            inner_max_num_threads=1,
            initializer=_begin_worker,
            initargs=(os.getpid(),),
        ):
            yield from _stream_persistently(call, units, workers=self.workers, tries=self.retries)


@dataclass(frozen=True)
class Dask:
    """The workers of a Dask cluster.

    Dask itself gives the units of a dead worker to others, up to the scheduler's
    ``allowed-failures``; a unit that Dask gives up on is tried again alone.

    Attributes:
        address: The scheduler's, as ``tcp://host:8786``.
        retries: How often a unit that Dask gave up on is tried before it counts as failed.
        patience: Seconds to wait for the scheduler, and for a worker when there is none.

    Example:
        >>> import epsilometer as em
        >>> em.Dask("tcp://scheduler:8786", patience=5.0)  # connects when an audit begins
        Dask(address='tcp://scheduler:8786', retries=3, patience=5.0)
    """

    address: str
    _: KW_ONLY
    retries: int = _RETRIES
    patience: float = 30.0

    def __post_init__(self) -> None:
        _validate.whole(0, retries=self.retries)
        _validate.positive(patience=self.patience)

    @property
    def workers(self) -> int:
        """How many units the cluster executes at a time now."""
        with self._connect() as client:
            return sum(client.ncores().values())

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yield outcomes as they finish."""
        with self._connect() as client:
            yield from _Cluster(client, call, self).outcomes(units)

    @contextmanager
    def _connect(self) -> Iterator[Any]:
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


def make_engine(name: str | None, workers: int = 0, address: str | None = None) -> Engine | None:
    """Return an engine by its registered name; None leaves the choice to the subject.

    Args:
        name: A key of ``ENGINES``; None is ``local`` where a number of workers is set.
        workers: How many; 0 is one per core.
        address: Of the scheduler, for engines that have one.
    """
    if (name == "dask") != (address is not None) and name in (None, *OWN_ENGINES):
        raise InvalidArgument(
            "Expected --address with --engine dask and with no other: the scheduler's, "
            f"as tcp://host:8786. Got --engine {name} and --address {address}."
        )
    if name is None and not workers:
        return None
    return ENGINES.find(name or "local", label="the engine")(workers=workers, address=address)


OWN_ENGINES: dict[str, MakeEngine] = {
    "local": lambda workers, address: Local(count=workers),
    "threads": lambda workers, address: Local(count=workers, kind="threads"),
    "in-process": lambda workers, address: InProcess(),
    "dask": lambda workers, address: Dask(str(address)),
}
ENGINES: Registry[MakeEngine] = Registry("engines", OWN_ENGINES)


class _Cluster:
    """The units of one call on a cluster. Not by joblib: what it sends ahead to workers is lost
    with them, and it takes the units beside a lost one along.
    """

    def __init__(self, client: Any, call: Call, engine: Dask) -> None:
        self._client, self._call, self._engine = client, call, engine
        self._ahead = max(_AHEAD, 4 * sum(client.ncores().values()))
        self._flying: dict[str, tuple[Any, int]] = {}  # key → its future, which keeps it, and unit
        self._back: SimpleQueue[Any] = SimpleQueue()
        self._share()

    def outcomes(self, units: Iterable[int]) -> Outcomes:
        rest = iter(units)
        given_up: list[int] = []
        while True:
            while not given_up and len(self._flying) < self._ahead:
                unit = next(rest, None)
                if unit is None:
                    break
                self._send(unit)
            if self._flying:
                unit, outcome = self._take()
                if outcome is None:
                    given_up.append(unit)
                else:
                    yield outcome
            elif given_up:
                yield self._retry_alone(given_up.pop(0))
            else:
                return

    def _share(self) -> None:
        """Send the call as a task of its own: once, and again where its worker died."""
        try:
            self._shared = self._client.submit(_return_call, self._call, pure=False)
        except (TypeError, PicklingError) as error:
            raise _make_pickling_error(error) from error

    def _send(self, unit: int) -> None:
        future = self._client.submit(_attempt, self._shared, unit, _HERE, pure=False)
        self._flying[future.key] = future, unit
        future.add_done_callback(self._back.put)

    def _retry_alone(self, unit: int) -> Outcome:
        """Retry one unit that Dask gave up on, alone."""
        for _ in range(self._engine.retries):
            self._share()
            self._send(unit)
            _, outcome = self._take()
            if outcome is not None:
                return outcome
        return _give_up(unit, "Dask says: KilledWorker", tries=self._engine.retries)

    def _take(self) -> tuple[int, Outcome | None]:
        """Return the next unit that came back; its outcome is None where its workers died."""
        from distributed.scheduler import KilledWorker

        seen = time.monotonic()
        while True:
            try:
                future = self._back.get(timeout=_GLANCE)
                outcome = future.result(timeout=self._engine.patience)
            except KilledWorker:
                outcome = None
            except (Empty, TimeoutError) as error:
                seen = time.monotonic() if self._has_workers() else seen
                if time.monotonic() - seen > self._engine.patience:
                    raise EngineLost(
                        f"Expected a worker at the Dask scheduler {self._engine.address!r}, there "
                        f"was none for {self._engine.patience:g} s. What is finished is safe."
                    ) from error
                if isinstance(error, TimeoutError):  # lost with its worker, and computed again
                    self._back.put(future)
                continue
            except CancelledError as error:
                if self._shared.status == "error":
                    raise _make_refused_error(self._shared.exception()) from error
                raise self._make_lost_error() from error
            except Exception as error:  # not the unit's, whose are outcomes
                raise _make_refused_error(error) from error
            return self._flying.pop(future.key)[1], outcome

    def _has_workers(self) -> bool:
        try:
            return bool(self._client.ncores())
        except (OSError, TimeoutError, CancelledError, ValueError) as error:
            raise self._make_lost_error() from error

    def _make_lost_error(self) -> EngineLost:
        return EngineLost(
            f"The Dask scheduler {self._engine.address!r} went away. What is finished is safe."
        )


def _make_refused_error(error: BaseException) -> EngineLost:
    return EngineLost(
        f"The Dask cluster could not take the work ({type(error).__name__}). "
        "Scheduler and workers need the packages and the code that this process has.",
        withheld=" ".join(str(error).split()),
    )


def _return_call(call: Call) -> Call:
    return call


def _stream_persistently(call: Call, units: Iterable[int], *, workers: int, tries: int) -> Outcomes:
    """Yield outcomes; when a worker dies, retry what it may have held one by one, then continue."""
    left = dict.fromkeys(units)  # those without an outcome, in order
    while left:
        under_way: list[int] = []

        def feed(under_way: list[int] = under_way) -> Iterator[int]:
            for unit in tuple(left):
                under_way.append(unit)
                yield unit

        try:
            for outcome in _stream(call, feed(), workers=workers):
                del left[outcome.unit]
                yield outcome
            return
        except BrokenProcessPool as error:
            for unit in tuple(under_way):
                if unit in left:
                    outcome = _retry_alone(call, unit, error, workers=workers, tries=tries)
                    del left[unit]
                    yield outcome


def _retry_alone(
    call: Call, unit: int, error: BaseException, *, workers: int, tries: int
) -> Outcome:
    """Retry one unit alone, so that no other unit can be the one that kills the worker."""
    for _ in range(tries):
        try:
            for outcome in _stream(call, [unit], workers=workers):
                return outcome
        except BrokenProcessPool as again:
            error = again
    return _give_up(unit, str(error), tries=tries)


def _give_up(unit: int, why: str, *, tries: int) -> Outcome:
    said = f"The worker died {tries} times with nothing but this unit to do.\n{why}"
    return Outcome(unit=unit, arrays=None, error=said, seconds=0.0)


def _stream(call: Call, units: Iterable[int], *, workers: int, home: str = _HERE) -> Outcomes:
    # joblib would run a single worker's calls in this very process: two then, of which one rests.
    ahead: int | str = 1 if workers == 1 else "2 * n_jobs"
    parallel = Parallel(n_jobs=max(2, workers), pre_dispatch=ahead, return_as="generator_unordered")
    with _hold_ctrl_c():
        stream = parallel(delayed(_attempt)(call, unit, home) for unit in units)
    try:
        for outcome in stream:  # noqa: UP028 – ``yield from`` would close it before we do
            yield outcome
    except PicklingError as error:
        raise _make_pickling_error(error) from error
    finally:
        with warnings.catch_warnings():  # joblib's, that work was left undone: that is meant
            warnings.simplefilter("ignore", UserWarning)
            stream.close()


def _make_pickling_error(error: BaseException) -> InvalidArgument:
    *_, why = str(error.__cause__ or error).strip('"\n').splitlines()
    return InvalidArgument(
        f"Expected work that can be sent to another process ({why}). "
        "Let go of open files, locks and the like, or use threads."
    )


def _attempt(call: Call, unit: int, home: str = _HERE) -> Outcome:
    """Call a unit; whatever it raises, ``SystemExit`` included, is its outcome."""
    if home != _HERE:
        _prepare_worker()
    start = time.perf_counter()
    try:
        arrays = check_arrays(call(unit))
        return Outcome(unit=unit, arrays=arrays, error="", seconds=time.perf_counter() - start)
    except KeyboardInterrupt:  # the user's
        raise
    except BaseException:  # the unit's, so any
        error = traceback.format_exc()
        return Outcome(unit=unit, arrays=None, error=error, seconds=time.perf_counter() - start)


def _prepare_worker() -> None:
    """Limit native threads to one per working thread, so that sums have one order."""
    if not getattr(_SETTLED, "done", False):
        ThreadpoolController().limit(limits=1)
        _SETTLED.done = True


def _begin_worker(master: int) -> None:
    """Ignore Ctrl-C in a worker process, and end it when its parent dies."""
    _prepare_worker()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(master,), daemon=True).start()


def _exit_with(master: int) -> None:
    while os.getppid() == master:
        time.sleep(_GLANCE)
    os._exit(1)


@contextmanager
def _hold_ctrl_c() -> Iterator[None]:
    """Block SIGINT while processes start, so that they never see Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
