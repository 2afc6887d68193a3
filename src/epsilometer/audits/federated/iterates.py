"""Watch canaries in the iterates of a federated run, one vector of weights at a time."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.federated.directions import Directions
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
KEPT = 2**28  # bytes for vectors of rounds, if canaries take part in several
_SMALL = 256  # smaller arrays are weighted together: each alone gives too noisy a weight
_QUIET = 1e-3  # relative to the size of all numbers; smaller values may be rounding errors
_SAME = 1e-10  # relative; vectors that differ by less count as equal


class Layout:
    """Map a canary's direction to the floating-point arrays of a model.

    The first arrays fix the layout, since averaging turns counters into floating-point numbers.

    Args:
        arrays: The model.
        without: Patterns of names to exclude, such as ``"*running_var"``.

    Attributes:
        size: Numbers in all arrays that count.
        sizes: Numbers in each array that counts.
        names: Name and shape of each array that counts.

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
        self.sizes = tuple(int(arrays[name].size) for name in self._shapes)
        self.size = sum(self.sizes)
        ends = np.cumsum(self.sizes).tolist()
        self._places = {
            name: slice(end - size, end)
            for name, size, end in zip(self._shapes, self.sizes, ends, strict=True)
        }
        if self.size == 0:
            raise InvalidArgument(
                f"Expected floating-point arrays in the model, got {len(arrays)} arrays of other "
                "types, or left out: nothing that a canary could move."
            )

    def flatten(self, arrays: Arrays) -> NDArray[np.float64]:
        """Return the arrays that count as one vector, shape ``(size,)``."""
        for name, shape in self._shapes.items():
            if name not in arrays or arrays[name].shape != shape:
                raise InvalidArgument(
                    f"Expected the arrays of the first round, {name!r} is gone or has another "
                    f"shape than {shape}."
                )
        return np.concatenate([arrays[name].ravel() for name in self._shapes], dtype=np.float64)

    def move(self, arrays: Arrays, direction: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return the arrays plus a direction, each of its own type; others are left as they are."""
        return {name: self.move_one(name, value, direction) for name, value in arrays.items()}

    def move_one(
        self, name: str, value: NDArray[Any], direction: NDArray[np.float32]
    ) -> NDArray[Any]:
        """Return one array plus its part of a direction."""
        if name not in self._places:
            return value
        step = direction[self._places[name]].reshape(value.shape)
        return np.asarray((value + step).astype(value.dtype))


@dataclass(frozen=True, eq=False, kw_only=True)
class IterateSummary:
    """Hold what the iterates of a run revealed about its canaries.

    Attributes:
        final: Cosine of every canary with θ_T − θ_0, the planted ones first, shape ``(2k,)``.
        largest: Largest cosine of every canary with θ_t − θ_{t−1} over all rounds, ``(2k,)``.
        took: Number of rounds that moved the weights in which each planted canary took part,
            ``(k,)``.
        rounds: Rounds that moved the weights.
        matched: Cosine of every planted canary with the sum of θ_t − θ_{t−1}, each of norm 1, over
            the rounds in which it took part, ``(k,)``; nan if it did not. None: not computed.
        orthonormal: Whether the canaries are.
        informed: Whether known updates were removed from rounds.
        still: Rounds with canaries that moved nothing: failed, or dropped.
        lost: Iterates that were not finite, and were skipped.
    """

    final: FloatArray
    largest: FloatArray
    took: IntArray
    rounds: int
    matched: FloatArray | None = None
    orthonormal: bool = False
    informed: bool = False
    still: int = 0
    lost: int = 0

    def restrict(self, numbers: Sequence[int]) -> "IterateSummary":
        """Return the summary of some of the planted canaries: others could not take part."""
        own, planted = np.asarray(numbers, np.int64), self.took.size
        every = np.concatenate([own, np.arange(planted, self.final.size)])
        return dataclasses.replace(
            self,
            final=self.final[every],
            largest=self.largest[every],
            took=self.took[own],
            matched=None if self.matched is None else self.matched[own],
        )


class MatchedFilter:
    """Sum the releases of each canary's rounds, and compare the sum with the canary.

    With unit vectors w of rounds and v = Σ w over those of a canary, its cosine with v is the sum
    of its cosines over |v|, and |v|² follows from inner products of rounds. The direction of a
    canary that took no part does not depend on v: the distribution of its cosine is known exactly.

    Guarantee: rounds are added as long as their vectors fit into ``memory``; later, only the first
        round of canaries that have none yet. Neither choice depends on a vector. Rounds of the same
        canaries share one vector.

    Args:
        count: How many canaries.
        memory: Bytes for vectors of rounds; 0 if each canary takes part once.

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
        same = [other for other, they in self._kept if np.array_equal(who, they)]
        if unit.nbytes > self._left and not same:
            who = who[self._squares[who] == 0]
        else:
            for other, they in self._kept:
                self._squares[np.intersect1d(who, they)] += 2 * float(unit @ other)
            if same:
                same[0] += unit
            else:
                self._left -= unit.nbytes
                self._kept.append((unit, who))
        self._squares[who] += 1
        self._sums[who] += cosines[who]

    def summarise(self) -> FloatArray:
        """Return the cosine of each canary with the sum over its rounds; nan without any."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.clip(self._sums / np.sqrt(self._squares), -1.0, 1.0)

    def export(self) -> FloatArray:
        """Return the state to resume from in another process: sums, and squared lengths."""
        return np.stack([self._sums, self._squares])

    def restore(self, kept: FloatArray) -> None:
        """Resume from what :meth:`export` returned; from now on, only first rounds count."""
        self._sums, self._squares = kept.copy()
        self.forget()

    def forget(self) -> None:
        """Discard the vectors of rounds; from now on only first rounds of canaries count."""
        self._left, self._kept = 0, []


class Whitened(Protocol):
    """Define a filter for canaries in rounds of correlated noise, such as ``WhitenedFilter``."""

    full: bool

    def see(self, vector: NDArray[Any], cosines: FloatArray, members: ArrayLike) -> None:
        """Take what a round released, all cosines with it, and who took part."""

    def summarise(self) -> FloatArray:
        """Return the cosine of each canary with its matched filter."""


@dataclass
class CanaryCost:
    """Measure what canaries cost the model, over the rounds that have any.

    Attributes:
        most: Numbers of canaries and replies in the round with the largest share of canaries.
        effects: Length of the canaries' sum relative to a round's change of the weights.

    Example:
        >>> cost = CanaryCost()
        >>> cost.count(2, of=8)
        >>> cost.effects.append(0.25)
        >>> list(cost.describe())[0]
        'Canaries were at most 2 of the 8 replies of a round.'
    """

    most: tuple[int, int] = (0, 1)
    effects: list[float] = dataclasses.field(default_factory=list)

    def count(self, canaries: int, *, of: int) -> None:
        """Count the canaries among the replies of a round."""
        if canaries * self.most[1] > self.most[0] * of:
            self.most = canaries, of

    def describe(self) -> Iterator[str]:
        """Yield sentences for the report."""
        if self.most[0]:
            yield (
                f"Canaries were at most {self.most[0]:,} of the {self.most[1]:,} replies of a "
                "round."
            )
        if self.effects:
            yield (
                f"Canaries added {np.mean(self.effects):.0%} of the norm of a round's change of "
                "the weights, on average over rounds with canaries."
            )


class OtherUpdates:
    """Sum the updates of real clients in each way that a server may average them.

    Args:
        clip_norm: Norm to which the server clips, over all arrays together; None where that is
            unknown, or one norm per array.
        sizes: Numbers in each array, if every array has its own norm.

    Attributes:
        count: How many updates there were.

    Example:
        >>> others = OtherUpdates(clip_norm=1.0)
        >>> others.add(np.array([3.0, 4.0]), examples=10)
        >>> [total.round(1).tolist() for total in others.list_sums()]
        [[3.0, 4.0], [0.6, 0.8], [30.0, 40.0], [6.0, 8.0]]
    """

    def __init__(
        self, *, clip_norm: float | Sequence[float] | None = None, sizes: Sequence[int] = ()
    ) -> None:
        self._clip_norm, self._sizes, self.count = clip_norm, sizes, 0
        self._sums: list[FloatArray] = []

    def add(self, update: FloatArray, *, examples: float = 1.0) -> None:
        """Add an update; one that is not finite is skipped, as if it were unknown."""
        self.count += 1
        if not np.isfinite(update).all():
            return
        ways = [update] if self._clip_norm is None else [update, self._clip(update)]
        if not self._sums:
            self._sums = [np.zeros_like(update) for _ in range(2 * len(ways))]
        for place, way in enumerate(ways):
            self._sums[place] += way
            self._sums[place + len(ways)] += examples * way

    def list_sums(self) -> list[FloatArray]:
        """Return the sums; none if nothing was added."""
        return self._sums

    def _clip(self, update: FloatArray) -> FloatArray:
        if isinstance(self._clip_norm, Sequence):
            parts = np.split(update, np.cumsum(self._sizes)[:-1])
            pairs = zip(parts, self._clip_norm, strict=True)
            return np.concatenate([_clip_vector(part, norm) for part, norm in pairs])
        assert self._clip_norm is not None
        return _clip_vector(update, self._clip_norm)


def _clip_vector(vector: FloatArray, norm: float) -> FloatArray:
    return vector * min(1.0, norm / max(float(np.linalg.norm(vector)), np.finfo(float).tiny))


def remove_known(step: FloatArray, known: Sequence[FloatArray]) -> FloatArray:
    """Return a step minus its projection on its known parts.

    An adversary who knows the updates of all other clients can do this, whatever factors the server
    applied. The direction of a canary that took no part depends on neither, so the distribution of
    its cosine stays exact.

    Example:
        >>> remove_known(np.array([3.0, 4.0, 1.0]), [np.array([1.0, 0.0, 0.0])])
        array([0., 4., 1.])
    """
    lengths = [float(np.linalg.norm(vector)) for vector in known]
    basis = [vector / length for vector, length in zip(known, lengths, strict=True) if length]
    if not basis:
        return step
    products = np.array([[float(one @ other) for other in basis] for one in basis])
    along = np.array([float(vector @ step) for vector in basis])
    weights = np.linalg.lstsq(products, along, rcond=_SAME)[0]
    left = step.copy()
    for weight, vector in zip(weights, basis, strict=True):
        left -= weight * vector
    return left


def weigh_arrays(step: FloatArray, sizes: Sequence[int]) -> FloatArray:
    """Return a step, each array divided by the mean square of its own numbers.

    This is the matched filter for noise whose size differs between arrays. An array without noise
    then reveals canaries as if it were observed alone, without a selection to correct for. The
    result depends on the step alone, so the distribution for a canary that took no part stays
    exact.

    Args:
        step: All arrays as one vector.
        sizes: Numbers in each array; arrays of fewer than 256 are weighted with the next.

    Example:
        >>> loud, quiet = 10 * np.ones(300), np.ones(300)
        >>> weigh_arrays(np.concatenate([loud, quiet]), [300, 300])[[0, -1]]
        array([0.1, 1. ])
    """
    left, start, end = step.copy(), 0, 0
    floor = _QUIET**2 * float(np.mean(np.square(step)))
    for place, size in enumerate(sizes):
        end += size
        rest = step.size - end
        if place < len(sizes) - 1 and (end - start < _SMALL or rest < _SMALL):
            continue
        square = float(np.mean(np.square(step[start:end])))
        if square > 0:
            left[start:end] /= max(square, floor)
        start = end
    return left


class CosineWatch:
    """Watch θ_0, θ_1, …, storing two iterates and some numbers per canary, however long the run.

    Half of the canaries are planted (the first ``count // 2``), the others are never sent to
    anyone and show what a maximum over rounds looks like without having taken part.

    Attributes:
        moved: Length of the last change of the weights.
        share: The canaries' share of that change, as a ratio of lengths, if it was requested.

    Guarantees: a vector repeated in a row is one iterate; memory grows with rounds only up
        to ``memory``; whatever is known of a round, the distribution for canaries that took no part
        in it is exact.
    Assumes: a canary that took part did so in the round that ends with the next iterate.

    Example:
        >>> from epsilometer.audits.federated.directions import SphereCanaries
        >>> canaries = SphereCanaries(count=4, dimension=1000, key=3)
        >>> watch = CosineWatch(canaries, np.zeros(1000))
        >>> watch.take_part([1])
        >>> watch.see(canaries.inject([1], norm=2.0))
        True
        >>> summary = watch.summarise()
        >>> summary.took, summary.largest.round(0) + 0.0
        (array([0, 1]), array([0., 1., 0., 0.]))
    """

    def __init__(
        self,
        canaries: Directions,
        start: ArrayLike,
        *,
        sizes: Sequence[int] | None = None,
        memory: int = 0,
        whitened: Whitened | None = None,
    ) -> None:
        """Begin with the first weights.

        Args:
            canaries: All of them.
            start: The weights before training.
            sizes: Numbers in each array of the model, for :func:`weigh_arrays`; one by default.
            memory: That of :class:`MatchedFilter`.
            whitened: Filter to use instead, if noise is declared to be correlated, as long as its
                rounds fit.
        """
        _validate.whole(2, count=canaries.count)
        if canaries.count % 2:
            raise InvalidArgument(
                f"Expected as many planted canaries as others, got {canaries.count} in all."
            )
        self._canaries = canaries
        self._sizes = [canaries.dimension] if sizes is None else list(sizes)
        if sum(self._sizes) != canaries.dimension:
            raise InvalidArgument(
                f"Expected sizes that add up to {canaries.dimension}, got {sum(self._sizes)}."
            )
        self._start = self._last = self._check_vector(start)
        self._largest = np.full(canaries.count, -np.inf)
        self._took = np.zeros(canaries.count // 2, np.int64)
        self._matched = MatchedFilter(canaries.count // 2, memory=memory)
        self._whitened = whitened
        self._pending: list[int] = []
        self._rounds = self._informed = self._still = self._lost = 0
        self.moved = self.share = 0.0

    def take_part(self, indices: ArrayLike) -> None:
        """Record that these canaries answered in the current round."""
        self._pending.extend(np.atleast_1d(np.asarray(indices, np.int64)).tolist())

    def see(
        self,
        weights: ArrayLike,
        *,
        known: Sequence[FloatArray] = (),
        measured: Sequence[int] = (),
    ) -> bool:
        """Take the next iterate; return whether it differs from the one before.

        Args:
            weights: The iterate.
            measured: Canaries whose share of the change is measured, at extra cost.
            known: Known contributions of the other clients, up to a factor each, such as the mean
                of their updates. They are removed before canaries are searched for.
        """
        now = self._check_vector(weights)
        if np.array_equal(now, self._last):
            return False
        if not np.isfinite(now).all():
            self._lost += 1
            self._whitened = None  # which needs all rounds
            self._pending.clear()
            return False
        step: FloatArray = now - self._last
        self.moved = float(np.linalg.norm(step))
        if measured:  # minus what random directions have of any vector
            own = self._canaries.cosines(step)[list(measured)]
            chance = len(measured) / self._canaries.dimension
            self.share = float(np.sqrt(max(0.0, float(np.sum(own**2)) - chance) / (1 - chance)))
        step = remove_known(step, known)
        if self._whitened is not None:  # of arrays as they are: weights differ between rounds
            self._whitened.see(step, self._canaries.cosines(step), self._pending)
            self._whitened = None if self._whitened.full else self._whitened
        step = weigh_arrays(step, self._sizes)
        cosines = self._canaries.cosines(step)
        self._largest = np.maximum(self._largest, cosines)
        self._matched.see(step, cosines, self._pending)
        self._informed += bool(known)
        np.add.at(self._took, np.asarray(self._pending, np.int64), 1)
        self._pending.clear()
        self._last = now
        self._rounds += 1
        return True

    def next_round(self) -> None:
        """Begin a round, and discard canaries whose last answers had no effect."""
        self._still += bool(self._pending)
        self._pending.clear()

    def export(self) -> dict[str, NDArray[Any]]:
        """Return the state to resume from in another process."""
        return {
            "start": self._start,
            "largest": self._largest,
            "took": self._took,
            "matched": self._matched.export(),
            "counts": np.array([self._rounds, self._informed, self._still, self._lost]),
        }

    def restore(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what :meth:`export` returned, with the first weights seen since then.

        Rounds between the exported state and those weights are lost, which only makes bounds
        smaller.
        """
        self._start = self._check_vector(kept["start"])
        for name in ("largest", "took"):
            if kept[name].shape != getattr(self, f"_{name}").shape:
                raise InvalidArgument(f"Expected {name} of these canaries, got those of others.")
        self._largest, self._took = kept["largest"].copy(), kept["took"].copy()
        self._rounds, self._informed, self._still, self._lost = map(int, kept["counts"])
        self._matched.restore(kept["matched"])
        self._whitened = None

    def forget_rounds(self) -> None:
        """Discard vectors of rounds, if the adversary may not know who took part in which."""
        self._matched.forget()
        self._whitened = None

    def summarise(self) -> IterateSummary:
        """Return the summary so far; cosines are 0 if nothing moved."""
        change = weigh_arrays(self._last - self._start, self._sizes)
        return IterateSummary(  # after one round, the last weights reveal that round
            final=self._largest if self._rounds == 1 else self._canaries.cosines(change),
            largest=self._largest if self._rounds else np.zeros(self._canaries.count),
            took=self._took.copy(),
            rounds=self._rounds,
            matched=(self._whitened or self._matched).summarise(),
            orthonormal=self._canaries.orthonormal,
            informed=self._informed > 0,
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
