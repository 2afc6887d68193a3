"""Trees of fixed structure without one record: one less in each of its leaves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.estimators import is_exactly, labels
from epsilometer.types import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:  # at run time whoever has such a tree has imported it
    from epsilometer.audits.classifier.leave_one_out.trees import (
        FixedStructure,
        RandomDecisionTrees,
    )

_MODULE = "epsilometer.audits.classifier.leave_one_out.trees"
_BLOCK = 1 << 20  # numbers of a working array


@dataclass(frozen=True)
class RandomTrees:
    """``audits.classifier.leave_one_out.trees.RandomDecisionTrees``."""

    name: str = "random decision trees"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``RandomDecisionTrees``."""
        return is_exactly(estimator, _MODULE, "RandomDecisionTrees")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Nothing."""
        return None

    def fit(self, estimator: Any, X: Any, y: Any) -> "RandomLeaves":  # noqa: N803
        """Counts of all records."""
        from sklearn.base import clone

        model = clone(estimator).fit(X, y)
        return RandomLeaves(model, model.apply(X), labels(y)[1])


@dataclass(frozen=True)
class FixedTree:
    """``trees.FixedStructure``: leaves of a decision tree whose questions stay."""

    name: str = "leaf counts, structure held fixed"

    def recognises(self, estimator: Any) -> bool:
        """Exactly ``FixedStructure``; a ``DecisionTreeClassifier`` is refitted."""
        return is_exactly(estimator, _MODULE, "FixedStructure")

    def refuses(self, estimator: Any, X: Any, y: Any) -> str | None:  # noqa: N803
        """Nothing."""
        return None

    def fit(self, estimator: Any, X: Any, y: Any) -> "FixedLeaves":  # noqa: N803
        """Counts of all records."""
        from sklearn.base import clone

        model = clone(estimator).fit(X, y)
        return FixedLeaves(model, model.apply(X), labels(y)[1])


class RandomLeaves:
    """Counts of every leaf, and what they are without one record.

    Where the last record of a class goes, its column goes from the smoothing too.
    """

    def __init__(self, model: "RandomDecisionTrees", leaves: IntArray, codes: IntArray) -> None:
        self.classes = model.classes_
        self._model, self._leaves, self._codes = model, leaves, codes
        self._present = np.bincount(codes)

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        return np.log(self._model.predict_proba(queries))

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        records = np.asarray(records, np.int64)
        same = np.ones((len(records), self._model.trees), bool)
        return self._votes(self._leaves[records], same, self._codes[records])

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        leaves = self._model.apply(queries)
        codes = np.full(len(leaves), self._codes[record])
        return self._votes(leaves, leaves == self._leaves[record], codes)

    def _votes(self, leaves: IntArray, same: BoolArray, codes: IntArray) -> FloatArray:
        result = np.full((len(leaves), self.classes.size), -np.inf)
        block = max(1, _BLOCK // (self._model.trees * self.classes.size))
        for c in np.unique(codes):
            kept = np.arange(self.classes.size)
            if self._present[c] == 1:
                kept = np.delete(kept, c)
            places = np.flatnonzero(codes == c)
            for first in range(0, places.size, block):
                some = places[first : first + block]
                counts = self._model.counts_[np.arange(self._model.trees), leaves[some]]
                counts[:, :, c] -= same[some]
                result[np.ix_(some, kept)] = votes(
                    counts[:, :, kept],
                    smoothing=self._model.smoothing,
                    average=self._model.average,
                )
        return result


class FixedLeaves:
    """Counts of every node of one tree, and what they are without one record."""

    caveats = (
        "The tree's structure was held fixed: only leaf counts move with a record. A decision tree "
        "trained again may also split elsewhere.",
    )

    def __init__(self, model: "FixedStructure", leaves: IntArray, codes: IntArray) -> None:
        self.classes = model.classes_
        self._model, self._leaves, self._codes = model, leaves, codes

    def log_proba(self, queries: Any) -> FloatArray:
        """ln p of the model trained on all records."""
        return shares(self._model.counts_, self._model.parents_, self._model.apply(queries))

    def own(self, records: IntArray) -> FloatArray:
        """ln p at a record's features of the model without it."""
        records = np.asarray(records, np.int64)
        gone = np.eye(self.classes.size)[self._codes[records]]
        return shares(self._model.counts_, self._model.parents_, self._leaves[records], gone)

    def without(self, record: int, queries: Any) -> FloatArray:
        """ln p of the model without that record."""
        counts = self._model.counts_.copy()
        node = int(self._leaves[record])
        while node >= 0:
            counts[node, self._codes[record]] -= 1
            node = int(self._model.parents_[node])
        return shares(counts, self._model.parents_, self._model.apply(queries))


def votes(counts: FloatArray, *, smoothing: float, average: str) -> FloatArray:
    """ln p of trees whose leaves hold these counts, shape ``(rows, trees, classes)``.

    Example:
        >>> np.exp(votes(np.array([[[1.0, 0.0], [3.0, 0.0]]]), smoothing=1, average="arithmetic"))
        array([[0.73333333, 0.26666667]])
    """
    smoothed = counts + smoothing
    shares = smoothed / smoothed.sum(axis=2, keepdims=True)
    if average == "arithmetic":
        arithmetic: FloatArray = np.log(shares.mean(axis=1))
        return arithmetic
    joint = np.log(shares).mean(axis=1)
    geometric: FloatArray = joint - np.log(np.exp(joint).sum(axis=1, keepdims=True))
    return geometric


def shares(
    counts: FloatArray, parents: IntArray, nodes: IntArray, gone: FloatArray | None = None
) -> FloatArray:
    """ln of each class's share in nodes, or in the nearest ancestor that somebody is in.

    ``gone`` is taken from the counts of a node and of every ancestor, shape ``(nodes, classes)``.

    Example:
        >>> shares(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([-1, 0]), np.array([1])).round(2)
        array([[-0.69, -0.69]])
    """
    taken = np.zeros((len(nodes), counts.shape[1])) if gone is None else gone
    nodes, left = nodes.copy(), counts[nodes] - taken
    while (empty := left.sum(axis=1) == 0).any():
        nodes[empty] = parents[nodes[empty]]
        left[empty] = counts[nodes[empty]] - taken[empty]
    with np.errstate(divide="ignore"):  # a class that nobody has there
        result: FloatArray = np.log(left / left.sum(axis=1, keepdims=True))
    return result
