"""Conformance is judged in one place, and is the gravest finding where it is violated."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epsilometer as em
from epsilometer.core import judge, words
from epsilometer.core.audit import Audit
from epsilometer.core.findings import Check, ConformanceFinding, Finding
from epsilometer.core.serialisation import from_json, to_json
from epsilometer.errors import InvalidArgument
from tests.examples import (
    AUDITS,
    INF,
    a_check,
    a_claim,
    a_conformance,
    a_provenance,
    a_rule,
    a_view,
    a_violation,
    an_audit,
    computed,
)


def an_audit_of(*findings: Finding, claim: float | None = None) -> Audit:
    stated = None if claim is None else a_claim(claim)
    return Audit(subject="a step", claim=stated, findings=findings, provenance=a_provenance())


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["conforms"], "conforms"),
        (["conforms", "not tested"], "conforms"),
        (["remark"], "conforms"),
        (["not tested"], "not tested"),
        (["not tested", "remark", "conforms", "violated"], "violated"),
        (["violated"], "violated"),
    ],
)
def test_a_violated_check_decides_and_nothing_tested_does_not_conform(
    outcomes: list[Any], verdict: str
) -> None:
    checks = [a_check(str(place), outcome=outcome) for place, outcome in enumerate(outcomes)]
    assert a_conformance(*checks).verdict == verdict
    assert judge.judge_conformance(checks) == verdict


@pytest.mark.parametrize(
    ("log_e", "outcome"),
    [
        (None, "not tested"),
        (-INF, "conforms"),
        (math.log(9000) - 1e-9, "conforms"),
        (math.log(9000), "violated"),
        (INF, "violated"),
    ],
)
def test_evidence_decides_at_the_shared_level(log_e: float | None, outcome: str) -> None:
    assert judge.judge_evidence(log_e, shares=9, level=1e-3) == outcome


@pytest.mark.parametrize(
    ("value", "outcome"),
    [(None, "not tested"), (2.0, "conforms"), (2.0001, "violated"), (float("nan"), "violated")],
)
def test_a_limit_decides(value: float | None, outcome: str) -> None:
    assert judge.judge_limit(value, limit=2.0) == outcome


@pytest.mark.parametrize(
    "others",
    [
        (),
        (a_view(),),
        (a_view(estimates=(computed(0.1, 0.2, role="upper"),)),),
        (a_rule(outcome="pass"),),
        (a_rule(outcome="fail"),),
    ],
)
@pytest.mark.parametrize("claim", [None, 0.5, 3.0, 100.0])
def test_a_violation_is_the_gravest(others: tuple[Finding, ...], claim: float | None) -> None:
    audit = an_audit_of(*others, a_violation(), claim=claim)
    assert audit.verdict == "violated"
    assert audit.exit_code == 1
    assert audit.findings[0] == audit.conformance  # sorted by gravity
    assert words.headline(audit).startswith("VIOLATED: The program did not do what was accounted")
    assert "noise of 0.5 of it" in str(audit)


def test_without_a_claim_what_conforms_is_no_claim() -> None:
    audit = an_audit_of(a_conformance(a_check(), a_check("b", outcome="not tested")))
    assert audit.verdict == "no claim"
    assert audit.exit_code == 0
    assert "1 could not be tested" in words.headline(audit)


def test_conformance_alone_bounds_no_epsilon() -> None:
    audit = an_audit_of(a_conformance(), claim=1.0)
    assert audit.verdict == "cannot judge"  # the noise is right, but nobody asked what ε it gives
    assert audit.reach == 0


def test_conformance_does_not_extend_the_reach_of_a_bound() -> None:
    """That the noise is as accounted for does not say that the claim follows from it."""
    alone = an_audit(claim=a_claim(9.0))
    beside = an_audit(claim=a_claim(9.0), more=(a_conformance(),))
    assert alone.verdict == beside.verdict == "cannot judge"
    assert alone.reach == beside.reach == 5.0


def test_json_has_the_verdict_and_the_checks_by_outcome() -> None:
    plain = json.loads(to_json(AUDITS["violated"]))
    assert plain["conformance"] == {
        "verdict": "violated",
        "steps": 64,
        "violated": ["noise scale"],
        "conforms": [],
        "not_tested": ["clipping"],
        "remark": [],
    }
    assert from_json(to_json(AUDITS["violated"])) == AUDITS["violated"]
    assert json.loads(to_json(AUDITS["refuted"]))["conformance"] is None


@pytest.mark.parametrize(
    "build",
    [
        lambda: a_check(outcome="fine"),
        lambda: a_check(steps=-1),
        lambda: a_check(log_e=float("nan")),
        lambda: a_conformance(a_check(), a_check()),
        lambda: a_conformance(level=0.0),
        lambda: ConformanceFinding(checks=(), steps=1, level=0.5),
        lambda: a_conformance().check("no such"),
    ],
)
def test_findings_cannot_be_built_wrongly(build: Any) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        build()


def test_checks_come_gravest_first_and_are_found_by_name() -> None:
    finding = a_violation()
    assert [check.outcome for check in finding.checks] == ["violated", "not tested"]
    assert finding.check("clipping").seen == "no canary"
    assert AUDITS["violated"].one(em.findings.ConformanceFinding) == finding


checks = st.builds(
    Check,
    name=st.text(max_size=8),
    outcome=st.sampled_from(["violated", "conforms", "not tested", "remark"]),
    expected=st.text(max_size=8),
    seen=st.text(max_size=8),
    value=st.none() | st.floats(allow_nan=False),
    log_e=st.none() | st.floats(allow_nan=False),
    steps=st.integers(0, 10**9),
)


@given(st.lists(checks, min_size=1, max_size=4, unique_by=lambda check: check.name))
def test_any_conformance_survives_json(found: list[Check]) -> None:
    audit = an_audit_of(ConformanceFinding(checks=tuple(found), steps=3, level=1e-3))
    assert from_json(to_json(audit)) == audit
