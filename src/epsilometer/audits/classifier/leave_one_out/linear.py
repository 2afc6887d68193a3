"""Least squares and ridge as classifiers, without one record: by its leverage."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from epsilometer.audits.classifier.leave_one_out.decision import log_proba_of
from epsilometer.audits.classifier.leave_one_out.estimators import (
    is_exactly,
    labels,
    matrix,
    with_features,
)
from epsilometer.audits.classifier.leave_one_out.weighting import are_known, class_weights
from epsilometer.types import FloatArray, IntArray

_MODULE = "sklearn.linear_model"
_MOST_FEATURES = 4000  # the square of it is factored
_LEAST = 1e-8  # of 1 − leverage; below it the other records are fitted instead


@dataclass(frozen=True)
class Ridge:
    """``RidgeClassifier``, and ``LinearRegression`` of the classes' ±1 indicators.

    Neither gives probabilities: ``decision.log_proba_of`` reads them off the decision function.
    A ``LinearRegression`` is taken as what ``RidgeClassifier(alpha=0)`` fits.
    """

    name: str = "least squares"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``RidgeClassifier`` or ``LinearRegression``."""
        kinds = ("RidgeClassifier", "LinearRegression")
        return any(is_exactly(estimator, _MODULE, kind) for kind in kinds)

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Positive coefficients, sparse features, and dependent columns without a penalty."""
        if estimator.positive:
            return "positive=True"
        if not are_known(getattr(estimator, "class_weight", None)):
            return "a class_weight that is not known here"
        if hasattr(X, "toarray"):
            return "sparse features"
        if np.shape(X)[1] > _MOST_FEATURES:
            return f"more than {_MOST_FEATURES:,} features"
        if not getattr(estimator, "alpha", 0.0):
            features = matrix(X)
            centre = features.mean(axis=0) if estimator.fit_intercept else 0.0
            if np.linalg.matrix_rank(features - centre) < features.shape[1]:
                return "no penalty, and columns that depend on each other"
        return None

    def fit(self, estimator: Any, X: Any, y: Any) -> "LeastSquares":  # noqa: N803
        """The minimiser with all records; the solver does not matter."""
        classes, codes = labels(y)
        return LeastSquares(
            matrix(X),
            codes,
            classes,
            penalty=float(getattr(estimator, "alpha", 0.0)),
            intercept=bool(estimator.fit_intercept),
            class_weight=getattr(estimator, "class_weight", None),
        )


class LeastSquares:
    r"""Regression on ±1 for each class, and what it predicts without one record.

    With leverage :math:`h = s_t x_t^\top A^{-1} x_t` and residual e, all of the model with every
    record, the prediction at x without record t is lower by
    :math:`s_t\, x^\top A^{-1} x_t\, e / (1 - h)` (Sherman and Morrison). An intercept is a column
    without a penalty, so that centring is part of it.

    "balanced" weights of everybody change with a record, in the same way for all records of a
    class: each class has its own fit, with all records and the weights without one.
    """

    caveats = (
        "The model has no probabilities: its decision function was read as log-odds, so values "
        "say how far decisions move.",
    )

    def __init__(
        self,
        X: FloatArray,  # noqa: N803
        codes: IntArray,
        classes: NDArray[Any],
        *,
        penalty: float,
        intercept: bool,
        class_weight: Any,
    ) -> None:
        self.classes = classes
        self._codes = codes
        self._centre = X.mean(axis=0) if intercept else np.zeros(X.shape[1])  # for the rounding
        self._intercept, self._penalty, self._class_weight = intercept, penalty, class_weight
        self._design = self._prepared(X)
        self._targets = np.where(codes[:, None] == np.arange(classes.size), 1.0, -1.0)
        self._counts = np.bincount(codes).astype(np.float64)
        self._all = self._fit(self._counts)
        self._fits: dict[int, _Fit] = {}

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        return self._log_proba(self._all.predict(self._queries(queries)), self._counts)

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        records = np.asarray(records, np.int64)
        result = np.empty((len(records), self.classes.size))
        for c in range(self.classes.size):
            places = np.flatnonzero(self._codes[records] == c)
            if places.size:
                predicted = self._fit_without(c).own(records[places])
                result[places] = self._log_proba(predicted, self._counts_without(c))
        return result

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        c = int(self._codes[record])
        predicted = self._fit_without(c).without(record, self._queries(queries))
        return self._log_proba(predicted, self._counts_without(c))

    def _counts_without(self, c: int) -> FloatArray:
        counts = self._counts.copy()
        counts[c] -= 1
        return counts

    def _fit_without(self, c: int) -> "_Fit":
        """All records with the weights they have when one of class c is gone."""
        if self._class_weight != "balanced":
            return self._all
        if c not in self._fits:
            self._fits[c] = self._fit(self._counts_without(c))
        return self._fits[c]

    def _fit(self, counts: FloatArray) -> "_Fit":
        weights = class_weights(self._class_weight, self.classes, counts)[self._codes]
        return _Fit(
            self._design, self._targets, weights, self._penalty, penalised=len(self._centre)
        )

    def _log_proba(self, predicted: FloatArray, counts: FloatArray) -> FloatArray:
        present = np.flatnonzero(counts)
        result = np.full(predicted.shape, -np.inf)
        if present.size == 1:
            result[:, present] = 0.0
        elif present.size == 2:  # scikit-learn has one column then, the second class's
            result[:, present] = log_proba_of(predicted[:, present[1]])
        else:
            result[:, present] = log_proba_of(predicted[:, present])
        return result

    def _queries(self, queries: Any) -> FloatArray:
        return self._prepared(with_features(matrix(queries, name="queries"), len(self._centre)))

    def _prepared(self, X: FloatArray) -> FloatArray:  # noqa: N803
        return np.column_stack([X - self._centre, np.ones(len(X))]) if self._intercept else X


class _Fit:
    """Weighted ridge of several targets, in coordinates in which its normal matrix is 1."""

    def __init__(
        self,
        design: FloatArray,
        targets: FloatArray,
        weights: FloatArray,
        penalty: float,
        *,
        penalised: int,
    ) -> None:
        self._design, self._targets, self._weights = design, targets, weights
        self._penalty, self._penalised = penalty, penalised  # columns after those have no penalty
        rows, values = self._rows(design, targets, weights)
        orthonormal, self._triangle = np.linalg.qr(rows)
        self._coefficients = orthonormal.T @ values

    def predict(self, at: FloatArray) -> FloatArray:
        """With all records."""
        return self._turned(at) @ self._coefficients

    def own(self, records: IntArray) -> FloatArray:
        """At each record, without it."""
        at = self._turned(self._design[records])
        predicted = at @ self._coefficients
        leverage = self._weights[records] * np.einsum("bd,bd->b", at, at)
        left = 1.0 - leverage
        errors = self._targets[records] - predicted
        safe = left > _LEAST
        predicted[safe] -= (leverage[safe] / left[safe])[:, None] * errors[safe]
        for place in np.flatnonzero(~safe):
            record = int(records[place])
            predicted[place] = self._design[record] @ self._refitted(record)
        return predicted

    def without(self, record: int, at: FloatArray) -> FloatArray:
        """At any features, without a record."""
        itself = self._turned(self._design[[record]])[0]
        left = 1.0 - self._weights[record] * float(itself @ itself)
        if left <= _LEAST:
            return at @ self._refitted(record)
        error = self._targets[record] - itself @ self._coefficients
        turned = self._turned(at)
        share = (turned @ itself) * (self._weights[record] / left)
        result: FloatArray = turned @ self._coefficients - share[:, None] * error
        return result

    def _turned(self, at: FloatArray) -> FloatArray:
        turned: FloatArray = scipy.linalg.solve_triangular(self._triangle, at.T, trans="T").T
        return turned

    def _refitted(self, record: int) -> FloatArray:
        """Coefficients of the other records: the shortest, where a column lives by this one."""
        kept = np.arange(len(self._design)) != record
        features = self._design[kept, : self._penalised]
        targets, weights = self._targets[kept], self._weights[kept]
        if self._penalised == self._design.shape[1]:
            return self._shortest(features, targets, weights)
        centre, level = (np.average(a, axis=0, weights=weights) for a in (features, targets))
        slopes = self._shortest(features - centre, targets - level, weights)
        return np.vstack([slopes, level - centre @ slopes])

    def _shortest(
        self, features: FloatArray, targets: FloatArray, weights: FloatArray
    ) -> FloatArray:
        rows, values = self._rows(features, targets, weights)
        coefficients: FloatArray = np.linalg.lstsq(rows, values, rcond=None)[0]
        return coefficients

    def _rows(
        self, design: FloatArray, targets: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Ridge as plain least squares: the penalty is a record of its own for each column."""
        roots = np.sqrt(weights)[:, None]
        if not self._penalty:
            return roots * design, roots * targets
        more = np.sqrt(self._penalty) * np.eye(self._penalised, design.shape[1])
        nothing = np.zeros((self._penalised, targets.shape[1]))
        return np.vstack([roots * design, more]), np.vstack([roots * targets, nothing])
