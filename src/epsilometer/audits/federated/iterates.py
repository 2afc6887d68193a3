"""What the iterates of a federated run show of its canaries, one vector of weights at a time."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray


class Directions(Protocol):
    """A family of canaries, as far as watching needs it."""

    @property
    def count(self) -> int:
        """How many."""
        ...

    @property
    def dimension(self) -> int:
        """Of the space they are in."""
        ...

    def cosines(self, vector: ArrayLike) -> FloatArray:
        """The cosine of every canary with ``vector``."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class IteratesSeen:
    """What a run has shown so far.

    Attributes:
        final: Cosine of every canary with θ_T − θ_0, the planted ones first, shape ``(2k,)``.
        largest: Largest cosine of every canary with θ_t − θ_{t−1} over all rounds, ``(2k,)``.
        took: How often each planted canary took part in a round that moved the weights, ``(k,)``.
        rounds: Rounds that moved the weights.
        still: Rounds with canaries that moved nothing: failed, or dropped.
        lost: Iterates that were not finite, seen as nothing.
    """

    final: FloatArray
    largest: FloatArray
    took: IntArray
    rounds: int
    still: int
    lost: int


class IterateWatch:
    """Watches θ_0, θ_1, …; keeps two of them and two numbers a canary, however long the run.

    Half of the canaries are planted (the first ``count // 2``), the others are never sent to
    anybody and show what a maximum over rounds looks like without having taken part.

    Guarantees: a vector that comes twice running is one iterate; memory does not grow with rounds.
    Assumes: a canary that took part did so in the round that ends with the next iterate.

    Example:
        >>> from epsilometer.audits.federated.sphere import SphereCanaries
        >>> canaries = SphereCanaries(count=4, dimension=1000, key=3)
        >>> watch = IterateWatch(canaries, np.zeros(1000))
        >>> watch.take_part([1])
        >>> watch.see(canaries.inject([1], norm=2.0))
        True
        >>> seen = watch.seen()
        >>> seen.took, seen.largest.round(0) + 0.0
        (array([0, 1]), array([0., 1., 0., 0.]))
    """

    def __init__(self, canaries: Directions, start: ArrayLike) -> None:
        _validate.whole(2, count=canaries.count)
        if canaries.count % 2:
            raise InvalidArgument(
                f"Expected as many planted canaries as others, got {canaries.count} in all."
            )
        self._canaries = canaries
        self._start = self._vector(start)
        self._last = self._start
        self._largest = np.full(canaries.count, -np.inf)
        self._took = np.zeros(canaries.count // 2, np.int64)
        self._pending: list[int] = []
        self._rounds = self._still = self._lost = 0

    def take_part(self, indices: ArrayLike) -> None:
        """Notes that these canaries answered in the round under way."""
        self._pending.extend(np.atleast_1d(np.asarray(indices, np.int64)).tolist())

    def see(self, weights: ArrayLike) -> bool:
        """Takes the next iterate; returns whether it differs from the one before."""
        now = self._vector(weights)
        if np.array_equal(now, self._last):
            return False
        if not np.isfinite(now).all():
            self._lost += 1
            self._pending.clear()
            return False
        self._largest = np.maximum(self._largest, self._canaries.cosines(now - self._last))
        np.add.at(self._took, np.asarray(self._pending, np.int64), 1)
        self._pending.clear()
        self._last = now
        self._rounds += 1
        return True

    def next_round(self) -> None:
        """Begins a round: canaries that answered in the one before, to no effect, are let go."""
        self._still += bool(self._pending)
        self._pending.clear()

    def seen(self) -> IteratesSeen:
        """What was seen so far; cosines are 0 where nothing moved."""
        moved = self._rounds > 0
        return IteratesSeen(
            final=self._canaries.cosines(self._last - self._start),
            largest=self._largest if moved else np.zeros(self._canaries.count),
            took=self._took.copy(),
            rounds=self._rounds,
            still=self._still + bool(self._pending),
            lost=self._lost,
        )

    def _vector(self, weights: ArrayLike) -> NDArray[np.float64]:
        known = np.asarray(weights, np.float64)
        if known.shape != (self._canaries.dimension,):
            raise InvalidArgument(
                f"Expected {self._canaries.dimension} weights, got shape {known.shape}. "
                "Did the model change its shape during training?"
            )
        return known
