"""Watch canaries in the iterates of a federated run, one vector of weights at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.federated.directions import Directions
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
KEPT = 2**28  # bytes for vectors of rounds, where canaries take part in several


class Layout:
    """Where a canary's direction goes in a model of many arrays: the floating-point ones.

    Fixed by the first arrays that are seen, since averaging turns counters into floating-point
    numbers.

    Args:
        arrays: The model.
        without: Patterns of names that do not count, as ``"*running_var"``.

    Attributes:
        size: Numbers that count.
        names: Name and shape of every array that counts.

    Example:
        >>> model = {"weight": np.zeros((2, 2), np.float32), "batches": np.array(7)}
        >>> layout = Layout(model)
        >>> moved = layout.move(model, np.ones(4, np.float32))
        >>> layout.size, layout.flatten(moved), int(moved["batches"])
        (4, array([1., 1., 1., 1.]), 7)
    """

    def __init__(self, arrays: Arrays, *, without: Sequence[str] = ()) -> None:
        self._shapes = {
            name: value.shape
            for name, value in arrays.items()
            if value.dtype.kind == "f" and not any(fnmatchcase(name, odd) for odd in without)
        }
        self.names = tuple((name, *shape) for name, shape in self._shapes.items())
        self.size = sum(arrays[name].size for name in self._shapes)
        if self.size == 0:
            raise InvalidArgument(
                f"Expected floating-point arrays in the model, got {len(arrays)} arrays of other "
                "types, or left out: nothing that a canary could move."
            )

    def flatten(self, arrays: Arrays) -> NDArray[np.float64]:
        """Return what counts as one vector, shape ``(size,)``."""
        for name, shape in self._shapes.items():
            if name not in arrays or arrays[name].shape != shape:
                raise InvalidArgument(
                    f"Expected the arrays of the first round, {name!r} is gone or has another "
                    f"shape than {shape}."
                )
        return np.concatenate([arrays[name].ravel() for name in self._shapes], dtype=np.float64)

    def move(self, arrays: Arrays, direction: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return the arrays plus a direction, each of its own type; others are left as they are."""
        moved, start = dict(arrays), 0
        for name, shape in self._shapes.items():
            size = arrays[name].size
            step = direction[start : start + size].reshape(shape)
            moved[name] = (arrays[name] + step).astype(arrays[name].dtype)
            start += size
        return moved


@dataclass(frozen=True, eq=False, kw_only=True)
class IterateSummary:
    """What the iterates of a run have shown of its canaries.

    Attributes:
        final: Cosine of every canary with θ_T − θ_0, the planted ones first, shape ``(2k,)``.
        largest: Largest cosine of every canary with θ_t − θ_{t−1} over all rounds, ``(2k,)``.
        took: How often each planted canary took part in a round that moved the weights, ``(k,)``.
        rounds: Rounds that moved the weights.
        matched: Cosine of every planted canary with the sum of θ_t − θ_{t−1}, each of norm 1, over
            the rounds in which it took part, ``(k,)``; nan where it did not. None: not looked at.
        orthonormal: Whether the canaries are.
        still: Rounds with canaries that moved nothing: failed, or dropped.
        lost: Iterates that were not finite, and were skipped.
    """

    final: FloatArray
    largest: FloatArray
    took: IntArray
    rounds: int
    matched: FloatArray | None = None
    orthonormal: bool = False
    still: int = 0
    lost: int = 0


class MatchedFilter:
    """Add up what rounds released over the rounds of each canary; compare it with the canary.

    With unit vectors w of rounds and v = Σ w over those of a canary, its cosine with v is the sum
    of its cosines over |v|, and |v|² follows from inner products of rounds. Who took part in no
    round has a direction that does not depend on v: the law of its cosine is known exactly.

    Guarantee: rounds are added as long as their vectors fit into ``memory``; later, only the first
        round of canaries that have none yet. Both are chosen before a vector is seen.

    Args:
        count: How many canaries.
        memory: Bytes for vectors of rounds; 0 where each canary takes part once.

    Example:
        >>> matched = MatchedFilter(2, memory=1000)
        >>> matched.see(np.array([3.0, 0.0]), np.array([0.8, -0.6]), [0])
        >>> matched.see(np.array([0.0, 2.0]), np.array([0.6, 0.8]), [0, 1])
        >>> matched.summarise().round(2)  # 0.8 + 0.6, over √2
        array([0.99, 0.8 ])
    """

    def __init__(self, count: int, *, memory: int = 0) -> None:
        self._sums, self._squares = np.zeros(count), np.zeros(count)
        self._left = memory
        self._kept: list[tuple[NDArray[np.float32], IntArray]] = []

    def see(self, vector: NDArray[Any], cosines: FloatArray, members: ArrayLike) -> None:
        """Take what a round released, all cosines with it, and who took part."""
        who = np.unique(np.asarray(members, np.int64))
        norm = float(np.linalg.norm(vector))
        if not who.size or norm == 0:
            return
        unit = (vector / norm).astype(np.float32)
        if unit.nbytes > self._left:
            who = who[self._squares[who] == 0]
        else:
            for other, they in self._kept:
                self._squares[np.intersect1d(who, they)] += 2 * float(unit @ other)
            self._left -= unit.nbytes
            self._kept.append((unit, who))
        self._squares[who] += 1
        self._sums[who] += cosines[who]

    def summarise(self) -> FloatArray:
        """Return the cosine of each canary with the sum over its rounds; nan without any."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(self._sums / np.sqrt(self._squares), -1.0, 1.0)


class IterateWatch:
    """Watch θ_0, θ_1, …; keep two of them and some numbers per canary, however long the run.

    Half of the canaries are planted (the first ``count // 2``), the others are never sent to
    anybody and show what a maximum over rounds looks like without having taken part.

    Attributes:
        moved: Length of the last change of the weights.

    Guarantees: a vector that comes twice running is one iterate; memory grows with rounds up to
        ``memory`` alone.
    Assumes: a canary that took part did so in the round that ends with the next iterate.

    Example:
        >>> from epsilometer.audits.federated.directions import SphereCanaries
        >>> canaries = SphereCanaries(count=4, dimension=1000, key=3)
        >>> watch = IterateWatch(canaries, np.zeros(1000))
        >>> watch.take_part([1])
        >>> watch.see(canaries.inject([1], norm=2.0))
        True
        >>> summary = watch.summarise()
        >>> summary.took, summary.largest.round(0) + 0.0
        (array([0, 1]), array([0., 1., 0., 0.]))
    """

    def __init__(self, canaries: Directions, start: ArrayLike, *, memory: int = 0) -> None:
        """Begin with the first weights; ``memory`` is that of :class:`MatchedFilter`."""
        _validate.whole(2, count=canaries.count)
        if canaries.count % 2:
            raise InvalidArgument(
                f"Expected as many planted canaries as others, got {canaries.count} in all."
            )
        self._canaries = canaries
        self._start = self._last = self._check_vector(start)
        self._largest = np.full(canaries.count, -np.inf)
        self._took = np.zeros(canaries.count // 2, np.int64)
        self._matched = MatchedFilter(canaries.count // 2, memory=memory)
        self._pending: list[int] = []
        self._rounds = self._still = self._lost = 0
        self.moved = 0.0

    def take_part(self, indices: ArrayLike) -> None:
        """Note that these canaries answered in the round under way."""
        self._pending.extend(np.atleast_1d(np.asarray(indices, np.int64)).tolist())

    def see(self, weights: ArrayLike) -> bool:
        """Take the next iterate; return whether it differs from the one before."""
        now = self._check_vector(weights)
        if np.array_equal(now, self._last):
            return False
        if not np.isfinite(now).all():
            self._lost += 1
            self._pending.clear()
            return False
        step = now - self._last
        self.moved = float(np.linalg.norm(step))
        cosines = self._canaries.cosines(step)
        self._largest = np.maximum(self._largest, cosines)
        self._matched.see(step, cosines, self._pending)
        np.add.at(self._took, np.asarray(self._pending, np.int64), 1)
        self._pending.clear()
        self._last = now
        self._rounds += 1
        return True

    def next_round(self) -> None:
        """Begin a round: canaries that answered in the one before, to no effect, are let go."""
        self._still += bool(self._pending)
        self._pending.clear()

    def export(self) -> dict[str, NDArray[Any]]:
        """Return what must be kept to watch on in another process."""
        return {
            "start": self._start,
            "largest": self._largest,
            "took": self._took,
            "counts": np.array([self._rounds, self._still, self._lost]),
        }

    def restore(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what :meth:`export` returned, with the weights that were seen first since.

        Rounds between what was kept and those weights are lost: what canaries did in them only
        makes bounds smaller.
        """
        self._start = self._check_vector(kept["start"])
        for name in ("largest", "took"):
            if kept[name].shape != getattr(self, f"_{name}").shape:
                raise InvalidArgument(f"Expected {name} of these canaries, got those of others.")
        self._largest, self._took = kept["largest"].copy(), kept["took"].copy()
        self._rounds, self._still, self._lost = map(int, kept["counts"])

    def summarise(self) -> IterateSummary:
        """Return what was seen so far; cosines are 0 where nothing moved."""
        return IterateSummary(
            final=self._canaries.cosines(self._last - self._start),
            largest=self._largest if self._rounds else np.zeros(self._canaries.count),
            took=self._took.copy(),
            rounds=self._rounds,
            matched=self._matched.summarise(),
            orthonormal=self._canaries.orthonormal,
            still=self._still + bool(self._pending),
            lost=self._lost,
        )

    def _check_vector(self, weights: ArrayLike) -> NDArray[np.float64]:
        known = np.asarray(weights, np.float64)
        if known.shape != (self._canaries.dimension,):
            raise InvalidArgument(
                f"Expected {self._canaries.dimension} weights, got shape {known.shape}. "
                "Did the model change its shape during training?"
            )
        return known
