"""Naive Bayes without one record, against scikit-learn fitted without it."""
# ruff: noqa: N803, N806 - X, as in scikit-learn

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.naive_bayes import (
    BernoulliNB,
    CategoricalNB,
    ComplementNB,
    GaussianNB,
    MultinomialNB,
)

from epsilometer.audits.classifier.leave_one_out.families import Removable, family_of
from epsilometer.audits.classifier.leave_one_out.naive_bayes import GaussianModel
from epsilometer.errors import InvalidArgument
from tests.audits.classifier.leave_one_out.brute_force import refitted_logs
from tests.audits.classifier.leave_one_out.reference import adult

TIGHT = 1e-9  # relative where |ln p| is above 1: a pixel that never varies has ln p of −10⁹
TEN = np.arange(1, 11) / 55
ESTIMATORS = [
    GaussianNB(),
    GaussianNB(var_smoothing=1e-3, priors=TEN),
    BernoulliNB(),
    BernoulliNB(alpha=0.1, binarize=7.0, class_prior=TEN),
    MultinomialNB(),
    MultinomialNB(alpha=1e-12, force_alpha=False),
    MultinomialNB(alpha=np.linspace(0.1, 2, 64), fit_prior=False),
    ComplementNB(),
    ComplementNB(alpha=np.linspace(0.1, 2, 64), norm=True),
    CategoricalNB(min_categories=17),
    CategoricalNB(alpha=0.3, fit_prior=False, min_categories=[17] * 64),
    CategoricalNB(class_prior=TEN, min_categories=17),
]


def fitted(estimator: Any, X: Any, y: Any) -> Any:
    family = family_of(estimator)
    assert family is not None
    assert family.refuses(estimator, X, y) is None
    return family.fit(estimator, X, y)


def agree(ours: Any, theirs: Any) -> None:
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(np.isfinite(ours), finite)
    np.testing.assert_allclose(ours[finite], theirs[finite], rtol=TIGHT, atol=TIGHT)


def agrees_with_refits(estimator: Any, X: Any, y: Any, records: Any) -> None:
    agree(fitted(estimator, X, y).own(np.asarray(records)), refitted_logs(estimator, X, y, records))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.filterwarnings("ignore:alpha too small")
@pytest.mark.in_turn(3)
def test_agrees_with_refits_on_digits(estimator: Any) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:400], y[:400]
    agrees_with_refits(estimator, X, y, np.arange(0, 400, 9))
    model, kept = fitted(estimator, X, y), np.arange(400) != 7
    queries = X[100:150]
    without = type(estimator)(**estimator.get_params()).fit(X[kept], y[kept])
    agree(model.without(7, queries), without.predict_log_proba(queries))
    full = type(estimator)(**estimator.get_params()).fit(X, y)
    agree(model.log_proba(queries), full.predict_log_proba(queries))
    np.testing.assert_array_equal(model.classes, full.classes_)


@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
@pytest.mark.parametrize(
    "estimator", [GaussianNB(), BernoulliNB(binarize=1.0), MultinomialNB(), ComplementNB()], ids=str
)
def test_agrees_with_refits_on_real_measurements(load: Any, estimator: Any) -> None:
    X, y = load(return_X_y=True)
    agrees_with_refits(estimator, X, y, np.arange(0, len(y), 7))


def test_agrees_with_refits_on_a_census() -> None:
    X, y = adult("education", "marital-status", "occupation", "race", "sex", "native-country")
    agrees_with_refits(
        CategoricalNB(min_categories=X.max(axis=0) + 1), X, y, np.arange(0, len(y), 90)
    )


def test_own_is_without_at_its_own_features() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:200], y[:200]
    for estimator in ESTIMATORS[::2]:
        model = fitted(estimator, X, y)
        agree(
            model.own(np.array([3, 3, 99])),
            np.concatenate([model.without(record, X[[record]]) for record in (3, 3, 99)]),
        )


def test_texts_and_numbers_are_labels_alike() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    agree(
        fitted(GaussianNB(), X, names).own(np.arange(9)),
        fitted(GaussianNB(), X, y).own(np.arange(9)),
    )


@pytest.mark.parametrize("estimator", [MultinomialNB(), ComplementNB(), BernoulliNB(binarize=2.0)])
@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csc_matrix])
def test_sparse_counts_are_the_same_counts(estimator: Any, kind: Any) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    dense, sparse = fitted(estimator, X, y), fitted(estimator, kind(X), y)
    agree(sparse.own(np.arange(300)), dense.own(np.arange(300)))
    agree(sparse.log_proba(kind(X)), dense.log_proba(X))


def test_negative_numbers_are_binarised() -> None:
    X, y = load_iris(return_X_y=True)
    agrees_with_refits(BernoulliNB(), X - X.mean(axis=0), y, np.arange(0, 150, 7))


@pytest.mark.parametrize(
    "estimator",
    [
        GaussianNB(),
        BernoulliNB(binarize=2.0),
        MultinomialNB(),
        ComplementNB(),
        CategoricalNB(min_categories=9),
    ],
    ids=str,
)
@pytest.mark.parametrize("left", [1, 2])
def test_a_class_may_be_as_small_as_one_record(estimator: Any, left: int) -> None:
    """Its probability is then 0 without it, and the others share what it had."""
    X, y = load_iris(return_X_y=True)
    kept = np.r_[0:left, 50:150]
    X, y = np.floor(X[kept]), y[kept]
    agrees_with_refits(estimator, X, y, np.arange(0, len(y), 4))
    own = fitted(estimator, X, y).own(np.array([0]))[0]
    assert np.isneginf(own[0]) == (left == 1)
    assert np.exp(own).sum() == pytest.approx(1)


def test_a_class_with_given_prior_goes_too() -> None:
    """scikit-learn refuses to fit then; the others' priors stay as they were to each other."""
    X, y = load_iris(return_X_y=True)
    X, y = X[49:], y[49:]
    own = fitted(GaussianNB(priors=[0.5, 0.2, 0.3]), X, y).own(np.array([0]))
    left = GaussianNB(priors=[0.4, 0.6]).fit(X[1:], y[1:])
    agree(own[:, 1:], left.predict_log_proba(X[:1]))
    assert np.isneginf(own[0, 0])


def lonely() -> tuple[Any, Any]:
    """One record has all the variance that a feature has in its class."""
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    X[y == 1, 0] = 1 / 3
    X[3, 0] = 10.0
    return X, y


def test_a_record_that_has_nearly_all_the_variance() -> None:
    """What is left of a sum of squares when all but nothing is taken from it is rounding."""
    agrees_with_refits(GaussianNB(), *lonely(), np.arange(40))


def test_planted_mistakes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_iris(return_X_y=True)

    def noticed(estimator: Any, X: Any, y: Any) -> None:
        with pytest.raises(AssertionError):
            agrees_with_refits(estimator, X, y, np.arange(3, len(y), 7))

    with monkeypatch.context() as patch:  # the smoothing stays as of all records
        smooth = GaussianModel._smooth
        patch.setattr(
            GaussianModel,
            "_smooth",
            lambda self, found: (
                smooth(self, found) if found.ndim == 1 else np.tile(self._epsilon, (len(found), 1))
            ),
        )
        noticed(GaussianNB(var_smoothing=1e-3), X, y)
    with monkeypatch.context() as patch:  # the prior stays as of all records
        patch.setattr(Removable, "log_priors", lambda _, counts: np.zeros_like(counts))
        noticed(GaussianNB(), X, y)
        noticed(CategoricalNB(min_categories=9), np.floor(X), y)


def test_the_only_record_with_the_highest_value() -> None:
    """Without it scikit-learn has no answer: the number of values is held as ``min_categories``."""
    X, y = np.array([[0], [1], [0], [1], [2], [0]]), np.array([0, 0, 1, 1, 1, 0])
    with pytest.raises(IndexError):
        refitted_logs(CategoricalNB(), X, y, [4])
    model = fitted(CategoricalNB(), X, y)
    agree(model.own(np.array([4])), refitted_logs(CategoricalNB(min_categories=3), X, y, [4]))
    assert "Columns in which a single record has the highest value: 1." in model.caveats[0]
    assert fitted(CategoricalNB(min_categories=4), X, y).caveats == ()


def test_counts_without_smoothing_may_say_nothing() -> None:
    X, y = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), np.array([0, 0, 1, 1])
    own = fitted(CategoricalNB(alpha=0.0), X, y).own(np.arange(4))
    assert np.isnan(own).all()  # nobody else of the class has the value, nor of the other


class Mine(GaussianNB):
    """May do anything."""


def test_only_the_exact_type_is_recognised() -> None:
    assert family_of(Mine()) is None
    assert family_of(object()) is None


@pytest.mark.parametrize(
    ("estimator", "reason"),
    [
        (MultinomialNB(alpha=0.0), "alpha = 0"),
        (ComplementNB(alpha=0.0), "alpha = 0"),
        (BernoulliNB(alpha=0.0), "alpha = 0"),
        (BernoulliNB(alpha=[1.0, 1.0]), "alpha for each feature"),
        (BernoulliNB(binarize=None), "binarize=None"),
    ],
    ids=str,
)
def test_what_has_to_be_refitted_is_said(estimator: Any, reason: str) -> None:
    family = family_of(estimator)
    assert family is not None
    assert reason in str(family.refuses(estimator, np.array([[0.5, 1.0], [2.0, 0.0]]), [0, 1]))


@pytest.mark.parametrize(
    ("estimator", "X", "words"),
    [
        (GaussianNB(), [[0.0], [np.nan], [1.0]], "found 1 of 3 nan"),
        (GaussianNB(), [["a"], ["b"], ["c"]], "Expected numbers"),
        (GaussianNB(), [0.0, 1.0, 2.0], "shape"),
        (GaussianNB(priors=[1.0]), [[0.0], [2.0], [1.0]], "2 priors"),
        (MultinomialNB(), [[0.0], [-2.0], [1.0]], "counts of 0 or more"),
        (MultinomialNB(alpha=-1.0), [[0.0], [2.0], [1.0]], "alpha ≥ 0"),
        (MultinomialNB(alpha=[1.0, 2.0]), [[0.0], [2.0], [1.0]], "one alpha"),
        (CategoricalNB(), [[0], [-1], [1]], "OrdinalEncoder"),
        (CategoricalNB(min_categories=[2, 3]), [[0], [1], [1]], "min_categories"),
    ],
    ids=str,
)
def test_bad_input(estimator: Any, X: Any, words: str) -> None:
    family = family_of(estimator)
    assert family is not None
    with pytest.raises(InvalidArgument, match=words):
        family.fit(estimator, X, [0, 1, 1])


@pytest.mark.parametrize(
    ("estimator", "queries", "words"),
    [
        (GaussianNB(), [[0.0, 1.0]], "1 features"),
        (MultinomialNB(), [[0.0, 1.0]], "1 features"),
        (CategoricalNB(), [[0, 1]], "1 features"),
        (CategoricalNB(), [[3]], "below 2 in column 0"),
    ],
    ids=str,
)
def test_bad_queries(estimator: Any, queries: Any, words: str) -> None:
    model = fitted(estimator, [[0], [1], [1]], [0, 1, 1])
    with pytest.raises(InvalidArgument, match=words):
        model.log_proba(queries)
