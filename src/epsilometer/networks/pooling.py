"""Averages and largest of neighbouring pixels, for which torch takes long."""

import functools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from epsilometer._extras import has


class MeanPool(nn.Module):
    """``nn.AvgPool2d`` whose pixels do not overlap, and the ``nn.Tanh`` before it if ``bent``.

    On CUDA, where there is Triton, one kernel; on the CPU a product of matrices.
    """

    def __init__(self, layer: nn.AvgPool2d, *, bent: bool) -> None:
        super().__init__()
        self.layer, self.bent = layer, bent

    def forward(self, z: Tensor) -> Tensor:
        """Averages."""
        kernel = _pair(self.layer.kernel_size)
        whole = z.ndim == 4 and all(s % k == 0 for s, k in zip(z.shape[2:], kernel, strict=True))
        pooled: Tensor
        if whole and z.is_cuda and z.dtype == torch.float32 and has("triton"):
            from epsilometer.networks import _pooling_cuda

            apply: Any = _pooling_cuda.MeanPool.apply
            pooled = apply(z, kernel, self.bent)
            return pooled
        z = z.tanh() if self.bent else z
        if whole and z.device.type == "cpu":
            by_products: Any = _ByProducts.apply
            pooled = by_products(z, kernel)
            return pooled
        pooled = self.layer(z)
        return pooled


class _ByProducts(torch.autograd.Function):
    """Rows are added, columns multiplied with a matrix that averages them: long runs of memory."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, kernel: tuple[int, int]) -> Tensor:
        """Averages."""
        high, wide = kernel
        columns = z.shape[3] // wide
        average = torch.eye(columns, dtype=z.dtype).repeat_interleave(wide, 0) / (high * wide)
        ctx.high = high
        ctx.save_for_backward(average)
        rows = z.reshape(*z.shape[:2], -1, high, z.shape[3]).unbind(3)
        return functools.reduce(torch.add, rows) @ average

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Each average's derivative, to all its pixels."""
        (average,) = ctx.saved_tensors
        return (backs[0] @ average.T).repeat_interleave(ctx.high, 2), None


class MaxPool(nn.Module):
    """``nn.MaxPool2d`` whose pixels do not overlap: on a GPU, derivatives go where they belong."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, z: Tensor) -> Tensor:
        """The largest of each."""
        apply: Any = _Largest.apply if z.is_cuda else lambda z, layer: layer(z)
        largest: Tensor = apply(z, self.layer)
        return largest


class _Largest(torch.autograd.Function):
    """A pixel is in one pool at most: written once, where torch looks which pools it is in."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, layer: nn.MaxPool2d) -> Tensor:
        """The largest, and where it is."""
        largest, where = F.max_pool2d(z, layer.kernel_size, return_indices=True)
        ctx.shape = z.shape
        ctx.save_for_backward(where)
        return largest

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """To the largest alone."""
        (where,) = ctx.saved_tensors
        out = backs[0].new_zeros(ctx.shape)
        out.flatten(-2).scatter_(-1, where.flatten(-2), backs[0].flatten(-2))
        return out, None


def quicken(parent: nn.Module) -> None:
    """Puts :class:`MeanPool` and :class:`MaxPool` in the place of a module's own pooling layers.

    Averages with the tanh before them where the module is a sequence: elsewhere nobody knows what
    its output is used for.
    """
    before: tuple[str, nn.Module] | None = None
    for name, child in list(parent.named_children()):
        if type(child) is nn.AvgPool2d and _apart(child):
            bent = (
                type(parent) is nn.Sequential and before is not None and type(before[1]) is nn.Tanh
            )
            setattr(parent, name, MeanPool(child, bent=bent))
            if bent and before is not None:
                setattr(parent, before[0], nn.Identity())
        elif type(child) is nn.MaxPool2d and _apart_too(child):
            setattr(parent, name, MaxPool(child))
        before = (name, child)


def _apart(layer: nn.AvgPool2d) -> bool:
    """Whether every pixel is in one average at most, and no padding is."""
    kernel = _pair(layer.kernel_size)
    plain = layer.divisor_override is None and _pair(layer.padding) == (0, 0)
    return plain and _pair(layer.stride) == kernel


def _apart_too(layer: nn.MaxPool2d) -> bool:
    plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    plain = plain and not (layer.ceil_mode or layer.return_indices)
    return plain and _pair(layer.stride) == _pair(layer.kernel_size)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
