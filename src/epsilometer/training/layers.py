"""Layers of many models at once, and clipping without per-example gradients.

A layer has the parameters of all models, and sees the examples of all models in one batch: first
those of the first model. What it was given (activations) and what came back (backprops) are enough
for the norm of every example's gradient, and for their weighted sum.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.grad import conv2d_input

from epsilometer._extras import has

Parameters = dict[str, Tensor]
_TAPS = 25  # of a plane, up to which kernels are written out tap by tap


@dataclass
class Tape:
    """What the layers were given and gave in one forward pass, in the order of their calls."""

    runs: int
    calls: list["Call"] = field(default_factory=list)


@dataclass
class Call:
    """One call of a layer.

    Attributes:
        layer: Which one.
        given: Activations, in whatever form the layer needs them again.
        gave: What the loss is differentiated by: the layer's output.
    """

    layer: "Layer"
    given: Any
    gave: Tensor
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.gave._version

    @property
    def written_over(self) -> bool:
        """Whether the output was changed in place: its derivative is no longer the layer's."""
        return self.gave._version != self.version


class Outer(NamedTuple):
    """Factors of gradients: Σ over places of the outer products of their columns.

    Attributes:
        a: Activations, ``(n, inputs, places)``.
        b: Backprops, ``(n, outputs, places)``.
    """

    a: Tensor
    b: Tensor


class Layer(nn.Module):
    """One layer of all models. Takes the place of the layer that it was made from.

    ``own`` has the parameters by name, each of shape ``(runs, …)``; they are views into one flat
    tensor, set from outside.
    """

    def __init__(self, layer: nn.Module, tape: Tape) -> None:
        super().__init__()
        self.tape = tape
        self.own: Parameters = {}
        # In a tuple, so that its parameters are not counted as ours.
        self.original = (layer,)

    def remember(self, given: Any, gave: Tensor) -> Tensor:
        """Writes a call down and returns what it gave, so that the loss can be derived by it."""
        if not gave.requires_grad:  # nothing before it is differentiated: the graph begins here
            gave.requires_grad_()
        self.tape.calls.append(Call(self, given, gave))
        return gave

    def train(self, mode: bool = True) -> "Layer":
        """Switches the layer that it was made from too, which torch does not see."""
        super().train(mode)
        self.original[0].train(mode)
        return self

    def measure(self, given: Any, back: Tensor) -> tuple[Tensor, Any]:
        """Squared norm of every example's gradient, and what :meth:`add_up` needs to sum them.

        Args:
            given: What the layer wrote down.
            back: Derivative of the loss by what it gave.
        """
        raise NotImplementedError

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Writes the sum of gradients, each times its weight ``(runs, examples)``, to ``sums``."""
        raise NotImplementedError


class ManyLinear(Layer):
    """``nn.Linear``."""

    def forward(self, x: Tensor) -> Tensor:
        """All models' outputs."""
        runs, weight, bias = self.tape.runs, self.own["weight"], self.own.get("bias")
        rows = x.reshape(runs, -1, x.shape[-1])
        if bias is None:
            z = torch.bmm(rows, weight.transpose(1, 2))
        else:
            z = torch.baddbmm(bias[:, None, :], rows, weight.transpose(1, 2))
        return self.remember(x.detach(), z.view(*x.shape[:-1], weight.shape[1]))

    def measure(self, given: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """A gradient is an outer product, or for a sequence a sum of them."""
        if given.ndim > 2:
            return _measure_outer(_columns(given), _columns(back), self.own)
        square = _row_squares(given)
        if "bias" in self.own:
            square.add_(1)
        return square.mul_(_row_squares(back)), Outer(given[..., None], back[..., None])

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """One batched product."""
        _add_up_outer(kept, weights, sums)


class ManyConv2d(Layer):
    """``nn.Conv2d`` of one group, padded with zeros.

    A product with the patches of the image; on CUDA, where there is Triton, kernels that need no
    copy of them.
    """

    def __init__(self, layer: nn.Module, tape: Tape) -> None:
        super().__init__(layer, tape)
        self._memory = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """All models' outputs."""
        weight, bias, layer = self.own["weight"], self.own.get("bias"), self._layer
        (above, below), (left, right) = _padding(layer)
        if above + below + left + right:
            x = F.pad(x, (left, right, above, below))
        if _has_kernels(x, weight, layer):
            from epsilometer.training import _conv_cuda

            x = x.contiguous()
            shape = _conv_cuda.shape_of(x, weight, layer.stride, layer.dilation)
            apply: Any = _conv_cuda.Convolution.apply
            return self.remember(x.detach(), apply(x, weight, bias, shape))
        on_cpu = x.device.type == "cpu"
        columns, (height, width) = self._columns(x)
        examples = len(columns) // self.tape.runs
        kernel = weight.flatten(2)[:, None].expand(-1, examples, -1, -1).flatten(0, 1)
        if bias is None:
            z = torch.bmm(kernel, columns)
        else:
            each = bias[:, None].expand(-1, examples, -1).flatten(0, 1)
            z = torch.baddbmm(each[..., None], kernel, columns)
        z = z.view(*z.shape[:2], height, width)
        if on_cpu and x.requires_grad:
            back: Any = _BackByModel.apply
            z = back(x, z, weight, layer.stride, layer.dilation)
        return self.remember(columns.detach(), z)

    def measure(self, given: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """A gradient is the sum of the outer products of all patches."""
        if given.ndim == 4:  # the image itself, padded
            from epsilometer.training import _conv_cuda

            layer, biased = self._layer, "bias" in self.own
            shape = _conv_cuda.shape_of(given, self.own["weight"], layer.stride, layer.dilation)
            gradients = _conv_cuda.gradients(
                given, back.contiguous(), shape, runs=self.tape.runs, biased=biased
            )
            return _row_squares(gradients), (gradients,)
        return _measure_outer(given, back.flatten(2), self.own)

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """One batched product."""
        if kept[0].ndim == 4:  # from the kernels
            from epsilometer.training import _conv_cuda

            _conv_cuda.add_up(kept[0], weights, sums["weight"], sums.get("bias"))
        else:
            _add_up_outer(kept, weights, sums)

    @property
    def _layer(self) -> nn.Conv2d:
        layer = self.original[0]
        assert isinstance(layer, nn.Conv2d)
        return layer

    def _columns(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Patches of a padded image, ``(examples, inputs, places)``, and what shape places have."""
        layer = self._layer
        how = (layer.kernel_size, layer.stride, layer.dilation)
        if x.device.type == "cpu":
            seen = _patches(x.detach(), *how)
            if self._memory.shape != seen.shape:
                self._memory = torch.empty(seen.shape)
            # Into the same memory every time: new pages cost more than what is written to them.
            patches = self._memory.copy_(seen)
        else:
            apply: Any = _Patches.apply
            patches = apply(x, *how)
        height, width = patches.shape[-2:]
        return patches.flatten(4).flatten(1, 3), (height, width)


def _has_kernels(x: Tensor, weight: Tensor, layer: nn.Conv2d) -> bool:
    """Whether kernels of our own take the convolution of a padded image.

    Where every example's gradient is kept: elsewhere patches are needed anyway, and channels are so
    many that products of matrices are as fast.
    """
    if not x.is_cuda or math.prod(layer.kernel_size) > _TAPS or not has("triton"):
        return False
    places = math.prod(
        (side - apart * (size - 1) - 1) // step + 1
        for side, size, step, apart in zip(
            x.shape[2:], layer.kernel_size, layer.stride, layer.dilation, strict=True
        )
    )
    return _keeps_gradients(places, weight[0].numel())


def _keeps_gradients(places: int, size: int) -> bool:
    """Whether a gradient is smaller than the products of all pairs of places."""
    return places * places >= size


class _BackByModel(torch.autograd.Function):
    """Hands a convolution on; its derivative by the image is torch's own, model by model.

    On the CPU that takes half as long as to add patches up, and models one by one as long as all.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z: Tensor, weight: Tensor, stride: Any, dilation: Any
    ) -> Tensor:
        """What was computed already."""
        ctx.save_for_backward(weight)
        ctx.shape, ctx.how = x.shape, {"stride": stride, "dilation": dilation}
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """By the image alone."""
        (weight,) = ctx.saved_tensors
        runs, (examples, *rest) = len(weight), ctx.shape
        derivative: Any = conv2d_input  # torch has no types for it
        parts = [
            derivative((examples // runs, *rest), own, part, **ctx.how)
            for own, part in zip(weight, backs[0].chunk(runs), strict=True)
        ]
        return parts[0] if runs == 1 else torch.cat(parts), None, None, None, None


def _patches(x: Tensor, kernel: Any, stride: Any, dilation: Any) -> Tensor:
    """Every patch of every image, ``(examples, channels, *kernel, height, width)``; a view."""
    for axis in (2, 3):
        size, step, apart = (value[axis - 2] for value in (kernel, stride, dilation))
        x = x.unfold(axis, apart * (size - 1) + 1, step)[..., ::apart]
    return x.permute(0, 1, 4, 5, 2, 3)


class _Patches(torch.autograd.Function):
    """Every patch of every image, ``(examples, channels, *kernel, height, width)``.

    Rows of the image stay rows: copying them is what most of the time would go into.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Any, stride: Any, dilation: Any) -> Tensor:
        """Copies."""
        ctx.shape, ctx.stride, ctx.dilation = x.shape, stride, dilation
        return _patches(x, kernel, stride, dilation).contiguous()

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Adds every patch up where it came from."""
        (back,) = backs
        summed = back.new_zeros(ctx.shape)
        *_, high, wide, height, width = back.shape
        for row in range(high):
            for column in range(wide):
                top, left = row * ctx.dilation[0], column * ctx.dilation[1]
                bottom = top + (height - 1) * ctx.stride[0] + 1
                right = left + (width - 1) * ctx.stride[1] + 1
                there = summed[:, :, top : bottom : ctx.stride[0], left : right : ctx.stride[1]]
                there.add_(back[:, :, row, column])
        return summed, None, None, None


class ManyEmbedding(Layer):
    """``nn.Embedding`` without ``max_norm`` and the like."""

    def forward(self, x: Tensor) -> Tensor:
        """The rows of each model's own table."""
        weight = self.own["weight"]
        words = x.reshape(self.tape.runs, -1)
        rows = torch.gather(weight, 1, words[..., None].expand(-1, -1, weight.shape[-1]))
        return self.remember(x, rows.view(*x.shape, -1))

    def measure(self, given: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """Gradients of equal words add up, those of others are orthogonal."""
        words = given.reshape(len(given), -1)
        back = back.reshape(*words.shape, back.shape[-1])
        padding: Any = self.original[0].padding_idx
        if padding is not None:
            back = back * (words != padding)[..., None]
        same = words[:, :, None] == words[:, None, :]
        products = torch.bmm(back, back.transpose(1, 2))
        return products.mul_(same).sum((1, 2)).clamp_min_(0), (words, back)

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Adds every word's gradient to its row."""
        words, back = kept
        runs, into = self.tape.runs, sums["weight"]
        rows = (back * weights.reshape(-1, 1, 1)).view(runs, -1, into.shape[-1])
        into.zero_().scatter_add_(1, words.reshape(runs, -1, 1).expand_as(rows), rows)


class ManyNorm(Layer):
    """``nn.LayerNorm`` and ``nn.GroupNorm``: normalised as ever, then each model's own scale."""

    def forward(self, x: Tensor) -> Tensor:
        """All models' outputs."""
        layer = self.original[0]
        if isinstance(layer, nn.LayerNorm):
            normal = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
        else:
            assert isinstance(layer, nn.GroupNorm)
            normal = F.group_norm(x, layer.num_groups, eps=layer.eps)
        z = normal * self._spread(self.own["weight"], x)
        if "bias" in self.own:
            z = z + self._spread(self.own["bias"], x)
        return self.remember(normal.detach(), z)

    def _spread(self, parameter: Tensor, x: Tensor) -> Tensor:
        """A parameter of each model, shaped to be multiplied with all its examples."""
        examples = x.shape[0] // self.tape.runs
        each = parameter.repeat_interleave(examples, 0)
        if isinstance(self.original[0], nn.GroupNorm):
            return each.view(*each.shape, *[1] * (x.ndim - 2))
        return each.view(-1, *[1] * (x.ndim - parameter.ndim), *parameter.shape[1:])

    def _gradients(self, given: Tensor, back: Tensor) -> Parameters:
        """Of every example: they are as small as the layer."""
        if isinstance(self.original[0], nn.GroupNorm):
            axes = list(range(2, back.ndim))
        else:
            axes = list(range(1, back.ndim + 1 - self.own["weight"].ndim))
        found = {"weight": back * given, "bias": back}
        return {name: found[name].sum(axes) if axes else found[name] for name in self.own}

    def measure(self, given: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """Of the small gradients."""
        gradients = self._gradients(given, back)
        return sum_of(_row_squares(gradient) for gradient in gradients.values()), gradients

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Of the small gradients."""
        for name, gradients in kept.items():
            _weighted(gradients, weights, sums[name])


class ManyOthers(Layer):
    """Any other module, through ``torch.func``: each example has its own copy of the parameters.

    Their gradients are kept per example until they are summed: memory grows with the batch.
    """

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """All models' outputs; the module sees batches of one example."""
        if any(isinstance(option, Tensor) for option in options.values()):
            raise TypeError("a tensor by keyword may be one for all examples, or one for each")
        module, runs = self.original[0], self.tape.runs
        examples = inputs[0].shape[0] // runs
        copies = {
            name: own.unsqueeze(1)
            .expand(-1, examples, *own.shape[1:])
            .flatten(0, 1)
            .requires_grad_()
            for name, own in self.own.items()
        }

        def one(parameters: Parameters, *example: Tensor) -> Any:
            batch = tuple(part.unsqueeze(0) for part in example)
            out = torch.func.functional_call(module, parameters, batch, options)
            if isinstance(out, Tensor):
                return out.squeeze(0)
            if not isinstance(out, tuple) or not all(isinstance(p, Tensor | None) for p in out):
                raise TypeError(f"it returns {type(out).__name__}, not a tensor or some")
            # vmap lets no None through: nothing stands for it.
            return tuple(torch.zeros(0) if part is None else part.squeeze(0) for part in out)

        # Of the ways to compute attention, vmap knows the plain one only.
        with _padding_kept_still(module), sdpa_kernel(SDPBackend.MATH):
            gave = torch.func.vmap(one, randomness="different")(copies, *inputs)
        for name, copy in copies.items():
            self.tape.calls.append(Call(self, name, copy))
        if isinstance(gave, tuple):
            return tuple(part if part.numel() else None for part in gave)
        return gave

    def measure(self, given: str, back: Tensor) -> tuple[Tensor, Any]:
        """Of the gradients themselves."""
        return _row_squares(back), (given, back)

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Of the gradients themselves."""
        name, gradients = kept
        _weighted(gradients, weights, sums[name])


@contextmanager
def _padding_kept_still(module: nn.Module) -> Iterator[None]:
    """Embeddings pass no gradient to the row of ``padding_idx``; under vmap torch forgets that."""

    def still(layer: Any, given: tuple[Tensor, ...], gave: Tensor) -> Tensor:
        return torch.where((given[0] == layer.padding_idx)[..., None], gave.detach(), gave)

    handles = [
        part.register_forward_hook(still)
        for part in module.modules()
        if isinstance(part, nn.Embedding) and part.padding_idx is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def layer_for(module: nn.Module) -> type[Layer]:
    """What does the work of a module that has parameters."""
    known = _KNOWN.get(type(module))
    return known[0] if known is not None and known[1](module) else ManyOthers


def _plain_conv(layer: Any) -> bool:
    return bool(layer.groups == 1 and layer.padding_mode == "zeros")


def _plain_embedding(layer: Any) -> bool:
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


def _always(layer: Any) -> bool:
    return True


_KNOWN: Mapping[type[nn.Module], tuple[type[Layer], Callable[[Any], bool]]] = MappingProxyType(
    {
        nn.Linear: (ManyLinear, _always),
        nn.Conv2d: (ManyConv2d, _plain_conv),
        nn.Embedding: (ManyEmbedding, _plain_embedding),
        nn.LayerNorm: (ManyNorm, _always),
        nn.GroupNorm: (ManyNorm, _always),
    }
)


def _padding(layer: nn.Conv2d) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows above and below, columns left and right."""
    if layer.padding == "valid":
        return (0, 0), (0, 0)
    if layer.padding == "same":
        spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        (top, left) = ((span // 2, span - span // 2) for span in spans)
        return top, left
    high, wide = (int(size) for size in layer.padding)
    return (high, high), (wide, wide)


def _row_squares(rows: Tensor) -> Tensor:
    """Squared norm of every row of ``(n, …)``."""
    norms: Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1)
    return norms.square_()


def _columns(sequence: Tensor) -> Tensor:
    """``(n, …, size)`` as ``(n, size, places)``; a view where it can be one."""
    return sequence.reshape(len(sequence), -1, sequence.shape[-1]).transpose(1, 2)


def _measure_outer(a: Tensor, b: Tensor, own: Parameters) -> tuple[Tensor, Any]:
    """Squared norm of Σ_t b_t a_tᵀ (and of Σ_t b_t, the bias's) of every example.

    By the products of all pairs of places, or by the sum itself, whichever is less: where there are
    many places the sum is far smaller than the activations it is made of, and is kept.

    Args:
        a: Activations, ``(n, inputs, places)``.
        b: Backprops, ``(n, outputs, places)``.
        own: The layer's parameters.
    """
    places, size = a.shape[2], a.shape[1] * b.shape[1]
    kept: Any
    if not _keeps_gradients(places, size):
        pairs = torch.bmm(a.transpose(1, 2), a).mul_(torch.bmm(b.transpose(1, 2), b))
        squares, kept = pairs.sum((1, 2)).clamp_min_(0), Outer(a, b)
    else:
        gradients = torch.bmm(b, a.transpose(1, 2))
        squares, kept = _row_squares(gradients), (gradients,)
    if "bias" in own:
        biases = b.sum(2)
        squares.add_(_row_squares(biases))
        kept = kept if isinstance(kept, Outer) else (*kept, biases)
    return squares, kept


def _add_up_outer(kept: Any, weights: Tensor, sums: Parameters) -> None:
    """Weighted sum over examples of what :func:`_measure_outer` kept."""
    runs, examples = weights.shape
    into = sums["weight"].flatten(2)
    if not isinstance(kept, Outer):
        for gradients, name in zip(kept, ("weight", "bias"), strict=False):
            _weighted(gradients, weights, sums[name])
        return
    a, b = kept
    scaled = (b * weights.reshape(-1, 1, 1)).view(runs, examples, *b.shape[1:])
    rows = scaled.transpose(2, 3).reshape(runs, -1, b.shape[1])
    columns = a.transpose(1, 2).reshape(runs, -1, a.shape[1])
    torch.bmm(rows.transpose(1, 2), columns, out=into)
    if "bias" in sums:
        torch.sum(rows, 1, out=sums["bias"])


def _weighted(gradients: Tensor, weights: Tensor, into: Tensor) -> None:
    runs = into.shape[0]
    rows = gradients.reshape(runs, weights.shape[1], -1)
    into.copy_(torch.bmm(weights[:, None, :], rows).view_as(into))


def sum_of(parts: Any) -> Tensor:
    """The sum of tensors of one shape."""
    total: Tensor = sum(parts)
    return total


def fresh(layer: Any, name: str, into: Tensor, generator: torch.Generator) -> bool:
    """Draws a parameter of every model as ``reset_parameters`` would; False if it is not known."""
    kind = type(layer)  # exactly: a class made from it may draw otherwise
    if kind is nn.Linear or kind is nn.Conv2d:
        reach = 1 / math.sqrt(math.prod(layer.weight.shape[1:]))
        into.uniform_(-reach, reach, generator=generator)
    elif kind is nn.Embedding:
        into.normal_(generator=generator)
        if layer.padding_idx is not None:
            into[:, layer.padding_idx] = 0
    elif kind in (nn.LayerNorm, nn.GroupNorm):
        into.fill_(1.0 if name == "weight" else 0.0)
    else:
        return False
    return True
