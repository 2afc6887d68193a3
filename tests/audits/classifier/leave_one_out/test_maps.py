"""Records leave maps exactly: as scikit-learn fits whole pipelines again without them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epsilometer.audits.classifier.leave_one_out.families import find_scaled
from epsilometer.audits.classifier.leave_one_out.logistic import MappedLogistic, _MappedStep
from epsilometer.audits.classifier.leave_one_out.maps import Columns, Mapped, peel_maps
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp

pytest.importorskip("sklearn")
import pandas as pd
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

from tests.audits.classifier.leave_one_out.brute_force import proba
from tests.audits.classifier.leave_one_out.test_scaling import assert_exact

N = 70
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 5)) * [1.0, 3.0, 0.5, 5.0, 1.0] + [0.0, 5.0, -2.0, 1.0, 0.0]
X[:, 4] = RNG.integers(4, size=N)  # with ties
X[3] *= 2
Y = (X[:, 0] + X[:, 1] - 5 + 2 * RNG.normal(size=N) > 0).astype(int)
THREE = Y + (X[:, 2] > -1.8)
GAPS = np.where(RNG.random((N, 5)) < [0.1, 0.0, 0.3, 0.02, 0.1], np.nan, X)
EXACT = {"tol": 1e-12, "solver": "newton-cholesky", "max_iter": 500}
MODELS = {
    "naive Bayes": GaussianNB(var_smoothing=1e-2),
    "logistic": LogisticRegression(C=0.3, **EXACT),
    "balanced logistic": LogisticRegression(class_weight="balanced", **EXACT),
    "ridge": RidgeClassifier(alpha=3.0),
    "balanced ridge": RidgeClassifier(class_weight="balanced", fit_intercept=False),
    "neighbours": KNeighborsClassifier(4, weights="distance", algorithm="kd_tree"),
    "linear discriminant": LinearDiscriminantAnalysis(),
    "quadratic discriminant": QuadraticDiscriminantAnalysis(reg_param=0.1),
}
MEAN, MEDIAN = SimpleImputer(), SimpleImputer(strategy="median")
ENCODER = OneHotEncoder(handle_unknown="ignore")
PRODUCTS = PolynomialFeatures(2)
STEPS = {
    "mean": (MEAN,),
    "mean, standard": (MEAN, StandardScaler()),
    "median, standard": (MEDIAN, StandardScaler()),
    "mean, range": (MEAN, MinMaxScaler((-1, 2))),
    "median, quartiles": (MEDIAN, RobustScaler()),
    "mean, quartiles, standard": (MEAN, RobustScaler(), StandardScaler()),
    "indicators": (SimpleImputer(add_indicator=True), StandardScaler()),
    "products": (MEAN, StandardScaler(), PRODUCTS),
    "products, standard": (MEDIAN, MinMaxScaler(), PRODUCTS, StandardScaler()),
    "components": (MEAN, StandardScaler(), PCA(3)),
    "white components": (MEAN, PCA(2, whiten=True)),
    "share of variance": (MEAN, StandardScaler(), PCA(0.7), StandardScaler()),
    "all components": (MEAN, StandardScaler(), PCA()),
    "columns": (
        make_column_transformer(
            (make_pipeline(MEAN, StandardScaler(), PCA(2)), [0, 1, 2]),
            (make_pipeline(MEDIAN, StandardScaler()), [3]),
            (make_pipeline(SimpleImputer(strategy="most_frequent"), ENCODER), [4]),
        ),
    ),
}
COLLINEAR = {"products", "products, standard", "indicators", "columns"}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("model", MODELS)
def test_records_leave_maps_as_in_refits(model: str, steps: str) -> None:
    if steps in COLLINEAR and "quadratic" in model:
        return  # of which classes have singular covariances
    estimator = make_pipeline(*STEPS[steps], MODELS[model])
    found = find_scaled(estimator, GAPS, Y)
    assert found is not None
    assert isinstance(found[1], Mapped) or "median" in steps  # of which there may be few
    assert_exact(estimator, GAPS, Y, range(14), refitted=None)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.01, 1.0, 100.0]),
    st.sampled_from([2.5, 4.0, 30.0]),
    st.sampled_from(["mean, range", "indicators", "mean", "components", "mean, standard"]),
    st.sampled_from([None, "balanced"]),
)
@settings(max_examples=25, deadline=None)
def test_series_err_by_no_more_than_is_proven(
    seed: int, cost: float, tails: float, steps: str, weights: str | None
) -> None:
    """Against minimisers whose gradient vanishes, with heavy tails, and few or many gaps."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1000, 3000)), int(rng.integers(3, 6))
    table = rng.standard_t(tails, (n, d))
    labels = (table[:, 0] * rng.choice([0.1, 3.0]) + rng.normal(size=n) > 0.5).astype(int)
    table[rng.random((n, d)) < rng.choice([0.002, 0.3], size=d)] = np.nan
    last = LogisticRegression(C=cost, class_weight=weights)
    found = find_scaled(make_pipeline(*STEPS[steps], last), table, labels)
    if found is None or not isinstance(found[1], Mapped):
        return
    model = found[0].fit_peeled(found[1], labels)
    assert isinstance(model, MappedLogistic)
    assert model._has_series
    far = np.argsort(np.nan_to_num(np.abs(table)).max(axis=1))[-5:]
    for label in range(2):
        records = np.unique(np.r_[rng.choice(n, 20, replace=False), far])
        records = records[labels[records] == label]
        fixed, wide = model._fix_for(label), model._widen(model.map.weigh(records))
        exact, safe = model._compare(fixed, records, wide)
        assert safe.all()
        step = _MappedStep(fixed, wide, model.plain.penalty, records)
        got, errors = fixed.series.move(records, wide, step.inverse, step.first()[:, :, 0])
        own = np.einsum("bp,bpk,bk->b", model.features[records], wide, got - exact[:, :, 0])
        assert (np.abs(own) <= errors + 1e-10).all()  # the minimisers themselves are rounded


def test_most_records_of_a_large_table_with_gaps_have_a_series() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(5000, 4))
    labels = (table[:, 0] + rng.normal(size=5000) > 0).astype(int)
    table[rng.random(table.shape) < [0.1, 0.0, 0.5, 0.0]] = np.nan
    table[3, 1] = np.nan  # the only gap of its column
    estimator = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression(**EXACT))
    scaled = find_scaled(estimator, table, labels)
    assert scaled is not None
    assert scaled[0].fit_peeled(scaled[1], labels).count_compared() < 50
    found = pdtp(estimator, table, labels)
    for record in (0, 3, 77, int(np.nanargmax(np.abs(table[:, 0])))):
        others = np.delete(np.arange(5000), record)
        fitted = clone(estimator).fit(table[others], labels[others])
        expected = fitted.predict_proba(table[[record]])[0]
        np.testing.assert_allclose(np.exp(found.without[record]), expected, atol=1e-6)


def draw_odd(kind: str, rng: np.random.Generator) -> Any:
    """Draw a table on which differences of sums, or eigenvectors, may be wrong."""
    table = GAPS.copy()
    if kind == "an outlier":
        table[[2, 9], [0, 2]] = 1e7, -1e4
    elif kind == "constant columns":
        table[:, 1], table[:, 3] = 2.5, np.arange(N) == 2
    elif kind == "ties":
        table = np.round(table)
    elif kind == "collinear columns":
        table[:, 1] = 2 * X[:, 3] + 1
        table[:, 3] = X[:, 3] + 1e-9 * rng.normal(size=N)
    elif kind == "one number in a column":
        table[np.arange(N) != 4, 2] = np.nan
    elif kind == "nothing in a column":
        table[:, 1] = np.nan
    elif kind == "heavy tails":
        table *= np.abs(rng.standard_t(1, size=table.shape))
    elif kind == "far from 0":
        table += 1e4
    elif kind == "equal variances":
        table[:, :2] = np.repeat([[1, 1], [1, -1], [-1, 1], [-1, -1], [0, 0]], N // 5, axis=0)
    return table


@pytest.mark.parametrize(
    "kind",
    [
        "an outlier",
        "constant columns",
        "ties",
        "collinear columns",
        "one number in a column",
        "nothing in a column",
        "heavy tails",
        "far from 0",
        "equal variances",
    ],
)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.filterwarnings("ignore")  # of scikit-learn, for columns without numbers
@pytest.mark.in_turn(3)
def test_odd_tables_are_exact_or_refitted(kind: str, model: str) -> None:
    rng = np.random.default_rng(1)
    table, labels = draw_odd(kind, rng), THREE if model in ("logistic", "ridge") else Y
    if kind == "far from 0" and "logistic" in model:
        return  # of which scikit-learn does not find the minimum
    for steps in STEPS.values():
        estimator = make_pipeline(*steps, MODELS[model])
        try:
            found = find_scaled(estimator, table, labels)
        except ValueError:  # scikit-learn does not fit it
            continue
        if found is None:
            continue
        full, records = found[0].fit_peeled(found[1], labels), np.array([*range(5), 9])
        with np.errstate(all="ignore"):
            own = full.own(records)
        again = found[1].changed[records]
        if full.refused is not None:
            again = again | full.refused[records]
        for place in np.flatnonzero(~again & (found[1].filling[records] == 0)):
            others = np.delete(np.arange(N), records[place])
            fitted = clone(estimator).fit(table[others], labels[others])
            expected = proba(fitted, table[records[[place]]])[0]
            np.testing.assert_allclose(np.exp(own[place]), expected, rtol=1e-6, atol=1e-7)


def test_a_class_determined_by_a_category_is_discriminated() -> None:
    """One-hot columns add up to 1, and so are collinear: scikit-learn leaves a direction out."""
    table = np.c_[X[:, 4], np.arange(N) % 3]
    for first in (OneHotEncoder(sparse_output=False), PolynomialFeatures(2)):
        assert_exact(
            make_pipeline(first, LinearDiscriminantAnalysis()), table, Y, range(9), refitted=None
        )
    twice = np.c_[X, X[:, 0] + X[:, 1]]
    assert_exact(LinearDiscriminantAnalysis(), twice, THREE, range(9))


def test_many_fillings_leave_encoders_of_other_columns_alone() -> None:
    """The commonest word, and a median of another column, change with one record."""
    words = np.where(np.arange(N) % 2, "a", "b").astype(object)
    words[:3] = "c", np.nan, "b"
    table = pd.DataFrame({"word": words, "number": GAPS[:, 0], "other": GAPS[:, 2]})
    names = make_pipeline(SimpleImputer(strategy="most_frequent"), ENCODER)
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((names, ["word"]), (numbers, ["number", "other"]))
    estimator = make_pipeline(columns, LogisticRegression(**EXACT))
    assert_exact(estimator, table, Y, range(12), refitted=None)


@pytest.mark.parametrize("model", ["naive Bayes", "logistic", "ridge", "neighbours"])
@pytest.mark.parametrize("steps", ["mean, standard", "products", "components"])
def test_maps_that_are_held_fixed_are_noticed(
    model: str, steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Columns.weigh

    def hold(columns: Columns, records: Any) -> Any:
        fixed = own(columns, None)
        return fixed if records is None else np.repeat(fixed, len(records), axis=0)

    monkeypatch.setattr(Columns, "weigh", hold)
    with pytest.raises(AssertionError, match="Not equal"):
        assert_exact(make_pipeline(*STEPS[steps], MODELS[model]), GAPS, Y, range(14), refitted=None)


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler(), RobustScaler()], ids=str)
def test_equal_numbers_are_not_scaled(scaler: Any) -> None:
    """Their standard deviation is rounding, and a column of one number is filled with it."""
    table = np.c_[GAPS, np.full(N, 0.1), np.where(np.arange(N) < 2, 2.55, np.nan)]
    mapped = peel_maps(make_pipeline(SimpleImputer(), scaler, GaussianNB()), table)
    assert mapped is not None
    assert not mapped.changed.any()
    estimator = make_pipeline(SimpleImputer(), scaler, MODELS["logistic"])
    assert_exact(estimator, table, Y, range(8))


def test_what_needs_many_refits_has_no_map() -> None:
    same = np.repeat([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], 10, axis=0)
    assert peel_maps(make_pipeline(PCA(1), GaussianNB()), same) is None  # equal variances
    alone = np.eye(12)
    assert peel_maps(make_pipeline(StandardScaler(), GaussianNB()), alone) is None


class Resampling(Pipeline):  # type: ignore[misc]  # scikit-learn has no types
    """A pipeline that may train in another way, as those of other packages do."""


def test_other_pipelines_are_refitted() -> None:
    steps = [("fill", SimpleImputer()), ("last", GaussianNB())]
    assert find_scaled(Pipeline(steps), GAPS, Y) is not None
    assert find_scaled(Resampling(steps), GAPS, Y) is None
    assert find_scaled(Resampling(steps[1:]), X, Y) is None
