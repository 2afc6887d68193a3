"""Compute the attention of many models at once: projections per model, products jointly."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from epsilometer.networks.layers import (
    Layer,
    ManyLinear,
    Parameters,
    Tape,
    add_up_outer,
    measure_outer,
    places_last,
)


class InProjection(nn.Linear):
    """Queries, keys and values of ``nn.MultiheadAttention``, which keeps them in one matrix."""


class OutProjection(nn.Linear):
    """The last product of ``nn.MultiheadAttention``."""


class ManyProjections(Layer):
    """Queries, keys and values: rows of one matrix, each third times its own input."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values; equal inputs are multiplied once."""
        size = query.shape[-1]
        if query is key is value:
            return self._project(query, 0, 3 * size).chunk(3, -1)
        first = self._project(query, 0, size)
        if key is value:
            return first, *self._project(key, size, 3 * size).chunk(2, -1)
        return first, self._project(key, size, 2 * size), self._project(value, 2 * size, 3 * size)

    def _project(self, x: Tensor, start: int, stop: int) -> Tensor:
        x, runs = self.tape.lower(x), self.tape.runs
        rows = x.reshape(runs, -1, x.shape[-1])
        weights, biases = self.lowered()
        weight = weights[:, start:stop].transpose(1, 2)
        if biases is None:
            z = torch.bmm(rows, weight)
        else:
            z = torch.baddbmm(biases[:, None, start:stop], rows, weight)
        return self.remember((x.detach(), start, stop), z.view(*x.shape[:-1], stop - start))

    def measure(self, given: tuple[Tensor, int, int], back: Tensor) -> tuple[Tensor, Any]:
        """Measure a sum of outer products."""
        x, start, stop = given
        squares, kept = measure_outer(places_last(x), places_last(back), self.own)
        return squares, (kept, start, stop)

    def add_up(self, kept: Any, weights: Tensor, sums: Parameters) -> None:
        """Sum into the rows that were multiplied."""
        outer, start, stop = kept
        add_up_outer(outer, weights, {name: into[:, start:stop] for name, into in sums.items()})


class ManyAttention(nn.Module):
    """``nn.MultiheadAttention`` with the examples first.

    Attributes:
        batch_first: True, as the layers of ``nn.Transformer`` require.
    """

    batch_first = True

    def __init__(self, layer: nn.MultiheadAttention, tape: Tape) -> None:
        super().__init__()
        self.heads, self.dropout = layer.num_heads, layer.dropout
        last = layer.out_proj
        self.projections = ManyProjections(
            _as_linear(InProjection, layer.in_proj_weight, layer.in_proj_bias), tape
        )
        self.out = ManyLinear(_as_linear(OutProjection, last.weight, last.bias), tape)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return outputs, and the attention weights if requested."""
        if query.ndim != 3 or (is_causal and attn_mask is None):
            raise TypeError("expected (examples, places, size), and a mask where is_causal is set")
        parts = self.projections(query, key, value)
        q, k, v = (part.view(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in parts)
        mask = _join_masks(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        if need_weights or query.is_cuda:  # torch's fused kernels have no order of sums there
            seen, weights = _attend(q, k, v, mask=mask, dropout=dropout)
        else:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out = self.out(seen.transpose(1, 2).flatten(2))
        if not need_weights:
            return out, None
        return out, weights.mean(1) if average_attn_weights else weights


def is_plain_attention(layer: nn.MultiheadAttention) -> bool:
    """Tell whether :class:`ManyAttention` computes what a layer does."""
    same = layer.in_proj_weight is not None and layer.bias_k is None and layer.bias_v is None
    return bool(same and layer.batch_first and not layer.add_zero_attn)


def _as_linear(kind: type[nn.Linear], weight: Any, bias: Any) -> nn.Linear:
    """Return a linear layer that has given parameters."""
    outs, ins = weight.shape
    linear = kind(ins, outs, bias=bias is not None, device="meta")
    linear.weight, linear.bias = weight, bias
    return linear


def _join_masks(shared: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """Return what is added to ``(examples, heads, …)`` products; where a mask is True, -inf."""
    if shared is not None:
        shared = _as_numbers(shared, like.dtype)
        if shared.ndim == 3:  # one for each head of each example
            shared = shared.view(-1, like.shape[1], *shared.shape[1:])
    if padding is not None:
        padding = _as_numbers(padding, like.dtype)[:, None, None, :]
        return padding if shared is None else padding + shared
    return shared


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """Return means of values, and the weights that they were taken with."""
    scores = query @ (key / math.sqrt(key.shape[-1])).transpose(-1, -2)
    weights = (scores if mask is None else scores + mask).softmax(-1, dtype=torch.float32)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights.to(value.dtype) @ value, weights
