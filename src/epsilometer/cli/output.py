"""Print results of commands: the only module that writes to a terminal.

rich is imported only for tables: it may be broken, and JSON output does not need it.
"""

import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from epsilometer.cli.encoding import spell_for
from epsilometer.core.printing import one_line, printable
from epsilometer.errors import SHOW_ERRORS, EpsilometerError, InvalidArgument, shows_errors

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table

    from epsilometer.core.audit import Audit
    from epsilometer.files.stamps import Stamp

_PLAIN_WIDTH = 100
_UNLIMITED = 10_000  # columns
_CRAMPED = (
    6  # where columns lack more than this many times what there is to share, rows are stacked
)


def say(text: str = "", *, err: bool = False) -> None:
    """Print lines, with control characters replaced."""
    click.echo(printable(text), err=err)


def say_marked(mark: str, text: str, *, colour: str | None = None, indent: int = 0) -> None:
    """Print a line after a coloured mark."""
    click.echo(f"{' ' * indent}{click.style(mark, fg=colour)} {printable(text)}")


def count_columns(most: int) -> int:
    """Return the width of a text: that of the terminal, or ``most``, whichever is smaller."""
    return min(shutil.get_terminal_size().columns, most) if sys.stdout.isatty() else most


def say_title(text: str) -> None:
    """Print a heading."""
    click.echo(click.style(printable(text), bold=True))


def word_error(error: EpsilometerError) -> str:
    """Return the text of an error that terminals and logs may show."""
    if shows_errors() or str(error) == error.shareable:
        return one_line(str(error))
    return one_line(
        f"{error.shareable} What it said is not shown, because it may hold data; see it with "
        f"{SHOW_ERRORS}=1."
    )


def show(*renderables: "RenderableType") -> None:
    """Print text: with colours on a terminal, plain elsewhere, a verdict on one line."""
    from rich import console
    from rich.table import Table
    from rich.text import Text

    wide = None if sys.stdout.isatty() else _PLAIN_WIDTH
    # What is shown is text: no markup, no emoji, no links.
    screen = console.Console(
        width=wide, file=sys.stdout, markup=False, emoji=False, highlight=False
    )
    # rich would exit with 1, which means refuted.
    screen.on_broken_pipe = _end_pipe  # type: ignore[method-assign]
    for each in renderables:
        renderable = _spell_text(each)
        for place, part in enumerate(getattr(renderable, "renderables", [renderable])):
            screen.width = wide or screen.width
            shown = _fit(part, screen) if isinstance(part, Table) and part.show_header else part
            screen.print(shown, soft_wrap=wide is not None and not place and isinstance(part, Text))


def _spell_text(item: Any) -> Any:
    """Return text as the screen can show it, before its layout; anything else as it is."""
    from rich.text import Text

    if isinstance(item, str | Text) and (spelled := _spell(str(item))) != str(item):
        return Text(spelled, getattr(item, "style", ""))
    return item


def _fit(table: "Table", screen: "Console") -> "Table":
    """Return a table that fits without breaking a word: with narrower columns, or by rows.

    A file or pipe gets the rows of such a table as long lines.
    """
    from rich.measure import Measurement, measure_renderables

    wide = screen.options.update_width(_UNLIMITED)
    needs = [measure_renderables(screen, wide, [c.header, *c.cells]) for c in table.columns]
    fixed = [column.no_wrap for column in table.columns]
    spans = [(n.maximum if f else n.minimum, n.maximum) for n, f in zip(needs, fixed, strict=True)]
    whole, wanted = Measurement.get(screen, wide, table).maximum, sum(b - a for a, b in spans)
    spare = screen.width - whole + wanted
    cramped = min(spare, _CRAMPED * spare - wanted) < 0
    if cramped and screen.is_terminal:
        return _stack_rows(table)
    if cramped:
        screen.width = whole
    elif whole > screen.width:
        for column, (least, most) in zip(table.columns, spans, strict=True):
            column.width = least + spare * (most - least) // wanted
    return table


def _stack_rows(table: "Table") -> "Table":
    """Return a table for a narrow screen: each row as lines of a name and a value."""
    from rich.table import Table

    stacked = Table.grid(padding=(0, 2))
    columns = [(column.header, list(column.cells)) for column in table.columns]
    for row in range(table.row_count):
        for name, cells in columns:
            if str(cells[row]):
                stacked.add_row(name, cells[row])
        stacked.add_row()
    return stacked


def _end_pipe() -> None:
    raise BrokenPipeError


def make_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[Any]],
    *,
    right: bool = False,
    pad_edge: bool = True,
) -> "Table":
    """Return a table with a line under its head.

    Args:
        columns: Its header.
        rows: Texts, or objects that rich can show.
        right: Whether all columns but the first are aligned to the right.
        pad_edge: Whether there is room at both edges.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=pad_edge)
    for place, column in enumerate(columns):
        table.add_column(_spell(column), justify="right" if right and place else "left")
    for row in rows:
        table.add_row(*(_spell(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def show_line(text: str) -> None:
    """Print one line; a terminal that is narrower breaks it between words."""
    (show if sys.stdout.isatty() else say)(printable(text))


def show_audit(audit: "Audit", *, verbose: bool, advice: str = "") -> None:
    """Print an audit for people: the verdict and what to do next; everything if verbose."""
    from epsilometer.report.terminal import brief, summary

    show(summary(audit, spell=_spell) if verbose else brief(audit, advice=advice, spell=_spell))


def _spell(text: str) -> str:
    """Return text as standard output can show it, so that the layout is correct."""
    return spell_for(text, sys.stdout.encoding or "utf-8")


def show_explanation(audit: "Audit", *, aside: bool = False) -> None:
    """Print how an audit was computed; aside: to standard error, where the audit itself is JSON."""
    from epsilometer.report.explaining import explain

    say(f"\n{explain(audit).wrap(count_columns(_PLAIN_WIDTH), spell=_spell)}", err=aside)


def write_page(audit: "Audit", path: "Path", stamp: "Stamp | None" = None) -> None:
    """Write the report as one file, atomically, with the stamp of the result."""
    from epsilometer.report.page import page

    write_text(page(audit, stamp=() if stamp is None else stamp.describe()), path)


def write_text(text: str, path: "Path") -> None:
    """Write a page as one file, atomically."""
    from epsilometer._files import write_whole

    whole = text if text.endswith("\n") else f"{text}\n"
    try:
        write_whole(path, whole.encode("utf-8"), private=False)
    except OSError as error:
        raise InvalidArgument(f"Could not write {str(path)!r}: {error.strerror}.") from error
