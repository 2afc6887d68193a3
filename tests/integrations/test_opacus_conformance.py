"""What an ordinary run shows of its bugs: the table of findings, one test a row."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer

import epsilometer as em
from epsilometer.integrations.opacus import audited
from tests.conftest import run_often
from tests.integrations.opacus_runs import (
    HalfNoise,
    NoClipping,
    SameNoiseEveryStep,
    prepared,
    train,
)

DELTA = 1e-5
# 25,000 parameters, σ = 1, q = 0.05, 100 steps, 500 canaries: the claim is 3.5.
ORDINARY: dict[str, Any] = {"records": 640, "batch": 32, "hidden": 1090, "noise": 1.0}


class NoiseOverHundred(DPOptimizer):
    def add_noise(self) -> None:
        said, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / 100
        super().add_noise()
        self.noise_multiplier = said


class SquareRootOfNoise(DPOptimizer):
    def add_noise(self) -> None:
        said, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier**0.5
        super().add_noise()
        self.noise_multiplier = said


class FirstLayerWithoutNoise(DPOptimizer):
    def add_noise(self) -> None:
        super().add_noise()
        first = self.params[0]
        first.grad = first.summed_grad.clone()


class BiasesWithoutNoise(DPOptimizer):
    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            if p.ndim == 1:
                p.grad = p.summed_grad.clone()


class ClippingOfTheMean(DPOptimizer):
    def clip_and_accumulate(self) -> None:
        every = [self._get_flat_grad_sample(p) for p in self.params]
        mean = [part.mean(0) for part in every]
        length = torch.stack([part.norm() for part in mean]).norm()
        factor = min(1.0, float(self.max_grad_norm / (length + 1e-6)))
        for p, part, samples in zip(self.params, mean, every, strict=True):
            total = part * factor * len(samples)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


def run_audited(kind: type[DPOptimizer], **settings: Any) -> Any:
    run = prepared(**{**ORDINARY, **settings})
    run.optimizer.__class__ = kind
    with audited(run.engine, run.optimizer, run.loader) as audit:
        train(run, epochs=5)
    return audit.result(delta=DELTA)


QUICK = [(HalfNoise, "noise scale"), (NoClipping, "clipping")]
ROWS = [
    *QUICK,
    (NoiseOverHundred, "noise scale"),
    (FirstLayerWithoutNoise, "noise in every part"),
    (BiasesWithoutNoise, "noise in every part"),
    (ClippingOfTheMean, "clipping"),
    (SameNoiseEveryStep, "independence of steps"),
]


def assert_found(kind: type[DPOptimizer], check: str, **settings: Any) -> None:
    found = run_audited(kind, **settings)
    assert found.verdict == "violated"
    assert found.exit_code == 1
    assert found.conformance.verdict == "violated"
    assert found.conformance.check(check).outcome == "violated"


@pytest.mark.parametrize(("kind", "check"), run_often(QUICK, QUICK[:1]))
def test_an_ordinary_run_shows_its_bug(kind: type[DPOptimizer], check: str) -> None:
    assert_found(kind, check)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("kind", "check"), ROWS)
def test_every_seed_shows_every_bug(kind: type[DPOptimizer], check: str, seed: int) -> None:
    assert_found(kind, check, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_square_root_of_the_noise_is_found(seed: int) -> None:
    assert_found(SquareRootOfNoise, "noise scale", seed=seed, noise=2.0)


def test_a_right_run_conforms_and_the_json_says_so() -> None:
    found = run_audited(DPOptimizer)
    assert found.conformance.verdict == "conforms"
    assert found.conformance.find("violated") == ()
    assert {check.name for check in found.conformance.find("not tested")} == {
        "steps before the audit"  # plain SGD does not count them
    }
    assert json.loads(found.to_json())["conformance"]["verdict"] == "conforms"


def test_weights_put_in_place_after_training_are_not_called_explained() -> None:
    """A checkpoint, an average, or weights that were trained on without noise."""
    run = prepared(batch=16)
    audit = audited(run.engine, run.optimizer, run.loader, canaries=50)
    train(run)
    assert audit.conformance.check("updates").outcome == "conforms"
    with torch.no_grad():
        next(iter(run.model.parameters())).mul_(1.1)
    audit.close()
    assert audit.conformance.check("updates").outcome == "not tested"


def test_a_claim_for_shuffling_is_not_held_to_poisson_sampling() -> None:
    run = prepared(batch=16, poisson=False)
    with audited(run.engine, run.optimizer, run.loader, canaries=50) as audit:
        train(run, epochs=2)
    assert audit.result(delta=DELTA).verdict == "violated"  # what Opacus books is Poisson sampling
    own = audit.result(claim=em.Claim(12.0, delta=DELTA, sampler="shuffle"))
    assert own.conformance is not None
    assert own.conformance.check("participation").outcome == "not tested"
    assert own.verdict == "not refuted"


@pytest.mark.slow
def test_two_processes_are_judged_by_the_gradient_that_they_share() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.integrations.opacus_processes",
                str(rank),
                "2",
                str(port),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    for right, half in map(json.loads, said):  # both processes see the same
        assert not [name for name, (outcome, _) in right.items() if outcome == "violated"]
        assert right["noise scale"][0] == right["clipping"][0] == "conforms"
        assert "its own share of the records" in right["participation"][1]
        assert half["noise scale"][0] == "violated"


def test_every_result_of_a_right_run_is_spared_and_shown(tmp_path: Path) -> None:
    run = prepared(records=48, batch=8, noise=0.5, hidden=20)
    with audited(run.engine, run.optimizer, run.loader, canaries=60) as audit:
        train(run)
    steps = audit.step_result(delta=DELTA)
    assert steps.conformance is not None
    assert (steps.verdict in ("not refuted", "cannot judge"), steps.conformance.bound) == (
        True,
        None,  # an ε of sampled batches is not held against a claim for known ones
    )
    low = audit.result(delta=DELTA, claim=5.0)  # refuted by the noise alone
    assert low.verdict == "refuted"
    assert "the measured noise proves" in str(low)
    for found in (steps, low, audit.report(delta=DELTA)):
        assert found.save(tmp_path / "page.html").stat().st_size > 1000


class MedianNorm(DPOptimizer):
    def step(self, closure: Any = None) -> Any:
        rows = [self._get_flat_grad_sample(p).flatten(1).norm(dim=1) for p in self.params]
        if len(rows[0]):
            self.max_grad_norm = float(torch.stack(rows).norm(dim=0).median())
        return super().step(closure)


def test_a_clipping_norm_of_the_batch_and_a_large_delta_are_named() -> None:
    run = prepared(batch=16)
    run.optimizer.__class__ = MedianNorm
    with audited(run.engine, run.optimizer, run.loader, canaries=50) as audit:
        train(run, epochs=3)
    assert audit.conformance.check("clipping norm").outcome == "violated"
    said = [audit.result(claim=em.Claim(9.0, delta=delta)).caveats for delta in (1e-5, 0.02)]
    assert not said[0]
    assert "is at least 1/n" in said[1][0]


@pytest.mark.parametrize(("seed", "outcome"), [(7, "remark"), (2**50 + 7, "conforms")])
def test_noise_of_a_small_seed_is_remarked(seed: int, outcome: str) -> None:
    run = prepared(batch=16)
    run.optimizer.generator = torch.Generator().manual_seed(seed)
    with audited(run.engine, run.optimizer, run.loader, canaries=50) as audit:
        train(run)
    assert audit.conformance.check("noise that cannot be guessed").outcome == outcome
    assert audit.conformance.verdict == "conforms"
