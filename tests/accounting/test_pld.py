"""DP-SGD by privacy loss distributions, against published values and closed forms."""

import math

import numpy as np
import pytest

import epsilometer as em
from epsilometer.accounting import pld
from epsilometer.errors import InvalidArgument
from tests.accounting.truths import one_step_epsilon

PUBLISHED = 0.0005  # half a unit of the last digit of the published values
ROUNDING_UP = 1e-5  # what privacy losses rounded up may add, relatively


@pytest.mark.parametrize(("noise", "published"), [(0.5, 6.476), (1.0, 0.718), (1.5, 0.292)])
def test_poisson_epsilon_is_the_published_one(noise: float, published: float) -> None:
    """100 steps, 1 in 100 records a batch, zero-out adjacency, δ = 1e-5."""
    epsilon = pld.poisson_epsilon(
        noise_multiplier=noise, sampling_rate=0.01, steps=100, delta=1e-5, adjacency="zero_out"
    )
    assert epsilon == pytest.approx(published, abs=2 * PUBLISHED)


@pytest.mark.parametrize(
    ("noise", "rate", "delta"), [(1.0, 0.1, 1e-5), (0.7, 0.5, 1e-3), (2.0, 0.9, 1e-6)]
)
def test_one_step_is_its_definition_and_never_below(
    noise: float, rate: float, delta: float
) -> None:
    truth = one_step_epsilon(noise, rate, delta)
    epsilon = pld.poisson_epsilon(noise_multiplier=noise, sampling_rate=rate, steps=1, delta=delta)
    assert truth - 1e-9 <= epsilon <= truth * (1 + ROUNDING_UP)


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (5.0, 20), (20.0, 100)])
def test_full_batch_is_one_gaussian(noise: float, steps: int) -> None:
    truth = em.gaussian_epsilon(noise / math.sqrt(steps), 1e-5)
    epsilon = pld.poisson_epsilon(
        noise_multiplier=noise, sampling_rate=1.0, steps=steps, delta=1e-5
    )
    assert epsilon == pytest.approx(truth, rel=ROUNDING_UP)
    assert epsilon >= truth * (1 - 1e-9)


def test_zeroing_a_record_out_costs_what_removing_it_costs() -> None:
    """A record of zeros adds nothing to a sum, and batches are drawn alike: the same pair."""
    knobs = {"noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 10, "delta": 1e-5}
    zero_out = pld.poisson_epsilon(**knobs, adjacency="zero_out")  # type: ignore[arg-type]
    removed = pld.poisson_epsilon(**knobs, adjacency="add_remove")  # type: ignore[arg-type]
    assert zero_out == pytest.approx(removed, rel=1e-9)


def test_more_noise_fewer_steps_and_smaller_batches_cost_less() -> None:
    base = {"noise_multiplier": 1.5, "sampling_rate": 0.02, "steps": 20, "delta": 1e-5}

    def epsilon(**changed: float) -> float:
        return pld.poisson_epsilon(**{**base, **changed})  # type: ignore[arg-type]

    cheaper = [{"noise_multiplier": 2.0}, {"steps": 10}, {"sampling_rate": 0.01}, {"delta": 1e-4}]
    assert max(epsilon(**changed) for changed in cheaper) < epsilon()


def test_without_noise_nothing_is_promised_and_without_sampling_nothing_is_lost() -> None:
    knobs = {"steps": 5, "delta": 1e-5}
    assert pld.poisson_epsilon(noise_multiplier=0, sampling_rate=0.5, **knobs) == math.inf
    assert pld.poisson_epsilon(noise_multiplier=1, sampling_rate=0.0, **knobs) == 0


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out"])
def test_calibrated_noise_just_keeps_the_promise(adjacency: str) -> None:
    knobs = {"sampling_rate": 0.05, "steps": 20, "delta": 1e-5, "adjacency": adjacency}
    noise = pld.poisson_noise(epsilon=1.0, **knobs)  # type: ignore[arg-type]
    spent = pld.poisson_epsilon(noise_multiplier=noise, **knobs)  # type: ignore[arg-type]
    assert 1.0 - 1e-3 < spent <= 1.0  # the noise is found to 1e-6, on the safe side


def test_calibrated_full_batch_noise_is_that_of_one_gaussian() -> None:
    noise = pld.full_batch_noise(epsilon=3.0, delta=1e-5, steps=20)
    assert noise == pytest.approx(math.sqrt(20) * em.gaussian_sigma(3.0, 1e-5), rel=ROUNDING_UP)


def test_the_curve_of_a_full_batch_is_gaussian() -> None:
    """From 201 of the infinitely many (ε, δ) that touch it: never above, below by a little."""
    fpr = np.linspace(0.0, 1.0, 101)
    allowed = pld.poisson_curve(fpr, noise_multiplier=2.0, sampling_rate=1.0, steps=4)
    truth = em.gdp_curve(fpr, mu=1.0)
    assert np.all(allowed <= truth + 1e-9)
    np.testing.assert_allclose(allowed, truth, atol=1e-3)


def test_the_curve_of_sampled_batches_allows_less_than_that_of_full_ones() -> None:
    fpr = np.linspace(0.0, 1.0, 11)
    sampled = pld.poisson_curve(fpr, noise_multiplier=2.0, sampling_rate=0.1, steps=4)
    assert np.all(sampled >= em.gdp_curve(fpr, mu=1.0) - 1e-9)
    assert np.all(sampled <= 1 - fpr + 1e-9)  # and nothing is better than guessing


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier ≥ 0"),
        ({"noise_multiplier": math.nan}, "number for noise_multiplier"),
        ({"sampling_rate": 1.5}, r"sampling_rate in \[0, 1\]"),
        ({"sampling_rate": -0.1}, r"sampling_rate in \[0, 1\]"),
        ({"steps": 0}, "steps ≥ 1"),
        ({"steps": 1.5}, "whole number for steps"),
        ({"delta": 0.0}, r"delta in \(0, 1\)"),
        ({"delta": 1.0}, r"delta in \(0, 1\)"),
        ({"adjacency": "replace"}, "add_remove or zero_out, got 'replace'"),
        ({"adjacency": "unstated"}, "add_remove or zero_out"),
    ],
)
def test_bad_arguments_are_told(wrong: dict, told: str) -> None:
    good = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 2, "delta": 1e-5}
    with pytest.raises(InvalidArgument, match=told):
        pld.poisson_epsilon(**{**good, **wrong})
    if "delta" not in wrong:
        del good["delta"]
        with pytest.raises(InvalidArgument, match=told):
            pld.poisson_curve(0.1, **{**good, **wrong})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"epsilon": math.inf}, "epsilon > 0 and finite"),
        ({"delta": 0.0}, r"delta in \(0, 1\)"),
        ({"sampling_rate": 2.0}, r"sampling_rate in \[0, 1\]"),
        ({"steps": -1}, "steps ≥ 1"),
        ({"adjacency": "replace"}, "add_remove or zero_out"),
    ],
)
def test_bad_targets_of_calibration_are_told(wrong: dict, told: str) -> None:
    good = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 2}
    with pytest.raises(InvalidArgument, match=told):
        pld.poisson_noise(**{**good, **wrong})
