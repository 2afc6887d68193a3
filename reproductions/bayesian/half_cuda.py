"""The layers of ``half.py`` as Triton kernels, which neither store patches nor unpool.

Images lie with channels last, in half precision; sums are in single. The weights of a convolution
are ``(models, outputs, width)``, whose inputs are the places of a patch, then channels, then a 1.
The first layer reads patches of all images from one table, where each example has a place.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_INNER = 64  # what a block multiplies and sums at once


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
    channels: tl.constexpr, outputs: tl.constexpr, biased: tl.constexpr, height: tl.constexpr,
    inner: tl.constexpr,
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


@triton.jit
def _pool_block(
    out, taken, z, bits, count,
    wide: tl.constexpr, channels: tl.constexpr, dropped: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """The largest of 2 × 2 that is positive and kept, and which it is, for outputs of ``wide``."""
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    there = at < count
    pixel, channel = at // channels, at % channels
    corner = (pixel // wide * 4 * wide + pixel % wide * 2) * channels + channel
    best, mark = tl.zeros([size], tl.float32), tl.zeros([size], tl.int32)
    if dropped:
        kept = tl.load(bits + at, mask=there, other=0).to(tl.int32)
    for place in tl.static_range(4):
        shift = (place // 2 * 2 * wide + place % 2) * channels
        value = tl.load(z + corner + shift, mask=there, other=0.0).to(tl.float32)
        if dropped:
            value = tl.where((kept >> place) & 1 != 0, value, 0.0)
        mark = tl.where(value > best, 1 << place, mark)
        best = tl.maximum(value, best)
    scale: tl.constexpr = 2.0 if dropped else 1.0
    tl.store(out + at, (best * scale).to(out.dtype.element_ty), mask=there)
    tl.store(taken + at, mark.to(tl.uint8), mask=there)


@triton.jit
def _unpool_block(
    out, back, taken, count, wide: tl.constexpr, channels: tl.constexpr, size: tl.constexpr
):
    """Twice what an output is given, at the one of 2 × 2 that was taken."""
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    there = at < count
    pixel, channel = at // channels, at % channels
    corner = (pixel // wide * 4 * wide + pixel % wide * 2) * channels + channel
    mark = tl.load(taken + at, mask=there, other=0)
    given = tl.load(back + at, mask=there, other=0.0) * 2
    for place in tl.static_range(4):
        shift = (place // 2 * 2 * wide + place % 2) * channels
        tl.store(out + corner + shift, tl.where(mark == 1 << place, given, 0.0), mask=there)


@triton.jit
def _find_patch(pixel, place: tl.constexpr, wide: tl.constexpr, width: tl.constexpr):
    """Where the patch begins of one of the 2 × 2 under an output."""
    return ((pixel // wide * 2 + place // 2) * (2 * wide) + pixel % wide * 2 + place % 2) * width


@triton.jit
def _convolve_and_pool_block(
    out, taken, table, places, weight, bits, count,
    wide: tl.constexpr, width: tl.constexpr, power: tl.constexpr, outputs: tl.constexpr,
    dropped: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    """Some pooled outputs of one model: the four products under each, and the largest."""
    model = tl.program_id(1)
    rows = tl.program_id(0) * height + tl.arange(0, height)
    filters, inputs = tl.arange(0, outputs), tl.arange(0, power)
    there, real = rows < count, inputs < width
    every = model.to(tl.int64) * count + rows
    image, pixel = every // (wide * wide), rows % (wide * wide)
    image = tl.load(places + image, mask=there, other=0)
    image = table + image * (4 * wide * wide * width)
    own = weight + model.to(tl.int64) * outputs * width + filters * width
    factor = tl.load(own[None, :] + inputs[:, None], mask=real[:, None], other=0.0)
    to = every[:, None] * outputs + filters[None, :]
    best = tl.zeros([height, outputs], tl.float32)
    mark = tl.zeros([height, outputs], tl.int32)
    if dropped:
        kept = tl.load(bits + to, mask=there[:, None], other=0).to(tl.int32)
    for place in tl.static_range(4):
        begins = image + _find_patch(pixel, place, wide, width)
        inside = there[:, None] & real[None, :]
        patch = tl.load(begins[:, None] + inputs[None, :], mask=inside, other=0.0)
        value = tl.dot(patch, factor)
        if dropped:
            value = tl.where((kept >> place) & 1 != 0, value, 0.0)
        mark = tl.where(value > best, 1 << place, mark)
        best = tl.maximum(value, best)
    scale: tl.constexpr = 2.0 if dropped else 1.0
    tl.store(out + to, (best * scale).to(out.dtype.element_ty), mask=there[:, None])
    tl.store(taken + to, mark.to(tl.uint8), mask=there[:, None])


@triton.jit
def _differentiate_image(
    out, squares, back, taken, table, places,
    wide: tl.constexpr, width: tl.constexpr, power: tl.constexpr, outputs: tl.constexpr,
    height: tl.constexpr,
):  # fmt: skip
    """The gradient of one image by the first layer, and its squared norm."""
    image = tl.program_id(0)
    filters, inputs = tl.arange(0, outputs), tl.arange(0, power)
    real = inputs < width
    first = image.to(tl.int64) * (wide * wide * outputs)
    found = table + tl.load(places + image) * (4 * wide * wide * width)
    total = tl.zeros([outputs, power], tl.float32)
    for start in range(0, wide * wide, height):
        pixel = start + tl.arange(0, height)
        there = pixel < wide * wide
        at = first + pixel[None, :] * outputs + filters[:, None]
        given = tl.load(back + at, mask=there[None, :], other=0.0) * 2
        mark = tl.load(taken + at, mask=there[None, :], other=0)
        for place in tl.static_range(4):
            begins = found + _find_patch(pixel, place, wide, width)
            inside = there[:, None] & real[None, :]
            patch = tl.load(begins[:, None] + inputs[None, :], mask=inside, other=0.0)
            share = tl.where(mark == 1 << place, given, 0.0).to(patch.dtype)
            total = tl.dot(share, patch, total)
    to = image.to(tl.int64) * (outputs * width) + filters[:, None] * width + inputs[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=real[None, :])
    tl.store(squares + image, tl.sum(tl.sum(total * total, 1), 0))


@triton.jit
def _move_block(weight, which, total, drawn, each, noise, rate, size: tl.constexpr):
    """Move some weights of one of the models by their sum and its noise."""
    model = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * size + tl.arange(0, size)
    there = at < each
    step = tl.load(total + model * each + at, mask=there, other=0.0)
    step += noise * tl.load(drawn + model * each + at, mask=there, other=0.0)
    own = weight + tl.load(which + model) * each + at
    tl.store(own, tl.load(own, mask=there, other=0.0) - rate * step, mask=there)


def pool(values: Tensor, bits: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return ReLU, dropout by bits, then the largest of 2 × 2; and the bit of which one it was."""
    _check_dense(values, bits)
    images, high, wide, channels = values.shape
    out = values.new_empty(images, high // 2, wide // 2, channels)
    taken = torch.empty_like(out, dtype=torch.uint8)
    _pool_block[(triton.cdiv(out.numel(), 1024),)](
        out, taken, values, bits, out.numel(),
        wide=wide // 2, channels=channels, dropped=bits is not None, size=1024,
    )  # fmt: skip
    return out, taken


def unpool(back: Tensor, taken: Tensor) -> Tensor:
    """Return derivatives before dropout and pooling."""
    _check_dense(back, taken)
    images, high, wide, channels = back.shape
    out = back.new_empty(images, 2 * high, 2 * wide, channels)
    _unpool_block[(triton.cdiv(back.numel(), 1024),)](
        out, back, taken, back.numel(), wide=wide, channels=channels, size=1024
    )
    return out


def convolve_and_pool(
    table: Tensor, places: Tensor, weight: Tensor, bits: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the first layer of images, by their places in a table, and what was pooled."""
    _check_dense(table, places, weight, bits)
    models, outputs, width = weight.shape
    wide = int((table.shape[1] // 4) ** 0.5)
    out = table.new_empty(len(places), wide, wide, outputs)
    taken = torch.empty_like(out, dtype=torch.uint8)
    count = len(places) // models * wide**2
    _convolve_and_pool_block[(triton.cdiv(count, 64), models)](
        out, taken, table, places, weight, bits, count,
        wide=wide, width=width, power=triton.next_power_of_2(width), outputs=outputs,
        dropped=bits is not None, height=64, num_warps=4,
    )  # fmt: skip
    return out, taken


def differentiate_first(
    back: Tensor, taken: Tensor, table: Tensor, places: Tensor
) -> tuple[Tensor, Tensor]:
    """Return each image's gradient by the first layer, ``(n, outputs, width)``, and its square."""
    _check_dense(back, taken, table, places)
    images, wide, _, outputs = back.shape
    width = table.shape[2]
    out = back.new_empty(images, outputs, width)
    squares = back.new_empty(images, dtype=torch.float32)
    _differentiate_image[(images,)](
        out, squares, back, taken, table, places,
        wide=wide, width=width, power=triton.next_power_of_2(width), outputs=outputs, height=32,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out, squares


def convolve(x: Tensor, weight: Tensor, *, kernel: int, biased: bool = True) -> Tensor:
    """Convolve images ``(n, side, side, channels)`` with the kernels of their models.

    The first n / models images are those of the first model. A bias lies behind the inputs.
    """
    _check_dense(x, weight)
    sizes = _measure(x, weight, kernel)
    taken, models, outputs = sizes["taken"], len(weight), weight.shape[1]
    out = x.new_empty(len(x), taken, taken, outputs)
    count = len(x) // models * taken**2
    _convolve_block[(triton.cdiv(count, 256), models)](
        out, x, weight, count, weight.shape[2],
        **sizes, biased=biased, height=256, inner=32, num_warps=8,
        num_stages=4,
    )  # fmt: skip
    return out


def square_gradients(back: Tensor, x: Tensor, weight: Tensor, *, kernel: int) -> Tensor:
    """Return the squared norm of each image's gradient by kernel and bias."""
    _check_dense(back, x)
    sizes = _measure(x, weight, kernel)
    out = x.new_empty(len(x), dtype=torch.float32)
    height = triton.next_power_of_2(sizes["taken"] ** 2)
    _square_image[(len(x),)](
        out, back, x, **sizes, height=height, wide=_INNER, num_warps=4, num_stages=3
    )
    return out


def sum_gradients(back: Tensor, x: Tensor, weight: Tensor, *, kernel: int) -> Tensor:
    """Return gradients summed over the images of each model, ``(models, outputs, width)``."""
    _check_dense(back, x)
    sizes = _measure(x, weight, kernel)
    models, outputs, width = weight.shape
    out = torch.zeros((models, outputs, width), device=x.device)
    inputs = kernel**2 * sizes["channels"]
    count = len(x) // models * sizes["taken"] ** 2
    _sum_block[(triton.cdiv(inputs, _INNER), models)](
        out, back, x, count, width, **sizes, height=128, wide=_INNER, num_warps=8, num_stages=3
    )  # fmt: skip
    out[..., inputs] = back.view(models, -1, outputs).sum(1, dtype=torch.float32)
    return out


def move(
    weight: Tensor, which: Tensor, total: Tensor, drawn: Tensor, *, noise: float, rate: float
) -> None:
    """Subtract from the weights of some models, by the rate, their sums and as much noise."""
    _check_dense(weight, which, total, drawn)
    each = total[0].numel()
    _move_block[(triton.cdiv(each, 1024), len(which))](
        weight, which, total, drawn, each, noise, rate, size=1024
    )


def _check_dense(*given: Tensor | None) -> None:
    """Refuse views with gaps: kernels count numbers from the first."""
    if not all(each is None or each.is_contiguous() for each in given):
        raise ValueError("Expected dense tensors, got a view with gaps.")


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
