"""What layers of many models write down in a pass, and what gradients are made of from it.

A layer has the parameters of all models, and sees the examples of all models in one batch: first
those of the first model. What it was given (activations) and what came back (backprops) are enough
for the norm of every example's gradient, and for their weighted sum.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Parameters = dict[str, Tensor]


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


def keeps_gradients(places: int, size: int) -> bool:
    """Whether a gradient is smaller than the products of all pairs of places."""
    return places * places >= size


def row_squares(rows: Tensor) -> Tensor:
    """Squared norm of every row of ``(n, …)``."""
    norms: Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1)
    return norms.square_()


def measure_outer(a: Tensor, b: Tensor, own: Parameters) -> tuple[Tensor, Any]:
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
    if not keeps_gradients(places, size):
        pairs = torch.bmm(a.transpose(1, 2), a).mul_(torch.bmm(b.transpose(1, 2), b))
        squares, kept = pairs.sum((1, 2)).clamp_min_(0), Outer(a, b)
    else:
        gradients = torch.bmm(b, a.transpose(1, 2))
        squares, kept = row_squares(gradients), (gradients,)
    if "bias" in own:
        biases = b.sum(2)
        squares.add_(row_squares(biases))
        kept = kept if isinstance(kept, Outer) else (*kept, biases)
    return squares, kept


def add_up_outer(kept: Any, weights: Tensor, sums: Parameters) -> None:
    """Weighted sum over examples of what :func:`measure_outer` kept."""
    runs, examples = weights.shape
    into = sums["weight"].flatten(2)
    if not isinstance(kept, Outer):
        for gradients, name in zip(kept, ("weight", "bias"), strict=False):
            weighted(gradients, weights, sums[name])
        return
    a, b = kept
    scaled = (b * weights.reshape(-1, 1, 1)).view(runs, examples, *b.shape[1:])
    rows = scaled.transpose(2, 3).reshape(runs, -1, b.shape[1])
    columns = a.transpose(1, 2).reshape(runs, -1, a.shape[1])
    torch.bmm(rows.transpose(1, 2), columns, out=into)
    if "bias" in sums:
        torch.sum(rows, 1, out=sums["bias"])


def weighted(gradients: Tensor, weights: Tensor, into: Tensor) -> None:
    """Writes the weighted sum of every model's gradients."""
    runs = into.shape[0]
    rows = gradients.reshape(runs, weights.shape[1], -1)
    into.copy_(torch.bmm(weights[:, None, :], rows).view_as(into))


def sum_of(parts: Any) -> Tensor:
    """The sum of tensors of one shape."""
    total: Tensor = sum(parts)
    return total
