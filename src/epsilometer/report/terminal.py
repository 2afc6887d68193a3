"""Show an audit on the terminal."""

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import EpsilonFinding, RecordRisk
from epsilometer.core.printing import one_line
from epsilometer.core.words import headline, number
from epsilometer.report import words
from epsilometer.report.fitting import riskiest
from epsilometer.report.tables import (
    advice_of,
    facts_of,
    records_table,
    rule_rows,
    tables_of,
)
from epsilometer.report.tones import LOOKS, look_of, rule_tone

_WIDTH = 56
_RECORDS = 10


def summary(audit: Audit) -> RenderableType:
    """Return the verdict in one line; below it what was measured, what to do, what it means."""
    colour = look_of(audit).terminal
    notes = [*words.run_notes(audit.provenance), *advice_of(audit)]
    meaning = [line for line in words.meaning(audit) if line not in notes]
    parts = [
        *_rules(audit),
        *_views(audit),
        *_tables(audit),
        *([_lines(notes), Text()] if notes else []),
        _lines(meaning, style="dim"),
    ]
    return Group(
        Text(headline(audit), style=f"bold {colour}"),
        Panel(
            Group(*parts),
            title=Text(one_line(audit.subject)),
            title_align="left",
            border_style=colour,
        ),
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> RenderableType:
    """Return rows under their titles, the first column to the left, the others to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(head):
        made.add_column(name, justify="right" if i else "left")
    for row in rows:
        made.add_row(*map(_text, row))
    return made


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Return names and what they stand for."""
    made = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    for name, value in rows:
        made.add_row(_text(name), _text(value))
    return made


def _rules(audit: Audit) -> Iterator[RenderableType]:
    rows = rule_rows(audit)
    if not rows:
        return
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("rule", "outcome", "why"):
        made.add_column(head)
    for rule, outcome, sure in rows:
        shown = Text(outcome, style=LOOKS[rule_tone(rule)].terminal)
        made.add_row(_text(rule.rule), shown, _text(f"{rule.finding} ({sure})"))
    yield made


def _views(audit: Audit) -> Iterator[RenderableType]:
    """Claimed and measured ε on one scale, and what the attack of a lone view did."""
    views = words.own_views(audit)
    if not views:
        return
    yield _scale(audit, views)
    if len(views) == 1:
        yield Text()
        yield facts(_measured(views[0]))


def _scale(audit: Audit, views: tuple[EpsilonFinding, ...]) -> RenderableType:
    """Return claimed and measured ε as bars from 0."""
    bars = [] if audit.claim is None else [("claimed", audit.claim.epsilon, "white")]
    for view in views:
        where = f"{one_line(view.subject)}: " if len(views) > 1 else ""
        shown = (view.bound,) if len(views) > 1 else (view.bound, *view.also)
        bars += [(f"{where}{_name(bound)} ≥", bound.epsilon, "cyan") for bound in shown]
        bars += [
            (f"{where}{e.method} ({e.direction})", e.low, "magenta")
            for e in view.estimates
            if e.role == "lower"
        ]
    longest = max([value for _, value, _ in bars if value < float("inf")] + [1e-9])
    grid = Table.grid(padding=(0, 1))
    for name, value, colour in bars:
        cells = round(_WIDTH * min(value / longest, 1.0))
        grid.add_row(_text(name), number(value), Text("█" * cells or "▏", style=colour))
    return grid


def _measured(view: EpsilonFinding) -> Iterator[tuple[str, str]]:
    bound, attack = view.bound, view.attack
    yield "bound", f"ε ≥ {number(bound.epsilon, 4)} at δ = {bound.delta:g}, {bound.direction}"
    yield "confidence", f"{bound.confidence:g} one-sided" if bound.valid else "none: not valid"
    yield "method", f"{bound.method}, thresholds by {bound.threshold_rule}"
    yield "observations", f"{bound.n_in:,} with the record, {bound.n_out:,} without"
    if bound.adversary != "unstated":
        yield "adversary", bound.adversary
    if bound.adjacency != "unstated":
        yield "neighbours", words.ADJACENCY[bound.adjacency]
    yield from ((e.method, words.word_estimate(e)) for e in view.estimates)
    rates = (f"{tpr:.1%} caught at {fpr:.1%} false alarms" for fpr, tpr in attack.tpr_at_fpr)
    yield "attack", f"AUC {attack.auc:.3f}; {', '.join(rates)}"


def _tables(audit: Audit) -> Iterator[RenderableType]:
    if rows := facts_of(audit):
        yield facts(rows)
    for each in tables_of(audit):
        if each.brief:
            yield table(each.head, each.rows)
    if records := riskiest(audit.find(RecordRisk), _RECORDS):
        risks = records_table(records)
        yield table(risks.head, risks.rows)


def _name(bound: EpsilonLowerBound) -> str:
    return bound.method if bound.valid else f"{bound.method} (not valid)"


def _lines(lines: Iterable[str], style: str = "") -> Text:
    return Text("\n".join(f"· {one_line(line)}" for line in lines), style=style)


def _text(text: str) -> Text:
    """Return text, not markup: a file may be called "[red].csv"."""
    return Text(one_line(text))
