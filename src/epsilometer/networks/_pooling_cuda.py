"""Averages of neighbouring pixels as Triton kernels, with the tanh before them if there is one."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_SIZE, _WARPS = 1024, 4  # pixels of a program at least


@triton.jit
def _tanh(x):
    """Compute tanh with a relative error of about 2e-7."""
    square = x * x
    near = -17 / 315 + square * (62 / 2835)
    near = 1.0 + square * (-1 / 3 + square * (2 / 15 + square * near))
    low = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - low) / (1.0 + low)
    return tl.where(square < 0.0625, x * near, tl.where(x < 0, -far, far))


@triton.jit
def _average(
    out, z, rows, width: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr, bent: tl.constexpr,
    each: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Average ``(kh, kw)`` pixels, ``each`` rows of averages per program."""
    first = tl.program_id(0).to(tl.int64) * each
    index = tl.arange(0, size)
    row, right = index // width, index % width
    live = (row < each) & (first + row < rows)
    at = z + first * (kh * kw * width) + (row * (kh * kw * width) + right * kw)
    total = tl.zeros([size], tl.float32)
    for i in tl.static_range(kh):
        for j in tl.static_range(kw):
            value = tl.load(at + (i * kw * width + j), mask=live, other=0.0)
            if bent:
                value = _tanh(value)
            total += value
    tl.store(out + first * width + index, total / (kh * kw), mask=live)


@triton.jit
def _share(
    out, back, z, rows, width: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    bent: tl.constexpr, each: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Compute the gradient by the pixels under ``each`` rows of averages."""
    first = tl.program_id(0).to(tl.int64) * each
    index = tl.arange(0, size)
    row, right = index // (kh * kw * width), index % (kw * width) // kw
    live = (row < each) & (first + row < rows)
    value = tl.load(back + first * width + (row * width + right), mask=live, other=0.0)
    value = value / (kh * kw)
    pixel = first * (kh * kw * width) + index
    if bent:
        curve = _tanh(tl.load(z + pixel, mask=live, other=0.0))
        value = value * (1.0 - curve * curve)
    tl.store(out + pixel, value, mask=live)


class MeanPool(torch.autograd.Function):
    """Average pixels in windows that tile the image; ``bent`` applies tanh first."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, kernel: tuple[int, int], bent: bool) -> Tensor:
        """Return averages."""
        z = z.contiguous()
        out = z.new_empty(*z.shape[:-2], z.shape[-2] // kernel[0], z.shape[-1] // kernel[1])
        ctx.kernel, ctx.bent, ctx.shape = kernel, bent, z.shape
        ctx.save_for_backward(*[z] if bent else [])
        _launch(_average, (out, z), out, kernel, bent, pixels=1)
        return out

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Distribute the gradient over the pixels."""
        back = backs[0].contiguous()
        out = back.new_empty(ctx.shape)
        z = ctx.saved_tensors[0] if ctx.bent else out
        _launch(_share, (out, back, z), back, ctx.kernel, ctx.bent, pixels=math.prod(ctx.kernel))
        return out, None, None


def _launch(
    kernel: Any, tensors: Any, pooled: Tensor, sides: tuple[int, int], bent: bool, *, pixels: int
) -> None:
    """Start programs of whole rows of averages, so that only their first one needs 64 bits."""
    width = pooled.shape[-1]
    size = max(_SIZE, triton.next_power_of_2(pixels * width))
    each, rows = size // (pixels * width), pooled.numel() // width
    with torch.cuda.device_of(pooled):
        kernel[(triton.cdiv(rows, each),)](
            *tensors, rows, width=width, kh=sides[0], kw=sides[1], bent=bent, each=each, size=size,
            num_warps=_WARPS,
        )  # fmt: skip
