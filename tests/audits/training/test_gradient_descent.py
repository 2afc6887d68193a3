"""DP gradient descent is what it says, and its score is the best that its adversary can have."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.training.demo import GradientDescent
from epsilometer.errors import InvalidArgument
from tests.oracles import FLAKE

DATA = np.random.default_rng(0)  # the training set, not the noise
TRAINING = GradientDescent(
    features=DATA.normal(size=(6, 4)),
    labels=np.array([0, 1, 2, 0, 1, 2]),
    target=np.array([10.0, -10.0, 10.0, 10.0]),
    target_label=1,
    steps=20,
    learning_rate=0.1,
    clip=1e-3,  # so small beside the target's gradient that it is always clipped
    noise=5.0,
)


def follows(sample: np.ndarray, mean: float, deviation: float) -> bool:
    return scipy.stats.kstest((sample - mean) / deviation, "norm").pvalue > FLAKE


@pytest.mark.parametrize(("steps", "noise"), [(1, 0.5), (20, 5.0), (7, 1.0)])
def test_scores_follow_the_law_of_a_log_likelihood_ratio(
    steps: int, noise: float, rng: np.random.Generator
) -> None:
    """Of μ-GDP with μ = √steps / noise: N(±μ²/2, μ²) (Dong et al. 2022)."""
    mu = math.sqrt(steps) / noise
    scores = replace(TRAINING, steps=steps, noise=noise).play(400, rng)
    assert follows(scores.inside, mu**2 / 2, mu)
    assert follows(scores.outside, -(mu**2) / 2, mu)


@pytest.mark.parametrize("slip", [0.8, 1.25])
def test_the_law_above_would_see_noise_a_quarter_off(slip: float, rng: np.random.Generator) -> None:
    mu = math.sqrt(20) / 5.0
    scores = replace(TRAINING, noise=5.0 * slip).play(3000, rng)
    assert not (follows(scores.inside, mu**2 / 2, mu) and follows(scores.outside, -(mu**2) / 2, mu))


def test_a_gradient_below_the_clip_tells_less(rng: np.random.Generator) -> None:
    """Under a huge clip the first gradient has norm √(2/3)·20, so μ is that over noise·clip."""
    huge = replace(TRAINING, steps=1, clip=100.0, noise=0.1)
    mu = math.sqrt(2 / 3) * 20 / 10.0
    scores = huge.play(400, rng)
    assert follows(scores.inside, mu**2 / 2, mu)
    assert follows(scores.outside, -(mu**2) / 2, mu)


def clipped_by_differences(
    weights: np.ndarray, x: np.ndarray, y: np.ndarray, clip: float
) -> np.ndarray:
    """One record after another, each gradient by central differences of its loss."""
    total = np.zeros_like(weights)
    for features, label in zip(x, y, strict=True):
        gradient = np.zeros_like(weights)
        for index in np.ndindex(*weights.shape):
            step = np.zeros_like(weights)
            step[index] = 1e-5
            after, before = (
                scipy.special.logsumexp(features @ w) - (features @ w)[label]
                for w in (weights + step, weights - step)
            )
            gradient[index] = (after - before) / 2e-5
        total += gradient * min(1.0, clip / np.linalg.norm(gradient))
    return total


@pytest.mark.parametrize("clip", [0.05, 1.0, 1e3])
def test_gradients_are_clipped_one_by_one_and_summed(clip: float, rng: np.random.Generator) -> None:
    weights = rng.normal(size=(3, 4, 3))
    training = replace(TRAINING, clip=clip)
    summed = training._sum_clipped(weights, training.features, training.labels)
    by_hand = [
        clipped_by_differences(one, training.features, training.labels, clip) for one in weights
    ]
    # central differences at 1e-5 err by about 1e-10 relatively, rounding included 1e-9
    np.testing.assert_allclose(summed, by_hand, rtol=1e-6, atol=1e-7)


def test_no_record_moves_the_sum_by_more_than_the_clip(rng: np.random.Generator) -> None:
    """What the noise is calibrated to, on weights and records of all sizes."""
    weights = rng.normal(size=(20, 4, 3)) * np.geomspace(1e-3, 1e3, 20)[:, None, None]
    for x in rng.normal(size=(20, 4)) * np.geomspace(1e-6, 1e6, 20)[:, None]:
        moved = TRAINING._sum_clipped(weights, x[None, :], np.array([2]))
        assert np.linalg.norm(moved, axis=(1, 2)).max() <= TRAINING.clip * (1 + 1e-12)


def test_a_record_of_zeros_changes_nothing() -> None:
    moved = TRAINING._sum_clipped(np.ones((2, 4, 3)), np.zeros((1, 4)), np.array([0]))
    assert np.all(moved == 0)


def test_training_learns() -> None:
    """With little noise and no tight clip the training set is fitted: it is a real training."""
    training = replace(TRAINING, clip=100.0, noise=1e-6, steps=200, learning_rate=0.5)
    weights = np.zeros((1, 4, 3))
    for _ in range(training.steps):
        weights -= 0.5 / 6 * training._sum_clipped(weights, training.features, training.labels)
    logits = training.features @ weights[0]
    before, after = (
        math.log(3),
        scipy.special.logsumexp(logits, axis=1)
        - np.take_along_axis(logits, training.labels[:, None], axis=1).ravel(),
    )
    assert after.mean() < before / 2


def test_same_rng_same_scores() -> None:
    first, again, other = (
        replace(TRAINING, steps=2).play(300, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first.inside.tolist() == again.inside.tolist()
    assert first.outside.tolist() == again.outside.tolist()
    assert first.inside.tolist() != other.inside.tolist()


@pytest.mark.parametrize("runs", [1, 249, 250, 251, 500])
def test_as_many_scores_as_runs_and_no_two_alike(runs: int, rng: np.random.Generator) -> None:
    """Blocks share no noise, and neither do the two worlds."""
    scores = replace(TRAINING, steps=1).play(runs, rng)
    assert (scores.n_in, scores.n_out) == (runs, runs)
    mu = 1 / 5.0
    noise = np.concatenate([scores.inside - mu**2 / 2, scores.outside + mu**2 / 2])
    assert np.unique(noise.round(12)).size == 2 * runs


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"features": np.ones(6)}, r"features \(n, d\)"),
        ({"features": np.ones((2, 6, 4))}, r"features \(n, d\)"),
        ({"labels": np.zeros(5, int)}, r"labels \(n,\), got \(6, 4\), \(5,\)"),
        ({"labels": np.zeros((6, 1), int)}, r"labels \(n,\)"),
        ({"steps": 0}, "steps ≥ 1"),
        ({"steps": 1.5}, "whole number for steps"),
        ({"noise": 0.0}, "noise > 0"),
        ({"noise": math.nan}, "number for noise"),
        ({"clip": -1.0}, "clip > 0"),
        ({"clip": math.inf}, "clip > 0 and finite"),
        ({"learning_rate": 0.0}, "learning_rate > 0"),
    ],
)
def test_bad_arguments_are_told(wrong: dict, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        replace(TRAINING, **wrong)


@pytest.mark.parametrize("runs", [0, -1, 1.5])
def test_a_wrong_number_of_runs_is_told(runs: int, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidArgument, match="runs"):
        TRAINING.play(runs, rng)
