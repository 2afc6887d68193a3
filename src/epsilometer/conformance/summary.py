"""Summarise the residual noise of one step, as the checks need it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.conformance import evidence
from epsilometer.conformance.comparisons import Comparisons
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

SKETCH = 1024  # coordinates that are kept of every step
_KEY = 0x5EED  # of the choice of coordinates, which must not depend on the data


@dataclass(frozen=True, eq=False, kw_only=True)
class TensorSummary:
    """Hold statistics of one tensor's residual in one step, in units of the accounted noise σC.

    Attributes:
        name: Name of the tensor; the same in every step.
        count: Coordinates.
        squares: Sum of squares.
        total: Sum.
        largest: Largest absolute value.
        small: Number of values below 0.001 in absolute value.
        positive: Number of values above 0.
        rows: Sum of squares of each row, shape ``(rows,)``; of each coordinate for a vector.
        sketch: Values at the coordinates of :func:`choose_sketch`.
    """

    name: str
    count: int
    squares: float
    total: float
    largest: float
    small: int
    positive: int
    rows: FloatArray
    sketch: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class StepSummary:
    """Summarise the residual of one step. An integration computes it on its device.

    Attributes:
        tensors: One summary per tensor, in the same order in every step.
        cosines: (what, cosine, dimension) of parts that must be independent within the step.
        ties: (equal pairs, pairs) of values of two runs at the same coordinate; None to compare
            the sketches of every second step with the one before.
    """

    tensors: tuple[TensorSummary, ...]
    cosines: tuple[tuple[str, float, int], ...] = ()
    ties: tuple[int, int] | None = None

    @property
    def count(self) -> int:
        """Coordinates of all tensors."""
        return sum(part.count for part in self.tensors)

    @property
    def squares(self) -> float:
        """Sum of squares over all tensors."""
        return sum(part.squares for part in self.tensors)

    @property
    def sketch(self) -> FloatArray:
        """Concatenated sketches of all tensors."""
        return np.concatenate([part.sketch for part in self.tensors])


def choose_sketch(sizes: Sequence[int], *, total: int = SKETCH) -> tuple[NDArray[np.int64], ...]:
    """Choose the coordinates to keep of each tensor, the same in every step.

    Example:
        >>> [part.size for part in choose_sketch([10, 100_000], total=64)]
        [10, 54]
    """
    rng = np.random.default_rng(_KEY)
    parts: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(sizes)
    left = total
    for done, place in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at])):
        share = min(sizes[place], left // (len(sizes) - done))  # small tensors need less
        parts[place] = np.sort(rng.choice(sizes[place], share, replace=False))
        left -= share
    return tuple(parts)


def summarise_step(
    residuals: Iterable[tuple[str, Any]],
    *,
    sketch: Sequence[NDArray[np.int64]] | None = None,
    ties: tuple[int, int] | None = None,
) -> StepSummary:
    """Summarise residuals given as arrays, in units of the accounted noise.

    Args:
        residuals: (name, array) of each tensor: what was released minus the sum before noise,
            divided by σC.
        sketch: Coordinates to keep; those of :func:`choose_sketch` by default.
        ties: See :class:`StepSummary`.

    Example:
        >>> step = summarise_step([("weight", np.eye(4)), ("bias", np.zeros(4))])
        >>> [(part.name, part.count, part.squares, part.small) for part in step.tensors]
        [('weight', 16, 4.0, 12), ('bias', 4, 0.0, 4)]
    """
    arrays = [(name, read_residual(name, value)) for name, value in residuals]
    if not arrays:
        raise InvalidArgument("Expected residuals of at least one tensor, got none.")
    chosen = choose_sketch([array.size for _, array in arrays]) if sketch is None else sketch
    if len(chosen) != len(arrays):
        raise InvalidArgument(f"Expected {len(chosen)} tensors in every step, got {len(arrays)}.")
    tensors = tuple(
        summarise_tensor(name, array, places)
        for (name, array), places in zip(arrays, chosen, strict=True)
    )
    comparisons = Comparisons([(name, array.shape) for name, array in arrays])
    return StepSummary(
        tensors=tensors,
        cosines=comparisons.take([array for _, array in arrays]),
        ties=ties,
    )


def summarise_tensor(name: str, array: FloatArray, places: NDArray[np.int64]) -> TensorSummary:
    """Summarise the residual of one tensor, keeping its values at ``places`` of its ravel."""
    flat, size = array.ravel(), np.abs(array)
    return TensorSummary(
        name=name,
        count=array.size,
        squares=float(flat @ flat),
        total=float(flat.sum()),
        largest=float(size.max()),
        small=int(np.count_nonzero(size < evidence.SMALL)),
        positive=int(np.count_nonzero(array > 0)),
        rows=np.sum(array.reshape(array.shape[0], -1) ** 2, axis=1),
        sketch=flat[places],
    )


def read_residual(name: str, value: Any) -> FloatArray:
    """Return a residual as finite numbers with at least one axis; reject others."""
    array = np.asarray(value, np.float64)
    if array.size == 0:
        raise InvalidArgument(f"Expected numbers in the residual of {name}, got none.")
    refuse_infinite(name, float(np.abs(array).max()))
    return np.atleast_1d(array)


def refuse_infinite(name: str, largest: float) -> None:
    """Reject a residual whose largest absolute value is not finite."""
    if not math.isfinite(largest):
        raise InvalidArgument(
            f"Expected finite numbers in the residual of {name}, got others. "
            "What was released or summed has diverged."
        )
