"""Records computed from coefficients and all other records, and models that are not solved."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import epsilometer as em
from epsilometer.audits.classifier.rebuilding import rebuild_records
from epsilometer.findings import RuleFinding

pytest.importorskip("sklearn")
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
)
from sklearn.feature_selection import RFE
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    Lars,
    Lasso,
    LassoLars,
    LassoLarsIC,
    LinearRegression,
    LogisticRegression,
    MultiTaskLasso,
    OrthogonalMatchingPursuit,
    Perceptron,
    PoissonRegressor,
    QuantileRegressor,
    RANSACRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
    TheilSenRegressor,
    TweedieRegressor,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC, LinearSVR
from sklearn.tree import DecisionTreeRegressor

N = 300
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4))
MEAN = X @ [0.3, -0.2, 0.25, 0.1]
NUMBERS = MEAN + 0.5 * RNG.normal(size=N)
COUNTS = RNG.poisson(np.exp(MEAN)).astype(float)
SUMS = np.exp(MEAN) * RNG.gamma(3, 1 / 3, N)
CODES = np.digitize(NUMBERS, [-0.4, 0.4])
HERE = em.InProcess()
PRECISE = {"solver": "newton-cholesky", "tol": 1e-10}
CURVED = {"loss": "squared_epsilon_insensitive", "tol": 1e-10, "max_iter": 10**5}

SOLVED: dict[str, tuple[Any, Any]] = {
    "Bayesian": (BayesianRidge(), NUMBERS),
    "relevant": (ARDRegression(), NUMBERS),
    "Huber": (HuberRegressor(), NUMBERS),
    "Huber of many outliers": (HuberRegressor(epsilon=1.05, alpha=0.7), NUMBERS),
    "Poisson": (PoissonRegressor(**PRECISE), COUNTS),
    "Poisson by default": (PoissonRegressor(), COUNTS),
    "Gamma": (GammaRegressor(alpha=0.2, **PRECISE), SUMS),
    "between the two": (TweedieRegressor(power=1.5, **PRECISE), SUMS),
    "Tweedie of squares": (TweedieRegressor(power=0, **PRECISE), NUMBERS),
    "Tweedie by logarithms": (TweedieRegressor(power=0, link="log", **PRECISE), SUMS),
    "support vectors": (LinearSVR(**CURVED), NUMBERS),
    "lasso by angles": (LassoLars(0.02), NUMBERS),
    "chosen lasso": (LassoLarsIC(), NUMBERS),
    "pursuit": (OrthogonalMatchingPursuit(n_nonzero_coefs=2), NUMBERS),
    "sparse lasso": (Lasso(0.15, tol=1e-10), NUMBERS),
    "elastic": (ElasticNet(0.05, tol=1e-10), NUMBERS),
    "positive": (LinearRegression(positive=True), NUMBERS),
    "positive ridge": (Ridge(positive=True), NUMBERS),
    "scaled": (make_pipeline(StandardScaler(), BayesianRidge()), NUMBERS),
}
UNSOLVED: dict[str, tuple[Any, Any]] = {
    "support vectors": (LinearSVR(), NUMBERS),
    "a quantile": (QuantileRegressor(), NUMBERS),
    "stochastic": (SGDRegressor(), NUMBERS),
    "a spatial median": (TheilSenRegressor(), NUMBERS),
    "angles": (Lars(), NUMBERS),
    "bags": (BaggingRegressor(LinearRegression(), 3, random_state=0), NUMBERS),
    "without outliers": (RANSACRegressor(random_state=0), NUMBERS),
    "no intercept": (Ridge(fit_intercept=False), NUMBERS),
    "several tasks": (MultiTaskLasso(0.05), np.column_stack([NUMBERS, COUNTS])),
}
CLASSES: dict[str, Any] = {
    "stochastic": SGDClassifier(random_state=0),
    "mistakes": Perceptron(random_state=0),
    "hinges": LinearSVC(loss="hinge"),
    "all at once": LinearSVC(multi_class="crammer_singer"),
    "pairs": OneVsOneClassifier(RidgeClassifier()),
    "bags": BaggingClassifier(RidgeClassifier(), 3, random_state=0),
    "folds": CalibratedClassifierCV(LogisticRegression(), cv=3),
    "weights": AdaBoostClassifier(LogisticRegression(**PRECISE), n_estimators=2, random_state=0),
    "answers of folds": StackingClassifier([("a", GaussianNB())], LogisticRegression(**PRECISE)),
}
RULES = {"file": "no record in the model's file", "api": "no record computed from answers"}


def audit(model: Any, y: Any, published_as: str) -> str:
    """Return the outcome of the rule about single records."""
    kind: Any = em.Classifier if y.dtype.kind == "i" else em.Regressor
    rules = em.rules.NoRecordInFile() if published_as == "file" else em.rules.NoRecordInAnswers()
    how = {"published_as": published_as, "attacks": (), "rules": (rules,), "records": "sample:30"}
    found = em.audit(kind(model, X, y, **how), engine=HERE)
    (rule,) = (r for r in found.find(RuleFinding) if r.rule == RULES[published_as])
    return rule.outcome


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("published_as", RULES)
@pytest.mark.parametrize("name", SOLVED)
@pytest.mark.in_turn(2)
def test_smooth_losses_give_their_records_away(name: str, published_as: str) -> None:
    """They were passed: nothing was tried."""
    assert audit(*SOLVED[name], published_as) == "fail"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("published_as", RULES)
@pytest.mark.parametrize("name", UNSOLVED)
@pytest.mark.in_turn(2)
def test_regressors_that_are_not_solved_are_not_passed(name: str, published_as: str) -> None:
    assert audit(*UNSOLVED[name], published_as) == "unclear"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLASSES)
def test_classifiers_that_are_not_solved_are_not_passed(name: str) -> None:
    assert audit(CLASSES[name], CODES, "file") == "unclear"


def test_the_reason_is_said() -> None:
    found = rebuild_records(Ridge(fit_intercept=False).fit(X, NUMBERS), X, NUMBERS)
    assert found is not None
    assert "of Ridge, which has no intercept, a record follows up to a factor" in found.why


def test_selected_columns_are_given_away() -> None:
    codes = (NUMBERS > 0).astype(np.int64)
    assert audit(RFE(RidgeClassifier(), n_features_to_select=2), codes, "file") == "fail"


def test_each_class_against_the_others_gives_records_away() -> None:
    assert audit(OneVsRestClassifier(RidgeClassifier()), CODES, "file") == "fail"


def test_sparse_coefficients_tell_what_dense_ones_do() -> None:
    table, codes = scipy.sparse.csr_matrix(X), (NUMBERS > 0).astype(np.int64)
    model = LogisticRegression(**PRECISE).fit(table, codes).sparsify()
    found = rebuild_records(model, table, codes)
    assert found is not None
    assert found.hits > N / 2
    other = rebuild_records(SGDClassifier().fit(table, codes), table, codes)
    assert other is not None
    assert other.why


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Bayesian", "Huber", "Gamma", "support vectors", "pursuit"])
def test_coefficients_of_other_people_give_nobody_away(name: str) -> None:
    model, y = SOLVED[name]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        others = rng.permutation(N)  # features of some with the numbers of others
        found = rebuild_records(model.fit(X[others], y), X, y, seed=seed)
        assert found is not None
        assert not found.hits


def test_models_that_give_no_record_away_pass() -> None:
    assert audit(DummyRegressor(), NUMBERS, "file") == "pass"
    assert audit(Lasso(10.0), NUMBERS, "file") == "pass"  # its coefficients are 0
    assert audit(DecisionTreeRegressor(min_samples_leaf=60), NUMBERS, "file") == "pass"
    assert audit(LinearDiscriminantAnalysis(), CODES, "file") == "pass"
    rough = LogisticRegression(tol=1e-1)
    assert audit(rough, (NUMBERS > 0).astype(np.int64), "file") == "pass"


class OwnProducts(LogisticRegression):
    """A model that makes a product of two columns itself, so that nobody sees what reaches it."""

    def fit(self, x: Any, y: Any) -> "OwnProducts":
        self.inner_ = LogisticRegression(tol=1e-10, max_iter=5000).fit(self._extend(x), y)
        self.classes_, self.n_features_in_ = self.inner_.classes_, np.shape(x)[1]
        return self

    def predict(self, x: Any) -> Any:
        return self.inner_.predict(self._extend(x))

    def predict_proba(self, x: Any) -> Any:
        return self.inner_.predict_proba(self._extend(x))

    def _extend(self, x: Any) -> Any:
        return np.column_stack([x, np.prod(np.asarray(x)[:, :2], axis=1)])


@pytest.mark.parametrize("published", ["file", "api"])
def test_a_linear_model_whose_inputs_are_unknown_is_not_passed(published: Any) -> None:
    rule = em.rules.NoRecordInFile() if published == "file" else em.rules.NoRecordInAnswers()
    subject = em.Classifier(
        OwnProducts(), X, NUMBERS > 0, published_as=published, rules=[rule], attacks=[]
    )
    audit = em.audit(subject)
    assert audit.verdict == "cannot tell"
    assert "the features that reach it are not known" in audit.one(RuleFinding).finding
