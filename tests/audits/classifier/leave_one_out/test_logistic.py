"""Logistic regression without a record, against scikit-learn solved to the end."""
# ruff: noqa: N806 - X, as in scikit-learn

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from epsilometer.audits.classifier.leave_one_out import logistic
from epsilometer.audits.classifier.leave_one_out.families import family_of
from epsilometer.audits.classifier.leave_one_out.logistic_problem import Problem
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.leave_one_out.brute_force import assert_is_leave_one_out, refitted

FAMILY = logistic.LOGISTIC
REFERENCE = Path(__file__).parents[3] / "reference" / "pdtp"
IRIS, SPECIES = load_iris(return_X_y=True)
CANCER, MALIGNANT = load_breast_cancer(return_X_y=True)
CANCER = scale(CANCER)
SOME = np.arange(0, 569, 40)


def solved(**settings: Any) -> LogisticRegression:
    """With the solver that ends nearest to the minimiser."""
    return LogisticRegression(
        **{"solver": "newton-cholesky", "tol": 1e-13, "max_iter": 1000, **settings}
    )


def test_agrees_with_the_reference() -> None:
    """Made by refits at a tolerance of 1e-9, which leaves 1e-5."""
    case = np.load(REFERENCE / "pdtp_lr_breast_cancer_tol1e-9.npz")
    found = pdtp(LogisticRegression(), case["X"], case["y"])
    assert found.path == "exact: logistic regression"
    np.testing.assert_allclose(np.exp(found.full), case["full"], atol=1e-5)
    np.testing.assert_allclose(np.exp(found.without), case["loo_at_t"], atol=1e-5)
    np.testing.assert_allclose(found.values, case["pdtp_unbinned"], atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"C": 1e-3},
        {"C": 30.0},
        {"fit_intercept": False},
        {"class_weight": "balanced"},
        {"class_weight": {0: 3.0}},
    ],
    ids=str,
)
def test_two_classes(settings: dict[str, Any]) -> None:
    assert_is_leave_one_out(FAMILY, solved(**settings), CANCER, MALIGNANT, records=SOME, atol=1e-8)


def test_features_on_wild_scales() -> None:
    X = load_breast_cancer().data  # from 0.001 to 4,000
    assert_is_leave_one_out(FAMILY, solved(), X, MALIGNANT, records=SOME, atol=1e-8)


def test_liblinear_penalises_the_intercept() -> None:
    model = LogisticRegression(solver="liblinear", tol=1e-13, max_iter=10000, intercept_scaling=2.0)
    assert_is_leave_one_out(FAMILY, model, CANCER, MALIGNANT, records=SOME[:5], atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"C": 1e4}, {"class_weight": "balanced"}, {"fit_intercept": False}], ids=str
)
def test_three_classes(settings: dict[str, Any]) -> None:
    records = np.r_[0:150:12, 106, 133]  # and two that move the model far
    assert_is_leave_one_out(FAMILY, solved(**settings), IRIS, SPECIES, records=records, atol=1e-6)


def test_ten_classes_with_columns_that_are_always_0() -> None:
    X, y = load_digits(return_X_y=True)
    records = np.arange(0, 300, 100)
    assert_is_leave_one_out(FAMILY, solved(), X[:300] / 16, y[:300], records=records, atol=1e-8)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("classes", [3, 4])
def test_last_record_of_a_class(classes: int, class_weight: Any) -> None:
    """Of four classes three are left; of three two, which have one column of coefficients."""
    y = np.array(["b", "c", "d"])[SPECIES]
    y[7] = "a"
    chosen = slice(0, 100) if classes == 3 else slice(None)
    model = solved(class_weight=class_weight)
    assert_is_leave_one_out(FAMILY, model, IRIS[chosen], y[chosen], records=[6, 7, 8], atol=1e-8)


def test_last_of_two_classes() -> None:
    """One class is left, which is then certain; scikit-learn would not fit it."""
    y = np.where(np.arange(60) == 7, "yes", "no")
    model = FAMILY.fit(solved(), IRIS[:60], y)
    np.testing.assert_array_equal(model.own(np.array([7])), [[0.0, -np.inf]])
    assert np.isinf(pdtp(solved(), IRIS[:60], y, records=np.array([7])).values[0])


def test_records_that_move_the_model_far_have_their_own_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without those steps the answer would be wrong: they are taken, and needed."""
    taken = []
    alone = Problem.without

    def counted(problem: Any, record: int, penalty: Any) -> Any:
        taken.append(record)
        return alone(problem, record, penalty)

    monkeypatch.setattr(Problem, "without", counted)
    own = FAMILY.fit(solved(C=1e4), IRIS, SPECIES).own(np.arange(150))
    assert 0 < len(taken) < 50
    by_hand = refitted(solved(C=1e4), IRIS, SPECIES, taken[0], IRIS[[taken[0]]])
    np.testing.assert_allclose(np.exp(own[taken[0]]), by_hand[0], atol=1e-7)


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3]), st.sampled_from([0.1, 1.0, 100.0]))
@settings(max_examples=25)
def test_gradient_without_the_record_vanishes(seed: int, classes: int, cost: float) -> None:
    """The definition of the minimiser, in scikit-learn's own terms, on data of any shape."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2 * classes, 30)), int(rng.integers(1, 6))
    X = rng.standard_normal((n, d)) * rng.choice([0.1, 1.0, 10.0], d)
    X[: n // 3] = X[0]  # twins
    y = np.concatenate([np.arange(2 * classes) % classes, rng.integers(classes, size=n)])[:n]
    record = int(rng.integers(n))
    start = FAMILY.fit(LogisticRegression(C=cost), X, y).all
    at = start.without(np.array([record]), start.problem.penalty[None])
    slope = start.problem.gradients(at, np.array([record]))
    size = cost * np.abs(start.problem.design).sum(axis=0).max()
    assert np.abs(slope).max() <= 1e-12 * max(1.0, size)


def test_one_record_alone_is_as_among_many() -> None:
    model = FAMILY.fit(LogisticRegression(), IRIS, SPECIES)
    np.testing.assert_allclose(
        model.own(np.array([106])), model.own(np.arange(150))[[106]], atol=1e-10
    )


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.01, 1.0, 100.0]),
    st.sampled_from([1.0, 3.0]),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_series_err_by_no_more_than_is_proven(
    seed: int, cost: float, tails: float, scaled: bool
) -> None:
    """Against minimisers whose gradient vanishes, with heavy tails and penalties that change."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1000, 3000)), int(rng.integers(1, 8))
    X = rng.standard_t(tails + 1.5, (n, d))
    y = (X[:, 0] * rng.choice([0.1, 3.0]) + rng.normal(size=n) > rng.choice([0.0, 1.5])).astype(int)
    start = FAMILY.fit(LogisticRegression(C=cost), X, y).all
    assert start._series is not None
    records = np.r_[rng.choice(n, 20, replace=False), np.argsort(np.abs(X).max(axis=1))[-5:]]
    change = 1 + scaled * rng.normal(0, 1e-3, (records.size, 1))
    penalties = start.problem.penalty * change
    found, errors = start._series().move(records, penalties)
    exact = start.without(records, penalties)[:, :, 0]
    own = np.einsum("bd,bd->b", start.problem.design[records], found - exact)
    assert (np.abs(own) <= errors + 1e-10).all()  # the minimisers themselves are rounded


def test_most_records_of_a_large_table_have_a_series() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 4))
    y = (X[:, 0] + rng.normal(size=5000) > 0).astype(int)
    model = FAMILY.fit(LogisticRegression(), X, y)
    assert isinstance(model, logistic.LogisticMinimiser)
    assert model.count_compared() < 50
    records = np.arange(0, 5000, 250)
    exact = model.all.without(records, model.penalties_without(records))
    logits = np.einsum("bd,bdm->b", model._design[records], exact)
    own = model.own(records)
    np.testing.assert_allclose(own[:, 1] - own[:, 0], logits, atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "why"),
    [
        (LogisticRegression(l1_ratio=1.0, solver="saga"), "an l1 penalty"),
        (LogisticRegression(l1_ratio=0.5, solver="saga"), "an l1 penalty"),
        (LogisticRegression(C=np.inf), "no penalty: separable classes have no minimiser"),
        (LogisticRegression(solver="liblinear"), "one model for each class against the rest"),
    ],
)
def test_what_is_refitted_instead(estimator: Any, why: str) -> None:
    assert FAMILY.refuses(estimator, IRIS, SPECIES) == why


def test_subclasses_are_not_recognised() -> None:
    class Mine(LogisticRegression):  # type: ignore[misc]
        pass

    assert family_of(Mine()) is None


def test_queries_of_another_width() -> None:
    with pytest.raises(InvalidArgument, match="queries of 4 features, got 2"):
        FAMILY.fit(LogisticRegression(), IRIS, SPECIES).log_proba(IRIS[:, :2])


def test_very_wide_data_are_refitted() -> None:
    wide = np.zeros((6, 8000))
    assert FAMILY.refuses(LogisticRegression(), wide, np.arange(6) % 2) == (
        "more than 8,000 coefficients"
    )
