"""Every kind of result says how it came about: counted, formula, why it holds, what it does not."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from epsilometer import Claim, Scores, explain
from epsilometer._dispatch import audit as run_audit
from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.cli.main import main
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.findings import MembershipFinding, RuleFinding
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument
from epsilometer.report.page import page
from epsilometer.report.texts import COUNTED, FORMULA, HOLDS, MEASURED, NOT_SAID
from tests.cli.calls import call
from tests.examples import (
    AUDITS,
    FORMS,
    a_bound,
    a_posterior,
    a_provenance,
    a_release,
    a_series,
    an_audit,
    an_estimate,
    computed,
)

ENDING_IN_A_RESULT = [
    *("audit", "check", "classifier", "demo", "dpsgd", "estimate", "federated", "posterior"),
    *("report", "runs resume", "selfcheck", "shuffle"),
]


def an_attack(epsilon: float = 1.0) -> Audit:
    rng = np.random.default_rng(0)
    scores = Scores(inside=rng.normal(3, 1, 300), outside=rng.normal(0, 1, 300))
    return run_audit(scores, Claim(epsilon, delta=1e-5))


def shuffled() -> EpsilonEstimate:
    return shuffle_epsilon(noise_multiplier=1.0, steps=10, delta=1e-5)


def titles(text: str) -> set[str]:
    return {title for title in (COUNTED, FORMULA, HOLDS, NOT_SAID) if f"\n{title}\n" in text}


def test_an_audit_says_all_four_and_what_it_cites() -> None:
    result = an_attack()
    text = str(explain(result))
    assert titles(text) == {COUNTED, FORMULA, HOLDS, NOT_SAID}
    assert "ε = 1 was claimed" in text
    assert "> 1." in text
    for key in result.bounds[0].cites:
        assert f"{key}: " in text
        assert BIBLIOGRAPHY[key][:40] in text.replace("\n    ", " ")
    assert f"{result.bounds[0].epsilon:.8g}" in text


@pytest.mark.parametrize(
    ("result", "part"),
    [
        (lambda: an_attack(4.5), "Not refuted does not mean proved."),
        (lambda: an_attack(4.5), "This audit could refute claims up to ε = "),
        (lambda: an_attack(100.0), "ε = 100 is beyond reach"),
        (an_audit(bound=a_bound(valid=False, caveats=("unpaid",))), "is not valid"),
        (an_audit(claim=None), "Nothing was claimed"),
        (an_audit(provenance=a_provenance(units=3, failed=1)), "1 of 3 units failed"),
        (an_audit(also=(a_bound(epsilon=7.0),)), "For comparison only: ε ≥ 7 "),
        (an_audit(estimates=(an_estimate(5.0, method="monte_carlo"),)), "Also: ε = 5 "),
        (
            lambda: an_audit(estimates=(shuffled(),)),
            "By computation, ε is at least",
        ),
        (
            an_audit(estimates=(computed(5.0, role="upper", method="gaussian"),)),
            "By computation, ε is at most 5.00 > 1.",
        ),
        (
            an_audit(estimates=(computed(5.0, role="reference"),)),
            "Also: ε = 5 at δ = 1e-05",
        ),
    ],
)
def test_the_verdict_is_explained(result: Audit | Callable[[], Audit], part: str) -> None:
    if callable(result):  # what takes time is not computed where tests are collected
        result = result()
    assert part in " ".join(str(explain(result)).split())


def test_what_was_said_is_not_said_again() -> None:
    text = str(explain(a_series()))
    assert text.count("\nWhy the confidence holds\n") == 1
    assert text.count("Why the confidence holds: as above.") == len(a_series().views) - 1
    for view in a_series().views:
        assert view.subject in text


def test_a_release_is_explained_by_its_rules() -> None:
    release = a_release()
    text = " ".join(str(explain(release)).split())
    for rule in release.find(RuleFinding):
        assert f"{rule.rule}: measured" in text
        assert f"So: {rule.outcome.upper()}." in text
    for attack in release.find(MembershipFinding):
        assert f"{attack.attack}: 500 scores inside" in text
    assert MEASURED in text
    assert "row 0" not in text  # no record is named


def test_a_posterior_is_explained_by_its_forms() -> None:
    text = " ".join(str(explain(a_posterior())).split())
    for form in FORMS:
        assert f"{form.form}: ε ≥ " in text
    assert "3 formats share an error probability of 1 − 0.95" in text


@pytest.mark.parametrize("name", ["attack", *AUDITS])
def test_an_audit_that_was_read_is_explained_the_same(name: str) -> None:
    audit = an_attack() if name == "attack" else AUDITS[name]
    assert str(explain(from_json(audit.to_json()))) == str(explain(audit))
    assert "<details" in page(audit)
    assert "how this number was computed" in page(audit)


@pytest.mark.parametrize("make", [shuffled, lambda: an_estimate(5.0, method="PLD")])
def test_bounds_and_estimates_are_explained_alone(make: Callable[[], EpsilonEstimate]) -> None:
    estimate = make()
    assert explain(a_bound()).title.startswith("A bound by clopper_pearson")
    assert explain(estimate).title.startswith("An ε by theory")


@pytest.mark.parametrize("wrong", [None, 3, "audit.json"])
def test_what_is_no_result_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="Expected an audit, a bound or an estimate"):
        explain(wrong)


def test_hostile_texts_stay_texts() -> None:
    hostile = an_audit(
        subject="a\x1b[31m<b>\nb",
        bound=a_bound(caveats=("\x1b]0;x\x07", "<script>alert(1)</script>")),
    )
    text = str(explain(hostile))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "<script>alert" not in page(hostile)


def test_a_method_of_others_is_named_and_has_a_page_without() -> None:
    with pytest.raises(InvalidArgument, match="'magic'"):
        explain(an_audit(bound=a_bound(method="magic")))
    assert "How this number came about" not in page(an_audit(bound=a_bound(method="magic")))


@pytest.fixture
def scores_csv(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"{score},1" for score in rng.normal(3, 1, 200)]
    rows += [f"{score},0" for score in rng.normal(0, 1, 200)]
    (tmp_path / "scores.csv").write_text("\n".join(["score,member", *rows]), "utf-8")
    return tmp_path / "scores.csv"


def test_estimate_check_and_report_explain_the_same(scores_csv: Path) -> None:
    asked = ("estimate", scores_csv, "--claim", "1", "--delta", "1e-5", "--explain")
    said = call(*asked)
    assert said.exit_code == 1, said.output
    assert titles(said.stdout) == {COUNTED, FORMULA, HOLDS, NOT_SAID}
    aside = call(*asked, "--json")
    json.loads(aside.stdout)  # the audit alone
    explanation = aside.stderr.strip()
    assert explanation in said.stdout
    audit = scores_csv.with_name("audit.json")
    audit.write_text(aside.stdout, "utf-8")
    checked = call("check", audit, "--explain")
    assert checked.exit_code == 1
    assert explanation in checked.stdout
    reported = call("report", audit, "--explain")
    assert reported.exit_code == 0
    assert explanation in reported.stdout
    assert "References" not in call("report", audit).stdout


def test_shuffle_explains_the_game_and_the_accountant() -> None:
    done = call(
        *("shuffle", "--noise-multiplier", "1", "--steps", "10", "--observations", "2000"),
        *("--delta", "1e-5", "--explain"),
    )
    assert done.exit_code in (0, 1), done.output
    assert "δ(ε) = E_P[max(0, 1 − e^(ε − L))]" in done.stdout
    assert "A bound by calibrated" in done.stdout


def test_selfcheck_explains_each_mechanism() -> None:
    done = call("selfcheck", "--runs", "50", "--explain")
    assert len(re.findall(r"^Explanation: A bound by ", done.stdout, re.M)) == 6


@pytest.mark.parametrize("name", ENDING_IN_A_RESULT)
def test_every_command_that_ends_in_a_result_can_explain_it(name: str) -> None:
    command: Any = main
    for word in name.split():
        command = command.get_command(click.Context(command), word)
    assert "explain" in {parameter.name for parameter in command.params}
