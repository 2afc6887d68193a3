"""Remove one record from naive Bayes: subtract it from moments and counts instead of refitting.

A record contributes only to counts of its own class (for complement naive Bayes: of all others) and
of its own features. So removing it takes time proportional to their number.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from epsilometer.audits.classifier.leave_one_out.families import Family, Removable, check_width
from epsilometer.audits.classifier.leave_one_out.mapped import MappedModel
from epsilometer.audits.classifier.leave_one_out.maps import Mapped, Scatter, pull
from epsilometer.audits.classifier.sklearn_models import read_matrix
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

_LOST = 0.1  # sums of squares with a smaller share left are recomputed; see GaussianModel
_BLOCK = 1 << 15  # entries of a working array of moments, which fits into the cache
_COUNT_BLOCK = 1 << 18  # entries of a working array of counts
_LEAST_ALPHA = 1e-10  # scikit-learn replaces less by this, unless ``force_alpha``


def normalise(joint: FloatArray) -> FloatArray:
    """Return ln p(class | x) from ln p(class, x); a row of nan where every class has p = 0."""
    with np.errstate(invalid="ignore"):  # −inf − −inf: nan is the answer
        shifted = joint - joint.max(axis=1, keepdims=True)
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


class GaussianModel(Removable):
    r"""Moments of every class and feature, and those without one record.

    Without :math:`x` the sum of squares is :math:`S - \frac{n}{n-1}(x - \mu)^2`. If a record makes
    up more than nine tenths of S, rounding dominates the difference. With three or more records
    this can only be the one farthest from the mean, and the sum without *that* one is computed
    directly for every class and feature.

    The smoothing adds a share of the largest variance of a feature over *all* records, which
    changes with each of them too.
    """

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(read_matrix(X), y, priors=estimator.priors)
        self._smoothing = float(estimator.var_smoothing)
        self._moments = [_Moments(self.features[self.codes == c]) for c in range(self.classes.size)]
        self._all = _Moments(self.features)
        self._epsilon = self._smooth(self._all.squares / self._all.count)
        self.block = max(1, _BLOCK // self.features.shape[1])

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        joint = self._joint(self.read_queries(queries), self._epsilon)
        return normalise(joint + self.log_priors(self.counts))

    def remove(self, label: int, records: IntArray, at: FloatArray | None) -> FloatArray:
        """Return ln p without records of one class."""
        gone, counts = self.features[records], self.count_without(label)
        X = gone if at is None else at  # noqa: N806
        _, squares = self._all.without(gone)
        epsilon = self._smooth(squares / (self._all.count - 1))
        joint = self._joint(X, epsilon)
        if counts[label]:
            mean, squares = self._moments[label].without(gone)
            joint[:, label] = _log_density(X, mean, squares / counts[label] + epsilon)
        return normalise(joint + self.log_priors(counts))

    def _joint(self, X: FloatArray, epsilon: FloatArray) -> FloatArray:  # noqa: N803
        return np.stack(
            [_log_density(X, m.mean, m.squares / m.count + epsilon) for m in self._moments], axis=1
        )

    def _smooth(self, variances: FloatArray) -> FloatArray:
        return np.asarray(self._smoothing * variances.max(axis=-1, keepdims=True))


class MappedGaussianModel(MappedModel):
    """Gaussian naive Bayes behind a map: moments of mapped columns, from those of fixed ones."""

    def __init__(self, estimator: Any, mapped: Mapped, y: Any) -> None:
        plain = GaussianModel(estimator, mapped.map.compute(None), y)
        super().__init__(estimator, mapped, y, plain)
        self._smoothing = float(estimator.var_smoothing)
        rows = self.map.rows
        self._scatters = [
            Scatter(self.features[self.codes == c], rows) for c in range(self.classes.size)
        ]
        self._all = Scatter(self.features, rows)

    def score(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return ln p at records without each."""
        gone, counts = self.features[records], self.count_without(label)
        _, squares, lost = self._all.squares_without(weights, gone)
        epsilon = self._smoothing * squares.max(axis=1, keepdims=True) / counts.sum()
        joint = np.empty((len(records), self.classes.size))
        for c, scatter in enumerate(self._scatters):
            if c == label:
                away, squares, own = scatter.squares_without(weights, gone)
                away, lost = away * (counts[c] + 1) / counts[c], lost | own
            else:
                away = pull(weights, self.map.rows, gone - scatter.mean)
                squares = scatter.squares(weights)
            joint[:, c] = _log_density(away, np.zeros(1), squares / counts[c] + epsilon)
        return normalise(joint + self.log_priors(counts)), ~lost


class _Moments:
    """Means and sums of squares of some records, and without one of them."""

    def __init__(self, X: FloatArray) -> None:  # noqa: N803
        self.count = len(X)
        self.mean = X.mean(axis=0)
        deviations = X - self.mean
        self.squares = (deviations**2).sum(axis=0)
        self._left = np.zeros(X.shape[1])  # sums of squares without the farthest from the mean
        if self.count > 2:
            farthest = np.abs(deviations).argmax(axis=0), np.arange(X.shape[1])
            deviations[farthest] = 0.0
            deviations -= deviations.sum(axis=0) / (self.count - 1)  # about the mean of the others
            deviations[farthest] = 0.0
            self._left = (deviations**2).sum(axis=0)

    def without(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:  # noqa: N803
        """Return moments without each of the rows of X, which are among the records."""
        if self.count <= 2:  # only the other record is left
            return 2 * self.mean - X, np.zeros_like(X)
        deviations = X - self.mean
        squares = self.squares - deviations**2 * (self.count / (self.count - 1))
        lost = squares < _LOST * self.squares  # a difference of nearly equal numbers is rounding
        if lost.any():
            np.copyto(squares, self._left, where=lost)
        return self.mean - deviations / (self.count - 1), squares


def _log_density(X: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:  # noqa: N803
    """Return the log-density of independent normals; one variance for all rows, or per row."""
    squares = X - mean
    squares *= squares
    with np.errstate(divide="ignore", invalid="ignore"):  # no smoothing, and a constant feature
        if variance.ndim == 1 or len(variance) < len(X):  # one for all rows
            variance = variance.reshape(-1)
            total = squares @ (1 / variance) + np.log(variance).sum()
        else:
            squares /= variance
            squares += np.log(variance)
            total = squares @ np.ones(X.shape[1])  # faster than a sum along rows
    result: FloatArray = -0.5 * (total + X.shape[1] * np.log(2 * np.pi))
    return result


class CountModel(Removable):
    """Naive Bayes on counts; subclasses define how features are encoded and what counts mean.

    ``features`` is a sparse matrix. The model depends only on its sums over the records of each
    class, ``sums``, and the number of these records.

    Attributes:
        smooths_each: Whether each feature may have its own α.
    """

    smooths_each = False

    def __init__(self, estimator: Any, X: Any, y: Any, **priors: Any) -> None:  # noqa: N803
        self.read_settings(estimator)
        usual = {"priors": estimator.class_prior, "counted": bool(estimator.fit_prior)}
        super().__init__(self.encode(X), y, **(priors or usual))
        self.alpha = _read_alpha(estimator, self.features.shape[1] if self.smooths_each else 1)
        n = self.codes.size
        member = scipy.sparse.csr_array(
            (np.ones(n), (self.codes, np.arange(n))), (self.classes.size, n)
        )
        self.sums: FloatArray = (member @ self.features).toarray()
        self.block = max(1, _COUNT_BLOCK // (1 + self.features.nnz * self.classes.size // n))

    def read_settings(self, estimator: Any) -> None:
        """Store the settings of the estimator that ``encode`` needs."""

    def encode(self, X: Any) -> Any:  # noqa: N803
        """Return features as the sparse matrix that is summed."""
        rows = _to_sparse(X)
        if rows.nnz and rows.data.min() < 0:
            raise InvalidArgument(
                f"Expected counts of 0 or more in X, got {rows.data.min()}. "
                "Gaussian naive Bayes takes other numbers."
            )
        return rows

    @abstractmethod
    def joint(self, sums: FloatArray, counts: FloatArray, at: Any) -> FloatArray:
        """Return ln p(x | class) from sums and counts of records, shape ``(queries, classes)``."""

    @abstractmethod
    def joint_own(self, at: Any, codes: IntArray) -> FloatArray:
        """Return the same at records of these classes, each without itself."""

    def read_queries(self, queries: Any) -> Any:
        """Return the encoded queries."""
        at = self.encode(queries)
        check_width(at, self.sums.shape[1])
        return at

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        joint = self.joint(self.sums, self.counts, self.read_queries(queries))
        return normalise(joint + self.log_priors(self.counts))

    def own(self, records: IntArray) -> FloatArray:
        """Return ln p at each record's features without it."""
        result = np.empty((len(records), self.classes.size))
        priors = np.stack(
            [self.log_priors(self.count_without(c)) for c in range(self.classes.size)]
        )
        for start in range(0, len(records), self.block):
            part = slice(start, start + self.block)
            codes = self.codes[records[part]]
            joint = self.joint_own(self.features[records[part]], codes)
            result[part] = normalise(joint + priors[codes])
        return result

    def remove(self, label: int, records: IntArray, at: Any) -> FloatArray:
        """Return ln p without one record at queries; ``own`` is faster for many."""
        gone, counts = self.features[records], self.count_without(label)
        sums = self.sums.copy()
        # Sums of decimal fractions may miss 0 by rounding, and their logarithm is taken
        sums[label] = np.maximum(sums[label] - gone.toarray()[0], 0.0)
        joint = self.joint(sums, counts, gone if at is None else at)
        return normalise(joint + self.log_priors(counts))


class MultinomialModel(CountModel):
    """Multinomial naive Bayes: each feature's share of all counts of a class."""

    smooths_each = True

    def joint(self, sums: FloatArray, counts: FloatArray, at: Any) -> FloatArray:
        """Return ln p(x | class)."""
        smoothed = sums + self.alpha
        return _to_dense(at @ (np.log(smoothed) - np.log(smoothed.sum(axis=1, keepdims=True))).T)

    def joint_own(self, at: Any, codes: IntArray) -> FloatArray:
        """Return ln p(x | class) without the record itself."""
        joint = self.joint(self.sums, self.counts, at)
        row, column, x = _list_entries(at)
        alpha: Any = self.alpha[column] if self.alpha.size > 1 else self.alpha[0]
        left = np.maximum(self.sums[codes[row], column] - x, 0.0) + alpha
        mass = at.sum(axis=1)
        total = (self.sums + self.alpha).sum(axis=1)[codes] - mass
        own = _sum_rows(at, x * np.log(left)) - mass * np.log(total)
        joint[np.arange(len(codes)), codes] = own
        return joint


class ComplementModel(CountModel):
    """Complement naive Bayes: counts of features in the records outside each class."""

    smooths_each = True

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        self._norm = bool(estimator.norm)
        super().__init__(estimator, X, y, counted=False)  # it has no priors

    def joint(self, sums: FloatArray, counts: FloatArray, at: Any) -> FloatArray:
        """Return the score of each class."""
        others = sums.sum(axis=0) - sums + self.alpha
        logs = np.log(others) - np.log(others.sum(axis=1, keepdims=True))
        scores = _to_dense(at @ logs.T)
        return scores / logs.sum(axis=1) if self._norm else -scores

    def joint_own(self, at: Any, codes: IntArray) -> FloatArray:
        """Return the scores without the record, which is in the complement of other classes."""
        _, column, x = _list_entries(at)
        others = self.sums.sum(axis=0) - self.sums + self.alpha
        before = np.log(others[:, column].T)
        least: Any = self.alpha[column, None] if self.alpha.size > 1 else self.alpha[0]
        after = np.log(np.maximum(others[:, column].T - x[:, None], least))
        mass: FloatArray = at.sum(axis=1)[:, None]
        log_total = np.log(others.sum(axis=1) - mass)
        scores: FloatArray = _sum_rows(at, x[:, None] * after) - mass * log_total
        if self._norm:
            logs = np.log(others).sum(axis=1) + _sum_rows(at, after - before)
            scores /= logs - self.sums.shape[1] * log_total
        else:
            scores *= -1
        own = np.arange(len(codes)), codes
        scores[own] = self.joint(self.sums, self.counts, at)[own]  # its own class does not count it
        return scores


class BernoulliModel(CountModel):
    """Bernoulli naive Bayes: the number of records per class that have each feature."""

    def read_settings(self, estimator: Any) -> None:
        """Store the threshold above which a feature is present."""
        self._threshold = estimator.binarize

    def encode(self, X: Any) -> Any:  # noqa: N803
        """Return 1 for every feature that is present."""
        return binarise(X, self._threshold)

    def joint(self, sums: FloatArray, counts: FloatArray, at: Any) -> FloatArray:
        """Return ln p(x | class)."""
        present = np.log(sums + self.alpha)
        absent = np.log(counts[:, None] - sums + self.alpha)
        total = sums.shape[1] * np.log(counts + 2 * self.alpha[0])
        return _to_dense(at @ (present - absent).T + absent.sum(axis=1) - total)

    def joint_own(self, at: Any, codes: IntArray) -> FloatArray:
        """Return ln p(x | class) without the record itself."""
        joint = self.joint(self.sums, self.counts, at)
        # Records of the class that lack a feature, except one of them. If all have it, none can be
        # subtracted, and none needs to be: the feature is in neither sum below.
        lacking = self.counts[:, None] - self.sums
        absent = np.log(np.where(lacking > 0, lacking - 1 + self.alpha, 1.0))
        row, column, _ = _list_entries(at)
        present = np.log(self.sums[codes[row], column] - 1 + self.alpha)
        total = self.sums.shape[1] * np.log(self.counts - 1 + 2 * self.alpha[0])
        joint[np.arange(len(codes)), codes] = (
            absent.sum(axis=1)[codes]
            + _sum_rows(at, present - absent[codes[row], column])
            - total[codes]
        )
        return joint


class CategoricalModel(CountModel):
    """Categorical naive Bayes: counts of each value of each column, one-hot encoded.

    The number of values of a column is that in all records (or ``min_categories``), even without
    the only record with the highest value. scikit-learn, fitted without it, would know one value
    fewer and have no answer at that record's features.
    """

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        table = _read_categories(X, name="X")
        self.values = _count_values(table, estimator.min_categories)
        self._offsets = np.cumsum(self.values) - self.values
        super().__init__(estimator, table, y)
        highest = self.sums[:, self._offsets + self.values - 1].sum(axis=0)
        alone = int(np.count_nonzero(highest == 1))
        if alone:
            self.caveats = (
                f"Columns in which a single record has the highest value: {alone}. When it is "
                "left out, the number of categories is kept, as by min_categories.",
            )

    def encode(self, X: Any) -> Any:  # noqa: N803
        """Return the one-hot encoding of the columns."""
        table = _read_categories(X, name="queries")
        check_width(table, self.values.size)
        unknown = np.flatnonzero(table.max(axis=0) >= self.values)
        if unknown.size:
            j = int(unknown[0])
            raise InvalidArgument(
                f"Expected values below {self.values[j]} in column {j} of queries, got "
                f"{table[:, j].max()}. Values that may come up are announced by min_categories."
            )
        columns = (table.astype(np.int64) + self._offsets).ravel()
        starts = np.arange(len(table) + 1) * table.shape[1]
        shape = len(table), int(self.values.sum())
        return scipy.sparse.csr_array((np.ones(columns.size), columns, starts), shape)

    def joint(self, sums: FloatArray, counts: FloatArray, at: Any) -> FloatArray:
        """Return ln p(x | class)."""
        with np.errstate(divide="ignore"):  # alpha = 0: unseen values are impossible
            logs = np.log(sums + self.alpha)
        return _to_dense(at @ logs.T - self._log_totals(counts))

    def joint_own(self, at: Any, codes: IntArray) -> FloatArray:
        """Return ln p(x | class) without the record itself."""
        joint = self.joint(self.sums, self.counts, at)
        row, column, _ = _list_entries(at)
        with np.errstate(divide="ignore"):  # alpha = 0, and no other record has the value
            present = np.log(self.sums[codes[row], column] - 1 + self.alpha)
        own = _sum_rows(at, present) - self._log_totals(self.counts - 1)[codes]
        joint[np.arange(len(codes)), codes] = own
        return joint

    def bound_change(self, records: IntArray) -> FloatArray:
        """Return the largest |ln| of the factor by which a record changes its class's odds.

        Among the class's n records, f have the record's value of a column with v values. Removing
        the record multiplies that value's probability by (f − 1 + α)/(f + α), and every value's
        by (n + αv)/(n − 1 + αv).
        """
        codes, alpha = self.codes[records], self.alpha[0]
        n = self.counts[codes, None]
        at = self.features[records].indices.reshape(len(codes), -1)
        f = self.sums[codes[:, None], at]
        with np.errstate(divide="ignore"):  # the last of its class; alpha = 0 and alone in it
            others = np.log((n - 1 + alpha * self.values) / (n + alpha * self.values))
            prior = np.log(n / (n - 1))[:, 0] if self.counted else np.zeros(codes.size)
            same = np.log((f + alpha) / (f - 1 + alpha))
        with np.errstate(invalid="ignore"):  # inf − inf for a class without records
            most = prior + (others + same).sum(axis=1)
            least = prior + (others + np.where(self.values > 1, 0.0, same)).sum(axis=1)
        change: FloatArray = np.maximum(np.abs(most), np.abs(least))
        change[n[:, 0] == 1] = np.inf
        return change

    def _log_totals(self, counts: FloatArray) -> FloatArray:
        present = np.where(counts > 0, counts, 1.0)  # a class without records has prior 0
        totals: FloatArray = np.log(present[:, None] + self.alpha[0] * self.values).sum(axis=1)
        return totals


def binarise(X: Any, threshold: float | None) -> Any:  # noqa: N803
    """Return 1 for every number above the threshold, as a sparse matrix."""
    rows = _to_sparse(X)
    if threshold is not None:
        rows = (rows > threshold).astype(np.float64)
        rows.eliminate_zeros()
    return rows


def _read_alpha(estimator: Any, features: int) -> FloatArray:
    """Return the α with which scikit-learn smooths the counts of each feature."""
    alpha = np.asarray(estimator.alpha, np.float64)
    if alpha.shape not in {(), (features,)}:
        raise InvalidArgument(
            f"Expected one alpha, or one for each of {features} features, got {alpha.size}."
        )
    if not (alpha >= 0).all():
        raise InvalidArgument(f"Expected alpha ≥ 0, got {estimator.alpha!r}.")
    least = alpha if estimator.force_alpha else np.maximum(alpha, _LEAST_ALPHA)
    return least.reshape(-1)


def _refuse_unsmoothed(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    least = _read_alpha(estimator, np.size(estimator.alpha)).min()
    return None if least > 0 else "alpha = 0, for which scikit-learn has nan"


def _refuse_bernoulli(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    if np.ndim(estimator.alpha):
        return "alpha for each feature"
    if estimator.binarize is None and (_to_sparse(X).data != 1).any():
        return "binarize=None with features other than 0 and 1"
    return _refuse_unsmoothed(estimator, X, y)


def _to_sparse(X: Any) -> Any:  # noqa: N803
    """Return a sparse matrix of rows without explicit zeros; also from a dense one."""
    csr: Any = scipy.sparse.csr_array
    if scipy.sparse.issparse(X):
        rows = csr(X, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        read_matrix(rows.data[None])  # refuses values that are not finite
    else:
        rows = csr(read_matrix(X))
    rows.eliminate_zeros()
    return rows


def _read_categories(X: Any, *, name: str) -> NDArray[Any]:  # noqa: N803
    array = np.asarray(X)
    if array.dtype.kind not in "iub":
        array = read_matrix(X, name=name)
    if array.ndim != 2 or not array.size:
        raise InvalidArgument(f"Expected {name} of shape (records, features), got {array.shape}.")
    if array.min() < 0:
        raise InvalidArgument(
            f"Expected categories 0, 1, … in {name}, got {array.min()}. "
            "OrdinalEncoder numbers them."
        )
    return np.asarray(array)


def _count_values(X: NDArray[Any], least: Any) -> IntArray:  # noqa: N803
    values = X.max(axis=0).astype(np.int64) + 1
    if least is None:
        return np.asarray(values, np.int64)
    wanted = np.asarray(least)
    if wanted.dtype.kind != "i" or wanted.shape not in {(), values.shape}:
        raise InvalidArgument(
            f"Expected min_categories as a whole number or {values.size} of them, got {least!r}."
        )
    return np.asarray(np.maximum(values, wanted), np.int64)


def _list_entries(rows: Any) -> tuple[IntArray, IntArray, FloatArray]:
    """Return row, column and value of every entry."""
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)), rows.indices, rows.data


def _sum_rows(rows: Any, entries: FloatArray) -> FloatArray:
    """Return sums over the entries of each row."""
    shape = rows.shape[0], rows.nnz
    member = scipy.sparse.csr_array((np.ones(rows.nnz), np.arange(rows.nnz), rows.indptr), shape)
    return _to_dense(member @ entries)


def _to_dense(product: Any) -> FloatArray:
    return np.asarray(product, np.float64)


GAUSSIAN = Family(
    "Gaussian naive Bayes",
    GaussianModel,
    fit_mapped=MappedGaussianModel,
    by_column=True,
)
MULTINOMIAL = Family("multinomial naive Bayes", MultinomialModel, _refuse_unsmoothed)
COMPLEMENT = Family("complement naive Bayes", ComplementModel, _refuse_unsmoothed)
BERNOULLI = Family("Bernoulli naive Bayes", BernoulliModel, _refuse_bernoulli)
CATEGORICAL = Family("categorical naive Bayes", CategoricalModel)
