"""k nearest neighbours without one record: one neighbour more is looked up for everybody."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer._extras import needs
from epsilometer.audits.classifier.leave_one_out.estimators import is_exactly, labels
from epsilometer.types import FloatArray, IntArray


@dataclass(frozen=True)
class Neighbours:
    """``sklearn.neighbors.KNeighborsClassifier``, with any metric and weights it has."""

    name: str = "k nearest neighbours"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``KNeighborsClassifier``."""
        return is_exactly(estimator, "sklearn.neighbors", "KNeighborsClassifier")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Precomputed distances, and as many neighbours as there are records."""
        if estimator.metric == "precomputed":
            return "precomputed distances"
        if np.shape(y)[0] <= estimator.n_neighbors:
            return "as many neighbours as records"
        return None

    def fit(self, estimator: Any, X: Any, y: Any) -> "NearestLabels":  # noqa: N803
        """An index of all records."""
        with needs("sklearn", extra="sklearn"):
            from sklearn.base import clone
        classes, codes = labels(y)
        index = clone(estimator).fit(X, codes)
        return NearestLabels(index, X, codes, classes)


class NearestLabels:
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

    def __init__(
        self,
        index: Any,
        X: Any,  # noqa: N803
        codes: IntArray,
        classes: NDArray[Any],
    ) -> None:
        self.classes = classes
        self._index, self._records, self._codes = index, X, codes
        self._k = int(index.n_neighbors)
        self._asked: Any = None
        self._answer: tuple[FloatArray, IntArray]

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        distances, found = self._nearest(queries)
        return self._votes(distances[:, :-1], found[:, :-1])

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        records = np.asarray(records, np.int64)
        if not records.size:
            return np.empty((0, self.classes.size))
        return self._others(records, *self._nearest(_rows(self._records, records)))

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        distances, found = self._nearest(queries)
        return self._others(np.full(len(found), record), distances, found)

    def _nearest(self, queries: Any) -> tuple[FloatArray, IntArray]:
        # The same records are asked for with all of them and without each: one search for both
        if not (isinstance(queries, np.ndarray) and np.array_equal(self._asked, queries)):
            self._answer = self._index.kneighbors(queries, n_neighbors=self._k + 1)
            self._asked = queries
        return self._answer

    def _others(self, gone: IntArray, distances: FloatArray, found: IntArray) -> FloatArray:
        kept = found != gone[:, None]
        kept[kept.all(axis=1), -1] = False  # not among them: the k nearest stay as they are
        shape = (len(found), self._k)
        return self._votes(distances[kept].reshape(shape), found[kept].reshape(shape))

    def _votes(self, distances: FloatArray, found: IntArray) -> FloatArray:
        weights = _weights(distances, self._index.weights)
        votes = np.zeros((len(found), self.classes.size))
        rows = np.arange(len(found))
        for place in range(self._k):
            votes[rows, self._codes[found[:, place]]] += weights[:, place]
        with np.errstate(divide="ignore", invalid="ignore"):  # classes without votes; none at all
            result: FloatArray = np.log(votes / votes.sum(axis=1, keepdims=True))
        return result


def _weights(distances: FloatArray, setting: Any) -> FloatArray:
    """Votes by distance, as scikit-learn has them: at distance 0 only those at 0 vote."""
    if setting is None or setting == "uniform":
        return np.ones_like(distances)
    if setting != "distance":
        return np.asarray(setting(distances))
    same = distances == 0.0
    with np.errstate(divide="ignore"):
        inverse = 1.0 / distances
    return np.where(same.any(axis=1, keepdims=True), same, inverse)


def _rows(X: Any, records: IntArray) -> Any:  # noqa: N803
    if hasattr(X, "iloc"):
        return X.iloc[records]
    return (X if hasattr(X, "shape") else np.asarray(X))[records]
