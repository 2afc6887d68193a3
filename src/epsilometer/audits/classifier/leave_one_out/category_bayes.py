"""Naive Bayes of categories without one of its records: counts of every class and value."""

from collections.abc import Iterator
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
from epsilometer.audits.classifier.leave_one_out.naive_bayes import Priors, normalised
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_MODULE = "sklearn.naive_bayes"
_LEAST_ALPHA = 1e-10  # what scikit-learn puts in the place of less, unless it is forced
_BLOCK = 1 << 18  # numbers of a working array


@dataclass(frozen=True)
class Categorical:
    """``sklearn.naive_bayes.CategoricalNB``."""

    name: str = "categorical naive Bayes"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``CategoricalNB``."""
        return is_exactly(estimator, _MODULE, "CategoricalNB")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Nothing."""
        return None

    def fit(self, estimator: Any, X: Any, y: Any) -> "CategoryCounts":  # noqa: N803
        """How many records of every class have every value of every feature."""
        classes, codes = labels(y)
        return CategoryCounts(
            _categories(X, name="X"),
            codes,
            classes,
            priors=Priors.of(estimator.class_prior, classes, counted=bool(estimator.fit_prior)),
            alpha=float(smoothing(estimator)),
            least=estimator.min_categories,
        )


class CategoryCounts:
    """Counts of every class, feature and value.

    The number of values of a feature is that in all records (or ``min_categories``), also without
    the only record that has the highest: scikit-learn, fitted without it, would know one value
    less and have no answer at that record's features.
    """

    def __init__(
        self,
        X: NDArray[Any],  # noqa: N803
        codes: IntArray,
        classes: NDArray[Any],
        *,
        priors: Priors,
        alpha: float,
        least: Any,
    ) -> None:
        self.classes, self.codes = classes, codes
        self._records, self._priors, self._alpha = X, priors, alpha
        self._values = _values(X, least)
        self._offsets = np.concatenate([[0], np.cumsum(self._values)[:-1]])
        self._counts = np.bincount(codes, minlength=classes.size).astype(np.float64)
        width = int(self._values.sum())
        tables = np.zeros(classes.size * width)
        for j in range(X.shape[1]):
            for part in parts(len(X), 1):
                places = codes[part] * width + self._offsets[j] + X[part, j].astype(np.int64)
                tables += np.bincount(places, minlength=tables.size)
        self._tables: FloatArray = tables.reshape(classes.size, width)  # feature after feature
        highest = self._tables[:, self._offsets + self._values - 1].sum(axis=0)
        self.caveats = _alone(int(np.count_nonzero(highest == 1)))

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        X = self._queries(queries)  # noqa: N806
        with np.errstate(divide="ignore"):  # alpha = 0: never seen is impossible
            logs = np.log(self._tables + self._alpha)
        rest = self._priors.log(self._counts) - self._log_totals(self._counts)
        return self._summed(X, logs, rest)

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self._tables + self._alpha)
            fewer = np.log(np.maximum(self._tables - 1, 0.0) + self._alpha)
            # of its own class: counts of a class that is gone are not asked for
            lost = self._counts - 1
            rest = self._priors.log(self._counts) - self._log_totals(self._counts)
            rest_own = self._priors.log(lost) - self._log_totals(lost)
        shape = self.classes.size * (self._records.shape[1] + 2)
        result = np.empty((len(records), self.classes.size))
        for part in parts(len(records), shape):
            codes = self.codes[records[part]]
            places = self._places(self._records[records[part]])
            joint = logs.T[places].sum(axis=1) + rest
            joint[np.arange(len(codes)), codes] = (
                fewer[codes[:, None], places].sum(axis=1) + rest_own[codes]
            )
            result[part] = normalised(joint)
        return result

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        X, c = self._queries(queries), int(self.codes[record])  # noqa: N806
        tables, counts = self._tables.copy(), self._counts.copy()
        tables[c, self._places(self._records[[record]])[0]] -= 1
        counts[c] -= 1
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(tables + self._alpha)
            rest = self._priors.log(counts) - self._log_totals(counts)
        return self._summed(X, logs, rest)

    def largest_change(self, records: IntArray) -> FloatArray:
        """The largest |ln| of what a record does to its class's odds, over all values there are.

        Of the class's records, f share the record's value of a feature of v values. Taking the
        record out multiplies that value's probability by (f − 1 + α)/(f + α), and every value's
        by (n + αv)/(n − 1 + αv).
        """
        codes = self.codes[records]
        n = self._counts[codes, None]
        with np.errstate(divide="ignore"):  # the last of its class; alpha = 0 and alone in it
            others = np.log((n - 1 + self._alpha * self._values) / (n + self._alpha * self._values))
            prior = np.log(n / (n - 1))[:, 0] if self._priors.counted else np.zeros(codes.size)
            f = self._tables[codes[:, None], self._places(self._records[records])]
            same = np.log((f + self._alpha) / (f - 1 + self._alpha))
        with np.errstate(invalid="ignore"):  # inf − inf, of a class that is gone
            most = prior + (others + same).sum(axis=1)
            least = prior + (others + np.where(self._values > 1, 0.0, same)).sum(axis=1)
        change: FloatArray = np.maximum(np.abs(most), np.abs(least))
        change[n[:, 0] == 1] = np.inf
        return change

    def _summed(self, X: NDArray[Any], logs: FloatArray, rest: FloatArray) -> FloatArray:  # noqa: N803
        result = np.empty((len(X), self.classes.size))
        for part in parts(len(X), self.classes.size * (X.shape[1] + 2)):
            result[part] = normalised(logs.T[self._places(X[part])].sum(axis=1) + rest)
        return result

    def _log_totals(self, counts: FloatArray) -> FloatArray:
        totals: FloatArray = np.log(
            np.where(counts > 0, counts, 1.0)[:, None] + self._alpha * self._values
        ).sum(axis=1)
        return totals

    def _places(self, X: NDArray[Any]) -> IntArray:  # noqa: N803
        places: IntArray = X.astype(np.int64) + self._offsets
        return places

    def _queries(self, queries: Any) -> NDArray[Any]:
        X = with_features(_categories(queries, name="queries"), self._values.size)  # noqa: N806
        unknown = X.max(axis=0) >= self._values
        if unknown.any():
            j = int(np.flatnonzero(unknown)[0])
            raise InvalidArgument(
                f"Expected values below {self._values[j]} in column {j} of queries, got "
                f"{X[:, j].max()}. Values that may come up are announced by min_categories."
            )
        return X


def smoothing(estimator: Any, features: int = 1) -> Any:
    """The α that scikit-learn smooths counts with: one, or one for each feature."""
    alpha = np.asarray(estimator.alpha, np.float64)
    if alpha.shape not in {(), (features,)}:
        raise InvalidArgument(
            f"Expected one alpha, or one for each of {features} features, got {alpha.size}."
        )
    if not (alpha >= 0).all():
        raise InvalidArgument(f"Expected alpha ≥ 0, got {estimator.alpha!r}.")
    return alpha if estimator.force_alpha else np.maximum(alpha, _LEAST_ALPHA)


def parts(rows: int, width: int) -> Iterator[slice]:
    """Blocks of rows whose working arrays, of that width, stay small."""
    step = max(1, _BLOCK // max(1, width))
    return (slice(start, start + step) for start in range(0, rows, step))


def _categories(X: Any, *, name: str) -> NDArray[Any]:  # noqa: N803
    array = np.asarray(X)
    if array.dtype.kind not in "iub":
        array = matrix(X, name=name)
    if array.ndim != 2 or not array.size:
        raise InvalidArgument(f"Expected {name} of shape (records, features), got {array.shape}.")
    if array.min() < 0:
        raise InvalidArgument(
            f"Expected categories 0, 1, … in {name}, got {array.min()}. "
            "OrdinalEncoder numbers them."
        )
    return np.asarray(array)


def _values(X: NDArray[Any], least: Any) -> IntArray:  # noqa: N803
    values = X.max(axis=0).astype(np.int64) + 1
    if least is None:
        return np.asarray(values, np.int64)
    wanted = np.asarray(least)
    if wanted.dtype.kind != "i" or wanted.shape not in {(), values.shape}:
        raise InvalidArgument(
            f"Expected min_categories as a whole number or {values.size} of them, got {least!r}."
        )
    return np.asarray(np.maximum(values, wanted), np.int64)


def _alone(columns: int) -> tuple[str, ...]:
    if not columns:
        return ()
    return (
        f"In {columns} columns one record alone has the highest value: the number of values is "
        "held at that of all records when it is taken out, as by min_categories.",
    )
