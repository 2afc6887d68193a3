"""Remove one record from k nearest neighbours: look up one more neighbour for every query."""

from typing import Any

import numpy as np
import scipy.sparse

from epsilometer.audits.classifier.leave_one_out.families import Family, Removable
from epsilometer.audits.classifier.leave_one_out.mapped import MappedModel
from epsilometer.audits.classifier.leave_one_out.maps import Map, Mapped, pull, widen
from epsilometer.audits.classifier.leave_one_out.scaling import MOST_CELLS
from epsilometer.audits.classifier.sklearn_models import clone_estimator, take_rows
from epsilometer.types import BoolArray, FloatArray, IntArray

_BLOCK = 1 << 22  # distances computed at a time
_DIGITS = 1e5  # largest squares, relative to the mean, of which differences are precise
_MORE = 16  # neighbours whose distances are computed again, without cancellation


class NearestLabels(Removable):
    """Votes of the k nearest neighbours, with all records and without one.

    The k + 1 nearest are looked up once. If the removed record is among the first k, the last one
    takes its place; otherwise nothing changes. So both models break ties alike. A refit may break
    them differently: among records at the k-th distance, those that vote depend on the order of
    scikit-learn's search.
    """

    caveats = (
        "Ties at the k-th neighbour are broken in the same way with and without the record; a "
        "refit may break them differently.",
    )

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(X, y)
        self._index = clone_estimator(estimator).fit(X, self.codes)
        self.neighbours = int(self._index.n_neighbors)
        self._asked: Any = None
        self._answer: tuple[FloatArray, IntArray]

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        distances, nearest = self._find_nearest(queries)
        return self.count_votes(distances[:, :-1], nearest[:, :-1])

    def own(self, records: IntArray) -> FloatArray:
        """Return ln p at each record's features without it, from one search for all."""
        if not len(records):
            return np.empty((0, self.classes.size))
        return self.remove(0, np.asarray(records, np.int64), None)

    def read_queries(self, queries: Any) -> Any:
        """Return the queries as they are: the search checks them."""
        return queries

    def remove(self, label: int, records: IntArray, at: Any) -> FloatArray:
        """Return ln p without records of any class."""
        queries = take_rows(self.features, records) if at is None else at
        distances, nearest = self._find_nearest(queries)
        stays = nearest != records[:, None]
        stays[stays.all(axis=1), -1] = False  # if it is not among them, the k nearest stay
        shape = (len(nearest), self.neighbours)
        return self.count_votes(distances[stays].reshape(shape), nearest[stays].reshape(shape))

    def _find_nearest(self, queries: Any) -> tuple[FloatArray, IntArray]:
        # The same queries come with all records and without each: one search serves both
        if not (isinstance(queries, np.ndarray) and np.array_equal(self._asked, queries)):
            self._answer = self._index.kneighbors(queries, n_neighbors=self.neighbours + 1)
            self._asked = queries
        return self._answer

    def count_votes(self, distances: FloatArray, nearest: IntArray) -> FloatArray:
        """Return ln of the shares of votes of these neighbours."""
        weights = weigh_by_distance(distances, self._index.weights)
        votes = np.zeros((len(nearest), self.classes.size))
        rows = np.arange(len(nearest))
        for place in range(self.neighbours):  # rows are distinct within one place, so += loses none
            votes[rows, self.codes[nearest[:, place]]] += weights[:, place]
        with np.errstate(divide="ignore", invalid="ignore"):  # classes, or queries, without votes
            result: FloatArray = np.log(votes / votes.sum(axis=1, keepdims=True))
        return result


class MappedNeighbours(MappedModel):
    """Nearest neighbours behind a map: without a record, all distances change."""

    plain: NearestLabels

    def __init__(self, estimator: Any, mapped: Mapped, y: Any) -> None:
        plain = NearestLabels(estimator, mapped.map.compute(None), y)
        super().__init__(estimator, mapped, y, plain)
        self._search = NearestSearch(mapped.map, plain.neighbours)
        self.block = min(self.block, self._search.block)

    def score(
        self, label: int, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, BoolArray]:
        """Return ln p at records without each."""
        distances, nearest, safe = self._search.find(records, weights)
        return self.plain.count_votes(distances, nearest), safe


class NearestSearch:
    """A search for the nearest neighbours of records behind a map, without each.

    A squared distance is a sum over pairs of fixed columns, whose products do not change.
    """

    def __init__(self, found: Map, neighbours: int) -> None:
        self._map, self._k = found, neighbours
        rows, (n, width) = found.rows, found.basis.shape
        terms = rows.shape[1] - 1  # without the constant, which cancels
        self.block = max(1, _BLOCK // max(n, (neighbours + _MORE) * rows.size))
        self._products: FloatArray | None = None
        if terms**2 * len(rows) <= width * len(rows) and terms**2 * len(rows) * n <= MOST_CELLS:
            one, other = 1 + np.indices((terms, terms)).reshape(2, -1)
            pairs = np.stack([rows[:, one], rows[:, other]]).reshape(2, -1)
            keys, places = np.unique(np.sort(pairs, axis=0), axis=1, return_inverse=True)
            self._products = found.basis[:, keys[0]] * found.basis[:, keys[1]]
            self._pairs = one, other
            self._add_pairs = _add_up(places.reshape(-1), keys.shape[1])
            self._add_rows = _add_up(rows.ravel(), width)
        else:
            self.block = max(1, self.block // len(rows))

    def find(
        self, records: IntArray, weights: FloatArray
    ) -> tuple[FloatArray, IntArray, BoolArray]:
        """Return distances of the nearest of each record, which they are, and if that is safe."""
        basis, rows = self._map.basis, self._map.rows
        gone, b = basis[records], len(records)
        safe = np.ones(b, bool)
        weights = weights * (rows > 0)  # what is added to all cancels
        if self._products is None:
            wide = widen(weights, rows, basis.shape[1])
            own = np.einsum("bp,bpk->bk", gone, wide)
            squares = ((basis @ wide - own[:, None]) ** 2).sum(axis=2)
        else:
            pairs = weights[:, :, self._pairs[0]] * weights[:, :, self._pairs[1]]
            along = weights * pull(weights, rows, gone)[:, :, None]
            squares = (self._add_pairs @ pairs.reshape(b, -1).T).T @ self._products.T
            squares -= 2 * (self._add_rows @ along.reshape(b, -1).T).T @ basis.T
            # Up to a constant for each record, the square of its own columns
            mean = squares.mean(axis=1) - squares[np.arange(b), records]
            safe = np.abs(squares).max(axis=1) <= _DIGITS * mean
        squares[np.arange(b), records] = np.inf
        some = min(self._k + _MORE, len(basis) - 1)
        near = np.argpartition(squares, some - 1, axis=1)[:, :some]
        near.sort(axis=1)  # ties go to the first, as in a search
        away = (basis[near] - gone[:, None]).reshape(-1, basis.shape[1])
        moved = pull(np.repeat(weights, some, axis=0), rows, away).reshape(b, some, -1)
        distances = np.sqrt((moved**2).sum(axis=2))
        order = np.argsort(distances, axis=1, kind="stable")[:, : self._k]
        return (
            np.take_along_axis(distances, order, axis=1),
            np.take_along_axis(near, order, axis=1),
            safe,
        )


def _add_up(places: IntArray, size: int) -> Any:
    """Return the matrix that adds entries with the same place."""
    return scipy.sparse.csr_array(
        (np.ones(places.size), (places, np.arange(places.size))), (size, places.size)
    )


def is_euclidean(estimator: Any) -> bool:
    """Tell whether an estimator's distances are Euclidean."""
    plain = estimator.metric == "euclidean" or (
        estimator.metric == "minkowski" and estimator.p == 2
    )
    return plain and estimator.metric_params is None


def weigh_by_distance(distances: FloatArray, setting: Any) -> FloatArray:
    """Return weights of votes as in scikit-learn: with any at distance 0, only those vote."""
    if setting is None or setting == "uniform":
        return np.ones_like(distances)
    if setting != "distance":
        return np.asarray(setting(distances))
    same = distances == 0.0
    with np.errstate(divide="ignore"):
        inverse = 1.0 / distances
    return np.where(same.any(axis=1, keepdims=True), same, inverse)


def _refuse(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    if estimator.metric == "precomputed":
        return "precomputed distances"
    if np.shape(y)[0] <= estimator.n_neighbors:
        return "as many neighbours as records"
    return None


def _refuse_mapped(estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
    if not is_euclidean(estimator):
        return "distances that are not Euclidean"
    return _refuse(estimator, X, y)


NEIGHBOURS = Family(
    "k nearest neighbours",
    NearestLabels,
    _refuse,
    compares_all=True,
    searches=True,
    fit_mapped=MappedNeighbours,
    refuses_mapped=_refuse_mapped,
)
