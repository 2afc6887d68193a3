"""Counts beyond ranks: by brute force without ties, and uniform orders with them."""

import math
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from epsilometer import ScoreCounts, Scores
from epsilometer.stats import rank_counts
from epsilometer.stats.rank_counts import count_ranks
from epsilometer.stats.rank_looks import spread_ranks
from tests.conftest import run_often


def counted(scores: Scores | ScoreCounts, seed: int = 0) -> rank_counts.RankCounts:
    rng = np.random.default_rng(seed)
    return count_ranks(scores, spread_ranks(scores.n_out), spread_ranks(scores.n_in), rng)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 10**6), st.booleans())
def test_without_ties_counts_are_those_by_hand(m: int, n: int, seed: int, few: bool) -> None:
    rng = np.random.default_rng(seed)
    pooled = rng.permutation(m + n).astype(float)
    scores = Scores(pooled[:m], pooled[m:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_counts, "_SORTED", 0 if few else 10**9)
        found = counted(scores)
    from_above = np.sort(scores.outside)[::-1]
    for k, count in zip(spread_ranks(n), found.inside_above, strict=True):
        assert count == np.sum(scores.inside > from_above[k - 1])
    from_below = np.sort(scores.inside)
    for j, count in zip(spread_ranks(m), found.outside_below, strict=True):
        assert count == np.sum(scores.outside < from_below[j - 1])
    assert not found.tied


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([-math.inf, 0.0, 1.0, 2.0, math.inf]), min_size=1, max_size=40),
    st.lists(st.sampled_from([-math.inf, 0.0, 1.0, 2.0, math.inf]), min_size=1, max_size=40),
    st.integers(0, 100),
    st.booleans(),
)
def test_ties_leave_what_is_not_tied(
    inside: list[float], outside: list[float], seed: int, few: bool
) -> None:
    scores = Scores(inside, outside)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_counts, "_SORTED", 0 if few else 10**9)
        found = counted(scores, seed)
    for value, count in zip(found.at_out, found.inside_above, strict=True):
        assert np.sum(scores.inside > value) <= count <= np.sum(scores.inside >= value)
    for value, count in zip(found.at_in, found.outside_below, strict=True):
        assert np.sum(scores.outside < value) <= count <= np.sum(scores.outside <= value)
    assert np.all(np.diff(found.inside_above) >= 0)
    assert np.all(np.diff(found.outside_below) >= 0)


def _path(found: rank_counts.RankCounts) -> tuple[int, ...]:
    return (*found.inside_above.tolist(), *found.outside_below.tolist())


@pytest.mark.parametrize("kind", run_often(["scores", "counts"], ["scores"]))
def test_every_order_of_a_group_is_equally_likely(kind: str) -> None:
    """Seven inside and six outside scores, all equal: counts at all looks, with their joint law."""
    m, n, draws = 7, 6, 6_000
    if kind == "scores":
        scores: Scores | ScoreCounts = Scores(np.ones(m), np.ones(n))
    else:
        scores = ScoreCounts(np.array([0.0]), np.array([0, m]), np.array([0, n]))
    seen = Counter(_path(counted(scores, seed)) for seed in range(draws))
    rng = np.random.default_rng(1)
    expected: Counter[tuple[int, ...]] = Counter()
    simulated = 60_000
    for _ in range(simulated):
        order = rng.permutation(m + n).astype(float)
        expected[_path(_by_hand(order[:m], order[m:]))] += 1
    common = [path for path, times in expected.items() if times > 60]
    rest = simulated - sum(expected[path] for path in common)
    observed = np.array([seen[path] for path in common] + [draws])
    observed[-1] -= observed[:-1].sum()
    shares = np.array([expected[path] for path in common] + [rest]) / simulated
    # The expected shares are simulated too, ten times as often: a tenth is added to the variance.
    statistic = float(((observed - draws * shares) ** 2 / (1.1 * draws * shares)).sum())
    assert scipy.stats.chi2.sf(statistic, observed.size - 1) > 1e-5


def _by_hand(inside: np.ndarray, outside: np.ndarray) -> rank_counts.RankCounts:
    outs, ins = np.sort(outside), np.sort(inside)
    at_out = outs[outs.size - spread_ranks(outs.size)]
    at_in = ins[spread_ranks(ins.size) - 1]
    return rank_counts.RankCounts(
        inside_above=ins.size - np.searchsorted(ins, at_out),
        outside_below=np.searchsorted(outs, at_in),
        at_out=at_out,
        at_in=at_in,
        tied=False,
    )


def test_audits_that_share_a_seed_do_not_share_the_order() -> None:
    """Place in the array, and sizes of groups, change it; the seed alone would favour everybody."""
    rng = np.random.default_rng(0)
    tops = []
    for _ in range(300):
        scores = Scores((rng.random(60) < 0.7) * 1.0, (rng.random(60) < 0.3) * 1.0)
        tops.append(int(counted(scores, seed=1).inside_above[0]))
    # Inside scores above the first outside one of the upper group: geometric with 0.7.
    assert np.mean(np.array(tops) == 0) == pytest.approx(0.3, abs=0.12)
    assert max(tops) > 5


def test_same_seed_same_counts() -> None:
    scores = Scores(np.ones(50), np.ones(70))
    assert _path(counted(scores, 5)) == _path(counted(scores, 5))
    assert len({_path(counted(scores, seed)) for seed in range(8)}) > 1


def test_float32_scores_count_as_themselves() -> None:
    rng = np.random.default_rng(2)
    inside, outside = (np.round(rng.normal(0, 1, 200), 1).astype(np.float32) for _ in range(2))
    single = counted(Scores(inside, outside))
    double = counted(Scores(inside.astype(np.float64), outside.astype(np.float64)))
    assert _path(single) == _path(double)
