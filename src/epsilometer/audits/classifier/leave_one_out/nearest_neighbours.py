"""Remove one record from k nearest neighbours: look up one neighbour more for every query."""

from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.families import Family, Removable
from epsilometer.audits.classifier.sklearn_models import clone_estimator, take_rows
from epsilometer.types import FloatArray, IntArray


class NearestLabels(Removable):
    """Votes of the k nearest, and of the k nearest others.

    The k + 1 nearest are looked up once. Without a record that is among them the last moves
    up; without any other record nothing changes, so that both models break ties alike. A refit
    may break them otherwise: among records at the same distance as the k-th neighbour,
    which ones vote is left to the order in which scikit-learn's search meets them.
    """

    caveats = (
        "Ties at the k-th neighbour are broken alike with the record and without it; a refit may "
        "break them otherwise.",
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
        """Return ln p at each record's features without it, by one search for all."""
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
        stays[stays.all(axis=1), -1] = False  # not among them: the k nearest stay as they are
        shape = (len(nearest), self._k)
        return self._count_votes(distances[stays].reshape(shape), nearest[stays].reshape(shape))

    def _find_nearest(self, queries: Any) -> tuple[FloatArray, IntArray]:
        # The same records are asked for with all of them and without each: one search for both
        if not (isinstance(queries, np.ndarray) and np.array_equal(self._asked, queries)):
            self._answer = self._index.kneighbors(queries, n_neighbors=self._k + 1)
            self._asked = queries
        return self._answer

    def _count_votes(self, distances: FloatArray, nearest: IntArray) -> FloatArray:
        weights = _weigh(distances, self._index.weights)
        votes = np.zeros((len(nearest), self.classes.size))
        rows = np.arange(len(nearest))
        for place in range(self._k):  # rows are distinct within one place, so += loses none
            votes[rows, self.codes[nearest[:, place]]] += weights[:, place]
        with np.errstate(divide="ignore", invalid="ignore"):  # classes without votes; none at all
            result: FloatArray = np.log(votes / votes.sum(axis=1, keepdims=True))
        return result


def _weigh(distances: FloatArray, setting: Any) -> FloatArray:
    """Return votes by distance, as scikit-learn has them: at distance 0 only those at 0 vote."""
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


NEIGHBOURS = Family("k nearest neighbours", NearestLabels, _refuse)
