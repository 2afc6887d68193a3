"""Train many of the paper's CNNs with DP-SGD at once, in half precision on a GPU.

Table 1 of Shibahara et al. 2021 alone: two convolutions of 5 × 5 and two dense layers, dropout of
one half. Everything is a batched product of matrices, which a GPU does on its tensor cores: per
model and step 21 GFLOP. Weights, sums and noise are in single precision; images, activations and
what they are multiplied with in half. On a CPU all is in single precision.

On a GPU layers of pixels are done by the kernels of ``half_cuda.py``. Models are trained in groups
whose batches are about as large, so that few places are empty.

Images lie with channels last. A layer's weights are ``(models, outputs, inputs)``, where inputs of
a convolution are the places of its patch, then channels, then a 1 for the bias, then zeros that
fill up to a multiple of eight.
"""

from collections.abc import Callable, Iterator
from copy import copy
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

FILTERS, KERNEL, HIDDEN, CLASSES = 64, 5, 512, 10
_FIRST, _SECOND = 75, 1600  # inputs of a patch
_WIDE = (80, 1608, 1608, 520)  # inputs of a layer with a 1 and zeros
_OUTS = (FILTERS, FILTERS, HIDDEN, CLASSES)
_REAL = (_FIRST, _SECOND, 1600, HIDDEN)
Batch: TypeAlias = list[tuple[Tensor, Tensor, Tensor]]
"""Groups: which models, the places of their records, and who of these is there."""


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
        self.steps: Any = _PLAIN_STEPS
        if compiled:
            import half_cuda

            self.steps = half_cuda

    def pick(self, which: Tensor) -> "Networks":
        """Return copies of some models."""
        few = copy(self)
        few.models, few.layers = len(which), [weight[which] for weight in self.layers]
        return few

    def predict(self, table: Tensor, places: Tensor, *, dropout: bool) -> Tensor:
        """Return logits ``(models, examples, classes)`` of examples, as in ``sum_clipped``."""
        return self._forward(table, places, dropout=dropout)["logits"]

    def sum_clipped(
        self, table: Tensor, places: Tensor, labels: Tensor, there: Tensor
    ) -> list[Tensor]:
        """Return sums of gradients, each clipped to norm 1, by layer.

        Args:
            table: Patches of all images, as :func:`patches_of`.
            places: Of each model's examples in the table, ``(models, examples)``.
            labels: Of these, ``(models, examples)``.
            there: 1, or 0 where an example only fills up a batch.
        """
        seen = self._forward(table, places, dropout=True)
        models, examples = labels.shape
        every = models * examples
        back = seen["logits"].softmax(-1)
        back.scatter_add_(2, labels[..., None], -torch.ones_like(back[..., :1]))
        last = back.to(self.dtype)
        own = [weight.to(self.dtype) for weight in self.layers]
        hidden = torch.bmm(last, own[3])[..., :HIDDEN]
        hidden = hidden * seen["hidden kept"]
        flat = torch.bmm(hidden, own[2])[..., :1600]
        steps = self.steps
        flat = flat.reshape(every, 5, 5, FILTERS).contiguous()
        second = steps.unpool(flat, seen["second taken"])
        first, squares = steps.differentiate_first(
            self._through_second(second, own[1]), seen["first taken"], table, places.view(-1)
        )
        squares += steps.square_gradients(second, seen["pooled"], own[1], kernel=KERNEL)
        for given, after in ((seen["flat"], hidden), (seen["hidden"], last)):
            squares += (_squares(given) * _squares(after)).view(-1)
        weights = there.view(-1) * squares.clamp_min(1e-20).rsqrt().clamp_max(1)
        weights = weights.to(self.dtype).view(models, examples, 1)
        summed = torch.bmm(weights.transpose(1, 2), first.view(models, examples, -1))
        second *= weights.view(every, 1, 1, 1)
        return [
            summed.view(models, FILTERS, -1).float(),
            steps.sum_gradients(second, seen["pooled"], own[1], kernel=KERNEL),
            torch.bmm((hidden * weights).transpose(1, 2), seen["flat"]).float(),
            torch.bmm((last * weights).transpose(1, 2), seen["hidden"]).float(),
        ]

    def _forward(self, table: Tensor, places: Tensor, *, dropout: bool) -> dict[str, Tensor]:
        models, examples = places.shape
        every = models * examples
        own = [weight.to(self.dtype) for weight in self.layers]
        bits = [self._bytes((every, size, size, FILTERS)) if dropout else None for size in (14, 5)]
        once, first_taken = self.steps.convolve_and_pool(table, places.view(-1), own[0], bits[0])
        second = self.steps.convolve(once, own[1], kernel=KERNEL)
        pooled, second_taken = self.steps.pool(second, bits[1])
        flat = _with_one(pooled.view(models, examples, -1), _WIDE[2])
        before = torch.bmm(flat, own[2].transpose(1, 2))
        kept = (before > 0).to(self.dtype)
        if dropout:
            kept *= 2 * self._bytes(before.shape).bitwise_and_(1).to(self.dtype)
        hidden = _with_one(before * kept, _WIDE[3])
        return {
            "logits": torch.bmm(hidden, own[3].transpose(1, 2)).float(),
            "hidden": hidden,
            "hidden kept": kept,
            "flat": flat,
            "pooled": once,
            "second taken": second_taken,
            "first taken": first_taken,
        }

    def _bytes(self, shape: Any) -> Tensor:
        """Return random bytes."""
        count = -(-int(np.prod(shape)) // 8)
        words = torch.empty(count, dtype=torch.int64, device=self.device)
        words.random_(-(2**63), None, generator=self._generator)
        return words.view(torch.uint8)[: int(np.prod(shape))].view(shape)

    def _through_second(self, back: Tensor, weight: Tensor) -> Tensor:
        """Return derivatives by the inputs of the second convolution: kernels turned round."""
        kernels = weight[..., :_SECOND].view(-1, FILTERS, KERNEL, KERNEL, FILTERS)
        turned = kernels.flip(2, 3).permute(0, 4, 2, 3, 1).reshape(-1, FILTERS, _SECOND)
        edge = KERNEL - 1
        back = pad(back, (0, 0, edge, edge, edge, edge))
        return self.steps.convolve(back, turned, kernel=KERNEL, biased=False)  # type: ignore[no-any-return]


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
    table: Tensor,
    labels: Tensor,
    batches: Iterator[Batch],
    *,
    noise: float,
    rate: float,
    batch_size: int,
    generator: torch.Generator,
    watch: Callable[[int], None] = lambda step: None,
) -> None:
    """Train by DP-SGD with clipping norm 1, one step per batch."""
    for step, batch in enumerate(batches):
        for which, places, there in batch:
            sums = networks.pick(which).sum_clipped(table, places, labels[places], there)
            for weight, total in zip(networks.layers, sums, strict=True):
                drawn = torch.randn(total.shape, device=weight.device, generator=generator)
                # Zeros that fill up a layer get noise too: they are multiplied by zeros.
                networks.steps.move(
                    weight, which, total, drawn, noise=noise, rate=rate / batch_size
                )
        watch(step)


def check_kernels(table: Tensor, labels: Tensor) -> None:
    """Compare clipped sums of some images by the kernels with those by torch."""
    places = torch.arange(len(labels), device=table.device).view(2, -1)
    there = torch.ones(places.shape, device=table.device)
    found = []
    for compiled in (True, False):
        generator = torch.Generator(table.device).manual_seed(0)
        networks = Networks(2, device=table.device.type, generator=generator, compiled=compiled)
        found.append(networks.sum_clipped(table, places, labels[places], there))
    for one, other in zip(*found, strict=True):
        if not (one - other).norm() < 0.01 * other.norm():
            raise ArithmeticError("The kernels' sums differ from those of torch.")


def poisson_batches(
    records: Tensor,
    *,
    sampling_rate: float,
    steps: int,
    rng: np.random.Generator,
    groups: int = 1,
    pad_to: int = 8,
) -> Iterator[Batch]:
    """Draw batches by Poisson sampling, each model on its own.

    Args:
        records: Places of each model's records, ``(models, records)``: all have as many, where -1
            is nobody.
        sampling_rate: Chance of each record.
        steps: Number of batches.
        rng: Draws the sizes and, as a seed, who is drawn.
        groups: Number of groups: models whose batches are the smallest, the next, and so on.
        pad_to: Batches of a group are filled up to the largest, and to a multiple of this.
    """
    device = records.device
    generator = torch.Generator(device).manual_seed(int(rng.integers(2**63)))
    models, count = records.shape
    sizes = rng.binomial(count, sampling_rate, (steps, models))
    order = sizes.argsort(1, kind="stable")
    sizes = np.take_along_axis(sizes, order, 1)
    # Moved at once: a copy in each step would wait for the device.
    every_size, every_order = (torch.from_numpy(part).to(device) for part in (sizes, order))
    parts = np.array_split(np.arange(models), groups)
    for step in range(steps):
        batch: Batch = []
        for part in parts:
            first, last = int(part[0]), int(part[-1])
            wide = min(count, max(pad_to, -(-int(sizes[step, last]) // pad_to) * pad_to))
            which = every_order[step, first : last + 1]
            scores = torch.rand((len(part), count), device=device, generator=generator)
            chosen = scores.topk(wide, dim=1, sorted=True).indices
            places = records[which].gather(1, chosen)
            there = torch.arange(wide, device=device) < every_size[step, first : last + 1, None]
            there &= places >= 0
            batch.append((which, places.clamp_min(0), there.float()))
        yield batch


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
    here = taken[:, :, None, :, None] == bits[:, None, :, None]
    twice = (back * 2)[:, :, None, :, None]
    return torch.where(here, twice, 0).reshape(images, 2 * high, 2 * wide, channels)


def _convolve_and_pool(
    table: Tensor, places: Tensor, weight: Tensor, bits: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As of half_cuda.py."""
    models, outputs, width = weight.shape
    side = int(table.shape[1] ** 0.5)
    found = torch.bmm(table[places].view(models, -1, width), weight.transpose(1, 2))
    return _pool(found.view(len(places), side, side, outputs), bits)


def _differentiate_first(
    back: Tensor, taken: Tensor, table: Tensor, places: Tensor
) -> tuple[Tensor, Tensor]:
    """As of half_cuda.py."""
    found = torch.bmm(_unpool(back, taken).flatten(1, 2).transpose(1, 2), table[places])
    return found, _squares(found.flatten(1))


def _patches(x: Tensor, weight: Tensor, kernel: int) -> Tensor:
    """Return patches as inputs of a layer, ``(images, places, width)``."""
    seen = x.unfold(1, kernel, 1).unfold(2, kernel, 1).permute(0, 1, 2, 4, 5, 3)
    flat = seen.reshape(len(x), seen.shape[1] * seen.shape[2], -1)
    return _with_one(flat, weight.shape[2]) if flat.shape[2] < weight.shape[2] else flat


def _convolve(x: Tensor, weight: Tensor, *, kernel: int, biased: bool = True) -> Tensor:
    """As of half_cuda.py; whether there is a bias is seen from the weights here."""
    models, taken = len(weight), x.shape[1] - kernel + 1
    patches = _patches(x, weight, kernel).view(models, -1, weight.shape[2])
    return torch.bmm(patches, weight.transpose(1, 2)).view(len(x), taken, taken, -1)


def _square_gradients(back: Tensor, x: Tensor, weight: Tensor, *, kernel: int) -> Tensor:
    """As of half_cuda.py."""
    patches = _patches(x, weight, kernel)
    return _squares(torch.bmm(back.flatten(1, 2).transpose(1, 2), patches).flatten(1))


def _move(
    weight: Tensor, which: Tensor, total: Tensor, drawn: Tensor, *, noise: float, rate: float
) -> None:
    """As of half_cuda.py."""
    weight.index_add_(0, which, total.add_(drawn, alpha=noise), alpha=-rate)


def _sum_gradients(back: Tensor, x: Tensor, weight: Tensor, *, kernel: int) -> Tensor:
    """As of half_cuda.py."""
    patches = _patches(x, weight, kernel).view(len(weight), -1, weight.shape[2])
    back = back.reshape(len(weight), -1, weight.shape[1])
    return torch.bmm(back.transpose(1, 2), patches).float()


def _with_one(x: Tensor, wide: int) -> Tensor:
    """Return inputs with a 1 for the bias behind them, and zeros."""
    filled = pad(x, (0, wide - x.shape[-1]))
    filled[..., x.shape[-1]] = 1
    return filled


def _squares(x: Tensor) -> Tensor:
    """Return squared norms along the last axis, in single precision."""
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).square_()


_PLAIN_STEPS = SimpleNamespace(
    convolve=_convolve,
    convolve_and_pool=_convolve_and_pool,
    differentiate_first=_differentiate_first,
    move=_move,
    pool=_pool,
    square_gradients=_square_gradients,
    sum_gradients=_sum_gradients,
    unpool=_unpool,
)
