"""What others are given decides: each model of the zoo as a file, an API and labels."""

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

import epsilometer as em
from epsilometer.audits.classifier.extraction import compute_from_answers
from epsilometer.audits.classifier.file_rules import limit_answers
from epsilometer.audits.classifier.model_file import search_model
from epsilometer.audits.classifier.private_model import PrivateClassifier
from epsilometer.audits.classifier.remedies import list_remedies
from epsilometer.findings import MembershipFinding, RuleFinding
from epsilometer.rules import (
    AdvantageAtMost,
    CaughtAtMost,
    NoRecordInAnswers,
    NoRecordInFile,
    PdtpAtMost,
)

pytest.importorskip("sklearn")
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from tests.audits.classifier.zoo import (
    CASES,
    FILE_ALONE,
    Constant,
    DpsgdClassifier,
    LabelMemory,
    NoisyBayes,
    draw_noise,
    draw_signal,
)
from tests.conftest import run_often

FORMS = ("file", "api", "labels")


def audit(model: Any, data: Any, published_as: str, **how: Any) -> em.Audit:
    rules = (PdtpAtMost(share=0.1), AdvantageAtMost(0.2), CaughtAtMost(0.1))
    first = {"file": (NoRecordInFile(),), "api": (NoRecordInAnswers(),)}
    given = (*first.get(published_as, ()), *rules)
    plain = {"attacks": ("loss", "lira"), "shadows": 16, "records": "sample:60", "rules": given}
    plain["remedies"] = 0
    subject = em.Classifier(model, *data, published_as=published_as, **{**plain, **how})
    return em.audit(subject, engine=em.InProcess())


EVERY = [(name, form) for name in CASES for form in FORMS]
IN_TURN = [  # what only a file tells in the file, all else in turn
    (name, "file" if case.expected == FILE_ALONE else FORMS[place % 3])
    for place, (name, case) in enumerate(CASES.items())
]


@pytest.mark.parametrize(("name", "form"), run_often(EVERY, IN_TURN))
def test_the_right_answer_is_given_for_each_way_to_publish(name: str, form: str) -> None:
    case = CASES[name]
    found = audit(case.make(), case.data(), form)
    why = [(rule.rule, rule.outcome, rule.finding) for rule in found.find(RuleFinding)]
    assert found.verdict == case.expected[FORMS.index(form)], why


def test_rounding_reaches_the_attacks() -> None:
    """Labels are known by heart, and told by 1 % alone: one decimal hides that."""
    data = draw_noise(400)
    digits, rounded = (audit(LabelMemory(), data, "api", decimals=decimals) for decimals in (2, 1))
    assert [found.verdict for found in (digits, rounded)] == ["do not release", "release"]
    first, second = (found.find(MembershipFinding)[0].advantage for found in (digits, rounded))
    assert first > 0.4
    assert second < 0.1


SPARED = {
    "a constant": DummyClassifier(),
    "naive Bayes": GaussianNB(),
    "Bernoulli": BernoulliNB(),
    "logistic": LogisticRegression(tol=1e-2),
    "a tree of large leaves": DecisionTreeClassifier(max_depth=3, min_samples_leaf=50),
    "a forest of large leaves": RandomForestClassifier(5, max_depth=3, min_samples_leaf=20),
    "a network": MLPClassifier((8,), max_iter=5),
    "scaled logistic": make_pipeline(StandardScaler(), LogisticRegression(tol=1e-2)),
}
TABLES = {
    "numbers": lambda: draw_signal(600),
    "two values": lambda: ((draw_signal(600)[0] > 0).astype(float), draw_signal(600)[1]),
    "whole numbers": lambda: (np.round(10 * draw_signal(600)[0]), draw_signal(600)[1]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", SPARED)
def test_models_of_many_records_are_spared(name: str, table: str) -> None:
    X, y = TABLES[table]()  # noqa: N806
    grave = [
        leak for leak in search_model(SPARED[name].fit(X, y), X, y) if leak.kind != "statistics"
    ]
    assert not grave


CAUGHT = {
    "neighbours": (KNeighborsClassifier(50), "_fit_X holds 600 of 600 training rows"),
    "scaled neighbours": (
        make_pipeline(StandardScaler(), KNeighborsClassifier(50)),
        "_fit_X holds 600 of 600 training rows",
    ),
    "a tree in memory": (KNeighborsClassifier(algorithm="kd_tree"), "600 of 600 training rows"),
    "linear support vectors": (LinearSVC(), "computes the missing one: 254 of 300 tried"),
    "least squares": (RidgeClassifier(), "computes the missing one: 300 of 300 tried"),
    "a full forest": (RandomForestClassifier(5, random_state=0), "leaves of one training record"),
    "boosting": (GradientBoostingClassifier(n_estimators=20), "leaves of one training record"),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_models_of_single_records_are_named(name: str) -> None:
    model, said = CAUGHT[name]
    X, y = draw_signal(600)  # noqa: N806
    assert said in search_model(model.fit(X, y), X, y)[0].finding


def test_words_of_one_text_alone_are_found() -> None:
    rng = np.random.default_rng(0)
    words = np.array(["cough", "fever", "pain", "cold", "rash"])
    common = np.array([" ".join(rng.choice(words, 3)) for _ in range(200)])
    rare = np.array([f"{text} patient{place}" for place, text in enumerate(common)])
    y = rng.integers(2, size=200)
    for step in (TfidfVectorizer(), HashingVectorizer(n_features=1 << 16)):
        model = make_pipeline(step, LogisticRegression())
        assert not search_model(model.fit(common, y), common, y)
        (found, *_) = search_model(model.fit(rare, y), rare, y)
        assert found.kind == "one person"
        assert found.records > 190


@pytest.mark.parametrize("pack", ["pickle", "joblib", "gzip", "float32"])
def test_a_file_is_searched_and_never_loaded(pack: str, tmp_path: Path) -> None:
    X, y = draw_signal(300)  # noqa: N806
    model = KNeighborsClassifier(3).fit(X.astype(np.float32) if pack == "float32" else X, y)
    written = io.BytesIO()
    joblib.dump(model, written, compress=3)
    content = {
        "joblib": written.getvalue(),
        "gzip": gzip.compress(pickle.dumps(model)),
    }.get(pack, pickle.dumps(model))
    file = tmp_path / "model"
    file.write_bytes(content)
    found = audit(
        DummyClassifier(), (X, y), "file", model_file=file, attacks=(), rules=NoRecordInFile()
    )
    first = found.find(RuleFinding)[0]
    assert (found.verdict, first.value) == ("do not release", 300)
    assert "_fit_X of the model file holds 300 of 300 training rows." in first.finding
    file.write_bytes(pickle.dumps(GaussianNB().fit(X, y)))
    other = audit(
        DummyClassifier(), (X, y), "file", model_file=file, attacks=(), rules=NoRecordInFile()
    )
    assert other.find(RuleFinding)[0].outcome == "pass"


@pytest.mark.parametrize("kind", ["skops", "onnx"])
def test_other_files_are_searched(kind: str, tmp_path: Path) -> None:
    X, y = draw_signal(300)  # noqa: N806
    for model, rows in ((KNeighborsClassifier(3), 300), (LogisticRegression(tol=1e-2), 0)):
        model.fit(X, y)
        if kind == "skops":
            content = pytest.importorskip("skops.io").dumps(model)
        else:
            to_onnx = pytest.importorskip("skl2onnx").to_onnx
            content = to_onnx(model, X[:1].astype(np.float32)).SerializeToString()
        constant = DummyClassifier().fit(X, y)
        leaks = search_model(constant, X, y, content=content)
        assert [leak.records for leak in leaks if leak.kind == "rows"] == [rows] * bool(rows)


def test_counts_per_class_and_name_are_counts_of_one() -> None:
    """As many names as people: the array of counts is larger than the table is long."""
    rng = np.random.default_rng(0)
    X = np.stack([rng.permutation(200), rng.integers(2, size=200)], axis=1)  # noqa: N806
    y = rng.integers(2, size=200)
    (first, *_) = search_model(CategoricalNB(min_categories=[200, 2]).fit(X, y), X, y)
    assert (first.kind, first.records) == ("one person", 200)
    weights = Constant(lambda rows: rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows))))
    leaks = search_model(weights.fit(X, y), X, y)  # one number per record is no count of records
    assert not [leak for leak in leaks if leak.kind != "statistics"]


def draw_wide() -> Any:
    """More columns than records, and labels without meaning: anything learned is by heart."""
    rng = np.random.default_rng(7)
    return rng.normal(size=(300, 600)), np.arange(300) % 2


@pytest.mark.parametrize("form", run_often(FORMS, ["file"]))
@pytest.mark.parametrize(("epsilon", "expected"), [(1.0, "release"), (np.inf, "do not release")])
def test_private_training_passes_and_its_twin_without_noise_does_not(
    epsilon: float, expected: str, form: str
) -> None:
    model = PrivateClassifier(epsilon, steps=60, learning_rate=60.0)
    found = audit(model, draw_wide(), form, shadows=32, records="sample:80")
    why = [(rule.outcome, rule.finding) for rule in found.find(RuleFinding)]
    assert found.verdict == expected, why


@pytest.mark.parametrize("form", run_often(FORMS, ["file"]))
@pytest.mark.parametrize(("epsilon", "expected"), [(1.0, "release"), (np.inf, "do not release")])
def test_a_private_estimator_of_ones_own_passes_and_its_twin_without_noise_does_not(
    epsilon: float, expected: str, form: str
) -> None:
    found = audit(NoisyBayes(epsilon), draw_wide(), form, shadows=32, records="sample:80")
    why = [(rule.outcome, rule.finding) for rule in found.find(RuleFinding)]
    assert found.verdict == expected, why


@pytest.mark.parametrize("learning_rate", [20.0])
@pytest.mark.parametrize(("epsilon", "expected"), [(1.0, "release"), (np.inf, "do not release")])
@pytest.mark.slow
def test_the_packages_own_dpsgd_passes_and_its_twin_without_noise_does_not(
    epsilon: float, expected: str, learning_rate: float
) -> None:
    """With a large learning rate ln p is skewed: of 80 records 4 were counted as exposed."""
    pytest.importorskip("torch")
    model = DpsgdClassifier(epsilon, learning_rate)
    found = audit(model, draw_wide(), "file", shadows=32)
    why = [(rule.outcome, rule.finding) for rule in found.find(RuleFinding)]
    assert found.verdict == expected, why


def test_noise_of_a_seed_that_is_known_hides_nothing() -> None:
    rules = (PdtpAtMost(share=0.1),)
    outcomes = []
    for seed in (None, 3):
        model = PrivateClassifier(1.0, steps=60, learning_rate=60.0, random_state=seed)
        found = audit(model, draw_wide(), "api", rules=rules, records="sample:80", attacks=())
        outcomes.append(found.find(RuleFinding)[0].outcome)
        said = any(
            "than another seed does, so are not counted" in caveat for caveat in found.caveats
        )
        assert said == (seed is None)
    assert outcomes == ["pass", "unclear"]


def solve_exactly(**how: Any) -> LogisticRegression:
    return LogisticRegression(solver="newton-cholesky", tol=1e-10, **how)


ANSWERING = {
    "as it is": lambda: (solve_exactly(), *draw_signal(600)),
    "scaled": lambda: (make_pipeline(StandardScaler(), solve_exactly()), *draw_signal(600)),
    "of three classes": lambda: (solve_exactly(), *draw_classes()),
    "without an intercept": lambda: (solve_exactly(fit_intercept=False), *draw_signal(600)),
    "of more columns than records": lambda: (solve_exactly(), *draw_signal(120, 200)),
    "of words": lambda: (
        make_pipeline(OneHotEncoder(), solve_exactly()),
        np.random.default_rng(3).integers(4, size=(600, 3)),
        np.arange(600) % 2,
    ),
    "of a frame with words": lambda: (
        make_pipeline(
            make_column_transformer((OneHotEncoder(), ["town"]), remainder=StandardScaler()),
            solve_exactly(),
        ),
        pd.DataFrame(draw_signal(600)[0]).rename(columns=str).assign(town=["x", "y", "z"] * 200),
        draw_signal(600)[1],
    ),
    "least squares": lambda: (RidgeClassifier(), *draw_signal(600)),
    "least squares of three classes": lambda: (RidgeClassifier(), *draw_classes()),
}


# Between words there is nothing, and of three classes no edge tells a ratio.
HIDDEN = ("of words", "of three classes", "least squares of three classes")


def draw_classes() -> Any:
    X, _ = draw_signal(600)  # noqa: N806
    return X, np.digitize(X[:, 0] + np.random.default_rng(8).normal(size=600), [-0.5, 0.5])


@pytest.mark.parametrize("name", ANSWERING)
def test_answers_of_a_linear_model_tell_what_its_file_tells(name: str) -> None:
    """As many questions as there are coefficients give these away: an API was *release*."""
    model, X, y = ANSWERING[name]()  # noqa: N806
    model.fit(X, y)
    (held,) = [leak for leak in search_model(model, X, y) if leak.kind == "rebuilt"]
    (told,) = compute_from_answers(model, X, y, np.unique(y))
    assert told.kind == "rebuilt"
    assert told.records == held.records > len(X) / 3
    (rounded,) = compute_from_answers(model, X, y, np.unique(y), decimals=1)
    if name in HIDDEN:
        assert (rounded.kind, rounded.records) == ("unread", 0)  # which is no pass
        assert "Limit the number of queries" in rounded.finding
        assert limit_answers((rounded,), len(X)).outcome == "unclear"
    else:  # where an answer of one decimal changes, the probability is known exactly
        assert (rounded.kind, rounded.records) == ("rebuilt", held.records)
    (label,) = compute_from_answers(model, X, y, np.unique(y), decimals=-1)
    assert (label.kind, label.records) == ("unread", 0)
    assert "was not tested" in label.finding


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", SPARED)
def test_answers_of_models_of_many_records_tell_nothing(name: str, table: str) -> None:
    X, y = TABLES[table]()  # noqa: N806
    model = SPARED[name].fit(X, y)
    for decimals in (None, 2, -1):
        assert not compute_from_answers(model, X, y, np.unique(y), decimals=decimals)


def test_answers_that_nobody_reads_clear_no_model() -> None:
    """Each class against the others: coefficients give all records away, and nothing was tried."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = np.digitize(x[:, 0] + 0.5 * rng.normal(size=120), [-0.5, 0.5])
    model = LinearSVC(tol=1e-10, max_iter=10**6, random_state=0).fit(x, y)
    leaks = compute_from_answers(model, x, y, np.unique(y))
    rule = limit_answers(leaks, 120)
    assert rule.outcome == "unclear"
    assert "was not tested" in rule.finding


def test_an_api_is_no_remedy_where_answers_tell_the_coefficients() -> None:
    how: dict[str, Any] = {"attacks": ("loss",), "shadows": 8, "remedies": 0, "skip_trend": True}
    rules = (NoRecordInFile(), PdtpAtMost())
    subject = em.Classifier(solve_exactly(), *draw_signal(600), rules=rules, **how)
    remedies = {
        each.action: each.subject for each in list_remedies(subject, np.arange(9), exposed=0)
    }
    verdicts = [
        em.audit(remedies[action], engine=em.InProcess()).verdict
        for action in (
            "Publish an API instead of the file.",
            "Show 1 decimal, through an API.",
            "Publish class labels only.",
        )
    ]
    assert verdicts == ["do not release", "do not release", "cannot tell"]
    usual = em.audit(
        em.Classifier(solve_exactly(), *draw_signal(600), published_as="api", **how),
        engine=em.InProcess(),
    )
    assert usual.find(RuleFinding)[0].finding.startswith(
        "Anyone with access to the API and all other records computes those of 600 of 600 people."
    )
