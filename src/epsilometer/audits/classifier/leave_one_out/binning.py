"""Probabilities in bins of 0.01, as the paper has them before a ratio is taken.

Bins are [k/100, (k+1)/100), the last one with 1; a probability stands for its bin's centre. No
ratio is then larger than 0.995/0.005 = 199, but one that crosses an edge by nothing moves by 0.01:
from 0.005 to 0.015 is ln 3 > 1. So a binned value is never shown without the unbinned one.
"""

import math
from typing import Any

import numpy as np

from epsilometer.types import FloatArray

BINS = 100
LARGEST = math.log(2 * BINS - 1)  # ln(0.995 / 0.005)
_EDGE = 1e-9  # of a bin: 0.29 * 100 is 28.999999999999996, and ln and exp lose as much


def centres(probability: Any) -> FloatArray:
    """Centres of the bins that probabilities fall into.

    Example:
        >>> centres([0.0, 0.29, 0.2899, 1.0])
        array([0.005, 0.295, 0.285, 0.995])
    """
    scaled = np.asarray(probability, np.float64) * BINS
    return (np.clip(np.floor(scaled + _EDGE), 0, BINS - 1) + 0.5) / BINS
