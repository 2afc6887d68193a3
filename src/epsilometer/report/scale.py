"""Place claimed and measured ε on one scale: where everything lies, for a template to draw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound, Role
from epsilometer.core.claim import Claim
from epsilometer.core.findings import ConformanceFinding, EpsilonFinding
from epsilometer.core.words import claimed, number, number_up
from epsilometer.report.words import own_views

_FULL = 92.0  # per cent of the width for numbers; the rest is for what lies beyond all of them
_BEYOND = 97.0  # where infinity is drawn
_TICKS = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """One bound: the interval that it leaves open, beside what was claimed.

    Attributes:
        name: What is measured.
        value: The bound in words.
        role: A lower bound's interval begins at ``start`` and has no end, an upper bound's ends
            there, and a reference is a mark alone.
        start: Where that is, per cent of the width.
        decides: Whether a verdict may rest on it.
        valid: Whether it is a bound at all.
    """

    name: str
    value: str
    role: Role
    start: float
    decides: bool
    valid: bool


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Rows under each other, and the axis they share.

    Attributes:
        rows: From top to bottom.
        ticks: (Per cent, text) pairs.
        claim: Where the claim stands, per cent; none where nothing was claimed.
        claimed: The claim in words, empty where there is none.
    """

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    claim: float | None
    claimed: str


def scale(audit: Audit) -> Scale | None:
    """Return the scale of an audit: of its one view, or of all of them; None without any."""
    views = own_views(audit)
    ran = [
        _Part(finding.bound, "what ran", True)
        for finding in audit.find(ConformanceFinding)
        if finding.bound is not None
    ]
    if not views and not ran:
        return None
    if len(views) == 1:
        return _scale([*ran, *_parts(views[0])], audit.claim)
    parts = [_Part(_strongest(view), view.subject, True) for view in views]
    return _scale([*ran, *parts], audit.claim)


class _Part(NamedTuple):
    bound: EpsilonLowerBound | EpsilonEstimate
    name: str
    decides: bool


def _strongest(view: EpsilonFinding) -> EpsilonLowerBound | EpsilonEstimate:
    """Return what says most of a view: its bound, or what was computed where that is larger."""
    computed = view.computed
    return computed if computed is not None and computed.low > view.bound.epsilon else view.bound


def _parts(view: EpsilonFinding) -> list[_Part]:
    return [
        _Part(view.bound, view.bound.method, True),
        *(_Part(bound, bound.method, False) for bound in view.also),
        *(_Part(e, f"{e.method}, {e.direction}", _proves(e)) for e in view.estimates),
    ]


def _scale(parts: Sequence[_Part], claim: Claim | None) -> Scale:
    values = [_end_of(part.bound) for part in parts]
    values += [] if claim is None else [claim.epsilon]
    end = _end(values)
    rows = tuple(
        Row(
            name=part.name,
            value=_value(part.bound),
            role=_role(part.bound),
            start=_place(_end_of(part.bound), end),
            decides=part.decides,
            valid=_proves(part.bound),
        )
        for part in parts
    )
    return Scale(
        rows=rows,
        ticks=_ticks(end),
        claim=None if claim is None else _place(claim.epsilon, end),
        claimed="" if claim is None else f"claimed ε = {claimed(claim.epsilon)}",
    )


def _role(bound: EpsilonLowerBound | EpsilonEstimate) -> Role:
    return bound.role if isinstance(bound, EpsilonEstimate) else "lower"


def _proves(bound: EpsilonLowerBound | EpsilonEstimate) -> bool:
    """Tell whether it is a bound; what was sampled, or is of something else, is none."""
    if isinstance(bound, EpsilonLowerBound):
        return bound.valid
    return bound.confidence == 1 and bound.role != "reference"


def _end_of(bound: EpsilonLowerBound | EpsilonEstimate) -> float:
    """Return the end of the interval that matters: the lower one of a lower bound."""
    if isinstance(bound, EpsilonLowerBound):
        return bound.epsilon
    return {"lower": bound.low, "upper": bound.high, "reference": bound.epsilon}[bound.role]


def _value(bound: EpsilonLowerBound | EpsilonEstimate) -> str:
    value, role = _end_of(bound), _role(bound)
    if role == "upper":
        return f"ε ≤ {number_up(value)}"
    return f"ε {'=' if role == 'reference' else '≥'} {number(value)}"


def _end(values: list[float]) -> float:
    """Return a little beyond the largest finite value, so that its interval is seen to go on."""
    largest = max([value for value in values if math.isfinite(value)], default=0.0)
    return min(1.2 * largest, 1e308) if largest > 1e-9 else 1.0


def _place(value: float, end: float) -> float:
    return round(_FULL * min(value / end, 1.0), 3) if math.isfinite(value) else _BEYOND


def _ticks(end: float) -> tuple[tuple[float, str], ...]:
    """Return multiples of 1, 2 or 5 times a power of ten, a handful of them."""
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if end <= _TICKS * power * factor)
    return tuple(
        (_place(step * i, end), f"{step * i:g}") for i in range(_TICKS + 1) if step * i <= end
    )
