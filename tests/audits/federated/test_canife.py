"""CANIFE: as its paper has it, and far below what one run with many canaries shows."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from epsilometer.audits.federated.canife import audit_canife, most_accurate_epsilon, noise_of
from epsilometer.audits.federated.participation import PoissonCohorts
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.models import mlp
from epsilometer.stats.gaussians import gaussian_sigma

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
    assert sum(rounds for _, rounds in found.noise) == 6
    assert 0 < found.estimate.epsilon < how.epsilon(DELTA)[0]
    assert not found.estimate.refutes(0.0)  # no bound, and it does not pretend to be one
    assert audit_canife(how, delta=DELTA, every=3, steps=50) == found


def test_little_noise_shows_more_than_much() -> None:
    loud, quiet = (
        audit_canife(training(noise_multiplier=noise, rounds=1), delta=DELTA, steps=50)
        for noise in (4.0, 0.4)
    )
    assert loud.rounds[0][1] < quiet.rounds[0][1]


def test_errors_are_counted_at_the_threshold_that_errs_least() -> None:
    rng = np.random.default_rng(0)
    present, absent = rng.normal(2, 1, 100_000), rng.normal(0, 1, 100_000)
    rate = 0.1586553  # of either error at 1
    expected = math.log((1 - DELTA - rate) / rate)
    assert most_accurate_epsilon(present, absent, delta=DELTA) == pytest.approx(expected, rel=0.03)
    assert most_accurate_epsilon(present + 9, absent, delta=DELTA) == math.inf
    assert most_accurate_epsilon(absent, absent, delta=DELTA) == 0.0


def test_a_round_without_an_error_takes_the_largest_of_the_others() -> None:
    asked: dict[str, Any] = {"delta": DELTA, "every": 3, "rounds": 8}
    sigma = gaussian_sigma(3.0, DELTA)
    assert noise_of([(0, 2.0), (3, 3.0), (6, math.inf)], **asked) == (
        (gaussian_sigma(2.0, DELTA), 3),
        (sigma, 3),
        (sigma, 2),
    )
    assert noise_of([(0, math.inf), (3, 0.0)], **asked) == ((0.0, 3),)
    quiet = audit_canife(training(noise_multiplier=1e-9, rounds=1, cohort=1), delta=DELTA, steps=50)
    assert quiet.estimate.epsilon == math.inf


def test_an_example_that_cannot_be_long_is_hardly_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short before clipping stays short; to count it as full was a mistake once made."""
    from epsilometer.audits.federated import crafting

    made = crafting.crafted_update
    usual = audit_canife(training(rounds=1), delta=DELTA, steps=50).rounds[0][1]
    monkeypatch.setattr(crafting, "crafted_update", lambda *a, **b: 1e-3 * made(*a, **b))
    assert audit_canife(training(rounds=1), delta=DELTA, steps=50).rounds[0][1] < usual / 2


def test_cohorts_are_of_clients_that_it_was_not_crafted_against(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[set[int]] = []
    ours = FederatedTraining.updates

    def noted(self: Any, weights: Any, clients: Any, *, rng: Any) -> Any:
        seen.append(set(clients.tolist()))
        return ours(self, weights, clients, rng=rng)

    monkeypatch.setattr(FederatedTraining, "updates", noted)
    audit_canife(training(rounds=1), delta=DELTA, pool=15, steps=1)
    crafted_against, cohorts = seen
    assert len(crafted_against) == len(cohorts) == 15
    assert not crafted_against & cohorts


def test_bad_audits_are_told() -> None:
    with pytest.raises(InvalidArgument, match="more clients than a cohort of 40"):
        audit_canife(training(cohort=40), delta=DELTA)
    with pytest.raises(InvalidArgument, match="scores"):
        audit_canife(training(), delta=DELTA, scores=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_it_runs_on_a_gpu() -> None:
    found = audit_canife(training(device="cuda"), delta=DELTA, every=3, steps=50)
    assert [number for number, _ in found.rounds] == [0, 3]
    assert 0 < found.estimate.epsilon < math.inf
