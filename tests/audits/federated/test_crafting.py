"""Crafted examples: their update stands out, and is the one that training on them causes."""

import copy

import pytest
import torch
from torch import Tensor, nn

from epsilometer.audits.federated.crafting import crafted_update
from epsilometer.errors import InvalidArgument
from epsilometer.networks.models import mlp


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
        crafted_update(module, weights, pool, example=example, clip=1.0, steps=steps)
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
    found = crafted_update(
        module, weights, pool, example=example, clip=1.0, learning_rate=0.1, steps=0
    )
    torch.testing.assert_close(found, moved, rtol=1e-3, atol=1e-6)


def test_the_given_weights_count_not_those_of_the_module() -> None:
    module, weights, pool, example = setting()
    one, other = (
        crafted_update(module, there, pool, example=example, clip=1.0, steps=0)
        for there in (weights, weights + 0.5)
    )
    assert not torch.allclose(one, other, atol=1e-3)


def test_what_cannot_be_crafted_is_told() -> None:
    module, weights, pool, example = setting()
    with pytest.raises(InvalidArgument, match="whole numbers"):
        crafted_update(module, weights, pool, example=example.long(), clip=1.0)
    deep = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)))
    flat = torch.cat([part.detach().flatten() for part in deep.parameters()])
    with pytest.raises(InvalidArgument, match="one output a class"):
        crafted_update(deep, flat, pool[:, : flat.numel()], example=example, clip=1.0)
