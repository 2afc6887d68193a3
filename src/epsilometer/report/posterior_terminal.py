"""An audit of predictions with uncertainty on the terminal."""

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from epsilometer.posterior import PosteriorAudit
from epsilometer.report import posterior_words, words

_COLOURS = {"refuted": "red", "not refuted": "green", "no claim": "blue", "no verdict": "yellow"}


def posterior_summary(result: PosteriorAudit) -> RenderableType:
    """The verdict, every form with its bound and its worth, the plan, and what it means."""
    colour = _COLOURS[result.verdict]
    said = posterior_words.finding(result)
    if result.claim is not None:
        said = f"{result.verdict.upper()}: {said}"
    forms = [posterior_words.form_row(form) for form in result.forms]
    parts: list[RenderableType] = [
        Text(said, style=f"bold {colour}"),
        Text(),
        _table(posterior_words.FORM_HEAD, forms),
    ]
    if result.tested:
        rows = [posterior_words.utility_row(form) for form in result.forms]
        parts.append(_table(posterior_words.UTILITY_HEAD, rows))
    facts = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    for name, value in posterior_words.facts(result):
        facts.add_row(name, Text(value))
    notes = [*words.run_notes(result.provenance), *result.plan.advice]
    parts += [facts, Text("\n".join(f"· {line}" for line in notes))]
    meaning = [line for line in posterior_words.meaning(result) if line not in notes]
    parts += [Text("\n".join(f"· {line}" for line in meaning), style="dim")]
    # Text, not markup: a file may be called "[red].csv".
    return Panel(Group(*parts), title=Text(result.subject), title_align="left", border_style=colour)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
