"""``epsilometer estimate``."""

import hashlib
import shlex
from pathlib import Path

import click

from epsilometer.audits.scores import audit_scores
from epsilometer.core.claim import Claim
from epsilometer.cli.completing import one_of
from epsilometer.cli.printing import explain_option, show_explanation, show_result
from epsilometer.cli.writing import html_option, write_page
from epsilometer.engine.plan import versions
from epsilometer.errors import InvalidArgument
from epsilometer.readers import read_scores
from epsilometer.core.audit import Provenance
from epsilometer.core.serialisation import to_json
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.thresholds import (
    Best,
    Bonferroni,
    Fixed,
    HoldOut,
    RankGrid,
    ThresholdRule,
)

_RULES = "rank-grid[:RATIO], hold-out[:FRACTION], bonferroni, fixed:THRESHOLD, best (not valid)"


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--delta", type=float, required=True, help="δ at which ε is bounded.")
@click.option("--claim", type=float, help="Promised ε. If it is refuted the exit code is 1.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="One-sided.")
@click.option(
    "--method",
    default="clopper_pearson",
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(REGISTRY)}.",
    shell_complete=one_of(REGISTRY),
)
@click.option(
    "--rule",
    default="rank-grid",
    show_default=True,
    help=f"Thresholds: {_RULES}.",
    shell_complete=one_of(("rank-grid", "hold-out", "bonferroni", "fixed:", "best")),
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="For rules that split.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@explain_option
@html_option
def estimate(
    file: Path,
    delta: float,
    claim: float | None,
    confidence: float,
    method: str,
    rule: str,
    seed: int,
    as_json: bool,
    explain: bool,
    html: Path | None,
) -> None:
    """Bound ε from below, from the attack scores in FILE.

    FILE is .csv, .parquet or .npz with columns score and member (1 inside, 0 outside), or inside
    and outside. Higher scores must mean "was in".

    Example: epsilometer estimate scores.csv --delta 1e-5 --claim 3
    """
    scores = read_scores(file)
    command = (
        f"epsilometer estimate {shlex.quote(str(file))} --delta {delta:g} --method {method} "
        f"--rule {rule} --confidence {confidence:g} --seed {seed}"
        + ("" if claim is None else f" --claim {claim:g}")
    )
    result = audit_scores(
        scores,
        delta=delta,
        claim=None if claim is None else Claim(epsilon=claim, delta=delta),
        confidence=confidence,
        method=method,
        rule=parse_rule(rule),
        seed=seed,
        subject=file.name,
        provenance=Provenance(
            command=command,
            versions=versions(),
            inputs=((file.name, hashlib.sha256(file.read_bytes()).hexdigest()),),
        ),
    )
    if html is not None:
        write_page(result, html)
    if as_json:
        click.echo(to_json(result))
    else:
        show_result(result)
    if explain:
        show_explanation(result, aside=as_json)
    if result.verdict == "refuted":
        raise SystemExit(1)


def parse_rule(text: str) -> ThresholdRule:
    """A rule from its name and, after a colon, its number."""
    name, _, number = text.partition(":")
    try:
        match name:
            case "rank-grid":
                return RankGrid(int(number)) if number else RankGrid()
            case "hold-out":
                return HoldOut(float(number)) if number else HoldOut()
            case "fixed":
                return Fixed(float(number))
            case "bonferroni" | "best" if not number:
                return Bonferroni() if name == "bonferroni" else Best()
    except ValueError:  # no number where one belongs; ours are ValueErrors too, and say more
        pass
    raise InvalidArgument(f"Expected a rule of {_RULES}; got {text!r}.")
