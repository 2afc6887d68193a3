"""Optimizers of many models: torch's own, row by row."""

from typing import Any

import pytest
import torch

from epsilometer.errors import InvalidArgument
from epsilometer.networks.optimizers import SGD, Adam, Optimizer

PAIRS = {
    "sgd": (SGD(), torch.optim.SGD, {}),
    "decay": (SGD(weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": (SGD(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    "momentum and decay": (
        SGD(momentum=0.5, weight_decay=0.2),
        torch.optim.SGD,
        {"momentum": 0.5, "weight_decay": 0.2},
    ),
    "adam": (Adam(), torch.optim.Adam, {}),
    "adam otherwise": (
        Adam(betas=(0.0, 0.5), epsilon=1e-3, weight_decay=0.1),
        torch.optim.Adam,
        {"betas": (0.0, 0.5), "eps": 1e-3, "weight_decay": 0.1},
    ),
}


@pytest.mark.parametrize(("mine", "theirs", "options"), PAIRS.values(), ids=PAIRS.keys())
def test_many_steps_are_those_of_torch(mine: Optimizer, theirs: Any, options: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    parameters, state = first.clone(), mine.start(first)
    rows = [torch.nn.Parameter(row.clone()) for row in first]
    optimizers = [theirs([row], lr=0.05, **options) for row in rows]
    for _ in range(60):
        gradient = torch.randn(3, 7, generator=generator, dtype=torch.float64)
        for row, optimizer, own in zip(rows, optimizers, gradient, strict=True):
            row.grad = own.clone()
            optimizer.step()
        mine.step(parameters, gradient, state, rate=0.05)
    torch.testing.assert_close(parameters, torch.stack([r.detach() for r in rows]), rtol=1e-12,
                               atol=1e-12)  # fmt: skip


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()])
def test_a_model_that_diverged_leaves_the_others_alone(optimizer: Optimizer) -> None:
    parameters = torch.ones(2, 3)
    state = optimizer.start(parameters)
    for _ in range(3):
        gradient = torch.tensor([[torch.nan] * 3, [1.0] * 3])
        optimizer.step(parameters, gradient, state, rate=0.1)
    assert torch.isnan(parameters[0]).all()
    assert (parameters[1] < 1).all()


@pytest.mark.parametrize(
    "bad",
    [
        lambda: SGD(momentum=-0.1),
        lambda: SGD(weight_decay=-1),
        lambda: Adam(betas=(0.9, 1.0)),
        lambda: Adam(epsilon=0.0),
        lambda: Adam(weight_decay=float("nan")),
    ],
)
def test_nonsense_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgument):
        bad()
