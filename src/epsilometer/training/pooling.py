"""Averages of neighbouring pixels, for which torch takes long."""

import functools
from typing import Any

import torch
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
            from epsilometer.training import _pooling_cuda

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


def quicken(parent: nn.Module) -> None:
    """Puts :class:`MeanPool` in the place of a module's own pooling layers.

    With the tanh before them where the module is a sequence: elsewhere nobody knows what its
    output is used for.
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
        before = (name, child)


def _apart(layer: nn.AvgPool2d) -> bool:
    """Whether every pixel is in one average at most, and no padding is."""
    kernel = _pair(layer.kernel_size)
    plain = layer.divisor_override is None and _pair(layer.padding) == (0, 0)
    return plain and _pair(layer.stride) == kernel


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
