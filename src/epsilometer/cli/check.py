"""Judge saved results: ``epsilometer check`` and ``epsilometer runs verify``."""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import click

from epsilometer._dispatch import rejudge
from epsilometer.cli.audit import visit
from epsilometer.cli.options import (
    claim_option,
    data_option,
    delta_option,
    explain_option,
    policy_option,
    run_argument,
    trust_option,
)
from epsilometer.cli.output import say, show_explanation, show_line
from epsilometer.cli.policy import end_policy
from epsilometer.core import annotations, judge, words
from epsilometer.core.audit import Audit
from epsilometer.core.chain import RESULT
from epsilometer.core.findings import RuleFinding
from epsilometer.core.plain import to_plain
from epsilometer.core.printing import one_line, to_json_text
from epsilometer.core.serialisation import load
from epsilometer.errors import InvalidArgument


@click.command()
@click.argument("file", metavar="[RESULT]", type=click.Path(path_type=Path), required=False)
@policy_option
@claim_option
@delta_option()
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github", "junit"]),
    default="text",
    show_default=True,
    help="Choose the output format.",
)
@click.option("--verify", is_flag=True, help="Recompute the result from the units of its run.")
@click.option(
    "--signed-by", "key", metavar="KEY", help="Require a minisign signature by this public key."
)
@trust_option
@data_option()
@explain_option
def check(
    file: Path | None,
    policy: Path | None,
    claim: float | None,
    delta: float | None,
    form: str,
    verify: bool,
    key: str | None,
    trust: bool,
    data: Path | None,
    explain: bool,
) -> None:
    """Fail a CI job if a saved RESULT refutes its claim.

    RESULT is a JSON file or a run directory. The claim that it carries is judged, or the one given
    by --claim and --delta. KEY is a file or begins with RW; the signature is RESULT.minisig.

    Exit code 1 if the claim is refuted or a model must not be released. Exit code 4, never 0, if
    RESULT cannot judge it (beyond reach, not valid, failed units, a bound at a smaller δ).

    With --policy, every audit that the file requires is checked. Exit code 1 if one is refuted, 4
    if one is missing, too old, or of different code.

    Example: epsilometer check audit.json --claim 3 --delta 1e-5
    """
    if (file is None) == (policy is None):
        raise InvalidArgument("Expected RESULT or --policy FILE.toml, got neither or both.")
    if policy is not None:
        if verify or explain or key is not None or claim is not None:
            raise InvalidArgument(
                "Expected --policy without --claim, --verify, --signed-by and --explain."
            )
        end_policy(policy, form)
        return
    assert file is not None
    if key is not None:
        from epsilometer.verification import check_signature

        check_signature(file / RESULT if file.is_dir() else file, key)
    found = verify_run(file, trust=trust, data=data) if verify else load(file)
    if claim is None and delta is not None:
        raise InvalidArgument("Expected --claim with --delta, got none.")
    if claim is not None:
        if found.find(RuleFinding):
            raise InvalidArgument(
                "Expected no --claim: rules about publishing decide in this audit, and not an ε. "
                f"Its verdict is its own: {found.verdict}."
            )
        found = rejudge(found, claim, delta=delta)
    (show_line if form == "text" else say)(_FORMS[form](found))
    if explain:
        show_explanation(found, aside=form != "text")
    if found.exit_code:
        raise SystemExit(found.exit_code)


@click.command()
@run_argument
@trust_option
@data_option()
def verify(directory: Path, trust: bool, data: Path | None) -> None:
    """Recompute the result of RUN from its units and compare it.

    Computes no unit and writes nothing. A run whose data were supplied from Python is verified
    in Python, by epsilometer.verification.verify.

    Exit code 2 if the result, the plan or a unit was changed or is missing.

    Example: epsilometer runs verify demo-run
    """
    found = verify_run(directory, trust=trust, data=data)
    units = found.provenance.used + found.provenance.failed
    say(f"Verified: {units:,} units give this result.")
    show_line(words.headline(found))


def verify_run(path: Path, *, trust: bool, data: Path | None) -> Audit:
    """Return the result of a run, recomputed from its units; refuse one that differs.

    Args:
        path: The directory of the run, or the result in it.
        trust: Import functions that its plan names.
        data: Folder that its data are read from.
    """
    directory = (path.parent if path.name == RESULT else path).absolute()
    from epsilometer.verification import verify as recompute

    if not directory.is_dir():
        raise InvalidArgument(
            f"Expected the directory of a run to verify, got {str(path)!r}: a result alone has "
            "nothing to be recomputed from."
        )
    with visit(data, trust=trust):
        return recompute(directory, trust=trust)


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
