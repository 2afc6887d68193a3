"""Show a document on the terminal."""

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text

from epsilometer.core.audit import Audit
from epsilometer.core.document import Block, Document, Facts, Notes, Scale, Section, Table
from epsilometer.core.printing import one_line
from epsilometer.report.build import build
from epsilometer.report.tones import LOOKS

_WIDTH = 44  # of a bar that takes the whole scale
_COLOURS = {"lower": "cyan", "upper": "magenta", "reference": "grey62"}


def summary(audit: Audit) -> RenderableType:
    """Return an audit for people: the verdict in one line, below it the rest."""
    return render_terminal(build(audit, brief=True))


def render_terminal(document: Document) -> RenderableType:
    """Return the verdict in one line; below it what was measured, what to do, what it means."""
    assert document.verdict is not None
    colour = LOOKS[document.verdict.tone].terminal
    notes = Notes(lines=document.notes)
    parts = (part for block in (notes, *document.parts) for part in _render(block))
    return Group(
        Text(one_line(document.verdict.headline), style=f"bold {colour}"),
        Panel(
            Group(*parts),
            title=Text(one_line(document.title)),
            title_align="left",
            border_style=colour,
        ),
    )


def _render(block: Block, style: str = "") -> Iterator[RenderableType]:
    """Return what a terminal shows of a block: nothing of figures and details."""
    match block:
        case Section(brief=True, parts=parts):
            for part in parts:
                yield from _render(part, "dim")
        case Notes(brief=True, lines=lines) if lines:
            yield from (Text("\n".join(f"· {one_line(line)}" for line in lines), style), Text())
        case Facts(brief=True):
            yield from (_title(block), _render_facts(block), Text())
        case Scale(brief=True):
            yield from (_title(block), _render_scale(block), Text())
        case Table(brief=True):
            yield _title(block)
            yield _render_table(block)
            if block.more:
                yield Text(f"And {block.more:,} more.")
            yield from (Text(one_line(block.note), "dim"), Text()) if block.note else [Text()]


def _title(block: Block) -> Text:
    return Text(one_line(block.title), style="bold")


def _render_facts(facts: Facts) -> RenderableType:
    grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    for name, value, badge in facts.rows:
        shown = [] if badge is None else [Text(badge.word, style=LOOKS[badge.tone].terminal)]
        grid.add_row(_text(name), *shown, _text(value))
    return grid


def _render_table(table: Table) -> RenderableType:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, name in enumerate(table.head):
        grid.add_column(name, justify="right" if i and table.numeric else "left")
    for row in table.rows[: table.most]:
        grid.add_row(*map(_text, row))
    return grid


def _render_scale(scale: Scale) -> RenderableType:
    """Return claimed and measured ε as bars from 0."""
    rows: Iterable[tuple[str, str, float, str]] = (
        (" – ".join(filter(None, (row.name, row.remark))), row.value, row.start, _COLOURS[row.role])
        for row in scale.rows
    )
    if scale.claim is not None:
        name, _, value = scale.claimed.partition(" ")
        rows = ((name, value, scale.claim, "white"), *rows)
    grid = Grid.grid(padding=(0, 1))
    for name, value, start, colour in rows:
        cells = round(_WIDTH * start / 100)
        grid.add_row(_text(name), _text(value), Text("█" * cells or "▏", style=colour))
    return grid


def _text(text: str) -> Text:
    """Return text, not markup: a file may be called "[red].csv"."""
    return Text(one_line(text))
