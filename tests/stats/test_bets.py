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
    p, q = rates.T
    return np.asarray(payoffs @ [p * q, p * (1 - q), (1 - p) * q, (1 - p) * (1 - q)])


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
    if mistake == "swapped":  # the other run pays the price e^ε
        up = math.exp(epsilon)
        payoffs = 1 + 0.1 * np.array([[up - 1, up, -1, 0]]) - 0.1 * delta
    if mistake == "corner moved":  # the corner of a smaller claim
        payoffs = np.exp(bets.compute_log_payoffs(epsilon - 0.02, delta, top=epsilon))
    if mistake == "both stakes":  # two bets in one direction, multiplied as if independent
        payoffs = payoffs**1.1
    if mistake == "one edge":  # the projection of a perfect attack on p ≤ e^ε q + δ alone
        q0 = 1 / (2 * math.exp(epsilon))  # below the corner, where the other edge is active too
        p0 = math.exp(epsilon) * q0 + delta
        p1, q1 = 0.999, 0.3 * q0
        ratios = np.outer([p1 / p0, (1 - p1) / (1 - p0)], [q1 / q0, (1 - q1) / (1 - q0)])
        payoffs = ratios.reshape(1, 4)
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
    """At the corner; where a bet's line supports the region elsewhere, a larger claim's corner."""
    error = (1 - delta) / (1 + np.maximum(np.exp(epsilon), bets._PRICE))
    near = np.stack([1 - error, error], axis=1)
    truth = np.stack([1 - bets._MISSES * error, bets._ALARMS * error], axis=1)
    caught, missed = (truth / near).T[0], ((1 - truth) / (1 - near)).T[0]
    false, quiet = (truth / near).T[1], ((1 - truth) / (1 - near)).T[1]
    expected = np.stack([caught * false, caught * quiet, missed * false, missed * quiet], axis=1)
    payoffs = np.exp(bets.compute_log_payoffs(epsilon, delta, top=epsilon))
    assert payoffs[: error.size] == pytest.approx(expected)
    for rates, nearest, price in zip(truth, near, bets._PRICE, strict=True):
        region = allowed_rates(max(epsilon, math.log(price)), delta, 200)
        assert divergence(rates, nearest) <= divergence(rates, region).min() + 1e-9


@pytest.mark.slow
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
    growth = logs @ np.outer([caught, 1 - caught], [false, 1 - false]).ravel()
    assert growth.max() >= 0.75 * most
