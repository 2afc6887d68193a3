"""The ``epsilometer`` command. Commands are imported when called, so that help is instant."""

import io
import sys
import traceback
import warnings
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from epsilometer import __version__
from epsilometer.errors import EpsilometerError, EpsilometerWarning

_COMMANDS = {
    "check": "Judge a promise by a RESULT written before, for CI.",
    "classifier": "Say whether a classifier trained on the table DATA may be published, and who "
    "is at risk.",
    "completion": "Print what makes a SHELL complete commands, options, methods, files and runs.",
    "demo": "Audit DP training on real data, as promised and with a classic mistake.",
    "doctor": "Say what is installed and works here, what does not, and what to do about it.",
    "dpsgd": "Train by DP-SGD thousands of times, with a canary and without it, and attack it.",
    "estimate": "Bound ε from below, from the attack scores in FILE.",
    "federated": "Train by DP-FedAvg once, with canaries among the clients, and say what it leaks "
    "of a client.",
    "lint": "Check training code for batches that are not what the accountant assumes.",
    "log": "List the results in FOLDER and below it; compare two, or follow one over releases.",
    "methods": "List the methods: what each guarantees, assumes and cites.",
    "posterior": "Say which form of predictions with uncertainty may be published, by what each "
    "leaks.",
    "report": "Make the report of RUN, the directory of a run or a result as JSON.",
    "reproduce": "Measure what a paper published: NAME is one of those that are listed without it.",
    "resume": "Finish the run in directory RUN, to the same bytes as if it had never stopped.",
    "selfcheck": "Check the auditor: sound mechanisms spared, broken ones refuted.",
    "shuffle": "Say what DP-SGD leaks that shuffles and is accounted as if it sampled by Poisson.",
    "status": "Say how far the run in directory RUN is. Changes nothing there.",
}


class _Commands(click.Group):
    """Loads a command from the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"epsilometer.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes commands without importing them: a person waits for each press of a key."""
        return [
            *(
                CompletionItem(name, help=short)
                for name, short in _COMMANDS.items()
                if name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # an ASCII terminal gets ? for ε, not a crash
                stream.reconfigure(errors="replace")
        warnings.simplefilter("ignore", EpsilometerWarning)  # results carry them as caveats
        try:
            return super().invoke(ctx)
        except EpsilometerError as error:  # only 1 may mean "refuted", so ours become 2
            raise click.UsageError(str(error)) from error
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort) as error:
            raise SystemExit(130) from error
        except Exception as error:  # a fault of ours must not read as "refuted" either
            traceback.print_exc()
            raise SystemExit(3) from error


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="epsilometer")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Measure how private machine learning really is.

    Exit codes: 0 it ran, 1 a claim was refuted, 2 the call was wrong, 3 a fault of epsilometer's.
    """
    if ctx.invoked_subcommand is None:
        from epsilometer.cli.start import show_start

        show_start()
