"""Start worker processes on this machine, send them units, and detect their deaths.

Every worker has its own pipe, so a death shows which units are lost and affects no other worker. A
worker reads its pipe all the time and exits when the other end is closed. Arrays come back in
pieces, as bytes: nothing that a unit returned is unpickled here.
"""

import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.util import Finalize
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakSet

import numpy as np
from cloudpickle import CloudPickler
from joblib.externals.loky.backend import get_context
from joblib.externals.loky.backend import resource_tracker as resource_tracker_of_loky
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from epsilometer.engine.leases import Call, EngineLost, Lease, Outcome, attempt
from epsilometer.engine.shards import view_bytes
from epsilometer.errors import InvalidArgument

DEVICES = "CUDA_VISIBLE_DEVICES"
_PIECE = 2**20  # bytes that are sent at once
_SHARED = 2**20  # bytes from which workers map an array instead of copying it
_IDLE = 60.0  # seconds after which a worker without work ends
_GRACE = 0.25  # seconds in which workers may finish units that are no longer needed
_STALLED = 60.0  # seconds within which a piece follows the one before
_START = 600.0  # seconds in which a worker must have imported what the units need
_BIRTHS = 10  # workers in a row that may end before they are ready; of killed ones ten times that
_ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMBA_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ),
    "1",
)
_SETTLED = threading.local()


@dataclass(eq=False)
class _Worker:
    """Hold a process at the other end of a pipe."""

    process: Any
    pipe: Connection
    device: str | None
    new: bool = True
    ready: bool = False  # it has the call
    lease: Lease | None = None
    since: float = field(default_factory=time.monotonic)  # when it was begun, or last taken

    @property
    def name(self) -> str:
        return f"process {self.process.pid}"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            if hasattr(signal, "SIGKILL"):
                os.kill(self.process.pid, signal.SIGKILL)
            else:
                self.process.terminate()
        self.bury()

    def bury(self) -> None:
        self.pipe.close()
        self.process.join(_GRACE)


@dataclass
class _Warm:
    """Hold idle workers of this process for its next call."""

    owner: int = 0
    workers: list[_Worker] = field(default_factory=list)

    def take(self, device: str | None) -> _Worker | None:
        if self.owner != os.getpid():  # a fork has our list, and not our children
            self.owner, self.workers = os.getpid(), []
            Finalize(None, _dismiss_all, exitpriority=20)  # before children are waited for
        for worker in self.workers:
            if worker.device == device:
                self.workers.remove(worker)
                worker.new, worker.since = False, time.monotonic()
                return worker
        return None


_WARM = _Warm()
_EVERY: "WeakSet[_Worker]" = WeakSet()


def _dismiss_all() -> None:
    for worker in list(_EVERY):
        worker.pipe.close()


def _close_in_forks(close: Callable[[], None]) -> None:
    """Close pipes in every process forked from this one.

    If they stayed open there, the death of a worker whose unit had forked would go unnoticed until
    the fork ended.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)


_close_in_forks(_dismiss_all)


class Processes:
    """Execute leases in processes on this machine.

    Attributes:
        can_end: True.
        strange: Number of workers that died while they held nothing.
        size: Number of units that are executed at a time.
    """

    can_end = True

    def __init__(self, call: Call, count: int, devices: Sequence[str] = ()) -> None:
        """Take the call, the largest number of workers, and the device of each."""
        self.strange = 0
        self._places: list[str | None] = list(devices) or [None] * count
        self.size = len(self._places)
        self._workers: list[_Worker] = []
        self._births = 0.0
        if hasattr(signal, "pthread_sigmask"):  # absent on Windows, as is one of the trackers
            for tracker in (resource_tracker, resource_tracker_of_loky):
                tracker.ensure_running()  # begun later, they would undo ``_hold_ctrl_c``
        self._parcel = _Parcel(call)

    def find_free(self, wanted: int) -> list[str]:
        """Return workers that could begin now, and start more if needed."""
        busy = sum(worker.lease is not None for worker in self._workers)
        while self._places and len(self._workers) - busy < wanted:
            self._workers.append(self._start(self._places.pop(0)))
        return [worker.name for worker in self._workers if worker.ready and worker.lease is None]

    def send(self, lease: Lease) -> None:
        """Send units to a worker; if it just died, ``wait`` reports it."""
        (worker,) = (each for each in self._workers if each.name == lease.worker)
        worker.lease = lease
        with suppress(OSError):
            worker.pipe.send(("units", list(lease.units)))

    def wait(self, seconds: float) -> Iterator[tuple[Lease, Outcome | str]]:
        """Yield messages of workers, one of each at a time."""
        pipes = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(pipes), seconds):
            yield from self._hear(pipes[pipe])  # type: ignore[index]
        self._end_stuck()

    def _hear(self, worker: _Worker) -> Iterator[tuple[Lease, Outcome | str]]:
        """Yield the messages of one worker, until there are none or it is free."""
        more = True
        while more:
            try:
                outcome, lease = self._receive(worker), worker.lease
                if outcome is not None and lease is not None and len(lease.units) == 1:
                    worker.lease = None
                more = worker.lease is not None and worker.pipe.poll()
            except (EOFError, OSError):
                if lost := self._lose(worker):
                    yield lost
                return
            if outcome is not None and lease is not None:
                yield lease, outcome

    def end(self, lease: Lease) -> None:
        """Kill the worker that holds a lease."""
        for worker in self._workers:
            if worker.lease is lease:
                self._remove(worker)
                worker.kill()
                return

    def close(self) -> None:
        """Keep idle workers for the next call, and kill the others."""
        end = time.monotonic() + _GRACE
        while any(worker.lease for worker in self._workers) and time.monotonic() < end:
            for lease, outcome in self.wait(end - time.monotonic()):
                if isinstance(outcome, Outcome):
                    lease.units.pop(outcome.unit, None)
        for worker in self._workers:
            try:
                if worker.lease is not None or not worker.ready:
                    worker.kill()
                    continue
                worker.pipe.send(("forget",))  # it says that it is there, to who asks next
                worker.ready = False
                _WARM.workers.append(worker)
            except OSError:
                worker.bury()
        self._workers.clear()
        self._parcel.close()

    def _end_stuck(self) -> None:
        """Stop workers that do not become ready; raise if there is no other."""
        now = time.monotonic()
        stuck = [each for each in self._workers if not each.ready and now - each.since > _START]
        for worker in stuck:
            self._remove(worker)
            worker.kill()
        if stuck and not any(worker.ready for worker in self._workers):
            raise EngineLost(
                f"Expected worker processes to be ready within {_START:g} s, they were not: "
                "importing what the units need seems to hang. Finished units are kept."
            )

    def _start(self, place: str | None) -> _Worker:
        if (warm := _WARM.take(place)) is not None:
            return warm
        ours, theirs = Pipe()
        more = {} if place is None else {DEVICES: place}
        make: Any = get_context("loky").Process
        process = make(target=_work, args=(theirs,), env={**_ONE_THREAD, **more})
        with _hold_ctrl_c():
            process.start()
        theirs.close()
        worker = _Worker(process, ours, place)
        _EVERY.add(worker)
        return worker

    def _receive(self, worker: _Worker) -> Outcome | None:
        kind, *parts = worker.pipe.recv()
        if kind == "there":
            worker.pipe.send(("call", *self._parcel.parts))
            return None
        if kind == "ready":
            worker.ready, self._births = True, 0.0
            return None
        if kind == "refused":
            raise EngineLost(
                "A worker process could not load the work. It needs the packages and the code "
                "that this process has.",
                withheld=parts[0],
            )
        unit, error, seconds, layout = parts
        arrays = None
        if layout is not None:
            arrays = {name: _receive_array(worker.pipe, *rest) for name, *rest in layout}
        return Outcome(unit=unit, arrays=arrays, error=error, seconds=seconds)

    def _lose(self, worker: _Worker) -> tuple[Lease, str] | None:
        self._remove(worker)
        worker.bury()
        if worker.lease is not None:
            code = worker.process.exitcode
            return worker.lease, f"The worker died (exit code {code})."
        if worker.ready or worker.new:  # others had waited too long for work, and ended
            self.strange += 1
        if worker.new and not worker.ready:  # killed by somebody, it counts for less
            self._births += 0.1 if (worker.process.exitcode or 0) < 0 else 1.0
        if self._births >= _BIRTHS:
            raise EngineLost(
                "Expected worker processes to start, too many in a row died before they could "
                f"begin (exit code {worker.process.exitcode}). Finished units are kept."
            )
        return None

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._places.append(worker.device)


class _Parcel:
    """Hold a call as workers receive it: pickled, with large arrays in a file that they map."""

    def __init__(self, call: Call) -> None:
        large: list[pickle.PickleBuffer] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < _SHARED:
                return True
            large.append(buffer)
            return False

        written = BytesIO()
        try:
            CloudPickler(written, protocol=5, buffer_callback=is_small).dump(call)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise make_pickling_error(error) from error
        self._folder: str | None = None
        file, spans, at = "", [], 0
        if large:
            self._folder = tempfile.mkdtemp(prefix="epsilometer-")
            # Removed by the tracker where this process is killed: it may hold data.
            resource_tracker_of_loky.register(self._folder, "folder")
            file = os.path.join(self._folder, "arrays")
            with open(file, "wb") as target:
                for buffer in large:
                    raw = buffer.raw()
                    target.write(bytes(-at % 64))  # aligned
                    at += -at % 64
                    target.write(raw)
                    spans.append((at, raw.nbytes))
                    at += raw.nbytes
        self.parts = (written.getvalue(), file, spans)

    def close(self) -> None:
        if self._folder is not None:
            resource_tracker_of_loky.maybe_unlink(self._folder, "folder")
            self._folder = None


def make_pickling_error(error: BaseException) -> InvalidArgument:
    """Return the error for work that cannot be sent to another process."""
    *_, why = str(error.__cause__ or error).strip('"\n').splitlines() or [type(error).__name__]
    return InvalidArgument(
        f"Expected work that can be sent to another process ({why}). "
        "Close open files, locks and the like, or use threads."
    )


def prepare_worker() -> None:
    """Limit native threads to one per working thread, so that sums have one order."""
    if not getattr(_SETTLED, "done", False):
        ThreadpoolController().limit(limits=1)
        _SETTLED.done = True


def _work(pipe: Connection) -> None:
    """Run the tasks that come through the pipe, until none has come for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that began us
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    prepare_worker()
    _close_in_forks(pipe.close)
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, inbox), daemon=True).start()
    pipe.send(("there",))
    call: Call | None = None
    while True:
        try:
            kind, *parts = inbox.get(timeout=_IDLE)
        except Empty:
            return
        if kind == "units" and call is not None:
            for unit in parts[0]:
                _send_outcome(pipe, attempt(call, unit))
        elif kind == "call":
            try:
                call = _open_parcel(*parts)
                pipe.send(("ready",))
            except Exception as error:  # importing a module may raise anything
                pipe.send(("refused", f"{type(error).__name__}: {error}"))
        elif kind == "forget":
            call = None
            pipe.send(("there",))


def _listen(pipe: Connection, inbox: "SimpleQueue[Any]") -> None:
    try:
        while True:
            inbox.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(1)  # whoever began us is gone


def _open_parcel(data: bytes, file: str, spans: Sequence[tuple[int, int]]) -> Call:
    """Return the call that the parent process sent; only its arrays are in a file."""
    buffers: list[Any] = []
    if spans:
        whole = np.memmap(file, mode="r")
        buffers = [whole[start : start + size] for start, size in spans]
    call: Call = pickle.loads(data, buffers=buffers)
    return call


def _send_outcome(pipe: Connection, outcome: Outcome) -> None:
    arrays = outcome.arrays
    layout = None
    if arrays is not None:
        layout = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    pipe.send(("unit", outcome.unit, outcome.error, outcome.seconds, layout))
    for array in (arrays or {}).values():
        view = view_bytes(array)
        for start in range(0, len(view), _PIECE):
            pipe.send_bytes(view[start : start + _PIECE])


def _receive_array(pipe: Connection, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    array: NDArray[Any] = np.ndarray(shape, np.dtype(kind))
    view = view_bytes(array)
    for start in range(0, len(view), _PIECE):
        if not pipe.poll(_STALLED):
            raise EOFError  # it was stopped while it spoke
        pipe.recv_bytes_into(view[start : start + _PIECE])
    return array


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


def find_gpus() -> tuple[str, ...]:
    """Return the GPUs of this machine that this process may use, as CUDA numbers them.

    CUDA is not initialised for this: a process that did so could not leave the GPUs to workers.
    """
    said = os.environ.get(DEVICES)
    if said is not None:
        return tuple(each.strip() for each in said.split(",") if each.strip() not in ("", "-1"))
    there = Path("/proc/driver/nvidia/gpus")
    return tuple(str(number) for number, _ in enumerate(there.glob("*")))
