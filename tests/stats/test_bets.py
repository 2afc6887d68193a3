"""Bets against (ε, δ)-DP: nobody gains by them where it holds, and fast where it does not."""

import math

import numpy as np
import pytest
import scipy.special

from epsilometer.stats import bets

EPSILONS = [0.0, 0.01, 0.5, 1.0, 2.3, 4.0, 8.0, 15.9]
DELTAS = [0.0, 1e-5, 0.1, 0.9]


def allowed_rates(epsilon: float, delta: float, size: int = 60) -> np.ndarray:
    """(p, q) all over the region that the claim allows, its edges and corners included."""
    up = math.exp(epsilon)
    corners = [
        (0.0, 0.0),
        (delta, 0.0),
        ((up + delta) / (1 + up), (1 - delta) / (1 + up)),
        (1.0, 1 - delta),
        (1.0, 1.0),
        (1 - delta, 1.0),
        ((1 - delta) / (1 + up), (up + delta) / (1 + up)),
        (0.0, delta),
    ]
    share = np.concatenate([np.geomspace(1e-9, 0.1, size), np.linspace(0, 1, size)])[:, None]
    edges = [
        (1 - share) * a + share * b
        for a, b in zip(np.array(corners), np.roll(corners, -1, axis=0), strict=True)
    ]
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, size)] * 2), axis=-1).reshape(-1, 2)
    p, q = grid.T
    inside = (p <= up * q + delta) & (1 - q <= up * (1 - p) + delta)
    inside &= (q <= up * p + delta) & (1 - p <= up * (1 - q) + delta)
    return np.concatenate([*edges, grid[inside]])


def mean_payoffs(payoffs: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Mean of each bet (row) at each pair of rates (column)."""
    caught, missed, false, quiet = payoffs.T[:, :, None]
    p, q = rates.T
    return np.asarray((caught * p + missed * (1 - p)) * (false * q + quiet * (1 - q)))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_bet_gains_where_the_claim_holds(epsilon: float, delta: float) -> None:
    for top in (epsilon, epsilon + bets.WIDTH):
        payoffs = np.exp(bets.compute_log_payoffs(epsilon, delta, top=top))
        assert payoffs.shape == (bets.LOG_WEIGHTS.size, 4)
        assert mean_payoffs(payoffs, allowed_rates(epsilon, delta)).max() <= 1 + 1e-12
    assert np.exp(bets.LOG_WEIGHTS).sum() <= 1 + 1e-12


@pytest.mark.parametrize("mistake", ["one edge", "swapped", "corner moved", "both stakes"])
def test_bets_that_gain_are_noticed(mistake: str) -> None:
    """Classic mistakes, planted in the payoffs."""
    epsilon, delta = 1.0, 1e-3
    payoffs = np.exp(bets.compute_log_payoffs(epsilon, delta, top=epsilon))
    if mistake == "swapped":  # half of the mirror image: wins of one direction, losses of the other
        payoffs = payoffs[:, [3, 1, 2, 0]]
    if mistake == "corner moved":  # the corner of a smaller claim
        payoffs = np.exp(bets.compute_log_payoffs(epsilon - 0.02, delta, top=epsilon))
    if mistake == "both stakes":  # two bets in one direction, multiplied as if independent
        payoffs = payoffs**1.1
    if mistake == "one edge":  # the projection of a perfect attack on p ≤ e^ε q + δ alone
        q0 = 1 / (2 * math.exp(epsilon))  # below the corner, where the other edge is active too
        p0 = math.exp(epsilon) * q0 + delta
        p1, q1 = 0.999, 0.3 * q0
        payoffs = np.array([[p1 / p0, (1 - p1) / (1 - p0), q1 / q0, (1 - q1) / (1 - q0)]])
    assert mean_payoffs(payoffs, allowed_rates(epsilon, delta)).max() > 1 + 1e-4


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("top", [0.25, 1.0, 3.0, 9.0])
def test_no_payoff_rises_with_the_claim(top: float, delta: float) -> None:
    """So that all claims up to ``top`` below a refuted one are refuted with it."""
    every = np.array([bets.compute_log_payoffs(e, delta, top=top) for e in np.linspace(0, top, 40)])
    assert np.diff(every, axis=0).max() <= 1e-13


def divergence(truth: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Kullback–Leibler divergence of two coins from two others."""
    return np.asarray(
        (scipy.special.rel_entr(truth, rates) + scipy.special.rel_entr(1 - truth, 1 - rates)).sum(
            -1
        )
    )


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.1])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_a_bet_is_the_likelihood_ratio_to_the_nearest_allowed_rates(
    epsilon: float, delta: float
) -> None:
    payoffs = np.exp(bets.compute_log_payoffs(epsilon, delta, top=epsilon))
    caught, missed, false, quiet = payoffs.T
    near = np.stack([(1 - missed) / (caught - missed), (1 - quiet) / (false - quiet)], axis=1)
    truth = near * np.stack([caught, false], axis=1)
    assert truth.min() >= 0
    assert truth.max() <= 1
    rates = allowed_rates(epsilon, delta, 200)
    for alternative, nearest in zip(truth, near, strict=True):
        least = divergence(alternative, rates).min()
        assert divergence(alternative, nearest) <= least + 1e-9


@pytest.mark.parametrize("claim", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(
    ("caught", "false"),
    [(1 - 1e-9, 1e-9), (0.99, 0.005), (0.3, 1e-9), (0.6, 0.002), (1 - 1e-9, 0.7), (0.9, 0.01)],
)
def test_some_bet_grows_nearly_as_fast_as_any_can(
    caught: float, false: float, claim: float
) -> None:
    """The most is the divergence of the true rates from the nearest allowed ones."""
    truth = np.array([caught, false])
    most = divergence(truth, allowed_rates(claim, 0.0, 2_000)).min()
    logs = bets.compute_log_payoffs(claim, 0.0, top=claim)
    growth = logs @ [caught, 1 - caught, false, 1 - false]
    assert growth.max() >= 0.9 * most
