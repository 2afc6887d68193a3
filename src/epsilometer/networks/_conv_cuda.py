"""Convolutions of many models as Triton kernels that copy no patches.

Each thread holds several output channels of several rows of one column in registers. A pixel is
loaded once for all its products, and weights are loaded four at a time. Sums have a fixed order, so
that the same inputs give the same bytes. No intermediate has less precision than float32.
"""

# Triton knows tuples, but not *; and its branches are taken when it compiles.
# ruff: noqa: RUF005, PLR0912
# mypy: disable-error-code="assignment, var-annotated"

from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHANNELS = 16  # of a program at most
_SUMS = 84  # of a thread at most: what its registers hold without spilling
_THREADS, _WARPS = 128, 4  # of a program
_LANES = 64  # fewer than threads, or Triton would hand what it loads from thread to thread
_REGISTERS = 168  # of a thread: three programs at once on a multiprocessor


@dataclass(frozen=True)
class Shape:
    """Shape of a convolution, for which kernels are compiled: padded input and output."""

    outs: int
    ins: int
    high: int
    wide: int
    height: int
    width: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int


def shape_of(x: Tensor, weight: Tensor, stride: Any, dilation: Any) -> Shape:
    """Return the shape of a convolution with ``(models, outs, ins, kh, kw)`` weights."""
    _, ins, high, wide = x.shape
    outs, (kh, kw) = weight.shape[1], weight.shape[3:]
    height = (high - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    width = (wide - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    return Shape(outs, ins, high, wide, height, width, kh, kw, *stride, *dilation)


@triton.jit
def _forward(
    out, x, kernel, bias, examples, tiles, apart,
    outs: tl.constexpr, ins: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    sh: tl.constexpr, sw: tl.constexpr, dh: tl.constexpr, dw: tl.constexpr,
    biased: tl.constexpr, padded: tl.constexpr, block: tl.constexpr, size: tl.constexpr,
    stack: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of one model, ``stack`` rows of each column of an example at a time."""
    run = (tl.program_id(0) // tiles).to(tl.int64)
    lane = (tl.program_id(0) % tiles) * size + tl.arange(0, size)
    o = tl.program_id(1) * block + tl.arange(0, block)
    stacks: tl.constexpr = (height + stack - 1) // stack
    live = lane < examples * (stacks * width)
    lane = tl.where(live, lane, 0)
    n, down, right = lane // (stacks * width), lane // width % stacks * stack, lane % width
    at = x + run * examples * (ins * high * wide)
    at += n * (ins * high * wide) + down * (sh * wide) + right * sw
    weights = kernel + run * (ins * kh * kw * padded) + o
    total = ()
    for _ in tl.static_range(stack):
        start = tl.zeros([block, size], tl.float32)
        if biased:
            start += tl.load(bias + run * apart + o, mask=o < outs, other=0.0)[:, None]
        total = total + (start,)
    for _ in range(ins):
        for j in tl.static_range(kw):
            column = ()
            for r in tl.static_range((stack - 1) * sh + (kh - 1) * dh + 1):
                if height % stack == 0:
                    value = tl.load(at + (r * wide + j * dw))
                else:
                    value = tl.load(at + (r * wide + j * dw), mask=down * sh + r < high, other=0.0)
                column = column + (value,)
            for i in tl.static_range(kh):
                weight = tl.load(weights + (i * kw + j) * padded)
                more = ()
                for v in tl.static_range(stack):
                    more = more + (total[v] + weight[:, None] * column[v * sh + i * dh][None, :],)
                total = more
        at += high * wide
        weights += kh * kw * padded
    places: tl.constexpr = height * width
    to = (n * (outs * places) + down * width + right)[None, :] + o[:, None] * places
    # In one dimension, or Triton would move everything between threads before it stores.
    to = out + run * examples * (outs * places) + tl.reshape(to, [block * size])
    for v in tl.static_range(stack):
        kept = (live & (down + v < height))[None, :] & (o < outs)[:, None]
        value = tl.reshape(total[v], [block * size])
        tl.store(to + v * width, value, mask=tl.reshape(kept, [block * size]))


@triton.jit
def _backward(
    out, back, kernel, examples, tiles,
    outs: tl.constexpr, ins: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    sh: tl.constexpr, sw: tl.constexpr, dh: tl.constexpr, dw: tl.constexpr,
    padded: tl.constexpr, block: tl.constexpr, size: tl.constexpr, stack: tl.constexpr,
):  # fmt: skip
    """Compute the gradient by the pixels of one model; ``stack`` is a multiple of the stride."""
    run = (tl.program_id(0) // tiles).to(tl.int64)
    lane = (tl.program_id(0) % tiles) * size + tl.arange(0, size)
    c = tl.program_id(1) * block + tl.arange(0, block)
    stacks: tl.constexpr = (high + stack - 1) // stack
    live = lane < examples * (stacks * wide)
    lane = tl.where(live, lane, 0)
    n, down, right = lane // (stacks * wide), lane // wide % stacks * stack, lane % wide
    at = back + run * examples * (outs * height * width) + n * (outs * height * width)
    weights = kernel + run * (outs * kh * kw * padded) + c
    total = ()
    for _ in tl.static_range(stack):
        total = total + (tl.zeros([block, size], tl.float32),)
    # Pixel row v of the stack has output row (v − i·dh)/sh of it under tap i, if that is whole.
    above: tl.constexpr = ((kh - 1) * dh + sh - 1) // sh
    for _ in range(outs):
        for j in tl.static_range(kw):
            x = right - j * dw
            there = (x >= 0) & (x < width * sw)
            if sw > 1:
                there &= x % sw == 0
            column = ()
            for r in tl.static_range(above + (stack + sh - 1) // sh):
                y = down // sh + (r - above)
                ok = there & (y >= 0) & (y < height)
                column = column + (tl.load(at + (y * width + x // sw), mask=ok, other=0.0),)
            for i in tl.static_range(kh):
                weight = tl.load(weights + (i * kw + j) * padded)
                more = ()
                for v in tl.static_range(stack):
                    if (v + above * sh - i * dh) % sh == 0:
                        value = column[(v + above * sh - i * dh) // sh]
                        more = more + (total[v] + weight[:, None] * value[None, :],)
                    else:
                        more = more + (total[v],)
                total = more
        at += height * width
        weights += kh * kw * padded
    pixels: tl.constexpr = high * wide
    to = (n * (ins * pixels) + down * wide + right)[None, :] + c[:, None] * pixels
    to = out + run * examples * (ins * pixels) + tl.reshape(to, [block * size])
    for v in tl.static_range(stack):
        kept = (live & (down + v < high))[None, :] & (c < ins)[:, None]
        value = tl.reshape(total[v], [block * size])
        tl.store(to + v * wide, value, mask=tl.reshape(kept, [block * size]))


@triton.jit
def _gradients(
    out, x, back, ones, examples, tiles,
    ins: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr,
    sh: tl.constexpr, sw: tl.constexpr, dh: tl.constexpr, dw: tl.constexpr,
    biased: tl.constexpr, padded: tl.constexpr, block: tl.constexpr, size: tl.constexpr,
    stack: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of every example of a run, ``(columns, kh, padded)``.

    Each lane handles one column of an input channel's weights, and iterates over all places,
    ``stack`` rows at a time.
    """
    run = (tl.program_id(0) // tiles).to(tl.int64)
    lane = (tl.program_id(0) % tiles) * size + tl.arange(0, size)
    o = tl.program_id(1) * block + tl.arange(0, block)
    columns: tl.constexpr = ins * kw + biased
    live = lane < examples * columns
    n = tl.where(live, lane, 0) // columns
    column = tl.where(live, lane, 0) % columns
    at = x + run * examples * (ins * high * wide)
    at += n * (ins * high * wide) + column // kw * (high * wide) + column % kw * dw
    if biased:  # the last column, which sees 1 everywhere
        at = tl.where(column == ins * kw, ones, at)
    backs = back + run * examples * (height * width * padded)
    backs = backs + (n * (height * width * padded))[:, None] + o[None, :]
    total = ()
    for _ in tl.static_range(kh):
        total = total + (tl.zeros([size, block], tl.float32),)
    for down in range(0, height, stack):
        for right in range(width):
            pixel = at + (down * (sh * wide) + right * sw)
            place = backs + (down * width + right) * padded
            values = ()
            for r in tl.static_range((stack - 1) * sh + (kh - 1) * dh + 1):
                if height % stack == 0:
                    value = tl.load(pixel + r * wide)
                else:
                    value = tl.load(pixel + r * wide, mask=down * sh + r < high, other=0.0)
                values = values + (value,)
            for v in tl.static_range(stack):
                if height % stack == 0:
                    b = tl.load(place + v * (width * padded))
                else:
                    b = tl.load(place + v * (width * padded), mask=down + v < height, other=0.0)
                more = ()
                for i in tl.static_range(kh):
                    more = more + (total[i] + values[v * sh + i * dh][:, None] * b,)
                total = more
    to = out + run * examples * (columns * kh * padded)
    to = to + (lane * (kh * padded))[:, None] + o[None, :]
    for i in tl.static_range(kh):
        value = total[i]
        if biased and i > 0:
            value = tl.where((column == ins * kw)[:, None], 0.0, value)
        tl.store(to + i * padded, value, mask=live[:, None])


@triton.jit
def _turn(
    out, rows, places, tiles, outs: tl.constexpr, padded: tl.constexpr, block: tl.constexpr,
    size: tl.constexpr,
):  # fmt: skip
    """Transpose ``(n, outs, places)`` to ``(n, places, padded)``, with zeros after the channels."""
    n = (tl.program_id(0) // tiles).to(tl.int64)
    place = (tl.program_id(0) % tiles) * size + tl.arange(0, size)
    o = tl.program_id(1) * block + tl.arange(0, block)
    there = (o < outs)[:, None] & (place < places)[None, :]
    at = rows + n * outs * places + (o[:, None] * places + place[None, :])
    to = out + n * padded * places + (o[:, None] + place[None, :] * padded)
    tl.store(to, tl.load(at, mask=there, other=0.0), mask=(place < places)[None, :])


@triton.jit
def _squares(
    out, pixels, backs, tiles, high: tl.constexpr, wide: tl.constexpr, height: tl.constexpr,
    width: tl.constexpr, kh: tl.constexpr, kw: tl.constexpr, sh: tl.constexpr, sw: tl.constexpr,
    dh: tl.constexpr, dw: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Multiply products of patches by those of backprops, for some pairs of places."""
    n = (tl.program_id(0) // tiles).to(tl.int64)
    pair = (tl.program_id(0) % tiles) * size + tl.arange(0, size)
    places: tl.constexpr = height * width
    every: tl.constexpr = high * wide
    live = pair < places * places
    one, other = tl.where(live, pair, 0) // places, tl.where(live, pair, 0) % places
    one = one // width * (sh * wide) + one % width * sw
    other = other // width * (sh * wide) + other % width * sw
    at = pixels + n * (every * every) + one * every + other
    total = tl.zeros([size], tl.float32)
    for i in tl.static_range(kh):
        for j in tl.static_range(kw):  # both move on by one tap
            total += tl.load(at + (i * dh * wide + j * dw) * (every + 1))
    total *= tl.load(backs + n * (places * places) + pair, mask=live, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def squares(pixels: Tensor, backs: Tensor, shape: Shape) -> Tensor:
    """Return squared norms of every example's gradient by the weights.

    Args:
        pixels: Products of all pairs of pixels, ``(n, high · wide, high · wide)``.
        backs: Sums over all pairs of backprops, ``(n, height · width, height · width)``.
        shape: Shape of the convolution.
    """
    tiles = triton.cdiv(backs[0].numel(), 8 * _THREADS)
    out = pixels.new_empty(len(pixels), tiles)
    sizes = {key: value for key, value in asdict(shape).items() if key not in ("outs", "ins")}
    with torch.cuda.device_of(pixels):
        _squares[(len(pixels) * tiles,)](
            out, pixels, backs, tiles, **sizes, size=8 * _THREADS, num_warps=_WARPS
        )
    return out.sum(1)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """Return outputs ``(n, outs, height, width)`` of images, those of the first model first."""
    runs, examples = len(weight), len(x) // len(weight)
    out = x.new_empty(len(x), shape.outs, shape.height, shape.width)
    block, padded = _blocks(shape.outs)
    stack = _stack(shape.height, min(block, shape.outs))
    tiles = triton.cdiv(examples * triton.cdiv(shape.height, stack) * shape.width, _THREADS)
    with torch.cuda.device_of(x):
        _forward[(runs * tiles, padded // block)](
            out, x, _side_by_side(weight.flatten(2).transpose(1, 2), padded), bias, examples, tiles,
            0 if bias is None else bias.stride(0), **asdict(shape), biased=bias is not None,
            padded=padded, block=block, size=_THREADS, stack=stack,
            num_warps=_WARPS, maxnreg=_REGISTERS,
        )  # fmt: skip
    return out


def derive(back: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """Return the gradient by the images from that by the outputs."""
    runs, examples = len(weight), len(back) // len(weight)
    out = back.new_empty(len(back), shape.ins, shape.high, shape.wide)
    block, padded = _blocks(shape.ins)
    stack = _stack(shape.high, min(block, shape.ins), shape.sh)
    tiles = triton.cdiv(examples * triton.cdiv(shape.high, stack) * shape.wide, _THREADS)
    kernel = _side_by_side(weight.flatten(3).transpose(2, 3).flatten(1, 2), padded)
    with torch.cuda.device_of(back):
        _backward[(runs * tiles, padded // block)](
            out, back, kernel, examples, tiles, **asdict(shape),
            padded=padded, block=block, size=_THREADS, stack=stack,
            num_warps=_WARPS, maxnreg=_REGISTERS,
        )  # fmt: skip
    return out


def gradients(x: Tensor, back: Tensor, shape: Shape, *, runs: int, biased: bool) -> Tensor:
    """Return gradients per example, ``(n, ins · kw, kh, outs)``; the bias is a last column."""
    examples, columns = len(x) // runs, shape.ins * shape.kw + biased
    block, padded = _blocks(shape.outs)
    places = shape.height * shape.width
    turned = x.new_empty(len(x), places, padded)
    tiles = triton.cdiv(places, _THREADS)
    with torch.cuda.device_of(x):
        _turn[(len(x) * tiles, padded // block)](
            turned, back, places, tiles, outs=shape.outs, padded=padded, block=block, size=_THREADS,
            num_warps=_WARPS,
        )  # fmt: skip
    out = x.new_empty(len(x), columns, shape.kh, padded)
    sizes = {key: value for key, value in asdict(shape).items() if key != "outs"}
    tiles, stack = triton.cdiv(examples * columns, _LANES), _stack(shape.height, _SUMS // 8)
    with torch.cuda.device_of(x):
        _gradients[(runs * tiles, padded // block)](
            out, x, turned, x.new_ones(shape.high * shape.wide), examples, tiles, **sizes,
            biased=biased, padded=padded, block=block, size=_LANES, stack=stack,
            num_warps=_WARPS, maxnreg=_REGISTERS,
        )  # fmt: skip
    return out


def add_up(gradients: Tensor, weights: Tensor, into: Tensor, bias: Tensor | None) -> None:
    """Write the weighted sums ``(runs, outs, ins, kh, kw)`` of what :func:`gradients` gave."""
    runs, outs, ins, _, kw = into.shape
    summed = torch.bmm(weights[:, None], gradients.view(*weights.shape, -1))
    summed = summed.view(runs, *gradients.shape[1:])[..., :outs]
    kernel = summed[:, : ins * kw].unflatten(1, (ins, kw))
    into.copy_(kernel.permute(0, 4, 1, 3, 2))
    if bias is not None:
        bias.copy_(summed[:, ins * kw, 0])


class Convolution(torch.autograd.Function):
    """Connect outputs and derivatives for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
        """Return outputs."""
        ctx.weight, ctx.shape = weight, shape
        return convolve(x, weight, bias, shape)

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Differentiate by the images alone: by the weights that is done per example."""
        return derive(backs[0].contiguous(), ctx.weight, ctx.shape), None, None, None


def _blocks(channels: int) -> tuple[int, int]:
    """Return the channels of one program, and of all programs together."""
    block = min(_CHANNELS, triton.next_power_of_2(channels))
    return block, -(-channels // block) * block


def _stack(rows: int, each: int, step: int = 1) -> int:
    """Return the rows per thread that waste the fewest lanes, a multiple of ``step``."""
    least = -(-4 // step) * step
    most = max(least, min(14, _SUMS // each))
    return min(range(least, most + 1, step), key=lambda stack: (-(-rows // stack) * stack, -stack))


def _side_by_side(rows: Tensor, padded: int) -> Tensor:
    """Return weights copied so that channels are contiguous, with zeros after them."""
    out = rows.new_zeros(*rows.shape[:-1], padded)
    out[..., : rows.shape[-1]].copy_(rows)
    return out
