"""Every view of DP-SGD: rarely above the truth, near it, side by side with the others."""

from typing import Any

import numpy as np
import pytest

from epsilometer.core.record import Record
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    Poisson,
    Sequential,
    Shuffle,
    WithoutReplacement,
    is_displacing,
)
from tests import oracles
from tests.audits.dpsgd.dpsgd_audits import audit, in_order, job_of, network, one, truth_of
from tests.conftest import run_often

UPDATES, MODEL, LOSS = "DP-SGD, all updates seen", "along the canary gradient", "data canary"

# Known truths


@pytest.mark.parametrize(
    "sampler",
    run_often([Shuffle(), Poisson(), Poisson(rate=1.0, steps=5)], [Shuffle()]),
    ids=str,
)
def test_every_view_is_rarely_above_the_truth(sampler: Any, rng: np.random.Generator) -> None:
    truth, audits = truth_of(sampler, 1.5, 5), 25
    views = ("updates", "model", "loss")
    wrong = dict.fromkeys(views, 0)
    for seed in rng.integers(2**32, size=audits).tolist():
        found = audit(
            noise_multiplier=1.5,
            sampler=sampler,
            adversary="worst_case",
            views=views,
            runs=100,
            seed=seed,
            records=20,
            batch_size=4,
            module=network(2),
        )
        for view, each in zip(views, in_order(found, UPDATES, MODEL, LOSS), strict=True):
            wrong[view] += each.bound.epsilon > truth
    for count in wrong.values():
        assert not oracles.too_often(count, audits)


@pytest.mark.parametrize("sampler", [Shuffle(), Poisson(rate=1.0, steps=5)], ids=str)
def test_all_updates_come_near_the_truth(sampler: Any) -> None:
    """2000 runs a side prove no more than ln(2000/3) or so, at a threshold that few pass."""
    truth = truth_of(sampler, 1.5, 5)
    _, found = one(
        noise_multiplier=1.5,
        sampler=sampler,
        adversary="worst_case",
        runs=2000,
        records=20,
        batch_size=4,
        module=network(2),
    )
    assert truth / 4 < found.bound.epsilon < truth


# Single steps


TIGHT = [(0.2, 1.0), (0.5, 1.0), (0.5, 0.7), (1.0, 1.0)]


@pytest.mark.parametrize(
    ("rate", "sigma"),
    [TIGHT[0], *(pytest.param(*TIGHT[i], marks=pytest.mark.slow) for i in (1, 2, 3))],
)
def test_single_steps_of_poisson_sampled_training_are_audited_tightly(
    rate: float, sigma: float
) -> None:
    """1,000 runs of ten real steps, half of them with the canary: within 15 % of the PLD ε."""
    sampler = Poisson(rate=rate, steps=10)
    truth = truth_of(sampler, sigma, 10)
    audited, found = one(
        sampler=sampler,
        noise_multiplier=sigma,
        claim=truth,
        adversary="target_canary",
        views=("steps",),
        runs=500,
        records=100,
        batch_size=int(100 * rate),
        seed=1,
    )
    assert 0.85 * truth < found.bound.epsilon < 1.03 * truth
    assert found.bound.n_in + found.bound.n_out == 10_000
    assert found.bound.method == "poisson_family"
    assert found.bound.adversary.endswith("knows all other records and the batches")
    assert audited.reach == found.reach > 5 * truth
    assert truth < audited.power < 1.25 * truth


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "sigma"), TIGHT)
def test_single_steps_are_rarely_above_the_truth(
    rate: float, sigma: float, rng: np.random.Generator
) -> None:
    sampler, audits = Poisson(rate=rate, steps=10), 60
    truth = truth_of(sampler, sigma, 10)
    shares = np.array(
        [
            one(
                sampler=sampler,
                noise_multiplier=sigma,
                adversary="target_canary",
                views=("steps",),
                runs=60,
                records=20,
                batch_size=int(20 * rate),
                module=network(2),
                seed=seed,
            )[1].bound.epsilon
            / truth
            for seed in rng.integers(2**32, size=audits).tolist()
        ]
    )
    assert not oracles.too_often(int(np.sum(shares > 1)), audits)
    assert shares.mean() > 0.6


def test_the_rate_of_single_steps_is_the_samplers_own() -> None:
    """Not one in the number of steps: 100 of 20 %, say."""
    job = job_of(
        runs=10,
        batch_size=12,
        sampler=Poisson(steps=100),
        adversary="target_canary",
        views=("steps",),
    )
    (view,) = job.runs.programs[0].views
    knobs = view.bound.keywords  # type: ignore[union-attr]
    assert (knobs["sampling_rate"], knobs["steps"]) == (0.2, 100)
    follows = job.plan.parameters["follows"]
    assert (follows["rate"], follows["steps"]) == (0.2, 100)
    sampler = job.runs.programs[0].play.__self__.training.sampler  # type: ignore[attr-defined]
    assert sampler == Poisson(rate=0.2, steps=100)


# Side by side


def test_threat_models_are_side_by_side_and_more_is_seen_in_all_updates() -> None:
    found = audit(
        runs=1500,
        noise_multiplier=0.6,
        adversary="worst_case",
        views=("updates", "model", "loss"),
        canaries=40,
        records=20,
        batch_size=4,
        module=network(2),
    )
    updates, model, loss, many = in_order(found, UPDATES, MODEL, LOSS, "one run with")
    assert updates.bound.epsilon >= model.bound.epsilon
    assert updates.bound.epsilon > 1
    assert [each.attack.n_in for each in (updates, model, loss)] == [1500] * 3
    assert many.attack.n_in + many.attack.n_out == 40
    assert many.bound.method == "one_run"
    assert [each.bound.adjacency for each in found.views] == ["zero_out"] * 4
    assert len({each.subject for each in found.views}) == 4
    assert "final model" in model.bound.adversary
    # All views saw the same runs; the loss and the one run had their own.
    assert updates.units == model.units == loss.units
    assert many.units == 1
    assert found.provenance.units == updates.units + loss.units + 1


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "replace"])
@pytest.mark.parametrize(
    "sampler",
    [
        Shuffle(drop_last=True),
        Poisson(),
        BallsInBins(),
        BatchThenShuffle(drop_last=True),
        Sequential(drop_last=True),
        WithoutReplacement(steps=4),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.in_turn(3)
def test_every_adjacency_of_every_sampler(adjacency: Any, sampler: Any) -> None:
    found = audit(
        runs=4,
        records=23,
        batch_size=4,
        sampler=sampler,
        adjacency=adjacency,
        views=("updates", "model", "loss"),
        epochs=2,
        module=network(2),
    )
    views = in_order(found, UPDATES, MODEL, LOSS)
    assert [each.bound.adjacency for each in views] == [adjacency] * 3
    # What is inserted by place is a pair of neighbours, unless a record less moves all others.
    proved = adjacency != "add_remove" or not is_displacing(sampler)
    assert [each.bound.valid for each in views] == [proved, proved, True]


def test_the_canary_of_the_loss_may_be_given() -> None:
    canary = Record(features=np.ones(64, np.float32), label=3)
    given, own = (audit(views=("loss",), canary=which, runs=4) for which in (canary, None))
    assert given.provenance.shapes == own.provenance.shapes
    assert given.provenance.settings["canary"] == {"supplied": "Record"}
