"""The demonstration tells the sound training from the mistaken one."""

import json

import jsonschema
import numpy as np
import pytest

import epsilometer as em
from epsilometer.accounting import pld
from epsilometer.audits.demo import CLAIM, demo_job
from epsilometer.engine.engines import Local
from epsilometer.engine.run import run
from epsilometer.integrations.sklearn import digits
from epsilometer.results import AuditResult, Curve, from_json, json_schema, to_json
from epsilometer.types import FloatArray, IntArray

RUNS = 600


def demo(
    features: FloatArray, labels: IntArray, *, runs: int, seed: int
) -> tuple[AuditResult, ...]:
    return run(
        demo_job(features, labels, runs=runs, seed=seed), engine=Local(kind="threads")
    ).audits


@pytest.fixture(scope="module")
def results() -> tuple[AuditResult, ...]:
    pytest.importorskip("sklearn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pld, "INTERVAL", 1e-3)  # calibrates the noise in a fifth of the time
        return demo(*digits(), runs=RUNS, seed=0)


def test_the_sound_training_is_spared_and_nearly_all_of_its_epsilon_is_found(
    results: tuple[AuditResult, ...],
) -> None:
    """Its target is clipped in every step, so gdp's truth is the claim itself."""
    sound, _ = results
    (gdp,) = sound.also
    assert sound.verdict == "not refuted"
    assert 2.0 < gdp.epsilon < CLAIM.epsilon
    assert 0.3 < sound.bound.epsilon < gdp.epsilon


def test_the_mistake_is_seen(results: tuple[AuditResult, ...]) -> None:
    """σ = 6.22 was meant and 2.49 used: μ = √20 / 2.49 has ε = 9.0 at δ = 1e-5."""
    sound, broken = results
    (gdp,) = broken.also
    sigma = em.gaussian_sigma(CLAIM.epsilon, CLAIM.delta) * np.sqrt(20)
    truth = em.gaussian_epsilon(np.sqrt(sigma) / np.sqrt(20), CLAIM.delta)
    assert 2 * CLAIM.epsilon < gdp.epsilon < truth
    assert gdp.refutes(CLAIM.epsilon)
    assert broken.bound.epsilon > 1.5 * sound.bound.epsilon
    assert broken.attack.auc > sound.attack.auc


def test_results_say_what_was_played(results: tuple[AuditResult, ...]) -> None:
    assert len({result.subject for result in results}) == 2
    for result in results:
        assert result.claim == CLAIM
        assert (result.bound.n_in, result.bound.n_out) == (RUNS, RUNS)
        assert result.bound.adversary != "unstated"
        assert from_json(to_json(result)) == result
        jsonschema.validate(json.loads(to_json(result)), json_schema())


def test_same_seed_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epsilometer.audits.demo.full_batch_noise", lambda **_: 6.0)
    monkeypatch.setattr(
        "epsilometer.audits.demo._allowed", lambda _: Curve(name="", fpr=(), fnr=())
    )
    rng = np.random.default_rng(0)
    features, labels = rng.integers(0, 17, (101, 5)).astype(float), np.arange(101) % 10
    first, again, other = (demo(features, labels, runs=10, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_at_its_full_size_it_refutes_the_mistake(seed: int) -> None:
    sound, broken = demo(*digits(), runs=5_000, seed=seed)
    assert sound.verdict == "not refuted"
    assert broken.verdict == "refuted"
