"""Complete commands in a shell: ``epsilometer completion``, and names of runs."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from epsilometer.cli.output import say

_VARIABLE = "_EPSILOMETER_COMPLETE"  # by which click recognises a shell that asks


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a SHELL.

    \b
    bash  in ~/.bashrc:  eval "$(epsilometer completion bash)"
    zsh   in ~/.zshrc:   eval "$(epsilometer completion zsh)"
    fish  once:  epsilometer completion fish > ~/.config/fish/completions/epsilometer.fish

    Needs bash 4.4 or newer; the one that macOS ships is older.

    Example: epsilometer completion bash
    """
    known = get_completion_class(shell)
    assert known is not None  # click has all three
    # The script alone: click's own ``source`` would ask the bash on the path for its version.
    script = known(click.get_current_context().find_root().command, {}, "epsilometer", _VARIABLE)
    say(script.source_template % script.source_vars())


def complete_run(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete to directories of runs; if none matches, to folders that may contain them."""
    folder, _, begun = incomplete.rpartition("/")
    try:
        inside = sorted(Path(f"{folder}/" if "/" in incomplete else ".").iterdir())
    except OSError:  # no such folder, or no permission: no completions
        inside = []
    lead = incomplete[: len(incomplete) - len(begun)]
    runs: list[CompletionItem] = [
        CompletionItem(lead + path.name)
        for path in inside
        if path.name.startswith(begun) and (path / "plan.json").is_file()
    ]
    return runs or [CompletionItem(incomplete, type="dir")]
