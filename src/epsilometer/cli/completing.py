"""What a shell is told of arguments that click cannot know."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def one_of(names: Iterable[str]) -> Complete:
    """Completes to one of these names."""
    known = tuple(names)

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]

    return complete


def run_directory(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completes to directories of runs; where none begins so, to folders on the way to one."""
    folder, _, begun = incomplete.rpartition("/")
    try:
        inside = sorted(Path(f"{folder}/" if "/" in incomplete else ".").iterdir())
    except OSError:  # no such folder, or a closed one: nothing to offer
        inside = []
    lead = incomplete[: len(incomplete) - len(begun)]
    runs: list[CompletionItem] = [
        CompletionItem(lead + path.name)
        for path in inside
        if path.name.startswith(begun) and (path / "plan.json").is_file()
    ]
    return runs or [CompletionItem(incomplete, type="dir")]
