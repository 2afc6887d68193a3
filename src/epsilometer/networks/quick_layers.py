"""Replace slow layers of torch by faster ones that compute the same.

Pooling is slow on every device, the tanh on the CPU. Where no derivatives are needed, torch still
draws dropout number by number, and pools pixel by pixel.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from epsilometer._extras import has

_LARGE = 20_000  # numbers from which oneDNN is quicker, though it takes copies


class Tanh(nn.Module):
    """``nn.Tanh``: on a CPU by oneDNN, where there is much of it."""

    def forward(self, z: Tensor) -> Tensor:
        """Return the tanh of every number."""
        apply: Any = _Tanh.apply if _is_quick(z) else torch.tanh
        bent: Tensor = apply(z)
        return bent


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        """Return the tanh."""
        bent = compute_tanh(z)
        ctx.save_for_backward(bent)
        return bent

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Differentiate by what was returned."""
        derive: Any = torch.ops.aten.tanh_backward
        return derive(backs[0], *ctx.saved_tensors)


def compute_tanh(z: Tensor) -> Tensor:
    """Return the tanh, without derivatives: oneDNN takes a fifth of the time, as exactly."""
    if not _is_quick(z):
        return z.tanh()
    there: Any = z.to_mkldnn()
    bent: Tensor = there.tanh_().to_dense()
    return bent


def _is_quick(z: Tensor) -> bool:
    """Tell whether oneDNN computes the tanh faster: it copies large tensors."""
    onednn: Any = torch.backends.mkldnn  # torch has no types for it
    plain = z.device.type == "cpu" and z.dtype == torch.float32 and z.numel() >= _LARGE
    return plain and bool(onednn.is_available())


class MeanPool(nn.Module):
    """``nn.AvgPool2d`` whose pixels do not overlap, and the ``nn.Tanh`` before it if ``bent``.

    On CUDA, where there is Triton, one kernel; on the CPU a product of matrices.
    """

    def __init__(self, layer: nn.AvgPool2d, *, bent: bool) -> None:
        super().__init__()
        self.layer, self.bent = layer, bent

    def forward(self, z: Tensor) -> Tensor:
        """Return averages."""
        kernel = _pair(self.layer.kernel_size)
        whole = z.ndim == 4 and all(s % k == 0 for s, k in zip(z.shape[2:], kernel, strict=True))
        pooled: Tensor
        if whole and z.is_cuda and z.dtype == torch.float32 and has("triton"):
            from epsilometer.networks import _pooling_cuda

            apply: Any = _pooling_cuda.MeanPool.apply
            pooled = apply(z, kernel, self.bent)
            return pooled
        if whole and z.device.type == "cpu":
            by_products: Any = _ByProducts.apply
            pooled = by_products(z, kernel, self.bent)
            return pooled
        pooled = self.layer(z.tanh() if self.bent else z)
        return pooled


class _ByProducts(torch.autograd.Function):
    """Average by adding rows and multiplying columns with a matrix, in contiguous memory.

    Derivatives reach all rows and columns of an average by one product.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, kernel: tuple[int, int], bent: bool) -> Tensor:
        """Return averages, of the tanh where it is ``bent``."""
        high = kernel[0]
        z = compute_tanh(z) if bent else z
        average, ctx.back = _average_columns(z.shape[3], kernel, z.dtype)
        ctx.shape = z.shape
        ctx.save_for_backward(*([z] if bent else []))
        rows = z.reshape(*z.shape[:2], -1, high, z.shape[3]).unbind(3)
        return functools.reduce(torch.add, rows) @ average

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Return each average's derivative, to all its pixels."""
        each = (backs[0] @ ctx.back).view(ctx.shape)
        for bent in ctx.saved_tensors:
            by_tanh: Any = torch.ops.aten.tanh_backward.grad_input
            by_tanh(each, bent, grad_input=each)
        return each, None, None


@functools.lru_cache(32)
def _average_columns(
    width: int, kernel: tuple[int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the matrix that averages added rows, and the one that spreads gradients to rows."""
    high, wide = kernel
    average = torch.eye(width // wide, dtype=dtype).repeat_interleave(wide, 0) / (high * wide)
    return average, average.T.repeat(1, high)


class MaxPool(nn.Module):
    """``nn.MaxPool2d`` whose pixels do not overlap: on a GPU, derivatives go where they belong."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, z: Tensor) -> Tensor:
        """Return the largest of each."""
        apply: Any = _Largest.apply if z.is_cuda else lambda z, layer: layer(z)
        largest: Tensor = apply(z, self.layer)
        return largest


class _Largest(torch.autograd.Function):
    """Max-pool in windows that do not overlap: each pixel's gradient is written once."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, layer: nn.MaxPool2d) -> Tensor:
        """Return the largest, and where it is."""
        largest, where = F.max_pool2d(z, layer.kernel_size, return_indices=True)
        ctx.shape = z.shape
        ctx.save_for_backward(where)
        return largest

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Give derivatives to the largest alone."""
        (where,) = ctx.saved_tensors
        out = backs[0].new_zeros(ctx.shape)
        out.flatten(-2).scatter_(-1, where.flatten(-2), backs[0].flatten(-2))
        return out, None


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
        """Return what is left, times 1/(1 − p)."""
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
        """Return the largest of every window."""
        rows, columns = z.shape[2] // self.high, z.shape[3] // self.wide
        z = z[:, :, : rows * self.high, : columns * self.wide]
        z = z.reshape(*z.shape[:2], rows, self.high, columns * self.wide)
        tall = functools.reduce(torch.maximum, z.unbind(3))
        return functools.reduce(
            torch.maximum, [tall[..., at :: self.wide] for at in range(self.wide)]
        )


def quicken_pooling(parent: nn.Module) -> None:
    """Put :class:`MeanPool` and :class:`MaxPool` in the place of a module's own pooling layers.

    And :class:`Tanh`. Averages with the tanh before them where the module is a sequence: elsewhere
    no one knows what its output is used for.
    """
    before: tuple[str, nn.Module] | None = None
    for name, child in list(parent.named_children()):
        if type(child) is nn.AvgPool2d and _averages_apart(child):
            bent = (
                type(parent) is nn.Sequential and before is not None and type(before[1]) is nn.Tanh
            )
            setattr(parent, name, MeanPool(child, bent=bent))
            if bent and before is not None:
                setattr(parent, before[0], nn.Identity())
        elif type(child) is nn.MaxPool2d and _tiles(child):
            setattr(parent, name, MaxPool(child))
        elif type(child) is nn.Tanh:
            setattr(parent, name, Tanh())
        before = (name, child)


def quicken_layer(layer: nn.Module) -> nn.Module:
    """Return a layer that computes the same in training without derivatives; or the layer."""
    if type(layer) is nn.Dropout and layer.training and 0 < layer.p < 1:
        return QuickDropout(layer)
    if type(layer) is nn.MaxPool2d and _tiles(layer):
        return QuickMaxPool(layer)
    return layer


def _averages_apart(layer: nn.AvgPool2d) -> bool:
    """Tell whether every pixel is in at most one average, without padding."""
    kernel = _pair(layer.kernel_size)
    plain = layer.divisor_override is None and _pair(layer.padding) == (0, 0)
    return plain and _pair(layer.stride) == kernel


def _tiles(layer: nn.MaxPool2d) -> bool:
    """Tell whether the windows of a pooling tile the image, without padding."""
    plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    plain = plain and not (layer.ceil_mode or layer.return_indices)
    return plain and _pair(layer.stride) == _pair(layer.kernel_size)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
