"""What a shell is told of arguments that click cannot know."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem


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
