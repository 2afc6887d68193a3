"""Count labels in trees of fixed structure, with and without one record: two estimators.

Both have scikit-learn's interface. Their leaves count labels, so removing a record subtracts one
from each of its leaves. A ``DecisionTreeClassifier`` is different: without a record it may split
elsewhere, and has to be refitted.
"""

from typing import Any, Literal, TypeAlias

import numpy as np

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.audits.classifier.leave_one_out.families import Family, Removable
from epsilometer.audits.classifier.sklearn_models import (
    check_choice,
    clone_estimator,
    read_labels,
    read_matrix,
)
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

with needs("sklearn", extra="sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin

Average: TypeAlias = Literal["arithmetic", "geometric"]
_BLOCK = 1 << 20  # numbers of a working array


class _LeafClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predict the likeliest class; subclasses compute ln p from counts of leaves."""

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return the probability of each class, shape ``(rows, classes)``."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def predict(self, X: Any) -> Any:  # noqa: N803
        """Return the likeliest class."""
        return self.classes_[self.predict_log_proba(X).argmax(axis=1)]


class RandomDecisionTrees(_LeafClassifier):
    """Random decision trees (Fan, Wang, Yu and Ma 2003): random splits, leaves that count labels.

    Every inner node splits a uniformly drawn feature, at a threshold drawn uniformly from the
    node's range of that feature. Only the number of features and the bounds are used, so bounds
    have to be known beforehand: computed from the data, they would leak.

    Args:
        trees: Number of trees.
        depth: Splits from root to leaf.
        bounds: Smallest and largest value, of all features, or shape ``(features, 2)``.
        smoothing: Laplace smoothing: records of each class to add to each leaf.
        average: "arithmetic" over trees as in Fan et al.; "geometric" as in training_privacy's
            Proposition 6.8, which is proved before the classes are made to sum to 1, as here.
        seed: Seed of the structure.

    Example:
        >>> model = RandomDecisionTrees(trees=50, depth=3).fit([[0.1], [0.2], [0.9]], [0, 0, 1])
        >>> model.predict([[0.15], [0.95]])
        array([0, 1])
    """

    def __init__(
        self,
        trees: int = 30,
        *,
        depth: int = 6,
        bounds: Any = (0.0, 1.0),
        smoothing: float = 1.0,
        average: Average = "arithmetic",
        seed: int = 0,
    ) -> None:
        self.trees, self.depth, self.bounds = trees, depth, bounds
        self.smoothing, self.average, self.seed = smoothing, average, seed

    def fit(self, X: Any, y: Any) -> "RandomDecisionTrees":  # noqa: N803
        """Draw the structure, then count the labels in every leaf."""
        self._check()
        features = read_matrix(X)
        self.classes_, codes = read_labels(y)
        self.n_features_in_ = features.shape[1]
        low, high = self._read_bounds()
        outside = np.flatnonzero(((features < low) | (features > high)).any(axis=0))
        if outside.size:
            raise InvalidArgument(
                f"Expected features within their bounds, got others in column {outside[0]}. "
                "Give bounds that are known without the data, as (low, high) for all "
                "features or one pair for each."
            )
        rng = np.random.default_rng(self.seed)
        drawn = [_draw_structure(self.depth, low, high, rng) for _ in range(self.trees)]
        self.features_ = np.stack([asked for asked, _ in drawn])
        self.thresholds_ = np.stack([at for _, at in drawn])
        shape = (self.trees, 2**self.depth, self.classes_.size)
        places = np.ravel_multi_index(
            (np.arange(self.trees), self.apply(features), codes[:, None]), shape
        )
        counts = np.bincount(places.ravel(), minlength=int(np.prod(shape)))
        self.counts_ = counts.reshape(shape).astype(np.float64)
        return self

    def apply(self, X: Any) -> IntArray:  # noqa: N803
        """Return the leaf of every row in every tree, shape ``(rows, trees)``."""
        features = read_matrix(X)
        if features.shape[1] != self.n_features_in_:
            raise InvalidArgument(
                f"Expected {self.n_features_in_} features, got {features.shape[1]}."
            )
        rows = np.arange(len(features))
        leaves = np.empty((len(features), self.trees), np.int64)
        for tree in range(self.trees):
            node = np.zeros(len(features), np.int64)
            for _ in range(self.depth):
                asked, at = self.features_[tree, node], self.thresholds_[tree, node]
                node = 2 * node + 1 + (features[rows, asked] > at)
            leaves[:, tree] = node - (2**self.depth - 1)
        return leaves

    def predict_log_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return ln of the trees' average of the smoothed share of each class in a row's leaf."""
        return self.average_leaves(self.counts_[np.arange(self.trees), self.apply(X)])

    def average_leaves(self, counts: FloatArray) -> FloatArray:
        """Return ln p of trees whose leaves hold these counts, shape ``(rows, trees, classes)``."""
        smoothed = counts + self.smoothing
        shares = smoothed / smoothed.sum(axis=2, keepdims=True)
        if self.average == "arithmetic":
            arithmetic: FloatArray = np.log(shares.mean(axis=1))
            return arithmetic
        joint = np.log(shares).mean(axis=1)
        geometric: FloatArray = joint - np.log(np.exp(joint).sum(axis=1, keepdims=True))
        return geometric

    def _read_bounds(self) -> tuple[FloatArray, FloatArray]:
        features = self.n_features_in_
        try:
            pairs = np.broadcast_to(np.asarray(self.bounds, np.float64), (features, 2))
        except ValueError as error:
            raise InvalidArgument(
                f"Expected bounds (low, high) or one pair for each of {features} features, "
                f"got shape {np.shape(self.bounds)}."
            ) from error
        if not (np.isfinite(pairs).all() and (pairs[:, 0] < pairs[:, 1]).all()):
            raise InvalidArgument(
                f"Expected finite bounds with low < high, got {_validate.short(self.bounds)}."
            )
        return pairs[:, 0], pairs[:, 1]

    def _check(self) -> None:
        _validate.whole(1, trees=self.trees, depth=self.depth)
        _validate.whole(0, seed=self.seed)
        _validate.positive(smoothing=self.smoothing)
        check_choice(Average, average=self.average)
        if self.depth > 20:
            raise InvalidArgument(f"Expected depth ≤ 20, got {self.depth}: leaves are 2^depth.")


def _draw_structure(
    depth: int, low: FloatArray, high: FloatArray, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Return features and thresholds of inner nodes; the children of i are 2i + 1 and 2i + 2."""
    asked, at = [], []
    lows, highs = low[None], high[None]  # of the nodes of a level, shape (nodes, features)
    for _ in range(depth):
        nodes = np.arange(len(lows))
        feature = rng.integers(low.size, size=nodes.size)
        left, right = lows[nodes, feature], highs[nodes, feature]
        threshold = left + rng.random(nodes.size) * (right - left)
        asked.append(feature)
        at.append(threshold)
        lows, highs = np.repeat(lows, 2, axis=0), np.repeat(highs, 2, axis=0)
        highs[2 * nodes, feature] = threshold
        lows[2 * nodes + 1, feature] = threshold
    return np.concatenate(asked), np.concatenate(at)


class FixedStructure(_LeafClassifier):
    """The leaves of a fitted decision tree, with its splits held fixed.

    Fitting counts labels in the leaves and does not change the splits. Its leave-one-out risk is
    that of the *counts* alone, for a structure that is public or was learned from others. It is not
    that of a ``DecisionTreeClassifier``, whose structure changes too. An empty leaf answers like
    its nearest ancestor that is not empty.

    Args:
        tree: A fitted ``DecisionTreeClassifier`` or ``ExtraTreeClassifier``, without class
            weights. It is kept as it is, also by ``sklearn.clone``.

    Example:
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> tree = DecisionTreeClassifier().fit([[0], [1], [2]], ["no", "no", "yes"])
        >>> FixedStructure(tree).fit([[0], [2]], ["no", "yes"]).predict_proba([[1]])
        array([[1., 0.]])
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def __sklearn_clone__(self) -> "FixedStructure":
        return FixedStructure(self.tree)  # a cloned tree would have no structure

    def fit(self, X: Any, y: Any) -> "FixedStructure":  # noqa: N803
        """Count labels in every node."""
        if not hasattr(self.tree, "tree_"):
            raise InvalidArgument(
                f"Expected a fitted decision tree, got {type(self.tree).__name__}. Fit it first: "
                "its questions are what is held fixed."
            )
        if self.tree.class_weight is not None:
            raise InvalidArgument(
                "Expected a tree without class_weight, got one with it: leaves here count records."
            )
        self.classes_, codes = read_labels(y)
        self.n_features_in_ = self.tree.n_features_in_
        self.parents_ = _find_parents(self.tree.tree_)
        self.counts_ = np.zeros((len(self.parents_), self.classes_.size))
        np.add.at(self.counts_, (self.apply(X), codes), 1.0)
        for node in range(len(self.parents_) - 1, 0, -1):  # children come after their parents
            self.counts_[self.parents_[node]] += self.counts_[node]
        return self

    def apply(self, X: Any) -> IntArray:  # noqa: N803
        """Return the leaf of every row, as a node of the tree."""
        return np.asarray(self.tree.apply(X), np.int64)

    def predict_log_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return ln of the share of each class in a row's leaf."""
        return log_shares(self.counts_, self.parents_, self.apply(X))


def _find_parents(tree: Any) -> IntArray:
    parents = np.full(tree.node_count, -1, np.int64)
    for children in (tree.children_left, tree.children_right):
        inner = np.flatnonzero(children >= 0)
        parents[children[inner]] = inner
    return parents


def log_shares(
    counts: FloatArray, parents: IntArray, nodes: IntArray, gone: FloatArray | None = None
) -> FloatArray:
    """Return ln of each class's share in nodes, or in the nearest ancestor that is not empty.

    ``gone`` is subtracted from the counts of a node and its ancestors, shape ``(nodes, classes)``.

    Example:
        >>> counts, parents = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([-1, 0])
        >>> log_shares(counts, parents, np.array([1])).round(2)
        array([[-0.69, -0.69]])
    """
    taken = np.zeros((len(nodes), counts.shape[1])) if gone is None else gone
    nodes, left = nodes.copy(), counts[nodes] - taken
    while (empty := left.sum(axis=1) == 0).any():
        nodes[empty] = parents[nodes[empty]]
        left[empty] = counts[nodes[empty]] - taken[empty]
    with np.errstate(divide="ignore"):  # a class without records there
        result: FloatArray = np.log(left / left.sum(axis=1, keepdims=True))
    return result


class _Leaves(Removable):
    """Counts of every leaf, from which a record can be removed."""

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(X, y)
        self._model = clone_estimator(estimator).fit(X, y)
        self._leaves = self._model.apply(X)

    def read_queries(self, queries: Any) -> Any:
        """Return the queries as they are: the estimator checks them."""
        return queries

    def log_proba(self, queries: Any) -> FloatArray:
        """Return ln p of the model trained on all records."""
        return np.asarray(self._model.predict_log_proba(queries))


class RandomLeaves(_Leaves):
    """Leaves of random trees.

    If the last record of a class is removed, the class is removed from the smoothing too.
    """

    def __init__(self, estimator: Any, X: Any, y: Any) -> None:  # noqa: N803
        super().__init__(estimator, X, y)
        self.block = max(1, _BLOCK // (self._model.trees * self.classes.size))

    def remove(self, label: int, records: IntArray, at: Any) -> FloatArray:
        """Return ln p without records of one class."""
        gone = self._leaves[records]
        leaves = gone if at is None else self._model.apply(at)
        left = np.flatnonzero(self.count_without(label))
        result = np.full((len(leaves), self.classes.size), -np.inf)
        counts = self._model.counts_[np.arange(self._model.trees), leaves]
        counts[:, :, label] -= leaves == gone
        result[:, left] = self._model.average_leaves(counts[:, :, left])
        return result


class FixedLeaves(_Leaves):
    """Leaves of one tree, and all nodes above them."""

    caveats = (
        "The tree's structure was held fixed: only leaf counts change with a record. Retraining "
        "may also change the splits.",
    )

    def remove(self, label: int, records: IntArray, at: Any) -> FloatArray:
        """Return ln p without records of one class."""
        counts, parents = self._model.counts_, self._model.parents_
        if at is None:
            gone = np.eye(self.classes.size)[self.codes[records]]
            return log_shares(counts, parents, self._leaves[records], gone)
        counts, node = counts.copy(), int(self._leaves[records[0]])
        while node >= 0:
            counts[node, label] -= 1
            node = int(parents[node])
        return log_shares(counts, parents, self._model.apply(at))


RANDOM_TREES = Family("random decision trees", RandomLeaves)
FIXED_TREE = Family("leaf counts, structure held fixed", FixedLeaves)
