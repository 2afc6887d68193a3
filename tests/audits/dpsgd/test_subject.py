"""Audits of real DP-SGD: wrong accountants fall, right ones are spared, every view holds."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import epsilometer as em
from epsilometer import Claim, Local, UntilNarrow, UntilRefuted
from epsilometer.accounting import pld
from epsilometer.audits.dpsgd.canaries import TargetCanary, random_direction
from epsilometer.core import judge
from epsilometer.core.settings import to_settings
from epsilometer.errors import InvalidArgument
from epsilometer.networks import ensemble
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.sampling.samplers import Poisson, Shuffle, is_displacing
from tests import oracles
from tests.audits.dpsgd.dpsgd_audits import (
    DELTA,
    audit,
    in_order,
    job_of,
    long_audit,
    network,
    one,
    pixels,
    subject,
)
from tests.conftest import run_often
from tests.faults.processes import started, until

# Verdicts


@pytest.mark.parametrize(
    "adversary", run_often(["worst_case", "partially_informed"], ["worst_case"])
)
def test_shuffling_under_the_claim_of_poisson_sampling_is_refuted(adversary: Any) -> None:
    """60 steps: the claim is ε = 0.5, the truth of shuffling above 3."""
    found, view = one(
        claim=0.5, noise_multiplier=None, batch_size=1, runs=1500, adversary=adversary
    )
    assert found.verdict == judge.REFUTED
    assert found.claim == Claim(
        0.5, DELTA, adjacency="zero_out", unit="record", sampler="Poisson", accountant="PLD"
    )
    assert view.bound.adjacency == "zero_out"
    (curve,) = view.evidence.curves
    assert curve.name == "PLD of Poisson sampling"


@pytest.mark.parametrize(
    ("adversary", "sampler"),
    [
        ("worst_case", Poisson(rate=0.2, steps=5)),
        pytest.param("partially_informed", Poisson(rate=0.2, steps=5), marks=pytest.mark.slow),
        pytest.param("target_canary", Poisson(rate=0.3, steps=10), marks=pytest.mark.slow),
        pytest.param("worst_case", Poisson(rate=1.0, steps=2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_poisson_sampling_is_spared_under_its_own_claim(
    adversary: Any, sampler: Any, rng: np.random.Generator
) -> None:
    """The noise is just enough. The best attack's bound is rarely above the claim."""
    audits, wrong = 25, 0
    noise = pld.poisson_noise(
        epsilon=1.0,
        delta=DELTA,
        sampling_rate=sampler.rate,
        steps=sampler.steps,
        adjacency="zero_out",
    )
    for seed in rng.integers(2**32, size=audits).tolist():
        found, _ = one(
            claim=1.0,
            noise_multiplier=noise,
            sampler=sampler,
            adversary=adversary,
            runs=200,
            seed=seed,
            records=20,
            batch_size=4,
            module=network(2),
        )
        wrong += found.verdict == judge.REFUTED
    assert not oracles.too_often(wrong, audits)


# The same bytes


@pytest.mark.slow
def test_processes_and_crashes_leave_no_trace(tmp_path: Path) -> None:
    whole = long_audit(tmp_path / "whole")
    expected = (tmp_path / "whole" / "result.json").read_bytes()
    assert long_audit(tmp_path / "two", Local(count=2)) == whole
    assert (tmp_path / "two" / "result.json").read_bytes() == expected
    program = (
        "import sys; from tests.audits.dpsgd.dpsgd_audits import long_audit; "
        "long_audit(sys.argv[1])"
    )
    killed = tmp_path / "killed"
    with started("-c", program, killed) as family:
        until(lambda: list(killed.glob("shards/*.shard")), "a unit was finished")
        os.kill(family.process.pid, signal.SIGKILL)
        family.process.wait()
    assert not (killed / "result.json").exists()
    assert long_audit(killed) == whole
    assert (killed / "result.json").read_bytes() == expected


def test_a_directory_is_never_continued_with_another_audit(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"out": tmp_path, "runs": 4, "claim": 9.0}
    audit(**plain)
    features, labels = pixels(60)
    for changed in (
        {"seed": 1},
        {"adversary": "worst_case"},
        {"adjacency": "replace"},
        {"learning_rate": 0.4},
        {"direction": "dirac"},
        {"views": ("updates", "model")},
        {"data": (features + 1, labels)},
        {"module": network(9)},
        {"noise_multiplier": 1.1},
        {"canaries": 20},
        {"clip_norm": 2.0},
        {"initial": "given"},
    ):
        with pytest.raises(InvalidArgument, match="Expected no other run"):
            audit(**{**plain, **changed})


# Stopping early, and what may be given


def test_an_audit_stops_when_the_claim_has_fallen() -> None:
    plain = {"claim": 0.2, "noise_multiplier": 0.3, "at_once": 20, "runs": 2000}
    found, _ = one(**plain, until=UntilRefuted())
    assert found.verdict == judge.REFUTED
    assert found.provenance.used < found.provenance.units / 2
    both = audit(**plain, until=UntilRefuted(), views=("updates", "model"))
    updates, model = in_order(both, "all updates seen", "along the canary gradient")
    assert updates.used == model.used < updates.units / 2
    assert both.verdict == judge.REFUTED
    assert updates.bound.refutes(0.2)


def test_noise_may_be_nothing_or_next_to_it() -> None:
    for noise in (0.0, 0.01):
        found, _ = one(claim=1.0, noise_multiplier=noise, adversary="worst_case", runs=100)
        assert found.verdict == judge.REFUTED


def test_noise_is_what_the_claim_asks_for_at_the_rate_that_is_drawn() -> None:
    for sampler, rate, steps in [
        (Shuffle(), 1 / 6, 6),
        (Poisson(), 1 / 6, 6),
        (Poisson(rate=0.4), 0.4, 6),
        (Poisson(rate=0.4, steps=3), 0.4, 3),
    ]:
        job = job_of(runs=2, claim=2.0, noise_multiplier=None, sampler=sampler, epochs=2)
        noise = job.plan.parameters["follows"]["noise_multiplier"]
        found = pld.poisson_epsilon(
            noise_multiplier=noise,
            sampling_rate=rate,
            steps=2 * steps,
            delta=DELTA,
            adjacency="zero_out",
        )
        assert found == pytest.approx(2.0, rel=1e-4)


CLAIM = Claim(1.0, delta=1e-3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"views": ("all",)}, "Expected views of updates, model, loss, steps, each once"),
        ({"views": ()}, "Expected views of"),
        ({"views": ("model", "model")}, "Expected views of"),
        ({"views": ("steps",)}, "Expected adversary='target_canary' with the view 'steps'"),
        (
            {"views": ("steps",), "adversary": "target_canary"},
            "Expected sampler=Poisson.. with the view 'steps'",
        ),
        (
            {
                "views": ("steps",),
                "adversary": "target_canary",
                "sampler": Poisson(),
                "adjacency": "replace",
            },
            "Expected adjacency='zero_out' or 'add_remove' with the view 'steps'",
        ),
        (
            {
                "views": ("steps",),
                "adversary": "target_canary",
                "sampler": Poisson(),
                "until": UntilNarrow(1.0),
            },
            "Expected no view 'steps' with until",
        ),
        ({"adversary": "everyone"}, "Expected adversary to be one of"),
        ({"adjacency": "unstated"}, "Expected adjacency"),
        ({"adjacency": "add_remove", "records": 61}, "their number alone gives it away"),
        ({"noise_multiplier": None}, "Expected noise_multiplier, or a claim"),
        (
            {"noise_multiplier": None, "claim": 1.0, "adjacency": "replace"},
            "Expected noise_multiplier with adjacency='replace'",
        ),
        ({"claim": CLAIM}, "Expected delta to be the claim's 0.001"),
        (
            {"claim": Claim(1.0, delta=DELTA, adjacency="add_remove")},
            "Expected a claim for adjacency='zero_out', which is audited, got one for 'add_remove'",
        ),
        ({"claim": -1.0}, "epsilon"),
        ({"claim": "1"}, "Expected claim to be a number"),
        ({"delta": None}, "Expected delta"),
        ({"module": "mlp"}, "Expected module to be a torch.nn.Module"),
        ({"data": [1, 2, 3]}, "Expected data to be a pair"),
        ({"records": 9}, "Expected at least a batch of 10 records, got 9"),
        ({"batch_size": 0}, "batch_size"),
        ({"runs": 1}, "runs"),
        ({"at_once": 0}, "at_once"),
        ({"canaries": -1}, "canaries"),
        ({"canaries": 19}, "Expected canaries=0, or 20 or more"),
        ({"direction": "up"}, "Expected direction 'random' or 'dirac'"),
        ({"delta": 0.0}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"epochs": 0}, "epochs"),
        ({"until": UntilRefuted()}, "Expected a claim with until"),
        ({"until": UntilNarrow(1.0), "canaries": 20}, "Expected no canaries and no view 'loss'"),
        (
            {"until": UntilNarrow(1.0), "views": ("updates", "loss")},
            "Expected no canaries and no view 'loss'",
        ),
        ({"until": UntilNarrow(1.0), "at_once": 60}, "two units or more"),
        ({"data": (np.zeros((5, 64)), [0, 1])}, "one label for each"),
    ],
    ids=str,
)
def test_bad_calls_are_told_before_anything_is_trained(
    wrong: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was trained")

    monkeypatch.setattr(EnsembleDPSGD, "train", train)
    with pytest.raises(InvalidArgument, match=said):
        audit(**wrong)


def test_every_setting_is_documented_and_in_the_provenance() -> None:
    names = [field.name for field in dataclasses.fields(em.DPSGD)]
    assert em.DPSGD.__doc__ is not None
    assert all(f"        {name}: " in em.DPSGD.__doc__ for name in names)
    assert list(to_settings(subject())) == names


def test_provenance_has_the_number_of_models_at_once_that_was_used() -> None:
    """Streams depend on it, so that the same settings elsewhere must not choose another."""
    found = audit(runs=6, claim=9.0, at_once=None)
    together = found.provenance.settings["at_once"]
    assert isinstance(together, int)
    assert audit(runs=6, claim=9.0, at_once=together).to_json() == found.to_json()
    assert audit(runs=6, claim=9.0, at_once=2).bounds != found.bounds


def test_a_run_is_continued_with_as_many_models_at_once_as_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory comes and goes; another number would be another run."""
    monkeypatch.setattr(ensemble, "choose_at_once", lambda *_: 2)
    begun = audit(runs=6, claim=9.0, out=tmp_path)
    monkeypatch.setattr(ensemble, "choose_at_once", lambda *_: 3)
    assert job_of(runs=6, claim=9.0, out=tmp_path).plan.public_hash == begun.provenance.plan
    assert audit(runs=6, claim=9.0, out=tmp_path) == begun
    with pytest.raises(InvalidArgument, match="Expected no other run"):
        audit(runs=6, claim=9.0, out=tmp_path, at_once=3)


def test_a_claim_with_all_its_words_is_the_same_audit() -> None:
    """As a result names it: filled in."""
    number = audit(runs=6, claim=9.0)
    assert audit(runs=6, claim=number.claim) == number


def test_all_views_share_the_confidence() -> None:
    found = audit(runs=40, views=("updates", "model", "loss"), canaries=20, confidence=0.9)
    assert {view.bound.confidence for view in found.views} == {1 - (1 - 0.9) / 4}
    assert found.confidence == 0.9
    alone, _ = one(runs=40, confidence=0.9)
    assert alone.bounds[0].confidence == 0.9


def test_claims_beyond_the_reach_of_so_few_runs_cannot_be_judged() -> None:
    found, view = one(runs=40, claim=6.0)
    assert found.verdict == judge.CANNOT_JUDGE
    assert view.reach is not None
    assert found.reach == view.reach < 6.0
    assert found.power == float("inf")
    near, _ = one(runs=40, claim=view.reach - 0.05)
    assert near.verdict == judge.NOT_REFUTED
    assert near.power is not None
    assert near.power > near.claim.epsilon


# What it costs


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["target_canary", "partially_informed"])
def test_a_model_that_is_audited_is_as_good(adversary: Any) -> None:
    """Accuracy on digits held out, with the target and without canaries: within half a percent."""
    features, labels = pixels(1797)
    runs, held = 600, 1300
    training = EnsembleDPSGD(
        network(32),
        cross_entropy,
        runs=runs,
        noise_multiplier=1.0,
        learning_rate=2.0,
        batch_size=50,
        epochs=4,
    )
    canary = TargetCanary(
        adversary=adversary,
        direction=random_direction(training.size, rng=np.random.default_rng(0)),
        batch_size=50,
        displaces=is_displacing(training.sampler),
    )
    plain, audited = (
        training.train(
            features[:held], labels[:held], rng=np.random.default_rng(seed), **more
        ).accuracy(features[held:], labels[held:])
        for seed, more in ((1, {}), (2, {"canaries": canary}))
    )
    error = np.hypot(scipy.stats.sem(plain), scipy.stats.sem(audited))
    assert error < 0.0015
    assert plain.mean() > 0.7  # it learns
    assert abs(audited.mean() - plain.mean()) < 0.005
