"""What commands share when they print."""

import sys

import click
from rich.console import Console, RenderableType

from epsilometer.core.audit import PosteriorAudit
from epsilometer.core.audit import ReleaseAudit
from epsilometer.report.posterior_terminal import posterior_summary
from epsilometer.report.release_terminal import release_summary
from epsilometer.report.terminal import summary
from epsilometer.core.audit import Audit, Result

_PLAIN_WIDTH = 100
explain_option = click.option(
    "--explain", is_flag=True, help="Also say how the number came about, with its formula."
)


def show(*renderables: RenderableType) -> None:
    """Prints for people: with colours on a terminal, plain and of fixed width elsewhere."""
    wide = None if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(width=wide, file=sys.stdout)
    for renderable in renderables:
        console.print(renderable)


def show_result(result: Audit) -> None:
    """Each audit on the terminal."""
    if isinstance(result, ReleaseAudit):
        show(release_summary(result))
    elif isinstance(result, PosteriorAudit):
        show(posterior_summary(result))
    else:
        show(*(summary(audit) for audit in result.audits))


def show_explanation(result: Result, *, aside: bool = False) -> None:
    """How a result came about; aside: on standard error, where the result itself is JSON."""
    # Here, so that whoever asks for none does not wait for it.
    from epsilometer.report.explaining import explain

    click.echo(f"\n{explain(result)}", err=aside)
