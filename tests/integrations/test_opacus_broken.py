"""Optimisers that are broken on purpose are found; the one that is right is spared."""

from typing import Any

import pytest
import scipy.stats
from opacus.optimizers import DPOptimizer

from tests.integrations.opacus_runs import (
    HalfNoise,
    MomentumBeforeNoise,
    NoClipping,
    NoiseOfTheMean,
    SameNoiseEveryStep,
    audited_run,
)

FLAKE = 1e-6
DELTA = 1e-5
# σ = 1, q = 0.05, 100 steps: the claim is 3.5.
ORDINARY: dict[str, Any] = {"canaries": 500, "records": 640, "batch": 32, "epochs": 5}
SAMPLED: dict[str, Any] = {"canaries": 500, "noise": 4.0, "batch": 16, "epochs": 5, "hidden": 400}


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (NoClipping, "clipping"),
        (NoiseOfTheMean, "noise scale"),
        (MomentumBeforeNoise, "records of earlier steps"),
        (SameNoiseEveryStep, "independence of steps"),
    ],
)
@pytest.mark.parametrize("poisson", [True, False])
def test_a_broken_optimiser_is_found(kind: type[DPOptimizer], check: str, poisson: bool) -> None:
    found = audited_run(kind, **SAMPLED, poisson=poisson).conformance
    assert found.verdict == "violated"
    assert found.check(check).outcome == "violated"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NoiseOfTheMean, MomentumBeforeNoise, SameNoiseEveryStep])
def test_canaries_alone_refute_it(kind: type[DPOptimizer]) -> None:
    audit = audited_run(kind, **SAMPLED)
    for found in (audit.result(delta=DELTA), audit.step_result(delta=DELTA)):
        assert found.claim is not None
        assert found.views[0].bound.refutes(found.claim.epsilon)


@pytest.mark.slow
def test_half_the_noise_is_refuted() -> None:
    # A factor of two needs many canaries, and steps that all records take part in: there the claim
    # is the ε of a Gaussian mechanism, and one_run_fdp assumes no more.
    settings: dict[str, Any] = {"canaries": 1200, "noise": 0.8, "hidden": 1400}
    audit = audited_run(HalfNoise, **settings)
    for found in (audit.result(delta=DELTA, method="one_run_fdp"), audit.step_result(delta=DELTA)):
        assert found.claim is not None
        assert found.views[0].bound.refutes(found.claim.epsilon)
    spared = audited_run(DPOptimizer, **settings)
    assert spared.result(delta=DELTA, method="one_run_fdp").verdict == "not refuted"


def test_the_noise_that_ran_gives_an_epsilon_far_beyond_the_canaries() -> None:
    wrong = audited_run(HalfNoise, **ORDINARY).result(delta=DELTA)
    assert wrong.claim is not None
    assert wrong.claim.epsilon == pytest.approx(3.5, abs=0.1)
    assert wrong.conformance is not None
    assert wrong.conformance.bound is not None
    assert wrong.conformance.bound.epsilon > 10
    assert wrong.epsilon == wrong.conformance.bound.epsilon
    assert wrong.views[0].bound.epsilon < wrong.claim.epsilon  # by canaries it is not refuted
    right = audited_run(DPOptimizer, **ORDINARY).result(delta=DELTA)
    assert right.claim is not None
    assert right.verdict == "not refuted"
    assert 0.97 * right.claim.epsilon < right.epsilon <= right.claim.epsilon


@pytest.mark.parametrize(
    "settings",
    [
        SAMPLED,
        pytest.param({"canaries": 500, "noise": 2.0, "epochs": 2}, marks=pytest.mark.slow),
    ],
)
def test_the_right_optimiser_is_spared(settings: dict[str, Any]) -> None:
    audit = audited_run(DPOptimizer, **settings)
    found = (
        audit.result(delta=DELTA),
        audit.step_result(delta=DELTA),
        audit.final_result(delta=DELTA),
    )
    assert [each.verdict for each in found] == ["not refuted"] * 3
    both = audit.report(delta=DELTA)  # which share the confidence, and reach less far
    assert both.verdict in ("not refuted", "cannot judge")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [64, 16])
def test_false_alarms_stay_within_the_confidence(batch: int) -> None:
    audits, confidence, alarms = 60, 0.8, [0, 0, 0, 0]
    for seed in range(audits):
        audit = audited_run(
            DPOptimizer, canaries=100, noise=4.0, batch=batch, epochs=2, hidden=100, seed=seed
        )
        results = [
            judged(delta=DELTA, confidence=confidence)
            for judged in (audit.result, audit.step_result, audit.final_result, audit.report)
        ]
        alarms = [a + (r.verdict == "refuted") for a, r in zip(alarms, results, strict=True)]
    assert max(alarms) <= scipy.stats.binom.isf(FLAKE, audits, 1 - confidence)
