"""Layers that are sampled from: torch's own values, and the law of its dropout."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from epsilometer.networks.many import ManyModels
from epsilometer.networks.quick_layers import (
    QuickDropout,
    QuickMaxPool,
    Tanh,
    quicken_layer,
)
from tests.oracles import FLAKE


@pytest.mark.parametrize("p", [0.5, 0.25, 1 / 256, 0.3, 0.9, 1e-3])
def test_so_many_are_dropped_as_p_says_and_the_rest_is_scaled(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 1003)  # no multiple of a word
    dropped = QuickDropout(nn.Dropout(p))(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], torch.full((int(kept.sum()),), 1 / (1 - p)))
    gone = int((~kept).sum())
    assert scipy.stats.binomtest(gone, x.numel(), p).pvalue > FLAKE
    assert torch.equal(x, torch.ones(1000, 1003))


@pytest.mark.parametrize("p", [0.5, 0.3])
def test_what_is_dropped_is_independent_of_its_neighbours_and_of_other_calls(p: float) -> None:
    torch.manual_seed(0)
    layer = QuickDropout(nn.Dropout(p))
    first, second = (layer(torch.ones(10_000, 64)).numpy() != 0 for _ in range(2))
    flat = first.ravel()
    pairs = [(flat[:-lag], flat[lag:]) for lag in (1, 2, 7, 8, 64)] + [(flat, second.ravel())]
    for here, there in pairs:
        correlation = np.corrcoef(here, there)[0, 1]
        assert abs(correlation) < scipy.stats.norm.isf(FLAKE / 2) * here.size**-0.5
    both = np.bincount(first[:, :8] @ (1 << np.arange(8)), minlength=256)  # of one word
    ones = np.array([bin(mask).count("1") for mask in range(256)])
    expected = len(first) * p ** (8 - ones) * (1 - p) ** ones
    large = expected > 5
    statistic = (((both - expected) ** 2) / expected)[large].sum()
    assert scipy.stats.chi2.sf(statistic, large.sum()) > FLAKE


def test_numbers_that_are_dropped_come_from_torch_and_its_seed() -> None:
    layer = QuickDropout(nn.Dropout(0.5))
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(layer(torch.ones(4, 100)))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("size", [2, 3, (1, 2), (3, 2)])
@pytest.mark.parametrize("shape", [(8, 8), (9, 7), (3, 3)])
def test_pooling_is_that_of_torch(size: int | tuple[int, int], shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer, z = nn.MaxPool2d(size), torch.randn(5, 3, *shape)
    found = quicken_layer(layer)
    assert isinstance(found, QuickMaxPool)
    assert torch.equal(found(z), layer(z))


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(3, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.Dropout(0.0),
        nn.Dropout(1.0),
        nn.Dropout(0.5).eval(),
        nn.Dropout2d(0.5),
        nn.ReLU(),
    ],
)
def test_other_layers_stay_as_they_are(layer: nn.Module) -> None:
    assert quicken_layer(layer) is layer


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"bias": False},
        {"stride": 2, "padding": 1},
        {"padding": (2, 0)},
        {"padding": "same", "dilation": 2},
    ],
)
def test_a_convolution_is_that_of_each_model(how: dict[str, object]) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3, **how), nn.Flatten())
    models = ManyModels(module, 4)
    models.reset("fresh", torch.Generator().manual_seed(0))
    x = torch.randn(4, 5, 2, 9, 8)
    with torch.no_grad():
        alone = torch.stack([models.model(run)(x[run]) for run in range(4)])
        torch.testing.assert_close(models(x), alone)


@pytest.mark.parametrize("size", [10, 30_000])  # torch's own, and that of oneDNN
def test_the_tanh_and_its_derivative_are_exact(size: int) -> None:
    z = torch.linspace(-12, 12, size) ** 3 / 100  # also next to 0
    z[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    z.requires_grad_()
    bent = Tanh()(z)
    exact = z.detach().double().tanh()
    torch.testing.assert_close(bent.double(), exact, rtol=3e-7, atol=0, equal_nan=True)
    (slope,) = torch.autograd.grad(bent.sum(), z)
    torch.testing.assert_close(slope.double(), 1 - exact**2, rtol=0, atol=1e-6, equal_nan=True)
