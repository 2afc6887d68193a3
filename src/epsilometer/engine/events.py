"""Report what happens during a run to listeners: a progress bar, lines, a log."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from epsilometer._files import Folder
from epsilometer.errors import UnreadableFile

_READ = 8 * 2**20  # bytes of a log, its last ones
_SPARSE, _RAREST = 0.01, 60.0  # seconds between reports: a share of what has passed, and at most
EVENTS = {
    "started": "work begins: units, how many are finished already, engine, workers, process, host",
    "damaged": "a shard is not what it should be, and will be computed again: file, reason",
    "late": "a unit takes much longer than usual: unit, worker, seconds, usual",
    "lost": "a worker died or was ended, and units are tried again: units, worker, reason",
    "failed": "a unit failed: unit, error",
    "progress": "units finished and failed so far, how many the bound rests on, the bound, and the "
    "seconds that a unit usually takes",
    "stopped": "the rule says that this is enough: used, reason",
    "cancelled": "the run was interrupted; what is finished is safe: finished, units",
    "finished": "the result is written: used, failed",
}


@dataclass(frozen=True)
class Event:
    """Hold an event. ``name`` is a key of ``EVENTS``, which describes the ``details``.

    ``time`` is for people only; nothing is decided by it.
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

    A log that cannot be written stops nothing: if the disk is full, whatever writes results reports
    it. A line that a crash cut off stays separate. Progress of a long run is logged less and less
    often, at last once per minute: a week takes 1 MB.
    """
    start = "\n" if _is_cut_off(path) else ""
    began = time.monotonic()
    due, kept = began, list[Event]()

    def listen(event: Event) -> None:
        nonlocal start, due
        now = time.monotonic()
        if event.name == "progress":
            kept[:] = [event]
            if now < due:
                return
            due = now + min(_SPARSE * (now - began), _RAREST)
        events = kept if event.name == "progress" else [*kept, event]
        lines = start + "".join(each.to_json() + "\n" for each in events)
        kept.clear()
        with suppress(OSError, UnreadableFile), Folder.hold(path.parent) as folder:
            folder.append(path.name, lines.encode("utf-8", "backslashreplace"))
            start = ""

    return listen


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the last events of a log; a line that is incomplete is skipped."""
    try:
        with Folder.hold(path.parent) as folder, folder.open(path.name) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _READ))
            lines = file.read(_READ).splitlines()
    except (OSError, UnreadableFile):
        return
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and is_number(event.get("time")):
            yield event


def is_number(value: Any) -> bool:
    """Tell whether a value in a log is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _is_cut_off(path: Path) -> bool:
    try:
        with Folder.hold(path.parent) as folder, folder.open(path.name) as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except (OSError, UnreadableFile):  # absent, empty, or none of ours
        return False
