"""Compare models with a record and without it over seeds, if training is random.

What counts is whether the two distributions can be distinguished, not the effect under one seed.
Log-odds of both are assumed to be normal, with the spread measured over other seeds.
"""

import math

import numpy as np
from scipy import special

from epsilometer.audits.classifier.attacks.shadows import FLOOR
from epsilometer.types import BoolArray, FloatArray, IntArray

_SURE = 0.05  # probability that a lower limit overstates the spread
_TAIL = 1.5  # multiple of the shortest range of half of the seeds that bounds the spread


def take_odds(logs: FloatArray, codes: IntArray) -> FloatArray:
    """Return the log-odds of all other classes against each record's own.

    Over seeds they are closer to normal than ln p, which is skewed near 0; k classes have k − 1.

    Args:
        logs: ln p, ``(…, records, classes)``.
        codes: Position of each record's label.

    Example:
        >>> take_odds(np.log([[0.2, 0.8]]), np.array([1])).round(3)
        array([[-1.386]])
    """
    held = np.maximum(logs, FLOOR)
    own = np.take_along_axis(held, np.broadcast_to(codes[:, None], (*logs.shape[:-1], 1)), -1)
    others = np.arange(logs.shape[-1]) != codes[:, None]
    odds: FloatArray = (held - own)[..., others]
    return odds.reshape(*logs.shape[:-1], -1)


def measure_spread(odds: FloatArray, shift: FloatArray) -> FloatArray:
    """Return lower confidence limits on standard deviations over seeds, for normal log-odds.

    They are 0 where seeds leave gaps that a record crosses. They are bounded by the shortest range
    of half of the seeds: noise in one training of four hides nothing in the others.

    Args:
        odds: Log-odds of models of other seeds, ``(seeds, records, classes − 1)``.
        shift: Shift by which a record moves them, ``(records, classes − 1)``.
    """
    free = len(odds) - 1
    # With 95 % probability, the standard deviation of a normal sample is below this multiple
    highest = np.sqrt(special.chdtri(free, _SURE) / free)
    order, half = np.sort(odds, axis=0), len(odds) // 2
    shortest = (order[half - 1 :] - order[: len(odds) - half + 1]).min(axis=0)
    spread = np.minimum(odds.std(axis=0, ddof=1) / highest, _TAIL * shortest)
    return np.where(find_gaps(odds, shift)[:, None], 0.0, spread)


def find_hidden(shift: FloatArray, spread: FloatArray, *, limit: float) -> BoolArray:
    """Find records whose models with and without them differ no more than (limit, 0)-DP allows.

    Example:
        >>> find_hidden(np.array([[1.0], [1.0]]), np.array([[2.0], [0.5]]), limit=1.0)
        array([ True, False])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(np.abs(shift) / spread, nan=0.0, posinf=np.inf)
    apart = np.sqrt(np.square(ratio).sum(axis=1))
    return np.asarray(2 * special.ndtr(apart / 2) - 1 <= math.tanh(limit / 2))


def find_gaps(logs: FloatArray, shift: FloatArray) -> BoolArray:
    """Find the records whose models without them all fall between those with them.

    A distribution of few values, or of narrow clusters, has a large spread but hides nothing: moves
    between its values are visible. There each value is nearer to another one than after its move.

    Args:
        logs: Log-odds of models of other seeds, ``(seeds, records, classes − 1)``.
        shift: Shift by which a record moves them, ``(records, classes − 1)``.

    Example:
        >>> heaps = np.repeat([-5.0, 5.0], 10).reshape(20, 1, 1)
        >>> find_gaps(heaps, np.array([[1.2]])), find_gaps(heaps, np.array([[10.0]]))
        (array([ True]), array([False]))
    """
    rows = np.arange(shift.shape[0])
    most = np.abs(shift).argmax(axis=1)
    values, moved = logs[:, rows, most], shift[rows, most]
    apart = values[:, None] - values[None]
    own, after = np.abs(apart), np.abs(apart - moved)
    own[np.arange(len(own)), np.arange(len(own))] = np.inf
    return np.asarray((after.min(axis=1) > own.min(axis=1)).all(axis=0))
