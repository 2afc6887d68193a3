"""Print what commands found, and end them: one function for every command that audits."""

import sys
from pathlib import Path

from rich.console import Console, RenderableType

from epsilometer.cli.options import Options
from epsilometer.cli.saying import say
from epsilometer.core import words
from epsilometer.core.audit import Audit
from epsilometer.core.printing import one_line
from epsilometer.errors import InvalidArgument

_PLAIN_WIDTH = 100


def show(*renderables: RenderableType) -> None:
    """Print for people: with colours on a terminal, plain and of fixed width elsewhere."""
    wide = None if sys.stdout.isatty() else _PLAIN_WIDTH
    # What is shown is text: no markup, no emoji, no links.
    console = Console(width=wide, file=sys.stdout, markup=False, emoji=False, highlight=False)
    for renderable in renderables:
        console.print(renderable)


def end_audit(
    audit: Audit, options: Options, *, further: tuple[RenderableType, ...] = (), code: bool = True
) -> None:
    """Show an audit as the options say, and exit with its code.

    Args:
        audit: What was found.
        options: How it is shown.
        further: What people are told beside it.
        code: Whether the verdict decides the exit code.
    """
    if options.html is not None:
        write_page(audit, options.html)
    if options.as_json:
        say(audit.to_json())
    elif options.quiet:
        say(words.headline(audit))
    else:
        show_audit(audit)
        show(*further)
        if options.out is not None:
            say(f"Report: {one_line(str(options.out / 'report.html'))}")
        if options.html is not None:
            say(f"Also written: {one_line(str(options.html))}")
    if options.explain:
        show_explanation(audit, aside=options.as_json)
    if code and audit.exit_code:
        raise SystemExit(audit.exit_code)


def show_audit(audit: Audit) -> None:
    """Print an audit for people."""
    # Here, so that whoever asks for JSON does not wait for it.
    from epsilometer.report.terminal import summary

    show(summary(audit))


def show_explanation(audit: Audit, *, aside: bool = False) -> None:
    """Print how an audit came about; aside: to standard error, where the audit itself is JSON."""
    from epsilometer.report.explaining import explain

    say(f"\n{explain(audit)}", err=aside)


def write_page(audit: Audit, path: Path) -> None:
    """Write the report as one file, whole or not at all."""
    from epsilometer.report.page import page

    write_text(page(audit), path)


def write_text(text: str, path: Path) -> None:
    """Write a page as one file, whole or not at all."""
    from epsilometer._files import write_whole

    whole = text if text.endswith("\n") else f"{text}\n"
    try:
        write_whole(path, whole.encode("utf-8"), private=False)
    except OSError as error:
        raise InvalidArgument(f"Could not write {str(path)!r}: {error.strerror}.") from error
