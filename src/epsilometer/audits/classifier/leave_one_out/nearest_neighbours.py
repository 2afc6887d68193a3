"""Remove one record from k nearest neighbours: look up one more neighbour for every query."""

from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.families import Family, Removable
from epsilometer.audits.classifier.leave_one_out.scaling import Peeled
from epsilometer.audits.classifier.sklearn_models import clone_estimator, take_rows
from epsilometer.types import FloatArray, IntArray

_BLOCK = 1 << 22  # distances computed at a time
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
        self._k = int(self._index.n_neighbors)
        self._asked: Any = None
        self._answer: tuple[FloatArray, IntArray]

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        distances, nearest = self._find_nearest(queries)
        return self._count_votes(distances[:, :-1], nearest[:, :-1])

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
        shape = (len(nearest), self._k)
        return self._count_votes(distances[stays].reshape(shape), nearest[stays].reshape(shape))

    def _find_nearest(self, queries: Any) -> tuple[FloatArray, IntArray]:
        # The same queries come with all records and without each: one search serves both
        if not (isinstance(queries, np.ndarray) and np.array_equal(self._asked, queries)):
            self._answer = self._index.kneighbors(queries, n_neighbors=self._k + 1)
            self._asked = queries
        return self._answer

    def _count_votes(self, distances: FloatArray, nearest: IntArray) -> FloatArray:
        weights = weigh_by_distance(distances, self._index.weights)
        votes = np.zeros((len(nearest), self.classes.size))
        rows = np.arange(len(nearest))
        for place in range(self._k):  # rows are distinct within one place, so += loses none
            votes[rows, self.codes[nearest[:, place]]] += weights[:, place]
        with np.errstate(divide="ignore", invalid="ignore"):  # classes, or queries, without votes
            result: FloatArray = np.log(votes / votes.sum(axis=1, keepdims=True))
        return result


class ScaledNeighbours(NearestLabels):
    """Nearest neighbours behind scaling: without a record, all distances change."""

    def __init__(self, estimator: Any, peeled: Peeled, y: Any) -> None:
        self._peeled = peeled
        super().__init__(estimator, peeled.scaled, y)

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        return super().log_proba(self._peeled.scale(np.asarray(queries, np.float64)))

    def remove(self, label: int, records: IntArray, at: Any) -> FloatArray:
        """Return ln p without records of any class."""
        own = at is None
        queries = self.features[records] if own else self._peeled.scale(np.asarray(at, np.float64))
        ratio = (self._peeled.spread / self._peeled.spread_without(records)) ** 2
        rows = max(1, _BLOCK // len(self.features))
        parts = []
        for start in range(0, len(queries), rows):
            part = slice(start, start + rows)
            each = part if own else slice(None)
            parts.append(self._vote_without(queries[part], records[each], ratio[each]))
        return np.concatenate(parts)

    def _vote_without(self, queries: FloatArray, gone: IntArray, ratio: FloatArray) -> FloatArray:
        """Return votes of the nearest, with columns rescaled and without one record each."""
        z = self.features
        squares = ratio @ (z**2).T - 2 * (ratio * queries) @ z.T  # up to a constant per query
        rows = np.arange(len(queries))
        squares[rows, gone] = np.inf
        some = min(self._k + _MORE, z.shape[0] - 1)
        near = np.argpartition(squares, some - 1, axis=1)[:, :some]
        near.sort(axis=1)  # ties go to the first, as in a search
        weighed = ratio[:, None, :] * (queries[:, None, :] - z[near]) ** 2
        distances = np.sqrt(weighed.sum(axis=2))
        order = np.argsort(distances, axis=1, kind="stable")[:, : self._k]
        return self._count_votes(
            np.take_along_axis(distances, order, axis=1), np.take_along_axis(near, order, axis=1)
        )


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


def _refuse_scaled(estimator: Any, peeled: Peeled) -> bool:
    """Tell whether distances are not Euclidean."""
    plain = estimator.metric == "euclidean" or (
        estimator.metric == "minkowski" and estimator.p == 2
    )
    return not plain or estimator.metric_params is not None


NEIGHBOURS = Family(
    "k nearest neighbours",
    NearestLabels,
    _refuse,
    compares_all=True,
    searches=True,
    fit_scaled=ScaledNeighbours,
    refuses_scaled=_refuse_scaled,
)
