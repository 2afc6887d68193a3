"""The judge decides alone: every case of its truth table, exit codes and tones."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.findings import EpsilonFinding
from tests.core.strategies import audits, bounds
from tests.examples import (
    AUDITS,
    INF,
    a_bound,
    a_claim,
    a_form,
    a_posterior,
    a_provenance,
    a_record,
    a_release,
    a_rule,
    a_view,
    an_audit,
    an_estimate,
    computed,
    several_views,
)

law = settings(deadline=None)


def verdict_of(claim: Claim | float | None, *views: EpsilonFinding) -> judge.Verdict:
    stated = a_claim(claim) if isinstance(claim, (int, float)) else claim
    return judge.judge(stated, views).verdict


BY_THE_BOUND = [
    # valid, bound, claim, verdict; the reach is 5
    (True, 2.0, 1.0, "refuted"),
    (True, 2.0, 2.0, "not refuted"),  # a bound says ε ≥ 2; a claim of 2 may be true
    (True, 2.0, 3.0, "not refuted"),
    (True, 0.0, 0.0, "not refuted"),
    (True, 1e-300, 0.0, "refuted"),
    (True, INF, 1e300, "refuted"),
    (True, 2.0, None, "no claim"),
    (True, 2.0, 4.999, "not refuted"),
    (True, 2.0, 5.0, "cannot judge"),  # no bound of 5 exceeds 5
    (True, 2.0, 9.0, "cannot judge"),
    (False, 2.0, 1.0, "cannot judge"),
    (False, INF, 0.0, "cannot judge"),
    (False, 0.0, 1.0, "cannot judge"),
    (False, 2.0, None, "no claim"),
]


@pytest.mark.parametrize(("valid", "epsilon", "claim", "verdict"), BY_THE_BOUND)
def test_by_the_bound(valid: bool, epsilon: float, claim: float | None, verdict: str) -> None:
    view = a_view(bound=a_bound(valid=valid, epsilon=epsilon))
    assert verdict_of(claim, view) == verdict
    assert judge.judge_finding(None if claim is None else a_claim(claim), view) == verdict


@pytest.mark.parametrize(
    ("claimed", "bound", "verdict"),
    [
        (1e-5, 1e-5, "refuted"),
        (1e-6, 1e-5, "refuted"),  # the stronger claim falls with the weaker
        (0.0, 1e-5, "refuted"),
        (1e-4, 1e-5, "cannot judge"),  # the bound says nothing of it
        (0.5, 0.0, "cannot judge"),
    ],
)
def test_by_the_delta(claimed: float, bound: float, verdict: str) -> None:
    view = a_view(bound=a_bound(delta=bound))
    assert verdict_of(a_claim(1.0, delta=claimed), view) == verdict


@pytest.mark.parametrize(
    ("estimate", "claim", "verdict"),
    [
        (computed(4.0), 3.0, "refuted"),  # by computation, although the attack proves only 2
        (computed(4.0), 4.0, "not refuted"),
        (computed(4.0), 100.0, "not refuted"),  # reach is infinite where ε was computed
        (computed(4.0, role="reference"), 3.0, "not refuted"),  # the ε of something else
        (computed(4.0, role="reference"), 100.0, "cannot judge"),
        (an_estimate(4.0, low=4.0), 3.0, "not refuted"),  # what was sampled decides nothing
        (an_estimate(4.0, low=4.0), 100.0, "cannot judge"),
        (computed(3.0, 4.0, role="upper"), 4.0, "proved"),
        (computed(3.0, 4.0, role="upper"), 100.0, "proved"),  # a proof needs no reach
        (computed(3.0, 4.0, role="upper"), 3.5, "not refuted"),
        (computed(3.0, 4.0, role="upper"), 2.5, "not refuted"),  # its lower end is no bound
        (an_estimate(3.0, high=4.0, role="upper"), 4.5, "not refuted"),
    ],
)
def test_by_computation(estimate: Any, claim: float, verdict: str) -> None:
    assert verdict_of(claim, a_view(estimates=(estimate,))) == verdict


def test_an_upper_bound_proves_claims_at_its_delta_and_larger_ones() -> None:
    view = a_view(estimates=(computed(1.5, 3.0, role="upper"),))
    assert verdict_of(a_claim(3.0, delta=1e-5), view) == "proved"
    assert verdict_of(a_claim(3.0, delta=1e-4), view) == "proved"
    assert verdict_of(a_claim(3.0, delta=1e-6), view) == "not refuted"


@pytest.mark.parametrize(
    ("claimed", "bound", "verdict"),
    [
        ("add_remove", "add_remove", "refuted"),
        ("unstated", "replace", "refuted"),
        ("replace", "unstated", "refuted"),
        ("add_remove", "zero_out", "refuted"),  # the same sensitivity
        ("add_remove", "replace", "cannot judge"),  # replacing may cost twice as much
        ("replace", "add_remove", "cannot judge"),
    ],
)
def test_an_epsilon_for_one_adjacency_judges_no_claim_for_another(
    claimed: Any, bound: Any, verdict: str
) -> None:
    view = a_view(bound=a_bound(epsilon=2.0, adjacency=bound))
    claim = Claim(1.0, view.bound.delta, adjacency=claimed)
    assert verdict_of(claim, view) == verdict


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"adjacency": "zero_out"}, "proved"),
        ({}, "proved"),
        ({"adjacency": "replace"}, "cannot judge"),
        ({"adjacency": "add_remove"}, "not refuted"),
        ({"adjacency": "zero_out", "unit": "client"}, "not refuted"),
    ],
)
def test_an_upper_bound_proves_only_what_it_is_about(claim: dict[str, Any], verdict: str) -> None:
    upper = computed(3.0, 4.0, role="upper", adjacency="zero_out")
    view = a_view(bound=a_bound(epsilon=1.0, adjacency="zero_out"), estimates=(upper,))
    assert verdict_of(Claim(4.5, view.bound.delta, **claim), view) == verdict


def test_a_refutation_stands_although_an_upper_bound_says_otherwise() -> None:
    view = a_view(bound=a_bound(epsilon=4.0), estimates=(computed(1.0, 3.0, role="upper"),))
    assert verdict_of(3.5, view) == "refuted"


@pytest.mark.parametrize(
    ("epsilon", "estimates", "verdict"),
    [
        (2.0, (), "refuted"),  # failed units count against a refutation, so it stands
        (0.5, (), "cannot judge"),
        (0.5, (computed(0.75),), "not refuted"),  # computed: no unit was needed
        (0.5, (computed(0.75, 0.9, role="upper"),), "proved"),
    ],
)
def test_failed_units_may_hide_a_refutation_but_not_make_one(
    epsilon: float, estimates: tuple, verdict: str
) -> None:
    bound = a_bound(epsilon=epsilon)
    view = a_view(bound=bound, units=10, used=9, failed=1, estimates=estimates)
    assert verdict_of(1.0, view) == verdict


def test_an_invalid_bound_does_not_matter_where_epsilon_was_computed() -> None:
    view = a_view(bound=a_bound(valid=False), estimates=(computed(2.5),))
    assert verdict_of(2.0, view) == "refuted"
    assert verdict_of(3.0, view) == "not refuted"


def test_an_unknown_reach_is_none() -> None:
    assert verdict_of(3.0, a_view(reach=None)) == "cannot judge"
    assert verdict_of(1.0, a_view(reach=None)) == "refuted"


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ((a_view(),), "refuted"),
        ((a_view(bound=a_bound(epsilon=0.5)),), "not refuted"),
        ((a_view(bound=a_bound(epsilon=0.5, valid=False)),), "cannot judge"),
        ((a_view(bound=a_bound(epsilon=0.5), failed=1, units=2),), "cannot judge"),
        ((a_view(bound=a_bound(epsilon=0.5), reach=0.75),), "not refuted"),  # another could
    ],
)
def test_one_view_suffices_to_refute_and_none_may_hide_one(
    others: tuple[EpsilonFinding, ...], verdict: str
) -> None:
    spared = a_view(bound=a_bound(epsilon=0.5))
    assert verdict_of(1.0, spared, *others) == verdict
    assert verdict_of(1.0, *others, spared) == verdict


def test_views_of_forms_count_as_views() -> None:
    assert judge.judge(a_claim(), (a_form(),)).verdict == "refuted"
    assert a_posterior(claim=a_claim(3.0)).verdict == "not refuted"
    assert a_posterior(claim=None).verdict == "no claim"


@pytest.mark.parametrize(
    ("epsilons", "verdict"), [((0.5, 2.0), "refuted"), ((0.5, 0.9), "not refuted")]
)
def test_the_worst_form_decides(epsilons: tuple[float, ...], verdict: str) -> None:
    views = [a_view(bound=a_bound(epsilon=epsilon)) for epsilon in epsilons]
    forms = tuple(a_form(n, view=v) for n, v in zip(("samples", "label"), views, strict=True))
    audit = a_posterior(forms=forms)
    assert audit.verdict == verdict
    assert set(audit.bounds) == {view.bound for view in views}


def test_failed_work_of_forms_is_no_acquittal() -> None:
    failed = a_view(bound=a_bound(epsilon=0.5), units=3, used=2, failed=1)
    assert a_posterior(forms=(a_form("label", view=failed),)).verdict == "cannot judge"


def test_a_claim_without_a_view_cannot_be_judged() -> None:
    said = judge.judge(a_claim(), (a_record(),))
    assert said == ("cannot judge", "No bound on ε was measured.")
    assert judge.judge(None, (a_record(),)).verdict == "no claim"


@law
@given(st.lists(bounds(), max_size=4).map(tuple))
def test_what_else_was_computed_never_decides(also: tuple[EpsilonLowerBound, ...]) -> None:
    assert verdict_of(1.0, a_view(also=also)) == "refuted"
    assert verdict_of(1.0, a_view(also=also, bound=a_bound(epsilon=0.5))) == "not refuted"
    assert verdict_of(1.0, a_view(also=also, bound=a_bound(valid=False))) == "cannot judge"


GRAVITY = {"fail": "do not release", "unclear": "cannot tell", "pass": "release"}


@pytest.mark.parametrize("outcomes", list(product(GRAVITY, repeat=3)))
def test_the_gravest_rule_decides(outcomes: tuple[str, ...]) -> None:
    audit = a_release(rules=tuple(a_rule(outcome=outcome) for outcome in outcomes))
    gravest = min(outcomes, key=list(GRAVITY).index)
    assert audit.verdict == GRAVITY[gravest]
    assert audit.find(type(a_rule()))[0].outcome == gravest  # and comes first


def test_rules_decide_where_there_are_any() -> None:
    passed = a_rule(outcome="pass")
    assert judge.judge(a_claim(), (a_view(), passed)).verdict == "release"


def test_failed_work_never_releases() -> None:
    kept = a_release(rules=(a_rule(outcome="pass"),))
    assert kept.verdict == "release"
    failed = replace(kept, provenance=a_provenance(units=3, used=2, failed=1))
    assert failed.judgement == ("cannot tell", "1 unit failed.")
    convicted = a_release(provenance=failed.provenance)
    assert convicted.verdict == "do not release"


@pytest.mark.parametrize(
    ("view", "claim", "reason"),
    [
        (a_view(), a_claim(9.0), "ε = 9 is beyond reach: even a perfect attack would prove only"),
        (a_view(bound=a_bound(valid=False)), a_claim(), "is not a valid bound"),
        (a_view(), a_claim(delta=1e-3), "says nothing at the larger 0.001"),
        (a_view(bound=a_bound(epsilon=0.5), units=9, failed=2), a_claim(), "2 units failed"),
    ],
)
def test_why_a_claim_cannot_be_judged_is_said(
    view: EpsilonFinding, claim: Claim, reason: str
) -> None:
    said = judge.judge(claim, (view,))
    assert said.verdict == "cannot judge"
    assert reason in said.reason


EXIT_CODES = {
    "violated": 1,
    "refuted": 1,
    "do not release": 1,
    "cannot judge": 4,
    "cannot tell": 4,
    "not refuted": 0,
    "no claim": 0,
    "proved": 0,
    "release": 0,
}
TONES = {
    "violated": "bad",
    "refuted": "bad",
    "do not release": "bad",
    "cannot judge": "unclear",
    "cannot tell": "unclear",
    "not refuted": "neutral",
    "no claim": "neutral",
    "proved": "good",
    "release": "good",
}


def test_every_verdict_has_an_exit_code_and_a_tone() -> None:
    assert {word: judge.exit_code(word) for word in judge.GRAVEST_FIRST} == EXIT_CODES
    assert {word: judge.tone(word) for word in judge.GRAVEST_FIRST} == TONES
    assert list(EXIT_CODES) == list(judge.GRAVEST_FIRST)


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_exits_as_the_judge_says(name: str) -> None:
    audit = AUDITS[name]
    assert audit.exit_code == judge.exit_code(audit.verdict) == EXIT_CODES[audit.verdict]


def test_findings_are_sorted_gravest_first_and_otherwise_kept() -> None:
    spared = [a_view(subject=name, bound=a_bound(epsilon=0.5)) for name in "ab"]
    refuting = a_view(subject="c")
    invalid = a_view(subject="d", bound=a_bound(valid=False))
    record = a_record()
    audit = several_views(record, *spared, invalid, refuting)
    assert audit.findings == (refuting, invalid, *spared, record)
    assert audit.with_claim(None).findings == tuple(
        replace(each, power=None) if isinstance(each, EpsilonFinding) else each
        for each in audit.findings
    )


def test_with_another_claim_the_audit_is_judged_anew_and_sorted_anew() -> None:
    small, large = (a_view(subject=str(e), bound=a_bound(epsilon=e)) for e in (1.5, 3.0))
    audit = several_views(small, large)
    assert [view.subject for view in audit.views] == ["1.5", "3.0"]  # both refute a claim of 1
    other = audit.with_claim(a_claim(2.0))
    assert other.verdict == "refuted"
    assert [view.subject for view in other.views] == ["3.0", "1.5"]
    assert audit.with_claim(a_claim(4.0)).verdict == "not refuted"
    assert audit.with_claim(audit.claim) is audit


@law
@given(audits)
def test_every_audit_has_a_verdict_with_its_exit_code(audit: Audit) -> None:
    assert audit.verdict in judge.GRAVEST_FIRST
    assert audit.exit_code == EXIT_CODES[audit.verdict]
    if audit.verdict == judge.NOT_REFUTED:
        assert audit.claim is not None
        assert audit.reach is not None
        assert audit.claim.epsilon < audit.reach
    if audit.verdict == judge.REFUTED:
        assert audit.claim is not None
        assert audit.epsilon > audit.claim.epsilon


def test_reach_and_power_are_those_of_the_strongest_view() -> None:
    weak = a_view(bound=a_bound(epsilon=0.5), reach=1.5, power=3.0)
    strong = a_view(bound=a_bound(epsilon=0.5), reach=6.0, power=2.0)
    audit = several_views(weak, strong)
    assert (audit.reach, audit.power) == (6.0, 2.0)
    assert an_audit(claim=None).reach is None
    assert an_audit(estimates=(computed(2.5),)).reach == INF
