"""Trees of fixed structure without a record, against fitting them again."""
# ruff: noqa: N806 - X, as in scikit-learn

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from epsilometer.audits.classifier.leave_one_out import families
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.audits.classifier.leave_one_out.trees import (
    FIXED_TREE,
    RANDOM_TREES,
    FixedStructure,
    RandomDecisionTrees,
)
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.leave_one_out.brute_force import assert_is_leave_one_out

REFERENCE = Path(__file__).parents[3] / "reference" / "pdtp"
IRIS, SPECIES = load_iris(return_X_y=True)
NAMED = np.array(["b", "c", "d"])[SPECIES]
NAMED[7] = "a"  # the only one


@pytest.mark.parametrize("average", ["arithmetic", "geometric"])
@pytest.mark.parametrize("depth", [1, 5])
def test_random_trees_agree_with_refits(depth: int, average: Any) -> None:
    model = RandomDecisionTrees(12, depth=depth, bounds=(0, 8), average=average, seed=3)
    family = RANDOM_TREES
    records = np.arange(0, 150, 7)
    assert_is_leave_one_out(family, model, IRIS, NAMED, records=records, atol=1e-12)


def test_random_trees_learn() -> None:
    """More than chance (0.1) by far, on digits they were not filled with."""
    X, y = load_digits(return_X_y=True)
    model = RandomDecisionTrees(100, depth=10, bounds=(0, 16))
    assert cross_val_score(model, X, y, cv=3).min() > 0.8


def test_structure_does_not_depend_on_records(rng: np.random.Generator) -> None:
    one = RandomDecisionTrees(5, seed=1).fit(rng.random((30, 4)), np.arange(30) % 2)
    other = RandomDecisionTrees(5, seed=1).fit(rng.random((80, 4)) / 9, np.arange(80) % 3)
    np.testing.assert_array_equal(one.features_, other.features_)
    np.testing.assert_array_equal(one.thresholds_, other.thresholds_)
    another = RandomDecisionTrees(5, seed=2).fit(rng.random((30, 4)), np.arange(30) % 2)
    assert (one.thresholds_ != another.thresholds_).any()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_every_question_can_be_answered_either_way(seed: int) -> None:
    """Thresholds lie within what earlier questions left: a complete tree has no dead node."""
    model = RandomDecisionTrees(1, depth=4, bounds=[(0, 1), (-3, 9)], seed=seed)
    model.fit([[0.0, 0.0], [1.0, 9.0]], [0, 1])
    low, high = np.array([[0.0, -3.0]]), np.array([[1.0, 9.0]])
    for level in range(4):
        nodes = np.arange(2**level)
        asked = model.features_[0, 2**level - 1 + nodes]
        at = model.thresholds_[0, 2**level - 1 + nodes]
        assert (low[nodes, asked] <= at).all()
        assert (at <= high[nodes, asked]).all()
        low, high = np.repeat(low, 2, axis=0), np.repeat(high, 2, axis=0)
        high[2 * nodes, asked] = at
        low[2 * nodes + 1, asked] = at


def test_random_trees_in_pipelines_and_clones() -> None:
    model = make_pipeline(MinMaxScaler(clip=True), RandomDecisionTrees(trees=7))
    assert (
        clone(model).set_params(randomdecisiontrees__trees=9).fit(IRIS, NAMED).score(IRIS, NAMED)
        > 0.8
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bounds": (0, 1)}, "within their bounds, got others in column 0"),
        ({"bounds": (1, 0)}, "low < high"),
        ({"bounds": [(0, 1)] * 3}, "one pair for each of 4 features"),
        ({"trees": 0}, "trees ≥ 1"),
        ({"depth": 40}, "depth ≤ 20"),
        ({"smoothing": 0.0}, "smoothing > 0"),
        ({"average": "median"}, "'arithmetic' or 'geometric'"),
    ],
)
def test_random_trees_refuse(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        RandomDecisionTrees(**{"bounds": (0, 8), **changed}).fit(IRIS, SPECIES)


@pytest.mark.parametrize("kind", [DecisionTreeClassifier, ExtraTreeClassifier])
@pytest.mark.parametrize("depth", [2, None])
def test_fixed_structure_agrees_with_refits(kind: Any, depth: int | None) -> None:
    """Grown to the end, most records are alone in their leaf: their ancestors answer."""
    tree = kind(max_depth=depth, random_state=0).fit(IRIS, NAMED)
    family = FIXED_TREE
    assert_is_leave_one_out(family, FixedStructure(tree), IRIS, NAMED, atol=1e-14)


def test_fixed_structure_has_the_leaves_of_its_tree() -> None:
    tree = DecisionTreeClassifier(max_depth=3, random_state=0).fit(IRIS, NAMED)
    found = FixedStructure(tree).fit(IRIS, NAMED).predict_proba(IRIS)
    np.testing.assert_allclose(found, tree.predict_proba(IRIS), atol=1e-15)


def test_a_decision_tree_itself_is_refitted() -> None:
    """Its structure moves with a record; held fixed it is another algorithm, and says so."""
    tree = DecisionTreeClassifier(random_state=0).fit(IRIS, SPECIES)
    assert families.family_of(tree) is None
    found = pdtp(FixedStructure(tree), IRIS, SPECIES)
    assert found.path == "exact: leaf counts, structure held fixed"
    assert any("held fixed" in caveat for caveat in found.caveats)


def test_held_fixed_it_misses_records_that_move_questions() -> None:
    """The reference refits the tree: 7 records change its answer wholly; by counts alone 3 do."""
    case = np.load(REFERENCE / "pdtp_dt_iris.npz")
    tree = DecisionTreeClassifier(random_state=0).fit(case["X"], case["y"])
    found = pdtp(FixedStructure(tree), case["X"], case["y"])
    np.testing.assert_array_equal(np.exp(found.full), case["full"])
    refitted = case["pdtp_unbinned"] > 1
    assert refitted.sum() == 7
    assert (found.values > 1).sum() == 3
    assert not ((found.values > 1) & ~refitted).any()


def test_fixed_structure_refuses() -> None:
    with pytest.raises(InvalidArgument, match="a fitted decision tree"):
        FixedStructure(DecisionTreeClassifier()).fit(IRIS, SPECIES)
    weighted = DecisionTreeClassifier(class_weight="balanced").fit(IRIS, SPECIES)
    with pytest.raises(InvalidArgument, match="without class_weight"):
        FixedStructure(weighted).fit(IRIS, SPECIES)
