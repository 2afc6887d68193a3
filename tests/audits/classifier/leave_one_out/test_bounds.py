"""Upper bounds of DTP: never exceeded; and the paper's, which are."""
# ruff: noqa: N806 - X, as in scikit-learn

import json
import math
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier

from epsilometer.audits.classifier.leave_one_out.bounds import (
    COUNTED,
    dtp_upper_bound,
    lipschitz_bound,
    stable_upper_bound,
)
from epsilometer.audits.classifier.leave_one_out.pdtp import dtp_exact, pdtp
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.leave_one_out.reference import REFERENCE
from tests.conftest import cases

ROUNDING = 1e-9


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, Any, list[int]]:
    """Small tables, with classes of any size from one record on."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    classes, rows = draw(st.integers(2, 3)), draw(st.integers(4, 14))
    cells = st.tuples(*(st.integers(0, size - 1) for size in sizes))
    X = draw(st.lists(cells, min_size=rows, max_size=rows))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    y[:2] = [0, 1]
    return np.array(X), np.array(y), sizes


@given(
    tables(), st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0]), st.sampled_from([True, False, "given"])
)
def test_is_never_exceeded(table: tuple[Any, Any, list[int]], alpha: float, prior: Any) -> None:
    X, y, sizes = table
    given_prior = np.arange(1, 1 + np.unique(y).size) if prior == "given" else None
    estimator = CategoricalNB(
        alpha=alpha, min_categories=sizes, fit_prior=prior is True, class_prior=given_prior
    )
    bound = dtp_upper_bound(estimator, X, y)
    exact = dtp_exact(estimator, X, y)
    np.testing.assert_array_equal(bound.records, exact.records)
    assert (exact.values <= bound.values + ROUNDING).all()


@given(st.integers(0, 2**32 - 1))
def test_is_never_exceeded_by_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 2, size=(20, 5)), rng.integers(0, 3, size=20)
    y[:3] = [0, 1, 2]
    estimator = BernoulliNB(alpha=0.5)
    assert (
        dtp_exact(estimator, X, y).values <= dtp_upper_bound(estimator, X, y).values + ROUNDING
    ).all()


def test_is_reached_where_the_other_classes_are_everything() -> None:
    """At a query that its class hardly ever gives, odds are probabilities: the bound is tight."""
    X = np.array([[0, 0], [0, 1], [1, 0]] + [[0, 1]] * 3_000)
    y = np.array([0] * 3 + [1] * 3_000)
    estimator = CategoricalNB(min_categories=2)
    bound = dtp_upper_bound(estimator, X, y, records=np.array([1])).values
    exact = dtp_exact(estimator, X, y, records=np.array([1])).values
    assert exact <= bound
    assert exact > 0.99 * bound


def counterexample() -> tuple[Any, Any, dict[str, Any]]:
    case = json.loads((REFERENCE / "nb_prop65_counterexample.json").read_text("utf-8"))
    return np.array(case["X"]), np.array(case["y"]), case["case"]


def test_proposition_6_5_is_exceeded_and_ours_is_not() -> None:
    X, y, case = counterexample()
    estimator, record = CategoricalNB(min_categories=3), np.array([case["t"]])
    exact = dtp_exact(estimator, X, y, records=record).values[0]
    risk = pdtp(estimator, X, y, records=record).values[0]
    bound = dtp_upper_bound(estimator, X, y, records=record).values[0]
    n, fewest = len(y), np.bincount(y).min()
    printed = (case["m"] - 1) * math.log((fewest + case["v"]) / fewest) + math.log(n / (n - 1))
    assert exact == pytest.approx(case["DTP"], rel=1e-9)
    assert risk == pytest.approx(case["PDTP"], rel=1e-9)
    assert bound == pytest.approx(case["new_bound"], rel=1e-9)
    assert exact > max(risk, case["ln_delta"])
    assert bound >= exact
    assert case["ln_delta"] <= printed + ROUNDING  # the tighter of two readings was taken


@pytest.mark.parametrize(
    ("inputs", "expected"), cases("c10", "stability-search-prop6.4-posterior-all_y")
)
def test_proposition_6_4_is_exceeded(inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    case = expected["smallest_example"]
    X, y = (np.array(each) for each in zip(*case["data"], strict=True))
    estimator = CategoricalNB(alpha=0.0, min_categories=case["v"])
    exact = dtp_exact(estimator, X, y, records=np.array([case["record"]])).values[0]
    own = pdtp(estimator, X, y, records=np.array([case["record"]])).values[0]
    n, fewest = len(y), int(np.bincount(y).min())
    delta = Fraction(fewest, fewest - 1) ** (case["m"] - 1) * Fraction(n, n - 1)
    assert delta == Fraction(case["delta"])
    assert exact == pytest.approx(math.log(Fraction(case["worst_ratio"])), rel=1e-9)
    assert exact > max(own, math.log(delta))
    assert exact <= dtp_upper_bound(estimator, X, y).values[case["record"]] + ROUNDING


@pytest.mark.parametrize(("inputs", "expected"), cases("c10", "prop6.3"))
def test_a_frequency_moves_by_three_halves(
    inputs: dict[str, Any], expected: dict[str, Any]
) -> None:
    """And not by 4/3: with one feature value naive Bayes is the frequency of the labels."""
    X, y = (np.array(each) for each in zip(*inputs["records"], strict=True))
    found = pdtp(CategoricalNB(alpha=0.0), X, y, records=np.array([inputs["removed_record"]]))
    ratios = np.exp(np.abs(found.full - found.without))[0]
    own = ratios[y[inputs["removed_record"]]]
    assert own == pytest.approx(expected["ratio_at_(x_t,y_t)"])
    assert ratios.max() == pytest.approx(expected["worst_ratio_same_x_other_label"])
    assert ratios.max() > inputs["claimed_delta"]
    assert pytest.approx(expected["smallest_valid_delta"]) == COUNTED


@given(st.integers(3, 40), st.data())
def test_no_frequency_moves_by_more_than_it_says(n: int, data: st.DataObject) -> None:
    """δ-training stability of a conditional frequency: max(δ, own ratio) bounds all ratios."""
    same = data.draw(st.integers(2, n - 1))  # with the record's label, of n with its features
    own = max(Fraction(same * (n - 1), n * (same - 1)), Fraction(n * (same - 1), same * (n - 1)))
    other = Fraction(n, n - 1)
    assert other <= max(Fraction(3, 2), own)


def test_stability_of_whoever_has_a_proof() -> None:
    X, y = np.array([[0], [0], [0], [0], [1]]), np.array([0, 0, 1, 1, 1])
    found = pdtp(CategoricalNB(), X, y)
    bound = stable_upper_bound(found, stability=COUNTED)
    np.testing.assert_allclose(bound.values, np.maximum(found.values, math.log(1.5)))
    with pytest.raises(InvalidArgument, match="δ ≥ 1"):
        stable_upper_bound(found, stability=0.9)


def test_lipschitz_bound_of_logistic_regression(rng: np.random.Generator) -> None:
    """ln softmax moves by at most twice |x|₁ (with a 1 for the intercept) times max|u − v|."""
    X, y = rng.uniform(-1, 1, size=(60, 4)), np.arange(60) % 3
    model = LogisticRegression(tol=1e-10, max_iter=2_000)

    def parameters(kept: Any) -> Any:
        model.fit(X[kept], y[kept])
        return np.r_[model.coef_.ravel(), model.intercept_]

    full = parameters(np.arange(60))
    queries = rng.uniform(-1, 1, size=(500, 4))
    before = model.predict_log_proba(queries)
    for record in range(5):
        without = parameters(np.arange(60) != record)
        seen = np.abs(before - model.predict_log_proba(queries)).max()
        bound = lipschitz_bound(full, without[None], lipschitz=2 * (4 + 1))[0]
        assert 0 < seen <= bound


@pytest.mark.parametrize(
    ("parameters", "without", "lipschitz", "words"),
    [
        ([1.0], [1.0], 1.0, r"\(records, d\)"),
        ([1.0, 2.0], [[1.0]], 1.0, r"\(records, d\)"),
        ([1.0], [[np.nan]], 1.0, "finite parameters"),
        ([1.0], [[1.0]], 0.0, "lipschitz > 0"),
    ],
)
def test_bad_parameters(parameters: Any, without: Any, lipschitz: float, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        lipschitz_bound(parameters, without, lipschitz=lipschitz)


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (KNeighborsClassifier(), "not training stable"),
        (GaussianNB(), "no largest value"),
        (MultinomialNB(), "no largest value"),
        (LogisticRegression(), "stable_upper_bound"),
        (BernoulliNB(alpha=0.0), "with smoothing"),
    ],
    ids=str,
)
def test_no_bound_without_a_proof(estimator: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        dtp_upper_bound(estimator, [[0], [1], [1]], [0, 1, 1])


def test_a_bound_that_forgets_the_prior_is_exceeded() -> None:
    X, y = np.array([[0], [0], [1], [1], [1], [0]]), np.array([0, 0, 1, 1, 1, 1])
    estimator = CategoricalNB(min_categories=2)
    exact = dtp_exact(estimator, X, y).values
    assert (exact <= dtp_upper_bound(estimator, X, y).values + ROUNDING).all()
    forgetful = dtp_upper_bound(CategoricalNB(min_categories=2, fit_prior=False), X, y).values
    assert (exact > forgetful + ROUNDING).any()
