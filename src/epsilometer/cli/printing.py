"""What commands share when they print."""

import sys

from rich.console import Console, RenderableType

from epsilometer.posterior import PosteriorAudit
from epsilometer.release import ReleaseAudit
from epsilometer.report.posterior_terminal import posterior_summary
from epsilometer.report.release_terminal import release_summary
from epsilometer.report.terminal import summary
from epsilometer.results import Audit

_PLAIN_WIDTH = 100


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
