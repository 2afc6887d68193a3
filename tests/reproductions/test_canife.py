"""CANIFE: as its paper has it, and far below what one run with many canaries shows."""

import copy
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from epsilometer.audits.federated.rounds import PoissonCohorts
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.models import mlp
from epsilometer.stats.gaussians import gaussian_sigma

SCRIPT = Path(__file__).parents[2] / "reproductions" / "one_shot" / "canife_audit.py"
_spec = importlib.util.spec_from_file_location("canife_audit", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
canife = sys.modules["canife_audit"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(canife)
audit_canife, craft_update = canife.audit_canife, canife.craft_update
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
    assert canife.compute_round_epsilon(present, absent, delta=DELTA) == pytest.approx(
        expected, rel=0.03
    )
    assert canife.compute_round_epsilon(present + 9, absent, delta=DELTA) == math.inf
    assert canife.compute_round_epsilon(absent, absent, delta=DELTA) == 0.0


def test_a_round_without_an_error_takes_the_largest_of_the_others() -> None:
    asked: dict[str, Any] = {"delta": DELTA, "every": 3, "rounds": 8}
    sigma = gaussian_sigma(3.0, DELTA)
    assert canife.find_noise([(0, 2.0), (3, 3.0), (6, math.inf)], **asked) == (
        (gaussian_sigma(2.0, DELTA), 3),
        (sigma, 3),
        (sigma, 2),
    )
    assert canife.find_noise([(0, math.inf), (3, 0.0)], **asked) == ((0.0, 3),)
    quiet = audit_canife(training(noise_multiplier=1e-9, rounds=1, cohort=1), delta=DELTA, steps=50)
    assert quiet.estimate.epsilon == math.inf


def test_an_example_that_cannot_be_long_is_hardly_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short before clipping stays short; to count it as full was a mistake once made."""
    made = canife.craft_update
    usual = audit_canife(training(rounds=1), delta=DELTA, steps=50).rounds[0][1]
    monkeypatch.setattr(canife, "craft_update", lambda *a, **b: 1e-3 * made(*a, **b))
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


# Crafted examples: their update stands out, and is the one that training on them causes.


def setting() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    module = mlp(6, 3, 8)
    weights = torch.cat([part.detach().flatten() for part in module.parameters()])
    # Updates as training causes them: of random examples, so that another example's is like them.
    updates = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(module(torch.randn(1, 6)), torch.randint(3, (1,)))
        found = torch.autograd.grad(loss, list(module.parameters()))
        updates.append(-torch.cat([part.flatten() for part in found]))
    pool = torch.stack(updates)
    return module, weights, pool / pool.norm(dim=1, keepdim=True).clamp(min=1), torch.randn(6)


def test_crafting_makes_an_update_that_stands_out() -> None:
    module, weights, pool, example = setting()
    plain, crafted = (
        craft_update(module, weights, pool, example=example, clip=1.0, steps=steps)
        for steps in (0, 200)
    )
    overlaps = [float((pool @ (update / update.norm())).norm()) for update in (plain, crafted)]
    assert overlaps[1] < overlaps[0] / 3
    assert float(crafted.norm()) > 0.9  # and it is as long as clipping allows


def test_the_update_is_that_of_a_step_on_the_example() -> None:
    """Without crafting: a step of gradient descent on the example with an even label."""
    module, weights, pool, example = setting()
    own = copy.deepcopy(module)
    even = torch.full((1, 3), 1 / 3)
    sgd = torch.optim.SGD(own.parameters(), 0.1)
    nn.functional.cross_entropy(own(example[None]), even).backward()
    sgd.step()
    moved = torch.cat([part.detach().flatten() for part in own.parameters()]) - weights
    found = craft_update(
        module, weights, pool, example=example, clip=1.0, learning_rate=0.1, steps=0
    )
    torch.testing.assert_close(found, moved, rtol=1e-3, atol=1e-6)


def test_the_given_weights_count_not_those_of_the_module() -> None:
    module, weights, pool, example = setting()
    one, other = (
        craft_update(module, there, pool, example=example, clip=1.0, steps=0)
        for there in (weights, weights + 0.5)
    )
    assert not torch.allclose(one, other, atol=1e-3)


def test_what_cannot_be_crafted_is_told() -> None:
    module, weights, pool, example = setting()
    with pytest.raises(InvalidArgument, match="whole numbers"):
        craft_update(module, weights, pool, example=example.long(), clip=1.0)
    deep = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)))
    flat = torch.cat([part.detach().flatten() for part in deep.parameters()])
    with pytest.raises(InvalidArgument, match="one output per class"):
        craft_update(deep, flat, pool[:, : flat.numel()], example=example, clip=1.0)
