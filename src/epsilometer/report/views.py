"""Build what a report says of each adversary's view: verdict, scale, threat, bounds, curves."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound, Role
from epsilometer.core.claim import Claim
from epsilometer.core.document import (
    Badge,
    Fact,
    Facts,
    Figures,
    Notes,
    Row,
    Scale,
    Section,
    Verdict,
)
from epsilometer.core.findings import AttackSummary, ConformanceFinding, EpsilonFinding
from epsilometer.core.words import (
    claimed,
    headline,
    number,
    number_up,
    word_finding,
    word_reach,
)
from epsilometer.report import words
from epsilometer.report.figures import draw_view
from epsilometer.report.texts import TEXTS, list_facts, proves, tabulate

_FULL = 92.0  # per cent of the width for numbers; the rest is for what lies beyond all of them
_BEYOND = 97.0  # where infinity is drawn
_TICKS = 8


def take_view(audit: Audit, view: EpsilonFinding) -> Audit:
    """Return an audit of one of its views alone, for everything that is said of an audit."""
    return replace(audit, subject=view.subject, findings=(view,), advice=(), caveats=(), cites=())


def word_together(audit: Audit) -> str:
    """Say how far several bounds hold together."""
    use = "the largest may be quoted" if audit.claim is None else "one of them suffices to refute"
    return words.say("together", audit, use=use)


def build_view(audit: Audit, view: EpsilonFinding, *, place: int, lone: bool) -> Section:
    """Return what is said of one view; a lone one is the whole audit."""
    alone, bounds = take_view(audit, view), (view.bound, *view.also)
    meaning = Notes(
        title="What it means, and what not", lines=tuple(words.word_bound_meaning(view.bound))
    )
    return Section(
        title=view.subject,
        key=f"view-{place}",
        verdict=Verdict(
            badge=judge_badge(alone.verdict),
            finding=word_finding(alone),
            lead=word_reach(alone),
            headline=headline(alone),
        ),
        notes=tuple(words.word_run(view)),
        summary=(
            _place_bounds(_list_bounds(view), audit.claim),
            build_threat([view], audit),
        ),
        blocks=(
            Facts(title="What the attack saw", rows=tuple(_list_rates(view.attack)), style="tiles"),
            Figures(
                figures=draw_view(view, audit.claim),
                key=f"view-{place}",
                stem="" if lone else f"{place}-",
            ),
            *(() if lone else (meaning,)),
            tabulate(TEXTS["bounds"], audit, bounds),
            *([tabulate(TEXTS["estimates"], audit, view.estimates)] if view.estimates else []),
            Section(
                title="What the method guarantees and assumes",
                summary=tuple(_build_card(audit, bound) for bound in bounds),
                brief=False,
            ),
        ),
        brief=False,
    )


def judge_badge(verdict: judge.Verdict) -> Badge:
    """Return a verdict in its tone."""
    return Badge(verdict, judge.tone(verdict))


def build_threat(views: Sequence[EpsilonFinding], audit: Audit) -> Facts:
    """Return who attacks what, each sentence once."""
    rows = [row for view in views for row in words.word_threat(view.bound, audit.claim)]
    return Facts(title="Threat model", rows=tuple(dict.fromkeys(rows)), style="threat")


def _list_rates(attack: AttackSummary) -> Iterator[Fact]:
    yield Fact("AUC", f"{attack.auc:.3f}")
    for fpr, tpr in attack.tpr_at_fpr:
        yield Fact(f"caught at {100 * fpr:.3g}% false positives", f"{tpr:.1%}")
    yield Fact("observations with the record", f"{attack.n_in:,}")
    yield Fact("without it", f"{attack.n_out:,}")


def _build_card(audit: Audit, bound: EpsilonLowerBound) -> Facts:
    rows = list_facts(audit, "EpsilonLowerBound", bound)
    caveats = (Fact("Caveat", caveat) for caveat in bound.caveats)
    return Facts(title=bound.method, rows=(*rows, *caveats), brief=False)


class _Bound(NamedTuple):
    """A bound with its name on the scale, and the verdict on it alone."""

    bound: EpsilonLowerBound | EpsilonEstimate
    name: str
    decides: bool
    badge: Badge | None = None


def build_scale(audit: Audit) -> Scale | None:
    """Return the scale of an audit: of its one view, or of all of them; None without any."""
    views = audit.find(EpsilonFinding)
    several = len(views) > 1 and audit.claim is not None
    bounds = [
        _Bound(finding.bound, "what ran", True, _judge(audit, finding) if several else None)
        for finding in audit.find(ConformanceFinding)
        if finding.bound is not None
    ]
    if len(views) == 1:
        bounds += _list_bounds(views[0])
    for view in views if len(views) > 1 else ():
        computed, bound = view.computed, view.bound
        # What says most of a view: its bound, or what was computed where that is larger.
        best = computed if computed is not None and computed.low > bound.epsilon else bound
        bounds.append(_Bound(best, view.subject, True, _judge(audit, view) if several else None))
    return _place_bounds(bounds, audit.claim) if bounds else None


def _judge(audit: Audit, finding: EpsilonFinding | ConformanceFinding) -> Badge:
    return judge_badge(judge.judge_finding(audit.claim, finding))


def _list_bounds(view: EpsilonFinding) -> list[_Bound]:
    return [
        _Bound(view.bound, view.bound.method, True),
        *(_Bound(bound, bound.method, False) for bound in view.also),
        *(_Bound(e, f"{e.method}, {e.direction}", proves(e)) for e in view.estimates),
    ]


def _place_bounds(bounds: Sequence[_Bound], claim: Claim | None) -> Scale:
    """Return bounds where their numbers lie."""
    ends = [_find_end(each.bound) for each in bounds]
    values = [*(value for _, value, _ in ends), *([] if claim is None else [claim.epsilon])]
    # A little beyond the largest finite value, so that its interval is seen to go on.
    largest = max(filter(math.isfinite, values), default=0.0)
    end = min(1.2 * largest, 1e308) if largest > 1e-9 else 1.0
    rows = tuple(
        Row(
            name=each.name,
            value=said,
            role=role,
            start=_place(value, end),
            decides=each.decides,
            valid=proves(each.bound),
            badge=each.badge,
        )
        for each, (role, value, said) in zip(bounds, ends, strict=True)
    )
    return Scale(
        title="Measured ε" if claim is None else "Claimed and measured ε",
        rows=rows,
        ticks=_place_ticks(end),
        claim=None if claim is None else _place(claim.epsilon, end),
        claimed="" if claim is None else f"claimed ε = {claimed(claim.epsilon)}",
    )


def _find_end(bound: EpsilonLowerBound | EpsilonEstimate) -> tuple[Role, float, str]:
    """Return the role of a bound, the end of its interval that matters, and that in words."""
    if isinstance(bound, EpsilonLowerBound):
        return "lower", bound.epsilon, f"ε ≥ {number(bound.epsilon)}"
    if bound.role == "lower":
        return "lower", bound.low, f"ε ≥ {number(bound.low)}"
    if bound.role == "upper":
        return "upper", bound.high, f"ε ≤ {number_up(bound.high)}"
    return "reference", bound.epsilon, f"ε = {number(bound.epsilon)}"


def _place(value: float, end: float) -> float:
    return round(_FULL * min(value / end, 1.0), 3) if math.isfinite(value) else _BEYOND


def _place_ticks(end: float) -> tuple[tuple[float, str], ...]:
    """Return multiples of 1, 2 or 5 times a power of ten, a handful of them."""
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if end <= _TICKS * power * factor)
    return tuple(
        (_place(step * i, end), f"{step * i:g}") for i in range(_TICKS + 1) if step * i <= end
    )
