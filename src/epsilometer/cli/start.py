"""Show where to begin: what ``epsilometer`` alone prints."""

from rich.table import Table
from rich.text import Text

from epsilometer import __version__
from epsilometer.cli.output import show

# What somebody has, and what to type then. Every one of them is a call that parses.
STARTS = (
    ("scores of an attack, in a file", "epsilometer estimate scores.csv --delta 1e-5"),
    ("DP-SGD that shuffles", "epsilometer shuffle --noise-multiplier 1 --steps 100 --claim 3"),
    ("settings of DP-SGD, and records", "epsilometer dpsgd --config audit.toml"),
    ("federated training", "epsilometer federated --rounds 50 --cohort 100"),
    ("a classifier without DP", "epsilometer classifier people.csv --label income"),
    ("predictions with uncertainty", "epsilometer posterior --config audit.toml"),
    ("an audit, and a CI job", "epsilometer check audit.json --claim 3 --delta 1e-5"),
)
FIRST = "epsilometer demo"
_HELP = (
    ("what is installed, and works", "epsilometer doctor"),
    ("all commands; one of them", "epsilometer --help; epsilometer estimate --help"),
    ("how a number came about", "--explain, with any of them"),
)


def show_start() -> None:
    """Show one screen: what this is, what to type for what one has, what to try, where help is."""
    show(
        Text.assemble(
            (f"epsilometer {__version__}", "bold"), ": how private is your training run, really?"
        ),
        "It attacks a training run, turns the attack's success into an ε with a confidence that\n"
        "holds, and says whether the privacy that was claimed can be true.",
        "",
        _table("You have", "Type", STARTS),
        "",
        Text.assemble(
            "Try first: ", (FIRST, "bold cyan"), "  (trains a model, attacks it, writes a report)"
        ),
        "",
        _table("You want to know", "Type", _HELP),
    )


def _table(have: str, type_: str, rows: tuple[tuple[str, str], ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(have, min_width=max(len(have) for have, _ in STARTS), no_wrap=True)
    table.add_column(type_)
    for had, typed in rows:
        table.add_row(had, Text(typed, style="cyan"))
    return table
