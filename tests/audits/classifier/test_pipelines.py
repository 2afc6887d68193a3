"""Preprocessing that learns is refitted with the record gone, or said to be held."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier

import epsilometer as em
from epsilometer.audits.classifier.leave_one_out.pdtp import pdtp
from epsilometer.audits.classifier.sklearn_models import unwrap_pipeline
from epsilometer.engine.engines import InProcess
from epsilometer.errors import InvalidArgument

X, Y = load_iris(return_X_y=True)
FEW = np.array([0, 56, 70, 106, 133])
HERE = InProcess()


def centred(features: Any) -> Any:
    """By the records it is given, so not by each alone."""
    return features - features.mean(axis=0)


def by_hand(model: Any, held: Any = None) -> Any:
    """ln p at each record without it; ``held`` is preprocessing that stays."""
    features = X if held is None else held.transform(X)
    found = []
    for record in FEW:
        kept = np.arange(len(Y)) != record
        fitted = clone(model).fit(features[kept], Y[kept])
        found.append(fitted.predict_log_proba(features[[record]])[0])
    return np.array(found)


@pytest.mark.parametrize("steps", [(), (PolynomialFeatures(1, include_bias=False),)])
def test_by_default_records_leave_a_pipeline_as_a_whole(steps: Any) -> None:
    solved = {"solver": "newton-cholesky", "tol": 1e-12}
    last = LogisticRegression(C=0.01, **solved)
    pipeline = make_pipeline(StandardScaler(), *steps, last)
    result = pdtp(pipeline, X, Y, records=FEW, engine=HERE)
    names = ", ".join(type(step).__name__ for _, step in pipeline.steps[:-1])
    assert result.path == f"exact: logistic regression through {names}"
    np.testing.assert_allclose(result.without, by_hand(pipeline), rtol=1e-7)
    held = by_hand(pipeline[-1], pipeline[:-1].fit(X))
    assert np.abs(result.without - held).max() > 1e-6  # scaling is a part of it


@pytest.mark.parametrize("last", [GaussianNB(), DecisionTreeClassifier(random_state=0)])
def test_what_is_held_fixed_is_said(last: Any) -> None:
    pipeline = make_pipeline(StandardScaler(), Normalizer(), last)
    result = pdtp(pipeline, X, Y, records=FEW, preprocessing="fixed", engine=HERE)
    with np.errstate(divide="ignore"):
        wanted = by_hand(last, pipeline[:-1].fit(X))
    np.testing.assert_allclose(result.without, wanted, atol=1e-9)
    kind = "exact: Gaussian naive Bayes" if isinstance(last, GaussianNB) else "refits"
    assert result.path == f"{kind}, preprocessing held fixed"
    assert any(caveat.startswith("StandardScaler fitted to all") for caveat in result.caveats)


@pytest.mark.parametrize(
    "steps",
    [
        [Normalizer()],
        [PolynomialFeatures(2), Normalizer()],
        [FunctionTransformer(np.log1p)],
        [ColumnTransformer([("a", Normalizer(), [0, 1]), ("b", "passthrough", [2])])],
        ["passthrough"],
    ],
)
def test_steps_that_learn_nothing_leave_the_exact_path_open(steps: list[Any]) -> None:
    pipeline = make_pipeline(*steps, GaussianNB())
    result = pdtp(pipeline, X, Y, records=FEW)
    assert result.path == "exact: Gaussian naive Bayes"
    np.testing.assert_allclose(result.without, by_hand(pipeline), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "step",
    [
        StandardScaler(),
        FunctionTransformer(centred),
        ColumnTransformer([("a", OneHotEncoder(handle_unknown="ignore"), [0])]),
        ColumnTransformer([("a", Normalizer(), [0])], remainder=StandardScaler()),
        make_pipeline(StandardScaler()),
    ],
)
def test_steps_that_learn_are_never_taken_off_unasked(step: Any) -> None:
    pipeline = make_pipeline(step, GaussianNB())
    assert unwrap_pipeline(pipeline, X, Y).estimator is pipeline
    fixed = unwrap_pipeline(pipeline, X, Y, preprocessing="fixed")
    assert isinstance(fixed.estimator, GaussianNB)
    assert len(fixed.held) == 1


def test_pipelines_within_pipelines_and_queries() -> None:
    inner = make_pipeline(StandardScaler(), GaussianNB())
    outer = make_pipeline(Normalizer(), inner)
    assert unwrap_pipeline(outer, X, Y).estimator is inner  # what learns nothing is off
    fixed = unwrap_pipeline(outer, X, Y, preprocessing="fixed")
    assert fixed.held == ("StandardScaler",)
    wanted = StandardScaler().fit_transform(Normalizer().fit_transform(X))
    np.testing.assert_allclose(fixed.features, wanted)
    np.testing.assert_allclose(fixed.transform(X[:3]), wanted[:3])


def test_what_is_no_pipeline_stays_as_it_is() -> None:
    model = GaussianNB()
    found = unwrap_pipeline(model, X, Y, preprocessing="fixed")
    assert found.estimator is model
    assert found.features is X
    assert not found.held
    with pytest.raises(InvalidArgument, match="'refit' or 'fixed'"):
        unwrap_pipeline(model, X, Y, preprocessing="frozen")  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["file", "api"])
@pytest.mark.parametrize("as_list", [False, True])
def test_texts_are_audited_whether_a_list_or_an_array(form: str, as_list: bool) -> None:
    """A pipeline of a vectorizer ended in an internal fault."""
    told = [f"patient {i} has a cough and {i % 7} more" for i in range(60)]
    texts = told if as_list else np.array(told, object)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    how: dict[str, Any] = {
        "attacks": ("loss",),
        "shadows": 8,
        "records": "sample:10",
        "remedies": 0,
    }
    subject = em.Classifier(model, texts, np.arange(60) % 2, published_as=form, **how)
    found = em.audit(subject, engine=em.InProcess())
    if form == "file":
        assert found.verdict == "do not release"
        said = found.find(em.findings.RuleFinding)[0].finding
        assert "TfidfVectorizer" in said
