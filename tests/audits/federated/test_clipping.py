"""Adaptive clipping, against the formulas of its paper."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.audits.federated.rounds import AdaptiveClip, FixedClip
from epsilometer.errors import InvalidArgument

ADAPTIVE = AdaptiveClip(initial=2.0, quantile=0.3, learning_rate=0.5, count_noise=4.0)


@given(
    unclipped=st.integers(0, 100),
    clipped=st.integers(0, 100),
    mean=st.floats(1, 200),
    normal=st.floats(-5, 5),
)
def test_the_norm_moves_by_the_noisy_share(
    unclipped: int, clipped: int, mean: float, normal: float
) -> None:
    members = unclipped + clipped
    shifted = sum([0.5] * unclipped + [-0.5] * clipped)
    share = min(max((shifted + 4.0 * normal) / mean + 0.5, 0), 1)
    expected = 2.0 * math.exp(-0.5 * (share - 0.3))
    found = ADAPTIVE.after(2.0, unclipped=unclipped, members=members, mean=mean, normal=normal)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_norm_rises_where_many_are_clipped_and_falls_where_few_are() -> None:
    """The sign that a popular framework has wrong."""
    knobs = {"members": 100, "mean": 100.0, "normal": 0.0}
    assert ADAPTIVE.after(1.0, unclipped=0, **knobs) > 1  # type: ignore[arg-type]
    assert ADAPTIVE.after(1.0, unclipped=100, **knobs) < 1  # type: ignore[arg-type]
    assert ADAPTIVE.after(1.0, unclipped=30, **knobs) == pytest.approx(1)  # type: ignore[arg-type]


@given(z=st.floats(0.01, 7.9))
def test_count_and_sum_cost_what_the_whole_noise_does(z: float) -> None:
    """Two Gaussians: squared sensitivities over variances add up. A count moves by ½."""
    left = ADAPTIVE.value_noise(z)
    assert left**-2 + (0.5 / 4.0) ** 2 == pytest.approx(z**-2, rel=1e-9)


def test_a_fixed_norm_stays() -> None:
    clip = FixedClip(3.0)
    assert clip.first == 3.0
    assert clip.value_noise(0.7) == 0.7
    assert clip.after(3.0, unclipped=0, members=9, mean=9.0, normal=1.0) == 3.0


def test_without_noise_there_is_nothing_to_share() -> None:
    assert AdaptiveClip(count_noise=0.0).value_noise(0.0) == 0.0


@pytest.mark.parametrize("count_noise", [0.0, 0.1, 0.5])
def test_a_count_that_costs_more_than_there_is_is_told(count_noise: float) -> None:
    with pytest.raises(InvalidArgument, match=r"count_noise above 0\.5"):
        AdaptiveClip(count_noise=count_noise).value_noise(1.0)
