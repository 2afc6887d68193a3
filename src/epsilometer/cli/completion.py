"""``epsilometer completion``."""

import click
from click.shell_completion import get_completion_class

from epsilometer.cli.saying import say

_VARIABLE = "_EPSILOMETER_COMPLETE"  # by which click recognises a shell that asks


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a SHELL complete commands.

    \b
    bash  in ~/.bashrc:  eval "$(epsilometer completion bash)"
    zsh   in ~/.zshrc:   eval "$(epsilometer completion zsh)"
    fish  once:  epsilometer completion fish > ~/.config/fish/completions/epsilometer.fish

    bash must be 4.4 or newer; that of macOS is not.

    Example: epsilometer completion bash
    """
    from epsilometer.cli.main import main

    known = get_completion_class(shell)
    assert known is not None  # click has all three
    # The script alone: click's own ``source`` would ask the bash on the path for its version.
    script = known(main, {}, "epsilometer", _VARIABLE)
    say(script.source_template % script.source_vars())
