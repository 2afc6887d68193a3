"""Gaussian naive Bayes without one record: moments are taken back instead of fitted again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.leave_one_out.estimators import (
    is_exactly,
    labels,
    matrix,
    with_features,
)
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_MODULE = "sklearn.naive_bayes"
_LOST = 0.1  # a sum of squares of which less is left is computed afresh; see GaussianMoments
_BLOCK = 1 << 15  # numbers of a working array: it stays in a processor's cache


def normalised(joint: FloatArray) -> FloatArray:
    """ln p(class | x) from ln p(class, x); a row of nan where every class has probability 0."""
    top = joint.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # −inf − −inf: nan is the answer
        shifted = joint - top
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


@dataclass(frozen=True)
class Priors:
    """Of the classes: given, or counted, or the same for all; ln p but for a common constant."""

    given: FloatArray | None
    counted: bool

    @classmethod
    def of(cls, given: Any, classes: NDArray[Any], *, counted: bool = True) -> "Priors":
        """From what an estimator was given for them."""
        if given is None:
            return cls(None, counted)
        priors = np.asarray(given, np.float64)
        if priors.shape != classes.shape:
            raise InvalidArgument(
                f"Expected {classes.size} priors, one for each class, got {priors.size}."
            )
        return cls(priors, counted=False)

    def log(self, counts: FloatArray) -> FloatArray:
        """−inf for a class without records: it is not a class of the model any more."""
        weights = counts if self.counted else np.ones_like(counts)
        if self.given is not None:
            weights = weights * self.given
        with np.errstate(divide="ignore"):
            return np.log(np.where(counts > 0, weights, 0.0))


@dataclass(frozen=True)
class Gaussian:
    """``sklearn.naive_bayes.GaussianNB``."""

    name: str = "Gaussian naive Bayes"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``GaussianNB``."""
        return is_exactly(estimator, _MODULE, "GaussianNB")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Nothing."""
        return None

    def fit(self, estimator: Any, X: Any, y: Any) -> "GaussianMoments":  # noqa: N803
        """Means and variances of every class."""
        classes, codes = labels(y)
        return GaussianMoments(
            matrix(X),
            codes,
            classes,
            priors=Priors.of(estimator.priors, classes),
            smoothing=float(estimator.var_smoothing),
        )


class GaussianMoments:
    r"""Moments of every class and feature, and what they are without one record.

    Without :math:`x` the sum of squares is :math:`S - \frac{n}{n-1}(x - \mu)^2`. Where a record
    makes up more than nine tenths of S nothing would be left of the difference but
    rounding; from three records on that can only be the one farthest from the mean,
    and the sum without *that* one is computed afresh for every class and feature.

    The smoothing adds a share of the largest variance of a feature over *all* records, which
    changes with each of them too.
    """

    def __init__(
        self,
        X: FloatArray,  # noqa: N803
        codes: IntArray,
        classes: NDArray[Any],
        *,
        priors: Priors,
        smoothing: float,
    ) -> None:
        self.classes = classes
        self._records, self._codes = X, codes
        self._priors, self._smoothing = priors, smoothing
        self._moments = [_Moments(X[codes == c]) for c in range(classes.size)]
        self._counts = np.bincount(codes).astype(np.float64)
        self._mean = np.stack([one.mean for one in self._moments])
        self._variance = np.stack([one.squares / one.count for one in self._moments])
        everyone = _Moments(X)
        self._epsilon = smoothing * float((everyone.squares / everyone.count).max())
        self._everyone = everyone

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        X = self._queries(queries)  # noqa: N806
        return normalised(self._joint(X, self._epsilon) + self._priors.log(self._counts))

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        block = max(1, _BLOCK // self._mean.shape[1])
        parts = [
            self._own(np.asarray(records[start : start + block], np.int64))
            for start in range(0, len(records), block)
        ]
        return np.concatenate(parts) if parts else np.empty((0, self.classes.size))

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        X = self._queries(queries)  # noqa: N806
        at, own = self._records[record], int(self._codes[record])
        epsilon = self._epsilon_without(at[None])[0]
        joint = self._joint(X, float(epsilon))
        counts = self._counts.copy()
        counts[own] -= 1
        if counts[own]:
            mean, squares = self._moments[own].without(at[None])
            joint[:, own] = _log_density(X, mean, squares / counts[own] + epsilon)
        return normalised(joint + self._priors.log(counts))

    def _own(self, records: IntArray) -> FloatArray:
        X, codes = self._records[records], self._codes[records]  # noqa: N806
        epsilon = self._epsilon_without(X)
        joint = self._joint(X, epsilon[:, None])
        counts = np.repeat(self._counts[None], len(records), axis=0)
        counts[np.arange(len(records)), codes] -= 1
        for c, moments in enumerate(self._moments):
            rows = np.flatnonzero(codes == c)
            if rows.size and moments.count > 1:
                mean, squares = moments.without(X[rows])
                variance = squares / (moments.count - 1) + epsilon[rows, None]
                joint[rows, c] = _log_density(X[rows], mean, variance)
        return normalised(joint + self._priors.log(counts))

    def _joint(self, X: FloatArray, epsilon: FloatArray | float) -> FloatArray:  # noqa: N803
        joint = np.empty((len(X), self.classes.size))
        for c in range(self.classes.size):
            joint[:, c] = _log_density(X, self._mean[c], self._variance[c] + epsilon)
        return joint

    def _epsilon_without(self, X: FloatArray) -> FloatArray:  # noqa: N803
        _, squares = self._everyone.without(X)
        largest: FloatArray = squares.max(axis=1)
        return self._smoothing * largest / (self._everyone.count - 1)

    def _queries(self, queries: Any) -> FloatArray:
        return with_features(matrix(queries, name="queries"), self._mean.shape[1])


class _Moments:
    """Means and sums of squares of some records, and without one of them."""

    def __init__(self, X: FloatArray) -> None:  # noqa: N803
        self.count = len(X)
        self.mean = X.mean(axis=0)
        deviations = X - self.mean
        self.squares = (deviations**2).sum(axis=0)
        self._left = np.zeros(X.shape[1])  # sums of squares without the farthest from the mean
        if self.count > 2:
            place = np.abs(deviations).argmax(axis=0)
            columns = np.arange(X.shape[1])
            deviations[place, columns] = 0.0
            shift = deviations.sum(axis=0) / (self.count - 1)
            deviations -= shift
            deviations[place, columns] = 0.0
            self._left = (deviations**2).sum(axis=0)

    def without(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:  # noqa: N803
        """Means and sums of squares without each of the rows of X, which are among the records."""
        if self.count <= 2:  # one record is left: the other one
            return 2 * self.mean - X, np.zeros_like(X)
        deviations = X - self.mean
        squares = self.squares - deviations**2 * (self.count / (self.count - 1))
        lost = squares < _LOST * self.squares
        if lost.any():
            np.copyto(squares, self._left, where=lost)
        return self.mean - deviations / (self.count - 1), squares


def _log_density(X: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:  # noqa: N803
    """ln of independent normal densities; variances are the same for all rows, or one row each."""
    squares = X - mean
    squares *= squares
    with np.errstate(divide="ignore", invalid="ignore"):  # no smoothing, and a constant feature
        if variance.ndim == 1:
            total = squares @ (1 / variance) + np.log(variance).sum()
        else:
            squares /= variance
            squares += np.log(variance)
            total = squares @ np.ones(X.shape[1])  # faster than a sum along rows
    result: FloatArray = -0.5 * (total + X.shape[1] * np.log(2 * np.pi))
    return result
