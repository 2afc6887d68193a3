"""Threats beside membership: each finds a model that leaks, and spares one that does not."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import epsilometer as em
from epsilometer.audits.classifier.model_file import search_model
from epsilometer.audits.classifier.sklearn_models import FitEstimator
from epsilometer.audits.classifier.threats.asking import OWN, Asked, ask_models
from epsilometer.audits.classifier.threats.attributes import (
    code_columns,
    guess_attribute,
    hide_column,
    impute,
)
from epsilometer.audits.classifier.threats.measuring import list_threats, measure_threats
from epsilometer.audits.classifier.threats.structure import count_in_leaves
from epsilometer.audits.classifier.threats.usage import (
    UsageError,
    estimate_share,
    find_usage,
    measure_usage,
)
from epsilometer.core import judge
from epsilometer.core.findings import ThreatFinding
from epsilometer.errors import InvalidArgument
from epsilometer.findings import RuleFinding
from epsilometer.stats import clusters

pytest.importorskip("sklearn")
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

FLAKE = 1e-6
HERE = em.InProcess()


def people(n: int = 400, seed: int = 0) -> tuple[Any, Any]:
    """Five columns; the third, of 0 and 1, follows from the first and moves the label."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))  # noqa: N806
    X[:, 2] = rng.random(n) < scipy.special.expit(3 * X[:, 0])
    y = rng.random(n) < scipy.special.expit(X[:, 1] + 2 * X[:, 2] - 1)
    return X, y.astype(int)


def measure(estimator: Any, *threats: str, n: int = 400, seed: int = 0) -> list[ThreatFinding]:
    X, y = people(n, seed)  # noqa: N806
    found = measure_threats(
        estimator,
        X,
        y,
        np.array([0, 1]),
        threats,
        names=None,
        categorical=None,
        decimals=None,
        has_file=True,
        confidence=0.95,
        seed=seed,
        engine=HERE,
    )
    return [threat.measure(confidence=0.95) for threat in list_threats(found, threats)]


TREE = DecisionTreeClassifier(random_state=0)


def test_a_tree_that_remembers_tells_a_hidden_column() -> None:
    (found,) = measure(TREE, "attribute:2")
    assert found.low > 0.02
    assert found.inside > found.outside


def test_correlation_is_not_called_leakage() -> None:
    """The hidden column follows from others, and the model uses it; but it remembers nobody."""
    (found,) = measure(LogisticRegression(), "attribute:2", n=1000)
    assert found.inside > 0.7  # as a peer would report it
    assert found.baseline > 0.7  # without any model
    assert found.low <= 0 <= found.high + 0.02
    assert found.high < 0.05


class Stranger:
    """Answers by the features and a seed alone."""

    classes_ = np.array([0, 1])

    def __init__(self, random_state: int | None = None) -> None:
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"random_state": self.random_state}

    def set_params(self, random_state: int) -> "Stranger":
        self.random_state = random_state
        return self

    def fit(self, X: Any, y: Any) -> "Stranger":  # noqa: N803
        return self

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        weights = np.random.default_rng(self.random_state).normal(size=X.shape[1])
        p = scipy.special.expit(X @ weights)
        return np.stack([1 - p, p], axis=1)


def test_models_that_learned_nothing_raise_no_alarm() -> None:
    audits = 30
    alarms = {"attribute": 0, "range": 0}
    for seed in range(audits):
        X, y = people(60, seed)  # noqa: N806
        hidden = hide_column(X, 2)
        asked = ask_models(
            FitEstimator(Stranger(), np.array([0, 1])),
            X,
            y,
            {"hidden": hidden.changed},
            models=6,
            seed=seed,
            engine=HERE,
        )
        prior = impute(code_columns(X), y, hidden, np.random.default_rng(seed))
        right = guess_attribute(asked, "hidden", hidden, prior)
        observed = clusters.ScoresByRecord.from_models(right, asked.member)
        alarms["attribute"] += clusters.advantage_at(observed, 0.5).low > 0
        gains = asked.gains(OWN)[:, :, 0]
        observed = clusters.ScoresByRecord.from_models(gains, asked.member)
        alarms["range"] += clusters.advantage(observed).low > 0
    most = scipy.stats.binom.isf(FLAKE, audits, 0.05)
    assert max(alarms.values()) <= most, alarms


def test_a_hidden_column_of_words_may_have_gaps() -> None:
    """A gap is a value like others: it can be guessed, and tried in a record's place."""
    words = np.array(["f", np.nan, "m", np.nan, "f"], object)
    table = pd.DataFrame({"age": np.arange(5.0), "sex": words})
    hidden = hide_column(table, 1)
    assert hidden.values[:2].tolist() == ["f", "m"]
    assert hidden.codes.tolist() == code_columns(table)[:, 1].tolist() == [0, 2, 1, 2, 0]
    assert hidden.changed[2]["sex"].isna().all()


def test_ranges_are_told_of_models_that_remember() -> None:
    remembered, forgotten = (
        measure(estimator, "range")[0]
        for estimator in (KNeighborsClassifier(1), LogisticRegression())
    )

    assert forgotten.low < 0.05 < remembered.low


def test_structure_singles_out_by_leaves_and_answers() -> None:
    (full,) = measure(TREE, "structure")
    (wide,) = measure(DecisionTreeClassifier(min_samples_leaf=30), "structure")
    (line,) = measure(LogisticRegression(), "structure")
    (pipe,) = measure(make_pipeline(StandardScaler(), TREE), "structure")
    assert full.value > 0.2
    assert pipe.value == full.value
    assert wide.value == line.value == 0
    assert "does not single anyone out" in line.note


@pytest.mark.parametrize(
    "forest",
    [RandomForestClassifier(30), GradientBoostingClassifier(n_estimators=30, subsample=0.7)],
)
def test_structure_singles_out_by_leaves_of_every_tree(forest: Any) -> None:
    """Answers of many trees differ from point to point, and their leaves are in the file."""
    for leaf, singled in ((2, True), (30, False)):
        (found,) = measure(forest.set_params(min_samples_leaf=leaf, random_state=0), "structure")
        assert (found.value > 0.1) is singled
        assert (found.value == 0) is not singled


def bins(**how: Any) -> Any:
    return HistGradientBoostingClassifier(max_iter=8, random_state=0, **how)


INSIDE: dict[str, Any] = {
    "bins": lambda leaf: bins(min_samples_leaf=leaf, max_leaf_nodes=90),
    "scaled bins": lambda leaf: make_pipeline(StandardScaler(), bins(min_samples_leaf=leaf)),
    "a vote": lambda leaf: VotingClassifier(
        [("a", shrub(leaf)), ("b", GaussianNB())], voting="soft"
    ),
    "a stack": lambda leaf: StackingClassifier([("a", shrub(leaf)), ("b", GaussianNB())], cv=2),
    "calibrated": lambda leaf: CalibratedClassifierCV(shrub(leaf), cv=2, ensemble=False),
    "bags": lambda leaf: BaggingClassifier(shrub(leaf), 2, max_features=3, random_state=0),
    "boosted": lambda leaf: AdaBoostClassifier(shrub(leaf), n_estimators=5, random_state=0),
    "a search": lambda leaf: GridSearchCV(bins(), {"min_samples_leaf": [leaf]}, cv=2),
}


def shrub(leaf: int) -> Any:
    return DecisionTreeClassifier(min_samples_leaf=leaf, random_state=0)


@pytest.mark.parametrize("name", INSIDE)
def test_structure_singles_out_by_leaves_inside_models(name: str) -> None:
    """Their leaves were not read, and nobody was said to be singled out."""
    for leaf, singled in ((1, True), (40, False)):
        model = INSIDE[name](leaf)
        (found,) = measure(model, "structure")
        assert (found.value > 0.15) is singled, leaf  # a few share what all trees together answer
        assert found.value < 0.05 or singled
        assert found.high == found.value


def test_leaves_of_bins_are_those_that_the_model_holds() -> None:
    X, y = people(200)  # noqa: N806
    X[::7, 0] = np.nan
    model = bins(min_samples_leaf=3, categorical_features=[2], early_stopping=True).fit(X, y)
    sizes = count_in_leaves(model, X).sizes
    assert sizes is not None
    held = [tree.nodes["count"][tree.nodes["is_leaf"] > 0] for (tree,) in model._predictors]
    assert sizes.min() == min(each.min() for each in held)
    whole = bins(min_samples_leaf=3).fit(X, y)
    (found,) = (count_in_leaves(whole, X).sizes for _ in range(1))
    assert found is not None
    assert min(found) >= 3
    before = whole.predict_proba(X)
    count_in_leaves(whole, X)
    np.testing.assert_array_equal(whole.predict_proba(X), before)


class HiddenTree(DecisionTreeClassifier):
    """A tree whose leaves nobody can ask for."""

    apply = property()  # type: ignore[assignment]


class LeafByKeyword(DecisionTreeClassifier):
    """A tree that tells its leaves as LightGBM does."""

    apply = property()  # type: ignore[assignment]

    def predict(self, X: Any, *, pred_leaf: bool = False) -> Any:  # noqa: N803
        return DecisionTreeClassifier.apply(self, X) if pred_leaf else super().predict(X)


LeafByKeyword.__module__ = "lightgbm.sklearn"


def test_trees_whose_leaves_cannot_be_read_are_not_passed() -> None:
    (found,) = measure(HiddenTree(min_samples_leaf=40), "structure")
    assert (found.value, found.high) == (0.0, 1.0)
    assert "The leaves of HiddenTree could not be read." in found.note
    for published_as, outcome in (("file", "unclear"), ("api", "pass")):
        subject = em.Classifier(
            HiddenTree(min_samples_leaf=40, random_state=0),
            *people(),
            published_as=published_as,
            attacks=(),
            records="sample:20",
            threats=("structure",),
            rules=em.rules.GainAtMost(0.1),
        )
        (rule,) = em.audit(subject, engine=HERE).find(RuleFinding)
        assert rule.outcome == outcome


def test_leaves_are_asked_for_as_lightgbm_is() -> None:
    (found,) = measure(LeafByKeyword(min_samples_leaf=2, random_state=0), "structure")
    assert found.value > 0.1
    (wide,) = measure(LeafByKeyword(min_samples_leaf=40, random_state=0), "structure")
    assert (wide.value, wide.high) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["lightgbm.LGBMClassifier", "xgboost.XGBClassifier"])
def test_structure_singles_out_by_leaves_of_other_libraries(name: str) -> None:
    package, _, kind = name.partition(".")
    make = getattr(pytest.importorskip(package), kind)
    few = {"min_child_samples": 1} if package == "lightgbm" else {"min_child_weight": 0}
    (found,) = measure(make(n_estimators=5, max_depth=6, **few), "structure")
    assert found.value > 0.05
    (stump,) = measure(make(n_estimators=2, max_depth=1), "structure")
    assert stump.value == 0.0
    assert stump.high < 1


def test_the_share_in_use_is_told_within_its_error() -> None:
    (remembered,) = measure(KNeighborsClassifier(1), "usage")
    (forgotten,) = measure(Stranger(), "usage")
    assert remembered.value < 0.35
    assert forgotten.value >= 0.5


def test_the_error_of_use_holds_as_often_as_it_says() -> None:
    misses, trials, rng = 0, 60, np.random.default_rng(0)
    for _ in range(trials):
        coins = rng.random((21, 90)) < 0.5
        member = np.stack([coins, ~coins], axis=1).reshape(42, 90)
        logs = np.log(scipy.special.expit(rng.normal(size=member.shape) + 1.5 * member))
        shadows = Asked({OWN: logs[:40, :, None].astype(np.float32)}, member[:40])
        error = measure_usage(shadows, confidence=0.9, rng=rng)
        found = find_usage(shadows, logs[40], error)
        misses += not found.low <= member[40].mean() <= found.high
    assert misses <= scipy.stats.binom.isf(FLAKE, trials, 0.1)
    assert estimate_share(np.ones(5, bool), 0.5, 0.5) == 0.5  # nothing is known
    assert find_usage(shadows, logs[40], UsageError(1.0, 30, 20)).high == 1.0


TEXTS = [f"word{i % 4} word{i % 3} common" for i in range(60)]


@pytest.mark.parametrize("secret", [True, False])
def test_a_text_of_one_person_in_the_file_is_found(secret: bool) -> None:
    texts = np.array([*TEXTS, "common mesothelioma" if secret else "common word1"], object)
    codes = np.arange(61) % 2
    model = make_pipeline(CountVectorizer(), MultinomialNB()).fit(texts, codes)
    kinds = {leak.kind for leak in search_model(model, texts, codes) if leak.records}
    assert ("one person" in kinds) == secret


def test_the_rule_decides_by_threats() -> None:
    X, y = people(300)  # noqa: N806
    subject = em.Classifier(
        TREE,
        X,
        y,
        attacks=(),
        published_as="api",
        records="sample:20",
        feature_names=["a", "b", "sex", "d", "e"],
        threats=("attribute:sex", "structure"),
        rules=em.rules.GainAtMost(0.0),
    )
    found = em.audit(subject, engine=HERE)
    assert found.verdict == judge.DO_NOT_RELEASE
    (rule,) = found.find(RuleFinding)
    assert "A hidden sex is guessed correctly for" in rule.finding
    assert [each.threat for each in found.find(ThreatFinding)] == ["attribute", "structure"]


@pytest.mark.parametrize("threat", ["attribute", "range:3", "theft", "attribute:"])
def test_unknown_threats_are_refused(threat: str) -> None:
    with pytest.raises(InvalidArgument, match="threats among"):
        em.Classifier(TREE, *people(40), threats=(threat,))


def test_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="column to hide"):
        measure(TREE, "attribute:income")
