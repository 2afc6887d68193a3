"""Build the document of an audit: once, for every renderer."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound, Role
from epsilometer.core.claim import Claim
from epsilometer.core.document import (
    NONE,
    Badge,
    Block,
    Document,
    Fact,
    Facts,
    Figure,
    Figures,
    Notes,
    Row,
    Scale,
    Section,
    Table,
    Verdict,
    find_figures,
)
from epsilometer.core.findings import (
    AttackSummary,
    ConformanceFinding,
    EpsilonFinding,
    FormPlan,
    MembershipFinding,
    RecordRisk,
    RuleFinding,
)
from epsilometer.core.printing import one_line
from epsilometer.core.words import (
    announce,
    claimed,
    explain_verdict,
    headline,
    number,
    number_up,
    word_evidence,
    word_reach,
)
from epsilometer.errors import InvalidArgument
from epsilometer.report import texts
from epsilometer.report.explaining import Explanation, explain
from epsilometer.report.figures import compare_views, draw_views, name_views
from epsilometer.report.finding_figures import draw_findings
from epsilometer.report.fitting import find_riskiest
from epsilometer.report.texts import TEXTS

_FULL = 92.0  # per cent of the width for numbers; the rest is for what lies beyond all of them
_BEYOND = 97.0  # where infinity is drawn
_TICKS = 8
_FIRST_RECORDS = 20  # shown without JavaScript


def build(audit: Audit, *, records: int | None = None, brief: bool = False) -> Document:
    """Return the document of an audit.

    Args:
        audit: Audit of any kind.
        records: How many it had, where some were left out.
        brief: Whether figures and the explanation are left out, for outputs that show none.
    """
    views = audit.find(EpsilonFinding)
    decided = bool(audit.find(RuleFinding) or audit.find(FormPlan))
    lines = [*dict.fromkeys(_list_meaning(audit))]
    if not brief:  # the card of each method says what it assumes
        carded = [line for view in views for line in texts.word_assumptions(view.bound)]
        lines = [line for line in lines if line not in carded]
    meaning = Notes(title="What it means, and what it does not mean", lines=tuple(lines))
    tables = [*texts.list_tables(audit)]
    tried = [table for table in tables if table.title == texts.REMEDIES] if decided else []
    first = (*tried, meaning) if decided else ()
    facts = texts.list_every_fact(audit)
    measured = (Facts(title="What was measured", rows=facts),) if facts else ()
    evidence = (
        *(measured if decided else ()),
        *(_list_attacks(audit, views)),
        *(table for table in tables if table not in tried),
        *([] if brief else _draw_evidence(audit, views)),
        *_build_records(audit, records),
    )
    document = Document(
        title=audit.subject,
        verdict=_build_verdict(audit, next(iter(meaning.lines), "")),
        decisive=len(first),
        notes=tuple(texts.word_run(audit.provenance)),
        summary=(*_list_cards(audit), *(() if decided else measured)),
        blocks=(
            *first,
            *([Section(title="Evidence", key="evidence", blocks=evidence)] if evidence else ()),
            *([_build_threat(views, audit)] if views else ()),
            *_build_method(audit, views, () if decided else (meaning,)),
            _build_again(audit.provenance),
            *([] if brief else _fold_explanation(audit)),
            *([] if brief else _draw_aside(audit, len(views))),
        ),
    )
    return replace(document, cites=tuple(_list_cites(audit, document)))


def _list_cards(audit: Audit) -> Iterator[Block]:
    """Return the blocks of the first screen."""
    advice = [*_list_advice(audit)]
    rules = [
        Fact(
            rule.rule,
            f"{rule.finding} ({texts.look_up(audit, rule, 'sure')})",
            Badge(rule.outcome.upper(), judge.tone(judge.judge_finding(None, rule))),
        )
        for rule in audit.find(RuleFinding)
    ]
    if rules:
        yield from (*advice, Facts(title="Rules", rows=tuple(rules), style="reasons"))
    scale = build_scale(audit)
    if scale is not None:
        yield scale
    if not rules:
        yield from (*_tabulate_odds(audit), *advice)


def _list_advice(audit: Audit) -> Iterator[Block]:
    """Return what to do, what helps most first."""
    title, advice, plan = "What to do next", audit.advice, audit.one(FormPlan)
    if plan is not None:
        none = "Nothing is known to stay below the limit"
        title = "What may be published" if plan.chosen else none
        advice = (*advice, *plan.advice)
    else:
        advice = (*advice, *texts.list_next(audit))
    if advice:
        yield Notes(title=title, lines=tuple(dict.fromkeys(advice)))


def _tabulate_odds(audit: Audit) -> Iterator[Table]:
    """Return how sure of one person's presence the claimed and the proved ε let someone become."""
    claim, rows = audit.claim, []
    if claim is not None:
        rows.append((f"ε = {claimed(claim.epsilon)}, as claimed", "at most", claim.epsilon))
    if audit.epsilon > 0:
        rows.append((f"ε ≥ {number(audit.epsilon)}, as proved", "at least", audit.epsilon))
    if rows:
        yield Table(
            title="What it means for one person",
            head=("ε", *(f"from {before:.0%}" for before in texts.SUSPICIONS)),
            rows=tuple(
                (name, *(f"{side} {texts.word_belief(e, before)}" for before in texts.SUSPICIONS))
                for name, side, e in rows
            ),
            note=TEXTS["sentences"]["odds"],
        )


def _list_meaning(audit: Audit) -> Iterator[str]:
    """Say what an audit says, what it rests on, and what it does not say."""
    for kind, lines in TEXTS["meaning"].items():
        if texts.list_findings(audit, kind):
            yield from texts.list_lines(lines, audit)
    views = audit.find(EpsilonFinding)
    bounds = [finding.bound for finding in audit.find(ConformanceFinding)]
    bounds += [view.bound for view in views if len(views) == 1]
    for bound in bounds:
        yield from () if bound is None else texts.word_bound_meaning(bound)
    if len(views) > 1:
        yield texts.word_together(audit)
        yield from (line for view in views for line in texts.word_assumptions(view.bound))
        yield texts.word_limits(views[0].bound)
        yield from (f"{v.subject}: {caveat}" for v in views for caveat in v.bound.caveats)
    if reach := word_reach(audit):
        yield reach
    yield from audit.caveats


def _list_attacks(audit: Audit, views: Sequence[EpsilonFinding]) -> Iterator[Block]:
    """Return how well each attack tells whether the record was there; of one view, as tiles."""
    title = "How well the attack does"
    if len(views) == 1:
        yield Facts(title=title, rows=tuple(_list_rates(views[0].attack)), style="tiles")
        return
    rates = [[*_list_rates(view.attack)] for view in views]
    head = tuple(dict.fromkeys(fact.name for facts in rates for fact in facts))
    rows, names = [], name_views(views)
    for named, facts in zip(names, rates, strict=True):
        cells = {fact.name: fact.value for fact in facts}
        rows.append((named, *(cells.get(name, NONE) for name in head)))
    notes: dict[str, list[str]] = {}
    for view, named in zip(views, names, strict=True):
        for note in texts.word_run(view):
            notes.setdefault(note, []).append(named)
    for note in texts.word_run(audit.provenance):  # of all of them, and said above
        notes.pop(note, None)
    if notes:
        yield Notes(lines=tuple(f"{', '.join(of)}: {note}" for note, of in notes.items()))
    if rows:
        yield Table(title=title, head=("view", *head), rows=tuple(rows), brief=False)


def _draw_evidence(audit: Audit, views: Sequence[EpsilonFinding]) -> Iterator[Figures]:
    yield from _collect_figures("Side by side", compare_views(audit), "views")
    yield from _collect_figures("", draw_views(views, audit.claim), "view")
    yield from _collect_figures("Figures", draw_findings(audit), "audit")


def _build_method(
    audit: Audit, views: Sequence[EpsilonFinding], first: tuple[Block, ...]
) -> Iterator[Section]:
    """Return what the numbers rest on: bounds, estimates, and what each method guarantees, once."""
    named = [*zip(name_views(views), views, strict=True)]
    pairs = [(name, bound) for name, view in named for bound in (view.bound, *view.also)]
    bounds = texts.tabulate(TEXTS["bounds"], audit, [bound for _, bound in pairs])
    estimated = [(name, estimate) for name, view in named for estimate in view.estimates]
    estimates = texts.tabulate(TEXTS["estimates"], audit, [each for _, each in estimated])
    if len(views) > 1:
        bounds = _add_column(replace(bounds, brief=False), "view", [name for name, _ in pairs])
        estimates = _add_column(estimates, "view", [name for name, _ in estimated])
    tables = [table for table in (bounds, estimates) if table.rows]
    cards: dict[str, Facts] = {}
    for _, bound in pairs:
        cards.setdefault(bound.method, _build_card(audit, bound, lone=len(views) == 1))
    guarantees = Section(
        title="What the method guarantees and assumes",
        summary=tuple(card for card in cards.values() if card.rows),
        brief=False,
    )
    blocks = (*first, *tables, *([guarantees] if guarantees.summary else []))
    if blocks:
        yield Section(title="Method", key="method", blocks=blocks)


def _add_column(table: Table, name: str, cells: Sequence[str]) -> Table:
    rows = tuple((cell, *row) for cell, row in zip(cells, table.rows, strict=True))
    return replace(table, head=(name, *table.head), rows=rows)


def _collect_figures(title: str, figures: Iterable[Figure], key: str) -> list[Figures]:
    every = tuple(figures)
    return [Figures(title=title, figures=every, key=key)] if every else []


def _draw_aside(audit: Audit, before: int) -> Iterator[Figures]:
    """Return figures of forms of publishing, too many for a page."""
    for place, form in enumerate(texts.list_findings(audit, "FormFinding"), start=before + 1):
        figures = draw_views([form.view], audit.claim)
        yield Figures(figures=figures, stem=f"{place}-", aside=True)


def _build_records(audit: Audit, total: int | None) -> Iterator[Section]:
    """Return records by their rank, with what makes them stand out; by their row where asked."""
    records = audit.find(RecordRisk)
    total = len(records) if total is None else total
    if not total:
        return
    shows_rows = any(record.row is not None for record in records)
    spec = TEXTS["records"]
    hidden = set() if shows_rows else {"{row}"}
    if all(record.attacked is None for record in records):
        hidden.add("{attacked:.0%}")
    columns = {name: cell for name, cell in spec["columns"].items() if cell not in hidden}
    note = " ".join(
        [
            spec["some" if len(records) < total else "all"],
            spec["note"],
            *([] if "{attacked:.0%}" in hidden else [spec["attacked"]]),
            spec["rows" if shows_rows else "no_rows"],
        ]
    )
    counts: dict[str, Any] = {"total": total, "s": "" if total == 1 else "s"}
    counts |= {"listed": len(records), "others": total - len(records)}
    table = texts.tabulate(
        {**spec, "columns": columns}, audit, find_riskiest(records, _FIRST_RECORDS), note=""
    )
    fields = tuple(cell.strip("{}").partition(":")[0] for cell in columns.values())
    table = replace(table, most=10, finding="RecordRisk", fields=fields, total=len(records))
    said = Notes(lines=(texts.fill(note, audit, None, **counts),), style="text", brief=False)
    yield Section(title=spec["title"], blocks=(said, table))


def _fold_explanation(audit: Audit) -> Iterator[Section]:
    """Return how the verdict was reached; nothing where a method is not ours."""
    try:
        explanation = explain(audit)
    except InvalidArgument:
        return
    title = "Derivation: how this number was computed"
    yield replace(_nest(explanation, set()), title=title, key="derivation", folded=True)


def _nest(explanation: Explanation, said: set[tuple[str, ...]]) -> Section:
    """Return an explanation as a section; what stood above it already is not said again."""
    blocks: list[Block] = []
    for title, lines in explanation.sections:
        style: Literal["code", "list"] = "code" if title in texts.CODE else "list"
        blocks.append(
            Notes(title=title, lines=("As above.",) if lines in said else lines, style=style)
        )
        said.add(lines)
    blocks += [_nest(part, said) for part in explanation.parts]
    return Section(title=explanation.title, blocks=tuple(blocks), brief=False)


def _build_again(source: Provenance) -> Section:
    """Return how to do an audit again: its settings, exactly as JSON has them."""
    command = () if source.supplied else ("epsilometer audit audit.json",)
    how = texts.say("supplied" if source.supplied else "again", source)
    units = f"{source.used:,} used of {source.units:,}, {source.failed:,} failed"
    settings = [
        ("subject", source.subject),
        *source.settings.items(),
        *([] if source.delta is None else [("delta", source.delta)]),
        ("confidence", source.confidence),
        ("seed", source.seed),
        *([] if source.until is None else [("until", source.until)]),
        *([("plan", source.plan)] if source.plan else []),
        ("units", units),
    ]
    rows = [(name, _word_setting(value)) for name, value in settings]
    rows += [(f"shape of {name}", shape) for name, shape in source.shapes]
    table = Table(head=("setting", "value"), rows=(*rows, *source.versions), numeric=False)
    return Section(
        title="Do it again",
        key="again",
        blocks=(
            Notes(lines=(one_line(how),), style="text"),
            *(Notes(lines=(line,), style="code") for line in command),
            replace(table, most=60),
        ),
        brief=False,
    )


def _word_setting(value: Any) -> str:
    """Return a setting as text: a string as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) == {"supplied"}:
        return f"supplied from Python ({value['supplied']})"
    return json.dumps(value, ensure_ascii=False)


def _list_cites(audit: Audit, document: Document) -> Iterator[str]:
    bounds = [bound for view in audit.views for bound in (view.bound, *view.also)]
    bounds += [attack.bound for attack in audit.find(MembershipFinding) if attack.bound is not None]
    yield from audit.cites
    yield from (key for bound in bounds for key in bound.cites)
    yield from (key for estimate in audit.estimates for key in estimate.cites)
    for block in find_figures(document):
        yield from (key for figure in block.figures if not block.aside for key in figure.cites)


def _build_verdict(audit: Audit, meaning: str) -> Verdict:
    line, details = headline(audit), one_line(explain_verdict(audit))
    return Verdict(
        badge=_show_verdict(audit.verdict),
        finding=announce(audit),
        lead=word_evidence(audit) or meaning,
        headline=line,
        details="" if line.endswith(details) else details,
    )


def _show_verdict(verdict: judge.Verdict) -> Badge:
    """Return a verdict in its tone."""
    return Badge(verdict, judge.tone(verdict))


def _build_threat(views: Sequence[EpsilonFinding], audit: Audit) -> Section:
    """Return who attacks what, each sentence once; where views differ, with the view."""
    said: dict[str, dict[str, list[str]]] = {}
    for name, view in zip(name_views(views), views, strict=True):
        for row in texts.word_threat(view.bound, audit.claim):
            said.setdefault(row.name, {}).setdefault(row.value, []).append(name)
    rows = [
        Fact(title if len(values) == 1 else f"{title} ({', '.join(names)})", value)
        for title, values in said.items()
        for value, names in values.items()
    ]
    facts = Facts(rows=tuple(rows), style="threat")
    return Section(title="Threat model", key="threat", blocks=(facts,))


def _list_rates(attack: AttackSummary) -> Iterator[Fact]:
    yield Fact("AUC", f"{attack.auc:.3f}")
    for fpr, tpr in attack.tpr_at_fpr:
        yield Fact(f"caught at {100 * fpr:.3g}% false positives", f"{tpr:.1%}")
    yield Fact("observations with the record", f"{attack.n_in:,}")
    yield Fact("without it", f"{attack.n_out:,}")


def _build_card(audit: Audit, bound: EpsilonLowerBound, *, lone: bool) -> Facts:
    """Return what a method guarantees; of a lone bound also where it was found."""
    rows = [*texts.list_facts(audit, "EpsilonLowerBound", bound)]
    if not lone:
        rows = [fact for fact in rows if fact.name != "Found at"]
    return Facts(title=bound.method, rows=tuple(rows), brief=False)


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
    return _show_verdict(judge.judge_finding(audit.claim, finding))


def _list_bounds(view: EpsilonFinding) -> list[_Bound]:
    return [
        _Bound(view.bound, view.bound.method, True),
        *(_Bound(bound, bound.method, False) for bound in view.also),
        *(_Bound(e, f"{e.method}, {e.direction}", texts.proves(e)) for e in view.estimates),
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
            valid=texts.proves(each.bound),
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
