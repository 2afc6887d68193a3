"""Tell whether anyone within a range was trained on, if single records are not known.

The adversary knows some columns of a person and the label, and queries many records that agree in
these. If a record in the range was a member, the model is more confident in parts of the range than
other models (Tao and Shokri, "Range membership inference attacks").
"""

from typing import Any

import numpy as np

from epsilometer.audits.classifier.threats.asking import Asked, read_column, replace_column
from epsilometer.types import FloatArray, IntArray

_TOP = 4  # one in this many of a range's answers counts, the highest ones
SAMPLES = 8  # queries per range


def draw_ranges(
    X: Any,  # noqa: N803 - as in scikit-learn
    columns: IntArray,
    rng: np.random.Generator,
    samples: int = SAMPLES,
) -> list[Any]:
    """Return all records several times, with values of others in the unknown columns.

    Example:
        >>> X = np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]])
        >>> once, = draw_ranges(X, np.array([1]), np.random.default_rng(0), samples=1)
        >>> once[:, 0], bool(np.isin(once[:, 1], X[:, 1]).all())
        (array([1., 2., 3.]), True)
    """
    drawn = []
    for _ in range(samples):
        changed = X
        for column in columns.tolist():
            values = read_column(X, column)
            changed = replace_column(
                changed, column, values[rng.integers(len(values), size=len(values))]
            )
        drawn.append(changed)
    return drawn


def score_ranges(asked: Asked, question: str) -> FloatArray:
    """Return the mean of the highest gains in each range, shape ``(models, records)``."""
    gains = np.sort(asked.gains(question), axis=2)
    top = max(1, gains.shape[2] // _TOP)
    return np.asarray(gains[:, :, -top:].mean(axis=2))
