"""Compute layers of many models at once, and the gradient of every example.

A layer has the parameters of all models, and receives the examples of all models in one batch,
those of the first model first. Its inputs (activations) and the derivatives by its outputs
(backprops) suffice for the norm of every example's gradient, and for their weighted sum.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from epsilometer.networks.devices import MANY_ROWS, use_precision
from epsilometer.networks.trainer import Precision

Parameters = dict[str, Tensor]
_WIDE = 1 << 17  # weights of a layer from which a call per model takes less than copies of them


@dataclass
class Tape:
    """Record the inputs and outputs of layers in one forward pass, in the order of their calls.

    Attributes:
        runs: Number of models.
        precision: Precision of products.
        calls: Calls of layers.
        examples: Examples of all models in this pass.
    """

    runs: int
    precision: Precision = "float32"
    calls: list["Call"] = field(default_factory=list)
    examples: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """Type of the factors of products."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def lower(self, x: Tensor) -> Tensor:
        """Return numbers as factors of products, rounded to the precision."""
        return x.to(self.dtype) if x.is_floating_point() else x


@dataclass
class Call:
    """Hold one call of a layer.

    Attributes:
        layer: Which one.
        given: Activations, in whatever form the layer needs them again.
        gave: The layer's output, by which the loss is differentiated.
    """

    layer: "Layer"
    given: Any
    gave: Tensor
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.gave._version

    @property
    def part(self) -> tuple[int, str]:
        """What of the models is differentiated: a layer, or one parameter of its own."""
        return id(self.layer), self.given if isinstance(self.given, str) else ""

    @property
    def written_over(self) -> bool:
        """Whether the output was changed in place: its derivative is no longer the layer's."""
        return self.gave._version != self.version


class Outer(NamedTuple):
    """Hold factors of gradients: Σ over places of the outer products of their columns.

    Attributes:
        a: Activations, ``(n, inputs, places)``.
        b: Backprops, ``(n, outputs, places)``.
    """

    a: Tensor
    b: Tensor


class Layer(nn.Module):
    """Compute one layer of all models; replace the layer that it was made from.

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
        """Record a call and return its value, so that the loss can be differentiated by it."""
        if not gave.requires_grad:  # nothing before it is differentiated: the graph begins here
            gave.requires_grad_()
        self.tape.calls.append(Call(self, given, gave))
        return gave

    def train(self, mode: bool = True) -> "Layer":
        """Switch the original layer too, which torch does not see."""
        super().train(mode)
        self.original[0].train(mode)
        return self

    def lowered(self) -> tuple[Tensor, Tensor | None]:
        """Return weights and biases as products take them."""
        bias = self.own.get("bias")
        return self.tape.lower(self.own["weight"]), None if bias is None else self.tape.lower(bias)

    def measure(self, given: Any, back: Tensor) -> tuple[Tensor, Any]:
        """Return squared norms of gradients per example, and what :meth:`add_up` needs.

        Args:
            given: What the layer wrote down.
            back: Derivative of the loss by its output.
        """
        raise NotImplementedError

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Write the sum of gradients, each times its weight ``(runs, examples)``, to ``sums``."""
        raise NotImplementedError


def keeps_gradients(places: int, size: int) -> bool:
    """Tell whether a gradient is smaller than the products of all pairs of places."""
    return places * places >= size


def row_squares(rows: Tensor) -> Tensor:
    """Return squared norm of every row of ``(n, …)``."""
    flat = rows.reshape(len(rows), -1)
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float32)
    return norms.square_()


def measure_outer(a: Tensor, b: Tensor, own: Parameters) -> tuple[Tensor, Any]:
    """Return squared norm of Σ_t b_t a_tᵀ (and of Σ_t b_t, the bias's) of every example.

    By the products of all pairs of places, or by the sum itself, whichever is less: where there are
    many places the sum is far smaller than the activations it is made of, and is kept.

    Args:
        a: Activations, ``(n, inputs, places)``.
        b: Backprops, ``(n, outputs, places)``.
        own: The layer's parameters.
    """
    places, size = a.shape[2], a.shape[1] * b.shape[1]
    kept: Any
    if not keeps_gradients(places, size):
        pairs = torch.bmm(a.transpose(1, 2), a).mul_(torch.bmm(b.transpose(1, 2), b))
        squares, kept = pairs.sum((1, 2), dtype=torch.float32).clamp_min_(0), Outer(a, b)
    else:
        gradients = torch.bmm(b, a.transpose(1, 2))
        squares, kept = row_squares(gradients), (gradients,)
    if "bias" in own:
        biases = b.sum(2)
        squares.add_(row_squares(biases))
        kept = kept if isinstance(kept, Outer) else (*kept, biases)
    return squares, kept


def add_up_outer(kept: Any, weights: Tensor, sums: Parameters) -> None:
    """Return weighted sum over examples of what :func:`measure_outer` kept."""
    runs, examples = weights.shape
    into = sums["weight"].flatten(2)
    if not isinstance(kept, Outer):
        for gradients, name in zip(kept, ("weight", "bias"), strict=False):
            weighted(gradients, weights, sums[name])
        return
    a, b = kept
    scaled = (b * weights.to(b.dtype).reshape(-1, 1, 1)).view(runs, examples, *b.shape[1:])
    rows = scaled.transpose(2, 3).reshape(runs, -1, b.shape[1])
    columns = a.transpose(1, 2).reshape(runs, -1, a.shape[1])
    multiply_into(rows.transpose(1, 2), columns, into)
    if "bias" in sums:
        torch.sum(rows, 1, dtype=into.dtype, out=sums["bias"])


def weighted(gradients: Tensor, weights: Tensor, into: Tensor) -> None:
    """Write the weighted sum of every model's gradients."""
    runs = into.shape[0]
    rows = gradients.reshape(runs, weights.shape[1], -1)
    into.copy_(_multiply(weights[:, None, :].to(rows.dtype), rows).view_as(into))


def multiply_into(a: Tensor, b: Tensor, into: Tensor) -> None:
    """Write a batched product, which is summed in single precision."""
    if a.dtype == into.dtype:
        _multiply_models(a, b, into)
    else:
        into.copy_(_multiply(a, b))


def _multiply_models(a: Tensor, b: Tensor, into: Tensor) -> None:
    """Write a batched product; of large factors model by model, which oneDNN need not copy."""
    wide = max(a[0].numel(), b[0].numel(), into[0].numel()) >= _WIDE
    if not wide or a.is_cuda or a.dtype != torch.float32:
        torch.bmm(a, b, out=into)
        return
    with use_precision("float32", rows=MANY_ROWS):
        for left, right, product in zip(a, b, into, strict=True):
            torch.mm(left, right, out=product)


def _multiply_many(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the outputs of a linear layer of every model."""
    if bias is None:
        return torch.bmm(rows, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None, :], rows, weight.transpose(1, 2))


class _Products(torch.autograd.Function):
    """The same on a CPU, differentiated by the rows alone."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return outputs; a copy of small weights is turned, for oneDNN would take longer to."""
        ctx.save_for_backward(weight)
        if weight[0].numel() < _WIDE:
            few = weight.contiguous() if rows.shape[1] >= MANY_ROWS else weight
            return _multiply_many(rows, few, bias)
        z = rows.new_empty(*rows.shape[:2], weight.shape[1])
        _multiply_models(rows, weight.transpose(1, 2), z)
        return z if bias is None else z.add_(bias[:, None, :])

    @staticmethod
    def backward(ctx: Any, *backs: Tensor) -> Any:
        """Return the derivative by the rows."""
        (weight,) = ctx.saved_tensors
        into = backs[0].new_empty(*backs[0].shape[:2], weight.shape[2])
        _multiply_models(backs[0], weight, into)
        return into, None, None


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return a batched product in single precision."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    if a.is_cuda:
        product: Any = torch.bmm
        return product(a, b, out_dtype=torch.float32)  # type: ignore[no-any-return]
    return torch.bmm(a.float(), b.float())


def round_down(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights of a precision that are not larger: rounding must not clip too little."""
    if dtype == torch.float32:
        return weights
    return weights.float().view(torch.int32).bitwise_and_(-(2**16)).view(torch.float32)


def sum_of(parts: Any) -> Tensor:
    """Return the sum of tensors of one shape."""
    total: Tensor = sum(parts)
    return total


class ManyLinear(Layer):
    """``nn.Linear``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return all models' outputs."""
        x, runs, (weight, bias) = self.tape.lower(x), self.tape.runs, self.lowered()
        rows = x.reshape(runs, -1, x.shape[-1])
        multiply: Any = _multiply_many if x.is_cuda else _Products.apply
        z = multiply(rows, weight, bias)
        return self.remember(x.detach(), z.view(*x.shape[:-1], weight.shape[1]))

    def measure(self, given: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """Measure a gradient that is an outer product, or for a sequence a sum of them."""
        if given.ndim > 2:
            return measure_outer(places_last(given), places_last(back), self.own)
        square = row_squares(given)
        if "bias" in self.own:
            square.add_(1)
        return square.mul_(row_squares(back)), Outer(given[..., None], back[..., None])

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Sum by one batched product."""
        add_up_outer(kept, weights, sums)


class ManyEmbedding(Layer):
    """``nn.Embedding`` without ``max_norm`` and the like.

    Attributes:
        shared: Whether its words are the same for all examples, as numbers of places are.
    """

    shared = False

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows of each model's own table."""
        weight = self.own["weight"]
        if self.shared:  # models differ in the rows: every example gets them
            x = x.expand(self.tape.examples, *(x.shape if x.ndim == 1 else x.shape[1:]))
        words = x.reshape(self.tape.runs, -1)
        rows = torch.gather(weight, 1, words[..., None].expand(-1, -1, weight.shape[-1]))
        return self.remember(x, rows.view(*x.shape, -1))

    def measure(self, given: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """Sum the gradients of equal words; those of others are orthogonal."""
        words = given.reshape(len(given), -1)
        back = back.reshape(*words.shape, back.shape[-1])
        padding: Any = self.original[0].padding_idx
        if padding is not None:
            back = back * (words != padding)[..., None]
        same = words[:, :, None] == words[:, None, :]
        products = torch.bmm(back, back.transpose(1, 2))
        return products.mul_(same).sum((1, 2)).clamp_min_(0), (words, back)

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Add every word's gradient to its row."""
        words, back = kept
        runs, into = self.tape.runs, sums["weight"]
        rows = (back * weights.reshape(-1, 1, 1)).reshape(runs, -1, into.shape[-1])
        into.zero_().scatter_add_(1, words.reshape(runs, -1, 1).expand_as(rows), rows)


class ManyNorm(Layer):
    """``nn.LayerNorm`` and ``nn.GroupNorm``: normalised as usual, then each model's own scale."""

    def forward(self, x: Tensor) -> Tensor:
        """Return all models' outputs."""
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
        """Return a parameter of each model, shaped to be multiplied with all its examples."""
        examples = x.shape[0] // self.tape.runs
        each = parameter.repeat_interleave(examples, 0)
        if isinstance(self.original[0], nn.GroupNorm):
            return each.view(*each.shape, *[1] * (x.ndim - 2))
        return each.view(-1, *[1] * (x.ndim - parameter.ndim), *parameter.shape[1:])

    def _gradients(self, given: Tensor, back: Tensor) -> Parameters:
        """Return gradients per example, which are as small as the layer."""
        if isinstance(self.original[0], nn.GroupNorm):
            axes = list(range(2, back.ndim))
        else:
            axes = list(range(1, back.ndim + 1 - self.own["weight"].ndim))
        found = {"weight": back * given, "bias": back}
        return {name: found[name].sum(axes) if axes else found[name] for name in self.own}

    def measure(self, given: Tensor, back: Tensor) -> tuple[Tensor, Any]:
        """Use the small gradients."""
        gradients = self._gradients(given, back)
        return sum_of(row_squares(gradient) for gradient in gradients.values()), gradients

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Use the small gradients."""
        for name, gradients in kept.items():
            weighted(gradients, weights, sums[name])


class OwnParameters(Layer):
    """Parameters that a module uses in its own forward pass: each example has a copy of them.

    Each begins with an axis of length 1, in whose place examples come, as for embeddings of places.
    """

    def hand_out(self, module: nn.Module) -> None:
        """Give a module the copies for the examples of this pass."""
        examples = self.tape.examples // self.tape.runs
        for name, own in self.own.items():
            copies = own.expand(-1, examples, *own.shape[2:]).flatten(0, 1).requires_grad_()
            self.tape.calls.append(Call(self, name, copies))
            setattr(module, name, copies)

    def measure(self, given: str, back: Tensor) -> tuple[Tensor, Any]:
        """Use the gradients themselves."""
        return row_squares(back), (given, back)

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Use the gradients themselves."""
        name, gradients = kept
        weighted(gradients, weights, sums[name])


class ManyOthers(OwnParameters):
    """Any other module, through ``torch.func``: each example has its own copy of the parameters.

    Their gradients are kept per example until they are summed: memory grows with the batch.
    """

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return all models' outputs; the module sees batches of one example."""
        if any(isinstance(option, Tensor) for option in options.values()):
            raise TypeError("a tensor by keyword may be one for all examples, or one for each")
        module, runs = self.original[0], self.tape.runs
        # What a module does with its parameters is not known: it is done in single precision.
        inputs = tuple(x.float() if x.is_floating_point() else x for x in inputs)
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
        with _freeze_padding(module), sdpa_kernel(SDPBackend.MATH):
            gave = torch.func.vmap(one, randomness="different")(copies, *inputs)
        for name, copy in copies.items():
            self.tape.calls.append(Call(self, name, copy))
        if isinstance(gave, tuple):
            return tuple(part if part.numel() else None for part in gave)
        return gave


@contextmanager
def _freeze_padding(module: nn.Module) -> Iterator[None]:
    """Pass no gradient to the row of ``padding_idx``, which torch forgets under vmap."""

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


def places_last(sequence: Tensor) -> Tensor:
    """Return ``(n, …, size)`` as ``(n, size, places)``; a view where it can be one."""
    return sequence.reshape(len(sequence), -1, sequence.shape[-1]).transpose(1, 2)
