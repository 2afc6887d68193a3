"""Sets of looks: nested as they must be, and what scores reach is what is computed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm

from epsilometer.stats import rank_looks
from epsilometer.stats.rank_looks import LookFamily, spread_ranks

SIZES = [(1, 1), (3, 40), (30, 30), (500, 80), (2000, 2000)]


def test_ranks_are_those_the_docstring_names() -> None:
    assert spread_ranks(40).tolist() == [1, 2, 3, 4, 6, 9, 13, 19]
    assert spread_ranks(1).tolist() == [1]


@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.2])
def test_looks_are_rarer_the_larger_the_count_and_the_smaller_the_mark(
    m: int, n: int, delta: float
) -> None:
    """Else the set that is computed would be smaller than the one that scores can reach."""
    family = LookFamily(m, n, delta=delta, alpha=0.05)
    roots = family._roots(np.arange(0, family.marks, 37))
    shares = np.linspace(0, 1, 60)[:, None]
    counts = np.unique((shares * family._others).round().astype(np.int64), axis=0)
    table = np.array([family._rarity(roots, row) for row in counts])
    assert np.all(np.diff(table, axis=0) <= 1e-15)
    assert np.all(np.diff(table, axis=1) >= -1e-15)


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_rates_are_quantiles_of_their_law(m: int, n: int) -> None:
    family = LookFamily(m, n, delta=0.0, alpha=0.05)
    inner = (rank_looks._NODES >= -1) & (rank_looks._NODES <= 3)  # small rates hardly matter
    ranks = np.concatenate([family.ranks_out, family.ranks_in])[:, None]
    sizes = np.where(np.arange(ranks.size) < family.ranks_out.size, n, m)[:, None]
    expected = beta.ppf(norm.cdf(rank_looks._NODES), ranks, sizes + 1 - ranks)
    error = np.abs(family._rates / expected - 1)[:, inner]
    assert error.max() < 0.2  # near is enough: it costs power alone
    assert error[ranks[:, 0] > 3].max(initial=0.0) < 0.02


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.floats(0, 3),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-3]),
)
def test_scores_reach_exactly_the_marks_whose_looks_they_hit(
    m: int, n: int, shift: float, seed: int, delta: float
) -> None:
    rng = np.random.default_rng(seed)
    inside, outside = np.sort(rng.normal(shift, 1, m)), np.sort(rng.normal(0, 1, n))
    family = LookFamily(m, n, delta=delta, alpha=0.05)
    above = m - np.searchsorted(inside, outside[n - family.ranks_out])
    below = np.searchsorted(outside, inside[family.ranks_in - 1])
    counts = np.concatenate([above, below])

    def hits(mark: int) -> bool:
        looks = family.looks(mark)
        return bool(np.any(inside[m - looks.x] > outside[n - looks.k]))

    reached = family.reach(counts)
    if reached is None:
        assert not hits(0)
        return
    assert hits(reached)  # the scores are in the set that is computed
    ends = np.arange(family._parts - 1, reached, family._parts)
    assert all(hits(int(mark)) for mark in ends)
    assert reached == family.marks - 1 or not hits(reached + 1)


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_looks_rise_and_miss_nothing(m: int, n: int) -> None:
    family = LookFamily(m, n, delta=1e-5, alpha=0.05)
    for mark in range(0, 1200, 131):
        looks = family.looks(mark)
        assert np.all(np.diff(looks.k) > 0)
        assert np.all(np.diff(looks.x) > 0)
        assert np.all((looks.k >= 1) & (looks.k <= n) & (looks.x >= 1) & (looks.x <= m))
        turned = looks.turned.turned
        assert np.array_equal(turned.k, looks.k)
        assert np.array_equal(turned.x, looks.x)


def test_marks_rise() -> None:
    family = LookFamily(50, 50, delta=0.0, alpha=0.05)
    values = family.value_of(np.arange(family.marks))
    assert np.all(np.diff(values) > 0)
    assert values[0] < 0
