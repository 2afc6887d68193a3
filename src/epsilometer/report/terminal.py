"""Show a document on the terminal."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from epsilometer.core.audit import Audit
from epsilometer.core.document import Block, Document, Facts, Notes, Scale, Section, Table
from epsilometer.core.printing import one_line
from epsilometer.report.build import build
from epsilometer.report.tones import LOOKS

_LEAST = 8  # columns of a bar that takes the whole scale
_COLOURS = {"lower": "cyan", "upper": "magenta", "reference": "grey62"}


def brief(audit: Audit, *, advice: str = "", spell: Callable[[str], str] = str) -> RenderableType:
    """Return three lines: the verdict, the subject, and what to do next.

    Args:
        audit: Audit of any kind.
        advice: Advice that is more specific than that of the verdict.
        spell: Function that spells out characters the terminal cannot show.
    """
    document, advice = _respell(build(audit, brief=True), spell), spell(advice)
    assert document.verdict is not None
    colour = LOOKS[document.verdict.tone].terminal
    notes = (block.lines for block in document.summary if isinstance(block, Notes))
    said = (advice,) if advice else next((lines for lines in notes if lines), ())
    return Group(
        Text(one_line(document.verdict.headline), style=f"bold {colour}"),
        Text(one_line(document.title), "dim"),
        *(Text(f"Next: {one_line(line)}") for line in said[:1]),
    )


def summary(audit: Audit, *, spell: Callable[[str], str] = str) -> RenderableType:
    """Return an audit for people: the verdict, below it the rest."""
    return render_terminal(_respell(build(audit, brief=True), spell))


def _respell(item: Any, spell: Callable[[str], str]) -> Any:
    """Return a document with all texts spelled out, so that columns have their final widths."""
    if isinstance(item, str):
        return spell(item)
    if is_dataclass(item) and not isinstance(item, type):
        texts = {each.name: _respell(getattr(item, each.name), spell) for each in fields(item)}
        return replace(item, **texts)
    if isinstance(item, tuple):
        parts = [_respell(part, spell) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return item


def render_terminal(document: Document) -> RenderableType:
    """Return the verdict; below it what was measured, what to do, what it means."""
    assert document.verdict is not None
    colour = LOOKS[document.verdict.tone].terminal
    notes = Notes(lines=document.notes)
    parts = (part for block in (notes, *document.parts) for part in _render(block))
    return Group(
        Text(one_line(document.verdict.headline), style=f"bold {colour}"),
        *map(Text, filter(None, [document.verdict.details])),
        Text(one_line(document.title), "dim"),
        Text(),
        *parts,
    )


def _render(block: Block, style: str = "") -> Iterator[RenderableType]:
    """Return what a terminal shows of a block: nothing of figures and details."""
    match block:
        case Section(brief=True, parts=parts) if parts:
            if not parts[0].title and parts[0].brief:
                yield _title(block)
            for part in parts:
                yield from _render(part, "dim")
        case Notes(brief=True, lines=lines) if lines:
            yield from (Text("\n".join(f"· {one_line(line)}" for line in lines), style), Text())
        case Facts(brief=True):
            yield from (_title(block), _render_facts(block), Text())
        case Scale(brief=True):
            yield from (_title(block), _Bars(block), Text())
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


@dataclass(frozen=True)
class _Bars:
    """Show claimed and measured ε as bars from 0, scaled to the terminal's width."""

    scale: Scale

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows: list[tuple[str, str, float, str]] = [
            (
                " – ".join(filter(None, (row.name, row.remark))),
                row.value,
                row.start,
                _COLOURS[row.role],
            )
            for row in self.scale.rows
        ]
        if self.scale.claim is not None:
            name, _, value = self.scale.claimed.partition(" ")
            rows.insert(0, (name, value, self.scale.claim, "white"))
        values = max(len(value) for _, value, _, _ in rows)
        names = min(max(len(one_line(row[0])) for row in rows), options.max_width // 2)
        room = max(options.max_width - names - values - 2, _LEAST)
        grid = Grid.grid(padding=(0, 1))
        grid.add_column(width=names)
        grid.add_column(width=values, no_wrap=True)
        grid.add_column(width=room, no_wrap=True)
        for name, value, start, colour in rows:
            bar = "█" * round(room * start / 100) or "▏"
            grid.add_row(_text(name), _text(value), Text(bar, style=colour))
        yield grid


def _text(text: str) -> Text:
    """Return text, not markup: a file may be called "[red].csv"."""
    return Text(one_line(text))
