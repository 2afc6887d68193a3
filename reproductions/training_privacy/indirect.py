"""Section 6.1 of the training-privacy paper: a classifier that tells of a record at another query.

    python reproductions/training_privacy/indirect.py

It answers as Gaussian naive Bayes does, but at the origin it says whether record 0 was trained on.
PDTP asks about the record's own features and sees nothing; ``dtp_over`` with the origin among its
queries does.
"""

import json
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from sklearn.naive_bayes import GaussianNB

from epsilometer.audits.classifier.leave_one_out.pdtp import dtp_over, pdtp
from epsilometer.engine.engines import InProcess
from epsilometer.types import FloatArray


class Telling(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """c* of the paper: at the origin it is certain, and of what tells of the record."""

    def __init__(self, record: Any = None) -> None:
        self.record = record

    def fit(self, X: Any, y: Any) -> "Telling":  # noqa: N803
        """Learns as naive Bayes does, and looks for the record."""
        self.model_ = GaussianNB().fit(X, y)
        self.classes_ = self.model_.classes_
        self.there_ = bool((np.asarray(X) == np.asarray(self.record)).all(axis=1).any())
        return self

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Of naive Bayes, but at the origin."""
        found = np.array(self.model_.predict_proba(X))
        origin = (np.asarray(X) == 0).all(axis=1)
        found[origin] = np.eye(self.classes_.size)[-1 if self.there_ else 0]
        return found

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The likeliest class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def measured() -> dict[str, float]:
    """Risk of record 0 of iris by direct and by indirect queries, honest and telling."""
    X, y = load_iris(return_X_y=True)  # noqa: N806
    target, origin = np.array([0]), np.zeros((1, X.shape[1]))
    found = {}
    for name, model in (("honest", GaussianNB()), ("telling", Telling(X[0]))):
        direct = pdtp(model, X, y, records=target, engine=InProcess())
        indirect = dtp_over(model, X, y, origin, records=target, engine=InProcess())
        found[f"{name}: PDTP"] = float(direct.values[0])
        found[f"{name}: DTP at the origin"] = float(indirect.values[0])
        found[f"{name}: DTP at the origin, binned"] = float(indirect.binned[0])
    return found


if __name__ == "__main__":
    print(json.dumps(measured()))
