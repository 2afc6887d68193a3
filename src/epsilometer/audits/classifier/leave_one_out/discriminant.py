"""Linear and quadratic discriminant analysis without one record: means and covariances move.

Taking x out of a class of n records with mean m moves its mean by −(x − m)/(n − 1) and takes
n/(n − 1) (x − m)(x − m)ᵀ from its scatter: a change of rank one, whose inverse and determinant are
known (Sherman and Morrison). Where so little of the covariance is left in some direction that
scikit-learn might drop that direction, or rounding would show, the record is refitted instead.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special
from numpy.typing import NDArray

from epsilometer._extras import needs
from epsilometer.audits.classifier.leave_one_out.decision import log_proba_of
from epsilometer.audits.classifier.leave_one_out.estimators import (
    is_exactly,
    labels,
    matrix,
    with_features,
)
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_MODULE = "sklearn.discriminant_analysis"
_MOST = 10**8  # numbers in all covariances
_LEAST = 1e-9  # of an eigenvalue of a correlation matrix: below it rounding shows


@dataclass(frozen=True)
class Linear:
    """``LinearDiscriminantAnalysis`` without shrinkage, with any of its solvers."""

    name: str = "linear discriminant analysis"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``LinearDiscriminantAnalysis``."""
        return is_exactly(estimator, _MODULE, "LinearDiscriminantAnalysis")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Other covariances, collinear features, and priors given for a class that can vanish."""
        _, codes = labels(y)
        if reason := _no_covariances(estimator, X, codes):
            return reason
        if estimator.priors is not None and np.bincount(codes).min() == 1:
            return "priors are given, and a class has too few records"
        features = matrix(X)
        spread = _Moments(features, codes).spread
        rounded = (spread > 0) & (spread <= _LEAST * np.abs(features).max(axis=0))
        if rounded.any() or not spread.any():
            return "features that are constant within classes, but for rounding"
        try:
            model = self.fit(estimator, X, y)
        except scipy.linalg.LinAlgError:
            return "collinear features"
        return model.unsafe()

    def fit(self, estimator: Any, X: Any, y: Any) -> "LinearMoments":  # noqa: N803
        """Means and covariances of all records."""
        classes, codes = labels(y)
        return LinearMoments(estimator, matrix(X), codes, classes)


@dataclass(frozen=True)
class Quadratic:
    """``QuadraticDiscriminantAnalysis`` with the empirical covariances and ``reg_param``."""

    name: str = "quadratic discriminant analysis"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``QuadraticDiscriminantAnalysis``."""
        return is_exactly(estimator, _MODULE, "QuadraticDiscriminantAnalysis")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Other covariances, and classes that scikit-learn may not fit without a record."""
        _, codes = labels(y)
        if reason := _no_covariances(estimator, X, codes):
            return reason
        if np.bincount(codes).min() <= 2:
            return "a class of too few records"
        try:
            model = self.fit(estimator, X, y)
        except scipy.linalg.LinAlgError:
            return "collinear features within a class"
        return model.unsafe()

    def fit(self, estimator: Any, X: Any, y: Any) -> "QuadraticMoments":  # noqa: N803
        """Means and covariances of each class."""
        classes, codes = labels(y)
        return QuadraticMoments(estimator, matrix(X), codes, classes)


def _no_covariances(estimator: Any, X: Any, codes: IntArray) -> str | None:  # noqa: N803
    """Why covariances of classes are not what is to be kept, or cannot be."""
    other = ("shrinkage", "covariance_estimator")  # which old versions do not have
    if any(getattr(estimator, name, None) is not None for name in other):
        return "another covariance than the empirical one"
    if np.bincount(codes).size * np.shape(X)[1] ** 2 > _MOST:
        return "covariances too large to be kept for each class"
    return None


class _Discriminant:
    """What both have in common: rows of ln p, and records that have to be refitted."""

    def __init__(
        self,
        estimator: Any,
        X: FloatArray,  # noqa: N803
        codes: IntArray,
        classes: NDArray[Any],
    ) -> None:
        self.classes = classes
        self._estimator, self._records, self._codes = estimator, X, codes
        self._moments = _Moments(X, codes)
        given = estimator.priors
        self._priors = None if given is None else np.asarray(given, np.float64)
        if self._priors is not None and self._priors.shape != classes.shape:
            raise InvalidArgument(
                f"Expected {classes.size} priors, one for each class, got {self._priors.size}."
            )

    def _log_priors(self, gone: int | None = None) -> FloatArray:
        """Up to a constant: ln of the counts, or of the priors that were given."""
        counts = self._moments.counts.copy()
        if gone is not None:
            counts[gone] -= 1
        with np.errstate(divide="ignore"):  # a class that is gone, or a prior of 0
            return np.log(counts if self._priors is None else self._priors)

    def _refitted(self, record: int, at: FloatArray) -> FloatArray:
        with needs("sklearn", extra="sklearn"):
            from sklearn.base import clone
        kept = np.arange(len(self._codes)) != record
        model = clone(self._estimator).fit(self._records[kept], self._codes[kept])
        result = np.full((len(at), self.classes.size), -np.inf)
        result[:, model.classes_] = log_proba_of(model.decision_function(at))
        return result

    def _queries(self, queries: Any) -> FloatArray:
        return with_features(matrix(queries, name="queries"), self._records.shape[1])


class LinearMoments(_Discriminant):
    """Means and the pooled covariance, and what they are without one record.

    With priors that are given, the solvers "lsqr" and "eigen" weigh the classes' covariances by
    them; a record then also changes the weight of all others of its class. That is the same for
    every record of a class, so each class has its own covariance to start from.
    """

    def __init__(
        self,
        estimator: Any,
        X: FloatArray,  # noqa: N803
        codes: IntArray,
        classes: NDArray[Any],
    ) -> None:
        super().__init__(estimator, X, codes, classes)
        self._columns = np.flatnonzero(self._moments.spread)
        self._threshold = _threshold(estimator)
        self._by_class = estimator.solver != "svd" and self._priors is not None
        self._all = self._ellipsoid(None)
        self._ellipsoids: dict[int, _Ellipsoid] = {}

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        at = self._turned(self._all, self._queries(queries))
        means = self._all.turn(self._moments.means[:, self._columns])
        squares = np.stack([((at - mean) ** 2).sum(axis=1) for mean in means], axis=1)
        return _log_softmax(self._log_priors() - 0.5 * squares)

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        records = np.asarray(records, np.int64)
        result = np.empty((len(records), self.classes.size))
        for c in range(self.classes.size):
            places = np.flatnonzero(self._codes[records] == c)
            if places.size:
                result[places] = self._own(c, records[places])
        return result

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        X = self._queries(queries)  # noqa: N806
        c = int(self._codes[record])
        start = self._start(c)
        means = start.turn(self._moments.means[:, self._columns])
        away = start.turn(self._moments.within[[record]][:, self._columns])[0]
        share = self._share(c)
        left = 1.0 - share * float(away @ away)
        if start.smallest * left <= self._threshold:
            return self._refitted(record, X)
        means[c] -= away / max(1.0, self._moments.counts[c] - 1)
        at = self._turned(start, X)
        squares = np.empty((len(X), self.classes.size))
        for k, mean in enumerate(means):
            from_mean = at - mean
            lengths, along = (from_mean**2).sum(axis=1), from_mean @ away
            squares[:, k] = lengths + share / left * along**2
        return _log_softmax(self._log_priors(c) - 0.5 * squares)

    def unsafe(self) -> str | None:
        """Why scikit-learn might drop directions that are kept here."""
        if self._all.smallest <= self._threshold:
            return "collinear features"
        priors = self._moments.counts if self._priors is None else self._priors
        priors = priors / priors.sum()
        means = self._moments.means - priors @ self._moments.means
        turned = np.sqrt(priors)[:, None] * self._all.turn(means[:, self._columns])
        sizes = np.linalg.svd(turned, compute_uv=False)[: self.classes.size - 1]
        if self._estimator.solver == "svd" and sizes[-1] <= 10 * self._estimator.tol * sizes[0]:
            return "means of classes that lie nearly on a plane"
        return None

    def _own(self, c: int, records: IntArray) -> FloatArray:
        start, share = self._start(c), self._share(c)
        means = start.turn(self._moments.means[:, self._columns])
        away = start.turn(self._moments.within[records][:, self._columns])
        left = 1.0 - share * (away**2).sum(axis=1)
        safe = start.smallest * left > self._threshold
        # x − m of another class is (x − own mean) + (own mean − m): no differences of far points
        apart = means[c] - means
        lengths = (apart**2).sum(axis=1) + 2 * away @ apart.T + (away**2).sum(axis=1)[:, None]
        along = away @ apart.T + (away**2).sum(axis=1)[:, None]
        moved = self._moments.counts[c] / max(1.0, self._moments.counts[c] - 1)
        lengths[:, c] *= moved**2
        along[:, c] *= moved
        with np.errstate(divide="ignore", invalid="ignore"):  # those that are refitted
            squares = lengths + (share / left)[:, None] * along**2
            result = _log_softmax(self._log_priors(c) - 0.5 * squares)
        for place in np.flatnonzero(~safe):
            record = int(records[place])
            result[place] = self._refitted(record, self._records[[record]])[0]
        return result

    def _start(self, c: int) -> "_Ellipsoid":
        if c not in self._ellipsoids:
            self._ellipsoids[c] = self._ellipsoid(c)
        return self._ellipsoids[c]

    def _ellipsoid(self, gone: int | None) -> "_Ellipsoid":
        """Of all records, with the divisors they have when one of class ``gone`` is not there."""
        counts = self._moments.counts.copy()
        if gone is not None:
            counts[gone] -= 1
        weights = np.full(counts.size, 1.0 / self._divisor(counts))
        if self._by_class and self._priors is not None:
            weights = self._priors / self._priors.sum() / counts
        covariance = np.tensordot(weights, self._moments.scatter, axes=1)
        return _Ellipsoid(covariance[np.ix_(self._columns, self._columns)])

    def _share(self, c: int) -> float:
        """What of (x − m)(x − m)ᵀ is taken from the covariance."""
        counts = self._moments.counts.copy()
        if counts[c] == 1:
            return 0.0
        scatter = counts[c] / (counts[c] - 1)
        counts[c] -= 1
        if self._by_class and self._priors is not None:
            return float(scatter * self._priors[c] / self._priors.sum() / counts[c])
        return float(scatter / self._divisor(counts))

    def _divisor(self, counts: FloatArray) -> float:
        unbiased = self._estimator.solver == "svd" and not _divides_by_all("Linear")
        return float(counts.sum() - unbiased * np.count_nonzero(counts))

    def _turned(self, ellipsoid: "_Ellipsoid", X: FloatArray) -> FloatArray:  # noqa: N803
        return ellipsoid.turn((X - self._moments.centre)[:, self._columns])


class QuadraticMoments(_Discriminant):
    """Means and covariances of each class; without a record only its own class's change."""

    def __init__(
        self,
        estimator: Any,
        X: FloatArray,  # noqa: N803
        codes: IntArray,
        classes: NDArray[Any],
    ) -> None:
        super().__init__(estimator, X, codes, classes)
        eigen = getattr(estimator, "solver", "svd") == "eigen"
        self._ridge = 0.0 if eigen else float(estimator.reg_param)
        self._unbiased = not eigen and not _divides_by_all("Quadratic")
        self._least = 2.0 * float(estimator.tol)  # eigenvalues safely above what it gives up at
        self.ellipsoids = [self._ellipsoid(c, 0) for c in range(classes.size)]

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        return _log_softmax(self._scores(self._queries(queries)) + self._log_priors())

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        records = np.asarray(records, np.int64)
        result = self._scores(self._records[records])
        for c in range(self.classes.size):
            places = np.flatnonzero(self._codes[records] == c)
            if not places.size:
                continue
            start, share = self._ellipsoid(c, 1), self._share(c)
            away = start.turn(self._moments.within[records[places]])
            lengths = (away**2).sum(axis=1)
            left = 1.0 - share * lengths
            moved = self._moments.counts[c] / (self._moments.counts[c] - 1)
            with np.errstate(divide="ignore", invalid="ignore"):  # those that are refitted
                squares = moved**2 * lengths / left
                result[places, c] = -0.5 * (squares + start.log_det + np.log(left))
            result[places] = _log_softmax(result[places] + self._log_priors(c))
            for place in places[~self._safe(start, left)]:
                record = int(records[place])
                result[place] = self._refitted(record, self._records[[record]])[0]
        return result

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        X = self._queries(queries)  # noqa: N806
        c = int(self._codes[record])
        start, share = self._ellipsoid(c, 1), self._share(c)
        away = start.turn(self._moments.within[[record]])[0]
        left = 1.0 - share * float(away @ away)
        if not self._safe(start, left):
            return self._refitted(record, X)
        mean = self._moments.means[c] + self._moments.centre
        from_mean = start.turn(X - mean) + away / (self._moments.counts[c] - 1)
        squares = (from_mean**2).sum(axis=1) + share / left * (from_mean @ away) ** 2
        scores = self._scores(X)
        scores[:, c] = -0.5 * (squares + start.log_det + np.log(left))
        return _log_softmax(scores + self._log_priors(c))

    def unsafe(self) -> str | None:
        """Why scikit-learn might not fit what is fitted here."""
        if min(one.least for one in self.ellipsoids) <= self._least:
            return "collinear features within a class"
        if min(one.smallest for one in self.ellipsoids) <= _LEAST:
            return "features within a class that are collinear but for rounding"
        return None

    def _safe(self, start: "_Ellipsoid", left: Any) -> Any:
        """An eigenvalue of what is left is at least ``left`` times the smallest there was."""
        return (start.least * left > self._least) & (start.smallest * left > _LEAST)

    def _scores(self, X: FloatArray) -> FloatArray:  # noqa: N803
        scores = np.empty((len(X), self.classes.size))
        for c, ellipsoid in enumerate(self.ellipsoids):
            turned = ellipsoid.turn(X - self._moments.centre - self._moments.means[c])
            scores[:, c] = -0.5 * ((turned**2).sum(axis=1) + ellipsoid.log_det)
        return scores

    def _ellipsoid(self, c: int, fewer: int) -> "_Ellipsoid":
        divisor = self._moments.counts[c] - fewer - self._unbiased
        covariance = (1 - self._ridge) / divisor * self._moments.scatter[c]
        return _Ellipsoid(covariance + self._ridge * np.eye(len(covariance)))

    def _share(self, c: int) -> float:
        count = self._moments.counts[c]
        return float((1 - self._ridge) * count / (count - 1) / (count - 1 - self._unbiased))


class _Moments:
    """Counts, means, deviations and scatter of each class, around the mean of all records."""

    def __init__(self, X: FloatArray, codes: IntArray) -> None:  # noqa: N803
        self.centre = X.mean(axis=0)
        self.counts = np.bincount(codes).astype(np.float64)
        centred = X - self.centre
        groups = [codes == c for c in range(self.counts.size)]
        self.means = np.stack([centred[group].mean(axis=0) for group in groups])
        self.within = centred - self.means[codes]
        self.scatter = np.stack([self.within[g].T @ self.within[g] for g in groups])
        # As scikit-learn sums, which then asks whether a feature's spread is exactly 0
        sums = np.zeros_like(self.means)
        np.add.at(sums, codes, X)
        self.spread = (X - (sums / self.counts[:, None])[codes]).std(axis=0)


class _Ellipsoid:
    """A covariance matrix C by its Cholesky factor L: turned points have lengths xᵀC⁻¹x."""

    def __init__(self, covariance: FloatArray) -> None:
        scales = np.sqrt(np.diag(covariance))
        if not scales.all():
            raise scipy.linalg.LinAlgError("a feature without variance")
        correlation = covariance / np.outer(scales, scales)
        self.smallest = float(np.linalg.eigvalsh(correlation)[0])  # of the correlations
        self.least = float(np.linalg.eigvalsh(covariance)[0])  # of the covariances
        self._scales = scales
        self._factor = scipy.linalg.cholesky(correlation, lower=True)
        self.log_det = 2.0 * float(np.log(np.diag(self._factor)).sum() + np.log(scales).sum())

    def turn(self, at: FloatArray) -> FloatArray:
        """L⁻¹ applied to each row."""
        turned: FloatArray = scipy.linalg.solve_triangular(
            self._factor, (at / self._scales).T, lower=True
        ).T
        return turned


@cache
def _divides_by_all(kind: str) -> bool:
    """Whether this scikit-learn divides scatter by n; it was n − classes (or n − 1) before."""
    with needs("sklearn", extra="sklearn"):
        import sklearn.discriminant_analysis
    estimator = getattr(sklearn.discriminant_analysis, f"{kind}DiscriminantAnalysis")()
    fitted = estimator.fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    return bool(np.allclose(np.ravel(fitted.scalings_), 1.0))


def _threshold(estimator: Any) -> float:
    """Eigenvalues of the correlations within classes that are safely kept by scikit-learn."""
    by_rank = float(estimator.tol) ** 2 if estimator.solver == "svd" else 0.0
    return max(2.0 * by_rank, _LEAST)


def _log_softmax(scores: FloatArray) -> FloatArray:
    result: FloatArray = scipy.special.log_softmax(scores, axis=1)
    return result
