"""``epsilometer selfcheck``."""

from pathlib import Path

import click
from rich import box
from rich.table import Table

from epsilometer.audits.selfcheck import RUNS
from epsilometer.audits.selfcheck import selfcheck as run_selfcheck
from epsilometer.cli.printing import explain_option, show, show_explanation
from epsilometer.cli.writing import html_option, write_page
from epsilometer.core.audit import AuditGroup


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=RUNS, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@explain_option
@html_option
def selfcheck(runs: int, seed: int, explain: bool, html: Path | None) -> None:
    """Check the auditor: sound mechanisms spared, broken ones refuted.

    Exit code 1 if it erred on any of them.

    Example: epsilometer selfcheck
    """
    outcomes = run_selfcheck(runs=runs, seed=seed)
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("mechanism", "truth", "promised ε", "proved ε ≥", "verdict", ""):
        table.add_column(column)
    for outcome in outcomes:
        table.add_row(
            outcome.control.name,
            "sound" if outcome.control.sound else "broken",
            f"{outcome.control.claim.epsilon:g} at δ = {outcome.control.claim.delta:g}",
            f"{outcome.result.bound.epsilon:.3f}",
            outcome.result.verdict,
            "[green]right[/green]" if outcome.right else "[red]WRONG[/red]",
        )
    results = tuple(outcome.result for outcome in outcomes)
    group = AuditGroup(subject="Mechanisms whose ε is known", results=results)
    if html is not None:
        write_page(group, html)
    wrong = sum(not outcome.right for outcome in outcomes)
    show(table, f"{len(outcomes) - wrong} of {len(outcomes)} right.")
    if explain:
        show_explanation(group)
    if wrong:
        raise SystemExit(1)
