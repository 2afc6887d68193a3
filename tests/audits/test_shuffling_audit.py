"""The audit of shuffling says what was reported, what is true, and what was proved."""

import json

import jsonschema
import numpy as np
import pytest
import scipy.stats

from epsilometer import UntilRefuted, audit_shuffling, from_json, json_schema, to_json
from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.audits import shuffling
from epsilometer.audits.shuffling import audit_buffer
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.batched_gaussian import BatchedGaussian
from epsilometer.mechanisms.samplers import PartialShuffle, Shuffle
from epsilometer.stats.estimators import epsilon_lower_bound

pytestmark = pytest.mark.usefixtures("coarse")
FLAKE = 1e-6
SMALL = {"noise_multiplier": 1.0, "steps": 20, "epochs": 2, "delta": 1e-5}


def test_poisson_is_what_is_reported_unless_said_otherwise() -> None:
    audit = audit_shuffling(**SMALL, observations=4_000)
    assert audit.result.claim is not None
    assert audit.result.claim.epsilon == audit.poisson_epsilon < audit.exact.low
    assert audit.result.verdict == "refuted"
    assert audit.exact.low <= audit.deterministic_epsilon
    assert audit.needed_noise > 1.0
    valid, best = audit.result.bound, audit.result.also[0]
    assert valid.valid
    assert not best.valid
    assert valid.epsilon < audit.exact.epsilon


def test_a_generous_claim_stands() -> None:
    audit = audit_shuffling(**SMALL, claim=50.0, observations=4_000)
    assert audit.result.verdict == "not refuted"


def test_computation_alone_may_refute() -> None:
    """Four plays prove nothing, but the claim is false all the same."""
    audit = audit_shuffling(**SMALL, claim=2.0, observations=4)
    assert audit.result.bound.epsilon < 2.0 < audit.exact.low
    assert audit.result.verdict == "refuted"


def test_the_result_is_a_result() -> None:
    result = audit_shuffling(**SMALL, observations=4_000).result
    assert from_json(to_json(result)) == result
    jsonschema.validate(json.loads(to_json(result)), json_schema())
    assert [curve.name for curve in result.evidence.curves] == ["PLD of Poisson sampling", "exact"]


def test_many_plays_are_counted_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = audit_shuffling(**SMALL, observations=40_000).result
    monkeypatch.setattr(shuffling, "_KEPT", 1_000)
    counted = audit_shuffling(**SMALL, observations=40_000).result
    assert counted.bound.n_in == kept.bound.n_in
    assert counted.evidence.growth == ()
    assert counted.bound.epsilon == pytest.approx(kept.bound.epsilon, abs=0.3)


def test_the_game_stops_when_the_claim_has_fallen() -> None:
    audit = audit_shuffling(**SMALL, claim=2.0, observations=40_000, until=UntilRefuted())
    assert audit.result.bound.method == "anytime"
    assert audit.result.bound.refutes(2.0)
    assert audit.result.provenance.used < audit.result.provenance.units / 2
    assert audit.result.estimates == (audit.exact,)


def test_same_seed_same_result() -> None:
    first, again, other = (
        audit_shuffling(**SMALL, observations=2_000, seed=seed).result for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.slow
def test_the_bound_of_the_game_is_wrong_no_oftener_than_it_says(rng: np.random.Generator) -> None:
    truth = shuffle_epsilon(noise_multiplier=1.0, steps=5, delta=1e-3).epsilon
    game = BatchedGaussian(sampler=Shuffle(), noise_multiplier=1.0, steps=5, threads=1)
    audits = 500
    wrong = sum(
        epsilon_lower_bound(game.play(2_000, rng), delta=1e-3).epsilon > truth
        for _ in range(audits)
    )
    assert wrong <= scipy.stats.binom.isf(FLAKE, audits, 0.05)


def test_guessing_the_buffer_finds_it() -> None:
    bound, guess = audit_buffer(
        noise_multiplier=1.5,
        steps=40,
        delta=1e-3,
        buffer=4,
        guesses=[1, 4, 10, 40],
        runs=20_000,
    )
    full, _ = audit_buffer(
        noise_multiplier=1.5, steps=40, delta=1e-3, buffer=40, guesses=[40], runs=20_000
    )
    truth = shuffle_epsilon(
        noise_multiplier=1.5, steps=40, delta=1e-3, sampler=PartialShuffle(4), batch_size=1
    )
    assert guess == 4
    assert full.epsilon < bound.epsilon < truth.epsilon
    assert bound.confidence == 0.95


@pytest.mark.parametrize("guesses", [[], [0], [41]])
def test_guesses_outside_the_epoch_are_told(guesses: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="guesses from 1 to 40"):
        audit_buffer(noise_multiplier=1.0, steps=40, delta=1e-5, buffer=4, guesses=guesses, runs=10)
