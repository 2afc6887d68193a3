"""Grant units to workers as leases, and handle leases that are lost.

A lease says which units a worker holds and since when. It ends with an outcome of each unit, or it
is lost: the worker died, or took too long. Both cases are treated alike. Units that were lost
together are granted again one by one; a unit that was lost alone is granted again when nothing else
is running. Only a unit lost then counts as the cause. The board of open leases shows which units
are late.
"""

import statistics
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from epsilometer.engine.shards import MEMORY, Arrays, check_arrays, count_bytes
from epsilometer.errors import EpsilometerError

Call: TypeAlias = Callable[[int], Any]
Outcomes: TypeAlias = Generator["Outcome", None, None]
BEAT = 1.0  # seconds between signs of life
_SPAN = 0.1  # seconds of work in a lease: units that take less share one
_MOST = 500  # units in a lease
_REMEMBERED = 1001  # durations of units
_ENOUGH = 5  # durations that a median needs
_LATE, _LATE_FLOOR = 5.0, 10.0  # a unit is late after so many medians, and so many seconds
_LIMIT, _LIMIT_FLOOR = 30.0, 60.0  # and lost after so many, if no timeout is given
_UNSURE = 10.0  # times that, while the usual time is known from few units or an earlier call
_MORE_TIME = 4.0  # times the limit at each retry: some units are slow
_FRAMES, _LINES, _LETTERS = 100, 1_000, 1_000  # of a traceback: innermost calls; lines; of a line
_STRANGE = 10  # losses of a unit that are explained by workers which died idle


class EngineLost(EpsilometerError):
    """The engine was lost, and not because of a unit."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Hold the result or the failure of a unit.

    Attributes:
        unit: Its number.
        arrays: Its return value; None if it failed.
        error: Why it failed, with a traceback if there is one; empty if it did not fail.
        seconds: Its duration.
    """

    unit: int
    arrays: Arrays | None
    error: str
    seconds: float


@dataclass(eq=False)
class Lease:
    """Hold the units that are granted to a worker.

    Attributes:
        units: Those without an outcome yet, in order; the first is running.
        worker: Description of the worker.
        alone: Whether nothing else is running.
        began: When its first unit began, by the monotonic clock; None while it waits its turn.
        strange: Workers that had died idle when it was granted.
        late: Whether it was reported late.
    """

    units: dict[int, None]
    worker: str
    alone: bool = False
    began: float | None = field(default_factory=time.monotonic)
    strange: int = 0
    late: bool = False

    @property
    def unit(self) -> int:
        """The unit that is running."""
        return next(iter(self.units))

    @property
    def seconds(self) -> float:
        """Seconds that this unit has been running."""
        return 0.0 if self.began is None else time.monotonic() - self.began


class Board:
    """Hold the open leases, how long units usually take, and the callback for losses."""

    def __init__(
        self, tell: Callable[..., None] | None = None, before: float | None = None
    ) -> None:
        """Take a callback for events, as in ``tell("lost", unit=…)``, and the earlier median."""
        self._open: dict[Lease, None] = {}
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._before = () if before is None else (before,)
        self.tell = tell or (lambda name, **details: None)

    def open(self, lease: Lease) -> None:
        """Add a lease."""
        self._open[lease] = None

    def close(self, lease: Lease) -> None:
        """Remove a lease."""
        self._open.pop(lease, None)

    def note(self, seconds: float) -> None:
        """Record how long a unit took."""
        self._seconds.append(seconds)

    def leases(self) -> list[Lease]:
        """Return the leases with a running unit."""
        return [lease for lease in list(self._open) if lease.units and lease.began is not None]

    @property
    def usual(self) -> float | None:
        """The median time of units, or the longest of a few; before any, that of an earlier call.

        The last unit of a resumed run may be the one that hangs.
        """
        seconds = list(self._seconds)
        if self.is_sure:
            return statistics.median(seconds)
        return max(seconds or self._before, default=None)

    @property
    def is_sure(self) -> bool:
        """Whether enough units have finished to know the usual time."""
        return len(self._seconds) >= _ENOUGH

    def is_late(self, lease: Lease, usual: float | None) -> bool:
        """Tell whether a unit takes much longer than others did."""
        return usual is not None and lease.seconds > max(_LATE_FLOOR, _LATE * usual)


_BOARD: ContextVar[Board | None] = ContextVar("the board of this run", default=None)


@contextmanager
def post_leases(board: Board) -> Iterator[None]:
    """Let engines used inside post their leases on this board."""
    token = _BOARD.set(board)
    try:
        yield
    finally:
        _BOARD.reset(token)


def find_board() -> Board:
    """Return the board of the run that this call is part of, or one that is not read."""
    return _BOARD.get() or Board()


class Crew(Protocol):
    """Define the workers of one call.

    Attributes:
        can_end: Whether a worker can be stopped from outside.
        strange: Number of workers that died while they held nothing.
    """

    can_end: bool
    strange: int

    @property
    def size(self) -> int:
        """Number of units that can be executed at a time now."""
        ...

    def find_free(self, wanted: int) -> list[str]:
        """Return workers that could begin now, and start more if needed."""
        ...

    def send(self, lease: Lease) -> None:
        """Hand units to the worker that the lease names."""
        ...

    def wait(self, seconds: float) -> Iterator[tuple[Lease, Outcome | str]]:
        """Wait, and yield outcomes of leases as they come, or why one was lost."""
        ...

    def end(self, lease: Lease) -> None:
        """Stop the worker that holds a lease. No further outcome of the lease follows."""
        ...

    def close(self) -> None:
        """Stop all running units."""
        ...


def execute(
    crew: Crew, units: Iterable[int], *, retries: int, timeout: float | None = None
) -> Outcomes:
    """Yield the outcome of each unit as it finishes.

    Guarantee: every unit has exactly one outcome. A unit whose worker died, or that took too long,
        fails only after it was lost ``retries`` times with nothing else running.

    Args:
        crew: Workers that execute them. It is always closed at the end.
        units: Their numbers.
        retries: How often a lost unit is retried.
        timeout: Seconds that a unit may take; None derives it from the median of finished ones.
    """
    work = _Work(crew, units, retries=retries, timeout=timeout)
    try:
        yield from work.outcomes()
    finally:
        work.close()


class _Work:
    """Hold the units of one call: not begun, running, or lost."""

    def __init__(
        self, crew: Crew, units: Iterable[int], *, retries: int, timeout: float | None
    ) -> None:
        self._crew, self._retries, self._timeout = crew, retries, timeout
        self._board = find_board()
        self._todo = deque(units)
        self._single: deque[int] = deque()  # lost together: each is granted alone
        self._alone: deque[int] = deque()  # lost alone: granted when nothing else is running
        self._losses: Counter[int] = Counter()  # alone
        self._strange: Counter[int] = Counter()
        self._open: dict[Lease, None] = {}
        self._largest = 0  # bytes of a unit

    def outcomes(self) -> Outcomes:
        while self._todo or self._single or self._alone or self._open:
            self._grant()
            for lease, answer in self._crew.wait(BEAT):
                if lease not in self._open:
                    continue
                if isinstance(answer, str):
                    yield from self._lose(lease, answer)
                else:
                    yield self._take(lease, answer)
            yield from self._end_late()

    def close(self) -> None:
        for lease in self._open:
            self._board.close(lease)
        self._crew.close()

    def _grant(self) -> None:
        alone = not (self._todo or self._single)
        if alone and (self._open or not self._alone):
            return
        waiting = 1 if alone else len(self._single) + len(self._todo)
        for worker in self._crew.find_free(waiting):
            if alone:
                units = [self._alone.popleft()]
            elif self._single:
                units = [self._single.popleft()]
            else:
                units = [self._todo.popleft() for _ in range(self._choose_size())]
            lease = Lease(dict.fromkeys(units), worker, alone, strange=self._crew.strange)
            self._open[lease] = None
            self._board.open(lease)
            self._crew.send(lease)
            if alone or not (self._todo or self._single):
                return

    def _choose_size(self) -> int:
        """Return how many units a lease has; few at the end, so that all workers have some."""
        usual = self._board.usual
        if usual is None or not self._board.is_sure:
            return 1
        fair = len(self._todo) // (2 * self._crew.size)
        held = MEMORY // 8 // (self._crew.size * max(1, self._largest))  # may all come at once
        return max(1, min(int(_SPAN / max(usual, 1e-9)), _MOST, fair, held))

    def _take(self, lease: Lease, outcome: Outcome) -> Outcome:
        lease.units.pop(outcome.unit)
        lease.began, lease.late = time.monotonic(), False
        if outcome.arrays is not None:
            self._board.note(outcome.seconds)
            self._largest = max(self._largest, count_bytes(outcome.arrays))
        if not lease.units:
            self._end(lease)
        return outcome

    def _lose(self, lease: Lease, why: str) -> Iterator[Outcome]:
        """Requeue or fail units whose worker returned no outcome."""
        self._end(lease)
        unit, units = lease.unit, list(lease.units)
        self._board.tell("lost", units=units, worker=lease.worker, reason=why.splitlines()[0])
        if len(units) > 1:
            self._single.extend(units)
            return
        if lease.alone and not self._is_strange(lease):
            self._losses[unit] += 1
        if self._losses[unit] < self._retries:
            self._alone.append(unit)
            return
        said = f"{why}\nIt was tried {self._retries} times with nothing else under way."
        yield Outcome(unit=unit, arrays=None, error=said, seconds=lease.seconds)

    def _is_strange(self, lease: Lease) -> bool:
        """Tell whether workers died that held nothing: then another program kills them."""
        if self._crew.strange == lease.strange or self._strange[lease.unit] >= _STRANGE:
            return False
        self._strange[lease.unit] += 1
        return True

    def _end_late(self) -> Iterator[Outcome]:
        if not self._crew.can_end:
            return
        usual = self._board.usual if self._timeout is None else None
        for lease in list(self._open):
            limit = self._limit(lease, usual)
            if lease.seconds > limit:
                self._crew.end(lease)
                yield from self._lose(
                    lease, f"It took longer than {limit:.3g} s and was ended; see timeout=."
                )

    def _limit(self, lease: Lease, usual: float | None) -> float:
        if self._timeout is not None:
            return self._timeout
        if usual is None:
            return float("inf")
        limit = max(_LIMIT_FLOOR, _LIMIT * usual) * (1.0 if self._board.is_sure else _UNSURE)
        return limit * _MORE_TIME ** self._losses[lease.unit]

    def _end(self, lease: Lease) -> None:
        self._open.pop(lease)
        self._board.close(lease)


def attempt(call: Call, unit: int) -> Outcome:
    """Call a unit; anything it raises, including ``SystemExit``, is its outcome."""
    start = time.perf_counter()
    try:
        arrays = check_arrays(call(unit))
        return Outcome(unit=unit, arrays=arrays, error="", seconds=time.perf_counter() - start)
    except KeyboardInterrupt:  # the user's
        raise
    except BaseException:  # the unit's, so any
        error = _shorten(traceback.format_exc(limit=-_FRAMES))
        return Outcome(unit=unit, arrays=None, error=error, seconds=time.perf_counter() - start)


def _shorten(error: str) -> str:
    """Keep the end of a traceback, short enough to be stored for every unit."""
    return "\n".join(line[:_LETTERS] for line in error.splitlines()[:_LINES]) + "\n"
