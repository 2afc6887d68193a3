"""Root finding, in one place. Callers take the end of the bracket that is safe for them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer.types import FloatArray

_HALVINGS = 120  # brackets of moderate numbers meet after some 60


def bisect(
    holds: Callable[[FloatArray], NDArray[np.bool_]],
    low: ArrayLike,
    high: ArrayLike,
    *,
    relative: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Narrows brackets of ``holds``, which is true below some point and false above it.

    Each element of ``low`` and ``high`` is a bracket of its own: ``holds`` is taken to be true at
    ``low`` and false at ``high`` and is never asked there. Halving goes on until neighbours meet,
    or until ``high - low`` is at most ``relative`` of ``high``.

    Returns:
        ``(low, high)``: the largest points seen true, and the smallest seen false.
    """
    low, high = np.array(low, np.float64), np.array(high, np.float64)
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        open_ = (middle > low) & (middle < high) & (high - low > relative * np.abs(high))
        if not open_.any():
            break
        true = np.asarray(holds(middle))
        low = np.where(open_ & true, middle, low)
        high = np.where(open_ & ~true, middle, high)
    return low, high


def grow(
    holds: Callable[[FloatArray], NDArray[np.bool_]], start: ArrayLike, *, limit: float
) -> FloatArray:
    """Doubles each element of ``start`` until ``holds`` is false there, or ``limit`` is passed."""
    high = np.array(start, np.float64)
    while True:
        further = np.asarray(holds(high)) & (high < limit)
        if not further.any():
            return high
        high = np.where(further, 2 * high, high)


def largest_refuted(
    refuted: Callable[[float, NDArray[np.intp]], NDArray[np.bool_]],
    size: int,
    *,
    limit: float,
    relative: float = 1e-9,
) -> tuple[float, int]:
    """The largest merit that some look refutes, and which look that is.

    ``refuted(merit, at)`` says which of the looks ``at`` refute ``merit``; each refutes all merits
    below some point of its own. Looks that fail at a merit where another succeeds cannot win and
    are not asked again, so the whole costs little more than the one look that wins.

    Returns:
        ``(merit, look)``, the merit on the refuted side; ``(0.0, 0)`` where none refutes even 0.
    """
    live = np.arange(size)[refuted(0.0, np.arange(size))]
    if not live.size:
        return 0.0, 0

    def some(merit: FloatArray) -> NDArray[np.bool_]:
        nonlocal live
        still = live[refuted(float(merit), live)]
        live = still if still.size else live
        return np.asarray(still.size > 0)

    high = grow(some, 1.0, limit=limit)
    low = 0.0 if high == 1.0 else float(high) / 2
    merit, _ = bisect(some, low, high, relative=relative)
    return float(merit), int(live[0])
