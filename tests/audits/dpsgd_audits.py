"""Audits of real DP-SGD on real digits, in a module that workers can import."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from epsilometer import InProcess, audit_dpsgd, shuffle_epsilon
from epsilometer.accounting import pld
from epsilometer.audits.dpsgd import dpsgd_job
from epsilometer.audits.dpsgd_job import DpsgdJob
from epsilometer.engine.engines import Engine
from epsilometer.integrations.sklearn import digits
from epsilometer.mechanisms.samplers import Shuffle
from epsilometer.results import AuditGroup, AuditResult
from epsilometer.training.models import mlp

DELTA = 1e-5
PLAIN: dict[str, Any] = {
    "runs": 60,
    "delta": DELTA,
    "noise_multiplier": 1.0,
    "learning_rate": 0.5,
    "batch_size": 10,
    "views": ("updates",),
}


@cache
def pixels(records: int) -> tuple[np.ndarray, np.ndarray]:
    features, labels = digits()
    return (features[:records] / 16).astype(np.float32), labels[:records]


def network(hidden: int = 8) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp(64, 10, hidden)


def audit(records: int = 60, **changed: Any) -> AuditResult | AuditGroup:
    module = changed.pop("module", None) or network()
    data = changed.pop("data", None) or pixels(records)
    return audit_dpsgd(module, data, **{**PLAIN, "engine": InProcess(), **changed})


def job_of(records: int = 60, hidden: int = 8, **changed: Any) -> DpsgdJob:
    return dpsgd_job(network(hidden), pixels(records), **{**PLAIN, **changed})


def one(**changed: Any) -> AuditResult:
    found = audit(**changed)
    assert isinstance(found, AuditResult)
    return found


def long_audit(directory: Path | str, engine: Engine | None = None) -> AuditResult | AuditGroup:
    """With every kind of result but single steps, to be killed."""
    return audit(
        runs=40,
        at_once=4,
        claim=1.0,
        views=("updates", "model", "loss"),
        canaries=20,
        directory=directory,
        engine=engine or InProcess(),
    )


def truth_of(sampler: Any, sigma: float, steps: int) -> float:
    if isinstance(sampler, Shuffle):
        return shuffle_epsilon(noise_multiplier=sigma, steps=steps, delta=DELTA).high
    return pld.poisson_epsilon(
        noise_multiplier=sigma,
        sampling_rate=sampler.rate or 1 / steps,
        steps=steps,
        delta=DELTA,
        adjacency="zero_out",
    )
