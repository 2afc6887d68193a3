"""On the scale everything lies where its number says."""

import math

import pytest

from epsilometer.core.audit import Audit
from epsilometer.core.document import Scale
from epsilometer.report.build import build_scale
from tests.examples import (
    a_bound,
    a_claim,
    a_release,
    a_shuffling,
    a_view,
    an_audit,
    an_estimate,
    computed,
    several_views,
)


def audit(claimed: float | None, *found: float) -> Audit:
    claim = None if claimed is None else a_claim(claimed)
    bounds = [a_bound(epsilon=epsilon) for epsilon in found]
    return an_audit(claim=claim, bound=bounds[0], also=tuple(bounds[1:]))


def drawn_scale(audit: Audit) -> Scale:
    drawn = build_scale(audit)
    assert drawn is not None
    return drawn


@pytest.mark.parametrize(("claimed", "found"), [(1.0, 2.0), (3.0, 1.4), (0.0, 1e-3), (1e6, 5.0)])
def test_places_are_proportional_to_numbers(claimed: float, found: float) -> None:
    drawn = drawn_scale(audit(claimed, found))
    (row,) = drawn.rows
    assert drawn.claim is not None
    per_one = max(row.start / found, drawn.claim / (claimed or 1.0))
    assert row.start == pytest.approx(found * per_one, abs=1e-3)
    assert drawn.claim == pytest.approx(claimed * per_one, abs=1e-3)
    for place, text in drawn.ticks:
        assert place == pytest.approx(float(text) * per_one, abs=1e-2)
    assert max(row.start, drawn.claim) < 80  # the interval of the largest is seen to go on


@pytest.mark.parametrize("claimed", [None, 0.0, 1e-300, 1.0, 1e300, 1.7e308])
@pytest.mark.parametrize("found", [0.0, 1e-300, 1.0, 1e300, 1.7e308, math.inf])
def test_everything_stays_within_the_frame(claimed: float | None, found: float) -> None:
    drawn = drawn_scale(audit(claimed, found))
    (row,) = drawn.rows
    assert 0 <= row.start <= 97
    assert drawn.claim is None or 0 <= drawn.claim <= 97
    assert 2 <= len(drawn.ticks) <= 9
    assert all(0 <= place <= 92 for place, _ in drawn.ticks)
    assert (row.start == 97) == math.isinf(found)
    assert row.value == "ε ≥ ∞" or math.isfinite(found)


def test_only_the_first_bound_of_a_view_decides() -> None:
    rows = drawn_scale(audit(1.0, 2.0, 5.0, 7.0)).rows
    assert [row.decides for row in rows] == [True, False, False]


def test_several_views_show_the_strongest_proof_of_each() -> None:
    views = (
        a_view(subject="a", also=(a_bound(epsilon=9.0),)),
        a_view(subject="b", bound=a_bound(epsilon=4.0), estimates=(computed(1.0),)),
        a_view(subject="c", estimates=(computed(3.0, role="upper"), computed(8.0))),
    )
    drawn = drawn_scale(several_views(*views))
    assert [(row.name, row.value) for row in drawn.rows] == [
        ("a", "ε ≥ 2.00"),
        ("b", "ε ≥ 4.00"),
        ("c", "ε ≥ 8.00"),
    ]
    assert drawn.claimed == "claimed ε = 1"
    assert drawn.rows[1].start == pytest.approx(2 * drawn.rows[0].start, abs=1e-2)


def test_an_audit_without_views_has_no_scale() -> None:
    assert build_scale(a_release()) is None


def test_an_invalid_bound_is_marked() -> None:
    drawn = drawn_scale(an_audit(bound=a_bound(valid=False), claim=None))
    (row,) = drawn.rows
    assert (row.decides, row.valid, drawn.claim, drawn.claimed) == (True, False, None, "")


@pytest.mark.parametrize(("confidence", "proves"), [(1.0, True), (0.95, False)])
def test_what_was_sampled_is_not_shown_as_a_bound(confidence: float, proves: bool) -> None:
    estimate = an_estimate(2.0, low=1.5, high=2.5, confidence=confidence)
    row = drawn_scale(an_audit(estimates=(estimate,))).rows[-1]
    assert (row.valid, row.decides) == (proves, proves)


def test_upper_bounds_and_references_are_shown_as_what_they_are() -> None:
    _, lower, upper, reference = drawn_scale(a_shuffling()).rows
    assert [row.role for row in (lower, upper, reference)] == ["lower", "upper", "reference"]
    assert [row.value for row in (lower, upper, reference)] == ["ε ≥ 4.06", "ε ≤ 6.50", "ε = 3.00"]
    assert [row.decides for row in (lower, upper, reference)] == [True, True, False]
    assert lower.start < upper.start
