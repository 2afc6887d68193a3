"""Random modules, and DP-SGD's sum by its definition: a loop over models and examples."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from epsilometer.networks.many import ManyModels

CLASSES = 3
RELATIVE = 1e-5  # of the two paths: what is promised
# Of norms: rounding is multiplied by up to 1/√eps where all numbers are nearly equal, on any path.
EPS = 0.1


@dataclass(frozen=True)
class Net:
    """A module and the examples that it takes."""

    module: nn.Module
    shape: tuple[int, ...]
    words: int = 0  # whole numbers below it, or 0 for real ones

    def examples(self, *lead: int) -> Tensor:
        if self.words:
            return torch.randint(self.words, (*lead, *self.shape))
        return torch.randn(*lead, *self.shape)


class Through(nn.Module):
    """A forward pass of one's own over some layers."""

    def __init__(self, forward: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.how = forward
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.how(x, *self.layers)


class Scaled(nn.Module):
    """A module with parameters of its own, as users write them; no ``reset_parameters``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(size) + 0.5)
        self.shift = nn.Parameter(torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift.tanh()


class Attention(nn.Module):
    """``nn.MultiheadAttention`` of a sequence to itself: one tensor in, one out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(size, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def shaken(models: ManyModels) -> None:
    """Weights that differ between models."""
    models.parameters.add_(0.3 * torch.randn_like(models.parameters))


def same_weights(one: ManyModels, other: ManyModels) -> None:
    """Gives the second the weights of the first: their columns may lie elsewhere."""
    for layer, name, start, stop in other._columns_of:
        wanted = other._prefix[id(layer)] + name
        other.parameters[:, start:stop] = by_name(one, one.parameters)[wanted].reshape(one.runs, -1)


def by_name(models: ManyModels, flat: Tensor) -> dict[str, Tensor]:
    """Columns of a flat tensor ``(runs, …)``, by the names of the plain module's parameters."""
    return {
        models._prefix[id(layer)] + name: flat[:, start:stop].view(
            len(flat), *models._plain.get_parameter(models._prefix[id(layer)] + name).shape
        )
        for layer, name, start, stop in models._columns_of
    }


def in_order(models: ManyModels, flat: Tensor) -> Tensor:
    """``(runs, size)`` in the order of ``module.named_parameters()``, without the gaps."""
    named = by_name(models, flat)
    names = [name for name, own in models._plain.named_parameters() if own.requires_grad]
    assert sorted(names) == sorted(named)
    return torch.cat([named[name].reshape(models.runs, -1) for name in names], 1)


def summed_by_definition(
    models: ManyModels,
    x: Tensor,
    y: Tensor,
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    clip: float,
    keep: Tensor,
) -> Tensor:
    """In double precision: every model by itself, every example in a batch of its own."""
    sums = []
    for run in range(models.runs):
        module = copy.deepcopy(models.model(run)).double().eval()
        own = [parameter for parameter in module.parameters() if parameter.requires_grad]
        total = torch.zeros(sum(parameter.numel() for parameter in own), dtype=torch.float64)
        for example, label, counts in zip(x[run], y[run], keep[run], strict=True):
            wide = example.double() if example.is_floating_point() else example
            value = loss(module(wide[None]), label[None]).sum()
            found = torch.autograd.grad(value, own, allow_unused=True)
            flat = torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for p, g in zip(own, found, strict=True)
                ]
            )
            total += flat * min(1.0, clip / (float(flat.norm()) + 1e-6)) * float(counts)
        sums.append(total)
    return torch.stack(sums)


def off(found: Tensor, truth: Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((found.double() - truth).norm() / truth.norm().clamp_min(1e-12))


def _activation(draw: Any) -> nn.Module:
    # Smooth ones: a kink that rounding crosses would be no mistake of either path.
    return draw(
        st.sampled_from([nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.Identity])
    )()


def _between(draw: Any, width: int) -> list[nn.Module]:
    kind = draw(st.sampled_from(["nothing", "norm", "own", "dropout", "residual", "unknown"]))
    match kind:
        case "norm":
            return [nn.LayerNorm(width, eps=EPS, bias=draw(st.booleans()))]
        case "own":
            return [Scaled(width)]
        case "dropout":
            return [nn.Dropout(0.0)]
        case "residual":
            there, back = nn.Linear(width, 2), nn.Linear(2, width)
            return [Through(lambda x, a, b: x + b(a(x).tanh()), there, back)]
        case "unknown":
            return [nn.RMSNorm(width, eps=EPS)]
    return []


@st.composite
def dense(draw: Any) -> Net:
    """Linear layers and what goes between them."""
    width = draw(st.integers(1, 6))
    shape, layers = (width,), []
    for _ in range(draw(st.integers(1, 3))):
        then = draw(st.integers(1, 6))
        layers += [nn.Linear(width, then, bias=draw(st.booleans())), _activation(draw)]
        width = then
        layers += _between(draw, width)
    return Net(nn.Sequential(*layers, nn.Linear(width, CLASSES)), shape)


@st.composite
def sequences(draw: Any) -> Net:
    """Words or vectors, several a record."""
    length, width = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    words = draw(st.sampled_from([0, 2, 6]))  # few: they come again
    layers: list[nn.Module] = []
    if words:
        padding = draw(st.sampled_from([None, 0, -1]))
        layers.append(nn.Embedding(words, width, padding_idx=padding))
    else:
        layers.append(nn.Linear(width, width, bias=draw(st.booleans())))
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["linear", "norm", "norms", "attention", "own"]))
        layers += {
            "linear": lambda: [nn.Linear(width, width), nn.Tanh()],
            "norm": lambda: [nn.LayerNorm(width, eps=EPS)],
            "norms": lambda: [nn.LayerNorm((length, width), eps=EPS)],
            "attention": lambda: [Attention(width)],
            "own": lambda: [Scaled(width)],
        }[kind]()
    layers += [nn.Flatten(), nn.Linear(length * width, CLASSES)]
    return Net(nn.Sequential(*layers), (length,) if words else (length, width), words)


@st.composite
def images(draw: Any) -> Net:
    """Convolutions of all kinds, pooling, group norms."""
    channels, shape = draw(st.integers(1, 3)), (draw(st.integers(6, 9)), draw(st.integers(6, 9)))
    layers: list[nn.Module] = []
    now, place = channels, torch.zeros(1, channels, *shape)
    for _ in range(draw(st.integers(1, 2))):
        then = 2 * draw(st.integers(1, 2))
        kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        padding: Any = draw(st.sampled_from(["same", "valid", 0, 1, (0, 2)]))
        stride: Any = 1 if padding == "same" else draw(st.sampled_from([1, 2, (2, 1), 3]))
        layer = nn.Conv2d(
            now,
            then,
            kernel,
            stride=stride,
            padding=padding,
            dilation=draw(st.sampled_from([1, 2, (1, 2)])),
            bias=draw(st.booleans()),
        )
        after = {
            "none": nn.Identity,
            "norm": lambda then=then: nn.GroupNorm(2, then, eps=EPS),
            "average": lambda: nn.AvgPool2d(2, stride=1),
            "halves": lambda: nn.AvgPool2d(2, ceil_mode=True),
            "largest": lambda: nn.MaxPool2d(2, stride=1),
            "adaptive": lambda: nn.AdaptiveAvgPool2d(2),
            "grouped": lambda then=then: nn.Conv2d(then, then, 1, groups=2),
        }[
            draw(
                st.sampled_from(
                    ["none", "norm", "average", "halves", "largest", "adaptive", "grouped"]
                )
            )
        ]()
        step = nn.Sequential(layer, _activation(draw), after)
        try:
            place = step(place)
        except (RuntimeError, ValueError):  # nothing is left of the image
            continue
        if place.numel() < 2:
            break
        layers.append(step)
        now = then
    layers += [nn.Flatten(), nn.LazyLinear(CLASSES)]
    module = nn.Sequential(*layers)
    module(torch.zeros(1, channels, *shape))
    return Net(module, (channels, *shape))


@st.composite
def nets(draw: Any) -> Net:
    """Any of them, some layers frozen wholly or in part."""
    torch.manual_seed(draw(st.integers(0, 2**20)))
    net: Net = draw(st.one_of(dense(), sequences(), images()))
    freeze = draw(st.sampled_from(["nothing", "a layer", "a parameter"]))
    names = [name for name, _ in net.module.named_parameters()]
    if freeze != "nothing" and len(names) > 2:
        chosen = draw(st.sampled_from(names[:-2]))  # not the last layer
        prefix = chosen.rpartition(".")[0] if freeze == "a layer" else chosen
        for name, parameter in net.module.named_parameters():
            if name.startswith(prefix):
                parameter.requires_grad_(False)
    return net
