"""Sentences say what happened, and no more."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer import AuditGroup, PrivacyClaim
from epsilometer.report import words
from tests.examples import a_bound, a_provenance, an_audit

FAILED = a_provenance(units=10, used=7, failed=3)


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (2.0, 2, "2.00"),
        (2.0, 4, "2.0000"),
        (math.inf, 2, "∞"),
        (-math.inf, 2, "−∞"),
        (1e300, 2, "1e+300"),
    ],
)
def test_numbers_for_people(value: float, decimals: int, text: str) -> None:
    assert words.number(value, decimals) == text


def test_failed_units_leave_no_verdict_unless_the_claim_falls_anyway() -> None:
    standing = an_audit(claim=PrivacyClaim(epsilon=3.0, delta=1e-5), provenance=FAILED)
    assert words.verdict(standing).startswith(
        "NO VERDICT: 3 of 10 units failed, and what they would have shown may refute the claim."
    )
    falling = an_audit(provenance=FAILED)
    assert words.verdict(falling).startswith("REFUTED: ε = 1 was promised")


def test_what_the_run_left_out_is_told() -> None:
    assert words.run_notes(a_provenance()) == []
    assert words.run_notes(a_provenance(units=8, used=3)) == [
        "The run stopped early: 3 of 8 units were used."
    ]
    (failed,) = words.run_notes(FAILED)
    assert failed.startswith("3 of 10 units failed")


@pytest.mark.parametrize(
    ("claimed", "found", "shown"),
    [(3.0, 3.004, "3.004"), (3.0, 2.9996, "2.99"), (3.0, 3.0, "3.00"), (math.inf, 1.0, "1.00")],
)
def test_a_near_miss_is_told_from_a_hit(claimed: float, found: float, shown: str) -> None:
    claim = PrivacyClaim(epsilon=claimed, delta=1e-5)
    text = words.verdict(an_audit(claim=claim, bound=a_bound(epsilon=found)))
    assert f"ε ≥ {shown} at" in text


def test_the_threat_model_is_told() -> None:
    claim = PrivacyClaim(epsilon=1.0, delta=1e-5, adjacency="replace", accountant="PLD")
    bound = a_bound(adversary="sees the model", adjacency="replace")
    told = dict(words.threat_model(bound, claim))
    assert told["What the adversary sees"] == "sees the model"
    assert "another record stands in its place" in told["The two worlds it tells apart"]
    assert told["How often it tried"] == "1,234 observations with the record, 567 without it."
    assert told["What was promised"] == (
        "ε = 1 at δ = 1e-05, for one record replaced, computed by PLD."
    )
    assert "Beware" not in told


def test_what_is_not_stated_is_said_to_be() -> None:
    told = dict(words.threat_model(a_bound(n_out=0), None))
    assert told["What the adversary sees"].startswith("Not stated.")
    assert "was not stated" in told["The two worlds it tells apart"]
    assert "the law without it is known" in told["How often it tried"]
    assert "What was promised" not in told


def test_a_bound_for_other_neighbours_is_pointed_out() -> None:
    claim = PrivacyClaim(epsilon=1.0, delta=1e-5, adjacency="add_remove")
    told = dict(words.threat_model(a_bound(adjacency="replace"), claim))
    assert "one record added or removed" in told["Beware"]
    assert "one record replaced" in told["Beware"]


def test_a_group_counts_its_verdicts() -> None:
    audits = (an_audit(), an_audit(claim=None), an_audit())
    text = words.group_finding(AuditGroup(subject="s", results=audits))
    assert text == "3 audits: 2 refuted, 1 no claim."
    assert words.group_finding(AuditGroup(subject="s", results=audits[:1])).startswith("1 audit: ")


@given(st.floats(0, 1e5, exclude_max=True), st.integers(0, 6))
def test_a_number_is_never_shown_larger_than_it_is(value: float, decimals: int) -> None:
    shown = Fraction(words.number(value, decimals))
    assert shown <= Fraction(repr(value)) < shown + Fraction(1, 10**decimals)


def test_decimal_numbers_are_shown_as_they_are() -> None:
    assert [words.number(value) for value in (0.29, 1.1, 2.0, 3.81)] == [
        "0.29",
        "1.10",
        "2.00",
        "3.81",
    ]


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (8.0, "8"),
        (0.5, "0.5"),
        (0.125, "0.125"),
        (0.001, "0.001"),
        (0.0, "0"),
        (math.inf, "∞"),
        (9.9972561464343, "9.99"),
        (12.3456, "12.34"),
        (0.00123456, "0.00123"),
        (123456.7, "1.23e+05"),
    ],
)
def test_a_promise_is_shown_as_written_or_cut_like_what_is_measured(
    epsilon: float, text: str
) -> None:
    assert words.promised(epsilon) == text


def test_a_computed_promise_and_a_bound_near_it_are_told_apart() -> None:
    for epsilon, shown in ((9.9951, "only ε ≥ 9.995 "), (9.9985, "proves ε ≥ 9.998 ")):
        claim = PrivacyClaim(epsilon=9.9972561464343, delta=1e-5)
        said = words.verdict(an_audit(claim=claim, bound=a_bound(epsilon=epsilon)))
        assert "ε = 9.997 was promised" in said
        assert shown in said
