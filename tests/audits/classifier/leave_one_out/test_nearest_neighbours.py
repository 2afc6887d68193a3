"""Nearest neighbours without a record, against scikit-learn's fits."""
# ruff: noqa: N806 - X, as in scikit-learn

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import scale

from epsilometer.audits.classifier.leave_one_out.nearest_neighbours import NEIGHBOURS
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from tests.audits.classifier.leave_one_out.brute_force import (
    assert_is_leave_one_out,
    assert_same,
    refitted,
)

FAMILY = NEIGHBOURS
IRIS, SPECIES = load_iris(return_X_y=True)
CANCER, MALIGNANT = load_breast_cancer(return_X_y=True)
CANCER = scale(CANCER)
EXACT = 1e-14  # votes are counted; sums of inverse distances are in another order


def halving(distances: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(0.5**distances)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_neighbors": 1},
        {"n_neighbors": 20, "weights": "distance"},
        {"weights": halving},
        {"weights": None},
        {"metric": "manhattan"},
        {"metric": "cosine"},
        {"p": 3, "algorithm": "ball_tree"},
        {"algorithm": "kd_tree", "leaf_size": 3},
        {"metric": "minkowski", "p": 1.5, "metric_params": {"w": np.arange(1.0, 31.0)}},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
@pytest.mark.in_turn(2)
def test_agrees_with_refits(settings: dict[str, Any]) -> None:
    model = KNeighborsClassifier(**settings)
    records = np.arange(0, 569, 20)
    assert_is_leave_one_out(FAMILY, model, CANCER, MALIGNANT, records=records, atol=EXACT)


def test_ten_classes() -> None:
    X, y = load_digits(return_X_y=True)
    model = KNeighborsClassifier()
    assert_is_leave_one_out(FAMILY, model, X[:400], y[:400], records=range(60), atol=EXACT)


def test_last_record_of_a_class() -> None:
    y = np.array(["b", "c", "d"])[SPECIES]
    y[7] = "a"
    model = KNeighborsClassifier(3, weights="distance")
    assert_is_leave_one_out(FAMILY, model, IRIS, y, records=[6, 7, 8], atol=EXACT)


def test_more_twins_than_neighbours() -> None:
    """The record need not be among its own k + 1 nearest: then nothing changes without it."""
    X, y = np.zeros((20, 2)), np.zeros(20, int)
    X[10:], y[10:] = 1.0, 1
    for weights in ("uniform", "distance"):
        model = FAMILY.fit(KNeighborsClassifier(3, weights=weights), X, y)
        np.testing.assert_array_equal(model.own(np.arange(20)), model.log_proba(X))


def test_ties_are_broken_alike_with_the_record_and_without() -> None:
    """Eight records at one distance, three vote: taking a far one changes nothing."""
    X = np.array([[1.0], [-1.0]] * 4 + [[50.0]])
    y = np.array([0, 0, 1, 1, 0, 0, 1, 1, 0])
    model = FAMILY.fit(KNeighborsClassifier(3), X, y)
    np.testing.assert_array_equal(model.without(8, [[0.0]]), model.log_proba([[0.0]]))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["uniform", "distance"]))
@settings(max_examples=15)
def test_random_data_without_ties(seed: int, weights: str) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(8, 40))
    X, y = rng.standard_normal((n, 3)), rng.permutation(np.arange(n) % 3)
    model = KNeighborsClassifier(int(rng.integers(1, n)), weights=weights, algorithm="kd_tree")
    assert_is_leave_one_out(FAMILY, model, X, y, atol=EXACT)


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, np.ndarray.tolist])
def test_other_kinds_of_features(kind: Any) -> None:
    X = kind(CANCER[:100])
    model = FAMILY.fit(KNeighborsClassifier(algorithm="brute"), X, MALIGNANT[:100])
    by_hand = refitted(
        KNeighborsClassifier(algorithm="brute"), CANCER[:100], MALIGNANT[:100], 5, CANCER[[5]]
    )
    assert_same(model.own(np.array([5])), by_hand, atol=EXACT)


def test_what_is_refitted_instead() -> None:
    assert FAMILY.refuses(KNeighborsClassifier(150), IRIS, SPECIES) == (
        "as many neighbours as records"
    )
    precomputed = KNeighborsClassifier(metric="precomputed")
    assert FAMILY.refuses(precomputed, np.eye(150), SPECIES) == "precomputed distances"


def test_says_that_ties_may_be_broken_otherwise() -> None:
    found = pdtp(KNeighborsClassifier(), IRIS, SPECIES)
    assert found.path == "exact: k nearest neighbours"
    assert any("Ties" in caveat for caveat in found.caveats)
