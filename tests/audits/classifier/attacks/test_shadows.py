from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from epsilometer import InProcess, Local
from epsilometer.audits.classifier.attacks.shadows import (
    FLOOR,
    ShadowPool,
    own_and_rest,
    shadow_pool,
)
from epsilometer.audits.classifier.leave_one_out.networks import NetworkClassifier
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray
from tests.audits.classifier.attacks.pools import a_pool

HERE = InProcess()
IRIS = load_iris(return_X_y=True)


def same(left: ShadowPool, right: ShadowPool) -> bool:
    parts = ("log_proba", "member", "labels", "train_accuracy", "test_accuracy")
    return all(getattr(left, p).tobytes() == getattr(right, p).tobytes() for p in parts)


@pytest.mark.parametrize("draw", ["coins", "halves"])
def test_every_record_is_in_exactly_half_of_an_even_number(draw: Any) -> None:
    pool = shadow_pool(GaussianNB(), *IRIS, models=6, draw=draw, engine=HERE)
    assert set(pool.member.sum(axis=0)) == {3}
    assert pool.coins == (draw == "coins")
    sizes = pool.member.sum(axis=1)
    assert (set(sizes) == {75}) == (draw == "halves")


def test_models_are_what_scikit_learn_trains_on_those_records() -> None:
    X, y = load_breast_cancer(return_X_y=True)  # noqa: N806
    pool = shadow_pool(GaussianNB(), X, y, models=3, engine=HERE)
    for model in range(3):
        at = pool.member[model]
        refit = GaussianNB().fit(X[at], y[at])
        # ln p is kept in single precision
        np.testing.assert_allclose(pool.log_proba[model], refit.predict_log_proba(X), rtol=1e-6)
        assert pool.train_accuracy[model] == refit.score(X[at], y[at])
        assert pool.test_accuracy[model] == refit.score(X[~at], y[~at])


def test_randomness_of_training_comes_from_the_seed_and_differs_between_models() -> None:
    tree = DecisionTreeClassifier(max_features=1)
    first, again = (shadow_pool(tree, *IRIS, models=2, engine=HERE) for _ in range(2))
    other = shadow_pool(tree, *IRIS, models=2, seed=1, engine=HERE)
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.parametrize("engine", [Local(count=2, kind="threads"), Local(count=2)])
def test_the_same_bytes_on_every_engine(engine: Any) -> None:
    tree = DecisionTreeClassifier(max_features=1)
    expected = shadow_pool(tree, *IRIS, models=4, engine=HERE)
    assert same(expected, shadow_pool(tree, *IRIS, models=4, engine=engine))


class Counted:
    """Naive Bayes that fails, or counts how often it was trained."""

    def __init__(self, fail: int = -1) -> None:
        self.calls, self.fail = 0, fail

    def __call__(self, X: FloatArray, y: IntArray, seed: int) -> Callable[..., Any]:  # noqa: N803
        self.calls += 1
        if self.calls == self.fail:
            raise ValueError("the disk is full")
        return GaussianNB().fit(X, y).predict_log_proba

    def __getstate__(self) -> dict[str, Any]:  # what was counted is not part of what it is
        return {}


def test_a_pool_is_finished_and_extended_where_it_lives(tmp_path: Path) -> None:
    broken = Counted(fail=3)
    with pytest.raises(InvalidArgument, match=r"model 2 was not.*the disk is full") as told:
        shadow_pool(broken, *IRIS, models=4, directory=tmp_path, engine=HERE)
    assert "model 2 was not: ValueError." in told.value.shareable
    assert "disk" not in told.value.shareable
    resumed = Counted()
    first = shadow_pool(resumed, *IRIS, models=4, directory=tmp_path, engine=HERE)
    assert resumed.calls == 2
    more = Counted()
    extended = shadow_pool(more, *IRIS, models=10, directory=tmp_path, engine=HERE)
    assert more.calls == 6
    assert same(extended, shadow_pool(Counted(), *IRIS, models=10, engine=HERE))
    assert extended.log_proba[:4].tobytes() == first.log_proba.tobytes()
    fewer = Counted()
    assert same(first, shadow_pool(fewer, *IRIS, models=4, directory=tmp_path, engine=HERE))
    assert fewer.calls == 0


def test_a_pool_is_never_continued_with_something_else(tmp_path: Path) -> None:
    X, y = IRIS  # noqa: N806
    shadow_pool(GaussianNB(), X, y, models=2, directory=tmp_path, engine=HERE)
    for estimator, features, how in (
        (GaussianNB(), X, {"seed": 1}),
        (GaussianNB(), X, {"draw": "halves"}),
        (GaussianNB(), X + 1, {}),
        (GaussianNB(var_smoothing=1e-3), X, {}),
    ):
        with pytest.raises(InvalidArgument, match="Expected no other run"):
            shadow_pool(estimator, features, y, models=4, directory=tmp_path, engine=HERE, **how)  # type: ignore[arg-type]


def test_two_numbers_a_record_are_enough_for_own_labels() -> None:
    X, y = load_digits(return_X_y=True)  # noqa: N806
    whole, lean = (
        shadow_pool(GaussianNB(), X[:300], y[:300], models=2, keep=keep, engine=HERE)
        for keep in ("all", "own")
    )
    assert lean.log_proba.shape == (2, 300, 2)
    np.testing.assert_array_equal(lean.own, whole.own)
    np.testing.assert_allclose(lean.margins(), whole.margins(), rtol=1e-6)
    np.testing.assert_array_equal(lean.train_accuracy, whole.train_accuracy)


class Table:
    """As much of a data frame as is asked for: its rows are ``iloc``'s, ``[]`` has columns."""

    def __init__(self, values: FloatArray) -> None:
        self.values, self.shape, self.columns = values, values.shape, range(values.shape[1])

    @property
    def iloc(self) -> Any:
        values = self.values

        class Rows:
            def __getitem__(self, rows: Any) -> "Table":
                return Table(values[rows])

        return Rows()

    def __getitem__(self, column: int) -> FloatArray:
        return self.values[:, column]

    def __array__(self, *_: Any, **__: Any) -> FloatArray:
        return self.values

    def __len__(self) -> int:
        return len(self.values)


def test_sparse_features_and_tables_are_taken(tmp_path: Path) -> None:
    X, y = IRIS  # noqa: N806
    plain = shadow_pool(MultinomialNB(), X, y, models=2, engine=HERE)
    for features in (scipy.sparse.csr_matrix(X), Table(X), X.tolist()):
        home = tmp_path / type(features).__name__
        again = shadow_pool(MultinomialNB(), features, y, models=2, engine=HERE, directory=home)
        # sums over sparse columns round in another order
        np.testing.assert_allclose(again.log_proba, plain.log_proba, rtol=1e-5)


def test_torch_modules_are_trained_by_their_classifier() -> None:
    X, y = IRIS  # noqa: N806
    module = torch.nn.Linear(4, 3)
    network = NetworkClassifier(module, epochs=3)
    pool = shadow_pool(network, X, y, models=2, engine=HERE)
    again = shadow_pool(network, X, y, models=2, engine=HERE)
    assert same(pool, again)
    assert pool.log_proba.shape == (2, 150, 3)
    with pytest.raises(InvalidArgument, match="NetworkClassifier"):
        shadow_pool(module, X, y, models=2, engine=HERE)


def test_a_class_that_a_shadow_never_saw_is_impossible_to_it() -> None:
    X, y = IRIS  # noqa: N806
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    names[0] = "alone"
    pool = shadow_pool(GaussianNB(), X, names, models=2, engine=HERE)
    unaware = int(pool.member[0, 0])  # the model of the pair without it
    assert pool.classes.tolist() == ["alone", "setosa", "versicolor", "virginica"]
    assert np.isneginf(pool.log_proba[unaware, :, 0]).all()
    assert np.isfinite(pool.margins()).all()
    assert pool.own[unaware, 0] == np.float32(FLOOR)


def test_categories_that_a_shadow_never_saw_are_an_error_with_advice() -> None:
    X = np.arange(40)[:, None].astype(str)  # noqa: N806 - every category is one record's
    y = np.arange(40) % 2
    model = make_pipeline(OneHotEncoder(), LogisticRegression())
    with pytest.raises(InvalidArgument, match="handle_unknown='ignore'"):
        shadow_pool(model, X, y, models=2, engine=HERE)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"y": np.arange(150)}, "no more classes than a shadow has records"),
        ({"y": np.zeros(150)}, "at least two classes"),
        ({"y": np.zeros(149)}, "classes|label for each"),
        ({"models": 1}, "models ≥ 2"),
        ({"draw": "dice"}, "draw 'coins' or 'halves'"),
        ({"keep": "none"}, "keep 'all' or 'own'"),
        ({"estimator": lambda *_: lambda _: np.zeros((150, 2))}, "shape"),
        ({"estimator": lambda *_: lambda _: np.full((150, 3), 0.33)}, "logarithm"),
        ({"estimator": lambda *_: lambda _: np.full((150, 3), -9.0)}, "log-softmax"),
        ({"estimator": lambda *_: lambda _: np.full((150, 3), np.nan)}, "nan"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], said: str) -> None:
    how = {"estimator": GaussianNB(), "X": IRIS[0], "y": IRIS[1], "engine": HERE, **changed}
    with pytest.raises(InvalidArgument, match=said):
        shadow_pool(how.pop("estimator"), how.pop("X"), how.pop("y"), **how)


def test_arrays_are_checked(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=4, n=10)
    for log_proba, member, labels, said in (
        (pool.log_proba[:, :9], pool.member, pool.labels, "shape"),
        (np.exp(pool.log_proba), pool.member, pool.labels, "logarithm"),
        (pool.log_proba, pool.member * 2, pool.labels, "truth values"),
        (pool.log_proba, pool.member[0], pool.labels, "truth values"),
        (pool.log_proba, pool.member, pool.labels[:9], "shape"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            ShadowPool.from_arrays(log_proba, member, labels)


def test_whoever_attacks_a_model_has_neither_it_nor_its_twin(rng: np.random.Generator) -> None:
    pool = a_pool(rng, models=8)
    for target in (0, 5):
        shadows, found = pool.against(target)
        assert shadows.models == 6
        assert set(shadows.member.sum(axis=0)) == {3}  # counts tell nothing of who was in
        assert found.tobytes() == pool.log_proba[target].tobytes()
    with pytest.raises(InvalidArgument, match="models 0 to 7"):
        pool.against(8)
    with pytest.raises(InvalidArgument, match="besides the target"):
        a_pool(rng, models=2).against(0)
    with pytest.raises(InvalidArgument, match="ln p of the target"):
        pool.against(np.zeros((3, 3)))


def test_digits_of_what_is_nearly_certain_are_not_lost() -> None:
    """1 − p in double precision would be 0 here."""
    tiny = np.log([1e-30, 3e-30])
    found = own_and_rest(np.array([[0.0, *tiny]]), np.array([0]))
    np.testing.assert_allclose(found, [[0.0, np.log(4e-30)]], rtol=1e-12)


def test_what_nobody_voted_for_counts_as_half_a_vote() -> None:
    votes = np.array([[5, 0], [4, 1], [1, 4], [3, 2]]) / 5
    with np.errstate(divide="ignore"):
        log_proba = np.log(np.stack([votes, votes], axis=1))
    pool = ShadowPool.from_arrays(log_proba, [[1, 0], [0, 1], [1, 0], [0, 1]], [0, 1])
    # 0 counts as half of the smallest vote, 0.1
    np.testing.assert_allclose(pool.margins()[0], [np.log(10), -np.log(10)], rtol=1e-6)
    np.testing.assert_allclose(pool.margins()[1], [np.log(4), -np.log(4)], rtol=1e-6)
