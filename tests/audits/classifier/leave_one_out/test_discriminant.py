"""Discriminant analysis without a record, against scikit-learn's fits."""
# ruff: noqa: N806 - X, as in scikit-learn

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)

from epsilometer.audits.classifier.leave_one_out import discriminant
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.leave_one_out.brute_force import assert_is_leave_one_out

LINEAR, QUADRATIC = discriminant.LINEAR, discriminant.QUADRATIC
IRIS, SPECIES = load_iris(return_X_y=True)
CANCER, MALIGNANT = load_breast_cancer(return_X_y=True)
GIVEN = {"priors": [0.2, 0.5, 0.3]}


@pytest.mark.parametrize("solver", ["svd", "lsqr", "eigen"])
@pytest.mark.parametrize("settings", [{}, GIVEN], ids=["counted", "given"])
def test_linear(solver: str, settings: dict[str, Any]) -> None:
    model = LinearDiscriminantAnalysis(solver=solver, **settings)
    assert_is_leave_one_out(LINEAR, model, IRIS, SPECIES, records=np.arange(0, 150, 5))


@pytest.mark.parametrize("solver", ["svd", "eigen"])
def test_linear_with_features_on_wild_scales(solver: str) -> None:
    model = LinearDiscriminantAnalysis(solver=solver)
    assert_is_leave_one_out(LINEAR, model, CANCER, MALIGNANT, records=np.arange(0, 569, 20))


def test_linear_with_columns_that_live_by_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without such a record scikit-learn drops the column: it is refitted."""
    refitted = []
    kept = discriminant._Discriminant._refit

    def counted(model: Any, record: int, at: Any) -> Any:
        refitted.append(record)
        return kept(model, record, at)

    monkeypatch.setattr(discriminant._Discriminant, "_refit", counted)
    X, y = load_digits(return_X_y=True)
    X, y = X[:400], y[:400]
    alone = [int(np.flatnonzero(c)[0]) for c in X.T if np.count_nonzero(c) == 1]
    records = np.array([*alone, *range(20)])
    assert_is_leave_one_out(LINEAR, LinearDiscriminantAnalysis(), X, y, records=records)
    assert alone
    assert set(refitted) == set(alone)


@pytest.mark.filterwarnings("ignore:Only one sample available")  # by scikit-learn, of "lsqr"
@pytest.mark.parametrize("solver", ["svd", "lsqr"])
@pytest.mark.parametrize("classes", [3, 4])
def test_linear_last_record_of_a_class(classes: int, solver: str) -> None:
    """Beside a feature that is constant, and one that is constant within classes."""
    y = np.array(["b", "c", "d"])[SPECIES]
    y[7] = "a"
    X = np.column_stack([IRIS, np.ones(150), SPECIES + 3.0 * (y == "a")])
    chosen = slice(0, 100) if classes == 3 else slice(None)
    model = LinearDiscriminantAnalysis(solver=solver)
    assert_is_leave_one_out(LINEAR, model, X[chosen], y[chosen], records=[6, 7, 8])


@pytest.mark.parametrize("settings", [{}, {"reg_param": 0.1}, GIVEN, {"solver": "eigen"}], ids=str)
@pytest.mark.parametrize("data", [load_iris, load_wine])
def test_quadratic(data: Any, settings: dict[str, Any]) -> None:
    X, y = data(return_X_y=True)
    model = QuadraticDiscriminantAnalysis(**settings)
    assert_is_leave_one_out(QUADRATIC, model, X, y, records=np.arange(0, len(y), 5))


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=15)
def test_random_data_with_twins(seed: int, quadratic: bool) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(24, 60)), int(rng.integers(1, 4))
    X = rng.standard_normal((n, d)) * rng.choice([1.0, 1e4], d) + rng.choice([0.0, 1e3])
    X[:3] = X[0]
    y = np.arange(n) % 2
    if quadratic:
        assert_is_leave_one_out(QUADRATIC, QuadraticDiscriminantAnalysis(), X, y, atol=1e-7)
    else:
        assert_is_leave_one_out(LINEAR, LinearDiscriminantAnalysis(), X, y, atol=1e-7)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1), "another covariance"),
        (LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"), "another covariance"),
        (LinearDiscriminantAnalysis(tol=0.9), "collinear"),
    ],
)
def test_what_linear_refits_instead(model: Any, why: str) -> None:
    assert why in str(LINEAR.refuses(model, IRIS, SPECIES))


def test_collinear_features_are_refitted() -> None:
    double = np.column_stack([IRIS, IRIS @ [1.0, 2.0, 0.0, 1.0]])
    assert LINEAR.refuses(LinearDiscriminantAnalysis(), double, SPECIES) == "collinear features"
    assert "collinear" in str(QUADRATIC.refuses(QuadraticDiscriminantAnalysis(), double, SPECIES))
    constant = np.column_stack([IRIS, np.ones(150)])
    assert QUADRATIC.refuses(QuadraticDiscriminantAnalysis(), constant, SPECIES) is not None


def test_means_on_a_line_are_refitted(rng: np.random.Generator) -> None:
    """scikit-learn then drops the direction across: three classes at 0, 1 and 2."""
    y = np.repeat([0, 1, 2], 40)
    X = rng.standard_normal((120, 2))
    for c in range(3):
        X[y == c] += [100.0 * c, 0.0] - X[y == c].mean(axis=0)
    assert "plane" in str(LINEAR.refuses(LinearDiscriminantAnalysis(), X, y))


def test_a_class_of_two_is_refitted() -> None:
    y = SPECIES.copy()
    y[:2] = 3
    assert (
        QUADRATIC.refuses(QuadraticDiscriminantAnalysis(), IRIS, y) == "a class of too few records"
    )


def test_priors_of_another_number() -> None:
    with pytest.raises(InvalidArgument, match="3 priors"):
        LINEAR.fit(LinearDiscriminantAnalysis(priors=[0.5, 0.5]), IRIS, SPECIES)


def test_queries_of_another_width() -> None:
    with pytest.raises(InvalidArgument, match="queries of 4 features, got 2"):
        LINEAR.fit(LinearDiscriminantAnalysis(), IRIS, SPECIES).log_proba(IRIS[:, :2])


@pytest.mark.parametrize("family", [LINEAR, QUADRATIC])
def test_very_wide_data_are_refitted(family: Any) -> None:
    model = LinearDiscriminantAnalysis() if family is LINEAR else QuadraticDiscriminantAnalysis()
    assert "too large" in family.refuses(model, np.zeros((6, 8000)), np.arange(6) % 2)
