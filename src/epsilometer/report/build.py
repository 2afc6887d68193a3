"""Build the document of an audit: once, for every renderer."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.document import (
    Badge,
    Block,
    Document,
    Fact,
    Facts,
    Figure,
    Figures,
    Notes,
    Section,
    Table,
    Verdict,
    find_figures,
)
from epsilometer.core.findings import (
    ConformanceFinding,
    EpsilonFinding,
    FormPlan,
    MembershipFinding,
    RecordRisk,
    RuleFinding,
)
from epsilometer.core.printing import one_line
from epsilometer.core.words import headline, word_finding, word_reach
from epsilometer.errors import InvalidArgument
from epsilometer.report import words
from epsilometer.report.explaining import Explanation, explain
from epsilometer.report.figures import compare_views, draw_view
from epsilometer.report.finding_figures import draw_findings
from epsilometer.report.fitting import find_riskiest
from epsilometer.report.texts import (
    TEXTS,
    fill,
    list_every_fact,
    list_findings,
    list_lines,
    list_tables,
    look_up,
    tabulate,
)
from epsilometer.report.views import (
    build_scale,
    build_threat,
    build_view,
    judge_badge,
    word_together,
)

_FIRST_RECORDS = 20  # shown without JavaScript


def build(audit: Audit, *, records: int | None = None) -> Document:
    """Return the document of an audit; ``records``: how many it had, where some were left out."""
    views = audit.find(EpsilonFinding)
    lone = len(views) == 1
    sections = [build_view(audit, v, place=i, lone=lone) for i, v in enumerate(views, start=1)]
    meaning = tuple(dict.fromkeys(_list_meaning(audit)))
    reach = word_reach(audit) if audit.verdict == judge.NOT_REFUTED else ""
    document = Document(
        title=audit.subject,
        verdict=Verdict(
            badge=judge_badge(audit.verdict),
            finding=word_finding(audit),
            lead=reach or next(iter(meaning), ""),
            headline=headline(audit),
        ),
        notes=tuple(words.word_run(audit.provenance)),
        summary=tuple(_list_cards(audit)),
        blocks=(
            *_collect_figures("Side by side", compare_views(audit), key="views"),
            *(sections[0].blocks if lone else ()),
            *list_tables(audit),
            *_collect_figures("Figures", tuple(draw_findings(audit))),
            *_build_records(audit, records),
            *(() if lone else sections),
            Section(
                title="What it means, and what not", blocks=(Notes(lines=meaning, style="list"),)
            ),
            *_fold_explanation(audit),
            _build_again(audit.provenance),
            *_draw_aside(audit, len(views)),
        ),
    )
    return replace(document, cites=tuple(_list_cites(audit, document)))


def _list_cards(audit: Audit) -> Iterator[Block]:
    """Return the blocks of the first screen."""
    rules = [
        Fact(
            rule.rule,
            f"{rule.finding} ({look_up(audit, rule, 'sure')})",
            Badge(rule.outcome.upper(), judge.tone(judge.judge_finding(None, rule))),
        )
        for rule in audit.find(RuleFinding)
    ]
    if rules:
        yield Facts(title="Rules", rows=tuple(rules), style="reasons")
    scale, views, plan = build_scale(audit), audit.find(EpsilonFinding), audit.one(FormPlan)
    if scale is not None:
        yield scale
    if views:
        yield build_threat(views, audit)
    title, advice = "What to do", audit.advice
    if plan is not None:
        none = "Nothing is known to stay below the limit"
        title = "What may be published" if plan.chosen else none
        advice = (*advice, *plan.advice)
    if advice:
        yield Notes(title=title, lines=tuple(dict.fromkeys(advice)))
    if facts := list_every_fact(audit):
        yield Facts(title="What was measured", rows=facts)


def _list_meaning(audit: Audit) -> Iterator[str]:
    """Say what an audit says, what it rests on, and what it does not say."""
    for kind, lines in TEXTS["meaning"].items():
        if list_findings(audit, kind):
            yield from list_lines(lines, audit)
    views = audit.find(EpsilonFinding)
    bounds = [finding.bound for finding in audit.find(ConformanceFinding)]
    bounds += [view.bound for view in views if len(views) == 1]
    for bound in bounds:
        yield from () if bound is None else words.word_bound_meaning(bound)
    if len(views) > 1:
        yield word_together(audit)
        yield words.word_limits(views[0].bound)
    if reach := word_reach(audit):
        yield reach
    yield from audit.caveats


def _collect_figures(title: str, figures: tuple[Figure, ...], key: str = "audit") -> list[Figures]:
    return [Figures(title=title, figures=figures, key=key)] if figures else []


def _draw_aside(audit: Audit, before: int) -> Iterator[Figures]:
    """Return figures of forms of publishing, too many for a page."""
    for place, form in enumerate(list_findings(audit, "FormFinding"), start=before + 1):
        figures = draw_view(form.view, audit.claim)
        yield Figures(figures=figures, stem=f"{place}-", aside=True)


def _build_records(audit: Audit, total: int | None) -> Iterator[Section]:
    """Return records by their rank, with what makes them stand out; by their row where asked."""
    records = audit.find(RecordRisk)
    total = len(records) if total is None else total
    if not total:
        return
    shows_rows = any(record.row is not None for record in records)
    spec = TEXTS["records"]
    columns = {name: cell for name, cell in spec["columns"].items() if shows_rows or name != "row"}
    note = " ".join(
        [
            spec["some" if len(records) < total else "all"],
            spec["note"],
            spec["rows" if shows_rows else "no_rows"],
        ]
    )
    counts: dict[str, Any] = {"total": total, "s": "" if total == 1 else "s"}
    counts |= {"listed": len(records), "others": total - len(records)}
    table = tabulate(
        {**spec, "columns": columns}, audit, find_riskiest(records, _FIRST_RECORDS), note=""
    )
    fields = tuple(cell.strip("{}").partition(":")[0] for cell in columns.values())
    table = replace(table, most=10, finding="RecordRisk", fields=fields, total=len(records))
    said = Notes(lines=(fill(note, audit, None, **counts),), style="text", brief=False)
    yield Section(title=spec["title"], blocks=(said, table))


def _fold_explanation(audit: Audit) -> Iterator[Section]:
    """Return how the verdict came about; nothing where a method is not ours."""
    try:
        explanation = explain(audit)
    except InvalidArgument:
        return
    title = "How this number came about"
    yield replace(_nest(explanation), title=title, folded=True)


def _nest(explanation: Explanation) -> Section:
    lines = (
        Notes(title=title, lines=said, style="code" if title in words.CODE else "list")
        for title, said in explanation.sections
    )
    parts = map(_nest, explanation.parts)
    return Section(title=explanation.title, blocks=(*lines, *parts), brief=False)


def _build_again(source: Provenance) -> Section:
    """Return how to do an audit again: its settings, exactly as JSON has them."""
    command = () if source.supplied else ("epsilometer audit audit.json",)
    how = words.say("supplied" if source.supplied else "again", source)
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
        title="How to do it again",
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
