"""A bound on groups of records becomes a bound on one, and never a larger one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.errors import InvalidArgument
from epsilometer.stats.group_privacy import bound_one_record, group_delta


@given(st.floats(0, 5), st.floats(1e-12, 1e-3), st.integers(1, 6))
def test_delta_is_the_sum_of_a_geometric_series(epsilon: float, delta: float, copies: int) -> None:
    series = sum(delta * math.exp(epsilon * step) for step in range(copies))
    assert group_delta(epsilon, delta, copies=copies) == pytest.approx(min(1, series), rel=1e-6)


@given(st.floats(0.1, 9), st.floats(0, 1e-4), st.integers(1, 8))
def test_one_record_is_bounded_by_its_share(proved: float, delta: float, copies: int) -> None:
    found = bound_one_record(lambda _: proved, delta=delta, copies=copies)
    assert 0 <= found <= proved / copies * (1 + 1e-9)


def test_the_larger_delta_of_a_group_is_paid() -> None:
    def prove(delta: float) -> float:
        return max(0.0, 4.0 - 1e4 * delta)

    found = bound_one_record(prove, delta=1e-5, copies=4)
    at = group_delta(found, 1e-5, copies=4)
    assert prove(at) >= 4 * found
    above = found + 1 / 32
    assert prove(group_delta(above, 1e-5, copies=4)) < 4 * above
    assert found < 1.0


def test_nothing_is_proved_where_nothing_was() -> None:
    assert bound_one_record(lambda _: 0.0, delta=1e-5, copies=3) == 0.0
    assert group_delta(1e4, 1e-5, copies=2) == 1.0
    with pytest.raises(InvalidArgument, match="copies"):
        group_delta(1.0, 1e-5, copies=0)
