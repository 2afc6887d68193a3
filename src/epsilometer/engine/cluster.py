"""Send units to a Dask cluster, adapt as it grows and shrinks, and detect its loss.

Leases are Dask tasks: Dask chooses the worker, and reassigns the tasks of a dead one. Enough are
sent ahead for workers that join, and for an adaptive cluster to scale up. A long unit reports every
second that it is running, and where.
"""

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import cache
from pickle import PicklingError
from queue import Empty, SimpleQueue
from typing import Any

from epsilometer._extras import needs
from epsilometer.engine.environment import versions
from epsilometer.engine.leases import BEAT, Call, EngineLost, Lease, Outcome, attempt
from epsilometer.engine.pool import make_pickling_error, prepare_worker
from epsilometer.engine.shards import MEMORY, count_bytes
from epsilometer.errors import InvalidArgument

_AHEAD = 100  # leases that are sent before the cluster asks, at least
_PER_CORE = 4  # and for each of its cores
_FORGOTTEN = 1000  # leases that Dask may forget in a run
_AT_ONCE = 64  # leases whose results are fetched at once
_HERE = uuid.uuid4().hex  # this process: the number of a process is another's on another machine
_BROKEN = (OSError, TimeoutError, CancelledError, ValueError, RuntimeError)
_NOWHERE = "the cluster"  # who holds a lease that has not begun
_versions = cache(versions)


@contextmanager
def connect(address: str, *, patience: float, security: Any) -> Iterator[Any]:
    """Connect to a scheduler, or raise a one-sentence error."""
    with needs("distributed", extra="dask"):
        from distributed import Client
    try:
        client = Client(  # type: ignore[no-untyped-call]
            address, timeout=patience, set_as_default=False, security=security
        )
    except (*_BROKEN, TypeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        advice = (
            "Its certificates are given by security=, or by Dask's own configuration"
            if address.startswith("tls:")
            else "Start one with: dask scheduler"
        )
        raise InvalidArgument(
            f"Expected a Dask scheduler at {address!r}, reached none ({why[:200]}). {advice}."
        ) from error
    with client:
        yield client


class Cluster:
    """Execute leases on the workers of a Dask cluster.

    Attributes:
        can_end: True.
        strange: Always 0: the scheduler does not report which workers died.
    """

    can_end = True
    strange = 0

    def __init__(
        self, client: Any, call: Call, *, patience: float, resources: Mapping[str, float]
    ) -> None:
        """Store a connection, the call, how long to wait, and the resources of a unit."""
        self._client, self._call, self._patience = client, call, patience
        self._resources = dict(resources)
        self._flying: dict[str, tuple[Any, Lease]] = {}  # key → its future, which keeps it
        self._back: SimpleQueue[Any] = SimpleQueue()
        self._beats: SimpleQueue[Any] = SimpleQueue()
        self._topic = f"epsilometer-{uuid.uuid4().hex}"
        self._cores, self._looked = 0, -BEAT
        self._largest = 0  # bytes of a unit; 0 while that is not known
        self._forgotten = 0  # leases that Dask forgot
        self._seen: float | None = None  # when workers were last there
        self._began = time.monotonic()
        client.subscribe_topic(self._topic, lambda event: self._beats.put(event[1]))
        self._share()

    @property
    def size(self) -> int:
        """Number of units that can be executed at a time now."""
        return max(1, self._cores)

    def find_free(self, wanted: int) -> list[str]:
        """Return one place for each further lease that may be sent."""
        self._look()
        ahead = max(_AHEAD, _PER_CORE * self._cores) - len(self._flying)
        return [_NOWHERE] * max(0, min(ahead, wanted))

    def send(self, lease: Lease) -> None:
        """Submit units as one task; its worker reports when they begin."""
        if lease.alone and self._shared.status != "finished":
            self._share()  # lost with the workers that a unit killed
        lease.began = None
        future = self._client.submit(
            _attempt_many,
            self._shared,
            list(lease.units),
            _HERE,
            self._topic,
            pure=False,
            resources=self._resources or None,
        )
        self._flying[future.key] = future, lease
        future.add_done_callback(self._back.put)

    def wait(self, seconds: float) -> Iterator[tuple[Lease, Outcome | str]]:
        """Yield the results of tasks."""
        try:
            done = [self._back.get(timeout=seconds)]
        except Empty:
            done = []
        while not self._back.empty():
            done.append(self._back.get())
        self._look()
        self._take_beats()
        # A task that was lost after it had finished may be there twice.
        known = {future.key: future for future in done if future.key in self._flying}.values()
        whole = []
        for future in known:
            match future.status:
                case "finished":
                    whole.append(future)
                case "error":
                    yield self._take_loss(future)
                case "cancelled":
                    self._send_again(future)
                case _:  # lost with its worker after it had finished, and computed again
                    future.add_done_callback(self._back.put)
        while whole:
            count = self._count_fitting(whole)
            yield from self._take_results(whole[:count])
            whole = whole[count:]

    def end(self, lease: Lease) -> None:
        """End the worker that holds a lease: Dask cannot stop a task that has begun."""
        for key, (future, held) in list(self._flying.items()):
            if held is lease:
                del self._flying[key]
                with suppress(*_BROKEN):
                    self._client.cancel([future], force=True)
                    self._end_worker(lease.worker)

    def close(self) -> None:
        """Release everything; running tasks are cancelled with the connection."""
        with suppress(*_BROKEN):
            self._client.unsubscribe_topic(self._topic)
            self._client.cancel([future for future, _ in self._flying.values()], force=True)
        self._flying.clear()

    def _share(self) -> None:
        """Send the call as a separate task: once, and again if its worker died."""
        try:
            self._shared = self._client.submit(_return_call, self._call, pure=False)
        except (TypeError, AttributeError, PicklingError) as error:
            raise make_pickling_error(error) from error

    def _take_loss(self, future: Any) -> tuple[Lease, str]:
        """Return a lease whose workers died; raise any other error."""
        from distributed.scheduler import KilledWorker

        error = future.exception(timeout=self._patience)
        if not isinstance(error, KilledWorker):  # not the unit's, whose are outcomes
            raise _make_refused_error(error)
        return self._flying.pop(future.key)[1], "The worker died (Dask says: KilledWorker)."

    def _send_again(self, future: Any) -> None:
        """Resend a lease that Dask forgot, as it may when workers that held the call die."""
        if self._shared.status == "error":
            raise _make_refused_error(self._shared.exception())
        self._looked = -BEAT
        self._look()  # raises where the scheduler is gone
        self._forgotten += 1
        if self._client.status != "running" or self._forgotten > _FORGOTTEN:
            raise self._make_lost_error()
        _, lease = self._flying.pop(future.key)
        if self._shared.status != "finished":
            self._share()
        self.send(lease)

    def _count_fitting(self, futures: list[Any]) -> int:
        """Return how many leases to fetch at once: a round trip costs time, results cost memory."""
        left, count = MEMORY / 8, 0
        for future in futures[:_AT_ONCE] if self._largest else ():
            left -= self._largest * len(self._flying[future.key][1].units)
            count += left > 0
        return max(1, count)

    def _take_results(self, futures: list[Any]) -> Iterator[tuple[Lease, Outcome | str]]:
        coming = asyncio.run_coroutine_threadsafe(
            self._client.gather(futures, asynchronous=True), self._client.loop.asyncio_loop
        )
        try:
            results = coming.result(timeout=self._patience)
        except (*_BROKEN, asyncio.CancelledError) as error:
            coming.cancel()
            self._looked = -BEAT
            self._look()  # raises where the scheduler is gone, or the workers for long
            if not isinstance(error, TimeoutError) and self._client.status != "running":
                raise self._make_lost_error() from error
            for future in futures:  # lost with its worker, and computed again
                self._back.put(future)
            return
        except Exception as error:
            raise _make_refused_error(error) from error
        for future, (used, worker, outcomes) in zip(futures, results, strict=True):
            _, lease = self._flying.pop(future.key)
            if used != _versions():
                raise _make_skew_error(worker, used)
            for outcome in outcomes:
                self._largest = max(self._largest, 1 + count_bytes(outcome.arrays or {}))
                yield lease, outcome

    def _take_beats(self) -> None:
        leases = {key: lease for key, (_, lease) in self._flying.items()}
        while not self._beats.empty():
            for key, worker, unit, seconds in self._beats.get():
                lease = leases.get(key)
                if lease is not None and unit in lease.units:
                    lease.worker, lease.began = worker, time.monotonic() - seconds
                    lease.units = {unit: None} | lease.units  # what is under way goes first

    def _look(self) -> None:
        """Count cores, at most once per beat; raise if there have been none for long."""
        now = time.monotonic()
        if now - self._looked < BEAT:
            return
        self._looked = now
        try:
            # A stopped scheduler, or one behind a cut network, never answers.
            self._cores = sum(self._client.ncores(callback_timeout=self._patience).values())
        except TimeoutError as error:
            raise EngineLost(
                f"The Dask scheduler gave no answer for {self._patience:g} s. Finished units are "
                "safe."
            ) from error
        except _BROKEN as error:
            raise self._make_lost_error() from error
        if self._cores:
            self._seen = now
        elif now - (self._seen or self._began) > self._patience:
            address = self._client.scheduler.address
            if self._seen is None:
                raise InvalidArgument(
                    f"Expected a worker at the Dask scheduler {address!r}, none came in "
                    f"{self._patience:g} s. Start one with: dask worker {address}"
                )
            raise EngineLost(
                f"Expected a worker at the Dask scheduler {address!r}, there was none for "
                f"{self._patience:g} s. Finished units are kept."
            )

    def _end_worker(self, worker: str) -> None:
        known = self._client.scheduler_info(n_workers=-1)["workers"].get(worker)
        if known is None:
            return
        if known.get("nanny"):
            self._client.restart_workers([worker], timeout=self._patience, raise_for_error=False)
        else:
            self._client.run(_exit_worker, workers=[worker], wait=False, on_error="ignore")

    def _make_lost_error(self) -> EngineLost:
        return EngineLost("The Dask scheduler went away. Finished units are kept.")


def _make_refused_error(error: BaseException) -> EngineLost:
    return EngineLost(
        f"The Dask cluster could not take the work ({type(error).__name__}). "
        "Scheduler and workers need the packages and the code that this process has.",
        withheld=" ".join(str(error).split()),
    )


def _make_skew_error(worker: str, used: Sequence[tuple[str, str]]) -> EngineLost:
    here, there = dict(_versions()), dict(used)
    differ = "; ".join(
        f"{name} {there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    )
    return EngineLost(
        f"Expected the versions of this process at the Dask worker {worker}, found others: "
        f"{differ}. Results of both would be mixed. Install the same ones there."
    )


def _return_call(call: Call) -> Call:
    return call


def _attempt_many(
    call: Call, units: Sequence[int], home: str, topic: str
) -> tuple[tuple[tuple[str, str], ...], str, list[Outcome]]:
    """Attempt units one after the other; also return the versions and the worker."""
    from distributed import get_worker

    if home != _HERE:
        prepare_worker()
    worker = get_worker()
    key = str(worker.get_current_task())
    outcomes = []
    try:
        for unit in units:
            _BEATS.note(worker, topic, key, unit)
            outcomes.append(attempt(call, unit))
    finally:
        _BEATS.forget(key)
    return _versions(), worker.address, outcomes


class _Beats:
    """Report every second which units are running in this process, from one thread for all."""

    def __init__(self) -> None:
        self._under_way: dict[str, tuple[Any, str, int, float]] = {}
        self._begun = threading.Lock()

    def note(self, worker: Any, topic: str, key: str, unit: int) -> None:
        self._under_way[key] = worker, topic, unit, time.monotonic()
        if self._begun.acquire(blocking=False):
            threading.Thread(target=self._work, daemon=True).start()

    def forget(self, key: str) -> None:
        self._under_way.pop(key, None)

    def _work(self) -> None:
        while True:
            time.sleep(BEAT)
            said: dict[tuple[Any, str], list[tuple[str, str, int, float]]] = {}
            for key, (worker, topic, unit, since) in list(self._under_way.items()):
                if (seconds := time.monotonic() - since) > BEAT:
                    beat = (key, worker.address, unit, seconds)
                    said.setdefault((worker, topic), []).append(beat)
            for (worker, topic), beats in said.items():
                with suppress(*_BROKEN):  # the worker is closing
                    worker.log_event(topic, beats)


_BEATS = _Beats()


def _exit_worker() -> None:
    os._exit(1)
