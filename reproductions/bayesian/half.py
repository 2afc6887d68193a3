"""Train many of the paper's CNNs with DP-SGD at once, in half precision on a GPU.

Table 1 of Shibahara et al. 2021 alone: two convolutions of 5 × 5 and two dense layers, dropout of
one half. Everything is a batched product of matrices, which a GPU does on its tensor cores: per
model and step 21 GFLOP. Weights, sums and noise are in single precision; images, activations and
what they are multiplied with in half. On a CPU all is in single precision.

Images lie with channels last. A layer's weights are ``(models, outputs, inputs)``, where inputs of
a convolution are the places of its patch, then channels, then a 1 for the bias, then zeros that
fill up to a multiple of eight.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv_transpose2d, pad

FILTERS, KERNEL, HIDDEN, CLASSES = 64, 5, 512, 10
_FIRST, _SECOND = 75, 1600  # inputs of a patch
_WIDE = (80, 1608, 1608, 520)  # inputs of a layer with a 1 and zeros
_OUTS = (FILTERS, FILTERS, HIDDEN, CLASSES)
_REAL = (_FIRST, _SECOND, 1600, HIDDEN)


class Networks:
    """The weights of some models, and what they say.

    Attributes:
        layers: Weights of each layer, single precision.
    """

    def __init__(
        self, models: int, *, device: str, generator: torch.Generator, compiled: bool = False
    ) -> None:
        self.models, self.device, self.compiled = models, device, compiled
        self.dtype = torch.float16 if device != "cpu" else torch.float32
        self.layers = []
        for outs, wide, real in zip(_OUTS, _WIDE, _REAL, strict=True):
            weight = torch.zeros(models, outs, wide, device=device)
            side = real**-0.5  # as nn.Linear and nn.Conv2d begin
            weight[..., : real + 1].uniform_(-side, side, generator=generator)
            self.layers.append(weight)
        self._generator = generator
        self._pooling = _compiled_pooling() if compiled else (_pool, _unpool)

    def pick(self, which: list[int]) -> "Networks":
        """Return copies of some models."""
        few = Networks(
            len(which), device=self.device, generator=self._generator, compiled=self.compiled
        )
        few.layers = [weight[which] for weight in self.layers]
        return few

    def predict(self, patches: Tensor, *, dropout: bool) -> Tensor:
        """Return logits ``(models, examples, classes)`` of patches, as :func:`patches_of`."""
        return self._forward(patches, dropout=dropout)["logits"]

    def sum_clipped(self, patches: Tensor, labels: Tensor, there: Tensor) -> list[Tensor]:
        """Return sums of gradients, each clipped to norm 1, by layer.

        Args:
            patches: Of images, ``(models, examples, 784, 80)``.
            labels: Of images, ``(models, examples)``.
            there: 1, or 0 where an example only fills up a batch.
        """
        seen = self._forward(patches, dropout=True)
        models, examples = labels.shape
        every = models * examples
        back = seen["logits"].softmax(-1)
        back.scatter_add_(2, labels[..., None], -torch.ones_like(back[..., :1]))
        last = back.to(self.dtype)
        own = [weight.to(self.dtype) for weight in self.layers]
        hidden = torch.bmm(last, own[3])[..., :HIDDEN]
        hidden = hidden * seen["hidden kept"]
        flat = torch.bmm(hidden, own[2])[..., :1600]
        unpool = self._pooling[1]
        second = unpool(flat.reshape(every, 5, 5, FILTERS), seen["second taken"])
        first = unpool(self._through_second(second, own[1]), seen["first taken"])
        first_own = torch.bmm(
            first.view(every, 784, FILTERS).transpose(1, 2), patches.view(every, 784, -1)
        )
        squares = _squares(first_own.flatten(1))
        squares += self._squares_of_second(second, seen["second patches"])
        for given, after in ((seen["flat"], hidden), (seen["hidden"], last)):
            squares += (_squares(given) * _squares(after)).view(-1)
        weights = there.view(-1) * squares.clamp_min(1e-20).rsqrt().clamp_max(1)
        weights = weights.to(self.dtype).view(models, examples, 1)
        summed = torch.bmm(weights.transpose(1, 2), first_own.view(models, examples, -1))
        second *= weights.view(every, 1, 1, 1)
        return [
            summed.view(models, FILTERS, -1).float(),
            torch.bmm(
                second.view(models, examples * 100, FILTERS).transpose(1, 2),
                seen["second patches"],
            ).float(),
            torch.bmm((hidden * weights).transpose(1, 2), seen["flat"]).float(),
            torch.bmm((last * weights).transpose(1, 2), seen["hidden"]).float(),
        ]

    def _forward(self, patches: Tensor, *, dropout: bool) -> dict[str, Tensor]:
        models, examples = patches.shape[:2]
        every = models * examples
        own = [weight.to(self.dtype).transpose(1, 2) for weight in self.layers]
        first = torch.bmm(patches.view(models, examples * 784, -1), own[0])
        pooled, first_taken = self._pool(first.view(every, 28, 28, FILTERS), dropout=dropout)
        second_patches = _second_patches(pooled).view(models, examples * 100, -1)
        second = torch.bmm(second_patches, own[1])
        pooled, second_taken = self._pool(second.view(every, 10, 10, FILTERS), dropout=dropout)
        flat = _with_one(pooled.view(models, examples, -1), _WIDE[2])
        before = torch.bmm(flat, own[2])
        kept = (before > 0).to(self.dtype)
        if dropout:
            kept *= 2 * self._bytes(before.shape).bitwise_and_(1).to(self.dtype)
        hidden = _with_one(before * kept, _WIDE[3])
        return {
            "logits": torch.bmm(hidden, own[3]).float(),
            "hidden": hidden,
            "hidden kept": kept,
            "flat": flat,
            "second patches": second_patches,
            "second taken": second_taken,
            "first taken": first_taken,
        }

    def _pool(self, values: Tensor, *, dropout: bool) -> tuple[Tensor, Tensor]:
        """Return ReLU, dropout, then the largest of 2 × 2; and the bit of which one that was."""
        if not dropout:
            return self._pooling[0](values, None)  # type: ignore[no-any-return]
        images, high, wide, channels = values.shape
        kept = self._bytes((images, high // 2, wide // 2, channels))
        return self._pooling[0](values, kept)  # type: ignore[no-any-return]

    def _bytes(self, shape: Any) -> Tensor:
        """Return random bytes."""
        count = -(-int(np.prod(shape)) // 8)
        words = torch.empty(count, dtype=torch.int64, device=self.device)
        words.random_(-(2**63), None, generator=self._generator)
        return words.view(torch.uint8)[: int(np.prod(shape))].view(shape)

    def _squares_of_second(self, back: Tensor, patches: Tensor) -> Tensor:
        """Return squared norms of gradients by the second convolution, some images at a time."""
        every = len(back)
        rows, columns = back.view(every, 100, FILTERS).transpose(1, 2), patches.view(every, 100, -1)
        at_once = max(1, 2**29 // (FILTERS * columns.shape[2]))  # 1 GiB of gradients
        return torch.cat(
            [
                _squares(torch.bmm(rows[at : at + at_once], columns[at : at + at_once]).flatten(1))
                for at in range(0, every, at_once)
            ]
        )

    def _through_second(self, back: Tensor, weight: Tensor) -> Tensor:
        """Return derivatives by the inputs of the second convolution, model by model."""
        kernels = weight[..., :_SECOND].reshape(-1, FILTERS, KERNEL, KERNEL, FILTERS)
        parts = [
            conv_transpose2d(one, kernel)
            for one, kernel in zip(
                back.permute(0, 3, 1, 2).chunk(self.models),
                kernels.permute(0, 1, 4, 2, 3),  # outputs, inputs, rows, columns: channels last
                strict=True,
            )
        ]
        return torch.cat([part.permute(0, 2, 3, 1) for part in parts])


def patches_of(images: np.ndarray, *, device: str) -> Tensor:
    """Return the patches of all images that the first layer multiplies, ``(n, 784, 80)``."""
    dtype = torch.float16 if device != "cpu" else torch.float32
    parts = []
    for some in np.array_split(images, -(-len(images) // 1000)):
        x = torch.from_numpy(np.ascontiguousarray(some.transpose(0, 2, 3, 1))).to(device, dtype)
        seen = x.unfold(1, KERNEL, 1).unfold(2, KERNEL, 1).permute(0, 1, 2, 4, 5, 3)
        parts.append(_with_one(seen.reshape(len(x), 784, _FIRST), _WIDE[0]))
    return torch.cat(parts)


def train(
    networks: Networks,
    patches: Tensor,
    labels: Tensor,
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    noise: float,
    rate: float,
    batch_size: int,
    generator: torch.Generator,
    watch: Callable[[int], None] = lambda step: None,
) -> None:
    """Train by DP-SGD with clipping norm 1: one step per batch of places and who is there."""
    words = patches.view(len(patches), -1).view(torch.complex128)  # quicker to copy
    for step, (places, there) in enumerate(batches):
        models, examples = places.shape
        drawn = words.index_select(0, places.view(-1)).view(patches.dtype)
        drawn = drawn.view(models, examples, 784, -1)
        sums = networks.sum_clipped(drawn, labels[places], there)
        for weight, total, real in zip(networks.layers, sums, _REAL, strict=True):
            drawn_noise = torch.randn(
                (*weight.shape[:2], real + 1), device=weight.device, generator=generator
            )
            step_taken = total[..., : real + 1].add_(drawn_noise, alpha=noise)
            weight[..., : real + 1].sub_(step_taken, alpha=rate / batch_size)
        watch(step)


def poisson_batches(
    records: Tensor,
    *,
    sampling_rate: float,
    steps: int,
    rng: np.random.Generator,
    pad_to: int = 16,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw batches by Poisson sampling, each model on its own.

    Args:
        records: Places of each model's records, ``(models, records)``: all have as many, where -1
            is nobody.
        sampling_rate: Chance of each record.
        steps: Number of batches.
        rng: Draws the sizes and, as a seed, who is drawn.
        pad_to: Batches are filled up to a multiple of this.
    """
    device = records.device
    generator = torch.Generator(device).manual_seed(int(rng.integers(2**63)))
    models, count = records.shape
    for sizes in rng.binomial(count, sampling_rate, (steps, models)):
        wide = min(count, max(pad_to, -(-int(sizes.max()) // pad_to) * pad_to))
        scores = torch.rand((models, count), device=device, generator=generator)
        places = records.gather(1, scores.topk(wide, dim=1, sorted=True).indices)
        rows = torch.arange(wide, device=device)
        there = rows < torch.from_numpy(sizes).to(device)[:, None]
        there &= places >= 0
        yield places.clamp_min(0), there.float()


def _pool(values: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the largest of 2 × 2 that is positive and kept, and its bit: 1, 2, 4, 8, or 0."""
    taken = None
    for place, (down, right) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        value = values[:, down::2, right::2]
        if kept is not None:
            value = torch.where((kept & (1 << place)) != 0, value, torch.zeros_like(value))
        if taken is None:
            best = value.clamp_min(0)
            taken = (value > 0).to(torch.uint8)
        else:
            larger = value > best
            taken = torch.where(larger, torch.full_like(taken, 1 << place), taken)
            best = torch.where(larger, value, best)
    assert taken is not None
    return (best if kept is None else best * 2), taken


def _unpool(back: Tensor, taken: Tensor) -> Tensor:
    """Return derivatives before dropout and pooling: twice what the kept one is given."""
    images, high, wide, channels = back.shape
    bits = torch.tensor([[1, 2], [4, 8]], dtype=torch.uint8, device=back.device)
    # By broadcasting: four images laid side by side took half the time of a step on an H200.
    here = taken[:, :, None, :, None] == bits[:, None, :, None]
    twice = (back * 2)[:, :, None, :, None]
    return torch.where(here, twice, 0).reshape(images, 2 * high, 2 * wide, channels)


def _second_patches(x: Tensor) -> Tensor:
    """Return patches of 5 × 5 of ``(n, 14, 14, 64)``, ``(n, 100, 1608)``."""
    out = x.new_empty(len(x), 10, 10, _WIDE[1])
    # In words of 16 bytes: strided copies of single numbers take six times as long on a GPU.
    words, into = x.view(torch.complex128), out[..., :_SECOND].view(torch.complex128)
    seen = words.unfold(1, KERNEL, 1).unfold(2, KERNEL, 1).permute(0, 1, 2, 4, 5, 3)
    into.unflatten(-1, seen.shape[3:]).copy_(seen)
    out[..., _SECOND] = 1
    out[..., _SECOND + 1 :] = 0
    return out.view(len(x), 100, -1)


def _with_one(x: Tensor, wide: int) -> Tensor:
    """Return inputs with a 1 for the bias behind them, and zeros."""
    filled = pad(x, (0, wide - x.shape[-1]))
    filled[..., x.shape[-1]] = 1
    return filled


def _squares(x: Tensor) -> Tensor:
    """Return squared norms along the last axis, in single precision."""
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).square_()


@cache
def _compiled_pooling() -> tuple[Any, Any]:
    """Return pooling and back, one kernel each that torch writes."""
    return torch.compile(_pool, dynamic=True), torch.compile(_unpool, dynamic=True)
