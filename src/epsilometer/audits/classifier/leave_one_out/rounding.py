"""Measure how predictions change when a record leaves, as seen through rounded probabilities.

A probability that is shown with few decimals stands for the centre of its bin. What decides is the
smaller of two changes, class by class: that of the probability as shown, and that at full
precision. Shown alone, a probability that barely crosses the edge of a bin moves by ln 3; at full
precision alone, one that goes from 10⁻¹² to 10⁻¹⁰ does, and nobody sees it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.types import BoolArray, FloatArray, IntArray

DECIMALS = 2  # of the paper's bins
SHOWN: tuple[int | None, ...] = (None, 4, 3, 2, 1, -1)  # decimals to compare; −1: the class alone
LARGEST = math.log(2 * 10**DECIMALS - 1)  # ln(0.995 / 0.005), the largest change between bins
_EDGE = 1e-9  # of a bin: 0.29 * 100 is 28.999999999999996, and ln and exp lose as much
_SMALLEST = math.log(math.ulp(0.0))  # ln of the smallest double above 0: no more is seen of it
_BLOCK = 1 << 16  # rows at a time, so that working arrays stay small


@dataclass(frozen=True, eq=False, kw_only=True)
class Changes:
    """Changes of ln p when a record leaves, one entry per record.

    Attributes:
        risk: The largest over classes of the smaller of the two.
        shown: The largest change of what is shown.
        unbinned: The largest change at full precision.
    """

    risk: FloatArray
    shown: FloatArray
    unbinned: FloatArray


def measure_changes(full: FloatArray, without: FloatArray, *, decimals: int | None) -> Changes:
    """Return what an observer of ``decimals`` decimals sees of each record.

    A class impossible to both models does not count. A row of nan, a model without a prediction
    (0/0), counts as infinite against one with a prediction: whoever asks sees the difference.

    Args:
        full: ln p of the model trained on all records, shape ``(records, classes)``.
        without: ln p of the model trained without the record.
        decimals: How many are shown; None: all of them.

    Example:
        >>> edge = measure_changes(
        ...     np.log([[0.0099, 0.9901]]), np.log([[0.0101, 0.9899]]), decimals=2
        ... )
        >>> edge.shown.round(2), edge.risk.round(2)  # it crossed an edge, and hardly moved
        (array([1.1]), array([0.02]))
    """
    found = np.empty((3, len(full)))
    for start in range(0, len(full), _BLOCK):
        part = slice(start, start + _BLOCK)
        exact, rounded = _compare(full[part], without[part], decimals)
        smaller = np.minimum(exact, rounded)
        found[:, part] = [each.max(axis=1) for each in (smaller, rounded, exact)]
    return Changes(risk=found[0], shown=found[1], unbinned=found[2])


def _compare(
    full: FloatArray, without: FloatArray, decimals: int | None
) -> tuple[FloatArray, FloatArray]:
    # What underflows is not infinitely small; what is impossible to one model alone is
    exact = np.abs(np.maximum(full, _SMALLEST) - np.maximum(without, _SMALLEST))
    exact[(full == -np.inf) != (without == -np.inf)] = np.inf
    rounded = exact
    if decimals is not None:
        rounded = np.abs(np.log(show(full, decimals) / show(without, decimals)))
    if np.isnan(exact).any():
        silent, silent_too = np.isnan(full).any(axis=1), np.isnan(without).any(axis=1)
        for moved in (exact, rounded):
            moved[silent != silent_too] = np.inf
            moved[silent & silent_too] = 0.0
    return exact, rounded


def bin_centres(probability: Any, decimals: int = DECIMALS) -> FloatArray:
    """Return the centres of the bins [k/10^d, (k+1)/10^d) of probabilities; the last has 1 too.

    Example:
        >>> bin_centres([0.0, 0.29, 0.2899, 1.0])
        array([0.005, 0.295, 0.285, 0.995])
    """
    bins = 10.0**decimals
    scaled = np.asarray(probability, np.float64) * bins
    return np.asarray((np.clip(np.floor(scaled + _EDGE), 0, bins - 1) + 0.5) / bins)


def show(log_proba: FloatArray, decimals: int | None) -> FloatArray:
    """Return probabilities as they are shown: the centres of bins; as they are where None."""
    if decimals is None:
        return np.exp(log_proba)
    _validate.whole(1, decimals=decimals)
    return bin_centres(np.exp(log_proba), decimals)


def find_flips(full: FloatArray, without: FloatArray) -> BoolArray:
    """Return which records change their predicted class when they leave."""
    return np.asarray(predict_class(full) != predict_class(without))


def predict_class(log_proba: FloatArray) -> IntArray:
    """Return the likeliest class, the first of equals; the first where there is no prediction."""
    likeliest: IntArray = np.argmax(np.nan_to_num(log_proba, nan=-np.inf, neginf=-np.inf), axis=1)
    return likeliest
