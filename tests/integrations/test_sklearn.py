"""Classifiers for tables: every kind of column reaches every model."""

import numpy as np
import pytest

from epsilometer.errors import InvalidArgument
from epsilometer.files.tables import Column, Table
from epsilometer.integrations.sklearn import MODELS, Prepared, prepare, with_preprocessing

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.naive_bayes import CategoricalNB, GaussianNB


def table(rng: np.random.Generator, *, words: bool, gaps: bool) -> Table:
    numbers = rng.normal(size=(2, 60))
    if gaps:
        numbers[0, :5] = np.nan
    columns = [Column("age", numbers[0]), Column("pay", numbers[1])]
    if words:
        columns.append(Column("job", rng.integers(3, size=60), ("", "baker", "clerk")))
    return Table(tuple(columns))


def fitted(ready: Prepared, y: np.ndarray) -> np.ndarray:
    return clone(ready.estimator).fit(ready.X, y).predict_proba(ready.X)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_takes_every_table(
    model: str, words: bool, gaps: bool, rng: np.random.Generator
) -> None:
    ready = prepare(model, table(rng, words=words, gaps=gaps), seed=1)
    found = fitted(ready, np.arange(60) % 2)
    assert found.shape == (60, 2)
    assert np.isfinite(found).all()
    assert ready.names[:2] == ("age", "pay")


def test_naive_bayes_is_told_by_its_columns(rng: np.random.Generator) -> None:
    numbers = prepare("naive-bayes", table(rng, words=False, gaps=False))
    assert type(numbers.estimator) is GaussianNB  # bare, so that it is left one out exactly
    mixed = prepare("naive-bayes", table(rng, words=True, gaps=True))
    assert type(mixed.estimator) is CategoricalNB
    assert any("age, pay" in caveat for caveat in mixed.caveats)
    assert mixed.X.max(axis=0).tolist() == [10, 9, 2]


def test_words_that_a_shadow_never_saw_are_no_error(rng: np.random.Generator) -> None:
    full = table(rng, words=True, gaps=False)
    y = np.arange(60) % 2
    for model in MODELS:
        ready = prepare(model, full)
        some = ready.X[:, 2] != ready.X[0, 2]
        fit = clone(ready.estimator).fit(ready.X[some], y[some])
        assert np.isfinite(fit.predict_proba(ready.X)).all()


def test_an_estimator_of_ones_own_is_put_behind_the_same() -> None:
    features = Table((Column("job", np.array([0, 1, 0, 1]), ("a", "b")),))
    ready = with_preprocessing(GaussianNB(), features)
    assert fitted(ready, np.array([0, 1, 0, 1])).argmax(axis=1).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("column", "part"),
    [
        (Column("x", np.full(3, np.nan)), "'x' is empty. Drop it: --drop x"),
        (Column("x", np.array([1.0, np.inf, 2.0])), "finite"),
        (Column("x", np.arange(2000), tuple(map(str, range(2000)))), "at most 1000"),
    ],
)
def test_columns_that_cannot_be_used_are_named(column: Column, part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        prepare("logistic", Table((column,)))


def test_no_columns_and_no_model_are_told() -> None:
    with pytest.raises(InvalidArgument, match="besides the label"):
        prepare("knn", Table(()))
    with pytest.raises(InvalidArgument, match="naive-bayes, logistic"):
        prepare("oracle", Table(()))
