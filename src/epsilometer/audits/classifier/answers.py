"""Compare a model's ``predict`` with its probabilities, and audit the former where they differ.

Most models predict the likeliest class. The labels of a model with another decision rule may
reveal more than its probabilities.
"""

import warnings
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.families import family_of
from epsilometer.audits.classifier.leave_one_out.pdtp import predict_class
from epsilometer.audits.classifier.sklearn_models import (
    clone_estimator,
    clone_with_seed,
    predict_logs,
    seed_globals,
    unwrap_pipeline,
)
from epsilometer.types import BoolArray, FloatArray, IntArray

_NEVER = -50.0  # ln p of classes that are not answered


class LabelsOnly:
    """An estimator that shows only the labels of another one's ``predict``.

    Attributes:
        estimator: The wrapped estimator; not fitted.

    Example:
        >>> from sklearn.dummy import DummyClassifier
        >>> model = LabelsOnly(DummyClassifier(strategy="constant", constant=1))
        >>> model.fit(np.eye(2), [0, 1]).predict_log_proba(np.eye(2))
        array([[-50.,   0.],
               [-50.,   0.]])
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the estimator and its parameters, as ``sklearn.base.clone`` expects them."""
        inner = (
            self.estimator.get_params() if deep and hasattr(self.estimator, "get_params") else {}
        )
        return {
            "estimator": self.estimator,
            **{f"estimator__{name}": value for name, value in inner.items()},
        }

    def set_params(self, **changed: Any) -> "LabelsOnly":
        """Set the estimator, or parameters of it."""
        self.estimator = changed.pop("estimator", self.estimator)
        if changed:
            inner = {name.partition("__")[2]: value for name, value in changed.items()}
            self.estimator.set_params(**inner)
        return self

    def fit(self, X: Any, y: Any) -> "LabelsOnly":  # noqa: N803 - as in scikit-learn
        """Train a copy of the estimator."""
        self.fitted_ = clone_estimator(self.estimator).fit(X, y)
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:  # noqa: N803
        """Return the label of each record."""
        return self.fitted_.predict(X)

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return 1 for the predicted label and 0 for all others."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return ln p = 0 for the predicted label, and a very small p for all others."""
        return np.where(np.asarray(self.predict(X))[:, None] == self.classes_, 0.0, _NEVER)


def compare_answers(
    estimator: Any,
    X: Any,  # noqa: N803
    classes: Any,
    codes: IntArray,
    *,
    seed: int = 0,
) -> tuple[BoolArray, bool]:
    """Train on all records, and compare ``predict`` with the probabilities.

    Returns:
        The records at which ``predict`` does not name the likeliest class; and whether its labels
        reveal more than probabilities do. Labels from a threshold on the probability of one of two
        classes reveal no more.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = np.arange(8.0)[:, None], np.arange(8) % 2
        >>> compare_answers(LogisticRegression(), X, np.array([0, 1]), y)[0].any()
        np.False_
    """
    nowhere = np.zeros(codes.size, bool)
    inner = unwrap_pipeline(estimator, X, codes, preprocessing="fixed", seed=seed).estimator
    if family_of(inner) is not None or not hasattr(estimator, "predict"):
        return nowhere, False  # these are known to predict the likeliest class
    model = clone_with_seed(estimator, seed, overwrite=False)
    with seed_globals(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same as with each record left out, said there
        model.fit(X, classes[codes])
        logs = predict_logs(model, X, classes=classes)
        said = np.asarray(model.predict(X))
    second, first = np.sort(logs, axis=1)[:, -2:].T
    other = (classes[predict_class(logs)] != said) & (second < first)  # ties may go either way
    if classes.size > 2:
        return other, bool(other.any())
    odds, yes = logs[:, 1] - logs[:, 0], said == classes[1]
    if yes.all() or not yes.any():
        return other, False
    return other, bool(odds[yes].min() <= odds[~yes].max())
