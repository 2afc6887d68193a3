"""Random directions as canaries: drawn anew whenever they are needed, never all in memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_BLOCK = 2**22  # floats made at a time: 16 MiB
_KEPT = 2**28  # bytes of directions that are kept, since making them is slower than multiplying


class Directions(Protocol):
    """A family of canaries: whoever plants them needs no more, and one can take another's place.

    Must keep: unit norm; the cosine of each with a vector that does not know the family's key has
    the law of ``stats.sphere.cosine_cdf``.
    """

    @property
    def count(self) -> int:
        """How many."""
        ...

    @property
    def dimension(self) -> int:
        """Of the space."""
        ...

    def rows(self, indices: ArrayLike) -> NDArray[np.float32]:
        """Some of the directions, shape ``(len(indices), dimension)``."""
        ...

    def inject(self, indices: ArrayLike, norm: float) -> NDArray[np.float32]:
        """The sum of some canaries, each of norm ``norm``; shape ``(dimension,)``."""
        ...

    def dots(self, vectors: ArrayLike) -> FloatArray:
        """The inner products of all canaries with one vector or with several."""
        ...

    def cosines(self, vector: ArrayLike) -> FloatArray:
        """The cosine of every canary with ``vector``, shape ``(count,)``."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class SphereCanaries:
    """``count`` independent, uniformly random directions in ``dimension`` dimensions.

    Each canary has a counter-based stream of its own, so that it is the same whichever others are
    asked for, in whichever order.

    Guarantees: unit norm to the rounding of float32; uniform on the sphere.
    Assumes: ``key`` is drawn at random where the directions must not be foreseen.

    Attributes:
        count: How many.
        dimension: Of the space: the number of trainable parameters, say.
        key: From which all directions follow.
        memory: Bytes of directions that are kept instead of being drawn anew; beyond that, one
            block of 16 MiB is held at a time (or one direction, where that is more).

    Example:
        >>> canaries = SphereCanaries(count=3, dimension=1000, key=7)
        >>> planted = canaries.inject([0, 2], norm=5.0)
        >>> canaries.dots(planted).round(0) + 0.0
        array([5., 0., 5.])
    """

    count: int
    dimension: int
    key: int
    memory: int = _KEPT
    _kept: dict[int, NDArray[np.float32]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.whole(1, count=self.count, dimension=self.dimension)
        _validate.whole(0, key=self.key, memory=self.memory)

    def rows(self, indices: ArrayLike) -> NDArray[np.float32]:
        """Some of the directions, shape ``(len(indices), dimension)``."""
        wanted = checked_indices(indices, self.count)
        found = np.empty((wanted.size, self.dimension), np.float32)
        for at, index in enumerate(wanted):
            found[at] = self.block(index // self._per_block)[index % self._per_block]
        return found

    def inject(self, indices: ArrayLike, norm: float) -> NDArray[np.float32]:
        """The sum of some canaries, each of norm ``norm``; shape ``(dimension,)``."""
        _validate.number(norm=norm)
        wanted = checked_indices(indices, self.count)
        weights = np.bincount(wanted, minlength=self.count).astype(np.float32)
        total = np.zeros(self.dimension, np.float32)
        for number in np.unique(wanted // self._per_block):
            start = number * self._per_block
            total += weights[start : start + self._per_block] @ self.block(number)
        return total * np.float32(norm)

    def dots(self, vectors: ArrayLike) -> FloatArray:
        """The inner product of every canary with a vector, shape ``(count,)``.

        Several vectors, shape ``(k, dimension)``, give ``(k, count)`` and cost little more than
        one: making the directions, or fetching them from memory, is the work. Tensors are fetched
        from the device where they are.
        """
        known = np.asarray(_on_host(vectors), np.float32)
        if known.ndim not in (1, 2) or known.shape[-1] != self.dimension:
            raise InvalidArgument(
                f"Expected vectors of {self.dimension} numbers, got shape {known.shape}."
            )
        parts = [known @ block.T for block in self._blocks()]
        return np.concatenate(parts, axis=-1).astype(np.float64)

    def cosines(self, vector: ArrayLike) -> FloatArray:
        """The cosine of every canary with ``vector``, shape ``(count,)``; 0 for a vector of 0."""
        known = np.asarray(_on_host(vector), np.float64)
        if known.ndim != 1:
            raise InvalidArgument(f"Expected one vector, got shape {known.shape}.")
        return self.dots(known) / (float(np.linalg.norm(known)) or 1.0)

    def block(self, number: int) -> NDArray[np.float32]:
        """The directions that are made together: as many as make 16 MiB, at least one."""
        _validate.whole(0, number=number)
        start = int(number) * self._per_block
        if start >= self.count:
            raise InvalidArgument(
                f"Expected the number of a block below {-(-self.count // self._per_block)}, "
                f"got {number}."
            )
        if number in self._kept:
            return self._kept[number]
        made = np.stack(
            [self._draw(i) for i in range(start, min(start + self._per_block, self.count))]
        )
        made.flags.writeable = False
        if self.count * self.dimension * made.itemsize <= self.memory:
            self._kept[int(number)] = made
        return made

    @property
    def _per_block(self) -> int:
        return max(1, _BLOCK // self.dimension)

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        return map(self.block, range(-(-self.count // self._per_block)))

    def _draw(self, index: int) -> NDArray[np.float32]:
        sequence = np.random.SeedSequence(self.key, spawn_key=(index,))
        stream = np.random.Generator(np.random.Philox(sequence))
        drawn = stream.standard_normal(self.dimension, dtype=np.float32)
        return drawn / np.float32(np.linalg.norm(drawn.astype(np.float64)))


def checked_indices(indices: ArrayLike, count: int) -> IntArray:
    """Indices of canaries, each from 0 to ``count - 1``."""
    wanted = np.atleast_1d(np.asarray(indices))
    if wanted.size == 0:
        return np.zeros(0, np.int64)
    whole = wanted.ndim == 1 and wanted.dtype.kind in "iu"
    if not whole or wanted.min() < 0 or wanted.max() >= count:
        raise InvalidArgument(
            f"Expected indices of canaries from 0 to {count - 1}, got {indices!r}."
        )
    return wanted.astype(np.int64)


def _on_host(vectors: Any) -> Any:
    return vectors.detach().float().cpu() if hasattr(vectors, "detach") else vectors
