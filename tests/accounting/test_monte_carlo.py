"""The Monte-Carlo accountant, against the exact one, simulation and densities by hand."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

from epsilometer.accounting import pld
from epsilometer.accounting.epochs import Epoch, exact_epsilon
from epsilometer.accounting.shuffle import epoch_of
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Shuffle,
    WithoutReplacement,
)
from epsilometer.stats.gaussians import gaussian_epsilon
from tests.accounting import monte_carlo
from tests.accounting.monte_carlo import (
    OneBatch,
    OneStep,
    TooFewDraws,
    monte_carlo_epsilon,
)
from tests.accounting.truths import TABLE, P, Q, drawn_losses
from tests.oracles import FLAKE

LIKELY = float(norm.isf(FLAKE / 2))  # standard errors that chance exceeds once in a million
UNITS = [
    OneBatch(steps=1, noise=0.8, absent=1),
    OneBatch(steps=3, noise=1.0, absent=1),
    OneBatch(steps=40, noise=0.6, absent=1),
    OneBatch(steps=40, noise=1.5, absent=0),
    OneBatch(steps=5, noise=2.0, absent=7),
]


def even_shares(unit: monte_carlo.Unit, present: bool) -> np.ndarray:
    parts = unit.components(present=present) - 1
    return np.concatenate([[0.2], np.full(parts, 0.8 / parts)])


# --- the draws
@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("unit", [*UNITS, OneStep(rate=0.1, noise=1.0, absent=0)], ids=str)
@pytest.mark.in_turn(3)
def test_weights_are_bounded_and_average_to_one(
    unit: monte_carlo.Unit, present: bool, rng: np.random.Generator
) -> None:
    shares = even_shares(unit, present)
    losses, weights, chances = unit.draw(20_000, shares, present=present, rng=rng)
    assert np.all(np.isfinite(losses))
    assert np.all((weights >= 0) & (weights <= 1 / shares[0] * (1 + 1e-12)))
    spread = weights.std() / math.sqrt(weights.size)
    assert abs(weights.mean() - 1) <= LIKELY * spread
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    # A component is as often the source as it has a share.
    np.testing.assert_allclose(chances.mean(axis=0), shares, atol=LIKELY * 0.5 / math.sqrt(2e4))


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_weighted_draws_have_the_exact_tails(
    unit: OneBatch, present: bool, rng: np.random.Generator
) -> None:
    """The two accountants meet here, far out too: what the mixture is for."""
    epoch = Epoch(steps=unit.steps, noise=unit.noise, absent=unit.absent)
    shares = even_shares(unit, present)
    losses, weights, _ = unit.draw(20_000, shares, present=present, rng=rng)
    typical = losses[weights > 0.5]
    for tau in np.quantile(typical, [0.5, 0.9, 0.99, 0.999]):
        tails = epoch.tails(float(tau if present else -tau), points=2**13)
        truth = tails[1] if present else tails[2]
        events = weights * (losses > tau)
        spread = events.std() / math.sqrt(events.size)
        assert abs(events.mean() - truth) <= (LIKELY + 1) * spread + 1e-9


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_plain_draws_have_the_simulated_losses(unit: OneBatch, rng: np.random.Generator) -> None:
    epoch = Epoch(steps=unit.steps, noise=unit.noise, absent=unit.absent)
    for present in (True, False):
        shares = np.eye(unit.components(present=present))[0]
        losses, weights, _ = unit.draw(10_000, shares, present=present, rng=rng)
        np.testing.assert_allclose(weights, 1)
        simulated = drawn_losses(epoch, 10_000, rng, present=present) * (1 if present else -1)
        ends = np.sort(simulated)[[1000, 5000, 9000]]
        reached = np.searchsorted(np.sort(losses), ends) / 1e4
        # Two samples, each with its own error.
        np.testing.assert_allclose(reached, [0.1, 0.5, 0.9], atol=LIKELY * 0.5 * math.sqrt(2 / 1e4))


def test_shifted_densities_by_hand(rng: np.random.Generator) -> None:
    unit = OneBatch(steps=3, noise=1.0, absent=1)
    z = 2 * rng.standard_normal((50, 3))
    shifts = monte_carlo._SHIFTS
    base = norm.pdf(z).prod(axis=1)
    for i, shift in enumerate(shifts):
        moved = [norm.pdf(z - shift * np.eye(3)[t]).prod(axis=1) for t in range(3)]
        found = np.exp(unit._shifted(z)) * base[:, None]
        np.testing.assert_allclose(found[:, i], moved[0], rtol=1e-9)
        np.testing.assert_allclose(found[:, shifts.size + i], (moved[1] + moved[2]) / 2, rtol=1e-9)


def test_tilted_densities_integrate_to_one_and_are_drawn(rng: np.random.Generator) -> None:
    unit = OneBatch(steps=2, noise=1.0, absent=1)
    middle = (monte_carlo._TABLE[1:] + monte_carlo._TABLE[:-1]) / 2
    width = monte_carlo._WIDTH
    for tilt in unit._tilts:
        for law in (tilt.target, tilt.other):
            assert law.sum() == pytest.approx(1, abs=1e-12)
        grid = np.stack([middle, np.full(middle.size, 0.005)], axis=1)
        density = np.exp(tilt.log_ratio(grid)) * norm.pdf(grid).prod(axis=1)
        cell = int((0.005 - monte_carlo._TABLE[0]) / width)
        np.testing.assert_allclose(
            density, tilt.target * tilt.other[cell] / width**2, rtol=1e-6, atol=1e-300
        )
        drawn = tilt.drawn(20_000, 2, rng)
        for column, law in enumerate((tilt.target, tilt.other)):
            mean, spread = law @ middle, math.sqrt(law @ middle**2 - (law @ middle) ** 2)
            z = (drawn[:, column].mean() - mean) / (spread / math.sqrt(20_000))
            assert abs(z) <= LIKELY
    assert np.all(np.isneginf(unit._tilts[0].log_ratio(np.array([[9.5, 0.0], [0.0, -9.1]]))))


def test_tilts_make_low_losses_common(rng: np.random.Generator) -> None:
    """What a tilt is for: e^{−4}, e^{−8} and e^{−12} of the epochs are typical under it."""
    unit = OneBatch(steps=50, noise=1.0, absent=1)
    epoch = Epoch(steps=50, noise=1.0, absent=1)
    for tilt, log_chance in zip(unit._tilts, monte_carlo._TILTED_TO, strict=True):
        z = tilt.drawn(2000, 50, rng)
        z[:, 0] += 1
        depth = float(np.median(unit._loss(z)))
        chance = epoch.tails(depth, points=2**13)[2]
        assert log_chance - 4 <= math.log(chance) <= log_chance + 2


def test_law_on_the_grid_keeps_mean_and_mass(rng: np.random.Generator) -> None:
    unit = OneBatch(steps=4, noise=1.0, absent=1)
    sample = monte_carlo._Sample(unit, even_shares(unit, True), 1000, True, rng)
    law = sample._law()
    assert law.masses.sum() == pytest.approx(1, abs=1e-12)
    mean = np.average(sample.losses, weights=sample.weights)
    assert law.masses @ law.losses == pytest.approx(mean, rel=1e-10)


@pytest.mark.parametrize("rate", [0.01, 0.4, 1.0])
def test_steps_by_coins_have_their_density(rate: float, rng: np.random.Generator) -> None:
    unit = OneStep(rate=rate, noise=0.8, absent=0)
    y = 3 * rng.standard_normal(100)
    mixture = (1 - rate) * norm.pdf(y) + rate * norm.pdf(y - 1 / 0.8)
    found = np.exp(unit._log_density(y, 1 / 0.8)) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(found, mixture, rtol=1e-9)


# --- the estimate
def exact(epoch: Epoch, times: int, delta: float, direction: str) -> tuple[float, float]:
    """ε and how far it may be off."""
    found, low, high, _ = exact_epsilon(epoch, epochs=times, delta=delta, direction=direction)
    return found, high - low


def random_setting(rng: np.random.Generator, most_steps: int) -> dict[str, Any]:
    steps = int(np.exp(rng.uniform(0, math.log(most_steps + 1))))
    size = int(rng.integers(1, 6))
    samplers = [Shuffle(), BallsInBins(), BatchThenShuffle(), PartialShuffle(size * steps // 2 + 1)]
    return {
        "noise_multiplier": float(np.exp(rng.uniform(math.log(0.4), math.log(3)))),
        "steps": steps,
        "epochs": int(np.exp(rng.uniform(0, math.log(21)))),
        "delta": float(10 ** rng.uniform(-6, -3)),
        "sampler": samplers[int(rng.integers(4))],
        "batch_size": size,
    }


def misses(rng: np.random.Generator, *, settings: int, most_steps: int, draws: int) -> int:
    missed = answered = 0
    for _ in range(3 * settings):
        if answered == settings:
            break
        setting = random_setting(rng, most_steps)
        direction = (P, Q)[int(rng.integers(2))]
        epoch = epoch_of(
            setting["sampler"], setting["noise_multiplier"], setting["steps"], setting["batch_size"]
        )
        truth, off = exact(epoch, setting["epochs"], setting["delta"], direction)
        try:
            found = monte_carlo_epsilon(**setting, direction=direction, draws=draws, rng=rng)
        except TooFewDraws:  # a setting that needs more: it said so, and gave no interval
            continue
        answered += 1
        missed += not found.low - off <= truth <= found.high + off
        # However it misses, it is not far off.
        assert abs(found.epsilon - truth) <= 4 * (found.high - found.low) + off + 1e-3
    assert answered == settings
    return missed


@pytest.mark.slow
def test_agrees_with_the_exact_accountant_on_random_settings(rng: np.random.Generator) -> None:
    assert misses(rng, settings=20, most_steps=300, draws=12_000) <= binom.isf(FLAKE, 20, 0.05)


@pytest.mark.slow
def test_agrees_with_the_exact_accountant_on_many_settings(rng: np.random.Generator) -> None:
    assert misses(rng, settings=150, most_steps=300, draws=60_000) <= binom.isf(FLAKE, 150, 0.05)


COVERED = [
    (OneBatch(steps=10, noise=1.0, absent=1), 1, P),
    (OneBatch(steps=10, noise=1.0, absent=1), 1, Q),
    (OneBatch(steps=10, noise=1.0, absent=1), 4, P),
    (OneBatch(steps=6, noise=2.0, absent=0), 4, Q),
]


def coverage(unit: OneBatch, times: int, direction: str, repetitions: int, rng: Any) -> None:
    delta, missed = 1e-4, 0
    epoch = Epoch(steps=unit.steps, noise=unit.noise, absent=unit.absent)
    truth, off = exact(epoch, times, delta, direction)
    estimates = []
    for _ in range(repetitions):
        found, error = monte_carlo._estimate(
            unit, times, delta=delta, draws=6_000, present=direction == P, rng=rng
        )
        missed += abs(found - truth) > norm.isf(0.025) * error + off
        estimates.append(found)
    assert missed <= binom.isf(FLAKE / len(COVERED), repetitions, 0.05)
    bias = np.mean(estimates) - truth
    # Unbiased but for what is of second order: a tenth of the spread of one estimate.
    slack = (LIKELY / math.sqrt(repetitions) + 0.1) * np.std(estimates) + off
    assert abs(bias) <= slack


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "times", "direction"), COVERED)
def test_interval_holds_the_truth_as_often_as_it_says(
    unit: OneBatch, times: int, direction: str, rng: np.random.Generator
) -> None:
    coverage(unit, times, direction, 60, rng)


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "times", "direction"), COVERED)
def test_interval_holds_the_truth_as_often_as_it_says_many_times(
    unit: OneBatch, times: int, direction: str, rng: np.random.Generator
) -> None:
    coverage(unit, times, direction, 600, rng)


def test_other_batches_matter(rng: np.random.Generator) -> None:
    """With many steps large losses come from batches without the target: they are drawn too."""
    found = monte_carlo_epsilon(
        noise_multiplier=1.5, steps=1000, delta=1e-5, direction=P, draws=12_000, rng=rng
    )
    truth = TABLE["T1000-σ1.5"][3]
    assert found.high - found.low <= 0.15 * truth
    assert abs(found.epsilon - truth) <= 4 * (found.high - found.low)


@pytest.mark.parametrize("name", ["T100-σ0.5", "T100-σ1", "SST-2", "CIFAR-10"])
@pytest.mark.in_turn(2)
def test_reference_table_in_a_second(name: str, rng: np.random.Generator) -> None:
    noise, steps, times, *expected = TABLE[name]
    for direction, truth in zip((P, Q), expected, strict=True):
        found = monte_carlo_epsilon(
            noise_multiplier=noise,
            steps=steps,
            epochs=times,
            delta=1e-5,
            direction=direction,
            draws=20_000,
            rng=rng,
        )
        spread = (found.high - found.low) / (2 * norm.isf(0.025))
        assert abs(found.epsilon - truth) <= (LIKELY + 1) * spread
        assert spread <= 0.03 * truth


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_reference_table(name: str, rng: np.random.Generator) -> None:
    noise, steps, times, *expected = TABLE[name]
    for direction, truth in zip((P, Q), expected, strict=True):
        found = monte_carlo_epsilon(
            noise_multiplier=noise,
            steps=steps,
            epochs=times,
            delta=1e-5,
            direction=direction,
            rng=rng,
        )
        assert found.epsilon == pytest.approx(truth, rel=0.02 if name == "Places-365" else 0.01)


@pytest.mark.parametrize("sampler", [Shuffle(), Poisson(), WithoutReplacement()], ids=str)
def test_one_step_is_the_gaussian_mechanism(sampler: Any, rng: np.random.Generator) -> None:
    found = monte_carlo_epsilon(
        noise_multiplier=1.1, steps=1, epochs=2, delta=1e-5, sampler=sampler, draws=50_000, rng=rng
    )
    truth = gaussian_epsilon(1.1 / math.sqrt(2), 1e-5)
    assert abs(found.epsilon - truth) <= 4 * (found.high - found.low)
    assert found.epsilon == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize(("noise", "steps", "times"), [(1.0, 100, 1), (0.8, 20, 5)])
def test_poisson_sampling_is_that_of_the_loss_distribution(
    noise: float, steps: int, times: int, rng: np.random.Generator
) -> None:
    truth = pld.poisson_epsilon(
        noise_multiplier=noise,
        sampling_rate=1 / steps,
        steps=steps * times,
        delta=1e-5,
        adjacency="zero_out",
    )
    found = monte_carlo_epsilon(
        noise_multiplier=noise,
        steps=steps,
        epochs=times,
        delta=1e-5,
        sampler=Poisson(),
        draws=400_000,
        rng=rng,
    )
    assert found.epsilon == pytest.approx(truth, rel=0.01)


def test_balls_in_bins_and_the_target_canary_are_one_law(rng: np.random.Generator) -> None:
    """Exact for a = 0, by sampling, and by brute force from the definition of δ."""
    epoch, delta = Epoch(steps=12, noise=0.7, absent=0), 0.01
    truth, off = exact(epoch, 1, delta, P)
    found = monte_carlo_epsilon(
        noise_multiplier=0.7,
        steps=12,
        delta=delta,
        sampler=BallsInBins(),
        direction=P,
        draws=50_000,
        rng=rng,
    )
    assert abs(found.epsilon - truth) <= 4 * (found.high - found.low) + off
    losses = drawn_losses(epoch, 200_000, rng, present=True)
    gains = np.maximum(-np.expm1(truth - losses), 0)
    assert abs(gains.mean() - delta) <= LIKELY * gains.std() / math.sqrt(gains.size)


def test_directions_are_not_confused(rng: np.random.Generator) -> None:
    setting = {"noise_multiplier": 1.0, "steps": 100, "delta": 1e-5, "draws": 20_000}
    first = monte_carlo_epsilon(**setting, direction=P, rng=rng)
    second = monte_carlo_epsilon(**setting, direction=Q, rng=rng)
    both = monte_carlo_epsilon(**setting, rng=rng)
    assert (first.direction, second.direction, both.direction) == (P, Q, P)
    assert second.high < 1
    assert first.low > 3.9


def test_same_rng_same_result() -> None:
    setting = {"noise_multiplier": 1.0, "steps": 5, "epochs": 2, "delta": 1e-4, "draws": 5_000}
    one, two, other = (
        monte_carlo_epsilon(**setting, rng=np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert one == two != other


@pytest.mark.parametrize("noise", [0.05, 0.2, 10.0, 50.0])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.in_turn(3)
def test_extreme_noise(noise: float, steps: int, rng: np.random.Generator) -> None:
    found = monte_carlo_epsilon(
        noise_multiplier=noise, steps=steps, delta=1e-5, draws=20_000, rng=rng
    )
    assert found.epsilon <= gaussian_epsilon(noise, 1e-5) * 1.02
    if noise < 1:
        assert found.epsilon == pytest.approx(gaussian_epsilon(noise, 1e-5), rel=0.02)


def test_too_few_draws_are_said() -> None:
    with pytest.raises(TooFewDraws, match="Ask for more draws"):
        monte_carlo_epsilon(
            noise_multiplier=10.0, steps=100, delta=1e-5, draws=2_000, rng=np.random.default_rng(0)
        )


@pytest.mark.parametrize(
    "changed",
    [
        {"draws": 0},
        {"draws": 999},
        {"draws": 1e4},
        {"confidence": 1.0},
        {"delta": 0.0},
        {"epochs": 0},
        {"steps": 0},
        {"noise_multiplier": 0.0},
        {"direction": "up"},
        {"sampler": PartialShuffle(3, sliding=True), "batch_size": 1},
    ],
    ids=str,
)
def test_bad_settings_are_refused(changed: dict, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        monte_carlo_epsilon(
            **{"noise_multiplier": 1.0, "steps": 5, "delta": 1e-3, "rng": rng, **changed}
        )
