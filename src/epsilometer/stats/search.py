"""Find roots; callers take the end of the bracket that is safe for them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer.types import FloatArray

_HALVINGS = 120  # brackets of moderate numbers meet after some 60


def bisect(
    holds: Callable[[FloatArray], NDArray[np.bool_]],
    low: FloatArray | float,
    high: FloatArray | float,
    *,
    relative: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Narrow brackets of ``holds``, which is true below some point and false above it.

    Each element of ``low`` and ``high`` is its own bracket: ``holds`` is assumed to be true at
    ``low`` and false at ``high``, and is not called there. Halving stops when neighbours meet, or
    when ``high - low`` is at most ``relative`` of ``high``.

    Returns:
        ``(low, high)``: the largest points found true, and the smallest found false.
    """
    low, high = np.asarray(low), np.asarray(high)
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
    """Double each element of ``start`` until ``holds`` is false there, or ``limit`` is passed."""
    high = np.array(start, np.float64)
    while True:
        further = np.asarray(holds(high)) & (high < limit)
        if not further.any():
            return high
        high = np.where(further, 2 * high, high)


def root(
    excess: Callable[[float], float], low: float, high: float, *, relative: float
) -> tuple[float, float]:
    """Narrow a bracket of a continuous rising function, ≤ 0 at ``low`` and > 0 at ``high``.

    False position by the Illinois rule; a handful of calls where the function is smooth.

    Returns:
        ``(low, high)``: the largest point found not above 0, and the smallest found above.
    """
    f_low, f_high = excess(low), excess(high)
    side = 0
    for _ in range(_HALVINGS):
        if high - low <= relative * high:
            break
        point = (low * f_high - high * f_low) / (f_high - f_low)
        if not low < point < high:
            point = low + (high - low) / 2
        value = excess(point)
        if value <= 0:
            low, f_low = point, value
            f_high = f_high / 2 if side == -1 else f_high
            side = -1
        else:
            high, f_high = point, value
            f_low = f_low / 2 if side == 1 else f_low
            side = 1
    return low, high


def largest_refuted(
    refuted: Callable[[FloatArray, NDArray[np.intp]], NDArray[np.bool_]],
    size: int,
    *,
    limit: float,
    relative: float = 1e-9,
    at_once: int = 32,
) -> tuple[float, int]:
    """Return the largest merit that some look refutes, and which look that is.

    ``refuted(merits, at)`` says of each pair whether look ``at[i]`` refutes ``merits[i]``; each
    look refutes all merits below some point of its own. Looks that fail at a merit where another
    succeeds cannot win and are not asked again. The few that remain are asked of many merits at
    once, since a call on a short array costs as much as one on a single number.

    Args:
        refuted: See above.
        size: Number of looks.
        limit: Merits are doubled up to it, once beyond it, and no further.
        relative: Relative distance of the two sides of the answer.
        at_once: Number of pairs for which a call costs little more than for one.

    Returns:
        ``(merit, look)``, the merit on the refuted side; ``(0, 0)`` where none refutes that.
    """
    live = np.arange(size)
    live = live[refuted(np.zeros(size), live)]
    low, high = 0.0, 1.0
    while live.size and low < limit:
        still = live[refuted(np.full(live.size, high), live)]
        if not still.size:
            break
        live, low, high = still, high, 2 * high
    while live.size and high - low > relative * high:
        merits = np.linspace(low, high, 2 + max(1, at_once // live.size))[1:-1]
        if not (low < merits[0] and merits[-1] < high):
            break
        true = refuted(np.repeat(merits, live.size), np.tile(live, merits.size))
        true = true.reshape(merits.size, live.size)
        points = np.concatenate([[low], merits, [high]])
        last = int(np.append(0, 1 + np.flatnonzero(true.any(axis=1)))[-1])
        live = live[true[last - 1]] if last else live
        low, high = float(points[last]), float(points[last + 1])
    return low, int(live[0]) if live.size else 0
