"""``epsilometer selfcheck``."""

import click
from rich import box
from rich.table import Table
from rich.text import Text

from epsilometer.audits.scores.selfcheck import RUNS, Outcome
from epsilometer.audits.scores.selfcheck import selfcheck as run_selfcheck
from epsilometer.cli.options import explain_option, json_option, seed_option
from epsilometer.cli.output import show, show_explanation
from epsilometer.cli.saying import say
from epsilometer.core.plain import to_plain
from epsilometer.core.printing import to_json_text


@click.command()
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=RUNS,
    show_default=True,
    help="Run each mechanism so often, with and without the record.",
)
@seed_option
@json_option
@explain_option
def selfcheck(runs: int, seed: int | None, as_json: bool, explain: bool) -> None:
    """Check the auditor: broken mechanisms refuted, sound ones spared.

    Exit code 1 if it erred on any of them.

    Example: epsilometer selfcheck
    """
    outcomes = run_selfcheck(runs=runs, seed=seed or 0)
    wrong = sum(not outcome.right for outcome in outcomes)
    if as_json:
        rows = [_describe(outcome) for outcome in outcomes]
        say(to_json_text(to_plain(rows)))
    else:
        show(_make_table(outcomes), f"{len(outcomes) - wrong} of {len(outcomes)} right.")
    if explain:
        for outcome in outcomes:
            show_explanation(outcome.audit, aside=as_json)
    if wrong:
        raise SystemExit(1)


def _describe(outcome: Outcome) -> dict[str, object]:
    audit = outcome.audit
    return {
        "mechanism": outcome.control.name,
        "sound": outcome.control.sound,
        "claim": audit.claim,
        "epsilon": audit.epsilon,
        "verdict": audit.verdict,
        "right": outcome.right,
    }


def _make_table(outcomes: tuple[Outcome, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("mechanism", "truth", "claimed ε", "proved ε ≥", "verdict", ""):
        table.add_column(column)
    for outcome in outcomes:
        table.add_row(
            outcome.control.name,
            "sound" if outcome.control.sound else "broken",
            f"{outcome.control.claim.epsilon:g} at δ = {outcome.control.claim.delta:g}",
            f"{outcome.audit.epsilon:.3f}",
            outcome.audit.verdict,
            Text("right", style="green") if outcome.right else Text("WRONG", style="red"),
        )
    return table
