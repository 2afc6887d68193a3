"""Leave-one-out risk as it is seen through probabilities with few decimals.

What decides is the smaller of two changes, class by class: that of the probability as shown, and
that at full precision. Shown alone, a probability that crosses the edge of a bin by nothing moves
by ln 3; at full precision alone, one that goes from 10⁻¹² to 10⁻¹⁰ does, and nobody sees it.
"""

from dataclasses import dataclass

import numpy as np

from epsilometer import _validate
from epsilometer.types import BoolArray, FloatArray, IntArray

_EDGE = 1e-9  # of a bin: 0.29 * 100 is 28.999999999999996, and ln and exp lose as much
_SMALLEST = -744.4400719213812  # ln of the smallest double above 0: no more is seen of it


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen:
    """Changes of ln p when a record leaves, one entry a record.

    Attributes:
        risk: The largest over classes of the smaller of the two.
        shown: The largest change of what is shown.
        unbinned: The largest change at full precision.
    """

    risk: FloatArray
    shown: FloatArray
    unbinned: FloatArray


def seen(full: FloatArray, without: FloatArray, *, decimals: int | None) -> Seen:
    """What whoever sees ``decimals`` decimals sees of each record.

    Args:
        full: ln p of the model trained on all records, shape ``(records, classes)``; a row of
            nan where there is no prediction.
        without: ln p of the model trained without the record.
        decimals: How many are shown; None: all of them.

    Example:
        >>> edge = seen(np.log([[0.0099, 0.9901]]), np.log([[0.0101, 0.9899]]), decimals=2)
        >>> edge.shown.round(2), edge.risk.round(2)  # it crossed an edge, and hardly moved
        (array([1.1]), array([0.02]))
    """
    with np.errstate(invalid="ignore"):  # −inf − −inf
        exact = np.abs(_visible(full) - _visible(without))
    exact[(full == -np.inf) & (without == -np.inf)] = 0.0
    if decimals is None:
        rounded = exact
    else:
        rounded = np.abs(np.log(shown(full, decimals)) - np.log(shown(without, decimals)))
    silent, silent_too = np.isnan(full).any(axis=1), np.isnan(without).any(axis=1)
    exact[silent != silent_too], rounded[silent != silent_too] = np.inf, np.inf
    exact[silent & silent_too], rounded[silent & silent_too] = 0.0, 0.0
    return Seen(
        risk=np.minimum(exact, rounded).max(axis=1),
        shown=rounded.max(axis=1),
        unbinned=exact.max(axis=1),
    )


def shown(log_proba: FloatArray, decimals: int | None) -> FloatArray:
    """Probabilities as they are shown: the centres of bins 10^−decimals wide; all where None.

    Example:
        >>> shown(np.log([0.29, 0.2899, 1.0]), 2)
        array([0.295, 0.285, 0.995])
    """
    if decimals is None:
        return np.exp(log_proba)
    _validate.whole(1, decimals=decimals)
    bins = 10.0**decimals
    centres = np.clip(np.floor(np.exp(log_proba) * bins + _EDGE), 0, bins - 1) + 0.5
    return np.asarray(centres / bins)


def flipped(full: FloatArray, without: FloatArray) -> BoolArray:
    """Records whose predicted class changes when they leave: what a bare class shows."""
    return np.asarray(predicted(full) != predicted(without))


def predicted(log_proba: FloatArray) -> IntArray:
    """The likeliest class, the first of equals; where there is no prediction, the first."""
    likeliest: IntArray = np.argmax(np.nan_to_num(log_proba, nan=-np.inf, neginf=-np.inf), axis=1)
    return likeliest


def _visible(log_proba: FloatArray) -> FloatArray:
    return np.where(log_proba == -np.inf, log_proba, np.maximum(log_proba, _SMALLEST))
