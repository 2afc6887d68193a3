"""What is asked of other people's estimators and data before anything is computed with them."""

import sys
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_Features = TypeVar("_Features", bound=Any)


def is_exactly(estimator: object, module: str, name: str) -> bool:
    """Whether the estimator is of that class itself; a subclass may train in another way.

    Whoever has such an estimator has imported its module, so nothing is imported here.
    """
    return type(estimator) is getattr(sys.modules.get(module), name, None)


def labels(y: Any) -> tuple[NDArray[Any], IntArray]:
    """The classes in order, and each record's place among them.

    Example:
        >>> labels(["no", "yes", "no"])
        (array(['no', 'yes'], dtype='<U3'), array([0, 1, 0]))
    """
    array = np.asarray(y)
    if array.ndim != 1:
        raise InvalidArgument(
            f"Expected one label a record in y, got shape {array.shape}. "
            "A column is flattened by y.ravel()."
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InvalidArgument(f"Expected no nan in y, found {np.isnan(array).sum()}.")
    try:
        classes, codes = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise InvalidArgument(
            "Expected labels of one kind in y, got a mixture that cannot be sorted."
        ) from error
    if classes.size < 2:
        raise InvalidArgument(
            f"Expected at least two classes in y, got {classes.size}. "
            "A classifier of one class says the same whoever is in it."
        )
    return classes, np.asarray(codes, np.int64)


def matrix(X: Any, *, name: str = "X") -> FloatArray:  # noqa: N803 - as in scikit-learn
    """The features as a dense matrix of finite doubles, without a copy where none is needed."""
    try:
        array = np.asarray(X, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"Expected numbers in {name}, got something else. Text columns are encoded in a "
            "pipeline.",
            withheld=str(error)[:100],
        ) from error
    if array.ndim != 2:
        raise InvalidArgument(f"Expected {name} of shape (records, features), got {array.shape}.")
    if not np.isfinite(array).all():
        missing = np.count_nonzero(~np.isfinite(array))
        raise InvalidArgument(
            f"Expected finite numbers in {name}, found {missing} of {array.size} nan or infinite. "
            "Fill them in by a pipeline, so that filling in is part of what is measured."
        )
    return array


def with_features(queries: _Features, count: int) -> _Features:
    """The queries, if they have as many features as what was trained on."""
    if queries.shape[1] != count:
        raise InvalidArgument(f"Expected queries of {count} features, got {queries.shape[1]}.")
    return queries
