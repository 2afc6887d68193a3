"""Follow one subject over audits: its entries in order."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from epsilometer.files.history.entries import Entry

By: TypeAlias = Literal["date", "name"]


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Hold audits of one subject against one adversary, at one δ.

    Attributes:
        subject: What was audited.
        adversary: The adversary, in words.
        delta: δ of all bounds; None for classifiers, which have none.
        entries: Entries in order, each with its own confidence.
    """

    subject: str
    adversary: str
    delta: float | None
    entries: tuple[Entry, ...]

    @property
    def measure(self) -> str:
        """The name of ``values``."""
        return "TPR − FPR" if self.delta is None else "ε"

    @property
    def values(self) -> tuple[float | None, ...]:
        """Return ε of each entry; for classifiers, the advantage of the strongest attack."""
        return tuple(e.advantage if self.delta is None else e.epsilon for e in self.entries)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what else changed since the previous entry, besides the model."""
        steps = zip(self.entries, self.entries[1:], strict=False)
        return ("", *(_changes(before, after) for before, after in steps))


def trends(entries: Iterable[Entry], *, by: By = "date") -> tuple[Trend, ...]:
    """Group entries of one subject, adversary, kind and δ, in order of their dates or names."""
    groups: dict[tuple[str, str, str, float | None], list[Entry]] = {}
    for entry in entries:
        key = (entry.subject, entry.adversary, entry.kind, entry.delta)
        groups.setdefault(key, []).append(entry)
    order = _by_name if by == "name" else _by_date
    return tuple(
        Trend(
            subject=subject,
            adversary=adversary,
            delta=delta,
            entries=tuple(sorted(every, key=order)),
        )
        for (subject, adversary, _, delta), every in groups.items()
    )


def _by_date(entry: Entry) -> tuple[float, str, int]:
    return entry.written, entry.path, entry.part


def _by_name(entry: Entry) -> list[tuple[int, str]]:
    """Return a sort key that puts v9 before v10: digits count as numbers."""
    pieces = re.split(r"(\d+)", f"{entry.path} {entry.part}")
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in pieces]


def _changes(before: Entry, after: Entry) -> str:
    said = [
        f"{name} {_short(old)} → {_short(new)}"
        for name, old, new in (
            ("observations", before.observations, after.observations),
            ("method", before.method, after.method),
            ("confidence", before.confidence, after.confidence),
            ("claimed ε", before.claim, after.claim),
        )
        if old != new
    ]
    return "; ".join(said)


def _short(value: float | str | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else str(value)
