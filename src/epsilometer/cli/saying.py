"""Write lines to standard output and standard error: the only place that does.

Without rich, which may be what is broken.
"""

import click

from epsilometer.core.printing import one_line, printable
from epsilometer.errors import SHOW_ERRORS, EpsilometerError, shows_errors


def say(text: str = "", *, err: bool = False) -> None:
    """Print lines; what would control a terminal is replaced, whoever wrote it."""
    click.echo(printable(text), err=err)


def say_marked(mark: str, text: str, *, colour: str | None = None, indent: int = 0) -> None:
    """Print a line behind a mark of ours in a colour."""
    click.echo(f"{' ' * indent}{click.style(mark, fg=colour)} {printable(text)}")


def say_title(text: str) -> None:
    """Print a heading."""
    click.echo(click.style(printable(text), bold=True))


def word_error(error: EpsilometerError) -> str:
    """Return what a terminal, and so a log, may show of an error."""
    if shows_errors() or str(error) == error.shareable:
        return one_line(str(error))
    return one_line(
        f"{error.shareable} What it said is not shown, because it may hold data; see it with "
        f"{SHOW_ERRORS}=1."
    )
