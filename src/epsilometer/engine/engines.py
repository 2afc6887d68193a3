"""Execute units on this machine or on a Dask cluster, and yield outcomes as they finish.

A unit that raises is an outcome like any other. A worker that *dies* (killed, out of memory, a
crash in native code) or hangs loses the units it held. Those are retried; a unit that is lost while
nothing else is running is the cause.
"""

import functools
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol

from joblib import cpu_count
from threadpoolctl import ThreadpoolController, threadpool_limits

from epsilometer import _validate
from epsilometer.core.registry import Registry
from epsilometer.engine.cluster import Cluster, connect
from epsilometer.engine.leases import Call, Lease, Outcome, Outcomes, attempt, execute, find_board
from epsilometer.engine.pool import Processes, find_gpus, prepare_worker
from epsilometer.errors import InvalidArgument

_RETRIES = 3


class Engine(Protocol):
    """Execute units somewhere.

    Must keep: every unit has exactly one outcome, in any order; units do not affect each other;
    closing the iterator stops running units.
    """

    @property
    def workers(self) -> int:
        """Number of units that are executed at a time."""
        ...

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Call ``call`` with each unit, and yield outcomes as they finish."""
        ...


class MakeEngine(Protocol):
    """Build an engine from the options of a command; an entry of ``ENGINES``."""

    def __call__(self, workers: int, address: str | None) -> Engine:
        """Return an engine with this many workers, 0 for its default, at this address."""
        ...


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """Execute units one after the other in this process: for work that fills a GPU by itself.

    A unit that hangs cannot be stopped here; ``epsilometer runs status`` reports that it is late.

    Example:
        >>> import epsilometer as em
        >>> def play(runs, rng):
        ...     return em.Scores(inside=rng.normal(3, 1, runs), outside=rng.normal(0, 1, runs))
        >>> em.audit(em.Runs(play, runs=500), 1.0, delta=1e-5, engine=em.InProcess()).verdict
        'refuted'
    """

    @property
    def workers(self) -> int:
        """Return 1."""
        return 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yield outcomes in the order of ``units``."""
        board = find_board()
        for unit in units:
            lease = Lease({unit: None}, "this process")
            board.open(lease)
            try:
                with _find_libraries(len(sys.modules)).limit(limits=1):
                    outcome = attempt(call, unit)
            finally:
                board.close(lease)
            board.note(outcome.seconds)
            yield outcome


@functools.lru_cache(maxsize=1)
def _find_libraries(modules: int) -> ThreadpoolController:
    """Return what limits threads; searched for again where more modules are loaded."""
    return ThreadpoolController()


@dataclass(frozen=True, kw_only=True)
class Local:
    """Execute units by workers on this machine.

    Attributes:
        count: Number of workers; 0 for one per core, or one per device.
        kind: ``"processes"``, or ``"threads"`` for work that releases Python's GIL.
        retries: How often a unit whose worker died, or that took too long, is retried with nothing
            else running before it counts as failed.
        timeout: Seconds that a unit may take; None for 30 times the median of finished units, at
            least a minute, and four times as long at each retry. Threads cannot be stopped.
        devices: Numbers of GPUs, one worker each, which sees no other GPU; a GPU may be listed
            twice. Empty for workers that see the same GPUs as this process.

    Example:
        >>> import epsilometer as em
        >>> em.Local(count=2).workers, em.Local(devices=("0", "1", "1")).workers
        (2, 3)
    """

    count: int = 0
    kind: Literal["processes", "threads"] = "processes"
    retries: int = _RETRIES
    timeout: float | None = None
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate.whole(0, count=self.count, retries=self.retries)
        if self.timeout is not None:
            _validate.positive(timeout=self.timeout)
        if self.kind == "threads" and (self.timeout is not None or self.devices):
            raise InvalidArgument(
                "Expected neither timeout nor devices with kind='threads': a thread cannot be "
                "ended, and all of them see the same GPUs. Use processes."
            )
        if self.devices and self.count not in (0, len(self.devices)):
            raise InvalidArgument(
                f"Expected one worker for each of {len(self.devices)} devices, got "
                f"count={self.count}. Leave count out."
            )

    @property
    def workers(self) -> int:
        """Number of units that are executed at a time."""
        return self.count or len(self.devices) or int(cpu_count())

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yield outcomes as they finish."""
        if self.kind == "threads":
            with threadpool_limits(1):
                yield from execute(_Threads(call, self.workers), units, retries=self.retries)
            return
        crew = Processes(call, self.workers, self.devices)
        yield from execute(crew, units, retries=self.retries, timeout=self.timeout)


@dataclass(frozen=True)
class Dask:
    """Execute units by the workers of a Dask cluster.

    Dask itself gives the units of a dead worker to others, up to the scheduler's
    ``allowed-failures``. A unit that Dask gives up on is retried alone. Workers may join and leave
    at any time. Their results are unpickled in this process, so the cluster must be trusted.

    Attributes:
        address: Address of the scheduler, such as ``tcp://host:8786`` or ``tls://host:8786``.
        retries: How often a unit that Dask gave up on is retried before it counts as failed.
        patience: Seconds to wait for the scheduler, and for a worker when there is none.
        timeout: Seconds that a unit may take, as in ``Local``. The worker of a unit that takes
            longer is stopped; its nanny starts another.
        security: A ``distributed.Security`` with TLS certificates; None for Dask's configuration.
        resources: Worker resources that a unit needs, such as ``{"GPU": 1}`` for one unit per GPU
            if workers were started with ``--resources GPU=1``.

    Example:
        >>> import epsilometer as em
        >>> em.Dask("tcp://scheduler:8786", patience=5.0).retries  # connects when an audit begins
        3
    """

    address: str
    _: KW_ONLY
    retries: int = _RETRIES
    patience: float = 30.0
    timeout: float | None = None
    security: Any = field(default=None, repr=False)
    resources: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate.whole(0, retries=self.retries)
        _validate.positive(patience=self.patience)
        if self.timeout is not None:
            _validate.positive(timeout=self.timeout)

    @property
    def workers(self) -> int:
        """How many units the cluster executes at a time now."""
        with connect(self.address, patience=self.patience, security=self.security) as client:
            return sum(client.ncores().values())

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yield outcomes as they finish."""
        with connect(self.address, patience=self.patience, security=self.security) as client:
            crew = Cluster(client, call, patience=self.patience, resources=self.resources)
            yield from execute(crew, units, retries=self.retries, timeout=self.timeout)


def make_engine(
    name: str | None,
    workers: int = 0,
    address: str | None = None,
    timeout: float | None = None,
) -> Engine | None:
    """Return an engine by its registered name; None leaves the choice to the subject.

    Args:
        name: A key of ``ENGINES``; None is ``local`` if workers or a timeout are set.
        workers: Number of workers; 0 is one per core.
        address: Address of the scheduler, for engines that have one.
        timeout: Seconds that a unit may take, for engines that can stop one.
    """
    if (name == "dask") != (address is not None) and name in (None, *OWN_ENGINES):
        raise InvalidArgument(
            "Expected --address with --engine dask and with no other: the scheduler's, "
            f"as tcp://host:8786. Got --engine {name} and --address {address}."
        )
    if name is None and not workers and timeout is None:
        return None
    make = ENGINES.find(name or "local", label="the engine")
    engine = make(workers=workers, address=address)
    if timeout is None:
        return engine
    if not isinstance(engine, (Local, Dask)):
        raise InvalidArgument(
            f"Expected --timeout with --engine local, gpus or dask, got --engine {name}, which "
            "cannot end a unit."
        )
    return replace(engine, timeout=timeout)


OWN_ENGINES: dict[str, MakeEngine] = {
    "local": lambda workers, address: Local(count=workers),
    "threads": lambda workers, address: Local(count=workers, kind="threads"),
    "in-process": lambda workers, address: InProcess(),
    "gpus": lambda workers, address: _use_gpus(workers),
    "dask": lambda workers, address: Dask(str(address)),
}
ENGINES: Registry[MakeEngine] = Registry("engines", OWN_ENGINES)


def _use_gpus(workers: int) -> Local:
    """Return an engine with one process per GPU, or with the requested number of processes."""
    found = find_gpus()
    if not found:
        raise InvalidArgument(
            "Expected a GPU for --engine gpus, found none. Use --engine local, or name GPUs in "
            "CUDA_VISIBLE_DEVICES."
        )
    chosen = (found[number % len(found)] for number in range(workers or len(found)))
    return Local(devices=tuple(chosen))


class _Threads:
    """Execute leases in threads of this process, which cannot be stopped."""

    can_end = False
    strange = 0

    def __init__(self, call: Call, count: int) -> None:
        self._call, self.size = call, count
        self._inboxes: dict[str, SimpleQueue[Lease | None]] = {}
        self._back: SimpleQueue[tuple[str, Lease, Outcome | BaseException]] = SimpleQueue()
        self._busy: set[str] = set()
        self._closed = False

    def find_free(self, wanted: int) -> list[str]:
        while len(self._inboxes) < min(self.size, len(self._busy) + wanted):
            name, inbox = f"thread {len(self._inboxes) + 1}", SimpleQueue[Lease | None]()
            self._inboxes[name] = inbox
            threading.Thread(target=self._work, args=(name, inbox), daemon=True).start()
        return [name for name in self._inboxes if name not in self._busy]

    def send(self, lease: Lease) -> None:
        self._busy.add(lease.worker)
        self._inboxes[lease.worker].put(lease)

    def wait(self, seconds: float) -> Iterator[tuple[Lease, Outcome | str]]:
        try:
            name, lease, outcome = self._back.get(timeout=seconds)
        except Empty:
            return
        if isinstance(outcome, BaseException):
            raise outcome
        if len(lease.units) == 1:
            self._busy.discard(name)
        yield lease, outcome

    def end(self, lease: Lease) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._closed = True
        for inbox in self._inboxes.values():
            inbox.put(None)

    def _work(self, name: str, inbox: "SimpleQueue[Lease | None]") -> None:
        prepare_worker()
        while (lease := inbox.get()) is not None:
            for unit in list(lease.units):
                if self._closed:
                    return
                try:
                    outcome: Outcome | BaseException = attempt(self._call, unit)
                except KeyboardInterrupt as error:
                    outcome = error
                self._back.put((name, lease, outcome))
