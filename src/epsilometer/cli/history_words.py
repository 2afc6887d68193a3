"""Format entries of a history."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from epsilometer.core.printing import one_line
from epsilometer.core.words import claimed as claimed_epsilon
from epsilometer.core.words import number
from epsilometer.files.history.entries import Entry
from epsilometer.files.history.trend import Trend

CAUTION = (
    "A rising bound may mean that the model leaks more, that the attack is better, or that there "
    "were more runs; a falling bound never proves more privacy. Each bound holds at its own "
    "confidence, and the largest does not hold for all."
)
TREND_HEAD = ("run", "written (UTC)", "claimed ε", "found", "verdict", "also changed")
_BARS = "▁▂▃▄▅▆▇█"


def date(entry: Entry) -> str:
    """Return when it was written, in UTC, independent of the locale."""
    return f"{datetime.fromtimestamp(entry.written, UTC):%Y-%m-%d %H:%M}"


def run(entry: Entry) -> str:
    """Return the name of the run, with the number of the view if it is not the first."""
    label = one_line(entry.label)
    return label if entry.part == 1 else f"{label} #{entry.part}"


def found(entry: Entry) -> str:
    """Return the result: a bound, or the advantage of an attack on a classifier."""
    if entry.epsilon is None:
        gained = entry.advantage
        return "–" if gained is None else f"TPR − FPR {number(gained)}"
    return f"ε ≥ {number(entry.epsilon)}" + ("" if entry.valid else ", not valid")


def claimed(entry: Entry) -> str:
    """Return the claimed ε, or a dash."""
    return "–" if entry.claim is None else claimed_epsilon(entry.claim)


def trend_title(trend: Trend) -> str:
    """Return the title of a trend."""
    parts = [trend.subject]
    if trend.adversary not in ("", "unstated"):
        parts.append(f"adversary: {trend.adversary}")
    if trend.delta is not None:
        parts.append(f"δ = {trend.delta:g}")
    return one_line("; ".join(parts))


def trend_rows(trend: Trend) -> list[tuple[str, ...]]:
    """Return one row per entry, with the columns of ``TREND_HEAD``."""
    return [
        (run(e), date(e), claimed(e), found(e), e.view_verdict, one_line(note))
        for e, note in zip(trend.entries, trend.notes, strict=True)
    ]


def sparkline(values: Sequence[float | None]) -> str:
    """Return values as bars of eight heights from 0: a gap for none, ∞ as itself."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    largest = max([*finite, 1e-9])
    return "".join(_bar(value, largest) for value in values)


def _bar(value: float | None, largest: float) -> str:
    if value is None:
        return " "
    if math.isinf(value):
        return "∞"
    return _BARS[round((len(_BARS) - 1) * max(value, 0.0) / largest)]
