"""The ``epsilometer`` command. Commands are imported when called, so that help is instant."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from epsilometer import __version__
from epsilometer.cli.encoding import spell_out
from epsilometer.cli.output import say, show, word_error
from epsilometer.core.printing import one_line
from epsilometer.errors import SHOW_ERRORS, EpsilometerError, EpsilometerWarning, shows_errors

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from rich.table import Table

HEADINGS: dict[str, dict[str, str]] = {
    "Audit": {
        "estimate": "Compute a lower bound on ε from attack scores in FILE.",
        "shuffle": "Compute the ε of shuffled DP-SGD accounted as Poisson-sampled.",
        "dpsgd": "Attack thousands of DP-SGD runs, with and without a canary.",
        "federated": "Attack one DP-FedAvg run with canaries among its clients.",
        "classifier": "Judge whether a classifier trained on TABLE may be published.",
        "regressor": "Judge whether a regressor trained on TABLE may be published.",
        "posterior": "Choose the format in which uncertain predictions may be published.",
        "audit": "Run the audit that FILE describes, or repeat one.",
    },
    "Judge and report": {
        "check": "Fail a CI job if a saved RESULT refutes its claim.",
        "lint": "Find training code that breaks its accountant's assumptions.",
        "report": "Write the report of RUN, a run directory or a saved audit.",
    },
    "Runs": {
        "runs": "List, resume, verify and compare runs and their results.",
        "ui": "Watch the runs in FOLDER live in a browser.",
    },
    "Other": {
        "demo": "Audit correct and faulty DP training on real data.",
        "reproduce": "Reproduce a paper's results and compare them with its numbers.",
        "doctor": "Check what is installed and whether it works.",
        "methods": "List the methods with their guarantees, assumptions and references.",
        "selfcheck": "Check that the auditor refutes broken mechanisms and no sound one.",
        "zoo": "Run the checks on known wrong and right programs.",
        "completion": "Print the completion script for a SHELL.",
    },
}
COMMANDS = {name: text for commands in HEADINGS.values() for name, text in commands.items()}
# What a user has, and the command for it. Every command parses.
STARTS = (
    ("attack scores in a file", "epsilometer estimate scores.csv --delta 1e-5"),
    ("DP-SGD that shuffles", "epsilometer shuffle --noise-multiplier 1 --steps 100 --claim 3"),
    ("DP-SGD settings and records", "epsilometer dpsgd --config audit.toml"),
    ("federated training", "epsilometer federated --rounds 50 --cohort 100"),
    (
        "a classifier without DP",
        "epsilometer classifier t.csv --label y --published-as file",
    ),
    ("predictions with uncertainty", "epsilometer posterior --config audit.toml"),
    ("a saved audit and a CI job", "epsilometer check audit.json --claim 3 --delta 1e-5"),
)
FIRST = "epsilometer demo"
_HELP = (
    ("what is installed and works", "epsilometer doctor"),
    ("all commands; one command", "epsilometer --help; epsilometer estimate --help"),
    ("how a number was computed", "--explain, with any command"),
)
_PIPE_CLOSED = 141  # exit code of shells for a program that SIGPIPE ended
_WORKERS = "PYTHONWARNINGS"  # environment variable that workers inherit
_MODULES = {
    "estimate": "audit",
    "methods": "audit",
    "selfcheck": "demo",
}  # those that are not named as they are
_RUNS = ("list", "status", "resume", "verify", "compare", "trend")  # for suggestions


class _Commands(click.Group):
    """Load a command from its module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = _MODULES.get(cmd_name, cmd_name)
        command: click.Command = getattr(import_module(f"epsilometer.cli.{module}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown one, suggest existing ones."""
        name = args[0]
        if not name.startswith("-") and name not in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{_suggest(name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands under their headings, without importing them."""
        width = max(map(len, COMMANDS))
        for heading, commands in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete commands without importing them, since a user waits for each key press."""
        from click.shell_completion import CompletionItem

        return [
            *(
                CompletionItem(name, help=short)
                for name, short in COMMANDS.items()
                if name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Prepare the streams before anything is printed, help too."""
        spell_out()
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:
            _leave_pipe()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _quiet_warnings():
                return super().invoke(ctx)
        except EpsilometerError as error:  # only 1 may mean "refuted", so these become 2
            raise click.UsageError(word_error(error)) from error
        except click.exceptions.Exit:
            raise
        except click.ClickException as error:
            lines = map(one_line, error.message.splitlines())  # it may name a file
            object.__setattr__(error, "message", "\n".join(lines))
            raise
        except (KeyboardInterrupt, click.Abort) as error:
            raise SystemExit(130) from error
        except BrokenPipeError:
            _leave_pipe()
        except Exception as error:  # an internal fault must not look like a verdict either
            say(_word_fault(error), err=True)
            raise SystemExit(3) from error


def _leave_pipe() -> NoReturn:
    """Exit when the reader has stopped, as in `… | head`: neither a fault nor a verdict."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is flushed at the end
    raise SystemExit(_PIPE_CLOSED)


@contextmanager
def _quiet_warnings() -> Iterator[None]:
    """Show only the type of warnings from users' code and packages: their text may hold data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EpsilometerWarning)  # results carry them as caveats
        if shows_errors():
            yield
            return
        warnings.showwarning = _show_warning
        before = os.environ.get(_WORKERS)
        os.environ.setdefault(_WORKERS, "ignore")
        try:
            yield
        finally:
            if before is None:
                del os.environ[_WORKERS]


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Replace ``warnings.showwarning``."""
    say(
        f"{category.__name__} from {one_line(filename)}:{lineno}; its text is shown with "
        f"{SHOW_ERRORS}=1.",
        err=True,
    )


def _word_fault(error: Exception) -> str:
    """Return the place of a fault; its text may hold data, and is shown only on request."""
    import traceback

    if shows_errors() or isinstance(error, ImportError):  # which names a module
        return "".join(traceback.format_exception(error))
    frames = "".join(traceback.format_tb(error.__traceback__))
    return (
        f"{frames}{type(error).__name__}\nThis is a fault. Its text is not shown, because it may "
        f"hold data; see it with {SHOW_ERRORS}=1."
    )


def _suggest(name: str) -> str:
    """Suggest the command that was probably meant, or where all are listed."""
    import difflib

    known = {**{each: each for each in COMMANDS}, **{each: f"runs {each}" for each in _RUNS}}
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {known[close[0]]!r}?" if close else " See: epsilometer --help"


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="epsilometer")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Audit differential-privacy claims about machine learning.

    \b
    Exit codes:
      0  not refuted, proved, release, or no claim
      1  refuted, violated, or do not release
      2  the call was wrong
      3  an internal fault
      4  cannot judge, or cannot tell
    """
    if ctx.invoked_subcommand is None:
        show_start()


def show_start() -> None:
    """Show one screen: what this is, which command fits what, what to try, where help is."""
    from rich.text import Text

    show(
        Text.assemble(
            (f"epsilometer {__version__}", "bold"), ": is the privacy that you claim true?"
        ),
        "It attacks a training run, turns the attack's success into a lower bound on ε at a "
        "stated confidence, and says whether the claimed ε can be true.",
        "",
        _make_start_table("You have", "Type", STARTS),
        "",
        Text.assemble(
            "Try first: ",
            (FIRST, "bold cyan"),
            "  (trains a model, attacks it, writes a report)",
        ),
        "",
        _make_start_table("You want to know", "Type", _HELP),
    )


def _make_start_table(have: str, type_: str, rows: tuple[tuple[str, str], ...]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(have, min_width=max(len(have) for have, _ in STARTS), no_wrap=True)
    table.add_column(type_)
    for had, typed in rows:
        table.add_row(had, Text(typed, style="cyan"))
    return table
