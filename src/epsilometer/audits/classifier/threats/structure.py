"""Count records that a model singles out by its structure: answers and leaves that few share."""

import copy
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from epsilometer.audits.classifier.attacks.shadows import show_logs
from epsilometer.audits.classifier.model_tables import follow_records
from epsilometer.audits.classifier.sklearn_models import identify
from epsilometer.types import BoolArray, FloatArray, IntArray

SMALLEST = 5  # records that share an answer, below which each of them is singled out
_STEPS = 0.5  # share of records with a shared answer from which answers come in steps
_DIGITS = 12  # digits by which answers are compared: later ones depend on the order of sums
_TREES = re.compile("Tree|Forest|Boost|GBM|XGB|Cart|Rule")  # in names of models that have leaves
_BY_BINS = ("sklearn.HistGradientBoostingClassifier", "sklearn.HistGradientBoostingRegressor")


@dataclass(frozen=True, eq=False)
class Structure:
    """Records that are singled out by answers that few share.

    Attributes:
        in_steps: Whether answers come in steps, as those of trees do; if not, a unique answer
            means nothing.
        singled_out: Which records have an answer that fewer than ``SMALLEST`` records share.
    """

    in_steps: bool
    singled_out: BoolArray


def measure_structure(
    log_proba: FloatArray, unseen: FloatArray, *, decimals: int | None
) -> Structure:
    """Find the records whose shown answer few others share.

    Answers come in steps if at least half of the records that a model was not trained on share
    their answer with another. A linear model gives everyone a different answer, member or not, so
    its answers single out no one.

    Args:
        log_proba: ln p of the model trained on all records, shape ``(records, classes)``.
        unseen: ln p of a model that was trained on some of them, at the others.
        decimals: Number of decimals of shown probabilities; None: all; −1: the class alone.

    Example:
        >>> steps = np.log(np.repeat([[0.25, 0.75], [0.5, 0.5]], [3, 7], axis=0))
        >>> found = measure_structure(steps, steps, decimals=None)
        >>> found.in_steps, int(found.singled_out.sum())
        (True, 3)
    """
    sizes = _count_alike(show_logs(log_proba, decimals))
    in_steps = bool(np.mean(_count_alike(show_logs(unseen, decimals)) > 1) >= _STEPS)
    return Structure(in_steps, sizes < SMALLEST)


def _count_alike(log_proba: FloatArray) -> IntArray:
    """Return how many records share each record's answer, itself included."""
    shown = np.round(np.exp(log_proba), _DIGITS)
    _, same, counts = np.unique(shown, axis=0, return_inverse=True, return_counts=True)
    return np.asarray(counts[same.reshape(-1)], np.int64)


class Leaves(NamedTuple):
    """How many records share the leaves of each record.

    Attributes:
        sizes: Fewest records in a leaf of each record, over all trees; None if none were read.
        unread: Names of models whose leaves could not be read.
    """

    sizes: IntArray | None
    unread: tuple[str, ...]


def count_in_leaves(model: Any, X: Any) -> Leaves:  # noqa: N803 - as in scikit-learn
    """Return how many records share a leaf, over all trees inside a fitted model.

    Example:
        >>> from sklearn.ensemble import VotingClassifier
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> X, y = np.arange(10.0)[:, None], np.repeat([0, 1], [2, 8])
        >>> vote = VotingClassifier([("tree", DecisionTreeClassifier())]).fit(X, y)
        >>> count_in_leaves(vote, X).sizes.tolist()
        [2, 2, 8, 8, 8, 8, 8, 8, 8, 8]
    """
    route = follow_records(model, X)
    sizes: IntArray | None = None
    unread, parts = set(), set()
    for estimator, features in route.reached:
        name = type(estimator).__name__
        try:
            found = _read_sizes(estimator, features)
        except Exception:  # no trees, such as gblinear, or features that it does not take
            unread.add(name)
            continue
        if found is not None:
            sizes = found if sizes is None else np.minimum(sizes, found)
            parts |= {type(part).__name__ for part in _list_parts(estimator)}
        elif _TREES.search(name) and not _list_parts(estimator):
            unread.add(name)
    unread |= {name for name in route.lost if _TREES.search(name)} - parts
    return Leaves(sizes, tuple(sorted(unread)))


def _list_parts(estimator: Any) -> list[Any]:
    """Return the fitted parts of an ensemble, whose own leaves are read."""
    return [*np.ravel(np.array(getattr(estimator, "estimators_", ()), object))]


def _read_sizes(estimator: Any, features: Any) -> IntArray | None:
    """Return the size of the smallest leaf of each record; None for a model without leaves."""
    if identify(estimator) in _BY_BINS:
        return _read_bins(estimator, features)
    if hasattr(estimator, "apply"):
        leaves = estimator.apply(features)
    elif hasattr(estimator, "calc_leaf_indexes"):  # CatBoost
        leaves = estimator.calc_leaf_indexes(features)
    elif identify(estimator).startswith("lightgbm."):
        leaves = estimator.predict(features, pred_leaf=True)
    else:
        return None
    table = np.asarray(leaves)
    return _count_smallest(table.reshape(len(table), -1))


def _count_smallest(leaves: FloatArray | IntArray) -> IntArray:
    """Return how many records share each record's leaf, in the tree where they are fewest."""
    smallest = np.full(len(leaves), len(leaves))
    for each in leaves.T:
        _, same, counts = np.unique(each, return_inverse=True, return_counts=True)
        smallest = np.minimum(smallest, counts[same])
    return smallest


def _read_bins(model: Any, features: Any) -> IntArray:
    """Return the smallest leaf of each record, by its records and by the count that it holds.

    Leaves get their numbers as values, so that the sum over trees of one iteration tells the leaf.
    """
    one = copy.copy(model)
    one._baseline_prediction = np.zeros_like(model._baseline_prediction)
    smallest = np.full(len(features), len(features))
    for iteration in model._predictors:
        numbered = [copy.copy(tree) for tree in iteration]
        for tree in numbered:
            tree.nodes = tree.nodes.copy()
            tree.nodes["value"] = np.arange(len(tree.nodes))
        one._predictors = [numbered]
        leaves = np.asarray(one._raw_predict(features)).astype(np.int64)
        held = [tree.nodes["count"][at] for tree, at in zip(iteration, leaves.T, strict=True)]
        smallest = np.minimum(smallest, np.min([_count_smallest(leaves), *held], axis=0))
    return smallest
