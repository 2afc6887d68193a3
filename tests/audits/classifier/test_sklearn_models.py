import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.datasets import load_iris
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from epsilometer.audits.classifier.sklearn_models import FitEstimator, clone_with_seed, predict_logs
from epsilometer.errors import InvalidArgument

X, Y = load_iris(return_X_y=True)
CLASSES = np.arange(3)


def test_the_estimator_itself_stays_as_it_is() -> None:
    trained = GaussianNB().fit(X, Y)
    before = trained.theta_.copy()
    FitEstimator(trained, CLASSES)(X[:80], Y[:80], 1)
    np.testing.assert_array_equal(trained.theta_, before)


def test_a_warm_start_does_not_remember_who_was_there() -> None:
    forest = RandomForestClassifier(3, warm_start=True, random_state=0).fit(X, Y)
    assert not hasattr(clone_with_seed(forest, 1), "estimators_")


def test_every_random_state_is_set() -> None:
    nested = make_pipeline(StandardScaler(), BaggingClassifier(DecisionTreeClassifier()))
    made = clone_with_seed(nested, 2**32 + 5)
    states = {name: value for name, value in made.get_params().items() if "random_state" in name}
    assert set(states.values()) == {5}
    assert len(states) == 2


def test_classes_that_are_absent_have_a_column_of_nothing() -> None:
    known = Y != 1
    found = FitEstimator(GaussianNB(), CLASSES)(X[known], Y[known], 0)(X)
    assert np.isneginf(found[:, 1]).all()
    expected = GaussianNB().fit(X[known], Y[known]).predict_log_proba(X)
    np.testing.assert_array_equal(found[:, [0, 2]], expected)


@pytest.mark.parametrize("estimator", [RidgeClassifier(), LinearSVC()])
def test_decisions_are_mapped_as_it_says(estimator: BaseEstimator) -> None:
    model = estimator.fit(X, Y)
    found = predict_logs(model, X, classes=CLASSES)
    decision = model.decision_function(X)
    np.testing.assert_allclose(
        np.exp(found), np.exp(decision) / np.exp(decision).sum(axis=1, keepdims=True), rtol=1e-9
    )
    two = Y < 2
    model = estimator.fit(X[two], Y[two])
    found = predict_logs(model, X, classes=CLASSES[:2])
    expected = 1 / (1 + np.exp(-model.decision_function(X)))
    np.testing.assert_allclose(np.exp(found[:, 1]), expected, rtol=1e-9)


class Stubborn(BaseEstimator):  # type: ignore[misc]
    """Not clonable: its constructor changes what it is given."""

    def __init__(self, size: int = 3) -> None:
        self.size = [size]


def test_what_cannot_be_used_is_refused_with_advice() -> None:
    with pytest.raises(InvalidArgument, match="can be cloned, got Stubborn"):
        clone_with_seed(Stubborn(), 0)
    with pytest.raises(InvalidArgument, match="predict_proba or decision_function, got Scaler"):
        predict_logs(type("Scaler", (), {})(), X, classes=CLASSES)
    with pytest.raises(InvalidArgument, match="classes among the 2"):
        predict_logs(GaussianNB().fit(X, Y), X, classes=CLASSES[:2])
