"""Numbers and verdicts are worded once, and say no more than is true."""

import math
import textwrap
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.core.words import claimed as write_claimed
from epsilometer.core.words import headline, number, number_up, word_finding, word_reach
from tests.examples import (
    AUDITS,
    a_bound,
    a_check,
    a_claim,
    a_conformance,
    a_provenance,
    a_release,
    a_rule,
    a_view,
    an_audit,
    computed,
    several_views,
)

FAILED = a_provenance(units=10, used=7, failed=3)


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (2.0, 2, "2.00"),
        (2.0, 4, "2.0000"),
        (math.inf, 2, "∞"),
        (-math.inf, 2, "−∞"),
        (1e300, 2, "1e+300"),
        (123_999.0, 2, "1.23e+05"),
    ],
)
def test_numbers_for_people(value: float, decimals: int, text: str) -> None:
    assert number(value, decimals) == text


@given(st.floats(-1e12, 1e12), st.integers(0, 4))
def test_no_bound_is_shown_beyond_itself(value: float, decimals: int) -> None:
    low, high = float(number(value, decimals)), float(number_up(value, decimals))
    assert low <= value <= high
    assert high - low <= max(0.01 * abs(value), 1.001 * 10.0**-decimals)


def test_failed_units_leave_no_judgement_unless_the_claim_falls_anyway() -> None:
    standing = an_audit(claim=a_claim(3.0), provenance=FAILED)
    assert headline(standing) == (
        "CANNOT JUDGE: ε = 3 was claimed. 3 units failed; their results might have refuted the "
        "claim."
    )
    falling = an_audit(provenance=FAILED)
    assert headline(falling).startswith("REFUTED: ε = 1 was claimed")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("refuted", "REFUTED: ε = 1 was claimed, but the attack proves ε ≥ 2.00 at δ = 1e-05."),
        (
            "not refuted",
            "NOT REFUTED: ε = 3 was claimed; ε ≥ 2.00 at δ = 1e-05 is proved. This audit could "
            "refute claims up to ε = 5.00; this one 4 times in 5 at a true ε of 4.00.",
        ),
        (
            "beyond reach",
            "CANNOT JUDGE: ε = 9 was claimed. ε = 9 is beyond reach: even a perfect attack would "
            "prove only ε ≥ 5 from so few observations.",
        ),
        (
            "not valid",
            "CANNOT JUDGE: ε = 1 was claimed. ε ≥ 2 (clopper_pearson) is not a valid bound.",
        ),
        ("no claim", "NO CLAIM: ε ≥ 2.00 at δ = 1e-05 is proved."),
        ("computed", "REFUTED: ε = 3 was claimed, but by computation, ε is between 4.06 and 6.50."),
        ("proved", "PROVED: ε = 8 was claimed; by computation, ε is at most 6.50."),
        ("release", "RELEASE: The one rule passes."),
        (
            "do not release",
            "DO NOT RELEASE: 3 of 40 measured records are above 1; the largest has ∞.",
        ),
        ("cannot tell", "CANNOT TELL: 3 of 40 measured records are above 1; the largest has ∞."),
    ],
)
def test_verdicts_in_words(name: str, said: str) -> None:
    assert headline(AUDITS[name]) == said


def test_where_nothing_is_proved_from_above_one_end_is_said() -> None:
    below = an_audit(claim=a_claim(3.0), estimates=(computed(17.7537),))
    said = "REFUTED: ε = 3 was claimed, but by computation, ε is at least 17.75."
    assert headline(below) == said


@pytest.mark.parametrize("name", AUDITS)
def test_a_headline_is_one_line_with_the_verdict(name: str) -> None:
    assert headline(AUDITS[name]).startswith(f"{AUDITS[name].verdict.upper()}: ")
    assert len(headline(AUDITS[name]).splitlines()) == 1


LONG = "base_model.model.layers.11.attention.self.query.lora_A.default.weight"
TITLES = (
    "model",
    f"training of {LONG}, each canary (of 4,000) 16 times, 100 rounds: the final model",
)
FINDINGS = (
    f"For 12,345 of 1,234,567 people, the file contains their whole row. {LONG} contains it.",
    f"TPR − FPR of {LONG} is 0.123 (0.012 to 0.234): it may be on either side of 0.1. More records "
    "would narrow the interval; so may more models (precision).",
    f"A hidden {LONG} is guessed correctly for 75 of 100 people in the data; for others, for 60.",
)
BROKEN = tuple(
    a_check(name, outcome="violated", seen=f"least in {LONG}, 0 of the accounted scale; in row 3 0")
    for name in ("noise in every part", "noise scale")
)
LONG_AUDITS = [
    *AUDITS.values(),
    *(
        an_audit(
            claim=a_claim(claim, delta=delta),
            bound=a_bound(epsilon=claim * share, delta=delta),
            reach=reach,
            power=power,
            provenance=a_provenance(settings={"design": "coins"}),
        )
        for claim in (3.0, 0.125, 9.9972561464343, 12345.0, 123456.0)
        for share in (0.0, 0.5, 1 - 1e-9, 1.5)
        for delta in (0.0, 1e-5, 1.25e-6)
        for reach in (2.0 * claim, 1.01 * claim, math.inf)
        for power in (1.5 * claim, math.inf, None)
    ),
    *(several_views(a_view(subject=t), a_view(subject=f"{t} 2"), subject=t) for t in TITLES),
    *(
        a_release(rules=(a_rule(finding=f, outcome=o),))
        for f in FINDINGS
        for o in ("fail", "unclear")
    ),
    an_audit(claim=a_claim(3.0), more=(a_conformance(*BROKEN),)),
]


@pytest.mark.parametrize("columns", [60, 80])
def test_a_headline_takes_at_most_three_lines(columns: int) -> None:
    """Whole clauses are left out, never a part of one; reach and power never."""
    for audit in LONG_AUDITS:
        said = headline(audit)
        assert len(textwrap.wrap(said, columns)) <= 3, said
        assert said.endswith((".", "?"))
        assert "…" not in said
        if audit.verdict == "not refuted":
            assert word_reach(audit) in said
    assert "Noise in every part: least in base_model" in headline(LONG_AUDITS[-1])


def test_what_a_user_wrote_does_not_break_the_headline() -> None:
    rule = a_rule(finding="a\n\nb\x1b[31m")
    assert headline(a_release(rules=(rule,))) == "DO NOT RELEASE: a b\ufffd[31m"


def test_an_invalid_bound_without_a_claim_is_called_so() -> None:
    said = headline(an_audit(claim=None, bound=a_bound(valid=False)))
    assert said == "NO CLAIM: ε ≥ 2.00 is not a valid bound."


def test_all_rules_are_counted_where_all_pass() -> None:
    rules = (a_rule(outcome="pass"),) * 3
    assert word_finding(a_release(rules=rules)) == "All 3 rules pass."


def test_of_several_views_the_one_that_refutes_is_named() -> None:
    views = (
        a_view(subject="another δ", bound=a_bound(epsilon=9.0, delta=1e-6)),
        a_view(subject="updates"),
        a_view(subject="model", bound=a_bound(epsilon=0.5)),
    )
    assert word_finding(several_views(*views)) == (
        "ε = 1 was claimed, but the attack proves ε ≥ 2.00 at δ = 1e-05 (updates)."
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"power": math.inf}, "; this one less than 4 times in 5 at any true ε."),
        ({"power": None}, "; its power on this one was not computed."),
        ({"estimates": (computed(2.5),)}, "ε was computed: every smaller claim would have been"),
    ],
)
def test_reach_and_power_are_said(changed: dict, said: str) -> None:
    audit = an_audit(claim=a_claim(3.0), **changed)
    assert said in word_reach(audit)
    assert word_reach(audit) in headline(audit)


@pytest.mark.parametrize(
    ("claimed", "found", "shown"),
    [(3.0, 3.004, "3.004"), (3.0, 2.9996, "2.99"), (3.0, 3.0, "3.00")],
)
def test_a_near_miss_is_told_from_a_hit(claimed: float, found: float, shown: str) -> None:
    text = headline(an_audit(claim=a_claim(claimed), bound=a_bound(epsilon=found)))
    assert f"ε ≥ {shown} at" in text


@given(st.floats(0, 1e5, exclude_max=True), st.integers(0, 6))
def test_a_number_is_never_shown_larger_than_it_is(value: float, decimals: int) -> None:
    shown = Fraction(number(value, decimals))
    assert shown <= Fraction(repr(value)) < shown + Fraction(1, 10**decimals)


def test_decimal_numbers_are_shown_as_they_are() -> None:
    assert [number(value) for value in (0.29, 1.1, 2.0, 3.81)] == [
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
        (9.9972561464343, "9.99"),
        (12.3456, "12.34"),
        (0.00123456, "0.00123"),
        (123456.7, "1.23e+05"),
    ],
)
def test_a_claim_is_shown_as_written_or_cut_like_what_is_measured(
    epsilon: float, text: str
) -> None:
    assert write_claimed(epsilon) == text


def test_a_computed_claim_and_a_bound_near_it_are_told_apart() -> None:
    for epsilon, shown in ((9.9951, "; ε ≥ 9.995 "), (9.9985, "proves ε ≥ 9.998 ")):
        audit = an_audit(claim=a_claim(9.9972561464343), bound=a_bound(epsilon=epsilon), reach=20.0)
        said = headline(audit)
        assert "ε = 9.997 was claimed" in said
        assert shown in said
