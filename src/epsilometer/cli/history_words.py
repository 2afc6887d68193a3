"""Word entries of a history."""

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
    """Say when it was written, in UTC: the same words everywhere."""
    return f"{datetime.fromtimestamp(entry.written, UTC):%Y-%m-%d %H:%M}"


def run(entry: Entry) -> str:
    """Name the run, and which of its views where it is not the first."""
    label = one_line(entry.label)
    return label if entry.part == 1 else f"{label} #{entry.part}"


def found(entry: Entry) -> str:
    """Say what was found: a bound, or what an attack on a classifier gained."""
    if entry.epsilon is None:
        gained = entry.advantage
        return "–" if gained is None else f"TPR − FPR {number(gained)}"
    return f"ε ≥ {number(entry.epsilon)}" + ("" if entry.valid else ", not valid")


def claimed(entry: Entry) -> str:
    """Return the claimed ε, or a dash."""
    return "–" if entry.claim is None else claimed_epsilon(entry.claim)


def trend_title(trend: Trend) -> str:
    """Say what is followed."""
    parts = [trend.subject]
    if trend.adversary not in ("", "unstated"):
        parts.append(f"adversary: {trend.adversary}")
    if trend.delta is not None:
        parts.append(f"δ = {trend.delta:g}")
    return one_line("; ".join(parts))


def trend_rows(trend: Trend) -> list[tuple[str, ...]]:
    """Return one row per entry, as ``TREND_HEAD`` names them."""
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
