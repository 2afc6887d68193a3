"""Remove one record from linear and quadratic discriminant analysis by rank-one updates.

Removing x from a class of n records with mean m moves its mean by −(x − m)/(n − 1) and subtracts
n/(n − 1) (x − m)(x − m)ᵀ from its scatter: a change of rank one, whose inverse and determinant are
known (Sherman and Morrison). If so little of the covariance is left in some direction that
scikit-learn might drop it, or that rounding matters, the model is refitted without the record.
"""

from abc import abstractmethod
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special

from epsilometer._extras import needs
from epsilometer.audits.classifier.leave_one_out.families import Family, Removable
from epsilometer.audits.classifier.leave_one_out.mapped import MappedModel
from epsilometer.audits.classifier.leave_one_out.maps import (
    LEFT,
    NOISE,
    Mapped,
    Scatter,
    pull,
    sandwich,
)
from epsilometer.audits.classifier.sklearn_models import (
    clone_estimator,
    decision_logs,
    read_labels,
    read_matrix,
)
from epsilometer.types import BoolArray, FloatArray, IntArray

_MOST = 10**8  # largest number of entries in all covariances
_LEAST = 1e-9  # eigenvalue of a correlation matrix below which rounding matters


class _Discriminant(Removable):
    """Score classes by distances from their means, and refit where rounding matters."""

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(read_matrix(X), y, priors=estimator.priors)
        self._estimator = estimator
        # Centred at the mean of all records, so that features far from 0 lose no digits
        self._centre = self.features.mean(axis=0)
        centred = self.features - self._centre
        members = [self.codes == c for c in range(self.classes.size)]
        self._means = np.stack([centred[own].mean(axis=0) for own in members])
        self._within = centred - self._means[self.codes]
        self._scatter = np.stack([self._within[own].T @ self._within[own] for own in members])

    @abstractmethod
    def unsafe(self) -> str | None:
        """Return why scikit-learn might fit another model than this one; else None."""

    @abstractmethod
    def _score(
        self, label: int, records: IntArray, at: FloatArray | None
    ) -> tuple[FloatArray, BoolArray]:
        """Return scores without records of a class, and where they are free of rounding errors."""

    def remove(self, label: int, records: IntArray, at: FloatArray | None) -> FloatArray:
        """Return ln p without records of one class."""
        with np.errstate(divide="ignore", invalid="ignore"):  # at records that are refitted
            scores, safe = self._score(label, records, at)
            result = _log_softmax(scores + self.log_priors(self.count_without(label)))
        for place in np.flatnonzero(~safe):
            queries = self.features[records[[place]]] if at is None else at
            refitted = self._refit(int(records[place]), queries)
            result[place if at is None else slice(None)] = refitted
        return result

    def _refit(self, record: int, at: FloatArray) -> FloatArray:
        others = np.arange(len(self.codes)) != record
        model = clone_estimator(self._estimator).fit(self.features[others], self.codes[others])
        result = np.full((len(at), self.classes.size), -np.inf)
        result[:, model.classes_] = decision_logs(model.decision_function(at))
        return result


class LinearModel(_Discriminant):
    """Means and the pooled covariance, and those without one record.

    With given priors, the solvers "lsqr" and "eigen" weight the classes' covariances by them. A
    record then also changes the weight of all others of its class. That change is the same for
    every record of a class, so each class has its own initial covariance.
    """

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(estimator, X, y)
        self._columns = np.flatnonzero(_spread_within(self.features, self.codes))
        # Eigenvalues of the correlations within classes that scikit-learn is certain to keep
        self._threshold = _find_threshold(estimator)
        self._all = self._pool(self.counts)
        self._start = cache(self._prepare)

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        at = self._rotate(self._all, self.read_queries(queries) - self._centre)
        means = self._rotate(self._all, self._means)
        squares = np.stack([((at - mean) ** 2).sum(axis=1) for mean in means], axis=1)
        return _log_softmax(self.log_priors(self.counts) - 0.5 * squares)

    def unsafe(self) -> str | None:
        """Return why scikit-learn might drop directions that are kept here."""
        if self._all.smallest <= self._threshold:
            return "collinear features"
        return _refuse_plane(self._estimator, self._rotate(self._all, self._means), self.counts)

    def _score(
        self, label: int, records: IntArray, at: FloatArray | None
    ) -> tuple[FloatArray, BoolArray]:
        start, means, share = self._start(label)
        away = self._rotate(start, self._within[records])
        squared = (away**2).sum(axis=1)
        left = 1.0 - share * squared
        # x − m of another class is (x − own mean) + (own mean − m): no differences of far points
        apart = means[label] - means
        from_own = away
        if at is not None:
            from_own = self._rotate(start, at - self._centre) - means[label]
        product = (from_own * away).sum(axis=1)
        lengths = (from_own**2).sum(axis=1)[:, None] + 2 * from_own @ apart.T
        lengths += (apart**2).sum(axis=1)
        along = product[:, None] + away @ apart.T
        # The mean of its own class moves away from the record, by a step of x − m
        step = 1.0 / max(1.0, self.counts[label] - 1)
        lengths[:, label] += step * (2 * product + step * squared)
        along[:, label] += step * squared
        scores = -0.5 * (lengths + (share / left)[:, None] * along**2)
        return scores, start.smallest * left > self._threshold

    def _prepare(self, label: int) -> tuple["_Ellipsoid", FloatArray, float]:
        """Return covariance and means from which a record of a class is removed.

        The third value is the share of (x − m)(x − m)ᵀ that is subtracted from the covariance.
        """
        start, count = self._pool(self.count_without(label)), self.counts[label]
        weight = float(_weigh_classes(self._estimator, self.count_without(label))[label])
        share = 0.0 if count == 1 else count / (count - 1) * weight
        return start, self._rotate(start, self._means), share

    def _pool(self, counts: FloatArray) -> "_Ellipsoid":
        """Return the covariance of all records, with divisors for these counts."""
        covariance = np.tensordot(_weigh_classes(self._estimator, counts), self._scatter, axes=1)
        return _Ellipsoid(covariance[np.ix_(self._columns, self._columns)])

    def _rotate(self, ellipsoid: "_Ellipsoid", rows: FloatArray) -> FloatArray:
        return ellipsoid.rotate(rows[:, self._columns])


class QuadraticModel(_Discriminant):
    """Means and covariances of each class; without a record only its own class's change."""

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(estimator, X, y)
        eigen = getattr(estimator, "solver", "svd") == "eigen"
        self.ridge = 0.0 if eigen else float(estimator.reg_param)
        self.unbiased = not eigen and not _divides_by_all("Quadratic")
        self.least = 2.0 * float(estimator.tol)  # eigenvalues safely above its tolerance
        self._ellipsoids = [self._ellipsoid(c, self.counts) for c in range(self.classes.size)]
        self._start = cache(lambda label: self._ellipsoid(label, self.count_without(label)))

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        return _log_softmax(
            self._measure(self.read_queries(queries)) + self.log_priors(self.counts)
        )

    def unsafe(self) -> str | None:
        """Return why scikit-learn might fit another model than this one; else None."""
        if min(one.least for one in self._ellipsoids) <= self.least:
            return "collinear features within a class"
        if min(one.smallest for one in self._ellipsoids) <= _LEAST:
            return "features within a class that are collinear but for rounding"
        return None

    def _score(
        self, label: int, records: IntArray, at: FloatArray | None
    ) -> tuple[FloatArray, BoolArray]:
        start, count = self._start(label), self.counts[label]
        share = (1 - self.ridge) * count / (count - 1) / (count - 1 - self.unbiased)
        away = start.rotate(self._within[records])
        left = 1.0 - share * (away**2).sum(axis=1)
        from_own = away
        if at is not None:
            from_own = start.rotate(at - self._centre - self._means[label])
        from_mean = from_own + away / (count - 1)
        along = (from_mean * away).sum(axis=1)
        squares = (from_mean**2).sum(axis=1) + share / left * along**2
        scores = self._measure(self.features[records] if at is None else at)
        scores[:, label] = -0.5 * (squares + start.log_det + np.log(left))
        # Each remaining eigenvalue is at least ``left`` times the smallest before
        return scores, (start.least * left > self.least) & (start.smallest * left > _LEAST)

    def _measure(self, at: FloatArray) -> FloatArray:
        scores = np.empty((len(at), self.classes.size))
        for c, ellipsoid in enumerate(self._ellipsoids):
            turned = ellipsoid.rotate(at - self._centre - self._means[c])
            scores[:, c] = -0.5 * ((turned**2).sum(axis=1) + ellipsoid.log_det)
        return scores

    def _ellipsoid(self, label: int, counts: FloatArray) -> "_Ellipsoid":
        divisor = counts[label] - self.unbiased
        covariance = (1 - self.ridge) / divisor * self._scatter[label]
        return _Ellipsoid(covariance + self.ridge * np.eye(len(covariance)))


class _MappedDiscriminant(MappedModel):
    """Scatters of classes behind a map."""

    def __init__(self, estimator: Any, mapped: Mapped, y: Any, plain: Removable | None) -> None:
        super().__init__(estimator, mapped, y, plain)
        self._scatters = [
            Scatter(self.features[self.codes == c], self.map.rows) for c in range(self.classes.size)
        ]

    def _find_away(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return x − m of all classes without x, ``(b, classes, columns)``, and of its own with."""
        rows, gone, count = self.map.rows, self.features[records], self.counts[label]
        away = np.stack([pull(weights, rows, gone - own.mean) for own in self._scatters], axis=1)
        own = away[:, label].copy()
        away[:, label] *= count / max(1.0, count - 1)
        return away, own


class MappedLinear(_MappedDiscriminant):
    """Linear discriminants behind a map, by one covariance for each record.

    Like scikit-learn's default solver, it leaves out directions without variance in classes.
    """

    def __init__(self, estimator: Any, mapped: Mapped, y: Any) -> None:
        super().__init__(estimator, mapped, y, None)
        self.priors = None if estimator.priors is None else np.asarray(estimator.priors, float)
        self.counted = self.priors is None
        self._pool = cache(self._sum)

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records, at rows of the map's basis."""
        at, weights = self.read_queries(queries), self.map.weigh(None)
        away = np.stack([pull(weights, self.map.rows, at - own.mean) for own in self._scatters])
        covariance = sandwich(weights, self.map.rows, self._pool(None)[0])
        squares = self._measure(covariance, weights, np.swapaxes(away, 0, 1)[None])[0][0]
        return _log_softmax(self.log_priors(self.counts) - 0.5 * squares)

    def score(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return ln p at records without each."""
        matrix, share = self._pool(label)
        away, own = self._find_away(label, records, weights)
        covariance = sandwich(weights, self.map.rows, matrix)
        lost = _subtract(covariance, share, own, weights)
        squares, safe = self._measure(covariance, weights, away[:, None])
        scores = self.log_priors(self.count_without(label)) - 0.5 * squares[:, 0]
        return _log_softmax(scores), safe & ~lost

    def _sum(self, label: int | None) -> tuple[FloatArray, float]:
        """Return the covariance of the basis, and the share of a record that is subtracted."""
        counts = self.counts if label is None else self.count_without(label)
        shares = _weigh_classes(self.estimator, counts)
        matrix = sum(share * own.matrix for share, own in zip(shares, self._scatters, strict=True))
        if label is None or not counts[label]:
            return np.asarray(matrix), 0.0
        return np.asarray(matrix), float(shares[label] * (counts[label] + 1) / counts[label])

    def _measure(
        self, covariance: FloatArray, weights: FloatArray, away: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return squared distances of ``(b, queries, classes, columns)``; and where all is clear.

        It is clear which directions scikit-learn leaves out: none has nearly too little variance.
        """
        svd = self.estimator.solver == "svd"
        values, vectors, scales = _find_axes(covariance, weights)
        kept = values > _find_threshold(self.estimator)
        clear = kept | (values < (float(self.estimator.tol) ** 2 / 4 if svd else -np.inf))
        inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
        turned = (away / scales[:, None, None]) @ vectors[:, None]
        return (turned**2 @ inverse[:, None, :, None])[..., 0], np.asarray(clear.all(axis=1))


class MappedQuadratic(_MappedDiscriminant):
    """Quadratic discriminants behind a map, by covariances of all classes for each record."""

    def __init__(self, estimator: Any, mapped: Mapped, y: Any) -> None:
        plain = QuadraticModel(estimator, mapped.map.compute(None), y)
        super().__init__(estimator, mapped, y, plain)
        self._ridge, self._unbiased, self._least = plain.ridge, plain.unbiased, plain.least

    def score(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return ln p at records without each."""
        counts, rows = self.count_without(label), self.map.rows
        away, own = self._find_away(label, records, weights)
        scores = np.tile(self.log_priors(counts), (len(records), 1))
        safe = np.ones(len(records), bool)
        for c, scatter in enumerate(self._scatters):
            covariance = sandwich(weights, rows, scatter.matrix)
            if c == label:
                share = (counts[c] + 1) / counts[c]
                safe &= ~_subtract(covariance, share, own, weights)
            covariance *= (1 - self._ridge) / (counts[c] - self._unbiased)
            covariance += self._ridge * np.eye(len(rows))
            values, vectors, scales = _find_axes(covariance, weights)
            turned = ((away[:, c] / scales)[:, None] @ vectors)[:, 0]
            log_det = np.log(values).sum(axis=1) + 2 * np.log(scales).sum(axis=1)
            scores[:, c] -= 0.5 * ((turned**2 / values).sum(axis=1) + log_det)
            least = values[:, 0] * (scales**2).min(axis=1)  # at most the smallest eigenvalue
            near = least <= self._least
            least[near] = np.linalg.eigvalsh(covariance[near])[:, 0]
            safe &= (values[:, 0] > _LEAST) & (least > self._least)
        return _log_softmax(scores), safe


def _subtract(
    covariance: FloatArray, share: float, away: FloatArray, weights: FloatArray
) -> BoolArray:
    """Subtract records from scatters, and tell where too few digits are left of a variance."""
    before = np.einsum("bkk->bk", covariance).copy()
    covariance -= share * away[:, :, None] * away[:, None, :]
    lost = np.einsum("bkk->bk", covariance) < LEFT * before
    return np.asarray((lost & (before > NOISE * (weights**2).sum(axis=2))).any(axis=1))


def _find_axes(
    covariance: FloatArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return eigenvalues and vectors of correlations, and standard deviations.

    Columns whose variance is only rounding of these weights have correlations near 0.
    """
    variances = np.einsum("bkk->bk", covariance)
    rounding = NOISE * (weights**2).sum(axis=2)
    scales = np.sqrt(np.where(variances > rounding, variances, 1.0))
    values, vectors = np.linalg.eigh(covariance / (scales[:, :, None] * scales[:, None, :]))
    return values, vectors, scales


class _Ellipsoid:
    """A covariance C by its Cholesky factor L: rotated points x have lengths xᵀC⁻¹x."""

    def __init__(self, covariance: FloatArray) -> None:
        scales = np.sqrt(np.diag(covariance))
        if not scales.all():
            raise scipy.linalg.LinAlgError("a feature without variance")
        # Correlations, so that features in small units do not look collinear
        correlation = covariance / np.outer(scales, scales)
        self.smallest = float(np.linalg.eigvalsh(correlation)[0])  # of the correlations
        self.least = float(np.linalg.eigvalsh(covariance)[0])  # of the covariances
        self._scales = scales
        self._factor = scipy.linalg.cholesky(correlation, lower=True)
        self.log_det = 2.0 * float(np.log(np.diag(self._factor)).sum() + np.log(scales).sum())

    def rotate(self, at: FloatArray) -> FloatArray:
        """Return L⁻¹ applied to each row."""
        turned: FloatArray = scipy.linalg.solve_triangular(
            self._factor, (at / self._scales).T, lower=True
        ).T
        return turned


@cache
def _divides_by_all(kind: str) -> bool:
    """Tell whether this scikit-learn divides scatter by n; older ones use n − classes or n − 1."""
    with needs("sklearn", extra="sklearn"):
        import sklearn.discriminant_analysis
    estimator = getattr(sklearn.discriminant_analysis, f"{kind}DiscriminantAnalysis")()
    fitted = estimator.fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    return bool(np.allclose(np.ravel(fitted.scalings_), 1.0))


def _weigh_classes(estimator: Any, counts: FloatArray) -> FloatArray:
    """Return what scatters of classes are multiplied by in the covariance of all."""
    svd = estimator.solver == "svd"
    if estimator.priors is not None and not svd:
        shares = np.asarray(estimator.priors, np.float64)
        return np.asarray(shares / shares.sum() / counts)
    unbiased = svd and not _divides_by_all("Linear")
    return np.full(counts.size, 1.0 / (counts.sum() - unbiased * np.count_nonzero(counts)))


def _find_threshold(estimator: Any) -> float:
    return max(2.0 * float(estimator.tol) ** 2 if estimator.solver == "svd" else 0.0, _LEAST)


def _refuse_plane(estimator: Any, means: FloatArray, counts: FloatArray) -> str | None:
    """Return a reason if scikit-learn might drop a direction of the whitened means of classes."""
    priors = counts if estimator.priors is None else np.asarray(estimator.priors, np.float64)
    priors = priors / priors.sum()
    rows = np.sqrt(priors)[:, None] * (means - priors @ means)
    sizes = np.linalg.svd(rows, compute_uv=False)[: len(means) - 1]
    if estimator.solver == "svd" and sizes[-1] <= 10 * estimator.tol * sizes[0]:
        return "means of classes that lie nearly on a plane"
    return None


def _spread_within(X: FloatArray, codes: IntArray) -> FloatArray:  # noqa: N803
    """Return the spread of features about the means of classes.

    It is summed as in scikit-learn, which then tests whether a feature's spread is exactly 0.
    """
    counts = np.bincount(codes).astype(np.float64)
    sums = np.zeros((counts.size, X.shape[1]))
    np.add.at(sums, codes, X)
    return np.asarray((X - (sums / counts[:, None])[codes]).std(axis=0))


def _refuse_covariances(estimator: Any, X: Any, codes: IntArray) -> str | None:  # noqa: N803
    """Return why covariances of classes are not the empirical ones, or cannot be kept."""
    other = ("shrinkage", "covariance_estimator")  # missing in old versions
    if any(getattr(estimator, name, None) is not None for name in other):
        return "another covariance than the empirical one"
    if np.bincount(codes).size * np.shape(X)[1] ** 2 > _MOST:
        return "covariances too large to be kept for each class"
    return None


def _refuse_linear(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    _, codes = read_labels(y)
    if reason := _refuse_covariances(estimator, X, codes):
        return reason
    if estimator.priors is not None and np.bincount(codes).min() == 1:
        return "priors are given, and a class has too few records"
    features = read_matrix(X)
    spread = _spread_within(features, codes)
    rounded = (spread > 0) & (spread <= _LEAST * np.abs(features).max(axis=0))
    if rounded.any() or not spread.any():
        return "features that are constant within classes, but for rounding"
    try:
        return LinearModel(estimator, X, y).unsafe()
    except scipy.linalg.LinAlgError:
        return "collinear features"


def _refuse_mapped(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    """Return why a covariance for each record is not enough: collinear features may be."""
    reason = _refuse_linear(estimator, X, y)
    if reason != "collinear features" or estimator.solver != "svd":
        return reason
    _, codes = read_labels(y)
    constant = X[:, _spread_within(X, codes) == 0]
    if (constant != np.round(constant)).any():  # their means may be rounded without a record
        return reason
    means = np.stack([X[codes == c].mean(axis=0) for c in range(int(codes.max()) + 1)])
    within = X - means[codes]
    values, vectors, scales = _find_axes(
        (within.T @ within / len(within))[None], np.ones((1, X.shape[1], 1))
    )
    kept = values[0] > _find_threshold(estimator)
    turned = (means / scales[0]) @ vectors[0][:, kept] / np.sqrt(values[0][kept])
    return _refuse_plane(estimator, turned, np.bincount(codes).astype(np.float64))


def _refuse_quadratic(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    _, codes = read_labels(y)
    if reason := _refuse_covariances(estimator, X, codes):
        return reason
    if np.bincount(codes).min() <= 2:
        return "a class of too few records"
    try:
        return QuadraticModel(estimator, X, y).unsafe()
    except scipy.linalg.LinAlgError:
        return "collinear features within a class"


def _log_softmax(scores: FloatArray) -> FloatArray:
    result: FloatArray = scipy.special.log_softmax(scores, axis=1)
    return result


def _fit_scaled(model: Any) -> Any:
    """Return a function that fits behind scaling, which the metric undoes."""
    return lambda estimator, peeled, y: model(estimator, peeled.features, y)


LINEAR = Family(
    "linear discriminant analysis",
    LinearModel,
    _refuse_linear,
    fit_scaled=_fit_scaled(LinearModel),
    fit_mapped=MappedLinear,
    by_column=True,  # of rotated collinear columns, rounding is scaled
    refuses_mapped=_refuse_mapped,
)
QUADRATIC = Family(
    "quadratic discriminant analysis",
    QuadraticModel,
    _refuse_quadratic,
    fit_scaled=_fit_scaled(QuadraticModel),
    refuses_scaled=lambda estimator, peeled: bool(estimator.reg_param),
    fit_mapped=MappedQuadratic,
)
