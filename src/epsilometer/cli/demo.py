"""Show that audits work: ``epsilometer demo`` and ``epsilometer selfcheck``."""

from typing import Any

import click

from epsilometer._dispatch import Call
from epsilometer.audits.scores.selfcheck import RUNS, Outcome
from epsilometer.audits.scores.selfcheck import selfcheck as run_selfcheck
from epsilometer.audits.training.demo import CLAIM, Demo
from epsilometer.cli.audit import end_audit, run_call
from epsilometer.cli.options import (
    Options,
    audit_options,
    explain_option,
    field_options,
    json_option,
    seed_option,
)
from epsilometer.cli.output import make_table, say, show, show_explanation
from epsilometer.core.plain import to_plain
from epsilometer.core.printing import to_json_text
from epsilometer.core.settings import from_settings


@click.command()
@field_options(
    Demo, {"runs": "Set the number of runs with the record, and as many without."}, into="settings"
)
@seed_option
@audit_options(asks=False, units=True, home="epsilometer-demo")
def demo(settings: dict[str, Any], options: Options) -> None:
    """Audit correct and faulty DP training on real data.

    Trains softmax regression on handwritten digits thousands of times, with a mislabelled image and
    without it, and attacks every run. The exit code is 0 even though the claim is refuted.

    Example: epsilometer demo --runs 500 --out demo-run
    """
    subject = from_settings(Demo, {"source": {"type": "digits"}, **settings})
    call = Call(subject=subject, claim=CLAIM, seed=options.seed or 0)
    end_audit(run_call(call, options), options, code=False)


@click.command()
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=RUNS,
    show_default=True,
    help="Set the number of runs per mechanism, with and without the record.",
)
@seed_option
@json_option
@explain_option
def selfcheck(runs: int, seed: int | None, as_json: bool, explain: bool) -> None:
    """Check that the auditor refutes broken mechanisms and no sound one.

    Exit code 1 if any verdict is wrong.

    Example: epsilometer selfcheck
    """
    outcomes = run_selfcheck(runs=runs, seed=seed or 0)
    wrong = sum(not outcome.right for outcome in outcomes)
    if as_json:
        rows = [_describe(outcome) for outcome in outcomes]
        say(to_json_text(to_plain(rows)))
    else:
        head = ("mechanism", "truth", "claimed ε", "proved ε ≥", "verdict", "")
        table = make_table(head, map(_make_row, outcomes))
        show(table, f"{len(outcomes) - wrong} of {len(outcomes)} right.")
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


def _make_row(outcome: Outcome) -> tuple[Any, ...]:
    from rich.text import Text

    control, audit = outcome.control, outcome.audit
    return (
        control.name,
        "sound" if control.sound else "broken",
        f"{control.claim.epsilon:g} at δ = {control.claim.delta:g}",
        f"{audit.epsilon:.3f}",
        audit.verdict,
        Text("right", style="green") if outcome.right else Text("WRONG", style="red"),
    )
