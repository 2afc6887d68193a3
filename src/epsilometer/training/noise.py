"""Noise of sums, round after round: independent, or correlated so that it cancels out later."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from epsilometer import _validate


class Stream(Protocol):
    """The noise of one training."""

    def next(self, scale: float) -> Tensor:
        """The noise of the next round, of shape ``(size,)``.

        Args:
            scale: What the noise multiplier times this round's clipping norm is.
        """
        ...


class Noise(Protocol):
    """A law of noise. Anything that has these three can take its place.

    Must keep: all randomness comes from ``generator``.
    """

    @property
    def steady(self) -> bool:
        """Whether the scale must be the same in all rounds."""
        ...

    def start(self, size: int, *, rounds: int, generator: torch.Generator) -> Stream:
        """The noise of one training of ``rounds`` rounds."""
        ...

    def sensitivity(self, participations: int, *, rounds: int) -> float:
        """How far a client of that many rounds can be from not taking part, at most.

        In clipping norms, in the space where the noise is white with the given scale: the ε of
        seeing everything is that of the Gaussian mechanism with noise multiplier / sensitivity.
        """
        ...


@dataclass(frozen=True)
class IndependentNoise:
    """N(0, scale²) in each coordinate, afresh in every round: DP-FedAvg."""

    @property
    def steady(self) -> bool:
        """Any scale at any time."""
        return False

    def start(self, size: int, *, rounds: int, generator: torch.Generator) -> Stream:
        """As of :class:`Noise`."""
        return _Independent(size, generator)

    def sensitivity(self, participations: int, *, rounds: int) -> float:
        """One clipping norm in each round of hers: √participations in all."""
        _validate.whole(1, participations=participations, rounds=rounds)
        return float(participations**0.5)


@dataclass(frozen=True)
class TreeNoise:
    """Noise of a binary tree: DP-FTRL (Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021).

    The sum of all updates so far, which is what the model is made of, has the noise of the tree's
    nodes that make up the rounds so far: one for each 1 among the binary digits of their number.

    Guarantees: the noise of the first t rounds adds up to a variance of popcount(t) · scale².
    """

    @property
    def steady(self) -> bool:
        """A node is noise of several rounds."""
        return True

    def start(self, size: int, *, rounds: int, generator: torch.Generator) -> Stream:
        """As of :class:`Noise`."""
        return _Tree(size, generator)

    def sensitivity(self, participations: int, *, rounds: int) -> float:
        """A round is in one node of every level, and all rounds of a client may share nodes."""
        _validate.whole(1, participations=participations, rounds=rounds)
        # At level l a node has 2^l rounds: no more of the client's are in it.
        worst = sum(
            participations * min(participations, 2**level) for level in range(rounds.bit_length())
        )
        return float(worst**0.5)


class _Independent:
    def __init__(self, size: int, generator: torch.Generator) -> None:
        self._size, self._generator = size, generator

    def next(self, scale: float) -> Tensor:
        return _normal(self._size, scale, self._generator)


class _Tree:
    """Nodes that the rounds so far are made of, by their level."""

    def __init__(self, size: int, generator: torch.Generator) -> None:
        self._size, self._generator = size, generator
        self._rounds = 0
        self._nodes: dict[int, Tensor] = {}

    def next(self, scale: float) -> Tensor:
        self._rounds += 1
        level = (self._rounds & -self._rounds).bit_length() - 1
        node = _normal(self._size, scale, self._generator)
        change = node.clone()
        for below in range(level):  # the new node takes the place of these
            change -= self._nodes.pop(below)
        self._nodes[level] = node
        return change


def _normal(size: int, scale: float, generator: torch.Generator) -> Tensor:
    drawn = torch.empty(size, device=generator.device)
    return drawn.normal_(0, scale, generator=generator)
