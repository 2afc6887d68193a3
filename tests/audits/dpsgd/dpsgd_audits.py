"""Audits of real DP-SGD on real digits, in a module that workers can import."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import epsilometer as em
from epsilometer import shuffle_epsilon
from epsilometer.accounting import pld
from epsilometer.audits.dpsgd.job import DPSGDJob
from epsilometer.audits.dpsgd.subject import make_job
from epsilometer.core.claim import as_claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.engine.engines import Engine
from epsilometer.engine.request import Request
from epsilometer.files.digits import read_digits
from epsilometer.networks.models import mlp
from epsilometer.sampling.samplers import Shuffle

DELTA = 1e-5
PLAIN: dict[str, Any] = {
    "runs": 60,
    "noise_multiplier": 1.0,
    "learning_rate": 0.5,
    "batch_size": 10,
    "views": ("updates",),
}
_ASKED = ("claim", "delta", "confidence", "seed", "out", "engine", "until")  # beside the subject


@cache
def pixels(records: int) -> tuple[np.ndarray, np.ndarray]:
    features, labels = read_digits()
    return (features[:records] / 16).astype(np.float32), labels[:records]


def network(hidden: int = 8) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp(64, 10, hidden)


def subject(records: int = 60, hidden: int = 8, **changed: Any) -> em.DPSGD:
    module = changed.pop("module", None) or network(hidden)
    data = changed.pop("data", None) or pixels(records)
    return em.DPSGD(module, data, **{**PLAIN, **changed})


def audit(records: int = 60, **changed: Any) -> em.Audit:
    asked = {name: changed.pop(name) for name in _ASKED if name in changed}
    asked = {"delta": DELTA, "engine": em.InProcess(), **asked}
    return em.audit(subject(records, **changed), **asked)


def job_of(records: int = 60, hidden: int = 8, **changed: Any) -> DPSGDJob:
    claim = as_claim(changed.pop("claim", None), delta=DELTA)
    request = Request(claim=claim, delta=DELTA, out=changed.pop("out", None))
    return make_job(subject(records, hidden, **changed), request)


def one(**changed: Any) -> tuple[em.Audit, EpsilonFinding]:
    """An audit with one view, and what that found."""
    found = audit(**changed)
    (view,) = found.views
    return found, view


def in_order(found: em.Audit, *texts: str) -> list[EpsilonFinding]:
    """The views whose subjects end with, or contain, these; there are no others."""
    assert len(found.views) == len(texts)
    return [found.view(text) for text in texts]


def long_audit(directory: Path | str, engine: Engine | None = None) -> em.Audit:
    """With every kind of finding but single steps, to be killed."""
    return audit(
        runs=40,
        at_once=4,
        claim=1.0,
        views=("updates", "model", "loss"),
        canaries=20,
        out=directory,
        engine=engine or em.InProcess(),
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
