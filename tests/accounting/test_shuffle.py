"""What shuffling leaks, computed exactly: against published values, closed forms and simulation."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.accounting import epochs
from epsilometer.accounting.shuffle import (
    published_epsilon,
    shuffle_curve,
    shuffle_delta,
    shuffle_epsilon,
    shuffle_noise,
)
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sampler,
    Sequential,
    Shuffle,
    WithoutReplacement,
)
from epsilometer.stats.gaussians import gaussian_epsilon
from epsilometer.stats.tradeoff import gdp_curve
from tests.accounting.truths import TABLE, P, Q, drawn_losses
from tests.conftest import REFERENCE, cases, run_often
from tests.oracles import FLAKE

GRID = 1e-4  # what grids may be off, relatively
QUICK = ("T100-σ1", "SST-2", "QNLI", "MNLI")  # the cheapest four


def theory(name: str) -> list[Any]:
    every = json.loads((REFERENCE / "shuffle_theory.json").read_text("utf-8"))
    return [pytest.param(row["inputs"], row["value"]) for row in every if row["name"] == name]


# --- reference values
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in TABLE]
)
def test_reference_table(name: str) -> None:
    noise, steps, times, *expected = TABLE[name]
    for direction, truth in zip((P, Q), expected, strict=True):
        found = shuffle_epsilon(
            noise_multiplier=noise, steps=steps, epochs=times, delta=1e-5, direction=direction
        )
        # Half a unit of the last printed digit on top.
        assert found.epsilon == pytest.approx(truth, rel=1e-3, abs=0.5e-4)
        assert found.low <= found.epsilon <= found.high
        assert found.direction == direction


def c07(prefix: str) -> list[Any]:
    """The cases with their tolerances, of which ``cases`` keeps nothing."""
    every = json.loads((REFERENCE / "cases.json").read_text("utf-8"))
    return [
        pytest.param(case["inputs"], case["expected"], case["tolerance"], id=case["id"])
        for case in every
        if case["group"] == "c07"
        and case["id"].startswith(prefix)
        and "estimates" not in case["id"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "expected", "tolerance"), c07("bgm"))
def test_reference_cases(inputs: dict, expected: dict, tolerance: dict) -> None:
    setting = {
        "noise_multiplier": inputs.get("sigma", expected.get("sigma")),
        "steps": inputs["T"],
        "epochs": inputs.get("epochs", 1),
        "delta": inputs["delta"],
    }
    for direction, key in ((P, "eps_PQ"), (Q, "eps_QP")):
        found = shuffle_epsilon(**setting, direction=direction)
        assert found.epsilon == pytest.approx(expected[key], abs=tolerance[f"{key}_abs"])
    if "eps_batch_then_shuffle" in expected:
        # Batches of 100 records (SPEC, section 3).
        found = shuffle_epsilon(**setting, sampler=BatchThenShuffle(), batch_size=100)
        wanted = expected["eps_batch_then_shuffle"]
        relative = tolerance["eps_batch_then_shuffle_rel"]
        assert found.epsilon == pytest.approx(wanted, rel=relative)


@pytest.mark.parametrize(("inputs", "value"), theory("shuffle eps lower @1e-5"))
def test_published_bound_is_the_published_one(inputs: dict, value: list) -> None:
    bound = published_epsilon(noise_multiplier=inputs["sigma"], steps=inputs["steps"], delta=1e-5)
    # Their thresholds lie on a grid, and the best one between two of them.
    assert value[0] - 1e-6 <= bound <= value[0] + 5e-4


@pytest.mark.parametrize(("inputs", "expected"), cases("c07", "bgm-1epoch"))
def test_published_bound_by_its_threshold(inputs: dict, expected: dict) -> None:
    bound = published_epsilon(
        noise_multiplier=inputs["sigma"], steps=inputs["T"], delta=inputs["delta"]
    )
    assert bound == pytest.approx(expected["max_threshold_lower_bound_PQ"], abs=1e-4)
    assert bound <= expected["eps_PQ"] + 1e-6


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("steps", [1, 2, 50])
@pytest.mark.in_turn(3)
def test_published_bound_is_never_above_the_exact_one(noise: float, steps: int) -> None:
    for delta in (1e-6, 1e-2, 0.3):
        exact = shuffle_epsilon(noise_multiplier=noise, steps=steps, delta=delta)
        bound = published_epsilon(noise_multiplier=noise, steps=steps, delta=delta)
        assert bound <= exact.high * (1 + GRID) + 1e-9


@pytest.mark.parametrize(("inputs", "value"), theory("shuffle delta lower"))
@pytest.mark.in_turn(2)
def test_delta_is_at_least_the_published_bound(inputs: dict, value: list) -> None:
    for epsilon, bound in zip(inputs["eps"], value, strict=True):
        found = shuffle_delta(
            noise_multiplier=inputs["sigma"], steps=inputs["steps"], epsilon=epsilon
        )
        assert found.high >= bound * (1 - GRID)
        assert found.delta <= 2 * bound + 1e-9 or epsilon < 3  # and near it where it is tight


@pytest.mark.parametrize(("inputs", "value"), theory("deterministic deltas"))
def test_without_shuffling_delta_is_the_gaussian_one(inputs: dict, value: list) -> None:
    for epsilon, delta in zip(inputs["eps"], value, strict=True):
        found = shuffle_delta(
            noise_multiplier=inputs["sigma"], steps=7, epsilon=epsilon, sampler=Sequential()
        )
        assert found.delta == pytest.approx(delta, rel=1e-6)


# --- laws
@pytest.mark.parametrize("direction", [P, Q, "both"])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.05])
def test_delta_of_epsilon_of_delta(direction: Any, delta: float) -> None:
    setting = {"noise_multiplier": 0.9, "steps": 20, "epochs": 2, "direction": direction}
    epsilon = shuffle_epsilon(**setting, delta=delta).epsilon
    found = shuffle_delta(**setting, epsilon=epsilon)
    assert found.delta == pytest.approx(delta, rel=GRID)  # read from grids that each needs
    assert found.low <= found.delta <= found.high


def test_epsilon_falls_with_noise_and_delta_and_rises_with_epochs() -> None:
    def of(noise: float = 1.0, delta: float = 1e-5, times: int = 2) -> float:
        return shuffle_epsilon(noise_multiplier=noise, steps=30, epochs=times, delta=delta).epsilon

    assert strictly_falls([of(noise) for noise in (0.4, 1.0, 8.0)])
    assert strictly_falls([of(delta=delta) for delta in (1e-8, 1e-6, 1e-4, 1e-2)])
    assert strictly_falls([of(times=times) for times in (10, 2, 1)])


def strictly_falls(values: list[float]) -> bool:
    return all(a > b for a, b in itertools.pairwise(values))


def test_both_directions_is_the_larger() -> None:
    setting = {"noise_multiplier": 1.0, "steps": 10, "delta": 1e-5}
    both, *either = (shuffle_epsilon(**setting, direction=d) for d in ("both", P, Q))
    assert both == max(either, key=lambda one: one.epsilon)


def test_more_hiding_places_leak_less() -> None:
    found = [
        shuffle_epsilon(noise_multiplier=1.0, steps=steps, delta=1e-5).epsilon
        for steps in (1, 2, 10, 100, 1000)
    ]
    assert strictly_falls(found)
    assert found[0] == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-9)


# --- extreme settings
@pytest.mark.parametrize("noise", [0.05, 0.2, 10.0, 50.0])
@pytest.mark.parametrize("sampler", [Shuffle(), BallsInBins()])
@pytest.mark.parametrize("steps", [1, 2, 100])
@pytest.mark.in_turn(3)
def test_extreme_noise(noise: float, sampler: Sampler, steps: int) -> None:
    found = shuffle_epsilon(noise_multiplier=noise, steps=steps, delta=1e-5, sampler=sampler)
    most = gaussian_epsilon(noise, 1e-5)  # whoever learns the batch knows more
    assert 0 < found.low <= found.epsilon <= found.high <= most * (1 + GRID)
    if noise <= 0.2 and isinstance(sampler, Shuffle):
        assert found.epsilon == pytest.approx(most, rel=GRID)
    if noise == 50:  # no batch stands out: the sum says all, and it has √T times the noise
        averaged = gaussian_epsilon(noise * math.sqrt(steps), 1e-5)
        assert found.epsilon == pytest.approx(averaged, rel=0.02)


def test_a_huge_delta_leaves_nothing() -> None:
    for delta in (0.5, 0.9):
        assert shuffle_epsilon(noise_multiplier=1.0, steps=100, delta=delta).epsilon == 0
        near = shuffle_epsilon(noise_multiplier=0.3, steps=100, delta=delta)
        assert near.epsilon == pytest.approx(gaussian_epsilon(0.3, delta), rel=0.01)


def test_many_epochs_of_much_noise_tend_to_a_gaussian() -> None:
    """A sum of 200 nearly normal losses: μ² = E · Var L, and Var L = 1/(Tσ²) for much noise."""
    found = shuffle_epsilon(noise_multiplier=20.0, steps=50, epochs=200, delta=1e-5)
    truth = gaussian_epsilon(20 * math.sqrt(50 / 200), 1e-5)
    assert found.epsilon == pytest.approx(truth, rel=0.01)


def test_deltas_below_the_rounding_are_refused_in_words() -> None:
    with pytest.raises(InvalidArgument, match="Expected delta ≥"):
        shuffle_epsilon(noise_multiplier=1.0, steps=100, epochs=10, delta=1e-9)
    with pytest.raises(InvalidArgument, match="Expected delta ≥"):
        shuffle_noise(epsilon=1.0, steps=100, epochs=10, delta=1e-9)


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": math.inf},
        {"steps": 0},
        {"steps": 1.5},
        {"steps": 10**7},
        {"epochs": 0},
        {"epochs": True},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
        {"direction": "sideways"},
        {"sampler": "shuffle"},
        {"sampler": PartialShuffle(10)},
        {"sampler": BatchThenShuffle()},
        {"sampler": BatchThenShuffle(), "batch_size": 0},
    ],
    ids=str,
)
def test_bad_settings_are_refused(changed: dict) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        shuffle_epsilon(**{"noise_multiplier": 1.0, "steps": 100, "delta": 1e-5, **changed})


# --- samplers
@pytest.mark.parametrize("sampler", [Poisson(), WithoutReplacement()], ids=str)
def test_samplers_of_independent_steps_are_sent_elsewhere(sampler: Sampler) -> None:
    with pytest.raises(InvalidArgument, match=r"accounting\.pld"):
        shuffle_epsilon(noise_multiplier=1.0, steps=100, delta=1e-5, sampler=sampler)


def test_sliding_buffers_are_sent_to_the_training_itself() -> None:
    with pytest.raises(InvalidArgument, match="Audit the training itself"):
        shuffle_epsilon(
            noise_multiplier=1.0,
            steps=100,
            delta=1e-5,
            sampler=PartialShuffle(10, sliding=True),
            batch_size=1,
        )


def test_samplers_that_coincide() -> None:
    setting = {"noise_multiplier": 1.0, "delta": 1e-5}
    shuffled = shuffle_epsilon(**setting, steps=40).epsilon
    same: list[tuple[Sampler, int]] = [
        (BatchThenShuffle(), 1),
        (PartialShuffle(4000), 100),
        (PartialShuffle(10**9), 100),
    ]
    for sampler, size in same:
        found = shuffle_epsilon(**setting, steps=40, sampler=sampler, batch_size=size)
        assert found.epsilon == shuffled
    fewer = shuffle_epsilon(**setting, steps=10).epsilon
    buffered = shuffle_epsilon(**setting, steps=40, sampler=PartialShuffle(1000), batch_size=100)
    assert buffered.epsilon == fewer > shuffled
    alone = shuffle_epsilon(**setting, steps=40, epochs=4, sampler=Sequential())
    assert alone.epsilon == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-9)


def test_the_batch_size_cancels() -> None:
    setting = {"noise_multiplier": 1.0, "steps": 40, "delta": 1e-5}
    for sampler in (Shuffle(), BallsInBins()):
        sizes = [
            shuffle_epsilon(**setting, sampler=sampler, batch_size=size).epsilon
            for size in (None, 1, 256)
        ]
        assert len(set(sizes)) == 1


def test_large_batches_shuffled_as_a_whole_leave_the_gaussian_mechanism() -> None:
    found = [
        shuffle_epsilon(
            noise_multiplier=2.0,
            steps=100,
            delta=1e-5,
            sampler=BatchThenShuffle(drop_last=True),
            batch_size=size,
        ).epsilon
        for size in (1, 2, 4, 500)
    ]
    truth = gaussian_epsilon(2.0, 1e-5)
    assert found[0] < found[1] < truth
    assert found[2] == pytest.approx(truth, rel=GRID)
    assert found[3] == pytest.approx(truth, rel=1e-9)


# --- noise
@pytest.mark.parametrize(
    ("claim", "steps", "times"),
    run_often([(2.0, 50, 1), (12.0, 20, 3), (0.05, 10, 1)], [(2.0, 50, 1)]),
)
def test_needed_noise_keeps_the_claim_and_less_breaks_it(
    claim: float, steps: int, times: int
) -> None:
    setting = {"steps": steps, "epochs": times, "delta": 1e-5}
    noise = shuffle_noise(epsilon=claim, **setting)
    at = shuffle_epsilon(noise_multiplier=noise, **setting)
    assert at.epsilon == pytest.approx(claim, rel=5 * GRID)  # it is content with less
    assert shuffle_epsilon(noise_multiplier=0.99 * noise, **setting).low > claim


@pytest.mark.slow
@pytest.mark.parametrize(("claim", "steps", "times"), [(3.0, 781, 50), (1.0, 100, 1)])
def test_needed_noise_of_large_settings(claim: float, steps: int, times: int) -> None:
    setting = {"steps": steps, "epochs": times, "delta": 1e-5}
    noise = shuffle_noise(epsilon=claim, **setting)
    assert shuffle_epsilon(noise_multiplier=noise, **setting).epsilon == pytest.approx(
        claim, rel=1e-3
    )
    assert shuffle_epsilon(noise_multiplier=0.99 * noise, **setting).low > claim


def test_needed_noise_without_shuffling_is_the_gaussian_one() -> None:
    noise = shuffle_noise(epsilon=1.0, delta=1e-5, steps=9, epochs=4, sampler=Sequential())
    assert gaussian_epsilon(noise / 2, 1e-5) == pytest.approx(1.0, rel=1e-4)


def test_needed_noise_of_the_ends() -> None:
    """ε = 0 asks for δ(0) ≤ δ, which much noise gives; of ε = ∞ everything is kept."""
    noise = shuffle_noise(epsilon=0.0, delta=0.1, steps=10)
    found = shuffle_delta(noise_multiplier=noise, steps=10, epsilon=0.0)
    assert found.delta == pytest.approx(0.1, rel=GRID)
    assert shuffle_noise(epsilon=math.inf, delta=1e-5, steps=10) == 0
    with pytest.raises(InvalidArgument):
        shuffle_noise(epsilon=-1.0, delta=1e-5, steps=10)


# --- trade-off curve
@pytest.mark.parametrize(("steps", "times"), [(20, 1), (20, 5)])
def test_curve_touches_every_epsilon_delta_region(steps: int, times: int) -> None:
    setting = {"noise_multiplier": 1.0, "steps": steps, "epochs": times}
    fpr = np.concatenate([[0.0], np.geomspace(1e-9, 1, 3000), 1 - np.geomspace(1e-9, 1, 3000)])
    fpr = np.unique(np.clip(fpr, 0, 1))
    fnr = shuffle_curve(fpr, **setting)
    for epsilon in (0.0, 0.5, 1.5, 4.0):
        deltas = {
            P: float(np.max(1 - fnr - math.exp(epsilon) * fpr)),
            Q: float(np.max(1 - fpr - math.exp(epsilon) * fnr)),
        }
        for direction, touched in deltas.items():
            delta = shuffle_delta(**setting, epsilon=epsilon, direction=direction).delta
            # Above the region nowhere, and on its edge somewhere: δ is the best attack's gain.
            assert touched == pytest.approx(delta, rel=2e-3, abs=1e-6)


def test_curve_of_one_batch_is_the_gaussian_one() -> None:
    fpr = np.linspace(0, 1, 50)
    curve = shuffle_curve(fpr, noise_multiplier=0.8, steps=1, epochs=3)
    np.testing.assert_allclose(curve, gdp_curve(fpr, mu=math.sqrt(3) / 0.8), atol=1e-12)


def test_curve_is_that_of_simulated_attacks(rng: np.random.Generator) -> None:
    setting = {"noise_multiplier": 0.7, "steps": 10, "epochs": 2}
    epoch, plays = epochs.Epoch(steps=10, noise=0.7, absent=1), 30_000
    inside, outside = (
        sum(drawn_losses(epoch, plays, rng, present=present) for _ in range(2))
        for present in (True, False)
    )
    for threshold in np.quantile(outside[:1000], [0.1, 0.5, 0.9, 0.99]):
        false = float(np.mean(outside[1000:] > threshold))
        missed = float(np.mean(inside <= threshold))
        # The false-positive rate has its own error, which moves along the curve.
        slack = scipy.stats.norm.isf(FLAKE / 8) * math.sqrt(0.25 / (plays - 1000))
        around = shuffle_curve(np.clip([false + slack, false - slack], 0, 1), **setting)
        assert around[0] - slack <= missed <= around[1] + slack
