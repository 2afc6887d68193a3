"""Audits of shuffling: the numbers of a published model, early stops, counting, and coverage."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer import Claim, UntilRefuted, json_schema
from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.audits.shuffling import subject as shuffling
from epsilometer.core import judge
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.findings import SamplerFinding
from epsilometer.core.scores import ScoreCounts
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument
from epsilometer.report.explaining import explain
from epsilometer.sampling.batched_gaussian import BatchedGaussian
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sequential,
    Shuffle,
    WithoutReplacement,
    find_law,
)
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.gaussians import gaussian_epsilon
from tests import oracles
from tests.oracles import too_often

MNLI = {"noise_multiplier": 0.73, "steps": 781, "epochs": 50, "delta": 1e-5}
SMALL = {"noise_multiplier": 1.0, "steps": 10, "delta": 1e-3}
TWO_EPOCHS = {"noise_multiplier": 1.0, "steps": 20, "epochs": 2, "delta": 1e-5}
FLAKE = 1e-6
ASKED = ("claim", "delta", "confidence", "seed", "out", "engine", "until")  # beside the subject


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise that is needed takes half of the time, and most tests do not look at it."""
    monkeypatch.setattr(shuffling, "shuffle_noise", lambda **_: 2.0)
    monkeypatch.setattr(shuffling, "sufficient_noise", lambda **_: 3.0)


def audit_shuffled(**settings: Any) -> em.Audit:
    asked = {name: settings.pop(name) for name in ASKED if name in settings}
    return em.audit(em.ShuffledSGD(**settings), **asked)


def accounted(**settings: Any) -> Claim:
    delta = settings.pop("delta")
    return em.ShuffledSGD(**settings).accounted_claim(delta)


def estimate_of(audit: em.Audit, role: str) -> EpsilonEstimate:
    (found,) = (estimate for estimate in audit.estimates if estimate.role == role)
    return found


def sampling_of(audit: em.Audit) -> SamplerFinding:
    found = audit.one(SamplerFinding)
    assert found is not None
    return found


# --- what is reported, what is true, what is proved
def test_what_poisson_accounting_reports_is_refuted() -> None:
    claim = accounted(**TWO_EPOCHS)
    audit = audit_shuffled(**TWO_EPOCHS, claim=claim, observations=4_000)
    exact, sampling = estimate_of(audit, "lower"), sampling_of(audit)
    assert audit.claim == claim
    assert (claim.adjacency, claim.sampler, claim.accountant) == ("zero_out", "Poisson", "PLD")
    assert claim.epsilon == sampling.accounted_epsilon < exact.low
    assert estimate_of(audit, "reference").epsilon == claim.epsilon
    assert audit.verdict == judge.REFUTED
    assert exact.low <= audit.upper
    assert sampling.needed_noise is not None
    assert sampling.needed_noise > 1.0
    (view,) = audit.views
    valid, best = view.bound, view.also[0]
    assert valid.valid
    assert not best.valid
    assert valid.epsilon < exact.epsilon
    assert audit.epsilon == exact.low


def test_without_a_claim_nothing_is_judged() -> None:
    """What Poisson accounting reports is shown, but nobody claimed it."""
    audit = audit_shuffled(**TWO_EPOCHS, observations=4_000)
    assert audit.verdict == judge.NO_CLAIM
    assert (audit.claim, audit.reach, audit.power) == (None, None, None)
    assert sampling_of(audit).needed_noise is None
    assert sampling_of(audit).accounted_epsilon == accounted(**TWO_EPOCHS).epsilon


def test_a_generous_claim_is_proved(unsearched: None) -> None:
    """Who is told the batches sees ε = 6.7 or so; a claim above that is true."""
    audit = audit_shuffled(**TWO_EPOCHS, claim=50.0, observations=4_000)
    assert audit.verdict == judge.PROVED
    assert audit.upper < 50.0


def test_a_claim_between_what_is_computed_from_below_and_above_stands(unsearched: None) -> None:
    exact = shuffle_epsilon(**TWO_EPOCHS)
    upper = audit_shuffled(**TWO_EPOCHS, observations=4).upper
    between = (exact.high + upper) / 2
    assert exact.high < between < upper
    audit = audit_shuffled(**TWO_EPOCHS, claim=between, observations=4)
    assert audit.verdict == judge.NOT_REFUTED
    assert audit.reach == math.inf
    assert audit.power == between  # every larger ε would have been found by computation
    again = from_json(audit.to_json())
    assert (again.verdict, again.reach, again.upper) == (audit.verdict, math.inf, upper)


def test_computation_alone_may_refute(unsearched: None) -> None:
    """Four trials prove nothing, but the claim is false all the same."""
    audit = audit_shuffled(**TWO_EPOCHS, claim=2.0, observations=4)
    assert audit.bounds[0].epsilon < 2.0 < estimate_of(audit, "lower").low
    assert audit.verdict == judge.REFUTED
    assert from_json(audit.to_json()).verdict == judge.REFUTED
    assert audit.with_claim(Claim(2.5, delta=1e-5)).verdict == judge.REFUTED


# --- the upper bound
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(
    "sampler",
    [Shuffle(), PartialShuffle(8), BatchThenShuffle(), BallsInBins(), Sequential()],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.in_turn(2)
def test_the_upper_bound_is_above_the_exact_epsilon_of_every_sampler(
    sampler: Any, epochs: int
) -> None:
    """It is the ε of the Gaussian mechanism with noise σ/√E, by its definition, rounded up.

    Balls in bins have a smaller one.
    """
    audit = audit_shuffled(
        noise_multiplier=1.3,
        steps=6,
        epochs=epochs,
        sampler=sampler,
        batch_size=4,
        delta=1e-3,
        observations=4,
    )
    upper = estimate_of(audit, "upper")
    assert audit.upper == upper.high
    delta = oracles.gaussian_delta(math.sqrt(epochs) / 1.3, upper.high, digits=30)
    exact = estimate_of(audit, "lower")
    assert exact.low <= upper.high
    if isinstance(sampler, BallsInBins):
        assert upper.method == "random allocation"
        assert upper.high <= exact.high * 1.001
        assert delta > 1e-3
        assert "random allocation" in str(explain(upper)) or "dominates" in str(explain(upper))
        return
    assert 1e-3 * (1 - 1e-8) < delta <= 1e-3
    if isinstance(sampler, Sequential):  # nothing is secret: both are the same
        assert exact.epsilon == pytest.approx(upper.high, rel=1e-6)
    assert "joint convexity" in upper.caveats[0]
    assert f"= {1 / (1.3 / math.sqrt(epochs)):.6g}"[:6] in str(explain(upper))


def test_samplers_that_may_draw_a_record_twice_do_not_count_as_known_batches() -> None:
    training = {"noise_multiplier": 1.0, "steps": 10, "delta": 1e-5}
    assert em.shuffle_upper(**training, sampler=WithoutReplacement()).high == math.inf
    assert em.shuffle_upper(**training, sampler=Poisson()).method == "PLD"


def test_a_record_is_in_one_batch_per_epoch_of_samplers_with_an_upper_bound(
    rng: np.random.Generator,
) -> None:
    every = (Shuffle(), PartialShuffle(5), BatchThenShuffle(), BallsInBins(), Sequential())
    for sampler in every:
        assert find_law(sampler, 6, 4).rate is None
        for _ in range(20):
            drawn = np.concatenate(list(sampler.batches(23, 4, rng=rng)))
            assert np.bincount(drawn, minlength=23).max() == 1


# --- the result
def test_the_result_is_a_result() -> None:
    audit = audit_shuffled(**TWO_EPOCHS, claim=1.0, observations=4_000)
    assert from_json(audit.to_json()) == audit
    jsonschema.validate(json.loads(audit.to_json()), json_schema())
    (evidence,) = audit.evidence
    assert [curve.name for curve in evidence.curves] == ["PLD of Poisson sampling", "exact"]


def keep_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count at thresholds already where a thousand plays are made, and not twenty million."""
    monkeypatch.setattr(shuffling, "_KEPT", 1_000)


def test_many_plays_are_counted_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = audit_shuffled(**TWO_EPOCHS, observations=40_000).views
    keep_few(monkeypatch)
    (counted,) = audit_shuffled(**TWO_EPOCHS, observations=40_000).views
    assert counted.bound.n_in == kept.bound.n_in
    assert counted.evidence.growth == ()
    assert counted.bound.epsilon == pytest.approx(kept.bound.epsilon, abs=0.3)
    assert counted.reach == pytest.approx(kept.reach, abs=0.3)


@pytest.mark.slow
def test_the_game_stops_when_the_claim_has_fallen(tmp_path: Path) -> None:
    setting = {**TWO_EPOCHS, "claim": 2.0, "observations": 40_000, "until": UntilRefuted()}
    audit = audit_shuffled(**setting, out=tmp_path / "run")
    (view,) = audit.views
    assert view.bound.method == "anytime"
    assert view.bound.refutes(2.0)
    assert audit.provenance.used < audit.provenance.units / 2
    assert audit.reach == math.inf
    assert audit.power == 2.0
    assert [estimate.role for estimate in view.estimates] == ["lower", "upper", "reference"]
    assert sampling_of(audit).needed_noise is not None
    # The run is finished, and what it found is read, not computed twice.
    assert em.load(tmp_path / "run" / "result.json") == audit
    assert audit_shuffled(**setting, out=tmp_path / "run") == audit
    assert audit_shuffled(**setting) == audit


def test_same_seed_same_result() -> None:
    first, again, other = (
        audit_shuffled(**TWO_EPOCHS, observations=2_000, seed=seed) for seed in (1, 1, 2)
    )
    assert first.to_json() == again.to_json()
    assert first.bounds != other.bounds


def test_a_claim_for_another_adjacency_is_refused() -> None:
    claim = Claim(1.0, delta=1e-3, adjacency="add_remove")
    with pytest.raises(InvalidArgument, match=r"adjacency='zero_out'.* got one for 'add_remove'"):
        audit_shuffled(noise_multiplier=1.0, steps=10, observations=100, claim=claim)


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


# --- a published model
@pytest.mark.slow
def test_mnli_in_full() -> None:
    audit = audit_shuffled(**MNLI, claim=3.0, observations=4_000)
    sampling = sampling_of(audit)
    # That of dp-accounting, whose cells are wider.
    assert sampling.accounted_epsilon == pytest.approx(2.595, rel=1e-3)
    assert estimate_of(audit, "lower").epsilon == pytest.approx(35.308, rel=1e-4)
    assert sampling.needed_noise == pytest.approx(1.2973, abs=5e-4)
    assert audit.upper == pytest.approx(gaussian_epsilon(0.73 / math.sqrt(50), 1e-5))
    assert sampling.balls_in_bins.epsilon < sampling.accounted_epsilon * 1.1
    assert audit.verdict == judge.REFUTED
    assert audit.bounds[0].epsilon > 3
    assert sampling.published == 0  # is stated for one epoch only


def test_mnli_falls_within_hundreds_of_plays(unsearched: None) -> None:
    """Each play has the loss of 50 epochs, so a few hundred show it: measured 616 to 800."""
    audit = audit_shuffled(**MNLI, claim=3.0, observations=4_000, until=UntilRefuted())
    (bound,) = audit.bounds
    assert audit.verdict == judge.REFUTED
    assert bound.refutes(3.0)
    assert bound.n_in + bound.n_out <= 2_000
    # The fixture's grid has 80 thresholds for a law whose tail is long.
    assert estimate_of(audit, "lower").epsilon == pytest.approx(35.308, rel=5e-3)
    assert sampling_of(audit).accounted_epsilon == pytest.approx(2.595, rel=0.02)


# --- claims at the ends
@pytest.mark.parametrize(("claim", "verdict"), [(0.0, judge.REFUTED), (100.0, judge.PROVED)])
@pytest.mark.in_turn(2)
def test_claims_at_the_ends(claim: float, verdict: str) -> None:
    audit = audit_shuffled(
        noise_multiplier=1.0, steps=10, delta=0.05, claim=claim, observations=400
    )
    needed = sampling_of(audit).needed_noise
    assert audit.verdict == verdict
    assert needed is not None
    assert (needed > 1) == (verdict == judge.REFUTED)


@pytest.mark.slow
def test_a_poisson_epsilon_of_0_is_a_claim_too() -> None:
    """So much noise that sampling hides everything: once a refusal at the very end."""
    setting = {"noise_multiplier": 5.0, "steps": 100, "delta": 0.1}
    claim = accounted(**setting)
    assert claim.epsilon == 0
    audit = audit_shuffled(**setting, claim=claim, observations=400)
    needed = sampling_of(audit).needed_noise
    assert audit.verdict == judge.PROVED  # so much noise that nothing need be hidden
    assert needed is not None
    assert 0 < needed < 5


@pytest.mark.parametrize(
    ("changed", "stated"),
    [({}, True), ({"epochs": 2}, False), ({"sampler": BallsInBins()}, False)],
    ids=str,
)
def test_the_published_bound_is_given_only_for_what_it_states(
    changed: dict, stated: bool, unsearched: None
) -> None:
    audit = audit_shuffled(**SMALL, observations=400, **changed)
    exact, published = estimate_of(audit, "lower"), sampling_of(audit).published
    assert (published > 0) == stated
    assert published <= exact.high
    plain = json.loads(audit.to_json())
    jsonschema.validate(plain, json_schema())
    (view,) = (finding for finding in plain["findings"] if finding["kind"] == "EpsilonFinding")
    estimate = view["estimates"][0]
    assert estimate["method"] == "exact"
    assert estimate["low"] <= estimate["epsilon"] <= estimate["high"]
    assert from_json(audit.to_json()).estimates[0] == exact


def test_samplers_are_played_as_they_are_accounted(unsearched: None) -> None:
    shuffled, bound_together = (
        audit_shuffled(**SMALL, sampler=sampler, batch_size=8, observations=20_000)
        for sampler in (Shuffle(), BatchThenShuffle())
    )
    for audit in (shuffled, bound_together):
        assert audit.bounds[0].epsilon <= estimate_of(audit, "lower").high
    assert estimate_of(bound_together, "lower").low > estimate_of(shuffled, "lower").high
    assert bound_together.bounds[0].epsilon > shuffled.bounds[0].epsilon


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
        {"claim": math.inf},  # every program satisfies it
        {"claim": "3"},
        {"delta": None},
        {"batch_size": 0},
        {"sampler": Poisson()},
        {"sampler": WithoutReplacement()},
        {"observations": 3},
        {"observations": 2**63},
        {"confidence": 1.0},
        {"device": "abacus"},
        {"sampler": PartialShuffle(5)},
    ],
    ids=str,
)
def test_bad_settings_are_refused(changed: dict, unsearched: None) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        audit_shuffled(**{**SMALL, "observations": 100, **changed})


# --- counting
def counted_game(seed: int, exact: EpsilonEstimate) -> shuffling._Game:
    mechanism = BatchedGaussian(sampler=Shuffle(), noise_multiplier=1.0, steps=4, threads=1)
    return shuffling._Game(
        mechanism=mechanism,
        subject="a game",
        claim=Claim(exact.epsilon, delta=1e-3, adjacency="zero_out"),
        delta=1e-3,
        confidence=0.95,
        seed=seed,
        estimates=(exact,),
        curves=(),
        sampling=SamplerFinding(
            sampler="Shuffle",
            accounted_epsilon=1.0,
            needed_noise=None,
            sufficient_noise=None,
            remedies=(),
            balls_in_bins=exact,
            published=0.0,
        ),
    )


def counting_is_wrong(repetitions: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of audits that count at thresholds fixed beforehand, how many bound more than there is."""
    keep_few(monkeypatch)
    seen = []
    counting = BatchedGaussian.count

    def watched(self: BatchedGaussian, *given: object, **named: object) -> ScoreCounts:
        seen.append(counting(self, *given, **named))
        return seen[-1]

    monkeypatch.setattr(BatchedGaussian, "count", watched)
    truth = shuffle_epsilon(noise_multiplier=1.0, steps=4, delta=1e-3)
    wrong = 0
    for seed in range(repetitions):
        result = counted_game(seed, truth).play(2_000)
        assert not result.also[0].valid  # Published() pays nothing for its choice
        assert result.bound.n_in == seen[-1].n_in == 1_000
        wrong += result.bound.epsilon > truth.epsilon
    assert len(seen) == repetitions
    return wrong


def test_counting_is_rarely_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not too_often(counting_is_wrong(40, monkeypatch), 40)


@pytest.mark.slow
def test_counting_is_wrong_no_oftener_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not too_often(counting_is_wrong(600, monkeypatch), 600)
