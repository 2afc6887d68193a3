"""Audits of shuffling: the numbers of a published model, early stops, counting, and coverage."""

import json
import math

import jsonschema
import numpy as np
import pytest
import scipy.stats

from epsilometer import UntilRefuted, audit_shuffling, from_json, json_schema, to_json
from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.audits import shuffling
from epsilometer.audits.shuffling import audit_buffer
from epsilometer.claims import PrivacyClaim
from epsilometer.errors import InvalidArgument
from epsilometer.mechanisms.batched_gaussian import BatchedGaussian
from epsilometer.mechanisms.samplers import BallsInBins, BatchThenShuffle, PartialShuffle, Shuffle
from epsilometer.observations import ScoreCounts
from epsilometer.results import Provenance
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.gaussians import gaussian_epsilon
from tests.oracles import too_often

MNLI = {"noise_multiplier": 0.73, "steps": 781, "epochs": 50, "delta": 1e-5}
SMALL = {"noise_multiplier": 1.0, "steps": 10, "delta": 1e-3}
TWO_EPOCHS = {"noise_multiplier": 1.0, "steps": 20, "epochs": 2, "delta": 1e-5}
FLAKE = 1e-6


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise that is needed takes half of the time, and most tests do not look at it."""
    monkeypatch.setattr(shuffling, "shuffle_noise", lambda **_: 2.0)


# --- what is reported, what is true, what is proved
def test_poisson_is_what_is_reported_unless_said_otherwise(coarse: None) -> None:
    audit = audit_shuffling(**TWO_EPOCHS, observations=4_000)
    assert audit.result.claim is not None
    assert audit.result.claim.epsilon == audit.poisson_epsilon < audit.exact.low
    assert audit.result.verdict == "refuted"
    assert audit.exact.low <= audit.deterministic_epsilon
    assert audit.needed_noise > 1.0
    valid, best = audit.result.bound, audit.result.also[0]
    assert valid.valid
    assert not best.valid
    assert valid.epsilon < audit.exact.epsilon


def test_a_generous_claim_stands(coarse: None) -> None:
    audit = audit_shuffling(**TWO_EPOCHS, claim=50.0, observations=4_000)
    assert audit.result.verdict == "not refuted"


def test_computation_alone_may_refute(coarse: None) -> None:
    """Four plays prove nothing, but the claim is false all the same."""
    audit = audit_shuffling(**TWO_EPOCHS, claim=2.0, observations=4)
    assert audit.result.bound.epsilon < 2.0 < audit.exact.low
    assert audit.result.verdict == "refuted"


def test_the_result_is_a_result(coarse: None) -> None:
    result = audit_shuffling(**TWO_EPOCHS, observations=4_000).result
    assert from_json(to_json(result)) == result
    jsonschema.validate(json.loads(to_json(result)), json_schema())
    assert [curve.name for curve in result.evidence.curves] == ["PLD of Poisson sampling", "exact"]


def test_many_plays_are_counted_not_kept(monkeypatch: pytest.MonkeyPatch, coarse: None) -> None:
    kept = audit_shuffling(**TWO_EPOCHS, observations=40_000).result
    monkeypatch.setattr(shuffling, "_KEPT", 1_000)
    counted = audit_shuffling(**TWO_EPOCHS, observations=40_000).result
    assert counted.bound.n_in == kept.bound.n_in
    assert counted.evidence.growth == ()
    assert counted.bound.epsilon == pytest.approx(kept.bound.epsilon, abs=0.3)


def test_the_game_stops_when_the_claim_has_fallen(coarse: None) -> None:
    audit = audit_shuffling(**TWO_EPOCHS, claim=2.0, observations=40_000, until=UntilRefuted())
    assert audit.result.bound.method == "anytime"
    assert audit.result.bound.refutes(2.0)
    assert audit.result.provenance.used < audit.result.provenance.units / 2
    assert audit.result.estimates == (audit.exact,)


def test_same_seed_same_result(coarse: None) -> None:
    first, again, other = (
        audit_shuffling(**TWO_EPOCHS, observations=2_000, seed=seed).result for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.slow
def test_the_bound_of_the_game_is_wrong_no_oftener_than_it_says(
    rng: np.random.Generator, coarse: None
) -> None:
    truth = shuffle_epsilon(noise_multiplier=1.0, steps=5, delta=1e-3).epsilon
    game = BatchedGaussian(sampler=Shuffle(), noise_multiplier=1.0, steps=5, threads=1)
    audits = 500
    wrong = sum(
        epsilon_lower_bound(game.play(2_000, rng), delta=1e-3).epsilon > truth
        for _ in range(audits)
    )
    assert wrong <= scipy.stats.binom.isf(FLAKE, audits, 0.05)


def test_guessing_the_buffer_finds_it(coarse: None) -> None:
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
def test_guesses_outside_the_epoch_are_told(guesses: list[int], coarse: None) -> None:
    with pytest.raises(InvalidArgument, match="guesses from 1 to 40"):
        audit_buffer(noise_multiplier=1.0, steps=40, delta=1e-5, buffer=4, guesses=guesses, runs=10)


# --- a published model
@pytest.mark.slow
def test_mnli_in_full() -> None:
    audit = audit_shuffling(**MNLI, claim=3.0, observations=4_000)
    assert audit.poisson_epsilon == pytest.approx(2.595, abs=5e-4)
    assert audit.exact.epsilon == pytest.approx(35.308, rel=1e-4)
    assert audit.needed_noise == pytest.approx(1.2973, abs=5e-4)
    assert audit.deterministic_epsilon == pytest.approx(
        gaussian_epsilon(0.73 / math.sqrt(50), 1e-5)
    )
    assert audit.balls_in_bins.epsilon < audit.poisson_epsilon * 1.1
    assert audit.result.verdict == "refuted"
    assert audit.result.bound.epsilon > 3
    assert audit.published == 0  # is stated for one epoch only


def test_mnli_falls_within_hundreds_of_plays(coarse: None, unsearched: None) -> None:
    """Each play has the loss of 50 epochs, so a few hundred show it: measured 616 to 800."""
    audit = audit_shuffling(**MNLI, claim=3.0, observations=4_000, until=UntilRefuted())
    assert audit.result.verdict == "refuted"
    assert audit.result.bound.refutes(3.0)
    assert audit.result.bound.n_in + audit.result.bound.n_out <= 2_000
    # The fixture's grid has 80 thresholds for a law whose tail is long.
    assert audit.exact.epsilon == pytest.approx(35.308, rel=5e-3)
    assert audit.poisson_epsilon == pytest.approx(2.595, rel=0.02)


# --- claims at the ends
@pytest.mark.parametrize(
    ("claim", "verdict"), [(0.0, "refuted"), (100.0, "not refuted"), (math.inf, "not refuted")]
)
def test_claims_at_the_ends(claim: float, verdict: str, coarse: None) -> None:
    audit = audit_shuffling(
        noise_multiplier=1.0, steps=10, delta=0.05, claim=claim, observations=400
    )
    assert audit.result.verdict == verdict
    assert (audit.needed_noise > 1) == (verdict == "refuted")


def test_a_poisson_epsilon_of_0_is_a_claim_too(coarse: None) -> None:
    """So much noise that sampling hides everything: once a refusal at the very end."""
    audit = audit_shuffling(noise_multiplier=5.0, steps=100, delta=0.1, observations=400)
    assert audit.poisson_epsilon == 0
    assert audit.result.verdict == "not refuted"
    assert 0 < audit.needed_noise < 5


@pytest.mark.parametrize(
    ("changed", "stated"),
    [({}, True), ({"epochs": 2}, False), ({"sampler": BallsInBins()}, False)],
    ids=str,
)
def test_the_published_bound_is_given_only_for_what_it_states(
    changed: dict, stated: bool, coarse: None, unsearched: None
) -> None:
    audit = audit_shuffling(**SMALL, observations=400, **changed)
    assert (audit.published > 0) == stated
    assert audit.published <= audit.exact.high
    plain = json.loads(to_json(audit.result))
    jsonschema.validate(plain, json_schema())
    (estimate,) = plain["estimates"]
    assert estimate["method"] == "exact"
    assert estimate["low"] <= estimate["epsilon"] <= estimate["high"]
    assert from_json(to_json(audit.result)).estimates == (audit.exact,)


def test_samplers_are_played_as_they_are_accounted(coarse: None, unsearched: None) -> None:
    shuffled, bound_together = (
        audit_shuffling(**SMALL, sampler=sampler, batch_size=8, observations=20_000)
        for sampler in (Shuffle(), BatchThenShuffle())
    )
    for audit in (shuffled, bound_together):
        assert audit.result.bound.epsilon <= audit.exact.high
    assert bound_together.exact.low > shuffled.exact.high
    assert bound_together.result.bound.epsilon > shuffled.result.bound.epsilon


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_multiplier": 0.0},
        {"steps": 0},
        {"epochs": 0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": 1e-12},
        {"claim": -1.0},
        {"claim": math.nan},
        {"observations": 3},
        {"observations": 2**63},
        {"confidence": 1.0},
        {"device": "abacus"},
        {"sampler": PartialShuffle(5)},
    ],
    ids=str,
)
def test_bad_settings_are_refused(changed: dict, coarse: None, unsearched: None) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        audit_shuffling(**{**SMALL, "observations": 100, **changed})


# --- counting
def counted_game(seed: int, exact: float) -> shuffling._Game:
    mechanism = BatchedGaussian(sampler=Shuffle(), noise_multiplier=1.0, steps=4, threads=1)
    estimate = shuffle_epsilon(noise_multiplier=1.0, steps=4, delta=1e-3)
    return shuffling._Game(
        mechanism=mechanism,
        claim=PrivacyClaim(epsilon=exact, delta=1e-3, adjacency="zero_out"),
        confidence=0.95,
        seed=seed,
        exact=estimate,
        curves=(),
        provenance=Provenance(command="test", versions={}),
    )


def counting_is_wrong(repetitions: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of audits that count at thresholds fixed beforehand, how many bound more than there is."""
    monkeypatch.setattr(shuffling, "_KEPT", 100)
    seen = []
    counting = BatchedGaussian.count

    def watched(self: BatchedGaussian, *given: object, **named: object) -> ScoreCounts:
        seen.append(counting(self, *given, **named))
        return seen[-1]

    monkeypatch.setattr(BatchedGaussian, "count", watched)
    truth = shuffle_epsilon(noise_multiplier=1.0, steps=4, delta=1e-3).epsilon
    wrong = 0
    for seed in range(repetitions):
        result = counted_game(seed, truth).played(2_000)
        assert not result.also[0].valid  # Best() pays nothing for its choice
        assert result.bound.n_in == seen[-1].n_in == 1_000
        wrong += result.bound.epsilon > truth
    assert len(seen) == repetitions
    return wrong


def test_counting_is_rarely_wrong(coarse: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not too_often(counting_is_wrong(40, monkeypatch), 40)


@pytest.mark.slow
def test_counting_is_wrong_no_oftener_than_it_says(
    coarse: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not too_often(counting_is_wrong(600, monkeypatch), 600)


# --- the buffer
def buffer_is_wrong(repetitions: int) -> int:
    truth = shuffle_epsilon(
        noise_multiplier=1.0, steps=20, delta=1e-3, sampler=PartialShuffle(5), batch_size=1
    ).epsilon
    setting = {"noise_multiplier": 1.0, "steps": 20, "delta": 1e-3, "buffer": 5, "runs": 1_000}
    return sum(
        audit_buffer(**setting, guesses=[1, 2, 5, 10, 20], seed=seed)[0].epsilon > truth
        for seed in range(repetitions)
    )


def test_guesses_of_the_buffer_are_paid_for(coarse: None) -> None:
    assert not too_often(buffer_is_wrong(40), 40)


@pytest.mark.slow
def test_guesses_of_the_buffer_are_wrong_no_oftener_than_they_say(coarse: None) -> None:
    assert not too_often(buffer_is_wrong(500), 500)


def test_smaller_buffers_leak_more_and_are_guessed() -> None:
    """The direction of the paper: partial shuffling leaks more than full."""
    found = [
        audit_buffer(
            noise_multiplier=1.0,
            steps=64,
            delta=1e-3,
            buffer=buffer,
            guesses=[1, 8, 64],
            runs=10_000,
        )
        for buffer in (1, 8, 64)
    ]
    assert [guess for _, guess in found] == [1, 8, 64]
    assert found[0][0].epsilon > found[1][0].epsilon > found[2][0].epsilon
    assert all(bound.valid and bound.confidence == 0.95 for bound, _ in found)


def test_one_guess_costs_nothing_and_more_cost_little() -> None:
    setting = {"noise_multiplier": 1.0, "steps": 8, "delta": 1e-3, "buffer": 8, "runs": 20_000}
    alone, _ = audit_buffer(**setting, guesses=[8])
    among, _ = audit_buffer(**setting, guesses=[8, 8, 8, 8])
    assert among.epsilon < alone.epsilon < among.epsilon + 0.3
