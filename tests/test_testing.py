"""Audits inside tests: false alarms counted, classic mistakes caught, nothing passed in vain."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

import epsilometer as em
from epsilometer import Claim, gaussian_epsilon
from epsilometer.core.record import Record
from epsilometer.errors import InvalidArgument
from epsilometer.stats.sequential import ConfidenceSequence
from epsilometer.testing import CONFIDENCE, ClaimRefuted, assert_private, reach, summary

FLAKE = 1e-6
CLAIM = Claim(epsilon=gaussian_epsilon(1.0, 0.1), delta=0.1)  # of a noise of 1
ANSWER = Claim(epsilon=0.5, delta=0.0)


def noisy(noise: float) -> Callable[[float, int], float]:
    return lambda total, seed: total + np.random.default_rng(seed).normal(0, noise)


def honest(present: bool, seed: int) -> float:
    """Answer at random: satisfies ε = 0.5 exactly, at every threshold and in both directions."""
    share = scipy.special.expit(ANSWER.epsilon if present else -ANSWER.epsilon)
    return float(np.random.default_rng(seed).random() < share)


def alarms(uses: int) -> int:
    """Count how often a true claim is refuted, at a confidence of 0.8."""
    refuted = 0
    for seed in range(uses):
        try:
            assert_private(
                ANSWER,
                honest,
                with_record=True,
                without_record=False,
                runs=60,
                confidence=0.8,
                seed=seed,
            )
        except ClaimRefuted:
            refuted += 1
    return refuted


@pytest.mark.parametrize("uses", [20, pytest.param(2_000, marks=pytest.mark.slow)])
def test_true_claims_are_refuted_no_oftener_than_it_says(uses: int) -> None:
    assert alarms(uses) <= scipy.stats.binom.isf(FLAKE, uses, 0.2)


@pytest.mark.slow
def test_looking_again_and_again_at_an_ordinary_test_would_be_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The classic mistake, planted: a test for a fixed number of runs, looked at after each."""

    def peek(self: Any, epsilon: float, top: float) -> Any:
        pairs = np.maximum(self.pairs - self._skipped, 1)
        caught, false = self._inside / pairs, self._outside / pairs
        gap = caught - math.exp(min(float(epsilon), 20.0)) * false - self.delta
        spread = np.sqrt(caught * (1 - caught) + math.exp(2 * ANSWER.epsilon) * false * (1 - false))
        z = scipy.special.ndtri(self.confidence)
        return float((z * spread / np.sqrt(pairs) - gap).min(initial=1.0))

    monkeypatch.setattr(ConfidenceSequence, "_lack", peek)
    assert alarms(60) > scipy.stats.binom.isf(FLAKE, 60, 0.2)


def test_half_of_the_noise_is_noticed_and_stops_early() -> None:
    with pytest.raises(ClaimRefuted, match=r"refuted after [\d,]+ of 2,000 pairs") as caught:
        assert_private(CLAIM, noisy(0.5), with_record=1.0, without_record=0.0, runs=2_000)
    found = caught.value.audit
    assert found.bounds[0].refutes(CLAIM.epsilon)
    assert found.provenance.used < found.provenance.units
    assert isinstance(caught.value, AssertionError)


def test_forgotten_clipping_is_noticed() -> None:
    def mean(data: tuple[Any, Any], seed: int) -> float:
        features, _ = data
        return float(features.sum() + np.random.default_rng(seed).normal())

    def clipped(data: tuple[Any, Any], seed: int) -> float:
        features, labels = data
        return mean((np.clip(features, -1, 1), labels), seed)

    call: dict[str, Any] = {
        "data": (np.zeros((4, 1)), [0, 1, 0, 1]),
        "canary": Record([5.0], label=0),
        "runs": 300,
    }
    assert assert_private(CLAIM, clipped, **call).verdict == "not refuted"
    with pytest.raises(ClaimRefuted):
        assert_private(CLAIM, mean, **call)


def test_it_is_the_audit_of_training_that_stops_early() -> None:
    """So that what a test found is shown by a report, and resumed, as any other run."""
    call: dict[str, Any] = {"with_record": 1.0, "without_record": 0.0, "runs": 200}
    train = noisy(1.0)
    found = assert_private(CLAIM, train, **call, seed=3)
    assert found == em.audit(
        em.TrainFunction(train, **call),
        CLAIM,
        confidence=CONFIDENCE,
        seed=3,
        until=em.UntilRefuted(),
        engine=em.InProcess(),
    )
    assert found == assert_private(CLAIM, train, **call, seed=3)


def test_a_number_with_delta_is_a_claim_that_is_judged_or_fails() -> None:
    """Never passes where the claim cannot be judged: one at the very reach of the runs is not."""
    call: dict[str, Any] = {"with_record": 1.0, "without_record": 0.0, "runs": 120}
    found = assert_private(CLAIM.epsilon, noisy(1.0), delta=CLAIM.delta, **call)
    assert found == assert_private(CLAIM, noisy(1.0), **call)
    with pytest.raises(ClaimRefuted) as caught:
        assert_private(CLAIM.epsilon, noisy(0.01), delta=CLAIM.delta, **call)
    assert caught.value.audit.claim == CLAIM
    assert caught.value.audit.verdict == "refuted"

    most = reach(CLAIM, runs=120).reach
    judged = em.audit(
        em.TrainFunction(noisy(1.0), **call),
        most,
        delta=CLAIM.delta,
        confidence=CONFIDENCE,
        until=em.UntilRefuted(),
        engine=em.InProcess(),
    )
    assert judged.verdict == "cannot judge"
    assert "was claimed; cannot judge: 120 pairs of runs" in summary(judged)
    for noise in (1.0, 0.01):
        with pytest.raises(InvalidArgument, match="Expected runs that can refute"):
            assert_private(most, noisy(noise), delta=CLAIM.delta, **call)
    below = assert_private(math.nextafter(most, 0), noisy(1.0), delta=CLAIM.delta, **call)
    assert below.verdict == "not refuted"


def test_models_are_scored() -> None:
    with pytest.raises(ClaimRefuted):
        assert_private(
            CLAIM,
            lambda total, seed: {"weight": noisy(0.1)(total, seed)},
            with_record=1.0,
            without_record=0.0,
            score=lambda model, record: model["weight"],
            runs=300,
        )


def test_what_train_raises_is_raised() -> None:
    error = RuntimeError("out of luck")

    def train(total: float, seed: int) -> float:
        raise error

    with pytest.raises(RuntimeError) as caught:
        assert_private(CLAIM, train, with_record=1.0, without_record=0.0)
    assert caught.value is error


@pytest.mark.parametrize("score", [math.nan, None, "high"])
def test_what_is_no_score_never_passes(score: Any) -> None:
    with pytest.raises(InvalidArgument, match="score"):
        assert_private(CLAIM, lambda *_: score, with_record=1.0, without_record=0.0)


@pytest.mark.parametrize(("sign", "why"), [(0.0, "are equal"), (-10.0, "worse than guessing")])
def test_scores_that_could_not_refute_never_pass(sign: float, why: str) -> None:
    """A score that is always the same, and a loss: lower where the record was in."""
    with pytest.raises(InvalidArgument, match=why):
        assert_private(CLAIM, lambda data, _: sign * data, with_record=1.0, without_record=0.0)


def test_datasets_that_are_the_same_never_pass() -> None:
    records = [1.0, 2.0, 5.0]
    without = records
    without.remove(5.0)
    both = [(records, without), (np.ones(3), np.ones(3)), ([np.ones(3), 1], [np.ones(3), 1])]
    for one, other in both:
        with pytest.raises(InvalidArgument, match="that are the same"):
            assert_private(CLAIM, noisy(1.0), with_record=one, without_record=other)


def test_what_could_not_fail_is_refused_with_how_many_runs_could() -> None:
    claim = Claim(epsilon=5.0, delta=1e-5)
    with pytest.raises(InvalidArgument, match=r"Give runs=(\d+)") as caught:
        assert_private(claim, noisy(1.0), with_record=1.0, without_record=0.0)
    runs = int(str(caught.value).partition("runs=")[2].partition("Give runs=")[2].split(";")[0])
    assert reach(claim, runs=runs).reach > claim.epsilon >= reach(claim, runs=runs // 2).reach


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"claim": 1.0}, r"Expected delta with claim=1\.0"),
        ({"claim": None}, "Expected a claim to refute"),
        ({"claim": "1.0"}, "a number, a Claim or None, got str"),
        ({"claim": math.inf, "delta": 0.1}, "finite epsilon"),
        ({"delta": 0.2}, "Expected delta to be the claim's 0.1"),
        ({"claim": Claim(epsilon=60.0, delta=0.1)}, "Too many would be needed"),
        ({"runs": 1}, "runs"),
        ({"confidence": 1.0}, "confidence"),
        ({"train": 7}, "train"),
        ({"with_record": None}, "with_record"),
    ],
)
def test_wrong_calls_are_told(changed: dict[str, Any], said: str) -> None:
    call = {
        "claim": CLAIM,
        "train": noisy(1.0),
        "with_record": 1.0,
        "without_record": 0.0,
        "runs": 300,
        **changed,
    }
    with pytest.raises(InvalidArgument, match=said):
        assert_private(call.pop("claim"), call.pop("train"), **call)


def test_an_attack_that_never_errs_proves_what_reach_says_and_no_more() -> None:
    can = reach(CLAIM, runs=200)
    with pytest.raises(ClaimRefuted) as caught:
        assert_private(
            CLAIM,
            lambda present, seed: present + 1e-3 * np.random.default_rng(seed).random(),
            with_record=1.0,
            without_record=0.0,
            runs=200,
        )
    assert caught.value.audit.epsilon <= can.reach


@pytest.mark.parametrize("delta", [0.1, pytest.param(0.0, marks=pytest.mark.slow)])
def test_mechanisms_within_power_are_noticed_4_times_in_5(
    delta: float, rng: np.random.Generator
) -> None:
    """By bets alone, on the law that ``reach`` speaks of."""
    claim = Claim(epsilon=1.0, delta=delta)
    can = reach(claim, runs=400)
    draw = rng.normal if delta else rng.laplace
    shift = can.power if delta == 0 else _shift(can.power, delta)
    noticed = 0
    for _ in range(60):
        sequence = ConfidenceSequence(delta=delta, confidence=CONFIDENCE)
        for _ in range(40):
            pairs = _scores(draw, shift, 10)
            sequence.update(pairs.inside, pairs.outside)
            sequence.lower_bound()
        noticed += sequence.refuted(claim)
    assert noticed >= scipy.stats.binom.ppf(FLAKE, 60, 0.8)


def _shift(epsilon: float, delta: float) -> float:
    return float(scipy.optimize.brentq(lambda s: gaussian_epsilon(1 / s, delta) - epsilon, 0.01, 9))


def _scores(draw: Any, shift: float, count: int) -> Any:
    return em.Scores(inside=shift + draw(size=count), outside=draw(size=count))


def test_more_runs_reach_further_and_more_confidence_less_far() -> None:
    few, many = reach(CLAIM, runs=200), reach(CLAIM, runs=2_000)
    assert many.reach > few.reach
    assert many.power < few.power
    assert many.noise > few.noise
    assert reach(CLAIM, runs=200, confidence=0.95).power < few.power


def test_a_pass_says_what_it_could_have_noticed() -> None:
    found = assert_private(CLAIM, noisy(1.0), with_record=1.0, without_record=0.0, runs=400)
    can = reach(CLAIM, runs=400)
    assert f"Gaussian noise of {can.noise:.0%} of what the claim needs." in summary(found)
    assert "was claimed; not refuted: 400 pairs of runs prove ε ≥ " in summary(found)
    blind = Claim(epsilon=0.999 * reach(CLAIM, runs=60).reach, delta=0.1)
    little = assert_private(blind, noisy(1.0), with_record=1.0, without_record=0.0, runs=60)
    assert "this one less than 4 times in 5 at any true ε." in summary(little)
    assert "of what the claim needs" not in summary(little)
