"""What commands share that write a page."""

import os
from pathlib import Path

import click

from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import Result


def _writable(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Told before the work, not after it."""
    if path is not None and not os.access(path.parent, os.W_OK):
        raise InvalidArgument(f"Expected a folder to write {str(path)!r} in, found none.")
    return path


html_option = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_writable,
    help="Also write the report to this file.",
)


def write_page(result: Result, path: Path) -> None:
    """The report as one file, whole or not at all."""
    # Here, so that whoever asks for no page does not wait for what makes it.
    from epsilometer.report.page import page

    write_text(page(result), path)


def write_text(text: str, path: Path) -> None:
    """A page as one file, whole or not at all."""
    from epsilometer.engine.store import write_whole

    try:
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"Could not write {str(path)!r}: {error.strerror}.") from error
