"""Record every second which units are running, so that others see that a run is alive.

``leases.json`` is in the directory of a run while a process works on it. It lists which worker
holds which unit for how long, and the usual time. A unit that takes much longer is reported once.
Nothing is decided by this file, and a run continues if it cannot be written.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from epsilometer._files import Folder
from epsilometer.engine.leases import BEAT, Board
from epsilometer.errors import UnreadableFile

LEASES = "leases.json"
_LISTED = 100  # running units, the oldest of them
_LARGEST = 2**20  # bytes of the file
_SILENT = 10 * BEAT  # seconds without a heartbeat after which a locked run counts as silent


class UnderWay(msgspec.Struct, frozen=True):
    """Hold how long a worker has held a unit, and whether that is much longer than usual."""

    unit: int
    worker: str
    seconds: float
    late: bool


class Heartbeat(msgspec.Struct, frozen=True):
    """Hold the state that a run last reported.

    Attributes:
        time: When, in seconds since 1970.
        process: ID of the process that works on it.
        host: Machine of that process.
        usual: Median of the seconds that units took; None before a few have finished.
        under_way: Units that workers hold, the oldest first.
    """

    time: float
    process: int
    host: str
    usual: float | None
    under_way: tuple[UnderWay, ...]

    @property
    def silence(self) -> float:
        """Seconds since then, if that is longer than it should be; else 0."""
        since = time.time() - self.time
        return since if since > _SILENT else 0.0


def read_heartbeat(directory: Path) -> Heartbeat | None:
    """Return the last heartbeat of a run; None if there is none, or it is not readable."""
    try:
        with Folder.hold(directory) as home:
            return msgspec.json.decode(home.read(LEASES, largest=_LARGEST), type=Heartbeat)
    except (OSError, UnreadableFile, msgspec.MsgspecError, RecursionError):
        return None


class Heart:
    """Write a heartbeat every second, in a thread."""

    def __init__(self, board: Board, directory: Path | None, tell: Callable[..., Any]) -> None:
        """Take the board to read, where to write (None for nowhere), and a callback for delays."""
        self._board, self._directory, self._tell = board, directory, tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="epsilometer-heart", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._directory is not None:
            with suppress(OSError), Folder.hold(self._directory) as home:
                home.remove(LEASES)

    def _work(self) -> None:
        while not self._over.wait(BEAT):
            usual = self._board.usual
            leases = sorted(self._board.leases(), key=lambda lease: -lease.seconds)
            for lease in leases:
                if not lease.late and self._board.is_late(lease, usual):
                    lease.late = True
                    with suppress(Exception):  # of whoever listens: the run must not end by it
                        self._tell(
                            "late",
                            unit=lease.unit,
                            worker=lease.worker,
                            seconds=round(lease.seconds, 1),
                            usual=usual,
                        )
            if self._directory is not None:
                self._write(self._directory, usual, leases)

    def _write(self, directory: Path, usual: float | None, leases: list[Any]) -> None:
        under_way = []
        for lease in leases[:_LISTED]:
            with suppress(StopIteration):  # its last unit has just come back
                seconds = round(lease.seconds, 1)
                under_way.append(UnderWay(lease.unit, lease.worker, seconds, lease.late))
        beat = Heartbeat(time.time(), os.getpid(), socket.gethostname(), usual, tuple(under_way))
        with suppress(OSError, UnreadableFile), Folder.hold(directory) as home:
            home.write(LEASES, msgspec.json.encode(beat), lasting=False)
