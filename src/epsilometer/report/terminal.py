"""A result on the terminal."""

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from epsilometer.report import words
from epsilometer.core.audit import AuditResult
from epsilometer.core.bound import EpsilonLowerBound

_COLOURS = {"refuted": "red", "not refuted": "green", "no claim": "blue", "no verdict": "yellow"}
_WIDTH = 56


def summary(result: AuditResult) -> RenderableType:
    """The verdict, the claim and the bounds on one scale, what was measured, what it means."""
    colour = _COLOURS[result.verdict]
    lines = [*words.run_notes(result.provenance), *words.meaning(result.bound)]
    notes = Text("\n".join(f"· {line}" for line in lines), style="dim")
    body = Group(
        Text(words.verdict(result), style=f"bold {colour}"),
        Text(),
        _scale(result),
        Text(),
        _measured(result),
        Text(),
        notes,
    )
    # Text, not markup: a file may be called "[red].csv".
    return Panel(body, title=Text(result.subject), title_align="left", border_style=colour)


def _scale(result: AuditResult) -> RenderableType:
    """Claimed and measured ε as bars from 0."""
    bars = [(f"{_name(bound)} ≥", bound.epsilon, "cyan") for bound in (result.bound, *result.also)]
    bars += [(f"{e.method} ({e.direction})", e.low, "magenta") for e in result.estimates]
    if result.claim is not None:
        bars.insert(0, ("promised", result.claim.epsilon, "white"))
    longest = max([value for _, value, _ in bars if value < float("inf")] + [1e-9])
    grid = Table.grid(padding=(0, 1))
    for name, value, colour in bars:
        cells = round(_WIDTH * min(value / longest, 1.0))
        grid.add_row(name, words.number(value), Text("█" * cells or "▏", style=colour))
    return grid


def _name(bound: EpsilonLowerBound) -> str:
    return bound.method if bound.valid else f"{bound.method} (not valid)"


def _measured(result: AuditResult) -> RenderableType:
    bound, attack = result.bound, result.attack
    return facts(
        [
            *_rows(bound),
            *((e.method, words.estimate_finding(e)) for e in result.estimates),
            ("attack", f"AUC {attack.auc:.3f}; {_rates(attack.tpr_at_fpr)}"),
        ]
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> RenderableType:
    """Rows under their titles, the first column to the left, the others to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(head):
        made.add_column(name, justify="right" if i else "left")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Names and what they stand for."""
    made = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    for name, value in rows:
        made.add_row(name, Text(value))
    return made


def _rows(bound: EpsilonLowerBound) -> Iterable[tuple[str, str]]:
    yield "bound", f"ε ≥ {words.number(bound.epsilon, 4)} at δ = {bound.delta:g}, {bound.direction}"
    yield "confidence", f"{bound.confidence:g} one-sided" if bound.valid else "none: not valid"
    yield "method", f"{bound.method}, thresholds by {bound.threshold_rule}"
    yield "observations", f"{bound.n_in:,} with the record, {bound.n_out:,} without"
    if bound.adversary != "unstated":
        yield "adversary", bound.adversary
    if bound.adjacency != "unstated":
        yield "neighbours", words.ADJACENCY[bound.adjacency]


def _rates(pairs: tuple[tuple[float, float], ...]) -> str:
    return ", ".join(f"{tpr:.1%} caught at {fpr:.1%} false alarms" for fpr, tpr in pairs)
