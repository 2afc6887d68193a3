"""``epsilometer zoo``."""

import click
from rich import box
from rich.table import Table
from rich.text import Text

from epsilometer.cli.options import json_option, seed_option
from epsilometer.cli.output import show
from epsilometer.cli.saying import say
from epsilometer.core.plain import to_plain
from epsilometer.core.printing import to_json_text
from epsilometer.zoo.runner import Outcome, count_outcomes, run_zoo


@click.command()
@seed_option
@json_option
def zoo(seed: int | None, as_json: bool) -> None:
    """Count the wrong programs found and the right ones spared.

    Exit code 1 if a right program is accused.

    Example: epsilometer zoo
    """
    outcomes = run_zoo(seed=seed or 0)
    if as_json:
        rows = [_describe(outcome) for outcome in outcomes]
        say(to_json_text(to_plain(rows)))
    else:
        show(_make_table(outcomes), count_outcomes(outcomes))
    if any(outcome.accused and outcome.program.right for outcome in outcomes):
        raise SystemExit(1)


def _describe(outcome: Outcome) -> dict[str, object]:
    program = outcome.program
    return {
        "id": program.id,
        "title": program.title,
        "right": program.right,
        "accused": outcome.accused,
        "checks": list(outcome.checks),
        "steps": outcome.steps,
        "seconds": outcome.seconds,
    }


def _make_table(outcomes: tuple[Outcome, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("id", "program", "truth", "found by", "steps", "CPU s", ""):
        table.add_column(column)
    for outcome in outcomes:
        program = outcome.program
        table.add_row(
            program.id,
            program.title,
            "right" if program.right else "wrong",
            outcome.checks[0] if outcome.accused else "–",
            str(outcome.steps) if outcome.accused else "–",
            f"{outcome.seconds:.2f}",
            _word_mistake(outcome),
        )
    return table


def _word_mistake(outcome: Outcome) -> Text:
    if outcome.correct:
        return Text()
    return Text("ACCUSED" if outcome.program.right else "MISSED", style="red")
