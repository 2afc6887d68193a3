"""Report what happens during a run to listeners: a progress bar, lines, a log."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from epsilometer._files import Folder
from epsilometer.errors import UnreadableFile

EVENTS = {
    "started": "work begins: units, how many are finished already, engine, workers, process, host",
    "damaged": "a shard is not what it should be, and will be computed again: file, reason",
    "late": "a unit takes much longer than usual: unit, worker, seconds, usual",
    "lost": "a worker died or was ended, and units are tried again: units, worker, reason",
    "failed": "a unit failed: unit, error",
    "progress": "units finished and failed so far, how many the bound rests on, and the bound",
    "stopped": "the rule says that this is enough: used, reason",
    "cancelled": "the run was interrupted; what is finished is safe: finished, units",
    "finished": "the result is written: used, failed",
}


@dataclass(frozen=True)
class Event:
    """Something that happened. ``name`` is one of ``EVENTS``, which says what ``details`` hold.

    The clock of ``time`` is for people; nothing is decided by it.
    """

    name: str
    details: Mapping[str, Any]
    time: float = field(default_factory=time.time)

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        plain = {"time": round(self.time, 3), "event": self.name, **self.details}
        return json.dumps(plain, ensure_ascii=False)


Listener: TypeAlias = Callable[[Event], None]


def log_to(path: Path) -> Listener:
    """Return a listener that appends events to a private file, never through a link.

    A log that cannot be written stops nothing: the disk may be full, and what matters is reported
    by whoever writes it. A line that a crash cut off stays one.
    """
    start = "\n" if _is_cut_off(path) else ""

    def listen(event: Event) -> None:
        nonlocal start
        line = (start + event.to_json() + "\n").encode("utf-8", "backslashreplace")
        with suppress(OSError, UnreadableFile), Folder.hold(path.parent) as folder:
            folder.append(path.name, line)
            start = ""

    return listen


def _is_cut_off(path: Path) -> bool:
    try:
        with Folder.hold(path.parent) as folder, folder.open(path.name) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except (OSError, UnreadableFile):  # absent, empty, or none of ours
        return False
