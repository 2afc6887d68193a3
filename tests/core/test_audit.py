"""One type for every result: short in print, small in a notebook, whole in a file."""

import html
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from epsilometer import load
from epsilometer.core.audit import Audit
from epsilometer.core.findings import FormPlan, LeaveOneOut, MembershipFinding, RuleFinding
from epsilometer.core.words import headline
from epsilometer.errors import InvalidArgument
from tests.core.strategies import audits
from tests.examples import (
    AUDITS,
    INF,
    a_bound,
    a_claim,
    a_form,
    a_posterior,
    a_provenance,
    a_release,
    a_rule,
    a_series,
    a_shuffling,
    a_view,
    an_audit,
    several_views,
)

law = settings(deadline=None)
LONG = "a\nvery\x1b[31m long text " * 5_000


def check_print(audit: Audit) -> None:
    text = str(audit)
    assert len(text.splitlines()) <= 25
    assert len(text) <= 2_000
    assert text.startswith(f"{audit.verdict.upper()}:")
    assert "\x1b" not in text
    assert len(repr(audit)) <= 200
    assert audit.verdict in repr(audit)


@pytest.mark.parametrize("name", AUDITS)
def test_print_is_short_for_every_kind(name: str) -> None:
    check_print(AUDITS[name])
    assert str(AUDITS[name]).splitlines()[0] == headline(AUDITS[name])


@pytest.mark.parametrize(
    "audit",
    [
        an_audit(subject=LONG, advice=(LONG,) * 9, caveats=(LONG,) * 9),
        an_audit(bound=a_bound(method=LONG, caveats=(LONG,) * 9)),
        several_views(*[a_view(subject=LONG)] * 99),
        a_release(rules=(a_rule(rule=LONG, finding=LONG),) * 99),
        a_release(rules=(a_rule(rule=LONG, finding=LONG),) * 99, findings=(a_view(),) * 99),
        a_posterior(forms=tuple(a_form(f"{LONG}{i}") for i in range(40))),
    ],
    ids=lambda audit: audit.verdict,
)
def test_print_is_short_whatever_it_holds(audit: Audit) -> None:
    check_print(audit)
    check_notebook(audit)


@law
@given(audits)
def test_print_is_short_for_any_content(audit: Audit) -> None:
    check_print(audit)
    check_notebook(audit)


def test_print_says_what_was_found() -> None:
    text = str(an_audit(advice=("Add noise.",), caveats=("Mind the gap.",)))
    for part in (
        "subject: scores.csv",
        "claim: ε = 1 at δ = 1e-05",
        "bound: ε ≥ 2 at δ = 1e-05 (0.95 confidence, clopper_pearson)",
        "advice: Add noise.",
        "caveat: Mind the gap.",
        "save('report.html')",
    ):
        assert part in text
    assert "FAIL: PDTP at most 1" in str(a_release())
    assert "ε ≥ 1.00: training, each canary once, 9 rounds: all rounds" in str(a_series())
    many = several_views(*[a_view()] * 30)
    assert "… and 20 more" in str(many)
    invalid = several_views(*[a_view(bound=a_bound(valid=False))] * 2)
    assert str(invalid).count("NOT A VALID BOUND") == 2


def check_notebook(audit: Audit) -> str:
    shown = audit._repr_html_()
    assert set(re.findall(r"</?(\w+)", shown)) == {"table", "caption", "tr", "td"}
    assert len(shown) < 20_000
    return html.unescape(shown)


HOSTILE = "<script>alert('ε & \"δ\"')</script>"


@pytest.mark.parametrize("name", AUDITS)
def test_a_notebook_shows_a_small_table_in_which_text_stays_text(name: str) -> None:
    audit = replace(AUDITS[name], subject=HOSTILE)
    shown = check_notebook(audit)
    assert HOSTILE in shown
    assert f"<caption>{headline(audit)[:40]}" in shown
    assert len(shown) < 5_000


def test_a_notebook_shows_what_was_claimed_and_what_was_proved() -> None:
    shown = check_notebook(an_audit())
    assert "<td>claim</td><td>ε = 1 at δ = 1e-05</td>" in shown
    assert f"<td>bound</td><td>{a_bound()}</td>" in shown
    assert "<td>claim</td>" not in check_notebook(an_audit(claim=None))


def test_an_audit_without_findings_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one finding"):
        several_views()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"units": 10, "used": 8, "failed": 3}, "Expected at most 10 units"),
        ({"confidence": 1.0}, "confidence"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_provenance_that_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        a_provenance(**changed)


def test_cites_that_nobody_wrote_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="nobody1900"):
        an_audit(cites=("nobody1900",))


def test_what_must_be_supplied_is_known() -> None:
    assert AUDITS["supplied"].provenance.supplied == ("inside",)
    assert a_provenance().supplied == ()


def test_findings_are_found_by_their_type() -> None:
    audit = a_release()
    assert [rule.outcome for rule in audit.find(RuleFinding)] == ["fail", "unclear"]
    assert len(audit.find(MembershipFinding)) == 2
    assert audit.one(LeaveOneOut) in audit.findings
    assert audit.one(FormPlan) is None
    assert audit.views == ()
    assert (audit.epsilon, audit.upper, audit.reach, audit.power) == (0.0, INF, None, None)


def test_views_are_found_by_the_end_of_their_subject_or_by_what_is_in_it() -> None:
    views = [a_view(subject=name) for name in ("the model", "the model, early", "all updates")]
    audit = several_views(*views)
    assert audit.view("the model").subject == "the model"
    assert audit.view("early").subject == "the model, early"
    assert audit.view("updates").subject == "all updates"
    for wrong in ("nothing", "the"):
        with pytest.raises(InvalidArgument, match=f"Expected one view named '{wrong}', got: "):
            audit.view(wrong)


def test_numbers_are_those_of_the_views() -> None:
    audit = a_shuffling()
    assert audit.epsilon == 4.0625
    assert audit.upper == 6.5
    assert audit.reach == INF
    assert audit.bounds == (a_bound(),)
    assert len(audit.estimates) == 3
    assert audit.evidence == (audit.views[0].evidence,)
    assert audit.confidence == 0.95
    assert an_audit(bound=a_bound(valid=False)).epsilon == 0.0


def test_power_is_that_of_the_audited_claim_alone() -> None:
    audit = an_audit(claim=a_claim(3.0), power=4.0)
    assert audit.power == 4.0
    assert audit.with_claim(a_claim(3.5)).power is None
    assert audit.with_claim(None).power is None
    posterior = a_posterior()
    assert posterior.power == 2.5
    assert posterior.with_claim(a_claim(0.5)).power is None


@pytest.mark.parametrize("name", AUDITS)
@pytest.mark.parametrize("suffix", [".json", ".html", ".md"])
def test_save_writes_by_the_suffix(name: str, suffix: str, tmp_path: Path) -> None:
    audit = AUDITS[name]
    path = audit.save(tmp_path / f"audit{suffix}")
    text = path.read_text("utf-8")
    assert text.endswith("\n")
    starts = {".json": "{", ".html": "<!doctype html>", ".md": "### "}
    assert text.startswith(starts[suffix])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix == ".json":
        assert text == audit.to_json() + "\n"
        assert load(path) == audit


@pytest.mark.parametrize("name", ["audit", "audit.pdf", "audit.JSON"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"ending in \.html, \.json, \.md"):
        an_audit().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="Could not write"):
        an_audit().save(tmp_path / "nowhere" / "audit.json")


def test_names_that_are_no_utf8_are_written(tmp_path: Path) -> None:
    audit = an_audit(subject="scores\udcff.csv")
    for suffix in (".json", ".html", ".md"):
        assert audit.save(tmp_path / f"a{suffix}").stat().st_size
    assert load(tmp_path / "a.json").subject == "scores?.csv"
