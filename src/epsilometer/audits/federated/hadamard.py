r"""Canaries that are rows of a randomised Hadamard transform: as random directions, and fast.

All inner products with a vector cost one pass of O(d log d), however many canaries there are, and
so does the sum of any of them. With n the largest power of two that is not above d, a vector goes
through

1. random signs and an orthonormal Hadamard transform of its first n coordinates,
2. the same of its last n coordinates, which overlap the first; not needed where n = d;
3. a random permutation of all coordinates;
4. random signs and a transform of the first n, of which the first rows are the canaries.

Every step is orthogonal in d dimensions, so the canaries are orthonormal for every d: nothing is
padded, cut off or normalised. Steps 1 and 2 leave no coordinate with more than some √(log d / d)
of the vector, whatever it was. The permutation then hands a share n/d of it to step 4, and breaks
what two transforms in a row would undo: without it, canaries would agree in pairs on a vector of
two coordinates. Random signs of many small terms make a normal number, of variance 1/d.

Only the first K = 2^⌈log₂ k⌉ rows of step 4 are wanted. They depend on the last bits of a
coordinate alone: a sum over the others, and a transform of K numbers.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.federated.sphere import checked_indices, float32, length
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

if TYPE_CHECKING:
    import torch

# NumPy's arrays and torch's tensors go through the same lines below: both have what these need.
_Array: TypeAlias = Any
_To: TypeAlias = Callable[[NDArray[Any]], _Array]  # to the library and device of the vector
_CHUNK = 2**20  # numbers worked on at a time, so that what is temporary stays in cache
_KEPT = 2**28  # bytes of signs and places that are kept
_FACTOR = 6  # bits transformed by one matrix product
_ROUNDS = 4  # of the permutation's mixing
_EIGHT_SIGNS = 1 - 2 * ((np.arange(256)[:, None] >> np.arange(8)) & 1).astype(np.float32)


@dataclass(frozen=True, eq=False, kw_only=True)
class HadamardCanaries:
    """``count`` orthonormal directions in ``dimension`` dimensions, never written out.

    Takes the place of ``SphereCanaries``: the cosine of a canary with any vector that does not know
    ``key`` has the law of a random direction's, up to rounding and O(1/d).

    Guarantees: orthonormal to the rounding of float32; a canary is the same however many there are.
    Assumes: ``key`` is drawn at random where the directions must not be foreseen.

    Attributes:
        count: How many; at most the largest power of two that is not above ``dimension``.
        dimension: Of the space: the number of trainable parameters, say.
        key: From which all directions follow.
        memory: Bytes of signs and places that may be kept between calls.

    Example:
        >>> canaries = HadamardCanaries(count=3, dimension=1000, key=7)
        >>> planted = canaries.inject([0, 2], norm=5.0)
        >>> canaries.dots(planted).round(3) + 0.0
        array([5., 0., 5.])
    """

    count: int
    dimension: int
    key: int
    memory: int = _KEPT
    _kept: dict[tuple[str, str], _Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.whole(1, count=self.count, dimension=self.dimension)
        _validate.whole(0, key=self.key, memory=self.memory)
        if self.count > self._size:
            raise InvalidArgument(
                f"Expected at most {self._size} canaries of this kind in {self.dimension} "
                f"dimensions, got {self.count}. Plant fewer: many more than a tenth of the "
                "dimensions blur each other anyway."
            )

    def rows(self, indices: ArrayLike) -> NDArray[np.float32]:
        """Some of the directions, shape ``(len(indices), dimension)``; each costs a transform."""
        wanted = checked_indices(indices, self.count)
        found = np.empty((wanted.size, self.dimension), np.float32)
        for at, index in enumerate(wanted):
            found[at] = self.inject([index], 1.0)
        return found

    def inject(self, indices: ArrayLike, norm: float) -> NDArray[np.float32]:
        """The sum of some canaries, each of norm ``norm``; shape ``(dimension,)``."""
        total: NDArray[np.float32] = self._combined(indices, norm, _numpy)
        return total

    def inject_tensor(
        self, indices: ArrayLike, norm: float, *, device: Any = "cpu"
    ) -> "torch.Tensor":
        """``inject``, computed on ``device`` and left there."""
        total: torch.Tensor = self._combined(indices, norm, _tensors(device))
        return total

    def dots(self, vectors: ArrayLike) -> FloatArray:
        """The inner product of every canary with a vector, shape ``(count,)``.

        Several vectors, shape ``(k, dimension)``, give ``(k, count)``. Tensors are transformed on
        the device where they are.
        """
        known = float32(vectors)
        if known.ndim not in (1, 2) or known.shape[-1] != self.dimension:
            raise InvalidArgument(
                f"Expected vectors of {self.dimension} numbers, got shape {tuple(known.shape)}."
            )
        to = _home(known)
        if known.ndim == 1:
            return self._products(known, to)
        if not len(known):
            return np.zeros((0, self.count))
        return np.stack([self._products(vector, to) for vector in known])

    def cosines(self, vector: ArrayLike) -> FloatArray:
        """The cosine of every canary with ``vector``, shape ``(count,)``; 0 for a vector of 0."""
        known = float32(vector)
        if known.ndim != 1:
            raise InvalidArgument(f"Expected one vector, got shape {tuple(known.shape)}.")
        return self.dots(known) / (length(known) or 1.0)

    @property
    def _size(self) -> int:
        """n: the largest power of two that is not above ``dimension``."""
        return 1 << (int(self.dimension).bit_length() - 1)

    @property
    def _rows_made(self) -> int:
        """K: the rows of the last transform that are made, a power of two."""
        return 1 << (int(self.count) - 1).bit_length()

    @property
    def _offsets(self) -> tuple[int, ...]:
        """Where the first transforms begin."""
        return (0,) if self._size == self.dimension else (0, self.dimension - self._size)

    @property
    def _keeps(self) -> bool:
        return (
            6 * self._size <= self.memory
        )  # 4 bytes a place, and three times half a byte of signs

    def _products(self, vector: _Array, to: _To) -> FloatArray:
        mixed = vector + 0.0  # a copy: transforms work in place
        for number, offset in enumerate(self._offsets):
            part = mixed[offset : offset + self._size]
            self._flip(part, number, to)
            _transform(part, to)
        placed = mixed[: self._size] + 0.0
        for start, places in self._places(to):
            placed[start : start + len(places)] = mixed[places]
        self._flip(placed, 2, to)
        folded = placed.reshape(-1, self._rows_made)
        made = to(np.ones(len(folded), np.float32)) @ folded
        _transform(made, to)
        found = made[: self.count] * math.sqrt(self._rows_made / self._size)
        return np.asarray(found.tolist())

    def _combined(self, indices: ArrayLike, norm: float, to: _To) -> _Array:
        """The transpose of ``_products``: every step backwards."""
        _validate.number(norm=norm)
        wanted = checked_indices(indices, self.count)
        weights = np.bincount(wanted, minlength=self._rows_made).astype(np.float32)
        made = to(weights * np.float32(norm))
        _transform(made, to)
        placed = to(np.empty(self._size, np.float32))
        placed.reshape(-1, self._rows_made)[:] = made * math.sqrt(self._rows_made / self._size)
        self._flip(placed, 2, to)
        mixed = to(np.zeros(self.dimension, np.float32))
        for start, places in self._places(to):
            mixed[places] = placed[start : start + len(places)]
        for number, offset in reversed(list(enumerate(self._offsets))):
            part = mixed[offset : offset + self._size]
            _transform(part, to)
            self._flip(part, number, to)
        return mixed

    def _flip(self, part: _Array, number: int, to: _To) -> None:
        """Multiplies by random signs, in place."""
        signs = self._remembered(f"signs {number}", to, lambda: self._signs(number))
        table = to(_EIGHT_SIGNS)
        step = _CHUNK // 8
        for start in range(0, len(signs), step):
            chunk = table[signs[start : start + step]].reshape(-1)
            here = part[8 * start : 8 * (start + step)]
            here *= chunk[: len(here)]

    def _signs(self, number: int) -> NDArray[np.int32]:
        """Eight signs in each number."""
        drawn = self._stream(number).bytes(-(-self._size // 8))
        return np.frombuffer(drawn, np.uint8).astype(np.int32)

    def _places(self, to: _To) -> Iterator[tuple[int, _Array]]:
        """Where the permutation fetches its first n coordinates from, chunk by chunk."""
        if self._keeps:
            every = self._remembered(
                "places", to, lambda: np.concatenate(list(self._scattered()), dtype=np.int32)
            )
            yield 0, every
            return
        for number, places in enumerate(self._scattered()):
            yield number * _CHUNK, to(places)

    def _scattered(self) -> Iterator[NDArray[np.int64]]:
        """A permutation by arithmetic: mixes bits, and goes on mixing what is not below d.

        Multiplying by an odd number and adding shifted bits are one-to-one on numbers of so many
        bits; going on until the number is below d is one-to-one on those below.
        """
        bits = max(1, (int(self.dimension) - 1).bit_length())
        mask, shift = (1 << bits) - 1, max(1, bits // 2)
        stream = self._stream(3)
        factors = stream.integers(0, mask + 1, _ROUNDS) | 1
        terms = stream.integers(0, mask + 1, _ROUNDS)

        def mixed(x: NDArray[np.int64]) -> NDArray[np.int64]:
            for factor, term in zip(factors, terms, strict=True):
                x = (x * factor + term) & mask
                x ^= x >> shift
            return x

        for start in range(0, self._size, _CHUNK):
            x = mixed(np.arange(start, min(start + _CHUNK, self._size)))
            beyond = np.flatnonzero(x >= self.dimension)
            while beyond.size:
                again = mixed(x[beyond])
                x[beyond] = again
                beyond = beyond[again >= self.dimension]
            yield x

    def _remembered(self, what: str, to: _To, make: Callable[[], NDArray[Any]]) -> _Array:
        name = (what, repr(to))  # which names the device
        if name in self._kept:
            return self._kept[name]
        made = to(make())
        if self._keeps:
            self._kept[name] = made
        return made

    def _stream(self, number: int) -> np.random.Generator:
        sequence = np.random.SeedSequence(self.key, spawn_key=(number,))
        return np.random.Generator(np.random.Philox(sequence))


def _transform(x: _Array, to: _To) -> None:
    """The orthonormal Walsh–Hadamard transform of 2^m numbers, in place.

    Six bits at a time by a product with a matrix of 64 × 64: more additions than butterflies need,
    but one pass over memory instead of six, and done by BLAS.
    """
    inner = 1
    while inner < len(x):
        size = min(1 << _FACTOR, len(x) // inner)
        matrix = to(_hadamard(size))
        blocks = x.reshape(-1, size, inner)
        for part in _pieces(blocks):
            part[:] = (part[..., 0] @ matrix)[..., None] if inner == 1 else matrix @ part
        inner *= size


def _pieces(blocks: _Array) -> Iterator[_Array]:
    """Views of whole columns, of about ``_CHUNK`` numbers each."""
    outer, size, inner = blocks.shape
    if size * inner <= _CHUNK:
        step = _CHUNK // (size * inner)
        for start in range(0, outer, step):
            yield blocks[start : start + step]
        return
    step = _CHUNK // size
    for at in range(outer):
        for start in range(0, inner, step):
            yield blocks[at, :, start : start + step]


def _hadamard(size: int) -> NDArray[np.float32]:
    """The orthonormal, symmetric matrix of ``size`` = 2^m rows."""
    return (scipy.linalg.hadamard(size) / math.sqrt(size)).astype(np.float32)


def _numpy(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _tensors(device: Any) -> _To:
    """What brings arrays to a device."""
    with needs("torch", extra="torch"):
        import torch
    return partial(torch.as_tensor, device=device)


def _home(vector: _Array) -> _To:
    """What brings arrays to where the vector is."""
    return _numpy if isinstance(vector, np.ndarray) else _tensors(vector.device)
