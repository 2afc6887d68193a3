"""``epsilometer check``."""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import click

from epsilometer._dispatch import rejudge
from epsilometer.cli.options import (
    claim_option,
    data_option,
    delta_option,
    explain_option,
    trust_option,
)
from epsilometer.cli.output import show_explanation
from epsilometer.cli.saying import say
from epsilometer.core import annotations, judge, words
from epsilometer.core.audit import Audit
from epsilometer.core.chain import RESULT
from epsilometer.core.findings import RuleFinding
from epsilometer.core.plain import to_plain
from epsilometer.core.printing import one_line, to_json_text
from epsilometer.core.serialisation import load
from epsilometer.errors import InvalidArgument


@click.command()
@click.argument("file", metavar="RESULT", type=click.Path(path_type=Path))
@claim_option
@delta_option()
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github", "junit"]),
    default="text",
    show_default=True,
    help="Print for people, programs, GitHub Actions or JUnit.",
)
@click.option("--verify", is_flag=True, help="Recompute the result from the units of its run.")
@click.option(
    "--signed-by", "key", metavar="KEY", help="Require a minisign signature by this public key."
)
@trust_option
@data_option()
@explain_option
def check(
    file: Path,
    claim: float | None,
    delta: float | None,
    form: str,
    verify: bool,
    key: str | None,
    trust: bool,
    data: Path | None,
    explain: bool,
) -> None:
    """Judge a claim by a RESULT written before, for CI.

    RESULT is a JSON file or the directory of a run. Its own claim is judged, or that of --claim
    with --delta. KEY is a file or begins with RW; the signature is RESULT.minisig.

    Exit code 1 if the claim is refuted, or a classifier is not to be released; 4 if RESULT cannot
    judge it (beyond reach, not valid, failed units, a bound at a smaller δ), never a pass.

    Example: epsilometer check audit.json --claim 3 --delta 1e-5
    """
    if key is not None:
        from epsilometer.verification import check_signature

        check_signature(file / RESULT if file.is_dir() else file, key)
    if verify:
        from epsilometer.cli.verifying import verify_run

        found = verify_run(file, trust=trust, data=data)
    else:
        found = load(file)
    if claim is None and delta is not None:
        raise InvalidArgument("Expected --claim beside --delta, got none.")
    if claim is not None:
        if found.find(RuleFinding):
            raise InvalidArgument(
                "Expected no --claim: rules about publishing decide in this audit, and not an ε. "
                f"Its verdict is its own: {found.verdict}."
            )
        found = rejudge(found, claim, delta=delta)
    say(_FORMS[form](found))
    if explain:
        show_explanation(found, aside=form != "text")
    if found.exit_code:
        raise SystemExit(found.exit_code)


def _write_json(found: Audit) -> str:
    plain = {
        "verdict": found.verdict,
        "exit_code": found.exit_code,
        "headline": words.headline(found),
        "claim": found.claim,
        "epsilon": found.epsilon,
        "reach": found.reach,
        "power": found.power,
    }
    return to_json_text(to_plain(plain))


def _write_github(found: Audit) -> str:
    level: annotations.Level = "error" if found.exit_code else "notice"
    return annotations.to_github(level, words.headline(found), title="epsilometer")


def _write_junit(found: Audit) -> str:
    outcomes: dict[int, annotations.Outcome] = {0: "passed", 1: "failure", 4: "error"}
    case = annotations.Case(
        name=one_line(found.subject),
        outcome=outcomes[judge.exit_code(found.verdict)],
        message=words.headline(found),
    )
    return annotations.to_junit("epsilometer check", [case])


_FORMS: MappingProxyType[str, Callable[[Audit], str]] = MappingProxyType(
    {
        "text": words.headline,
        "json": _write_json,
        "github": _write_github,
        "junit": _write_junit,
    }
)
