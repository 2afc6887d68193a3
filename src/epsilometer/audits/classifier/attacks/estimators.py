"""scikit-learn's estimators, and all that have their manners, as something that shadows train.

Whoever has such an estimator has imported its module, so nothing is imported here.
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Predict: TypeAlias = Callable[[Any], FloatArray]


@dataclass(frozen=True, eq=False)
class FitEstimator:
    """Trains a fresh copy of an estimator: ``fit(X, y, seed)`` returns what predicts ln p.

    Labels are given to it as places among ``classes``, and handed on as the classes themselves.
    Every ``random_state`` in it, those of its parts too, is set from the seed.

    Guarantees: the estimator itself stays as it is; a class absent from training has ln p = −inf.

    Attributes:
        estimator: With ``fit`` and ``predict_proba``; or ``decision_function``, see
            ``log_probabilities``.
        classes: All classes, in the order of columns.
    """

    estimator: Any
    classes: NDArray[Any]

    def __call__(self, X: Any, y: IntArray, seed: int) -> Predict:  # noqa: N803
        """Trains on these records, and returns what predicts."""
        model = fresh(self.estimator, seed)
        model.fit(X, self.classes[y])
        return _Predict(model, self.classes)


@dataclass(frozen=True, eq=False)
class _Predict:
    model: Any
    classes: NDArray[Any]

    def __call__(self, X: Any) -> FloatArray:  # noqa: N803
        return log_probabilities(self.model, X, classes=self.classes)


def fresh(estimator: Any, seed: int) -> Any:
    """An untrained copy, with every ``random_state`` set from the seed."""
    clone = getattr(sys.modules.get("sklearn.base"), "clone", copy.deepcopy)
    try:
        model = clone(estimator)
    except (TypeError, RuntimeError) as error:
        raise InvalidArgument(
            f"Expected an estimator that can be cloned, got {type(estimator).__name__}: {error}. "
            "Its parameters must be those of its constructor; or give a function fit(X, y, seed)."
        ) from error
    if hasattr(model, "get_params"):
        random = [name for name in model.get_params() if name.split("__")[-1] == "random_state"]
        model.set_params(**dict.fromkeys(random, seed % 2**32))
    return model


def log_probabilities(
    model: Any,
    X: Any,  # noqa: N803
    *,
    classes: NDArray[Any],
) -> FloatArray:
    """ln p of every class under a trained model, shape ``(records, classes)``.

    A model without ``predict_proba`` is taken by its ``decision_function`` d: with two classes
    p = 1/(1 + e^−d), with more the softmax of d. Such p rank as d does, and are no probabilities.

    Guarantees: −inf for classes that the model does not know.

    Example:
        >>> class Coin:
        ...     classes_ = np.array(["no", "yes"])
        ...     def predict_proba(self, X):
        ...         return np.full((len(X), 2), 0.5)
        >>> log_probabilities(Coin(), [[1.0]], classes=np.array(["maybe", "no", "yes"])).round(2)
        array([[ -inf, -0.69, -0.69]])
    """
    with np.errstate(divide="ignore"):
        if hasattr(model, "predict_log_proba"):  # naive Bayes has digits there that p has lost
            found: FloatArray = np.asarray(model.predict_log_proba(X), np.float64)
        elif hasattr(model, "predict_proba"):
            found = np.log(np.asarray(model.predict_proba(X), np.float64))
        elif hasattr(model, "decision_function"):
            found = _of_decisions(np.asarray(model.decision_function(X), np.float64))
        else:
            raise InvalidArgument(
                "Expected a model with predict_proba or decision_function, got "
                f"{type(model).__name__}. Give a function fit(X, y, seed) that returns what "
                "predicts ln p."
            )
    known = np.asarray(getattr(model, "classes_", classes[: found.shape[1]]))
    place = np.searchsorted(classes, known)
    if found.shape[1] != known.size or not np.array_equal(
        classes[np.minimum(place, classes.size - 1)], known
    ):
        raise InvalidArgument(
            f"Expected a model of classes among the {classes.size} of the labels, got others.",
            withheld=f"It has columns for {known.tolist()[:10]}.",
        )
    every = np.full((found.shape[0], classes.size), -np.inf)
    every[:, place] = found
    return every


def _of_decisions(decision: FloatArray) -> FloatArray:
    if decision.ndim == 1:
        return -np.logaddexp(0.0, np.stack([decision, -decision], axis=1))
    top = decision.max(axis=1, keepdims=True)
    return np.asarray(decision - top - np.log(np.exp(decision - top).sum(axis=1, keepdims=True)))
