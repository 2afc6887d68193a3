"""Many models on the same batches, each without its record: what an ordinary torch loop gives."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.local import local_batches
from epsilometer.networks.optimizers import SGD, Adam
from epsilometer.networks.same_batches import AnyModels, Perceptrons, many_models, train_without

N, FEATURES, CLASSES = 45, 12, 3


class Own(nn.Module):
    """A module with a forward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, 7), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.sin(self.one(x)))


def perceptron(kind: type[nn.Module]) -> nn.Module:
    inner = nn.Sequential(nn.Linear(9, 5), kind())
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 9), kind(), inner, nn.Linear(5, CLASSES))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )


def by_an_ordinary_loop(
    module: nn.Module, x: Tensor, y: Tensor, batches: list[Any], record: int, adam: bool
) -> nn.Module:
    """Without ``record``: batches that had it are one shorter."""
    module = copy.deepcopy(module)
    parameters = module.parameters()
    how = (
        torch.optim.Adam(parameters, lr=0.01)
        if adam
        else torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    )
    for batch in batches:
        rows = torch.from_numpy(batch[batch != record])
        how.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        how.step()
    return module.eval()


@pytest.mark.parametrize("adam", [True, False])
@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (lambda: perceptron(nn.ReLU), Perceptrons),
        (lambda: perceptron(nn.Tanh), Perceptrons),
        (lambda: perceptron(nn.Sigmoid), Perceptrons),
        (lambda: nn.Linear(FEATURES, CLASSES), Perceptrons),
        (lambda: nn.Linear(FEATURES, CLASSES, bias=False), AnyModels),
        (Own, AnyModels),
        (convolution, AnyModels),
    ],
    ids=["relu", "tanh", "sigmoid", "linear", "unbiased", "own", "convolution"],
)
def test_agrees_with_an_ordinary_loop(
    module: Any, kind: type, adam: bool, rng: np.random.Generator
) -> None:
    torch.manual_seed(int(rng.integers(2**31)))
    begun = module()
    x, y = torch.randn(N, FEATURES), torch.randint(CLASSES, (N,))
    batches = local_batches(N, 10, epochs=3, rng=rng)  # the last of an epoch has 5
    left_out = np.array([-1, 0, 7, 44])
    models = many_models(begun, 4, loss=cross_entropy, x=x, y=y)
    assert type(models) is kind
    how = Adam() if adam else SGD(momentum=0.9, weight_decay=0.01)
    rate = 0.01 if adam else 0.1
    train_without(models, x, y, batches, left_out=left_out, optimizer=how, rate=rate)
    found = models.outputs(x.expand(4, N, FEATURES))
    for outputs, record in zip(found, left_out, strict=True):
        plain = by_an_ordinary_loop(begun, x, y, batches, record, adam)(x)
        # 15 steps in single precision, which round otherwise in another order.
        torch.testing.assert_close(outputs, plain, rtol=1e-3, atol=1e-4)


def test_models_differ_by_their_record_alone(rng: np.random.Generator) -> None:
    """A record that no batch has is missed by nobody: nothing else tells models apart."""
    x, y = torch.randn(N, FEATURES), torch.randint(CLASSES, (N,))
    begun = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    models = many_models(begun, 3, loss=cross_entropy, x=x, y=y)
    batches = [np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8])]
    train_without(models, x, y, batches, left_out=np.array([0, 9, 3]), optimizer=SGD(), rate=0.1)
    first, second, third = models.outputs(x.expand(3, N, FEATURES))
    assert torch.equal(first, second)  # dropout drops the same
    assert not torch.allclose(first, third)


def test_dropout_scales_as_torch_does(rng: np.random.Generator) -> None:
    x, y = torch.randn(64, FEATURES), torch.zeros(64, dtype=torch.long)
    begun = nn.Sequential(nn.Linear(FEATURES, 200), nn.Dropout(0.25), nn.Linear(200, 2))
    models = many_models(begun, 2, loss=cross_entropy, x=x, y=y)
    assert isinstance(models, AnyModels)
    dropout = models._models._many[1]
    dropped = dropout(torch.ones(2 * 64, 200)).view(2, 64, 200)
    assert torch.equal(dropped[0], dropped[1])
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    # Share of 12,800 coins: six standard deviations are 0.023.
    assert abs(float((dropped[0] == 0).float().mean()) - 0.25) < 0.023


def test_a_batch_of_nothing_but_the_record_moves_nothing() -> None:
    x, y = torch.randn(5, FEATURES), torch.arange(5) % CLASSES
    for begun in (perceptron(nn.ReLU), Own()):
        models = many_models(begun, 2, loss=cross_entropy, x=x, y=y)
        before = [part.clone() for part in models.parameters]
        train_without(
            models, x, y, [np.array([2])], left_out=np.array([2, -1]), optimizer=SGD(), rate=1.0
        )
        for part, was in zip(models.parameters, before, strict=True):
            assert torch.equal(part[0], was[0])
            assert not torch.equal(part[1], was[1])


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(FEATURES, 3), nn.BatchNorm1d(3)), "batch normalisation"),
        (nn.Sequential(nn.Linear(FEATURES, 3), nn.AlphaDropout(0.1)), "but nn.Dropout"),
        (nn.Linear(FEATURES, 2), "as many classes as the module has outputs"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(module: nn.Module, said: str) -> None:
    x, y = torch.randn(6, FEATURES), torch.arange(6) % CLASSES
    with pytest.raises(InvalidArgument, match=said):
        many_models(module, 2, loss=cross_entropy, x=x, y=y)
