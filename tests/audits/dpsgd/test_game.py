"""Real trainings with the target and without it: the laws of what the adversary sees."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from epsilometer.audits.dpsgd.canaries import TargetCanary, random_direction
from epsilometer.audits.dpsgd.game import GradientGame, RecordGame, score_lost
from epsilometer.core.record import Record
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.sampling.batched_gaussian import BatchedGaussian
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sequential,
    Shuffle,
    WithoutReplacement,
    check_same_steps,
    is_displacing,
)
from epsilometer.stats.likelihood_ratio import one_of
from tests import oracles

RECORDS, B, SIGMA = 24, 4, 0.9
FEATURES = np.random.default_rng(7).normal(size=(RECORDS, 10)).astype(np.float32)
LABELS = np.arange(RECORDS) % 2


def module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2))


def training_by(sampler: Any, **changed: Any) -> EnsembleDPSGD:
    plain = {
        "runs": 200,
        "sampler": sampler,
        "noise_multiplier": SIGMA,
        "learning_rate": 0.1,
        "batch_size": B,
    }
    return EnsembleDPSGD(module(), cross_entropy, **{**plain, **changed})


def game_of(adversary: Any, sampler: Any, *, views: Any = ("updates",), **changed: Any) -> Any:
    canary = {key: changed.pop(key) for key in ("adjacency", "displaces") if key in changed}
    training = training_by(sampler, **changed)
    return GradientGame(
        training=training,
        features=FEATURES,
        labels=LABELS,
        canary=TargetCanary(
            adversary=adversary,
            direction=random_direction(training.size, rng=np.random.default_rng(1)),
            batch_size=B,
            **{"displaces": is_displacing(sampler), **canary},
        ),
        views=views,
    )


def alike(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(scipy.stats.ks_2samp(found, expected).pvalue > oracles.FLAKE)


# Laws


@pytest.mark.parametrize(
    ("adversary", "sampler"),
    [
        ("worst_case", Shuffle()),
        ("worst_case", Poisson()),
        ("worst_case", BallsInBins()),
        ("batch_then_shuffle", BatchThenShuffle()),
        *(
            pytest.param("worst_case", sampler, marks=pytest.mark.slow)
            for sampler in (PartialShuffle(2 * B), Sequential(), WithoutReplacement())
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.in_turn(2)
def test_scores_have_the_law_of_the_batched_gaussian(
    adversary: Any, sampler: Any, rng: np.random.Generator
) -> None:
    """For every sampler; where the target comes beside others, the law says so too."""
    steps, runs = RECORDS // B, 2000
    game = game_of(adversary, sampler, epochs=2, runs=500)
    seen = game.play(runs, rng)["updates"]
    law = BatchedGaussian(
        sampler=sampler, noise_multiplier=SIGMA, steps=steps, epochs=2, batch_size=B
    )
    expected = law.play(20_000, rng)
    assert alike(seen.inside, expected.inside)
    assert alike(seen.outside, expected.outside)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_without_the_record_or_with_its_opposite_no_batch_stands_out(
    adjacency: Any, rng: np.random.Generator
) -> None:
    """One batch of six has mean 2 with the target, and none has another without it."""
    game = game_of("worst_case", Shuffle(), adjacency=adjacency, runs=500)
    seen = game.play(2000, rng)["updates"]
    noise = rng.normal(0, SIGMA, (2, 20_000, 1, RECORDS // B))
    noise[0, ..., 0] += 2.0
    expected = [one_of(x, sigma=SIGMA, present=2.0, absent=0.0) for x in noise]
    assert alike(seen.inside, expected[0])
    assert alike(seen.outside, expected[1])


@pytest.mark.parametrize(
    ("adversary", "sampler"), [("partially_informed", Shuffle()), ("target_canary", BallsInBins())]
)
def test_other_records_blur_the_law_by_little(
    adversary: Any, sampler: Any, rng: np.random.Generator
) -> None:
    """Their gradients are nearly orthogonal to a random one: quantiles are off by a little."""
    game = game_of(adversary, sampler, runs=500, initial="given", learning_rate=0.01)
    seen = game.play(2000, rng)["updates"]
    law = BatchedGaussian(sampler=sampler, noise_multiplier=SIGMA, steps=RECORDS // B)
    expected = law.play(50_000, rng)
    levels = [0.1, 0.3, 0.5, 0.7, 0.9]
    for found, ideal in ((seen.inside, expected.inside), (seen.outside, expected.outside)):
        spread = ideal.std()
        gaps = np.quantile(found, levels) - np.quantile(ideal, levels)
        assert np.abs(gaps).max() < 0.35 * spread


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "sampler"),
    [("sign", Shuffle()), ("scale", Shuffle()), ("others", Shuffle()), ("beside", Poisson())],
)
def test_planted_mistakes_change_the_law(
    mistake: str, sampler: Any, rng: np.random.Generator
) -> None:
    """The laws above notice: −ĝ for ĝ, ĝ over B, −ĝ in the target's batch too, or in others' only
    where the target comes beside them."""

    class Mistaken(TargetCanary):
        def insert(self, batch: Any) -> Any:
            found = super().insert(batch)
            change = {
                "sign": -found.amounts,
                "scale": found.amounts / B,
                "others": found.amounts - found.drawn * 1.0,
                "beside": found.amounts + found.drawn * 1.0,
            }
            return found._replace(amounts=change[mistake])

    game = game_of("worst_case", sampler, runs=500)
    wrong = Mistaken(**vars(game.canary))
    seen = replace(game, canary=wrong).play(2000, rng)["updates"]
    law = BatchedGaussian(sampler=sampler, noise_multiplier=SIGMA, steps=RECORDS // B)
    expected = law.play(20_000, rng)
    assert not (alike(seen.inside, expected.inside) and alike(seen.outside, expected.outside))


def test_the_targets_own_gradient_never_counts(rng: np.random.Generator) -> None:
    """Its features may be anything: neither updates nor models change, with it or without it."""
    found = []
    for target in (FEATURES[0], 1e3 * FEATURES[1]):
        features = FEATURES.copy()
        features[0] = target
        for adversary in ("target_canary", "partially_informed"):
            game = game_of(adversary, Shuffle(), views=("updates", "model"), runs=10)
            played = replace(game, features=features).play(10, np.random.default_rng(3))
            found.append((played["updates"], played["model"]))
    for one, other in zip(found[:2], found[2:], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.inside, b.inside)
            np.testing.assert_array_equal(a.outside, b.outside)


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "replace"])
def test_the_final_model_went_along_the_canary(adjacency: str, rng: np.random.Generator) -> None:
    """By SGD it moves by rate/B times the sum of what was inserted, and by noise."""
    rate, runs = 0.1, 1500
    game = game_of(
        "worst_case",
        Poisson(rate=1.0, steps=3),
        views=("model",),
        adjacency=adjacency,
        learning_rate=rate,
        runs=500,
    )
    seen = game.play(runs, rng)["model"]
    present, absent, _ = game.canary.means
    spread = rate / B * SIGMA * np.sqrt(3)
    for scores, mean in ((seen.inside, present), (seen.outside, absent)):
        error = scores.mean() - 3 * mean * rate / B
        assert abs(error) < scipy.stats.norm.isf(oracles.FLAKE) * spread / np.sqrt(runs)
        assert scores.std() == pytest.approx(spread, rel=0.12)  # six errors of a spread


# Single steps


@pytest.mark.parametrize(
    ("rate", "views", "with_it"),
    [(0.3, ("steps",), 2), (0.7, ("steps",), 1), (0.3, ("steps", "model"), 1)],
)
def test_single_steps_are_noise_and_the_target_exactly(
    rate: float, views: Any, with_it: int, rng: np.random.Generator
) -> None:
    """Less what others add: N(1, σ²) where it was drawn, N(0, σ²) elsewhere, in both worlds.

    Alone, and at rates of a half or less, they need no run without the target."""
    runs, steps = 300, 8
    game = game_of("target_canary", Poisson(rate=rate, steps=steps), views=views, learning_rate=1.0)
    game = replace(game, labels=np.zeros_like(LABELS))  # whose gradients all go one way
    inside, outside = game.play(runs, rng)["steps"]
    assert inside.size + outside.size == 2 * runs * steps
    expected = with_it * runs * steps * rate
    assert abs(inside.size - expected) < 5 * np.sqrt(expected)
    assert scipy.stats.kstest(inside, "norm", args=(1, SIGMA)).pvalue > oracles.FLAKE
    assert scipy.stats.kstest(outside, "norm", args=(0, SIGMA)).pvalue > oracles.FLAKE


def test_a_block_may_have_no_step_with_the_target(rng: np.random.Generator) -> None:
    game = game_of("target_canary", Poisson(rate=0.01, steps=2), views=("steps",), runs=1)
    sizes = [game.play(1, rng)["steps"].inside.size for _ in range(5)]
    assert 0 in sizes


# Runs that diverge


def test_runs_that_diverge_speak_against_the_attack_in_every_view(
    rng: np.random.Generator,
) -> None:
    game = game_of(
        "target_canary",
        Poisson(rate=0.5, steps=6),
        views=("updates", "model", "steps"),
        learning_rate=3e38,
        runs=20,
    )
    played = game.play(20, rng)
    updates, model, steps = (played[name] for name in ("updates", "model", "steps"))
    np.testing.assert_array_equal(updates.inside == -np.inf, model.inside == -np.inf)
    np.testing.assert_array_equal(updates.outside == np.inf, model.outside == np.inf)
    for seen in (updates, model, steps):
        assert np.sum(seen.inside == -np.inf) + np.sum(seen.outside == np.inf) > 0
        assert not np.isnan(np.concatenate(seen)).any()
        assert np.inf not in seen.inside
        assert -np.inf not in seen.outside


def test_lost_scores_take_the_side_against() -> None:
    scores, lost = np.array([1.0, np.nan, 3.0]), np.array([False, True, False])
    assert score_lost(scores, lost, present=True).tolist() == [1.0, -np.inf, 3.0]
    assert score_lost(scores, lost, present=False).tolist() == [1.0, np.inf, 3.0]


# Records with their own gradients


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "replace"])
def test_a_record_that_trains_is_known_by_its_loss(
    adjacency: Any, rng: np.random.Generator
) -> None:
    record = Record(features=5 * FEATURES[0], label=1 - int(LABELS[0]))
    game = RecordGame(
        training=training_by(Poisson(rate=1.0, steps=20), noise_multiplier=0.01, learning_rate=0.5),
        features=FEATURES,
        labels=LABELS,
        record=record,
        adjacency=adjacency,
    )
    inside, outside = game.play(40, rng)["loss"]
    assert inside.shape == outside.shape == (40,)
    assert np.mean(inside[:, None] > outside) > 0.95


def test_without_its_gradient_a_record_leaves_no_trace(rng: np.random.Generator) -> None:
    """Zero-out and add/remove: what the absent record was makes no difference."""
    for adjacency in ("zero_out", "add_remove"):
        scores = []
        for features in (FEATURES, np.vstack([1e3 + FEATURES[:1], FEATURES[1:]])):
            game = RecordGame(
                training=training_by(Shuffle(drop_last=True), runs=10),
                features=features,
                labels=LABELS,
                record=Record(features=FEATURES[1], label=0),
                adjacency=adjacency,  # type: ignore[arg-type]
            )
            scores.append(game.play(10, np.random.default_rng(5))["loss"].outside)
        np.testing.assert_array_equal(*scores)


# Groups, and what cannot be told


def test_the_same_generator_gives_the_same_scores_and_groups_are_independent() -> None:
    game = game_of("worst_case", Shuffle(), views=("updates", "model"), runs=7)
    one, again, other = (game.play(20, np.random.default_rng(s)) for s in (0, 0, 1))
    for name in ("updates", "model"):
        np.testing.assert_array_equal(one[name].inside, again[name].inside)
        assert one[name].inside.shape == one[name].outside.shape == (20,)
        everything = np.concatenate([*one[name], *other[name]])
        assert np.unique(everything).size == everything.size


def test_the_number_of_batches_may_not_give_the_target_away() -> None:
    check_same_steps(Shuffle(), batch_size=4, records=24)  # 6 batches, and 6 of 23
    with pytest.raises(InvalidArgument, match="got 7 with and 6 without"):
        check_same_steps(Shuffle(), batch_size=4, records=25)
    check_same_steps(Poisson(rate=0.1, steps=7), batch_size=4, records=25)


def test_a_canary_that_would_refute_the_right_accountant_is_refused() -> None:
    for sampler in (Poisson(), BallsInBins()):
        with pytest.raises(InvalidArgument, match="displaces=False"):
            game_of("worst_case", sampler, displaces=True)
