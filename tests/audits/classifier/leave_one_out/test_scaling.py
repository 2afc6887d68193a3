"""Records leave preprocessing exactly: as scikit-learn fits whole pipelines again without them."""
# ruff: noqa: N803 - X, as in scikit-learn

from typing import Any

import numpy as np
import pytest

from epsilometer import InProcess
from epsilometer.audits.classifier.leave_one_out import scaling
from epsilometer.audits.classifier.leave_one_out.families import find_scaled
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.audits.classifier.leave_one_out.scaling import Peeled, peel_scaling

pytest.importorskip("sklearn")
import pandas as pd
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import (
    BernoulliNB,
    CategoricalNB,
    ComplementNB,
    GaussianNB,
    MultinomialNB,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

from tests.audits.classifier.leave_one_out.brute_force import proba

N = 60
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 4)) * [1.0, 30.0, 0.01, 5.0] + [0.0, 500.0, -2.0, 1.0]
PLAIN = X * [1.0, 0.1, 100.0, 1.0]  # columns alike, as discriminants want them
X[7] *= 5  # an outlier, at the end of every range
Y = (X[:, 0] + 0.03 * (X[:, 1] - 500) + RNG.normal(size=N) > 0).astype(int)
MODELS = {
    "naive Bayes": GaussianNB(var_smoothing=1e-2),
    "logistic": LogisticRegression(C=0.3, tol=1e-12, solver="newton-cholesky", max_iter=500),
    "balanced logistic": LogisticRegression(
        tol=1e-12, solver="newton-cholesky", class_weight="balanced", max_iter=500
    ),
    "ridge": RidgeClassifier(alpha=3.0),
    "balanced ridge": RidgeClassifier(class_weight="balanced"),
    "neighbours": KNeighborsClassifier(4),
    "weighed neighbours": KNeighborsClassifier(4, weights="distance"),
    "linear discriminant": LinearDiscriminantAnalysis(),
    "quadratic discriminant": QuadraticDiscriminantAnalysis(),
}
STEPS = {
    "standard": (StandardScaler(),),
    "range": (MinMaxScaler((-1, 3)),),
    "quartiles": (RobustScaler(),),
    "products": (PolynomialFeatures(2, include_bias=False), StandardScaler()),
    "rotation": (StandardScaler(), PCA()),
    "columns": (
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), [0, 1]),
            (MinMaxScaler(), [2]),
            remainder="passthrough",
        ),
    ),
    "columns, then scaled": (
        make_column_transformer((SimpleImputer(), [1]), remainder="passthrough"),
        StandardScaler(),
    ),
}


def assert_exact(estimator: Any, X: Any, y: Any, records: Any, *, refitted: int | None = 0) -> None:
    """Compare ln p with and without records with refits of the whole pipeline."""
    found = pdtp(estimator, X, y, engine=InProcess())
    assert found.path.startswith("exact: ")
    if refitted is not None:
        assert ("fitted again" in found.path) == bool(refitted)
    if refitted:
        assert f"; {refitted} fitted again" in found.path
    rows = X.iloc if hasattr(X, "iloc") else X
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(
            np.exp(found.full), proba(clone(estimator).fit(X, y), X), rtol=1e-7, atol=1e-12
        )
        for record in records:
            others = np.delete(np.arange(len(y)), record)
            model = clone(estimator).fit(rows[others], y[others])
            expected = proba(model, rows[[record]])[0]
            without = np.exp(found.without[record])
            np.testing.assert_allclose(without, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.in_turn(4)
def test_records_leave_scaling_as_in_refits(model: str, steps: str) -> None:
    estimator = make_pipeline(*STEPS[steps], MODELS[model])
    if "discriminant" in model and steps == "products":
        return  # of which covariances are singular, nearly
    data = PLAIN if "discriminant" in model else X
    assert_exact(estimator, data, Y, [*range(10), int(X[:, 1].argmin())])


def draw_table() -> pd.DataFrame:
    age = np.repeat([20.0, 30.0, 40.0], N // 3)
    age[3] = np.nan
    return pd.DataFrame(
        {
            "age": age,
            "town": np.where(np.arange(N) == 5, "elsewhere", RNG.choice(["a", "b", "c"], N)),
            "income": RNG.normal(size=N),
        }
    )


@pytest.mark.parametrize("encoder", [OneHotEncoder(handle_unknown="ignore"), None])
def test_who_changes_categories_is_fitted_again(encoder: Any) -> None:
    """One town has one person."""
    table = draw_table()
    known = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    estimator = make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income"]),
            (known if encoder is None else encoder, ["town"]),
        ),
        LogisticRegression(tol=1e-12, solver="newton-cholesky"),
    )
    peeled = peel_scaling(estimator, table)
    assert peeled is not None
    assert np.flatnonzero(peeled.changed).tolist() == [5]
    assert_exact(estimator, table, Y, [*range(8), 30, 59], refitted=1)


FILLINGS = {"median": [0, 2], "mean": [1, 3, 4], "most_frequent": [1, 3, 4]}


def draw_gaps() -> Any:
    """Columns of many and of few values with gaps; some people lack several."""
    rng = np.random.default_rng(8)
    table = np.c_[rng.normal(size=N), rng.integers(3, size=N), 1e3 * rng.normal(size=N), Y, X[:, 0]]
    table[7, 0] = 1e6  # an outlier is in no sum but its own
    table[:, 3] = np.r_[np.repeat([4.0, 9.0], N // 2 - 2), 4.0, 4.0, 9.0, 9.0]  # equally common
    table[[3, 8, 20], 0], table[[3, 30], 1] = np.nan, np.nan
    table[[8, 41], 2], table[[3, 50], 3] = np.nan, np.nan
    return table


@pytest.mark.parametrize("strategy", FILLINGS)
@pytest.mark.parametrize("model", ["naive Bayes", "logistic", "ridge", "neighbours"])
@pytest.mark.in_turn(3)
def test_whoever_leaves_changes_what_fills_gaps(model: str, strategy: str) -> None:
    table = draw_gaps()[:, FILLINGS[strategy]]
    estimator = make_pipeline(SimpleImputer(strategy=strategy), StandardScaler(), MODELS[model])
    peeled = peel_scaling(estimator, table)
    assert peeled is not None
    assert np.unique(peeled.filling).size > 1
    assert_exact(estimator, table, Y, [*range(12), 20, 30, 41, 50, 59], refitted=None)


def draw_towns() -> Any:
    """Two towns are about equally common, one has one person, and some people have none."""
    town = np.where(np.arange(N) % 2, "a", "b").astype(object)  # 28, and 29
    town[[2, 9]], town[5] = np.nan, "elsewhere"
    return town


@pytest.mark.parametrize(
    "encoder",
    [
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=3),
    ],
)
@pytest.mark.parametrize(
    "model", [BernoulliNB(), MultinomialNB(), ComplementNB(), CategoricalNB(min_categories=4)]
)
def test_counts_of_words_leave_encoders_as_in_refits(model: Any, encoder: Any) -> None:
    table = np.c_[draw_towns(), RNG.choice(["x", "y", "z"], N)].astype(object)
    estimator = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder, model)
    assert_exact(estimator, table, Y, [*range(12), 20, 30, 59], refitted=1)


def test_words_that_fill_gaps() -> None:
    """Who is one of the commonest may change them; who alone has a word is fitted again."""
    table = draw_table().assign(town=draw_towns())
    encoder = OneHotEncoder(handle_unknown="ignore")
    names = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder)
    estimator = make_pipeline(
        make_column_transformer((names, ["town"]), (StandardScaler(), ["income"])),
        LogisticRegression(tol=1e-12, solver="newton-cholesky"),
    )
    assert_exact(estimator, table, Y, [*range(12), 20, 30, 59], refitted=1)


def test_fillings_that_are_held_fixed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(fills: Any) -> Any:
        return np.zeros(len(fills) - 1, np.int64), np.zeros(len(fills) - 1, bool)

    monkeypatch.setattr(scaling, "group_fillings", hold)
    estimator = make_pipeline(
        SimpleImputer(strategy="median"), StandardScaler(), MODELS["logistic"]
    )
    with pytest.raises(AssertionError, match="Not equal"):
        assert_exact(estimator, draw_gaps()[:, [0, 2]], Y, range(10), refitted=None)


def test_means_that_fill_gaps_in_many_ways_are_mapped() -> None:
    estimator = make_pipeline(SimpleImputer(), GaussianNB())
    table = draw_gaps()[:, [0, 2]]
    assert peel_scaling(estimator, table) is None
    assert_exact(estimator, table, Y, range(N), refitted=None)


def test_what_is_not_known_is_refitted() -> None:
    for steps in (
        (PCA(svd_solver="arpack"),),  # one component fewer than there are
        (PCA(2, svd_solver="randomized"),),
        (StandardScaler(), PolynomialFeatures(2), MinMaxScaler()),
        (MinMaxScaler(clip=True),),
        (OneHotEncoder(min_frequency=2),),
    ):
        assert find_scaled(make_pipeline(*steps, GaussianNB()), np.round(X), Y) is None
    assert find_scaled(make_pipeline(StandardScaler(), BernoulliNB()), X, Y) is None


def test_a_column_that_one_person_alone_fills_is_fitted_again() -> None:
    filled = np.c_[X, np.arange(N) == 11]
    for scaler in (StandardScaler(), MinMaxScaler()):
        estimator = make_pipeline(scaler, GaussianNB(var_smoothing=1e-2))
        assert_exact(estimator, filled, Y, [10, 11, 12], refitted=1)


@pytest.mark.parametrize("ones", [3, 16])
def test_who_keeps_quartiles_apart(ones: int) -> None:
    """Without any of these, not only who is at an end of the range, a column is not scaled."""
    n = 4 * ones - 2  # of those without one, the third quartile is one of the 0s
    rng = np.random.default_rng(0)
    column = np.r_[np.zeros(n - ones), np.linspace(1.0, 2.0, ones)]
    table = np.c_[rng.normal(size=n), column][rng.permutation(n)]
    estimator = make_pipeline(RobustScaler(), MODELS["logistic"])
    labels = np.arange(n) % 2
    assert RobustScaler().fit(table).scale_[1] < 1.0
    assert_exact(estimator, table, labels, range(n), refitted=None)


def test_scaling_that_is_held_fixed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(peeled: Peeled, records: Any) -> Any:
        return np.tile(peeled.spread, (len(records), 1))

    monkeypatch.setattr(Peeled, "spread_without", hold)
    with pytest.raises(AssertionError, match="Not equal"):
        assert_exact(make_pipeline(StandardScaler(), MODELS["logistic"]), X, Y, range(10))
