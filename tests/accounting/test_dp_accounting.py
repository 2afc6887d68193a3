"""Poisson sampling against dp-accounting, an accountant of other people: an oracle."""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from epsilometer.accounting import pld

AGREE = 1e-3  # relatively
SETTINGS = 200
QUICK = 8  # settings, of those that take the oracle little time


def draw_settings() -> list[tuple[float, float, int, float]]:
    """Noise 0.3 to 20, rates 1e-4 to 1, 1 to 1e5 steps, δ of 1e-12 to 1e-3; all geometrically."""
    low, high = np.log([[0.3, 1e-4, 1, 1e-12], [20, 1, 1e5, 1e-3]])
    drawn = np.exp(np.random.default_rng(0).uniform(low, high, (SETTINGS, 4)))
    return [(noise, rate, int(steps), delta) for noise, rate, steps, delta in drawn.tolist()]


def compose_oracle(noise: float, rate: float, steps: int, **how: Any) -> Any:
    """The loss by dp-accounting, in cells of a hundredth of the spread of a step's loss.

    In finer ones the rounding of its FFT adds up to more than δ, after many steps.
    """
    spread = math.sqrt(pld.SampledGaussian(noise, rate, steps).compute_variance())
    law = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=spread / 100, **how
    )
    return law.self_compose(steps)


def is_drowned(steps: int, delta: float) -> bool:
    """Whether rounding in the oracle's FFT, of 2⁻⁵² per step and more, shows beside δ."""
    return 1e-13 * steps > delta


def check(noise: float, rate: float, steps: int, delta: float) -> None:
    """ε of dp-accounting is compared by its δ(ε): where ε is above 700 its ε(δ) underflows."""
    found = pld.poisson_epsilon(
        noise_multiplier=noise, sampling_rate=rate, steps=steps, delta=delta
    )
    least = pld.poisson_epsilon_at_least([(noise, rate, steps)], delta=delta)
    assert least <= found
    if is_drowned(steps, delta):
        # Two bounds of our own, rounded up and down, are what there is.
        assert found == pytest.approx(least, rel=0.02)
        return
    optimistic = compose_oracle(
        noise, rate, steps, pessimistic_estimate=False, use_connect_dots=False
    )
    assert optimistic.get_delta_for_epsilon(found) <= delta
    law = compose_oracle(noise, rate, steps)
    assert law.get_delta_for_epsilon(found * (1 + AGREE) + 1e-9) <= delta
    assert found == 0 or law.get_delta_for_epsilon(found * (1 - AGREE) - 1e-9) >= delta
    assert law.get_delta_for_epsilon(least) >= delta * (1 - 1e-9) or least == 0


DRAWN = [setting for setting in draw_settings() if setting[0] > 1][:QUICK]


@pytest.mark.parametrize("setting", DRAWN, ids=str)
def test_quick_settings(setting: tuple[float, float, int, float]) -> None:
    check(*setting)


@pytest.mark.slow
@pytest.mark.parametrize("setting", draw_settings(), ids=str)
def test_all_settings(setting: tuple[float, float, int, float]) -> None:
    check(*setting)
