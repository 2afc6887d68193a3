"""One run with many canaries, played in plain numbers: how often it errs, and what it finds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer import Claim
from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.audits.dpsgd import canary_run
from epsilometer.audits.dpsgd.canary_run import (
    CanaryRun,
    CanarySteps,
    claim_of_steps,
    known_views,
    measure_gradients,
    measure_steps,
    measure_weights,
)
from epsilometer.core import judge
from epsilometer.core.findings import EpsilonFinding
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import gdp_epsilon
from tests.conftest import run_often

FLAKE = 1e-6
DELTA = 1e-5


def played(
    rng: np.random.Generator,
    *,
    canaries: int = 100,
    steps: int = 10,
    chance: float = 0.1,
    noise: float = 1.0,
    factor: float = 1.0,
) -> CanaryRun:
    """DP-SGD whose canaries are orthogonal, and whose noise is ``factor`` times what it says."""
    included = rng.random(canaries) < 0.5
    took = rng.random((steps, canaries)) < chance
    seen = (took & included) + rng.normal(0, noise * factor, took.shape)
    return CanaryRun(
        included=included,
        steps=CanarySteps(
            seen=seen,
            took=took,
            noise=np.full(steps, noise),
            chance=np.full(steps, chance),
            blur=np.zeros(steps),
        ),
        weights=seen.sum(axis=0),
        public_order=False,
        subject="numbers",
        caveats=("Said by the run.",),
        seed=int(rng.integers(2**31)),
    )


def in_epochs(steps: CanarySteps) -> CanarySteps:
    return CanarySteps(**{**vars(steps), "epoch": np.zeros(steps.noise.size, int)})


def claimed(*, noise: float = 1.0, chance: float = 0.1, steps: int = 10) -> Claim:
    epsilon = poisson_epsilon(
        noise_multiplier=noise, sampling_rate=chance, steps=steps, delta=DELTA
    )
    return Claim(epsilon, delta=DELTA)


def blind(run: CanaryRun, claim: Claim | None, **more: Any) -> EpsilonFinding:
    settings = {"delta": DELTA, "confidence": 0.8, "method": "one_run", **more}
    return measure_gradients(run, claim=claim, **settings)


def steps(run: CanaryRun, *, confidence: float) -> tuple[Claim, EpsilonFinding]:
    claim = claim_of_steps(run, delta=DELTA)
    return claim, measure_steps(run, claim=claim, confidence=confidence)


def refuted(claim: Claim, found: EpsilonFinding) -> bool:
    return judge.judge_finding(claim, found) == "refuted"


# Sampling hides the canary nearly entirely here, so that whoever uses the batches against the
# amplified claim is found out.
HIDDEN: dict[str, Any] = {"canaries": 1000, "chance": 0.01, "steps": 100, "noise": 1.0}
AUDITS = 15
FEW = scipy.stats.binom.isf(FLAKE, AUDITS, 0.2)  # false alarms that a right audit may have


@pytest.mark.slow
def test_a_true_claim_is_refuted_no_oftener_than_it_says(rng: np.random.Generator) -> None:
    claim = claimed(chance=0.01, steps=100)
    alarms = _alarms(rng, lambda run: refuted(claim, blind(run, claim)))
    assert alarms <= FEW


@pytest.mark.slow
def test_batches_used_against_an_amplified_claim_are_noticed(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The mistake that the test above is there to find.
    monkeypatch.setattr(canary_run, "blind_views", known_views)
    claim = claimed(chance=0.01, steps=100)
    alarms = _alarms(rng, lambda run: refuted(claim, blind(run, claim)))
    assert alarms > FEW


@pytest.mark.slow
def test_right_noise_is_refuted_no_oftener_than_it_says(rng: np.random.Generator) -> None:
    alarms = _alarms(rng, lambda run: refuted(*steps(run, confidence=0.8)))
    assert alarms <= FEW


def _alarms(rng: np.random.Generator, refutes: Callable[[CanaryRun], bool]) -> int:
    return sum(refutes(played(rng, **HIDDEN)) for _ in range(AUDITS))


def test_half_the_noise_is_refuted_by_who_knows_the_batches(rng: np.random.Generator) -> None:
    halved: dict[str, Any] = {"noise": 0.8, "chance": 1.0, "steps": 1, "factor": 0.5}
    for _ in range(4):  # each is refuted with probability 0.9 or so; none of four, with 1e-4
        claim, result = steps(played(rng, canaries=2000, **halved), confidence=0.95)
        assert result.bound.method == "one_run_fdp"
        if refuted(claim, result):
            return
    pytest.fail("Half the noise was not refuted.")


def test_a_result_carries_what_was_paid_and_said(rng: np.random.Generator) -> None:
    result = blind(played(rng), Claim(1.0, delta=DELTA))
    assert result.bound.confidence == 0.8
    assert result.bound.threshold_rule == "AllRanks(), best of 3 views"
    assert "3 views (" in result.bound.caveats[0]
    assert result.bound.caveats[-1] == "Said by the run."
    assert [(bound.method, bound.valid) for bound in result.also] == [("one_run_fdp", True)]
    assert "Poisson sampling" in result.also[0].caveats[0]


@pytest.mark.slow
def test_a_curve_is_assumed_only_where_there_is_one(rng: np.random.Generator) -> None:
    claim = Claim(1.0, delta=DELTA)
    sampled = played(rng)
    shuffled = CanaryRun(**{**vars(sampled), "steps": in_epochs(sampled.steps)})
    changing = {**vars(sampled.steps), "noise": np.zeros(10)}
    silent = CanaryRun(**{**vars(sampled), "steps": CanarySteps(**changing)})
    for run in (shuffled, silent):
        assert run.family is None
        with pytest.raises(InvalidArgument, match="where batches are shuffled"):
            blind(run, claim, method="one_run_fdp")
        assert [bound.valid for bound in blind(run, claim).also] == [False]
    assert blind(sampled, claim, method="one_run_fdp").bound.valid
    all_in = played(rng, chance=1.0)
    in_order = CanaryRun(**{**vars(played(rng)), "public_order": True})
    for run in (all_in, in_order):
        result = blind(run, claim, method="one_run_fdp")
        assert result.bound.valid
        assert all(bound.valid for bound in result.also)


def test_views_are_paid_for(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    true = canary_run.epsilon_lower_bound

    def spied(*scores: Any, **more: Any) -> Any:
        seen.append(more["confidence"])
        return true(*scores, **more)

    monkeypatch.setattr(canary_run, "epsilon_lower_bound", spied)
    blind(played(rng), Claim(1.0, delta=DELTA))
    assert set(seen) == {1 - 0.2 / 3}
    seen.clear()
    measure_weights(played(rng), delta=DELTA, claim=Claim(1.0, delta=DELTA), confidence=0.8)
    assert set(seen) == {0.8}


def test_canaries_that_took_part_oftenest_do_not_set_the_claim(rng: np.random.Generator) -> None:
    run = played(rng, canaries=1000, chance=0.1, steps=10)
    claim, result = steps(run, confidence=0.95)
    often = run.steps.took.sum(axis=0)  # once on average: worth most are those with one step
    assert result.bound.n_in + result.bound.n_out == (often == 1).sum()
    assert claim.epsilon == pytest.approx(gdp_epsilon(1.0, DELTA))


# A hold-out of perfect scores is a matter of chance.
@pytest.mark.parametrize("method", run_often(["one_run", "one_run_fdp"], ["one_run"]))
def test_claims_above_the_reach_cannot_be_judged(rng: np.random.Generator, method: str) -> None:
    """Scores that all differ prove a quarter less than the best perfect attack, whose are tied."""
    margin = 0.3
    run = played(rng, chance=1.0, canaries=400, noise=10.0)
    reach = blind(run, None, method=method).reach
    assert reach is not None
    below, above = (Claim(part * reach, delta=DELTA) for part in (1 - margin, 1 + margin))
    found = {claim: blind(run, claim, method=method) for claim in (below, above)}
    assert found[above].power == float("inf")
    assert judge.judge_finding(above, found[above]) == "cannot judge"
    assert judge.judge_finding(below, found[below]) == "not refuted"
    loud = CanaryRun(**{**vars(run), "steps": shown(run, 100.0)})
    assert refuted(below, blind(loud, below, method=method))
    assert not refuted(above, blind(loud, above, method=method))


def shown(run: CanaryRun, loudness: float) -> CanarySteps:
    """Steps that show every planted canary, so that no attack could do better."""
    seen = run.steps.seen + loudness * (run.steps.took & run.included)
    return CanarySteps(**{**vars(run.steps), "seen": seen})


def test_nothing_claimed_has_no_power(rng: np.random.Generator) -> None:
    assert blind(played(rng), None).power is None
    assert blind(played(rng, canaries=1000), Claim(0.1, delta=DELTA)).power > 0.1  # type: ignore[operator]


def test_bad_calls_are_refused(rng: np.random.Generator) -> None:
    run, claim = played(rng), Claim(1.0, delta=DELTA)
    with pytest.raises(InvalidArgument, match="one_run"):
        blind(run, claim, method="gdp")
    with pytest.raises(InvalidArgument, match="confidence"):
        blind(run, claim, confidence=1.0)
    with pytest.raises(InvalidArgument, match="delta"):
        claim_of_steps(run, delta=0.0)
    nobody = CanaryRun(**{**vars(run), "included": np.zeros(100, bool)})
    with pytest.raises(InvalidArgument, match="Plant more"):
        blind(nobody, claim)
