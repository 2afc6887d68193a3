"""Kernels for convolutions and pooling: what torch computes, on every shape, to the last bytes."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from epsilometer.networks import convolution
from epsilometer.networks.ensemble import EnsembleDPSGD
from epsilometer.networks.many import ManyModels, per_example
from epsilometer.networks.quick_layers import MaxPool, MeanPool

LOSS = per_example(F.cross_entropy)
# Float32 sums in another order: some 1e-7 of what is summed, with room for what cancels.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> str:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # what is compared with
    return "cuda"


def drawn(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, int, int]]:
    """Two convolutions of any shape, and what they are given."""
    ins, hidden, outs = (int(n) for n in rng.integers(1, [5, 20, 40]))
    kernels = rng.integers(1, 6, (2, 2))
    strides, dilations = rng.integers(1, 4, (2, 2)), rng.integers(1, 3, (2, 2))
    paddings = rng.integers(0, 3, (2, 2))
    parts: list[nn.Module] = []
    # As large as it takes for the second to have a place at all, and a bit.
    size = np.ones(2, np.int64) + rng.integers(0, 9, 2)
    channels = (ins, hidden, outs)
    for layer in (1, 0):
        sides: dict[str, Any] = {
            name: tuple(int(side) for side in values[layer])
            for name, values in (
                ("kernel_size", kernels), ("stride", strides),
                ("dilation", dilations), ("padding", paddings),
            )
        }  # fmt: skip
        conv = nn.Conv2d(channels[layer], channels[layer + 1], bias=bool(rng.integers(2)), **sides)
        parts[:0] = [conv, nn.Tanh()]
        size = (size - 1) * strides[layer] + dilations[layer] * (kernels[layer] - 1) + 1
        size = np.maximum(size - 2 * paddings[layer], 1)
    module = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outs, 3))
    return module, (ins, int(size[0]), int(size[1]))


@pytest.mark.parametrize("seed", range(12))
def test_sums_are_those_of_patches_and_of_torch_func(
    seed: int, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, found = both(seed, cuda, whole=False)
    again = both(seed, cuda, whole=False)
    assert torch.equal(found, again[1])  # to the last bytes
    assert torch.equal(outputs, again[0])
    others = [both(seed, cuda, whole=True)]
    monkeypatch.setattr(convolution, "_has_kernels", lambda *_: False)
    others.append(both(seed, cuda, whole=False))
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(convolution, "keeps_gradients", lambda *_: False)
    others.append(both(seed, cuda, whole=False))  # by pairs of pixels, with kernels
    for other in others:
        torch.testing.assert_close((outputs, found), other, **CLOSE)


@pytest.mark.parametrize("seed", range(12))
def test_sums_of_patches_are_those_of_torch_func(seed: int) -> None:
    torch.testing.assert_close(
        both(seed, "cpu", whole=False), both(seed, "cpu", whole=True), **CLOSE
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.in_turn(3)
def test_sums_of_images_are_those_of_patches(
    seed: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU that has no kernels of ours: with gradients kept, and with pairs of pixels."""
    patches = both(seed, "cpu", whole=False)
    monkeypatch.setattr(convolution.ManyConv2d, "_copies_patches", lambda *_: False)
    monkeypatch.setattr(convolution, "keeps_gradients", lambda *_: kept)
    torch.testing.assert_close(both(seed, "cpu", whole=False), patches, **CLOSE)


def test_a_tap_left_out_of_pairs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = nn.Conv2d(2, 3, (2, 3), stride=(1, 2), dilation=(2, 1))
    x = torch.rand(4, 2, 8, 9, generator=torch.Generator().manual_seed(0))
    columns, places = convolution._columns(x, conv)
    truth = columns.transpose(1, 2) @ columns
    torch.testing.assert_close(convolution._pairs_of_patches(x, places, conv), truth)
    monkeypatch.setattr(convolution, "_add_views", lambda views: list(views)[-1].contiguous())
    assert not torch.allclose(convolution._pairs_of_patches(x, places, conv), truth)


def both(seed: int, device: str, *, whole: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and sums of some models."""
    rng = np.random.default_rng(seed)
    module, shape = drawn(rng)
    runs, examples = 3, 7
    x = torch.from_numpy(rng.standard_normal((runs, examples, *shape), np.float32)).to(device)
    y = torch.from_numpy(rng.integers(3, size=(runs, examples))).to(device)
    models = ManyModels(module, runs, device=device, whole=whole)
    models.reset("fresh", torch.Generator(device).manual_seed(seed))
    sums = models.sum_clipped(x, y, loss=LOSS, clip=0.1, keep=torch.ones_like(y))
    with torch.no_grad():
        return models(x), sums[:, models.used]


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 84), nn.Tanh(), nn.Linear(84, 2),
    )  # fmt: skip


def test_training_is_that_of_torch_func(cuda: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 1, 28, 28), np.float32)
    y = rng.integers(2, size=60)
    ends = []
    for path in ("auto", "general"):
        plan = EnsembleDPSGD(
            lenet(), F.cross_entropy, runs=3, noise_multiplier=0.0, learning_rate=0.5,
            batch_size=20, device=cuda, path=path, initial="given",
        )  # fmt: skip
        torch.manual_seed(0)
        plan.module.apply(lambda part: getattr(part, "reset_parameters", lambda: None)())
        models = plan.train(x, y, rng=np.random.default_rng(1)).models
        ends.append(models.parameters[:, models.used])
    torch.testing.assert_close(*ends, **CLOSE)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 1), (1, 4), (5, 7)])
@pytest.mark.parametrize("bent", [True, False])
def test_averages_are_those_of_torch(
    kernel: tuple[int, int], bent: bool, cuda: str, rng: np.random.Generator
) -> None:
    layer = nn.AvgPool2d(kernel)
    for planes, height, width in ((1, 1, 1), (7, 14, 5), (300, 3, 9), (2, 2, 500)):
        size = (2, planes, height * kernel[0], width * kernel[1])
        z = torch.from_numpy(3 * rng.standard_normal(size, np.float32)).to(cuda).requires_grad_()
        mine, torchs = MeanPool(layer, bent=bent)(z), layer(z.tanh() if bent else z)
        torch.testing.assert_close(mine, torchs, rtol=1e-6, atol=1e-6)
        back = torch.rand_like(mine)
        (mine,), (torchs,) = (torch.autograd.grad(out, z, back) for out in (mine, torchs))
        torch.testing.assert_close(mine, torchs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 1)])
def test_the_largest_are_those_of_torch(
    kernel: tuple[int, int], cuda: str, rng: np.random.Generator
) -> None:
    layer = nn.MaxPool2d(kernel)
    z = torch.from_numpy(rng.integers(0, 4, (2, 3, 13, 8)).astype(np.float32)).to(cuda)  # with ties
    z.requires_grad_()
    mine, torchs = MaxPool(layer)(z), layer(z)
    assert torch.equal(mine, torchs)
    back = torch.rand_like(mine)
    (mine,), (torchs,) = (torch.autograd.grad(out, z, back) for out in (mine, torchs))
    assert torch.equal(mine, torchs)


# Without CUDA: which layers are replaced


@pytest.mark.parametrize(
    ("layer", "replaced"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((2, 1)), True),
        (nn.MaxPool2d(3, stride=2), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d(2, dilation=2), False),
    ],
    ids=range(6),
)
def test_pools_that_do_not_overlap_are_replaced(layer: nn.MaxPool2d, replaced: bool) -> None:
    many = ManyModels(nn.Sequential(nn.Conv2d(1, 2, 3), layer), 2)._many
    assert any(isinstance(part, MaxPool) for part in many.modules()) == replaced


def pools(module: nn.Module) -> list[bool]:
    """Of every pooling layer that was replaced, whether with the tanh before it."""
    many = ManyModels(module, 2)._many
    return [part.bent for part in many.modules() if isinstance(part, MeanPool)]


def test_pooling_is_replaced_with_the_tanh_before_it() -> None:
    assert pools(lenet()) == [True, True]
    relu = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    assert pools(relu) == [False]
    for other in (
        nn.AvgPool2d(2, stride=1),
        nn.AvgPool2d(2, padding=1),
        nn.AvgPool2d(2, divisor_override=3),
        nn.MaxPool2d(2),
    ):
        assert pools(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), other)) == []


def test_a_tanh_that_is_used_twice_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.tanh, self.pool = nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AvgPool2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.tanh(self.conv(x))
            return self.pool(z).mean((2, 3)) + z.mean((2, 3))

    assert pools(Twice()) == [False]
    assert ManyModels(Twice(), 2).agree(torch.rand(2, 1, 8, 8))


def test_replaced_layers_compute_the_same() -> None:
    models = ManyModels(lenet(), 2)
    assert models.agree(torch.rand(2, 1, 28, 28))
    uneven = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten())
    assert ManyModels(uneven, 2).agree(torch.rand(2, 1, 9, 9))
