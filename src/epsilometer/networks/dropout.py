"""Layers as they are sampled from on the CPU: without derivatives, and so quicker.

Torch draws dropout number by number, pools pixel by pixel, and layers of many models keep patches
that only derivatives need.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from epsilometer.networks.convolution import ManyConv2d


class QuickDropout(nn.Module):
    """``nn.Dropout``: a number is dropped where a few random bits are below p.

    Eight bits where p is a multiple of 1/256, else 32: p is then right to 10⁻¹⁰.
    """

    def __init__(self, layer: nn.Dropout) -> None:
        super().__init__()
        self.p = layer.p
        self.kind, self.bits = (torch.int8, 8) if self.p * 256 % 1 == 0 else (torch.int32, 32)
        self.least = round(self.p * 2**self.bits) - 2 ** (self.bits - 1)

    def forward(self, x: Tensor) -> Tensor:
        """What is left, times 1/(1 − p)."""
        words = torch.empty(-(-x.numel() * self.bits // 64), dtype=torch.int64)
        drawn = words.random_(-(2**63), None).view(self.kind)[: x.numel()].view(x.shape)
        kept: Tensor = drawn >= self.least
        return kept.to(x.dtype).mul_(x).mul_(1 / (1 - self.p))


class QuickMaxPool(nn.Module):
    """``nn.MaxPool2d`` whose windows lie side by side: rows first, then columns."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self.high, self.wide = _pair(layer.kernel_size)

    def forward(self, z: Tensor) -> Tensor:
        """The largest of every window."""
        rows, columns = z.shape[2] // self.high, z.shape[3] // self.wide
        z = z[:, :, : rows * self.high, : columns * self.wide]
        z = z.reshape(*z.shape[:2], rows, self.high, columns * self.wide)
        tall = functools.reduce(torch.maximum, z.unbind(3))
        return functools.reduce(
            torch.maximum, [tall[..., at :: self.wide] for at in range(self.wide)]
        )


class QuickConv2d(nn.Module):
    """A convolution of many models: torch's own, model by model."""

    def __init__(self, layer: ManyConv2d) -> None:
        super().__init__()
        self.layer = (layer,)  # in a tuple: it stays part of the models alone

    def forward(self, x: Tensor) -> Tensor:
        """All models' outputs."""
        (many,) = self.layer
        one: Any = many.original[0]
        runs = many.tape.runs
        biases = many.own.get("bias", [None] * runs)
        found = [
            F.conv2d(own, weight, bias, one.stride, one.padding, one.dilation)
            for own, weight, bias in zip(x.chunk(runs), many.own["weight"], biases, strict=True)
        ]
        return torch.cat(found)


def quick(layer: nn.Module) -> nn.Module:
    """A layer that gives what the given one does in training, without derivatives; or itself."""
    if type(layer) is nn.Dropout and layer.training and 0 < layer.p < 1:
        return QuickDropout(layer)
    if type(layer) is nn.MaxPool2d and _side_by_side(layer):
        return QuickMaxPool(layer)
    return QuickConv2d(layer) if type(layer) is ManyConv2d else layer


def _side_by_side(layer: nn.MaxPool2d) -> bool:
    alike = _pair(layer.stride) == _pair(layer.kernel_size)
    plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    return alike and plain and not layer.ceil_mode and not layer.return_indices


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
