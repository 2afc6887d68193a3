"""Runs of DP-SGD that diverge and units that fail count against a refutation, and are told."""

from typing import Any

import numpy as np
import pytest

from epsilometer import InProcess
from epsilometer.audits.dpsgd.game import OneRun
from epsilometer.core import judge
from epsilometer.engine.run import run
from epsilometer.sampling.samplers import Poisson
from tests.audits.dpsgd.dpsgd_audits import audit, in_order, job_of, one

EVERY = ("DP-SGD, all updates seen", "along the canary gradient", "single steps", "data canary")


def test_runs_that_diverge_are_counted_told_and_refute_nothing() -> None:
    found = audit(
        runs=30,
        claim=0.0,
        noise_multiplier=0.01,
        learning_rate=3e38,
        sampler=Poisson(rate=0.5, steps=8),
        adversary="target_canary",
        views=("updates", "model", "loss", "steps"),
        canaries=20,
    )
    views = in_order(found, *EVERY, "one run with")
    for each in views:
        said = [caveat for caveat in each.bound.caveats if caveat.startswith("Diverged: ")]
        assert len(said) == 1, each.subject
        assert "count against a refutation" in said[0]
    of = ["of 30 runs", "of 30 runs", "steps", "of 30 runs", "canaries"]
    for each, what in zip(views, of, strict=True):
        assert f" {what} with the target" in each.bound.caveats[-1]
    assert views[-1].bound.epsilon == 0


def test_diverged_runs_could_only_have_raised_the_bound() -> None:
    """Scores of runs that all diverged prove nothing, although all runs inside are alike."""
    found, view = one(runs=40, claim=0.0, learning_rate=3e38, noise_multiplier=50.0, epochs=3)
    assert view.bound.caveats[-1].startswith("Diverged: 40 of 40 runs with the target, 40 of 40")
    assert (view.bound.epsilon, found.verdict) == (0.0, judge.CANNOT_JUDGE)


def test_a_failed_unit_counts_against_all_views(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(
        runs=6,
        at_once=2,
        batch_size=12,
        epochs=2,
        sampler=Poisson(),
        adversary="target_canary",
        views=("updates", "steps", "loss"),
        canaries=20,
    )
    first, last = job.missing(0), job.missing(job.plan.units - 1)
    assert first["updatesinside"].tolist() == [-np.inf] * 2
    assert first["stepsinside"].tolist() == [-np.inf] * 2 * 2 * 10  # as many as could have been
    assert first["stepsoutside"].tolist() == [np.inf] * 2 * 2 * 10
    assert job.missing(3)["lossoutside"].tolist() == [np.inf] * 2
    assert last["inside"].size + last["outside"].size == 20

    def fails(self: Any, rng: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(OneRun, "play", fails)
    found = run(job, engine=InProcess())
    views = in_order(found, EVERY[0], *EVERY[2:], "one run with")
    assert [each.failed for each in views] == [0, 0, 0, 1]
    assert found.verdict == judge.NO_CLAIM
    assert views[-1].bound.epsilon == 0
    assert not any("Diverged" in caveat for caveat in views[-1].bound.caveats)


def test_a_claim_cannot_be_judged_where_a_unit_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, rng: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(OneRun, "play", fails)
    found = audit(runs=200, noise_multiplier=50.0, canaries=20, claim=1.0)
    assert found.verdict == judge.CANNOT_JUDGE
    assert "1 unit failed" in found.judgement.reason
