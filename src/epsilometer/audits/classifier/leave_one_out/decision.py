"""Probabilities for classifiers that have none: one map from decision functions, used everywhere.

A decision function is read as log-odds: two classes by the logistic function of the one number
they have, more by softmax over their columns. It keeps the order of the classes, but the
probabilities are not calibrated: a PDTP through it measures how far decisions move.
"""

from typing import Any

import numpy as np
import scipy.special

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray


def log_proba_of(decision: Any) -> FloatArray:
    """ln p of a decision function, shape ``(queries, classes)``.

    Args:
        decision: Shape ``(queries,)`` for two classes, where positive speaks for the second, or
            ``(queries, classes)``, as scikit-learn's ``decision_function`` returns it.

    Guarantees: rows sum to 1 and keep the order of the decision function.

    Example:
        >>> log_proba_of([0.0, 2.0]).round(3)
        array([[-0.693, -0.693],
               [-2.127, -0.127]])
    """
    array = np.asarray(decision, np.float64)
    if array.ndim == 1:
        return np.stack([-np.logaddexp(0.0, array), -np.logaddexp(0.0, -array)], axis=1)
    if array.ndim != 2 or array.shape[1] < 2:
        raise InvalidArgument(
            "Expected a decision function of shape (queries,) or (queries, classes), "
            f"got {array.shape}."
        )
    return np.asarray(scipy.special.log_softmax(array, axis=1))
