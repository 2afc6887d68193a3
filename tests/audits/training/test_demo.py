"""The demonstration tells the sound training from the mistaken one."""

import json

import jsonschema
import numpy as np
import pytest

import epsilometer as em
from epsilometer.audits.training.demo import CLAIM, Demo
from epsilometer.core.serialisation import from_json
from epsilometer.files.digits import read_digits
from epsilometer.findings import Curve, EpsilonFinding
from epsilometer.types import FloatArray, IntArray

RUNS = 600


def audit_demo(features: FloatArray, labels: IntArray, *, runs: int, seed: int) -> em.Audit:
    engine = em.Local(kind="threads")
    return em.audit(Demo(features, labels, runs=runs), CLAIM, seed=seed, engine=engine)


def sound_and_broken(found: em.Audit) -> tuple[EpsilonFinding, EpsilonFinding]:
    return found.view("as claimed"), found.view("with √σ where σ was meant")


@pytest.fixture(scope="module")
def found() -> em.Audit:
    pytest.importorskip("sklearn")
    return audit_demo(*read_digits(), runs=RUNS, seed=0)


def test_the_sound_training_is_spared_and_nearly_all_of_its_epsilon_is_found(
    found: em.Audit,
) -> None:
    """Its target is clipped in every step, so gdp's truth is the claim itself."""
    sound, _ = sound_and_broken(found)
    (gdp,) = sound.also
    assert not sound.bound.refutes(CLAIM.epsilon)
    assert 1.9 < gdp.epsilon < CLAIM.epsilon
    assert 0.25 < sound.bound.epsilon < gdp.epsilon


def test_the_mistake_is_seen(found: em.Audit) -> None:
    """σ = 6.22 was meant and 2.49 used: μ = √20 / 2.49 has ε = 9.0 at δ = 1e-5."""
    sound, broken = sound_and_broken(found)
    (gdp,) = broken.also
    sigma = em.gaussian_sigma(CLAIM.epsilon, CLAIM.delta) * np.sqrt(20)
    truth = em.gaussian_epsilon(np.sqrt(sigma) / np.sqrt(20), CLAIM.delta)
    assert 2 * CLAIM.epsilon < gdp.epsilon < truth
    assert gdp.refutes(CLAIM.epsilon)
    assert broken.bound.epsilon > 1.5 * sound.bound.epsilon
    assert broken.attack.auc > sound.attack.auc


def test_the_audit_says_what_was_run(found: em.Audit) -> None:
    assert found.claim == CLAIM
    assert len({view.subject for view in found.views}) == 2
    for bound in found.bounds:
        assert (bound.n_in, bound.n_out) == (RUNS, RUNS)
        assert bound.adversary != "unstated"
        assert bound.confidence == 0.975  # both programs share the confidence
    assert from_json(found.to_json()) == found
    jsonschema.validate(json.loads(found.to_json()), em.json_schema())


def test_same_seed_same_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epsilometer.audits.training.demo.full_batch_noise", lambda **_: 6.0)
    monkeypatch.setattr(
        "epsilometer.audits.training.demo._compute_allowed",
        lambda _: Curve(name="", fpr=(), fnr=()),
    )
    rng = np.random.default_rng(0)
    features, labels = rng.integers(0, 17, (101, 5)).astype(float), np.arange(101) % 10
    first, again, other = (audit_demo(features, labels, runs=10, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_without_a_claim_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epsilometer.audits.training.demo.full_batch_noise", lambda **_: 6.0)
    monkeypatch.setattr(
        "epsilometer.audits.training.demo._compute_allowed",
        lambda _: Curve(name="", fpr=(), fnr=()),
    )
    rng = np.random.default_rng(0)
    features, labels = rng.integers(0, 17, (101, 5)).astype(float), np.arange(101) % 10
    demo = Demo(features, labels, runs=10)
    assert em.audit(demo, delta=1e-5, engine=em.InProcess()).verdict == "no claim"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_at_its_full_size_it_refutes_the_mistake(seed: int) -> None:
    found = audit_demo(*read_digits(), runs=5_000, seed=seed)
    sound, broken = sound_and_broken(found)
    assert found.verdict == "refuted"
    assert not sound.bound.refutes(CLAIM.epsilon)
    assert broken.bound.refutes(CLAIM.epsilon)
