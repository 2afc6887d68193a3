"""Least squares and ridge without a record, against scikit-learn's fits."""
# ruff: noqa: N806 - X, as in scikit-learn

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.linear_model import LinearRegression, RidgeClassifier

from epsilometer.audits.classifier.leave_one_out import linear
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.leave_one_out.brute_force import assert_is_leave_one_out

FAMILY = linear.RIDGE
IRIS, SPECIES = load_iris(return_X_y=True)
CANCER, MALIGNANT = load_breast_cancer(return_X_y=True)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 0.0},
        {"alpha": 100.0},
        {"fit_intercept": False},
        {"class_weight": "balanced"},
        {"class_weight": {0: 4.0}},
        {"solver": "svd"},
    ],
    ids=str,
)
@pytest.mark.parametrize("data", ["cancer", "iris"])
@pytest.mark.in_turn(3)
def test_agrees_with_refits(settings: dict[str, Any], data: str) -> None:
    X, y = (CANCER, MALIGNANT) if data == "cancer" else (IRIS, SPECIES)
    if data == "iris" and isinstance(settings.get("class_weight"), dict):
        y = np.array(["a", "b", "c"])[y]
        settings = {"class_weight": {"a": 4.0, "b": 1.0, "c": 0.5}}
    records = np.arange(0, len(y), 10)
    # The columns of cancer are a million times apart: scikit-learn itself is no nearer
    assert_is_leave_one_out(FAMILY, RidgeClassifier(**settings), X, y, records=records, atol=1e-9)


def test_ten_classes_with_columns_that_are_always_0() -> None:
    X, y = load_digits(return_X_y=True)
    assert_is_leave_one_out(FAMILY, RidgeClassifier(), X[:400], y[:400], records=np.arange(40))


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("classes", [3, 4])
def test_last_record_of_a_class(classes: int, class_weight: Any) -> None:
    """Of three classes two are left: one column, read by the logistic function."""
    y = np.array(["b", "c", "d"])[SPECIES]
    y[7] = "a"
    chosen = slice(0, 100) if classes == 3 else slice(None)
    model = RidgeClassifier(class_weight=class_weight)
    assert_is_leave_one_out(FAMILY, model, IRIS[chosen], y[chosen], records=[6, 7, 8])


def test_last_of_two_classes() -> None:
    y = np.where(np.arange(60) == 7, "yes", "no")
    model = FAMILY.fit(RidgeClassifier(), IRIS[:60], y)
    np.testing.assert_array_equal(model.own(np.array([7])), [[0.0, -np.inf]])


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_a_column_that_lives_by_one_record(fit_intercept: bool) -> None:
    """Its leverage is 1: without it the column is constant, and the shortest solution counts."""
    X = np.column_stack([IRIS, np.arange(150) == 3])
    model = RidgeClassifier(alpha=0.0, fit_intercept=fit_intercept, solver="svd")
    assert_is_leave_one_out(FAMILY, model, X, SPECIES, records=[2, 3, 4])


def test_linear_regression_is_ridge_without_a_penalty() -> None:
    rows = np.arange(150)
    found = FAMILY.fit(LinearRegression(), IRIS, SPECIES).own(rows)
    ridge = FAMILY.fit(RidgeClassifier(alpha=0.0), IRIS, SPECIES).own(rows)
    np.testing.assert_array_equal(found, ridge)
    kept = rows != 70
    targets = np.where(SPECIES[:, None] == np.arange(3), 1.0, -1.0)
    decision = LinearRegression().fit(IRIS[kept], targets[kept]).predict(IRIS[[70]])[0]
    np.testing.assert_allclose(np.exp(found[70]), np.exp(decision) / np.exp(decision).sum())


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 100.0]))
@settings(max_examples=15)
def test_random_data_with_twins(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(6, 30)), int(rng.integers(1, 40))  # more columns than records too
    X = rng.standard_normal((n, d))
    X[: n // 3] = X[0]
    y = np.concatenate([[0, 0, 1, 1], rng.integers(2, size=n - 4)])
    model = RidgeClassifier(alpha=alpha, class_weight=rng.choice([None, "balanced"]))
    assert_is_leave_one_out(FAMILY, model, X, y, atol=1e-8)


def test_what_is_refitted_instead() -> None:
    double = np.column_stack([IRIS, IRIS[:, 0]])
    assert "depend on each other" in str(
        FAMILY.refuses(RidgeClassifier(alpha=0.0), double, SPECIES)
    )
    assert FAMILY.refuses(RidgeClassifier(), double, SPECIES) is None
    assert FAMILY.refuses(RidgeClassifier(positive=True), IRIS, SPECIES) == "positive=True"


def test_says_how_probabilities_were_made() -> None:
    found = pdtp(RidgeClassifier(), IRIS, SPECIES)
    assert found.path == "exact: least squares"
    assert any("log-odds" in caveat for caveat in found.caveats)


def test_queries_of_another_width() -> None:
    with pytest.raises(InvalidArgument, match="queries of 4 features, got 2"):
        FAMILY.fit(RidgeClassifier(), IRIS, SPECIES).log_proba(IRIS[:, :2])


def test_very_wide_data_are_refitted() -> None:
    wide = np.zeros((6, 4001))
    assert FAMILY.refuses(RidgeClassifier(), wide, np.arange(6) % 2) == "more than 4,000 features"
