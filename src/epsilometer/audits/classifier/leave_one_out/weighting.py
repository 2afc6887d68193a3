"""Weights of classes, which change with a record where they are balanced."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.types import FloatArray


def class_weights(setting: Any, classes: NDArray[Any], counts: FloatArray) -> FloatArray:
    """What scikit-learn's ``class_weight`` gives each class; 0 for a class that has no record.

    Example:
        >>> class_weights("balanced", np.array(["no", "yes"]), np.array([3.0, 1.0]))
        array([0.66666667, 2.        ])
        >>> class_weights({"yes": 5}, np.array(["no", "yes"]), np.array([3.0, 1.0]))
        array([1., 5.])
    """
    present = counts > 0
    if setting is None:
        return present.astype(np.float64)
    if isinstance(setting, str):  # "balanced"
        shares = counts.sum() / (present.sum() * np.where(present, counts, 1.0))
        return np.where(present, shares, 0.0)
    given = np.array([setting.get(label, 1.0) for label in classes.tolist()], np.float64)
    return np.where(present, given, 0.0)


def are_known(setting: Any) -> bool:
    """Whether ``class_weights`` can answer: nothing, a dictionary or "balanced"."""
    return setting is None or isinstance(setting, dict) or setting == "balanced"
