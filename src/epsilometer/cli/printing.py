"""What commands share when they print."""

import sys

from rich.console import Console, RenderableType

from epsilometer.report.terminal import summary
from epsilometer.results import AuditGroup, AuditResult

_PLAIN_WIDTH = 100


def show(*renderables: RenderableType) -> None:
    """Prints for people: with colours on a terminal, plain and of fixed width elsewhere."""
    wide = None if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(width=wide, file=sys.stdout)
    for renderable in renderables:
        console.print(renderable)


def show_result(result: AuditResult | AuditGroup) -> None:
    """Each audit on the terminal."""
    show(*(summary(audit) for audit in result.audits))
