"""Where a canary's direction goes in a model of many arrays."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument

Arrays = Mapping[str, NDArray[Any]]


class Layout:
    """Which arrays of a model count, and where in one flat vector: the floating-point ones.

    Fixed by the first arrays that are seen, since averaging turns counters into floating-point
    numbers.

    Args:
        arrays: The model.
        without: Patterns of names that do not count, as ``"*running_var"``.

    Attributes:
        size: Numbers that count.

    Example:
        >>> model = {"weight": np.zeros((2, 2), np.float32), "batches": np.array(7)}
        >>> layout = Layout(model)
        >>> moved = layout.moved(model, np.ones(4, np.float32))
        >>> layout.size, layout.flat(moved), int(moved["batches"])
        (4, array([1., 1., 1., 1.]), 7)
    """

    def __init__(self, arrays: Arrays, *, without: Sequence[str] = ()) -> None:
        self._shapes = {
            name: value.shape
            for name, value in arrays.items()
            if value.dtype.kind == "f" and not any(fnmatchcase(name, odd) for odd in without)
        }
        self._sizes = {name: arrays[name].size for name in self._shapes}
        self.size = sum(self._sizes.values())
        if self.size == 0:
            raise InvalidArgument(
                f"Expected floating-point arrays in the model, got {len(arrays)} arrays of other "
                "types, or left out: nothing that a canary could move."
            )

    def flat(self, arrays: Arrays) -> NDArray[np.float64]:
        """What counts as one vector, shape ``(size,)``."""
        for name, shape in self._shapes.items():
            if name not in arrays or arrays[name].shape != shape:
                raise InvalidArgument(
                    f"Expected the arrays of the first round, {name!r} is gone or has another "
                    f"shape than {shape}."
                )
        return np.concatenate([arrays[name].ravel() for name in self._shapes], dtype=np.float64)

    def moved(self, arrays: Arrays, direction: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The arrays plus a direction, each of its own type; those that do not count untouched."""
        found, start = dict(arrays), 0
        for name, size in self._sizes.items():
            step = direction[start : start + size].reshape(self._shapes[name])
            found[name] = (arrays[name] + step).astype(arrays[name].dtype)
            start += size
        return found
