"""Remove one record from least squares and ridge classifiers, by its leverage."""

from functools import cache
from typing import Any

import numpy as np
import scipy.linalg

from epsilometer.audits.classifier.leave_one_out.families import (
    Family,
    Removable,
    class_weights,
    refuse_weights,
)
from epsilometer.audits.classifier.leave_one_out.mapped import MappedModel, MappedRidge
from epsilometer.audits.classifier.leave_one_out.maps import Mapped
from epsilometer.audits.classifier.sklearn_models import decision_logs, read_matrix
from epsilometer.types import BoolArray, FloatArray, IntArray

_MOST_FEATURES = 4000  # a matrix of this order is factored
_LEAST = 1e-8  # 1 − leverage, below which the other records are fitted instead


class LeastSquares(Removable):
    r"""Regression on ±1 for each class, and its prediction without one record.

    Let :math:`h = s_t x_t^\top A^{-1} x_t` be the leverage and e the residual of record t in the
    model with all records. Without record t the prediction at x is lower by
    :math:`s_t\, x^\top A^{-1} x_t\, e / (1 - h)` (Sherman and Morrison). An intercept is a column
    without a penalty, which includes centring.

    Removing a record changes all "balanced" weights, in the same way for all records of a class.
    So each class has its own fit, with all records and the weights without one.

    Neither ``RidgeClassifier`` nor ``LinearRegression`` gives probabilities: ``decision_logs``
    derives them from the decision function. A ``LinearRegression`` is treated as
    ``RidgeClassifier(alpha=0)``.
    """

    caveats = (
        "The model has no probabilities: its decision function was read as log-odds, so values "
        "say how far decisions move.",
    )

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(read_matrix(X), y)
        self.penalty = float(getattr(estimator, "alpha", 0.0))
        self.intercept = bool(estimator.fit_intercept)
        self.class_weight = getattr(estimator, "class_weight", None)
        # Centred, since columns far from 0 are nearly collinear with the intercept
        self._centre = self.features.mean(axis=0) if self.intercept else 0.0
        self._design = self._add_intercept(self.features)
        self.targets = np.where(self.codes[:, None] == np.arange(self.classes.size), 1.0, -1.0)
        self._all = self._fit(self.counts)
        self._fit_class = cache(lambda label: self._fit(self.count_without(label)))

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        return self.to_logs(self._all.predict(self.read_queries(queries)), self.counts)

    def remove(self, label: int, records: IntArray, at: FloatArray | None) -> FloatArray:
        """Return ln p without records of one class."""
        fit = self._all
        if self.class_weight == "balanced":
            fit = self._fit_class(label)
        predicted = fit.remove(records, at)
        return self.to_logs(predicted, self.count_without(label))

    def read_queries(self, queries: Any) -> FloatArray:
        """Return the queries with a column for the intercept."""
        return self._add_intercept(super().read_queries(queries))

    def _fit(self, counts: FloatArray) -> "RidgeFit":
        weights = class_weights(self.class_weight, self.classes, counts)[self.codes]
        width = self.features.shape[1]
        return RidgeFit(self._design, self.targets, weights, self.penalty, penalised=width)

    def to_logs(self, predicted: FloatArray, counts: FloatArray) -> FloatArray:
        """Return ln p for predictions of all classes, given their numbers of records."""
        present = np.flatnonzero(counts)
        result = np.full(predicted.shape, -np.inf)
        if present.size == 1:
            result[:, present] = 0.0
        else:  # with two classes, scikit-learn has one column, the second class's
            columns = present[1] if present.size == 2 else present
            result[:, present] = decision_logs(predicted[:, columns])
        return result

    def _add_intercept(self, X: FloatArray) -> FloatArray:  # noqa: N803
        return np.column_stack([X - self._centre, np.ones(len(X))]) if self.intercept else X


class MappedLeastSquares(MappedModel):
    """Least squares behind a map: normal equations are solved for each record."""

    plain: LeastSquares

    def __init__(self, estimator: Any, mapped: Mapped, y: Any) -> None:
        plain = LeastSquares(estimator, mapped.map.compute(None), y)
        super().__init__(estimator, mapped, y, plain)
        self._solve = cache(self._weigh)

    def score(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return ln p at records without each."""
        balanced = self.plain.class_weight == "balanced"
        predicted, safe = self._solve(label if balanced else None).predict(records, weights)
        return self.plain.to_logs(predicted, self.count_without(label)), safe

    def _weigh(self, label: int | None) -> MappedRidge:
        """Return the regression with the weights that are right without a record of a class."""
        counts = self.counts if label is None else self.count_without(label)
        return MappedRidge(
            self.map,
            self.plain.targets,
            class_weights(self.plain.class_weight, self.classes, counts)[self.codes],
            penalty=self.plain.penalty,
            intercept=self.plain.intercept,
        )


class RidgeFit:
    """Weighted ridge regression with several targets, in coordinates that whiten its matrix."""

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
        self._penalty, self._penalised = penalty, penalised  # later columns have no penalty
        rows, values = self._augment(design, targets, weights)
        orthonormal, self._triangle = np.linalg.qr(rows)
        self._coefficients = orthonormal.T @ values

    def predict(self, at: FloatArray) -> FloatArray:
        """Return predictions with all records."""
        return self._rotate(at) @ self._coefficients

    def remove(self, records: IntArray, at: FloatArray | None) -> FloatArray:
        """Return predictions without each of the records, or without one at any features."""
        gone = self._rotate(self._design[records])
        turned = gone if at is None else self._rotate(at)
        errors = self._targets[records] - gone @ self._coefficients
        left = 1.0 - self._weights[records] * np.einsum("bd,bd->b", gone, gone)
        with np.errstate(divide="ignore", invalid="ignore"):  # at records that are refitted
            share = np.einsum("bd,bd->b", turned, np.broadcast_to(gone, turned.shape))
            share *= self._weights[records] / left
            predicted = turned @ self._coefficients - share[:, None] * errors
        for place in np.flatnonzero(left <= _LEAST):
            rows = slice(None) if at is not None else [place]
            design = self._design[records] if at is None else at
            predicted[rows] = design[rows] @ self._refit(int(records[place]))
        return np.asarray(predicted)

    def _rotate(self, at: FloatArray) -> FloatArray:
        turned: FloatArray = scipy.linalg.solve_triangular(self._triangle, at.T, trans="T").T
        return turned

    def _refit(self, record: int) -> FloatArray:
        """Return coefficients fitted to the other records: those of minimum norm if not unique."""
        others = np.arange(len(self._design)) != record
        features = self._design[others, : self._penalised]
        targets, weights = self._targets[others], self._weights[others]
        if self._penalised == self._design.shape[1]:
            return self._solve(features, targets, weights)
        centre, level = (np.average(a, axis=0, weights=weights) for a in (features, targets))
        slopes = self._solve(features - centre, targets - level, weights)
        return np.vstack([slopes, level - centre @ slopes])

    def _solve(self, *problem: FloatArray) -> FloatArray:
        coefficients: FloatArray = np.linalg.lstsq(*self._augment(*problem), rcond=None)[0]
        return coefficients

    def _augment(
        self, design: FloatArray, targets: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return ridge as ordinary least squares: the penalty is an extra record per column."""
        roots = np.sqrt(weights)[:, None]
        if not self._penalty:
            return roots * design, roots * targets
        more = np.sqrt(self._penalty) * np.eye(self._penalised, design.shape[1])
        nothing = np.zeros((self._penalised, targets.shape[1]))
        return np.vstack([roots * design, more]), np.vstack([roots * targets, nothing])


def _refuse(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    if estimator.positive:
        return "positive=True"
    if reason := refuse_weights(estimator):
        return reason
    if hasattr(X, "toarray"):
        return "sparse features"
    if np.shape(X)[1] > _MOST_FEATURES:
        return f"more than {_MOST_FEATURES:,} features"
    if not getattr(estimator, "alpha", 0.0):
        features = read_matrix(X)
        centre = features.mean(axis=0) if estimator.fit_intercept else 0.0
        if np.linalg.matrix_rank(features - centre) < features.shape[1]:
            return "no penalty, and columns that depend on each other"
    return None


RIDGE = Family(
    "least squares",
    LeastSquares,
    _refuse,
    fit_mapped=MappedLeastSquares,
)
