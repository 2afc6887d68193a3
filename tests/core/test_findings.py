"""Findings cannot be built wrongly."""

from typing import Any

import pytest
from msgspec.structs import replace

from epsilometer.core.findings import EpsilonFinding, FormPlan, RemovalPlan, Variation
from epsilometer.errors import InvalidArgument
from tests.examples import (
    INF,
    LEFT_OUT,
    a_bound,
    a_form,
    a_plan,
    a_record,
    a_rule,
    a_view,
    an_attack,
    an_estimate,
    computed,
    posterior_runs,
    some_evidence,
)


@pytest.mark.parametrize("part", ["fnr", "fpr_low", "inside_bins", "edges"])
def test_evidence_of_unequal_lengths_is_refused(part: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        some_evidence(**{part: (0.0,)})


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: a_view(units=10, used=8, failed=3), "Expected at most 10 units"),
        (lambda: a_view(reach=-1.0), "reach ≥ 0"),
        (lambda: a_view(estimates=(an_estimate(1.0, delta=1e-3),)), "Expected estimates at δ"),
        (lambda: a_rule(value=float("nan")), "Expected a number"),
        (lambda: a_rule(confidence=1.5), "confidence"),
        (lambda: a_record(risk=float("nan")), "Expected a number"),
        (lambda: an_attack(auc=1.5), "auc"),
        (lambda: an_attack(roc_tpr=(0.0,)), "one length"),
        (lambda: a_form(samples=0), "samples ≥ 1"),
        (lambda: a_form(advantage=-2.0), "advantage ≥ -1"),
        (lambda: a_plan(chosen="nothing of these"), "Expected a form that was audited"),
        (lambda: posterior_runs(runs=0), "runs ≥ 1"),
        (lambda: replace(LEFT_OUT, exposed=41), "at most 50 records"),
        (lambda: replace(LEFT_OUT, bins=(1,)), "one more edge"),
        (lambda: Variation(cause="seed", models=2, deciles=(0.0,)), "11 deciles"),
        (
            lambda: RemovalPlan(
                removed=(0, 1),
                largest=(1.0, 1.0),
                exposed=(1, 1),
                accuracy=(1.0, 1.0),
                ranks=(1, 2),
                best=0,
                ended="",
            ),
            "as many ranks of records",
        ),
    ],
)
def test_what_cannot_be_is_refused(build: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        build()


@pytest.mark.parametrize(
    ("view", "epsilon"),
    [
        (a_view(), 2.0),
        (a_view(bound=a_bound(valid=False)), 0.0),
        (a_view(bound=a_bound(valid=False), estimates=(computed(1.0),)), 1.0),
        (a_view(estimates=(computed(3.0), computed(2.5))), 3.0),
        (a_view(estimates=(computed(3.0, role="reference"), an_estimate(9.0))), 2.0),
        (a_view(estimates=(computed(3.0, role="upper"),)), 2.0),
        (a_view(bound=a_bound(epsilon=INF)), INF),
        (a_view(also=(a_bound(epsilon=9.0),)), 2.0),  # choosing the largest was not paid for
    ],
)
def test_what_a_view_proves(view: EpsilonFinding, epsilon: float) -> None:
    assert view.epsilon == epsilon


def test_what_was_computed_is_the_largest_lower_end() -> None:
    view = a_view(estimates=(computed(1.0, 9.0), computed(2.0), computed(8.0, role="upper")))
    assert view.computed == computed(2.0)
    assert a_view(estimates=(an_estimate(5.0),)).computed is None


def test_a_form_proves_what_its_view_proves() -> None:
    assert a_form().epsilon == a_form().view.bound.epsilon
    assert isinstance(a_plan(), FormPlan)
