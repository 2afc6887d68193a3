"""A step is audited by its noise and by replay; what it keeps to itself is said."""

from typing import Any

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.audits.step.subject import check_step
from epsilometer.errors import InvalidArgument

FLAKE = 1e-6


def a_batch() -> Any:
    return np.random.default_rng(0).normal(size=(10, 60))


def clip(batch: Any) -> Any:
    return batch / np.maximum(1, np.linalg.norm(batch, axis=1, keepdims=True))


def right(batch: Any, rng: np.random.Generator) -> Any:
    return clip(batch).sum(axis=0) + rng.normal(size=60)


def a_step(step: Any = right, **options: Any) -> em.Step:
    return em.Step(step, a_batch(), **{"clip_norm": 1.0, "noise_multiplier": 1.0, **options})


def test_a_right_step_conforms() -> None:
    audit = em.audit(a_step())
    assert (audit.verdict, audit.exit_code) == ("no claim", 0)
    assert audit.conformance is not None
    assert audit.conformance.verdict == "conforms"
    assert [check.name for check in audit.conformance.find("not tested")] == []
    assert audit.conformance.steps == 63


def test_half_the_noise_is_a_violation_whatever_was_claimed() -> None:
    for claim in (None, 1e9):
        audit = em.audit(
            a_step(lambda b, r: clip(b).sum(axis=0) + r.normal(size=60) / 2), claim, delta=1e-5
        )
        assert (audit.verdict, audit.exit_code) == ("violated", 1)
        assert "noise scale" in str(audit)


def test_a_claim_is_not_judged_by_conformance_alone() -> None:
    assert em.audit(a_step(), 1.0, delta=1e-5).verdict == "cannot judge"


def test_units_are_those_of_the_clipping_norm() -> None:
    def step(batch: Any, rng: np.random.Generator) -> Any:
        return 4 * clip(batch / 4).sum(axis=0) + 2 * 4 * rng.normal(size=60)

    assert (
        check_step(a_step(step, clip_norm=4.0, noise_multiplier=2.0), seed=0).verdict == "conforms"
    )
    assert (
        check_step(a_step(step, clip_norm=2.0, noise_multiplier=4.0), seed=0).verdict == "violated"
    )
    assert (
        check_step(a_step(step, clip_norm=4.0, noise_multiplier=3.0), seed=0).verdict == "violated"
    )


def test_the_same_seed_gives_the_same_audit() -> None:
    one, two, other = (em.audit(a_step(), seed=seed) for seed in (1, 1, 2))
    assert one == two
    assert one.findings != other.findings


class Trains:
    """Its parameters follow what it released."""

    def __init__(self) -> None:
        self.shift = np.zeros(60)

    def __call__(self, batch: Any, rng: np.random.Generator) -> Any:
        released = clip(batch - self.shift).sum(axis=0) + rng.normal(size=60)
        self.shift = self.shift + 0.1 * released
        return released


def test_a_training_is_tested_by_what_holds_under_its_drift() -> None:
    finding = check_step(a_step(Trains()), seed=0)
    assert finding.verdict == "conforms"
    assert "keeps state" in finding.check("noise shape").seen
    assert finding.check("noise scale").outcome in ("conforms", "remark")
    assert finding.check("sensitivity to a replaced record").outcome == "conforms"


def test_randomness_of_its_own_leaves_replay_untested() -> None:
    own = np.random.default_rng(5)

    def step(batch: Any, rng: np.random.Generator) -> Any:
        return right(batch, own)

    finding = check_step(a_step(step), seed=0)
    assert finding.check("sensitivity to a replaced record").outcome == "not tested"
    assert finding.check("independence of steps").outcome == "not tested"
    declared = check_step(a_step(step, steady=True), seed=0)
    assert declared.check("independence of steps").outcome == "conforms"


def test_noise_hidden_by_coarse_rounding_is_not_said_to_conform() -> None:
    """Nothing is added at all, but what is released is rounded to four times the noise."""
    finding = check_step(a_step(lambda b, r: 4 * np.round(3 * b.sum(axis=0) / 4)), seed=0)
    assert finding.check("noise scale").outcome != "conforms"


def test_rounding_what_is_released_does_not_hide_missing_noise() -> None:
    finding = check_step(
        a_step(lambda b, r: np.round(clip(b).sum(axis=0) + 0.6 * r.normal(size=60))), seed=0
    )
    assert finding.check("noise scale").outcome == "violated"


@pytest.mark.simulation
def test_right_steps_are_spared() -> None:
    """Helmert's contrasts are as independent as the noise: 1 in 1,000 may be accused."""
    runs = 150
    accused = sum(
        check_step(a_step(steps=12, records=1), seed=seed).verdict == "violated"
        for seed in range(runs)
    )
    assert accused <= scipy.stats.binom.isf(FLAKE, runs, 1e-3)


@pytest.mark.parametrize(
    "options",
    [{"clip_norm": 0.0}, {"noise_multiplier": -1.0}, {"steps": 1}, {"records": 0}, {"step": 3}],
)
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="Expected"):
        a_step(**options)


def test_what_fails_or_diverges_is_refused() -> None:
    for step, said in (
        (lambda b, r: 1 / 0, "ZeroDivisionError"),
        (lambda b, r: [], "noisy sum"),
        (lambda b, r: np.full(60, np.nan), "finite"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            check_step(a_step(step), seed=0)
    with pytest.raises(InvalidArgument, match="one record or more"):
        em.Step(right, np.zeros((0, 3)), clip_norm=1.0, noise_multiplier=1.0)


def test_the_batch_is_not_written_down() -> None:
    audit = em.audit(a_step())
    assert audit.provenance.settings["batch"] == {"supplied": "ndarray"}
    assert "ndarray" in audit.to_json()
