"""scikit-learn."""

import numpy as np

from epsilometer._extras import needs
from epsilometer.types import FloatArray, IntArray


def digits() -> tuple[FloatArray, IntArray]:
    """The 1,797 handwritten digits that ship with scikit-learn: pixels 0–16, and their classes."""
    with needs("sklearn", extra="sklearn"):
        from sklearn.datasets import load_digits
    bunch = load_digits()
    return np.asarray(bunch.data, np.float64), np.asarray(bunch.target, np.int64)
