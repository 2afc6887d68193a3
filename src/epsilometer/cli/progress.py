"""Show the progress of a run: a bar on a terminal, lines elsewhere, JSON for machines."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from epsilometer.cli.output import say
from epsilometer.core.printing import name_error, one_line
from epsilometer.engine.events import Event, Listener

_BETWEEN_LINES = 5.0  # seconds
_SHOWN = 3  # failures of one cause that are shown individually


def listener(*, as_json: bool) -> Listener:
    """Return a listener that suits standard error."""
    if as_json:
        return lambda event: say(_withhold_error(event).to_json(), err=True)
    return _Bar() if sys.stderr.isatty() else _Lines()


def _word_warning(event: Event) -> str:
    """Return the warnings that every display shows; "" for other events."""
    about = event.details
    match event.name:
        case "damaged":
            return one_line(f"{about['file']} is computed again: {about['reason']}.")
        case "late":
            usual = "" if about["usual"] is None else f", where {about['usual']:.3g} s is usual"
            return one_line(
                f"Unit {about['unit']} is late: {about['seconds']:.0f} s at {about['worker']}"
                f"{usual}."
            )
        case "lost":
            count = len(about["units"])
            return one_line(
                f"{count} unit{'' if count == 1 else 's'} at {about['worker']} will be tried "
                f"again: {about['reason']}"
            )
        case "failed":
            return f"Unit {about['unit']} failed: {name_error(about['error'])}."
        case "stopped":
            return one_line(f"Stopped after {about['used']} units: {about['reason']}.")
        case _:
            return ""


def _withhold_error(event: Event) -> Event:
    """Return the event for a log: with the type of an error, without its text."""
    if event.name != "failed":
        return event
    details = {**event.details, "error": name_error(str(event.details["error"]))}
    return replace(event, details=details)


class _Warnings:
    """Word warnings; of many failures, the first of each cause and a summary."""

    def __init__(self) -> None:
        self._causes: Counter[str] = Counter()

    def word(self, event: Event) -> str:
        if event.name == "failed":
            cause = name_error(event.details["error"])
            self._causes[cause] += 1
            if self._causes[cause] > _SHOWN:
                return ""
        if event.name in ("finished", "cancelled") and max(self._causes.values(), default=0) > 1:
            counts = (f"{count:,} × {cause}" for cause, count in self._causes.most_common())
            return one_line(f"{self._causes.total():,} units failed: {', '.join(counts)}.")
        return _word_warning(event)


class _Pace:
    """Measure units per second since this call began, without units that were finished before."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, finished: int) -> None:
        self._start, self._before = time.monotonic(), finished

    def rate(self, finished: int) -> float:
        return (finished - self._before) / max(time.monotonic() - self._start, 1e-9)


def _word_rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


class _Lines:
    """Print a plain line from time to time; of stages after the first, only if they take long."""

    def __init__(self, write: Callable[[str], Any] | None = None) -> None:
        self._say = write or (lambda line: say(line, err=True))
        self._pace, self._spoke, self._done = _Pace(), -_BETWEEN_LINES, -1
        self._warnings, self._waiting = _Warnings(), ""
        self._begun = False

    def __call__(self, event: Event) -> None:
        details = event.details
        if event.name == "started":
            self._pace.begin(details["finished"])
            before = f", {details['finished']} finished before" if details["finished"] else ""
            units = "1 unit" if details["units"] == 1 else f"{details['units']} units"
            said = f"{units}{before}, {details['workers']} at a time."
            if self._begun:
                self._waiting = said
            else:
                self._say(said)
            self._begun, self._done = True, -1
        elif event.name == "progress":
            last = details["finished"] + details["failed"] == details["units"]
            due = time.monotonic() - self._spoke >= _BETWEEN_LINES or (last and not self._waiting)
            done = details["finished"] + details["failed"]
            if due and done != self._done:  # a run may say twice that it is at its end
                self._spoke, self._done = time.monotonic(), done
                if self._waiting:
                    self._say(self._waiting)
                    self._waiting = ""
                self._say(self._line(details))
        elif warning := self._warnings.word(event):
            self._say(warning)

    def _line(self, details: Any) -> str:
        rate = self._pace.rate(details["finished"])
        left = details["units"] - details["finished"] - details["failed"]
        parts = [f"{details['finished']}/{details['units']} units", _word_rate(rate)]
        if rate > 0 and left:
            parts.append(f"{left / rate:.0f} s left")
        if details["epsilon"] is not None:
            parts.append(f"ε ≥ {details['epsilon']:.2f} so far")
        return ", ".join(parts)


class _Bar:
    """Show a bar with rate, time left and the bound so far."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[bound]}", style="bold cyan"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: TaskID | None = None
        self._pace, self._warnings = _Pace(), _Warnings()

    def __call__(self, event: Event) -> None:
        details = event.details
        if event.name == "started":
            self._pace.begin(details["finished"])
            if self._task is not None:  # an audit of several stages has one bar, not one for each
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(
                "Running", total=details["units"], completed=details["finished"], rate="", bound=""
            )
            self._progress.start()
        elif event.name == "progress" and self._task is not None:
            bound = details["epsilon"]
            self._progress.update(
                self._task,
                completed=details["finished"] + details["failed"],
                rate=_word_rate(self._pace.rate(details["finished"])),
                bound="" if bound is None else f"ε ≥ {bound:.2f} so far",
            )
        elif event.name in ("finished", "cancelled"):
            self._progress.stop()
        if warning := self._warnings.word(event):
            self._progress.console.print(Text(warning))
