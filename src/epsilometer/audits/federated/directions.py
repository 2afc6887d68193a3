r"""Make canary directions: unit vectors that clients send, and that an audit searches for.

Two families implement :class:`Directions`. ``SphereCanaries`` draws every direction independently;
``HadamardCanaries`` uses rows of a randomised transform, which is fast.

**Sphere.** A direction is normal numbers, divided by their norm. They are those of
``sampling.stream``, which any device draws from a counter: block i of the stream is canary i, and a
run makes four of its coordinates. Thirty-two runs are written side by side, so that CPU and GPU
write rows: of every 128 coordinates the first 32 are the first normals of 32 runs, and so on.

**Hadamard.** All inner products with a vector cost one pass of O(d log d), however many canaries
there are, and so does the sum of any of them. With n the largest power of two that is not above d,
a vector goes through

1. random signs and an orthonormal Hadamard transform of its first n coordinates,
2. the same of its last n coordinates, which overlap the first; not needed where n = d;
3. a random permutation of all coordinates;
4. random signs and a transform of the first n, of which the first rows are the canaries.

Every step is orthogonal in d dimensions, so the canaries are orthonormal for every d: nothing is
padded, cut off or normalised. Steps 1 and 2 leave no coordinate with more than about √(log d / d)
of the vector, whatever it was. The permutation then hands a share n/d of it to step 4, and breaks
what two transforms in a row would undo: without it, canaries would agree in pairs on a vector of
two coordinates. Random signs of many small terms make a normal number, of variance 1/d.

Only the first K = 2^⌈log₂ k⌉ rows of step 4 are wanted. They depend on the last bits of a
coordinate alone: a sum over the others, and a transform of K numbers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer._extras import has, needs
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.stream import Arrays, four_normals
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    import torch

Family: TypeAlias = Literal["hadamard", "sphere"]
# NumPy arrays and torch tensors share the code below: both have the operations it needs.
_Array: TypeAlias = Any
_To: TypeAlias = Callable[[NDArray[Any]], _Array]  # to the library and device of the vector
_CACHED = 2**28  # bytes that are kept, since making them is slower than multiplying
_BLOCK = 2**22  # floats made at a time: 16 MiB
_SIDE, _TOGETHER = 32, 128  # runs side by side, and the coordinates that they make
_GROUPS = 2**9  # of 128 coordinates, drawn at a time without numba: stays in cache
_CHUNK = 2**20  # numbers worked on at a time, so that what is temporary stays in cache
_FACTOR = 6  # bits transformed by one matrix product
_ROUNDS = 4  # of the permutation's mixing
_EIGHT_SIGNS = 1 - 2 * ((np.arange(256)[:, None] >> np.arange(8)) & 1).astype(np.float32)


@dataclass(frozen=True, eq=False, kw_only=True)
class Directions(ABC):
    """Define a family of canaries; families are interchangeable.

    Must keep: unit norm; the cosine of each with a vector that does not depend on the family's key
    is distributed as ``stats.sphere.cosine_cdf``.

    Attributes:
        orthonormal: Whether the directions of this family are orthonormal.
        count: How many.
        dimension: Dimension of the space: the number of trainable parameters, say.
        key: Key from which all directions follow.
        memory: Bytes that may be kept between calls.
    """

    orthonormal: ClassVar[bool] = False
    count: int
    dimension: int
    key: int
    memory: int = _CACHED
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.whole(1, count=self.count, dimension=self.dimension)
        _validate.whole(0, key=self.key, memory=self.memory)

    def rows(self, indices: ArrayLike) -> NDArray[np.float32]:
        """Return some of the directions, shape ``(len(indices), dimension)``."""
        wanted = self._check_indices(indices)
        rows = np.empty((wanted.size, self.dimension), np.float32)
        for place, index in enumerate(wanted):
            rows[place] = self._row(index)
        return rows

    @abstractmethod
    def inject(self, indices: ArrayLike, norm: float) -> NDArray[np.float32]:
        """Return the sum of some canaries, each of norm ``norm``; shape ``(dimension,)``."""

    @abstractmethod
    def inject_tensor(
        self, indices: ArrayLike, norm: float, *, device: Any = "cpu"
    ) -> "torch.Tensor":
        """Return the sum of some canaries, computed on ``device`` and left there."""

    def dots(self, vectors: ArrayLike) -> FloatArray:
        """Return the inner product of every canary with a vector, shape ``(count,)``.

        Several vectors, shape ``(k, dimension)``, give ``(k, count)``. Tensors stay on their
        device.
        """
        known = _to_float32(vectors)
        if known.ndim not in (1, 2) or known.shape[-1] != self.dimension:
            raise InvalidArgument(
                f"Expected vectors of {self.dimension} numbers, got shape {tuple(known.shape)}."
            )
        return self._multiply(known)

    def cosines(self, vector: ArrayLike) -> FloatArray:
        """Return the cosine of every canary with ``vector``, ``(count,)``; 0 for a vector of 0."""
        known = _to_float32(vector)
        if known.ndim != 1:
            raise InvalidArgument(f"Expected one vector, got shape {tuple(known.shape)}.")
        return self.dots(known) / (_compute_norm(known) or 1.0)

    @abstractmethod
    def _row(self, index: int) -> NDArray[np.float32]:
        """Return one direction."""

    @abstractmethod
    def _multiply(self, vectors: _Array) -> FloatArray:
        """Return the inner products with one vector or several, whose shape was checked."""

    def _check_indices(self, indices: ArrayLike) -> IntArray:
        """Return indices of canaries as an array, each from 0 to ``count - 1``."""
        wanted = np.atleast_1d(np.asarray(indices))
        if wanted.size == 0:
            return np.zeros(0, np.int64)
        whole = wanted.ndim == 1 and wanted.dtype.kind in "iu"
        if not whole or wanted.min() < 0 or wanted.max() >= self.count:
            raise InvalidArgument(
                f"Expected indices of canaries from 0 to {self.count - 1}, got {indices!r}."
            )
        return wanted.astype(np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class SphereCanaries(Directions):
    """Draw ``count`` independent, uniformly random directions in ``dimension`` dimensions.

    Up to rounding, a canary does not depend on which others are requested, on their order, or on
    the device. On a CPU the extra ``numba`` draws them several times faster; on a CUDA device
    Triton kernels do.

    Guarantees: unit norm to the rounding of float32; uniform on the sphere.
    Assumes: ``key`` is drawn at random if the directions must be unpredictable.

    Attributes:
        count: How many.
        dimension: Dimension of the space: the number of trainable parameters, say.
        key: Key from which all directions follow.
        memory: Bytes of directions that are cached. Without a cache, one block of 16 MiB (or one
            direction, if larger) is held at a time. On a CUDA device only norms are cached.

    Example:
        >>> canaries = SphereCanaries(count=3, dimension=1000, key=7)
        >>> planted = canaries.inject([0, 2], norm=5.0)
        >>> canaries.dots(planted).round(0) + 0.0
        array([5., 0., 5.])
    """

    def inject(self, indices: ArrayLike, norm: float) -> NDArray[np.float32]:
        """Return the sum of some canaries, each of norm ``norm``; shape ``(dimension,)``."""
        _validate.number(norm=norm)
        wanted = self._check_indices(indices)
        weights = np.bincount(wanted, minlength=self.count).astype(np.float32)
        total = np.zeros(self.dimension, np.float32)
        for number in np.unique(wanted // self._per_block):
            start = number * self._per_block
            total += weights[start : start + self._per_block] @ self.block(number)
        return total * np.float32(norm)

    def inject_tensor(
        self, indices: ArrayLike, norm: float, *, device: Any = "cpu"
    ) -> "torch.Tensor":
        """Return the sum of some canaries, computed on ``device`` and left there."""
        with needs("torch", extra="torch"):
            import torch
        if not _can_draw_on(torch.device(device)):
            return torch.from_numpy(self.inject(indices, norm)).to(device)
        from epsilometer.audits.federated import _sphere_cuda

        _validate.number(norm=norm)
        wanted, times = np.unique(self._check_indices(indices), return_counts=True)
        if str(device) not in self._cache:
            nothing = torch.zeros(self.dimension, device=device)
            self._cache[str(device)] = _sphere_cuda.dots(self._stream_key, self.count, nothing)[1]
        here = torch.as_tensor(wanted, device=device)
        # Kernels sum normals before they are normed: the norm is divided out of the weights.
        weights = norm * torch.as_tensor(times, device=device) / self._cache[str(device)][here]
        total: torch.Tensor = _sphere_cuda.weighted_sum(
            self._stream_key, here, weights, self.dimension
        )
        return total

    def block(self, number: int) -> NDArray[np.float32]:
        """Return the directions that are made together: as many as make 16 MiB, at least one."""
        _validate.whole(0, number=number)
        start = int(number) * self._per_block
        if start >= self.count:
            raise InvalidArgument(
                f"Expected the number of a block below {-(-self.count // self._per_block)}, "
                f"got {number}."
            )
        if number in self._cache:
            known: NDArray[np.float32] = self._cache[number]
            return known
        stop = min(start + self._per_block, self.count)
        made = np.stack([self._draw(index) for index in range(start, stop)])
        made.flags.writeable = False
        if self.count * self.dimension * made.itemsize <= self.memory:
            self._cache[int(number)] = made
        return made

    def _row(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.block(index // self._per_block)[index % self._per_block]
        return row

    def _multiply(self, vectors: _Array) -> FloatArray:
        """Multiply block by block: several vectors cost little more than one on a CPU."""
        if not isinstance(vectors, np.ndarray):
            if _can_draw_on(vectors.device):
                return self._multiply_there(vectors)
            vectors = vectors.cpu().numpy()
        blocks = map(self.block, range(-(-self.count // self._per_block)))
        parts = [vectors @ block.T for block in blocks]
        return np.concatenate(parts, axis=-1).astype(np.float64)

    def _multiply_there(self, vectors: _Array) -> FloatArray:
        """Multiply on the device where the vectors are."""
        from epsilometer.audits.federated import _sphere_cuda

        products = np.empty((vectors[..., 0].numel(), self.count))
        for row, vector in zip(products, vectors.reshape(-1, self.dimension), strict=True):
            dots, norms = _sphere_cuda.dots(self._stream_key, self.count, vector)
            row[:] = (dots / norms).cpu().numpy()
        return products.reshape(*vectors.shape[:-1], self.count)

    @property
    def _per_block(self) -> int:
        return max(1, _BLOCK // self.dimension)

    def _draw(self, index: int) -> NDArray[np.float32]:
        drawn = np.empty(self.dimension, np.float32)
        if has("numba"):
            from epsilometer.sampling import _normals_cpu

            _normals_cpu.fill_block(np.uint64(self._stream_key), np.uint64(index), drawn)
        else:
            step = _GROUPS * _TOGETHER
            for start in range(0, self.dimension, step):
                part = drawn[start : start + step]
                part[:] = self._draw_normals(index, start // _TOGETHER)[: part.size]
        # Normal coordinates have a direction that is uniform on the sphere.
        return drawn / np.float32(_compute_norm(drawn))

    def _draw_normals(self, index: int, group: int) -> FloatArray:
        """Return ``_GROUPS`` times 128 coordinates, not normed, as the stream defines them."""
        runs = range(group * _SIDE, (group + _GROUPS) * _SIDE)
        four = four_normals(
            Arrays(np), self._stream_key, world=0, runs=runs, blocks=range(index, index + 1)
        )
        return np.stack(four).reshape(4, _GROUPS, _SIDE).swapaxes(0, 1).ravel()

    @property
    def _stream_key(self) -> int:
        return int(np.random.SeedSequence(self.key).generate_state(1, np.uint64)[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class HadamardCanaries(Directions):
    """Make ``count`` orthonormal directions in ``dimension`` dimensions, never stored explicitly.

    They can replace ``SphereCanaries``: the cosine of a canary with any vector that does not depend
    on ``key`` is distributed as that of a random direction, up to rounding and O(1/d).

    Guarantees: orthonormal to the rounding of float32; a canary does not depend on ``count``.
    Assumes: ``key`` is drawn at random if the directions must be unpredictable.

    Attributes:
        count: How many; at most the largest power of two that is not above ``dimension``.
        dimension: Dimension of the space: the number of trainable parameters, say.
        key: Key from which all directions follow.
        memory: Bytes of signs and permuted indices that may be kept between calls.

    Example:
        >>> canaries = HadamardCanaries(count=3, dimension=1000, key=7)
        >>> planted = canaries.inject([0, 2], norm=5.0)
        >>> canaries.dots(planted).round(3) + 0.0
        array([5., 0., 5.])
    """

    orthonormal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count > self._size:
            raise InvalidArgument(
                f"Expected at most {self._size} canaries of this kind in {self.dimension} "
                f"dimensions, got {self.count}. Plant fewer: many more than a tenth of the "
                "dimensions blur each other anyway."
            )

    def inject(self, indices: ArrayLike, norm: float) -> NDArray[np.float32]:
        """Return the sum of some canaries, each of norm ``norm``; shape ``(dimension,)``."""
        total: NDArray[np.float32] = self._combine(indices, norm, _numpy)
        return total

    def inject_tensor(
        self, indices: ArrayLike, norm: float, *, device: Any = "cpu"
    ) -> "torch.Tensor":
        """Return the sum of some canaries, computed on ``device`` and left there."""
        total: torch.Tensor = self._combine(indices, norm, _tensors(device))
        return total

    def _row(self, index: int) -> NDArray[np.float32]:
        return self.inject([index], 1.0)  # one transform

    def _multiply(self, vectors: _Array) -> FloatArray:
        to = _numpy if isinstance(vectors, np.ndarray) else _tensors(vectors.device)
        each = vectors.reshape(-1, self.dimension)
        products = [self._transform_vector(vector, to) for vector in each]
        return np.reshape(products, (*vectors.shape[:-1], self.count))

    @property
    def _size(self) -> int:
        """Return n: the largest power of two that is not above ``dimension``."""
        return 1 << (int(self.dimension).bit_length() - 1)

    @property
    def _rows_made(self) -> int:
        """Return K: how many rows of the last transform are made, a power of two."""
        return 1 << (int(self.count) - 1).bit_length()

    @property
    def _offsets(self) -> tuple[int, ...]:
        """Return where the first transforms begin."""
        return (0,) if self._size == self.dimension else (0, self.dimension - self._size)

    @property
    def _fits(self) -> bool:
        """Return whether places (4 bytes each) and three times half a byte of signs are kept."""
        return 6 * self._size <= self.memory

    def _transform_vector(self, vector: _Array, to: _To) -> FloatArray:
        """Return the inner products of one vector: steps 1 to 4 of the module."""
        mixed = vector + 0.0  # a copy: transforms work in place
        for number, offset in enumerate(self._offsets):
            part = mixed[offset : offset + self._size]
            self._flip(part, number, to)
            _transform(part, to)
        placed = mixed[: self._size] + 0.0  # a copy, to be filled
        for start, places in self._list_places(to):
            placed[start : start + len(places)] = mixed[places]
        self._flip(placed, 2, to)
        # Of the last transform only K rows are wanted: fold coordinates that agree in their bits.
        folded = placed.reshape(-1, self._rows_made)
        made = to(np.ones(len(folded), np.float32)) @ folded
        _transform(made, to)
        # The short transform is orthonormal on K numbers; the long one would be on n.
        products = made[: self.count] * math.sqrt(self._rows_made / self._size)
        return np.asarray(products.tolist())

    def _combine(self, indices: ArrayLike, norm: float, to: _To) -> _Array:
        """Return a sum of canaries by the transpose of the transform: every step backwards."""
        _validate.number(norm=norm)
        wanted = self._check_indices(indices)
        weights = np.bincount(wanted, minlength=self._rows_made).astype(np.float32)
        made = to(weights * np.float32(norm))
        _transform(made, to)
        placed = to(np.empty(self._size, np.float32))
        placed.reshape(-1, self._rows_made)[:] = made * math.sqrt(self._rows_made / self._size)
        self._flip(placed, 2, to)
        mixed = to(np.zeros(self.dimension, np.float32))
        for start, places in self._list_places(to):
            mixed[places] = placed[start : start + len(places)]
        for number, offset in reversed(list(enumerate(self._offsets))):
            part = mixed[offset : offset + self._size]
            _transform(part, to)
            self._flip(part, number, to)
        return mixed

    def _flip(self, part: _Array, number: int, to: _To) -> None:
        """Multiply by random signs, in place."""
        signs = self._remember(f"signs {number}", to, lambda: self._draw_signs(number))
        table = to(_EIGHT_SIGNS)
        step = _CHUNK // 8
        for start in range(0, len(signs), step):
            chunk = table[signs[start : start + step]].reshape(-1)
            here = part[8 * start : 8 * (start + step)]
            here *= chunk[: len(here)]

    def _draw_signs(self, number: int) -> NDArray[np.int32]:
        """Draw signs, eight in each number."""
        drawn = self._make_stream(number).bytes(-(-self._size // 8))
        return np.frombuffer(drawn, np.uint8).astype(np.int32)

    def _list_places(self, to: _To) -> Iterator[tuple[int, _Array]]:
        """Yield where the permutation fetches its first n coordinates from, chunk by chunk."""
        if self._fits:
            every = self._remember(
                "places", to, lambda: np.concatenate(list(self._permute()), dtype=np.int32)
            )
            yield 0, every
            return
        for number, places in enumerate(self._permute()):
            yield number * _CHUNK, to(places)

    def _permute(self) -> Iterator[NDArray[np.int64]]:
        """Permute by arithmetic: mix bits, and repeat for numbers that are not below d.

        Multiplying by an odd number and adding shifted bits are one-to-one on numbers of this many
        bits. Repeating until the number is below d is one-to-one on those below d.
        """
        bits = max(1, (int(self.dimension) - 1).bit_length())
        mask, shift = (1 << bits) - 1, max(1, bits // 2)
        stream = self._make_stream(3)
        factors = stream.integers(0, mask + 1, _ROUNDS) | 1
        terms = stream.integers(0, mask + 1, _ROUNDS)

        def mix(x: NDArray[np.int64]) -> NDArray[np.int64]:
            for factor, term in zip(factors, terms, strict=True):
                x = (x * factor + term) & mask
                x ^= x >> shift
            return x

        for start in range(0, self._size, _CHUNK):
            x = mix(np.arange(start, min(start + _CHUNK, self._size)))
            beyond = np.flatnonzero(x >= self.dimension)
            while beyond.size:
                again = mix(x[beyond])
                x[beyond] = again
                beyond = beyond[again >= self.dimension]
            yield x

    def _remember(self, what: str, to: _To, make: Callable[[], NDArray[Any]]) -> _Array:
        name = (what, repr(to))  # which names the device
        if name in self._cache:
            return self._cache[name]
        made = to(make())
        if self._fits:
            self._cache[name] = made
        return made

    def _make_stream(self, number: int) -> np.random.Generator:
        sequence = np.random.SeedSequence(self.key, spawn_key=(number,))
        return np.random.Generator(np.random.Philox(sequence))


def _transform(x: _Array, to: _To) -> None:
    """Apply the orthonormal Walsh–Hadamard transform to 2^m numbers, in place.

    Six bits are transformed at a time, by a product with a matrix of 64 × 64: more additions than
    butterflies need, but one pass over memory instead of six, and done by BLAS.
    """
    inner = 1
    while inner < len(x):
        size = min(1 << _FACTOR, len(x) // inner)
        matrix = to(_make_hadamard(size))
        blocks = x.reshape(-1, size, inner)
        for part in _split_columns(blocks):
            part[:] = (part[..., 0] @ matrix)[..., None] if inner == 1 else matrix @ part
        inner *= size


def _split_columns(blocks: _Array) -> Iterator[_Array]:
    """Yield views of whole columns, of about ``_CHUNK`` numbers each."""
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


def _make_hadamard(size: int) -> NDArray[np.float32]:
    """Return the orthonormal, symmetric matrix of ``size`` = 2^m rows."""
    return (scipy.linalg.hadamard(size) / math.sqrt(size)).astype(np.float32)


def _numpy(array: NDArray[Any]) -> NDArray[Any]:
    """Leave an array as it is."""
    return array


def _tensors(device: Any) -> _To:
    """Return a function that brings arrays to a device."""
    with needs("torch", extra="torch"):
        import torch
    return partial(torch.as_tensor, device=device)


FAMILIES: dict[str, type[Directions]] = {"hadamard": HadamardCanaries, "sphere": SphereCanaries}


def make_directions(family: Family, *, count: int, dimension: int, key: int) -> Directions:
    """Return canaries of the named family."""
    if family not in FAMILIES:
        raise InvalidArgument(
            f"Expected family to be one of {', '.join(FAMILIES)}, got {family!r}."
        )
    return FAMILIES[family](count=count, dimension=dimension, key=key)


def _to_float32(vectors: Any) -> Any:
    """Return an array, or a tensor on its device, in single precision."""
    if hasattr(vectors, "detach"):  # a torch tensor
        return vectors.detach().float()
    return np.asarray(vectors, np.float32)


def _compute_norm(x: Any) -> float:
    """Return the norm of a vector in double precision, without a copy of all of it."""
    total = 0.0
    for start in range(0, len(x), _BLOCK):
        part = x[start : start + _BLOCK]
        part = part.double() if hasattr(part, "double") else part.astype(np.float64)
        total += float(part @ part)
    return math.sqrt(total)


def _can_draw_on(device: "torch.device") -> bool:
    return device.type == "cuda" and has("triton")
