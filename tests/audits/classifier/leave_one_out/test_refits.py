"""Refits against a plain loop over scikit-learn; resumed, on every engine; what is refused."""
# ruff: noqa: N803 - X, as in scikit-learn

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.audits.classifier.leave_one_out.refits import LeaveOneOut, refit
from epsilometer.engine.engines import InProcess, Local
from epsilometer.engine.run import UnitFailed
from epsilometer.errors import EpsilometerWarning, InvalidArgument

X, Y = load_iris(return_X_y=True)
FEW = np.array([0, 56, 70, 106, 133])
HERE = InProcess()


def by_hand(model: Any, records: NDArray[Any]) -> NDArray[Any]:
    """What the definition says: fit without the record, ask at the record."""
    found = []
    for record in records:
        kept = np.arange(len(Y)) != record
        found.append(clone(model).fit(X[kept], Y[kept]).predict_proba(X[[record]])[0])
    return np.array(found)


def parts(found: LeaveOneOut) -> list[bytes]:
    assert found.null is not None
    return [array.tobytes() for array in (found.full, found.without, found.null)]


class Global(ClassifierMixin, BaseEstimator):
    """Draws from NumPy's and Python's global generators, as some estimators do."""

    def fit(self, X: Any, y: Any) -> "Global":
        self.classes_ = np.unique(y)
        self.p_ = (np.random.random() + random.random()) / 2
        return self

    def predict_proba(self, X: Any) -> Any:
        return np.tile([self.p_, 1 - self.p_, 0.0], (len(X), 1))


class Wild(Global):
    """Draws from where nobody can set a seed."""

    def fit(self, X: Any, y: Any) -> "Wild":
        super().fit(X, y)
        self.p_ = random.SystemRandom().random()
        return self


class Moody(Global):
    """Answers nan, or raises, without record 3."""

    def __init__(self, how: str = "nan") -> None:
        self.how = how

    def fit(self, X: Any, y: Any) -> "Moody":
        super().fit(X, y)
        self.off_ = not (X == [4.6, 3.1, 1.5, 0.2]).all(axis=1).any()
        if self.off_ and self.how == "raise":
            raise ZeroDivisionError("no\nluck")
        return self

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X) * (np.nan if self.off_ and self.how == "nan" else 1)


class Stubborn(BaseEstimator):
    """Changes its argument, so that it cannot be cloned."""

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth + 1

    def fit(self, X: Any, y: Any) -> "Stubborn":
        return self

    def predict_proba(self, X: Any) -> Any:
        return np.ones((len(X), 1))


class OnlyLabels(ClassifierMixin, BaseEstimator):
    def fit(self, X: Any, y: Any) -> "OnlyLabels":
        return self

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X))


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeClassifier(random_state=3),
        RandomForestClassifier(n_estimators=5, random_state=3),
        MLPClassifier(4, max_iter=20, random_state=3),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_agrees_with_a_loop_over_records(model: Any) -> None:
    found = refit(model, X, Y, FEW, engine=HERE)
    np.testing.assert_allclose(np.exp(found.without), by_hand(model, FEW), rtol=1e-12)
    whole = clone(model).fit(X, Y).predict_proba(X[FEW])  # its own seed is kept
    np.testing.assert_allclose(np.exp(found.full), whole, rtol=1e-12)


def test_without_a_seed_both_fits_have_the_same_one() -> None:
    loose = RandomForestClassifier(n_estimators=5)
    found = refit(loose, X, Y, FEW, seed=7, engine=HERE)
    pinned = RandomForestClassifier(n_estimators=5, random_state=7)
    np.testing.assert_allclose(np.exp(found.without), by_hand(pinned, FEW), rtol=1e-12)
    assert found.null is not None
    assert not np.array_equal(found.full, found.null)
    assert [caveat[:18] for caveat in found.caveats] == ["Training is random"]
    assert loose.random_state is None


def test_what_is_not_random_has_a_floor_of_zero_because_it_was_refitted() -> None:
    result = pdtp(SVC(), X, Y, records=FEW, engine=HERE)
    assert result.path == "refits"
    assert result.floor is not None
    assert not result.floor.any()
    assert result.values.any()


def test_global_generators_are_common_and_then_as_before() -> None:
    np.random.seed(1)
    random.seed(1)
    found = refit(Global(), X, Y, FEW, engine=HERE)
    np.testing.assert_array_equal(found.full, found.without)
    drawn = (np.random.RandomState(0).random() + random.Random(0).random()) / 2
    np.testing.assert_allclose(np.exp(found.full[:, 0]), drawn)
    assert found.null is not None
    assert not np.array_equal(found.full, found.null)
    after = np.random.random(), random.random()
    np.random.seed(1)
    random.seed(1)
    assert after == (np.random.random(), random.random())


def test_randomness_out_of_reach_is_told() -> None:
    found = refit(Wild(), X, Y, FEW, engine=HERE)
    assert any("gave two different models" in caveat for caveat in found.caveats)


def test_the_same_bytes_on_every_engine_and_after_a_kill(tmp_path: Path) -> None:
    model = DecisionTreeClassifier(max_features=2)
    records = np.arange(70)  # two a unit
    here = refit(model, X, Y, records, engine=HERE)
    assert parts(refit(model, X, Y, records, engine=Local(count=2))) == parts(here)
    assert parts(refit(model, X, Y, records, engine=HERE, directory=tmp_path)) == parts(here)
    shards = sorted((tmp_path / "shards").iterdir())
    for shard in shards[1::2]:
        shard.unlink()  # as if it had been killed before
    assert parts(refit(model, X, Y, records, engine=HERE, directory=tmp_path)) == parts(here)


def test_a_directory_is_never_continued_with_something_else(tmp_path: Path) -> None:
    refit(DecisionTreeClassifier(), X, Y, FEW, engine=HERE, directory=tmp_path)
    for model, features in (
        (DecisionTreeClassifier(max_depth=1), X),
        (DecisionTreeClassifier(), X + 1),
    ):
        with pytest.raises(InvalidArgument, match="no other run"):
            refit(model, features, Y, FEW, engine=HERE, directory=tmp_path)


def test_queries_are_asked_of_each_model() -> None:
    model = DecisionTreeClassifier(random_state=0)
    found = refit(model, X, Y, FEW, queries=X[:4], engine=HERE)
    assert found.full.shape == (4, 3)
    assert found.without.shape == (5, 4, 3)
    kept = np.arange(150) != 106
    wanted = clone(model).fit(X[kept], Y[kept]).predict_proba(X[:4])
    np.testing.assert_allclose(np.exp(found.without[3]), wanted)


def test_decision_functions_count_by_the_documented_map() -> None:
    found = refit(SVC(), X, Y, FEW, engine=HERE)
    decision = SVC().fit(X, Y).decision_function(X[FEW])
    wanted = np.exp(decision) / np.exp(decision).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(found.full), wanted, rtol=1e-9)


def test_a_class_that_vanishes_has_probability_zero() -> None:
    y = Y.copy()
    y[7] = 9
    result = pdtp(DecisionTreeClassifier(), X, y, records=np.array([7, 8]), engine=HERE)
    assert np.isinf(result.values[0])
    assert np.isfinite(result.without[1]).any()
    two = np.where(np.arange(150) == 7, "rare", "usual")
    model = SGDClassifier(loss="log_loss")  # refuses a single class
    result = pdtp(model, X, two, records=np.array([7]), engine=HERE)
    np.testing.assert_array_equal(result.without, [[-np.inf, 0.0]])
    assert np.isinf(result.values[0])


def test_warnings_are_told_and_not_spilled() -> None:
    model = LogisticRegression(max_iter=2)  # pytest would turn a warning into an error
    found = refit(model, X, Y, FEW, engine=HERE)
    assert any("ConvergenceWarning" in caveat for caveat in found.caveats)
    assert len(found.caveats) == len(set(found.caveats)) == 1


class Cold(Global):
    """Fits slowly at first, as where a disk is cold."""

    slow = 3

    def fit(self, X: Any, y: Any) -> "Cold":
        if Cold.slow:
            Cold.slow -= 1
            time.sleep(0.5)
        super().fit(X, y)
        return self


def test_what_takes_too_long_is_refused_before_it_begins() -> None:
    with pytest.raises(InvalidArgument, match=r"150 models without a record take about .*screen"):
        refit(DecisionTreeClassifier(), X, Y, np.arange(150), engine=HERE, patience=1e-3)
    with pytest.warns(EpsilometerWarning, match="150 models without a record take about"):
        refit(Cold(), X, Y, np.arange(150), engine=HERE)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "Without record 3: .* nan"),
        ("raise", "it raised ZeroDivisionError. Without record 3: no luck"),
    ],
)
def test_a_record_that_spoils_the_fit_is_named(how: str, said: str) -> None:
    with pytest.raises(UnitFailed, match=said):
        refit(Moody(how), X, Y, np.arange(6), engine=HERE)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Stubborn(), "can be cloned"),
        (OnlyLabels(), "has neither"),
        (DecisionTreeClassifier, "with fit and predict_proba"),
        ("tree", "with fit and predict_proba"),
    ],
)
def test_what_cannot_be_refitted_is_refused(model: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        refit(model, X, Y, FEW, engine=HERE)


def test_a_sample_says_what_it_leaves_open() -> None:
    result = pdtp(DecisionTreeClassifier(), X, Y, records="sample:20", engine=HERE)
    assert result.records.size == 20
    assert any("95% confidence" in caveat for caveat in result.caveats)
