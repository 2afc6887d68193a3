"""Privacy losses on a grid, against their definitions by plain sums."""

import math

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from epsilometer.accounting.loss_distribution import (
    LossDistribution,
    compose,
    find_epsilon,
    normal_masses,
)
from epsilometer.stats.gaussians import gaussian_epsilon
from tests import oracles

ROUNDING = 1e-12  # sums of a few hundred masses in float64
FFT = 1e-13  # masses of at most 1 through two transforms of a few thousand points

masses = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=40).filter(lambda m: sum(m) > 0.1)
steps = st.floats(1e-3, 2.0)
starts = st.floats(-5.0, 5.0)


def law(weights: list[float], start: float, step: float) -> LossDistribution:
    return LossDistribution(start=start, step=step, masses=np.array(weights) / sum(weights))


def delta_by_definition(losses: LossDistribution, epsilon: float) -> float:
    worth = [max(0.0, 1 - math.exp(min(0.0, epsilon - value))) for value in losses.losses]
    return math.fsum(w * m for w, m in zip(worth, losses.masses, strict=True))


@given(masses, starts, steps, st.floats(-6.0, 90.0))
def test_delta_is_its_definition(
    weights: list[float], start: float, step: float, epsilon: float
) -> None:
    losses = law(weights, start, step)
    expected = delta_by_definition(losses, epsilon)
    # δ is Lipschitz in ε, and a loss may be taken for its neighbour within 1e-9 of a step.
    assert abs(float(losses.delta(epsilon)) - expected) <= ROUNDING + 1e-9 * step


@given(masses, starts, steps, st.floats(1e-6, 0.999))
def test_epsilon_undoes_delta(
    weights: list[float], start: float, step: float, delta: float
) -> None:
    losses = law(weights, start, step)
    epsilon = losses.epsilon(delta)
    assert epsilon >= 0
    if epsilon > 0:
        assert delta_by_definition(losses, epsilon) == pytest.approx(delta, abs=1e-9)
    else:
        assert delta_by_definition(losses, 0.0) <= delta + ROUNDING


@given(masses, st.integers(1, 6))
def test_composition_is_repeated_convolution(weights: list[float], times: int) -> None:
    losses = law(weights, -1.0, 0.1)
    expected = np.ones(1)
    for _ in range(times):
        expected = np.convolve(expected, losses.masses)
    composed = compose([(losses, times)], rounding="nearest")
    assert composed.step == losses.step
    first = round((composed.start + times) / losses.step)  # the window leaves out what is nothing
    np.testing.assert_allclose(
        composed.masses, expected[first : first + composed.masses.size], atol=FFT
    )


def test_two_laws_on_points_have_the_epsilon_of_their_divergence(rng: np.random.Generator) -> None:
    """Randomised response, whose losses lie on a grid: an oracle that knows nothing of losses."""
    keep, rounds = 0.7, 5
    step = math.log(keep / (1 - keep))
    one = LossDistribution(start=-step, step=2 * step, masses=np.array([1 - keep, keep]))
    inside, outside = np.ones(1), np.ones(1)
    for _ in range(rounds):
        inside = np.convolve(inside, [1 - keep, keep])
        outside = np.convolve(outside, [keep, 1 - keep])
    for delta in (1e-4, 1e-2, 0.3):
        truth = oracles.discrete_epsilon(inside, outside, delta)
        assert find_epsilon([(one, rounds)], delta, rounding="nearest") == pytest.approx(
            truth, abs=1e-9
        )


def test_mass_that_is_missing_counts_for_nothing() -> None:
    half = LossDistribution(start=1.0, step=1.0, masses=np.array([0.25, 0.25]))
    assert float(half.delta(-800.0)) == pytest.approx(0.5)
    assert half.epsilon(0.6) == 0.0


def test_beyond_the_last_loss_there_is_nothing() -> None:
    losses = LossDistribution(start=0.0, step=1.0, masses=np.array([0.5, 0.5]))
    assert losses.delta([1.0, 2.0, math.inf]).tolist() == [0.0, 0.0, 0.0]
    assert losses.epsilon(1e-300) == pytest.approx(1.0)


# --- rounding has a direction, and tails are honest


def gaussian_cells(mu: float, cell: float) -> tuple[float, np.ndarray, np.ndarray, float]:
    """The loss of N(μ, 1) against N(0, 1) is N(μ²/2, μ²) with the record, N(−μ²/2, μ²) without."""
    half, reach = mu**2 / 2, 10 * mu
    edges = cell * np.arange(math.floor((-half - reach) / cell), math.ceil((half + reach) / cell))
    present, absent = (normal_masses((edges - mean) / mu) for mean in (half, -half))
    return float(edges[0]), present, absent, float(scipy.special.ndtr((half - edges[-1]) / mu))


@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-14])
@pytest.mark.parametrize(("mu", "times"), [(1.0, 2), (0.3, 40), (0.02, 10_000)])
def test_gaussians_are_enclosed_at_any_delta(mu: float, times: int, delta: float) -> None:
    """The sum of their losses is that of one Gaussian, whose ε is known to all digits."""
    truth = gaussian_epsilon(1 / (mu * math.sqrt(times)), delta)
    start, present, absent, beyond = gaussian_cells(mu, mu / 200)
    found = {
        rounding: find_epsilon(
            [
                (
                    LossDistribution.from_cells(
                        start, mu / 200, present, absent, beyond=beyond, rounding=rounding
                    ),
                    times,
                )
            ],
            delta,
            rounding=rounding,
        )
        for rounding in ("up", "down", "nearest")
    }
    assert found["down"] <= truth <= found["up"]
    # Cells of μ/200 add 1/(12 · 200²) relatively; rounded down, at most their √(T ln(1/η)/2).
    assert found["up"] == pytest.approx(truth, rel=1e-5)
    shift = mu / 200 * math.sqrt(times * math.log(1e5 / delta) / 2)
    assert found["down"] >= truth - 1.1 * shift
    assert found["nearest"] == pytest.approx(truth, rel=1e-4)


def test_infinite_losses_are_not_below_their_mass() -> None:
    law = LossDistribution(start=0.0, step=1.0, masses=np.array([0.5, 0.4]), infinite=0.1)
    assert float(law.delta(50.0)) == pytest.approx(0.1)
    assert law.epsilon(0.05) == math.inf
    twice = compose([(law, 2)], rounding="up")
    assert twice.infinite == pytest.approx(1 - 0.9**2)


def test_masses_of_intervals_keep_their_digits_in_both_tails() -> None:
    edges = np.array([-30.0, -29.0, 0.5, 29.0, 30.0])
    masses = normal_masses(edges)
    assert masses[0] == pytest.approx(masses[-1])
    assert masses[0] == pytest.approx(scipy.special.ndtr(-29.0), rel=1e-9)
    assert masses.sum() == pytest.approx(1.0)
