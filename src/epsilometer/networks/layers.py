"""Layers of many models at once: what takes the place of each kind of layer of a module."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from epsilometer.networks.convolution import ManyConv2d
from epsilometer.networks.tape import (
    Call,
    Layer,
    Outer,
    Parameters,
    add_up_outer,
    measure_outer,
    row_squares,
    sum_of,
    weighted,
)


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
            return measure_outer(_columns(given), _columns(back), self.own)
        square = row_squares(given)
        if "bias" in self.own:
            square.add_(1)
        return square.mul_(row_squares(back)), Outer(given[..., None], back[..., None])

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """One batched product."""
        add_up_outer(kept, weights, sums)


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
        return sum_of(row_squares(gradient) for gradient in gradients.values()), gradients

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Of the small gradients."""
        for name, gradients in kept.items():
            weighted(gradients, weights, sums[name])


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
        return row_squares(back), (given, back)

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Of the gradients themselves."""
        name, gradients = kept
        weighted(gradients, weights, sums[name])


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


def _columns(sequence: Tensor) -> Tensor:
    """``(n, …, size)`` as ``(n, size, places)``; a view where it can be one."""
    return sequence.reshape(len(sequence), -1, sequence.shape[-1]).transpose(1, 2)
