"""On the scale everything lies where its number says."""

import math

import pytest

from epsilometer import AuditGroup, EpsilonEstimate, PrivacyClaim
from epsilometer.report.scale import scale
from tests.examples import a_bound, an_audit


def audit(claimed: float | None, *found: float):
    claim = None if claimed is None else PrivacyClaim(epsilon=claimed, delta=1e-5)
    bounds = [a_bound(epsilon=epsilon) for epsilon in found]
    return an_audit(claim=claim, bound=bounds[0], also=tuple(bounds[1:]))


@pytest.mark.parametrize(("claimed", "found"), [(1.0, 2.0), (3.0, 1.4), (0.0, 1e-3), (1e6, 5.0)])
def test_places_are_proportional_to_numbers(claimed: float, found: float) -> None:
    drawn = scale(audit(claimed, found))
    (row,) = drawn.rows
    per_one = max(row.start / found, (row.promised or 0.0) / (claimed or 1.0))
    assert row.start == pytest.approx(found * per_one, abs=1e-3)
    assert row.promised == pytest.approx(claimed * per_one, abs=1e-3)
    for place, text in drawn.ticks:
        assert place == pytest.approx(float(text) * per_one, abs=1e-2)
    assert max(row.start, row.promised) < 80  # the interval of the largest is seen to go on


@pytest.mark.parametrize("claimed", [None, 0.0, 1e-300, 1.0, 1e300, 1.7e308, math.inf])
@pytest.mark.parametrize("found", [0.0, 1e-300, 1.0, 1e300, 1.7e308, math.inf])
def test_everything_stays_within_the_frame(claimed: float | None, found: float) -> None:
    drawn = scale(audit(claimed, found))
    (row,) = drawn.rows
    assert 0 <= row.start <= 97
    assert row.promised is None or 0 <= row.promised <= 97
    assert 2 <= len(drawn.ticks) <= 9
    assert all(0 <= place <= 92 for place, _ in drawn.ticks)
    assert (row.start == 97) == math.isinf(found)
    assert row.value == "ε ≥ ∞" or math.isfinite(found)


def test_only_the_first_bound_of_an_audit_decides() -> None:
    rows = scale(audit(1.0, 2.0, 5.0, 7.0)).rows
    assert [row.decides for row in rows] == [True, False, False]


def test_a_group_shows_the_deciding_bound_of_each_audit() -> None:
    group = AuditGroup(subject="s", results=(audit(1.0, 2.0, 9.0), audit(None, 4.0)))
    rows = scale(group).rows
    assert [row.value for row in rows] == ["ε ≥ 2.00", "ε ≥ 4.00"]
    assert [row.promise for row in rows] == ["promised ε = 1", ""]
    assert rows[1].start == pytest.approx(2 * rows[0].start, abs=1e-2)


def test_a_lone_bound_has_a_scale() -> None:
    (row,) = scale(a_bound(valid=False)).rows
    assert (row.decides, row.valid, row.promised) == (True, False, None)


@pytest.mark.parametrize(("confidence", "proves"), [(1.0, True), (0.95, False)])
def test_what_was_sampled_is_not_shown_as_a_bound(confidence: float, proves: bool) -> None:
    estimate = EpsilonEstimate(
        epsilon=2.0,
        low=1.5,
        high=2.5,
        delta=1e-5,
        confidence=confidence,
        method="some",
        direction="both",
        subject="a mechanism",
    )
    row = scale(an_audit(estimates=(estimate,))).rows[-1]
    assert (row.valid, row.decides) == (proves, proves)
