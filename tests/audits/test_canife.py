"""CANIFE: as its paper has it, and far below what one run with many canaries shows."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from epsilometer.audits.canife import audit_canife
from epsilometer.errors import InvalidArgument
from epsilometer.training.ensemble import cross_entropy
from epsilometer.training.federated import FederatedTraining
from epsilometer.training.models import mlp
from epsilometer.training.participation import PoissonCohorts

DELTA = 1e-5


def training(**options: Any) -> FederatedTraining:
    data = np.random.default_rng(1)
    clients = [(data.normal(size=(5, 10)), data.integers(3, size=5)) for _ in range(40)]
    usual: dict[str, Any] = {
        "clients": clients,
        "rounds": 6,
        "cohort": 4,
        "participation": PoissonCohorts(),
        "noise_multiplier": 0.6,
        "learning_rate": 0.1,
    }
    torch.manual_seed(0)
    return FederatedTraining(mlp(10, 3, 16), cross_entropy, **{**usual, **options})


def test_it_estimates_single_rounds_and_composes_them() -> None:
    how = training()
    found = audit_canife(how, delta=DELTA, every=3, steps=50)
    assert [number for number, _ in found.rounds] == [0, 3]
    assert all(0 < epsilon < math.log(100) for _, epsilon in found.rounds)
    assert 0 < found.estimate.epsilon < how.epsilon(DELTA)[0]
    assert not found.estimate.refutes(0.0)  # no bound, and it does not pretend to be one
    assert audit_canife(how, delta=DELTA, every=3, steps=50) == found


def test_little_noise_shows_more_than_much() -> None:
    loud, quiet = (
        audit_canife(training(noise_multiplier=noise, rounds=1), delta=DELTA, steps=50)
        for noise in (4.0, 0.4)
    )
    assert loud.rounds[0][1] < quiet.rounds[0][1]


def test_bad_audits_are_told() -> None:
    with pytest.raises(InvalidArgument, match="more clients than a cohort of 40"):
        audit_canife(training(cohort=40), delta=DELTA)
    with pytest.raises(InvalidArgument, match="scores"):
        audit_canife(training(), delta=DELTA, scores=2)
