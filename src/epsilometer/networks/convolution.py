"""Convolutions of many models, and clipping without per-example gradients."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from epsilometer._extras import has
from epsilometer.networks.layers import (
    Layer,
    Parameters,
    add_up_outer,
    keeps_gradients,
    measure_outer,
    row_squares,
    sum_of,
)

_TAPS = 25  # of a plane, up to which kernels are written out tap by tap
_CACHED = 5e5  # numbers of patches that are multiplied before they leave a CPU's cache


class Images(NamedTuple):
    """What a convolution's gradients are made of again: padded images, and backprops."""

    x: Tensor
    back: Tensor


class ManyConv2d(Layer):
    """``nn.Conv2d`` of one group, padded with zeros.

    Torch's own, model by model; on the CPU its gradients are products with patches of the image.
    On a GPU no patch is copied: kernels of our own where every example's gradient is small enough
    to be kept.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return all models' outputs."""
        layer = self._layer
        (above, below), (left, right) = _padding(layer)
        if above + below + left + right:
            x = F.pad(x, (left, right, above, below))
        if not self._copies_patches(x):
            x = x.float()
            return self.remember(x.detach(), self._convolve(x.contiguous()))
        x, (weight, bias) = self.tape.lower(x), self.lowered()
        columns, (height, width) = _columns(x, layer)
        examples = len(columns) // self.tape.runs
        kernel = weight.flatten(2)[:, None].expand(-1, examples, -1, -1).flatten(0, 1)
        if bias is None:
            z = torch.bmm(kernel, columns)
        else:
            each = bias[:, None].expand(-1, examples, -1).flatten(0, 1)
            z = torch.baddbmm(each[..., None], kernel, columns)
        z = z.view(*z.shape[:2], height, width)
        if x.requires_grad:
            back: Any = _BackByModel.apply
            z = back(x, z, weight, layer.stride, layer.dilation)
        return self.remember(columns.detach(), z)

    def _convolve(self, x: Tensor) -> Tensor:
        """Convolve padded images of all models: by our kernels, or by torch's model by model."""
        weight, bias, layer = self.own["weight"], self.own.get("bias"), self._layer
        apply: Any
        if _has_kernels(x, layer) and self._keeps_gradients(x):
            from epsilometer.networks import _conv_cuda

            apply = _conv_cuda.Convolution.apply
            return apply(x, weight, bias, self._shape(x))  # type: ignore[no-any-return]
        apply = _ByModel.apply
        return apply(x, weight, bias, layer.stride, layer.dilation)  # type: ignore[no-any-return]

    def measure(self, given: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """Measure a gradient that is the sum of the outer products of all patches."""
        if given.ndim == 4:  # the image itself, padded
            return self._measure_images(given, back.contiguous())
        return measure_outer(given, back.flatten(2), self.own)

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Sum by one batched product; by torch's own derivative where images were kept."""
        if isinstance(kept, Images):
            self._add_up_images(kept, weights, sums)
        elif kept[0].ndim == 4:  # from the kernels
            from epsilometer.networks import _conv_cuda

            _conv_cuda.add_up(kept[0], weights, sums["weight"], sums.get("bias"))
        else:
            add_up_outer(kept, weights, sums)

    def _measure_images(self, x: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """Measure by every example's gradient, or by products of pairs of places."""
        if self._keeps_gradients(x):
            if not _has_kernels(x, self._layer):
                return self._measure_patches(x, back.flatten(2))
            from epsilometer.networks import _conv_cuda

            gradients = _conv_cuda.gradients(
                x, back, self._shape(x), runs=self.tape.runs, biased="bias" in self.own
            )
            return row_squares(gradients), (gradients,)
        squares = self._squares(x, back)
        if "bias" in self.own:
            squares.add_(row_squares(back.sum((2, 3))))
        return squares, Images(x, back)

    def _measure_patches(self, x: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """Measure every example's gradient: of a few at a time, whose patches stay in the cache."""
        inputs = x.shape[1] * math.prod(self._layer.kernel_size)
        times = math.ceil(len(x) * inputs * back.shape[2] / _CACHED)
        few = math.ceil(len(x) / times)
        kept = [back.new_empty(*back.shape[:2], inputs)]
        parts = (torch.split(part, few) for part in (x, back, kept[0]))
        for x_few, back_few, into in zip(*parts, strict=True):
            patches, _ = _columns(x_few, self._layer)
            torch.bmm(back_few, patches.transpose(1, 2), out=into)
        if "bias" in self.own:
            kept.append(back.sum(2))
        return sum_of(map(row_squares, kept)), tuple(kept)

    def _squares(self, x: Tensor, back: Tensor) -> Tensor:
        """Return squared norms of the weights' gradients.

        From the products of all pairs of pixels: no patch is copied, and a pair of pixels that is
        in many pairs of patches is multiplied once.
        """
        layer = self._layer
        if math.prod(layer.kernel_size) == 1:  # a patch is a pixel, and some pixels are in none
            squares = _pairs(x[:, :, :: layer.stride[0], :: layer.stride[1]])
            squares = squares.mul_(_pairs(back)).sum((1, 2))
        elif _has_kernels(x, layer):
            from epsilometer.networks import _conv_cuda

            squares = _conv_cuda.squares(_pairs(x), _pairs(back), self._shape(x))
        else:
            squares = _pairs_of_patches(x, back.shape[2:], layer).mul_(_pairs(back)).sum((1, 2))
        return squares.clamp_min_(0)

    def _add_up_images(self, kept: Images, weights: Tensor, sums: Parameters) -> None:
        layer, into, runs = self._layer, sums["weight"], self.tape.runs
        back = kept.back * weights.reshape(-1, 1, 1, 1)
        derivative: Any = conv2d_weight  # torch has no types for it
        for own, x, part in zip(into, kept.x.chunk(runs), back.chunk(runs), strict=True):
            how = {"stride": layer.stride, "dilation": layer.dilation}
            own.copy_(derivative(x, own.shape, part, **how))
        if "bias" in sums:
            torch.sum(back.view(runs, -1, *back.shape[1:]), (1, 3, 4), out=sums["bias"])

    def _copies_patches(self, x: Tensor) -> bool:
        """Tell whether to multiply with patches.

        Where precision is lowered, which torch's own do not follow; on a GPU only for products on
        tensor cores, which take numbers by eights.
        """
        if x.device.type == "cpu":
            return self.tape.precision != "float32"
        layer = self._layer
        inputs = layer.in_channels * math.prod(layer.kernel_size)
        sides = (layer.out_channels, inputs, self._count_places(x))
        return self.tape.precision != "float32" and all(side % 8 == 0 for side in sides)

    def _keeps_gradients(self, x: Tensor) -> bool:
        return keeps_gradients(self._count_places(x), self._layer.weight.numel())

    def _count_places(self, x: Tensor) -> int:
        layer = self._layer
        return math.prod(
            (side - apart * (size - 1) - 1) // step + 1
            for side, size, step, apart in zip(
                x.shape[2:], layer.kernel_size, layer.stride, layer.dilation, strict=True
            )
        )

    def _shape(self, x: Tensor) -> Any:
        from epsilometer.networks import _conv_cuda

        return _conv_cuda.shape_of(x, self.own["weight"], self._layer.stride, self._layer.dilation)

    @property
    def _layer(self) -> nn.Conv2d:
        layer = self.original[0]
        assert isinstance(layer, nn.Conv2d)
        return layer


def _has_kernels(x: Tensor, layer: nn.Conv2d) -> bool:
    """Tell whether this package has kernels for a convolution."""
    return x.is_cuda and math.prod(layer.kernel_size) <= _TAPS and has("triton")


class _BackByModel(torch.autograd.Function):
    """Pass a convolution on; its gradient by the image is torch's own, model by model.

    On the CPU that takes half as long as to add patches up, and models one by one as long as all.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z: Tensor, weight: Tensor, stride: Any, dilation: Any
    ) -> Tensor:
        """Return what was computed already."""
        ctx.save_for_backward(weight)
        ctx.shape, ctx.how = x.shape, {"stride": stride, "dilation": dilation}
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Differentiate by the image alone."""
        (weight,) = ctx.saved_tensors
        runs, (examples, *rest) = len(weight), ctx.shape
        derivative: Any = conv2d_input
        parts = [
            derivative((examples // runs, *rest), own, part, **ctx.how)
            for own, part in zip(weight, backs[0].chunk(runs), strict=True)
        ]
        return parts[0] if runs == 1 else torch.cat(parts), None, None, None, None


class _ByModel(_BackByModel):
    """Convolutions of torch's own, model by model, and differentiated likewise."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, dilation: Any
    ) -> Tensor:
        """Return outputs."""
        ctx.save_for_backward(weight)
        ctx.shape, ctx.how = x.shape, {"stride": stride, "dilation": dilation}
        runs = len(weight)
        biases = [None] * runs if bias is None else bias
        parts = [
            F.conv2d(part, own, each, **ctx.how)
            for part, own, each in zip(x.chunk(runs), weight, biases, strict=True)
        ]
        return parts[0] if runs == 1 else torch.cat(parts)


def _columns(x: Tensor, layer: nn.Conv2d) -> tuple[Tensor, tuple[int, int]]:
    """Return patches of padded images, ``(examples, inputs, places)``, and what shape places have.

    Args:
        x: Padded images.
        layer: Whose patches.
    """
    (high, wide), (down, right), (below, beside) = layer.kernel_size, layer.stride, layer.dilation
    seen = x.detach().unfold(3, beside * (wide - 1) + 1, right)[..., ::beside]
    seen = seen.permute(0, 1, 4, 2, 3).contiguous()  # from it, whole rows are copied
    seen = seen.unfold(3, below * (high - 1) + 1, down)[..., ::below].permute(0, 1, 5, 2, 3, 4)
    height, width = seen.shape[-2:]
    return seen.contiguous().flatten(4).flatten(1, 3), (height, width)


def _pairs(x: Tensor) -> Tensor:
    """Return products of all pairs of places of ``(n, channels, height, width)``."""
    columns = x.flatten(2)
    return torch.bmm(columns.transpose(1, 2), columns)


def _pairs_of_patches(x: Tensor, places: Any, layer: nn.Conv2d) -> Tensor:
    """Return products of all pairs of patches of an image, ``(examples, places, places)``."""
    pairs = _pairs(x).view(-1, *x.shape[2:], *x.shape[2:])
    rows, columns = (
        [slice(apart * tap, apart * tap + step * (side - 1) + 1, step) for tap in range(size)]
        for side, size, step, apart in zip(
            places, layer.kernel_size, layer.stride, layer.dilation, strict=True
        )
    )
    pairs = _add_views(pairs[:, row, :, row] for row in rows)
    pairs = _add_views(pairs[:, :, column, :, column] for column in columns)
    return pairs.view(len(x), math.prod(places), -1)


def _add_views(views: Iterator[Tensor]) -> Tensor:
    total = next(views).clone(memory_format=torch.contiguous_format)
    for view in views:
        total.add_(view)
    return total


def _padding(layer: nn.Conv2d) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return rows above and below, columns left and right."""
    if layer.padding == "valid":
        return (0, 0), (0, 0)
    if layer.padding == "same":
        spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        (top, left) = ((span // 2, span - span // 2) for span in spans)
        return top, left
    high, wide = (int(size) for size in layer.padding)
    return (high, high), (wide, wide)
