"""A GPT-2 in plain torch, LoRA, and clipped sums of gradients: what benchmarks/llm.py trains.

Gradients of single texts are never formed. A linear layer with inputs a and output gradients g of a
text has the gradient Σₜ gₜ aₜᵀ, whose squared norm is Σₛₜ (aₛ·aₜ)(gₛ·gₜ). So norms come from one
backward pass, and the clipped sum from one product of matrices per layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

Part: TypeAlias = tuple[Any, torch.Tensor, torch.Tensor]  # layer, input, gradient of the output


@dataclass(frozen=True)
class Shape:
    """The size of a GPT; the default is GPT-2 with 124 million parameters."""

    vocabulary: int = 50_257
    context: int = 1_024
    layers: int = 12
    heads: int = 12
    width: int = 768


class Block(nn.Module):
    """Attention and two layers, each after a normalisation and beside a shortcut."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attend = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)
        self.expand = nn.Linear(shape.width, 4 * shape.width)
        self.contract = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor, cache: "Cache | None" = None) -> torch.Tensor:
        """Return what follows of the inputs of all places, and of those in a cache."""
        batch, length, width = x.shape
        parts = self.attend(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if cache is None:
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            key, value = cache.add(self, key, value)
            seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=cache.seen)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Cache:
    """Keys and values of the places before, and which places each of the new ones sees."""

    def __init__(self, mask: torch.Tensor, new: int) -> None:
        causal = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool, device=mask.device)
        self._mask = functional.pad(mask.bool(), (0, new), value=True)
        # A place that is filled up sees itself, so that no row is empty.
        self.seen = (causal.tril() & mask.bool()[:, None] | causal.diag().diag())[:, None]
        self._begun, self._end = 0, mask.shape[1]
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(
        self, block: nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a block so far, with new ones."""
        if id(block) not in self._parts:
            shape = (*key.shape[:2], self._mask.shape[1], key.shape[3])
            self._parts[id(block)] = key.new_empty(shape), value.new_empty(shape)
        parts = self._parts[id(block)]
        for part, new in zip(parts, (key, value), strict=True):
            part[:, :, self._begun : self._end] = new
        return parts[0][:, :, : self._end], parts[1][:, :, : self._end]

    def move(self) -> None:
        """Go on by one place, which sees all before it."""
        self._begun, self._end = self._end, self._end + 1
        self.seen = self._mask[:, None, None, : self._end]


class GPT(nn.Module):
    """GPT-2: learned positions, the same table of tokens for input and output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                deep = name.endswith(("project.weight", "contract.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers if deep else 1))

    def forward(self, ids: torch.Tensor, logits_to_keep: int = 0) -> torch.Tensor:
        """Return logits of the next token at every place, or at this many of the last."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.head(self._read(ids, places)[:, -logits_to_keep:])

    def generate(
        self,
        *,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        max_new_tokens: int,
        **_: Any,
    ) -> torch.Tensor:
        """Return rows that are filled up on the left, each with its likeliest continuation."""
        cache, rows, new = Cache(attention_mask, max_new_tokens), [input_ids], input_ids
        places = (attention_mask.cumsum(1) - 1).clamp(min=0)
        for _step in range(max_new_tokens):
            new = self.head(self._read(new, places, cache)[:, -1]).argmax(1, keepdim=True)
            rows.append(new)
            places = places[:, -1:] + 1
            cache.move()
        return torch.cat(rows, 1)

    def _read(
        self, ids: torch.Tensor, places: torch.Tensor, cache: Cache | None = None
    ) -> torch.Tensor:
        x = self.tokens(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, cache)
        return self.norm(x)


class LoRA(nn.Module):
    """A frozen linear layer, and a product of two thin ones that is trained beside it."""

    def __init__(self, inner: nn.Linear, rank: int, scale: float = 2.0) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what both layers add up to."""
        return torch.add(self.inner(x), self.up(self.down(x)), alpha=self.scale)


def add_lora(model: GPT, rank: int) -> None:
    """Freeze a model, and put LoRA into every linear layer of its blocks."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("attend", "project", "expand", "contract"):
            layer = LoRA(getattr(block, name), rank)
            setattr(block, name, layer.to(model.tokens.weight.device))


def sum_losses(logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the sum over texts of the mean loss of each text's tokens."""
    losses = functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view(ids.shape[0], -1)
    counted = mask[:, 1:].float()
    return ((losses * counted).sum(1) / counted.sum(1).clamp(min=1)).sum()


class ClippedSum:
    """Norms of single texts' gradients, and their clipped sum, by one backward pass.

    Guarantees: the sum of gradients, each scaled to a norm of at most ``clip``. The tied table of
        tokens is one parameter, whose input and output parts are added before the norm is taken.

    Args:
        model: Its trainable linear, normalisation and embedding layers are watched.
        clip: C.
    """

    def __init__(self, model: nn.Module, clip: float) -> None:
        self._model, self._clip = model, clip
        self._layers = [each for each in model.modules() if _is_trained(each)]
        self._seen: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
        self._handles = [each.register_forward_hook(self._watch) for each in self._layers]

    def close(self) -> None:
        """Watch no more."""
        for handle in self._handles:
            handle.remove()

    def _watch(self, layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        if output.requires_grad:
            self._seen.append((layer, inputs[0].detach(), output))

    def add(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Add the clipped gradients of some texts to ``grad``; return the loss and the norms."""
        self._seen.clear()
        loss = sum_losses(self._model(ids), ids, mask)
        # Of outputs alone: gradients of parameters are made below, from clipped parts.
        slopes = torch.autograd.grad(loss, [output for *_, output in self._seen])
        parts = [
            (layer, source, slope.float())
            for (layer, source, _), slope in zip(self._seen, slopes, strict=True)
        ]
        self._seen.clear()
        with torch.autocast(ids.device.type, enabled=False):  # norms in single precision
            norms = _measure(parts)
            _add_clipped(parts, (self._clip / norms.clamp(min=1e-12)).clamp(max=1.0))
        return float(loss.detach()), norms


def _measure(parts: Sequence[Part]) -> torch.Tensor:
    """Return the norm of every text's whole gradient."""
    squares: Any = 0.0
    tied: dict[int, list[Part]] = {}
    for layer, source, slope in parts:
        if isinstance(layer, nn.LayerNorm):
            squares = squares + (slope * _normalise(layer, source)).sum(1).square().sum(1)
        else:
            squares = squares + (_products(layer, source) * (slope @ slope.mT)).sum((1, 2))
            tied.setdefault(id(layer.weight), []).append((layer, source, slope))
        if getattr(layer, "bias", None) is not None:
            squares = squares + slope.sum(1).square().sum(1)
    for same in tied.values():
        if len(same) == 2:  # the table of tokens, at the input and at the output
            (inner,) = [part for part in same if isinstance(part[0], nn.Embedding)]
            (outer,) = [part for part in same if isinstance(part[0], nn.Linear)]
            ids = inner[1][:, None, :].expand(-1, outer[2].shape[1], -1)
            met = outer[2].gather(2, ids)  # of each output place, at each input token
            squares = squares + 2 * (met * (outer[1].float() @ inner[2].mT)).sum((1, 2))
    return torch.as_tensor(squares).clamp(min=0).sqrt()


def _add_clipped(parts: Sequence[Part], factors: torch.Tensor) -> None:
    """Add the clipped sum of every parameter to its ``grad``."""
    for layer, source, slope in parts:
        scaled = slope * factors[:, None, None]
        if isinstance(layer, nn.Embedding):
            table = torch.zeros_like(layer.weight)
            _accumulate(layer.weight, table.index_add_(0, source.flatten(), scaled.flatten(0, 1)))
            continue
        if layer.bias is not None:
            _accumulate(layer.bias, scaled.sum((0, 1)))
        if isinstance(layer, nn.LayerNorm):
            _accumulate(layer.weight, (scaled * _normalise(layer, source)).sum((0, 1)))
        else:
            _accumulate(layer.weight, scaled.flatten(0, 1).mT @ source.flatten(0, 1).float())


def _accumulate(parameter: nn.Parameter, slope: torch.Tensor) -> None:
    parameter.grad = slope if parameter.grad is None else parameter.grad + slope


def _is_trained(layer: nn.Module) -> bool:
    kinds = (nn.Linear, nn.LayerNorm, nn.Embedding)
    return isinstance(layer, kinds) and layer.weight.requires_grad


def _normalise(layer: nn.LayerNorm, source: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(source.float(), layer.normalized_shape, eps=layer.eps)


def _products(layer: nn.Module, source: torch.Tensor) -> torch.Tensor:
    """Return the inner products of a layer's inputs, of all pairs of places of a text."""
    if isinstance(layer, nn.Embedding):
        return (source[:, :, None] == source[:, None, :]).float()
    inputs = source.float()
    return inputs @ inputs.mT


def count_parameters(model: nn.Module, *, trained: bool = False) -> int:
    """Count the parameters of a model, or those that are trained."""
    every: Sequence[nn.Parameter] = list(model.parameters())
    return sum(p.numel() for p in every if p.requires_grad or not trained)
