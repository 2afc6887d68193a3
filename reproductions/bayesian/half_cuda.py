"""Convolutions with a kernel of its own per model, as Triton kernels that never store patches.

Images lie with channels last, in half precision; sums are in single. The weights of a convolution
are ``(models, outputs, width)``, whose inputs are the places of a patch, then channels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS, _INNER = 128, 128, 64  # of a block


@triton.jit
def _find(rows, side: tl.constexpr, taken: tl.constexpr, channels: tl.constexpr):
    """Where the patch of each output begins, in numbers from the first image."""
    image, place = rows // (taken * taken), rows % (taken * taken)
    corner = (image * side + place // taken) * side + place % taken
    return corner.to(tl.int64) * channels


@triton.jit
def _shift(columns, side: tl.constexpr, kernel: tl.constexpr, channels: tl.constexpr):
    """How far into its patch each input lies."""
    wide: tl.constexpr = kernel * channels
    return columns // wide * (side * channels) + columns % wide


@triton.jit
def _convolve_block(
    out, x, weight, count,
    width: tl.constexpr, side: tl.constexpr, taken: tl.constexpr, kernel: tl.constexpr,
    channels: tl.constexpr, outputs: tl.constexpr, biased: tl.constexpr, height: tl.constexpr, inner: tl.constexpr,
):  # fmt: skip
    """Some outputs of one model, of all filters."""
    model = tl.program_id(1)
    rows = tl.program_id(0) * height + tl.arange(0, height)
    filters = tl.arange(0, outputs)
    there = rows < count
    every = model.to(tl.int64) * count + rows
    inputs: tl.constexpr = kernel * kernel * channels
    found = x + _find(every, side, taken, channels)
    own = weight + model.to(tl.int64) * outputs * width + filters * width
    total = tl.zeros([height, outputs], tl.float32)
    for start in range(0, inputs, inner):
        columns = start + tl.arange(0, inner)
        shift = _shift(columns, side, kernel, channels)
        patch = tl.load(found[:, None] + shift[None, :], mask=there[:, None], other=0.0)
        factor = tl.load(own[None, :] + columns[:, None])
        total = tl.dot(patch, factor, total)
    if biased:
        total += tl.load(own + inputs).to(tl.float32)[None, :]
    to = out + every[:, None] * outputs + filters[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=there[:, None])


@triton.jit
def _square_image(
    out, back, x,
    side: tl.constexpr, taken: tl.constexpr, kernel: tl.constexpr, channels: tl.constexpr,
    outputs: tl.constexpr, height: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """The squared norm of one image's gradient, its bias counted."""
    image = tl.program_id(0)
    rows, filters = tl.arange(0, height), tl.arange(0, outputs)
    there = rows < taken * taken
    given = back + image.to(tl.int64) * (taken * taken * outputs)
    given = tl.load(
        given + rows[None, :] * outputs + filters[:, None], mask=there[None, :], other=0.0
    )
    found = x + image.to(tl.int64) * (side * side * channels) + _find(rows, side, taken, channels)
    inputs: tl.constexpr = kernel * kernel * channels
    bias = tl.sum(given.to(tl.float32), 1)
    total = bias * bias
    for start in range(0, inputs, wide):
        columns = start + tl.arange(0, wide)
        shift = _shift(columns, side, kernel, channels)
        inside = there[:, None] & (columns < inputs)[None, :]
        patch = tl.load(found[:, None] + shift[None, :], mask=inside, other=0.0)
        gradient = tl.dot(given, patch)
        total += tl.sum(gradient * gradient, 1)
    tl.store(out + image, tl.sum(total, 0))


@triton.jit
def _sum_block(
    out, back, x, count,
    width: tl.constexpr, side: tl.constexpr, taken: tl.constexpr, kernel: tl.constexpr,
    channels: tl.constexpr, outputs: tl.constexpr, height: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Some inputs of one model's gradient, summed over its images."""
    model = tl.program_id(1)
    columns = tl.program_id(0) * wide + tl.arange(0, wide)
    filters = tl.arange(0, outputs)
    inputs: tl.constexpr = kernel * kernel * channels
    real = columns < inputs
    shift = _shift(columns, side, kernel, channels)
    first = model.to(tl.int64) * count
    total = tl.zeros([outputs, wide], tl.float32)
    for start in range(0, count, height):
        rows = start + tl.arange(0, height)
        there = rows < count
        every = first + rows
        given = back + every[None, :] * outputs + filters[:, None]
        given = tl.load(given, mask=there[None, :], other=0.0)
        found = x + _find(every, side, taken, channels)
        inside = there[:, None] & real[None, :]
        patch = tl.load(found[:, None] + shift[None, :], mask=inside, other=0.0)
        total = tl.dot(given, patch, total)
    to = out + model.to(tl.int64) * outputs * width + filters[:, None] * width + columns[None, :]
    tl.store(to, total, mask=real[None, :])


def convolve(x: Tensor, weight: Tensor, *, kernel: int, biased: bool = True) -> Tensor:
    """Convolve images ``(n, side, side, channels)`` with the kernels of their models.

    The first n / models images are those of the first model. A bias lies behind the inputs.
    """
    sizes = _measure(x, weight, kernel)
    taken, models, outputs = sizes["taken"], len(weight), weight.shape[1]
    out = x.new_empty(len(x), taken, taken, outputs)
    count = len(x) // models * taken**2
    _convolve_block[(triton.cdiv(count, _ROWS), models)](
        out, x, weight, count, weight.shape[2],
        **sizes, biased=biased, height=_ROWS, inner=min(_INNER, sizes["channels"]), num_warps=4,
        num_stages=3,
    )  # fmt: skip
    return out


def square_gradients(back: Tensor, x: Tensor, weight: Tensor, *, kernel: int) -> Tensor:
    """Return the squared norm of each image's gradient by kernel and bias."""
    sizes = _measure(x, weight, kernel)
    out = x.new_empty(len(x), dtype=torch.float32)
    height = triton.next_power_of_2(sizes["taken"] ** 2)
    _square_image[(len(x),)](
        out, back, x, **sizes, height=height, wide=_COLUMNS, num_warps=4, num_stages=2
    )
    return out


def sum_gradients(back: Tensor, x: Tensor, weight: Tensor, *, kernel: int) -> Tensor:
    """Return gradients summed over the images of each model, ``(models, outputs, width)``."""
    sizes = _measure(x, weight, kernel)
    models, outputs, width = weight.shape
    out = torch.zeros((models, outputs, width), device=x.device)
    inputs = kernel**2 * sizes["channels"]
    count = len(x) // models * sizes["taken"] ** 2
    _sum_block[(triton.cdiv(inputs, _COLUMNS), models)](
        out, back, x, count, width, **sizes, height=_INNER, wide=_COLUMNS, num_warps=4,
        num_stages=4,
    )  # fmt: skip
    out[..., inputs] = back.view(models, -1, outputs).sum(1, dtype=torch.float32)
    return out


def _measure(x: Tensor, weight: Tensor, kernel: int) -> dict[str, Any]:
    side, channels = x.shape[1], x.shape[3]
    taken, outputs = side - kernel + 1, weight.shape[1]
    return {
        "side": side,
        "taken": taken,
        "kernel": kernel,
        "channels": channels,
        "outputs": outputs,
    }
