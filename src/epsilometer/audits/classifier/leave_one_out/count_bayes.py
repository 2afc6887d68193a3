"""Naive Bayes of counts without one record: its counts are taken back instead of counted again.

Taking record t out changes the counts of its own class (for complement naive Bayes: of all others)
at the features it has, and sums over features; so t costs as much as it has features.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from epsilometer.audits.classifier.leave_one_out.category_bayes import (
    CategoryCounts,
    parts,
    smoothing,
)
from epsilometer.audits.classifier.leave_one_out.estimators import (
    is_exactly,
    labels,
    matrix,
    with_features,
)
from epsilometer.audits.classifier.leave_one_out.naive_bayes import Priors, normalised
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_MODULE = "sklearn.naive_bayes"


@dataclass(frozen=True)
class Multinomial:
    """``sklearn.naive_bayes.MultinomialNB``."""

    name: str = "multinomial naive Bayes"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``MultinomialNB``."""
        return is_exactly(estimator, _MODULE, "MultinomialNB")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """No smoothing."""
        return _unsmoothed(estimator)

    def fit(self, estimator: Any, X: Any, y: Any) -> "CountModel":  # noqa: N803
        """Sums of every feature in every class."""
        rows = _counts(X)
        return _count_model(
            estimator, rows, y, _MultinomialLaw(smoothing(estimator, rows.shape[1]))
        )


@dataclass(frozen=True)
class Complement:
    """``sklearn.naive_bayes.ComplementNB``."""

    name: str = "complement naive Bayes"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``ComplementNB``."""
        return is_exactly(estimator, _MODULE, "ComplementNB")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """No smoothing."""
        return _unsmoothed(estimator)

    def fit(self, estimator: Any, X: Any, y: Any) -> "CountModel":  # noqa: N803
        """Sums of every feature outside every class."""
        rows = _counts(X)
        law = _ComplementLaw(smoothing(estimator, rows.shape[1]), norm=bool(estimator.norm))
        return _count_model(estimator, rows, y, law)


@dataclass(frozen=True)
class Bernoulli:
    """``sklearn.naive_bayes.BernoulliNB``."""

    name: str = "Bernoulli naive Bayes"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``BernoulliNB``."""
        return is_exactly(estimator, _MODULE, "BernoulliNB")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """No smoothing, one for each feature, or features that are neither 0 nor 1."""
        if np.ndim(estimator.alpha):
            return "alpha for each feature"
        if estimator.binarize is None and (_sparse(X).data != 1).any():
            return "binarize=None with features other than 0 and 1"
        return _unsmoothed(estimator)

    def fit(self, estimator: Any, X: Any, y: Any) -> "CountModel":  # noqa: N803
        """How many records of every class have every feature."""
        law = _BernoulliLaw(float(smoothing(estimator)), estimator.binarize)
        return _count_model(estimator, law.features(X), y, law)

    def as_categories(self, estimator: Any, X: Any, y: Any) -> CategoryCounts:  # noqa: N803
        """The same model, as one of categories 0 and 1."""
        classes, codes = labels(y)
        alpha = float(smoothing(estimator))
        return CategoryCounts(
            _BernoulliLaw(alpha, estimator.binarize).features(X).toarray().astype(np.uint8),
            codes,
            classes,
            priors=Priors.of(estimator.class_prior, classes, counted=bool(estimator.fit_prior)),
            alpha=alpha,
            least=2,
        )


class _Law(Protocol):
    """What makes one naive Bayes of counts another."""

    def features(self, queries: Any) -> Any:
        """Queries as the sparse matrix that is counted."""
        ...

    def joint(self, sums: FloatArray, counts: FloatArray, queries: Any) -> FloatArray:
        """ln p(x | class) from features and records counted, shape ``(queries, classes)``."""
        ...

    def own(self, sums: FloatArray, counts: FloatArray, rows: Any, codes: IntArray) -> FloatArray:
        """The same without the record that is asked for, shape ``(records, classes)``."""
        ...


class CountModel:
    """A naive Bayes of counts, from which any record can be taken."""

    def __init__(
        self, rows: Any, codes: IntArray, classes: NDArray[Any], *, priors: Priors, law: _Law
    ) -> None:
        self.classes = classes
        self._rows, self._codes, self._priors, self._law = rows, codes, priors, law
        member = scipy.sparse.csr_array(
            (np.ones(codes.size), (codes, np.arange(codes.size))), (classes.size, codes.size)
        )
        self._sums: FloatArray = (member @ rows).toarray()
        self._counts = np.bincount(codes, minlength=classes.size).astype(np.float64)

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        at = self._queries(queries)
        joint = self._law.joint(self._sums, self._counts, at)
        return normalised(joint + self._priors.log(self._counts))

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        result = np.empty((len(records), self.classes.size))
        size = 1 + self._rows.nnz * self.classes.size // max(1, self._codes.size)
        for part in parts(len(records), size):
            at, codes = self._rows[records[part]], self._codes[records[part]]
            counts = np.repeat(self._counts[None], len(codes), axis=0)
            counts[np.arange(len(codes)), codes] -= 1
            joint = self._law.own(self._sums, self._counts, at, codes)
            result[part] = normalised(joint + self._priors.log(counts))
        return result

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        at, c = self._queries(queries), int(self._codes[record])
        sums, counts = self._sums.copy(), self._counts.copy()
        counts[c] -= 1
        sums[c] = np.maximum(sums[c] - self._rows[[record]].toarray()[0], 0.0)
        return normalised(self._law.joint(sums, counts, at) + self._priors.log(counts))

    def _queries(self, queries: Any) -> Any:
        return with_features(self._law.features(queries), self._sums.shape[1])


@dataclass(frozen=True)
class _MultinomialLaw:
    alpha: FloatArray | float

    def features(self, queries: Any) -> Any:
        return _counts(queries)

    def joint(self, sums: FloatArray, counts: FloatArray, queries: Any) -> FloatArray:
        smoothed = sums + self.alpha
        weights = np.log(smoothed) - np.log(smoothed.sum(axis=1, keepdims=True))
        return _dense(queries @ weights.T)

    def own(self, sums: FloatArray, counts: FloatArray, rows: Any, codes: IntArray) -> FloatArray:
        joint = self.joint(sums, counts, rows)
        of, at, x = _entries(rows)
        left = np.maximum(sums[codes[of], at] - x, 0.0) + _at(self.alpha, at)
        mass = rows.sum(axis=1)
        total = (sums + self.alpha).sum(axis=1)[codes] - mass
        joint[np.arange(len(codes)), codes] = _by_row(rows, x * np.log(left)) - mass * np.log(total)
        return joint


@dataclass(frozen=True)
class _ComplementLaw:
    alpha: FloatArray | float
    norm: bool

    def features(self, queries: Any) -> Any:
        return _counts(queries)

    def joint(self, sums: FloatArray, counts: FloatArray, queries: Any) -> FloatArray:
        others = sums.sum(axis=0) - sums + self.alpha
        logs = np.log(others) - np.log(others.sum(axis=1, keepdims=True))
        scores = _dense(queries @ logs.T)
        return _dense(scores / logs.sum(axis=1) if self.norm else -scores)

    def own(self, sums: FloatArray, counts: FloatArray, rows: Any, codes: IntArray) -> FloatArray:
        _, at, x = _entries(rows)
        others = sums.sum(axis=0) - sums + self.alpha
        # of the classes the record is not in: for them it is one of the others
        before = np.log(others[:, at].T)
        after = np.log(np.maximum(others[:, at].T - x[:, None], _at(self.alpha, at, column=True)))
        mass: FloatArray = rows.sum(axis=1)[:, None]
        log_total = np.log(others.sum(axis=1) - mass)
        scores = _dense(_by_row(rows, x[:, None] * after) - mass * log_total)
        if self.norm:
            features = sums.shape[1]
            logs = np.log(others).sum(axis=1) + _by_row(rows, after - before)
            scores /= logs - features * log_total
        else:
            scores *= -1
        own = np.arange(len(codes)), codes
        scores[own] = self.joint(sums, counts, rows)[own]  # its own class never counted it
        return scores


@dataclass(frozen=True)
class _BernoulliLaw:
    alpha: float
    threshold: float | None

    def features(self, queries: Any) -> Any:
        rows = _sparse(queries)
        if self.threshold is not None:
            rows = (rows > self.threshold).astype(np.float64)
            rows.eliminate_zeros()
        return rows

    def joint(self, sums: FloatArray, counts: FloatArray, queries: Any) -> FloatArray:
        present = np.log(sums + self.alpha)
        absent = np.log(counts[:, None] - sums + self.alpha)
        total = sums.shape[1] * np.log(counts + 2 * self.alpha)
        return _dense(queries @ (present - absent).T + absent.sum(axis=1) - total)

    def own(self, sums: FloatArray, counts: FloatArray, rows: Any, codes: IntArray) -> FloatArray:
        joint = self.joint(sums, counts, rows)
        # records of the class that lack a feature, but for one of them; where all have it there
        # is none to take, and none asks: it is left out of both sums below
        lacking = counts[:, None] - sums
        absent = np.log(np.where(lacking > 0, lacking - 1 + self.alpha, 1.0))
        of, at, _ = _entries(rows)
        present = np.log(sums[codes[of], at] - 1 + self.alpha)
        joint[np.arange(len(codes)), codes] = (
            absent.sum(axis=1)[codes]
            + _by_row(rows, present - absent[codes[of], at])
            - sums.shape[1] * np.log(counts - 1 + 2 * self.alpha)[codes]
        )
        return joint


def _count_model(estimator: Any, rows: Any, y: Any, law: _Law) -> CountModel:
    classes, codes = labels(y)
    if isinstance(law, _ComplementLaw):  # which knows no priors
        priors = Priors(None, counted=False)
    else:
        priors = Priors.of(estimator.class_prior, classes, counted=bool(estimator.fit_prior))
    return CountModel(rows, codes, classes, priors=priors, law=law)


def _unsmoothed(estimator: Any) -> str | None:
    least = np.min(smoothing(estimator, np.size(estimator.alpha)))
    return None if least > 0 else "alpha = 0, for which scikit-learn has nan"


def _sparse(X: Any) -> Any:  # noqa: N803
    """A sparse matrix of rows, without zeros; also from a dense one."""
    csr: Any = scipy.sparse.csr_array
    if scipy.sparse.issparse(X):
        rows = csr(X, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        matrix(rows.data[None])  # finite
    else:
        rows = csr(matrix(X))
    rows.eliminate_zeros()
    return rows


def _counts(X: Any) -> Any:  # noqa: N803
    rows = _sparse(X)
    if rows.nnz and rows.data.min() < 0:
        raise InvalidArgument(
            f"Expected counts of 0 or more in X, got {rows.data.min()}. "
            "Gaussian naive Bayes takes other numbers."
        )
    return rows


def _entries(rows: Any) -> tuple[IntArray, IntArray, FloatArray]:
    """Row, column and number of every entry."""
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)), rows.indices, rows.data


def _by_row(rows: Any, entries: FloatArray) -> FloatArray:
    """Sums over the entries of each row."""
    shape = rows.shape[0], rows.nnz
    member = scipy.sparse.csr_array((np.ones(rows.nnz), np.arange(rows.nnz), rows.indptr), shape)
    return _dense(member @ entries)


def _dense(product: Any) -> FloatArray:
    return np.asarray(product, np.float64)


def _at(alpha: FloatArray | float, columns: IntArray, *, column: bool = False) -> Any:
    chosen = np.asarray(alpha)[columns] if np.ndim(alpha) else np.asarray(alpha)
    return chosen[:, None] if column and np.ndim(alpha) else chosen
