"""What commands share when they print."""

import sys

from rich.console import Console, RenderableType

_PLAIN_WIDTH = 100


def show(*renderables: RenderableType) -> None:
    """Prints for people: with colours on a terminal, plain and of fixed width elsewhere."""
    wide = None if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(width=wide, file=sys.stdout)
    for renderable in renderables:
        console.print(renderable)
