"""Many small networks at once, each on records of its own: one hidden layer of tanh, plain SGD.

A network is told by whose records it has, by a seed of its first weights and its order, and by the
record it lacks. Twins share everything but that record: the step that has it is taken without it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from epsilometer.types import BoolArray, FloatArray, IntArray

HIDDEN = 64
_ON_CARD = 2400  # networks at a time
_ON_CPU = 8  # what a core's cache holds of them


@dataclass(frozen=True, kw_only=True)
class Training:
    """How networks are trained; batches are the script's, the paper gives none."""

    epochs: int
    batch: int
    rate: float = 0.01
    device: str = "cpu"


@dataclass(frozen=True, eq=False, kw_only=True)
class Nets:
    """Which networks: an entry each.

    Attributes:
        members: Row of ``member`` that says whose records it has.
        seeds: Of first weights and order.
        left_out: The record it lacks; −1 for none.
    """

    members: IntArray
    seeds: IntArray
    left_out: IntArray

    def __len__(self) -> int:
        return self.members.size

    def part(self, places: slice) -> "Nets":
        """Some of them."""
        return Nets(
            members=self.members[places],
            seeds=self.seeds[places],
            left_out=self.left_out[places],
        )


def answers(
    how: Training,
    nets: Nets,
    x: FloatArray,
    y: IntArray,
    member: BoolArray,
    *,
    classes: int,
    asked: IntArray | None,
) -> FloatArray:
    """ln p of every network.

    Args:
        how: How they are trained.
        nets: Which.
        x: Features of all candidates, ``(n, features)``.
        y: Their classes.
        member: Who is in which training set, ``(sets, n)``, as many in each.
        classes: How many.
        asked: Records that all are asked about, or None for the one that each lacks.

    Returns:
        Shape ``(networks, records asked, classes)``.
    """
    features = torch.from_numpy(x.astype(np.float32)).to(how.device)
    labels = torch.from_numpy(y).to(how.device)
    at_once = _ON_CPU if how.device == "cpu" else _ON_CARD
    found = []
    for start in range(0, len(nets), at_once):
        part = nets.part(slice(start, start + at_once))
        train = trained_one_by_one if how.device == "cpu" else trained
        weights = train(how, part, features, labels, member, classes=classes)
        queries = part.left_out[:, None] if asked is None else np.tile(asked, (len(part), 1))
        found.append(log_proba(weights, features, queries))
    return np.concatenate(found)


def trained(
    how: Training, nets: Nets, x: Tensor, y: Tensor, member: BoolArray, *, classes: int
) -> list[Tensor]:
    """Weights and biases of both layers, each ``(networks, …)``."""
    seeds, which = np.unique(nets.seeds, return_inverse=True)
    first, second, top, bias = weights = _first_weights(seeds, which, x, classes)
    onehot = torch.eye(classes, device=x.device)
    lacking = torch.from_numpy(nets.left_out).to(x.device)[:, None]
    owner = nets.members[np.unique(nets.seeds, return_index=True)[1]]
    place = torch.from_numpy(which).to(x.device)
    with torch.no_grad():
        for order in _epochs(how.epochs, seeds, member[owner]):
            everybody = torch.from_numpy(order).to(x.device)
            for start in range(0, everybody.shape[1], how.batch):
                rows = everybody[:, start : start + how.batch][place]
                keep = rows != lacking
                share = keep / keep.sum(1, keepdim=True).clamp(min=1)
                seen = x[rows]
                hidden = torch.baddbmm(second, seen, first).tanh_()
                back = torch.softmax(torch.baddbmm(bias, hidden, top), 2)
                back.sub_(onehot[y[rows]]).mul_(share[..., None])
                below = torch.bmm(back, top.transpose(1, 2)).mul_(1 - hidden * hidden)
                top.baddbmm_(hidden.transpose(1, 2), back, alpha=-how.rate)
                bias.sub_(back.sum(1, keepdim=True), alpha=how.rate)
                first.baddbmm_(seen.transpose(1, 2), below, alpha=-how.rate)
                second.sub_(below.sum(1, keepdim=True), alpha=how.rate)
    return weights


def trained_one_by_one(
    how: Training, nets: Nets, x: Tensor, y: Tensor, member: BoolArray, *, classes: int
) -> list[Tensor]:
    """What ``trained`` gives, by a loop that skips features that are 0."""
    from compiled import descend, sparse  # numba, which a card does without

    seeds, which = np.unique(nets.seeds, return_inverse=True)
    weights = [part.numpy() for part in _first_weights(seeds, which, x, classes)]
    features, labels = sparse(x.numpy()), y.numpy()
    for net in range(len(nets)):
        first, second, top, bias = (part[net] for part in weights)
        for order in _epochs(how.epochs, nets.seeds[[net]], member[nets.members[[net]]]):
            descend(
                order[0],
                how.batch,
                nets.left_out[net],
                *features,
                labels,
                first,
                second[0],
                top,
                bias[0],
                how.rate,
            )
    return [torch.from_numpy(part) for part in weights]


def log_proba(weights: list[Tensor], x: Tensor, queries: IntArray) -> FloatArray:
    """ln p at each network's queries ``(networks, q)``, in single precision."""
    first, second, top, bias = weights
    with torch.no_grad():
        seen = x[torch.from_numpy(queries).to(x.device)]
        hidden = torch.baddbmm(second, seen, first).tanh_()
        out = torch.log_softmax(torch.baddbmm(bias, hidden, top), 2)
    return np.asarray(out.cpu().numpy())


def _first_weights(seeds: IntArray, which: IntArray, x: Tensor, classes: int) -> list[Tensor]:
    """As ``nn.Linear`` draws them: uniform within 1/√inputs."""
    shapes = [(x.shape[1], HIDDEN), (1, HIDDEN), (HIDDEN, classes), (1, classes)]
    inputs = [x.shape[1], x.shape[1], HIDDEN, HIDDEN]
    drawn: list[list[FloatArray]] = [[] for _ in shapes]
    for seed in seeds:
        rng = np.random.default_rng([1, int(seed)])
        for into, shape, count in zip(drawn, shapes, inputs, strict=True):
            into.append(rng.uniform(-1, 1, shape).astype(np.float32) / np.sqrt(count))
    return [
        torch.from_numpy(np.stack(each).astype(np.float32)).to(x.device)[which] for each in drawn
    ]


def _epochs(epochs: int, seeds: IntArray, member: BoolArray) -> Iterator[IntArray]:
    """For each epoch, the members of every seed's set in an order of its own, ``(seeds, n)``."""
    streams = [np.random.default_rng([2, int(seed)]) for seed in seeds]
    rows = [np.flatnonzero(each) for each in member]
    for _ in range(epochs):
        yield np.stack([rng.permutation(row) for rng, row in zip(streams, rows, strict=True)])
