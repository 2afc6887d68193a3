"""Simulated looks: they agree with the exact law, and pay for being simulated."""

import numpy as np
import pytest
import scipy.stats

from epsilometer.stats import rank_simulation, rank_walk
from epsilometer.stats.rank_looks import LookFamily
from epsilometer.stats.rank_walk import Looks


@pytest.mark.parametrize(("draws", "rank"), [(4_095, 163), (9_999, 434), (19_999, 906)])
def test_rank_is_the_upper_confidence_limit(draws: int, rank: int) -> None:
    assert rank_simulation.find_safe_rank(draws, 0.05) == rank
    assert scipy.stats.beta.cdf(0.05, rank, draws + 1 - rank) >= 0.999
    assert scipy.stats.beta.cdf(0.05, rank + 1, draws - rank) < 0.999


@pytest.mark.parametrize(
    ("m", "n", "delta"), [(100, 100, 0.0), (1000, 300, 1e-4), (50, 80, 0.05), (3000, 3000, 1e-5)]
)
def test_simulated_bound_is_a_little_below_the_exact_one(m: int, n: int, delta: float) -> None:
    family = LookFamily(m, n, delta=delta, alpha=0.05)
    for mark in (200, 400, 600):
        looks = family.looks(mark)
        if not looks.k.size:
            continue
        guess = float(family.value_of(mark))
        exact = rank_walk.find_epsilon(looks, guess, delta=delta, alpha=0.05)
        simulated = rank_simulation.simulate_epsilon(looks, delta=delta, alpha=0.05)
        assert simulated <= exact
        least = rank_walk.find_epsilon(looks, guess, delta=delta, alpha=0.035)
        assert simulated >= least


def test_order_statistics_have_their_law() -> None:
    rng = np.random.default_rng(0)
    rows = rank_simulation.draw_order_statistics(np.array([1, 40, 100]), 100, 2000, rng)
    for row, rank in zip(rows, (1, 40, 100), strict=True):
        assert scipy.stats.kstest(row, scipy.stats.beta(rank, 101 - rank).cdf).pvalue > 1e-4


@pytest.mark.parametrize("size", [10**6, 10**9])
def test_perfect_separation_of_very_many_scores(size: int) -> None:
    """Its chance is nearly e^(−2n·e^(−ε)) where δ is 0."""
    looks = Looks(np.array([1]), np.array([size]), size, size)
    found = rank_simulation.simulate_epsilon(looks, delta=0.0, alpha=0.05)
    assert found == pytest.approx(np.log(2 * size / np.log(1 / 0.05)), abs=0.03)
