"""Random directions as canaries: drawn anew whenever they are needed, never all in memory.

A direction is normal numbers, divided by their norm. They are those of ``sampling.stream``, which
any device draws from a counter: block i of the stream is canary i, and a run makes four
of its coordinates. Thirty-two runs are written side by side, so that both kinds of processors
write rows: of every 128 coordinates the first 32 are the first normals of 32 runs, and so on.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer._extras import has, needs
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.stream import Arrays, four_normals
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    import torch

_BLOCK = 2**22  # floats made at a time: 16 MiB
_KEPT = 2**28  # bytes of directions that are kept, since making them is slower than multiplying
_SIDE, _TOGETHER = 32, 128  # runs side by side, and the coordinates that they make
_GROUPS = 2**9  # of 128 coordinates, drawn at a time without numba: stays in cache


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

    def inject_tensor(
        self, indices: ArrayLike, norm: float, *, device: Any = "cpu"
    ) -> "torch.Tensor":
        """``inject``, computed on ``device`` and left there."""
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

    A canary is the same whichever others are asked for, in whichever order, and on whichever
    device, up to rounding. On a CPU the extra ``numba`` draws them several times faster; what is on
    a CUDA device is worked on there, by Triton.

    Guarantees: unit norm to the rounding of float32; uniform on the sphere.
    Assumes: ``key`` is drawn at random where the directions must not be foreseen.

    Attributes:
        count: How many.
        dimension: Of the space: the number of trainable parameters, say.
        key: From which all directions follow.
        memory: Bytes of directions that are kept instead of being drawn anew; beyond that, one
            block of 16 MiB is held at a time (or one direction, where that is more). On a CUDA
            device nothing is kept but norms.

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
    _norms: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # by device

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

    def inject_tensor(
        self, indices: ArrayLike, norm: float, *, device: Any = "cpu"
    ) -> "torch.Tensor":
        """``inject``, computed on ``device`` and left there."""
        with needs("torch", extra="torch"):
            import torch
        if not _draws_on(torch.device(device)):
            return torch.from_numpy(self.inject(indices, norm)).to(device)
        from epsilometer.audits.federated import _sphere_cuda

        _validate.number(norm=norm)
        wanted, times = np.unique(checked_indices(indices, self.count), return_counts=True)
        if str(device) not in self._norms:
            nothing = torch.zeros(self.dimension, device=device)
            self._norms[str(device)] = _sphere_cuda.dots(self._stream_key, self.count, nothing)[1]
        here = torch.as_tensor(wanted, device=device)
        weights = norm * torch.as_tensor(times, device=device) / self._norms[str(device)][here]
        total: torch.Tensor = _sphere_cuda.weighted_sum(
            self._stream_key, here, weights, self.dimension
        )
        return total

    def dots(self, vectors: ArrayLike) -> FloatArray:
        """The inner product of every canary with a vector, shape ``(count,)``.

        Several vectors, shape ``(k, dimension)``, give ``(k, count)`` and cost little more than
        one on a CPU: making the directions, or fetching them from memory, is the work.
        """
        known = float32(vectors)
        if known.ndim not in (1, 2) or known.shape[-1] != self.dimension:
            raise InvalidArgument(
                f"Expected vectors of {self.dimension} numbers, got shape {tuple(known.shape)}."
            )
        if not isinstance(known, np.ndarray):
            if _draws_on(known.device):
                return self._dots_there(known)
            known = known.cpu().numpy()
        parts = [known @ block.T for block in self._blocks()]
        return np.concatenate(parts, axis=-1).astype(np.float64)

    def cosines(self, vector: ArrayLike) -> FloatArray:
        """The cosine of every canary with ``vector``, shape ``(count,)``; 0 for a vector of 0."""
        known = float32(vector)
        if known.ndim != 1:
            raise InvalidArgument(f"Expected one vector, got shape {tuple(known.shape)}.")
        return self.dots(known) / (length(known) or 1.0)

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
        drawn = np.empty(self.dimension, np.float32)
        if has("numba"):
            from epsilometer.sampling import _normals_cpu

            _normals_cpu.fill_block(np.uint64(self._stream_key), np.uint64(index), drawn)
        else:
            step = _GROUPS * _TOGETHER
            for start in range(0, self.dimension, step):
                part = drawn[start : start + step]
                part[:] = self._normals(index, start // _TOGETHER)[: part.size]
        return drawn / np.float32(length(drawn))

    def _normals(self, index: int, group: int) -> FloatArray:
        """``_GROUPS`` times 128 coordinates before they are normed, as the stream defines them."""
        runs = range(group * _SIDE, (group + _GROUPS) * _SIDE)
        four = four_normals(
            Arrays(np), self._stream_key, world=0, runs=runs, blocks=range(index, index + 1)
        )
        return np.stack(four).reshape(4, _GROUPS, _SIDE).swapaxes(0, 1).ravel()

    def _dots_there(self, vectors: Any) -> FloatArray:
        """On the device where the vectors are."""
        from epsilometer.audits.federated import _sphere_cuda

        found = np.empty((vectors[..., 0].numel(), self.count))
        for row, vector in zip(found, vectors.reshape(-1, self.dimension), strict=True):
            dots, norms = _sphere_cuda.dots(self._stream_key, self.count, vector)
            row[:] = (dots / norms).cpu().numpy()
        return found.reshape(*vectors.shape[:-1], self.count)

    @property
    def _stream_key(self) -> int:
        return int(np.random.SeedSequence(self.key).generate_state(1, np.uint64)[0])


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


def float32(vectors: Any) -> Any:
    """An array, or a tensor where it is, in single precision."""
    if hasattr(vectors, "detach"):  # a torch tensor
        return vectors.detach().float()
    return np.asarray(vectors, np.float32)


def length(x: Any) -> float:
    """The norm of a vector in double precision, without a copy of all of it."""
    total = 0.0
    for start in range(0, len(x), _BLOCK):
        part = x[start : start + _BLOCK]
        part = part.double() if hasattr(part, "double") else part.astype(np.float64)
        total += float(part @ part)
    return math.sqrt(total)


def _draws_on(device: "torch.device") -> bool:
    return device.type == "cuda" and has("triton")
