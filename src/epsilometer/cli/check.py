"""``epsilometer check``."""

from pathlib import Path

import click

from epsilometer.core.claim import Claim
from epsilometer.cli.printing import explain_option, show_explanation
from epsilometer.cli.reading import read_result
from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import ReleaseAudit
from epsilometer.core.bound import EpsilonLowerBound


@click.command()
@click.argument("file", metavar="RESULT", type=click.Path(path_type=Path))
@click.option("--claim-epsilon", type=float, required=True, help="Promised ε.")
@click.option("--delta", type=float, required=True, help="Promised δ.")
@explain_option
def check(file: Path, claim_epsilon: float, delta: float, explain: bool) -> None:
    """Judge a promise by a RESULT written before, for CI.

    RESULT is a JSON file or the directory of a run.

    Exit code 1 if the promise is refuted, by any audit of a group. A result that cannot judge it
    (not valid, failed units, a bound at a smaller δ) is exit code 2, never a pass.

    Example: epsilometer check audit.json --claim-epsilon 3 --delta 1e-5
    """
    claim = Claim(epsilon=claim_epsilon, delta=delta)
    result = read_result(file)
    if isinstance(result, ReleaseAudit):
        raise InvalidArgument(
            "Expected a result with a bound on ε, got an audit of a classifier, whose verdict is "
            f"its own: {result.verdict}."
        )
    if isinstance(result, EpsilonLowerBound):
        verdicts = [_verdict(claim, result, failed=0)]
    else:
        verdicts = [
            _verdict(claim, audit.bound, failed=audit.provenance.failed) for audit in result.audits
        ]
    if explain:
        show_explanation(result)
    if "refuted" in verdicts:
        raise SystemExit(1)
    unclear = [verdict for verdict in verdicts if verdict != "not refuted"]
    if unclear:
        raise InvalidArgument(f"This result cannot judge the promise: {'; '.join(unclear)}.")


def _verdict(claim: Claim, bound: EpsilonLowerBound, *, failed: int) -> str:
    """Says it, and returns ``refuted``, ``not refuted``, or why neither can be said.

    A promise at a smaller δ than the bound's is a stronger one, and falls with the weaker.
    """
    promised = f"ε = {claim.epsilon:g} at δ = {claim.delta:g}"
    if claim.delta > bound.delta:
        return (
            f"its bound is at δ = {bound.delta:g}, and says nothing at the larger {claim.delta:g}"
        )
    if bound.refutes(claim.epsilon):
        click.echo(f"REFUTED: {promised} was promised; {bound}")
        return "refuted"
    if not bound.valid:
        return f"{bound}"
    if failed:
        return f"{failed} of its units failed, and may have refuted it"
    click.echo(f"NOT REFUTED: {promised} was promised; {bound}")
    return "not refuted"
