"""Promised and measured ε on one scale: where everything lies, for a template to draw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from epsilometer.core.claim import Claim
from epsilometer.report.words import number, promised
from epsilometer.core.audit import AuditGroup, AuditResult
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound

_FULL = 92.0  # per cent of the width for numbers; the rest is for what lies beyond all of them
_BEYOND = 97.0  # where infinity is drawn
_TICKS = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """One bound: the interval from it to infinity, and the promise it is held against.

    Attributes:
        name: What is measured.
        value: The bound in words.
        start: Per cent of the width at which the interval begins.
        promised: Where the promise stands, per cent; none where nothing was promised.
        promise: The promise in words, empty where there is none.
        decides: Whether a verdict rests on it.
        valid: Whether it is a bound at all.
    """

    name: str
    value: str
    start: float
    promised: float | None
    promise: str
    decides: bool
    valid: bool


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Rows under each other, and (per cent, text) ticks of the axis they share."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]


def scale(result: EpsilonLowerBound | AuditResult | AuditGroup) -> Scale:
    """The scale of an audit with its bounds, of a group with its audits, or of a lone bound."""
    match result:
        case AuditGroup():
            return _scale([(a.subject, a.bound, a.claim, True) for a in result.results])
        case AuditResult():
            first = (result.bound.method, result.bound, result.claim, True)
            also = ((b.method, b, result.claim, False) for b in result.also)
            theory = (
                (f"{e.method}, {e.direction}", e, result.claim, e.confidence == 1)
                for e in result.estimates
            )
            return _scale([first, *also, *theory])
        case EpsilonLowerBound():
            return _scale([(result.method, result, None, True)])


def _scale(
    bounds: Sequence[tuple[str, EpsilonLowerBound | EpsilonEstimate, Claim | None, bool]],
) -> Scale:
    values = [_least(bound) for _, bound, _, _ in bounds]
    values += [claim.epsilon for _, _, claim, _ in bounds if claim is not None]
    end = _end(values)
    rows = tuple(
        Row(
            name=name,
            value=f"ε ≥ {number(_least(bound))}",
            start=_place(_least(bound), end),
            promised=None if claim is None else _place(claim.epsilon, end),
            promise="" if claim is None else f"promised ε = {promised(claim.epsilon)}",
            decides=decides,
            valid=_proves(bound),
        )
        for name, bound, claim, decides in bounds
    )
    return Scale(rows=rows, ticks=_ticks(end))


def _proves(bound: EpsilonLowerBound | EpsilonEstimate) -> bool:
    """Whether nothing below it can be true; what was sampled only says so with some chance."""
    return bound.confidence == 1 if isinstance(bound, EpsilonEstimate) else bound.valid


def _least(bound: EpsilonLowerBound | EpsilonEstimate) -> float:
    return bound.low if isinstance(bound, EpsilonEstimate) else bound.epsilon


def _end(values: list[float]) -> float:
    """A little beyond the largest finite value, so that its interval is seen to go on."""
    largest = max([value for value in values if math.isfinite(value)], default=0.0)
    return min(1.2 * largest, 1e308) if largest > 1e-9 else 1.0


def _place(value: float, end: float) -> float:
    return round(_FULL * min(value / end, 1.0), 3) if math.isfinite(value) else _BEYOND


def _ticks(end: float) -> tuple[tuple[float, str], ...]:
    """At multiples of 1, 2 or 5 times a power of ten, a handful of them."""
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if end <= _TICKS * power * factor)
    return tuple(
        (_place(step * i, end), f"{step * i:g}") for i in range(_TICKS + 1) if step * i <= end
    )
