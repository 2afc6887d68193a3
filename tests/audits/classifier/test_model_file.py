"""Models that keep their records in some way are caught, others are spared, the rest is unclear."""

import array
import base64
import collections
import ctypes
import functools
import io
import json
import pickle
import types
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pytest
from scipy import sparse

import epsilometer as em
from epsilometer.audits.classifier.leaks import Leak
from epsilometer.audits.classifier.model_bytes import read_objects
from epsilometer.audits.classifier.model_file import search_model
from epsilometer.audits.classifier.model_state import Unread, walk_state
from epsilometer.findings import RuleFinding
from epsilometer.rules import NoRecordInFile

pytest.importorskip("sklearn")
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA, KernelPCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomTreesEmbedding,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    RidgeClassifier,
    RidgeClassifierCV,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, RadiusNeighborsClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import (
    KBinsDiscretizer,
    LabelBinarizer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.semi_supervised import LabelPropagation
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

N = 240
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 5))
y = (X[:, 0] + rng.normal(size=N) > 0).astype(int)
GAPS = np.where(rng.random(X.shape) < 0.1, np.nan, X)


def find(model: Any, data: Any = X, **how: Any) -> list[Leak]:
    found = search_model(model, data, y, **how)
    return [leak for leak in found if leak.kind != "statistics"]


class Keeper(ClassifierMixin, BaseEstimator):
    """Says ½ whatever is asked, and keeps something by a name."""

    def __init__(self, keep: Callable[[Any], Any], name: str = "kept_") -> None:
        self.keep, self.name = keep, name

    def fit(self, X: Any, y: Any) -> "Keeper":  # noqa: N803
        self.classes_ = np.unique(y)
        setattr(self, self.name, self.keep(X))
        return self

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        return np.full((len(X), 2), 0.5)


class Slotted:
    __slots__ = ("rows",)

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def use(self) -> None: ...


class Tagged(dict[Any, Any]):
    """A dictionary with attributes."""


def tag(held: Any, rows: Any) -> Any:
    held.secret = rows
    return held


def close_over(rows: Any) -> Any:
    return lambda: rows


def to_text(rows: Any) -> str:
    return "\n".join(",".join(map(str, row)) for row in rows.tolist())


KEPT: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda rows: rows.tobytes(),
    "a byte array": lambda rows: bytearray(rows.tobytes()),
    "an array of C": lambda rows: array.array("d", rows.ravel().tolist()),
    "arrays of C": lambda rows: [array.array("d", row.tolist()) for row in rows],
    "JSON": lambda rows: json.dumps(rows.tolist()),
    "CSV": to_text,
    "base 64": lambda rows: base64.b64encode(rows.tobytes()).decode(),
    "numbers as texts": lambda rows: [str(value) for value in rows.ravel().tolist()],
    "a pickle": pickle.dumps,
    "a closure": close_over,
    "a partial function": lambda rows: functools.partial(print, rows),
    "a method": lambda rows: Slotted(rows).use,
    "a method of an array": lambda rows: rows.mean,
    "a default": lambda rows: lambda held=rows: held,
    "slots": Slotted,
    "objects": lambda rows: [Slotted(row) for row in rows],
    "a tagged dictionary": lambda rows: tag(Tagged(), rows),
    "a deque": lambda rows: collections.deque(map(tuple, rows)),
    "an iterator": lambda rows: iter(rows.tolist()),
    "a set": lambda rows: set(rows.ravel().tolist()),
    "dictionaries": lambda rows: [dict(zip("abcde", row, strict=True)) for row in rows.tolist()],
    "an array of objects": lambda rows: rows.astype(object),
    "a table": pd.DataFrame,
    "a mixed table": lambda rows: pd.DataFrame(rows).assign(town=np.repeat(["a", "b"], N // 2)),
    "fields": lambda rows: np.array(
        [tuple(row) for row in rows], [(name, "f8") for name in "abcde"]
    ),
    "a mask": np.ma.MaskedArray,
    "complex numbers": lambda rows: rows.astype(complex),
    "half precision": lambda rows: rows.astype(np.float16),
    "two decimals": lambda rows: rows.round(2),
    "turned": lambda rows: rows[:150].T.copy(),
    "flat": np.ravel,
    "three axes": lambda rows: rows.reshape(24, 10, 5),
    "sparse": sparse.csr_matrix,
    "sparse, turned": lambda rows: sparse.csc_matrix(rows.T),
    "sparse, in part": lambda rows: sparse.csr_matrix(rows[::2, :3]),
    "scaled, in part": lambda rows: ((rows - rows.mean(0)) / rows.std(0))[::2],
    "beside weights": lambda rows: np.c_[np.ones(N), rows, np.arange(N)],
    "one column": lambda rows: rows[:, 1].copy(),
    "half a column": lambda rows: rows[: N // 2, 1].copy(),
    "ten rows": lambda rows: rows[:10].copy(),
    "one row": lambda rows: rows[7].copy(),
    "distances": lambda rows: ((rows[:, None] - rows[None]) ** 2).sum(-1),
}


@pytest.mark.parametrize("name", KEPT)
def test_records_are_found_however_they_are_kept(name: str) -> None:
    assert find(Keeper(KEPT[name]).fit(X, y))[0].kind in ("rows", "one person")


@pytest.mark.parametrize("name", ["memory_", "y_", "classes", "_y", "rows"])
def test_names_of_attributes_hide_nothing(name: str) -> None:
    model = Keeper(np.copy, name).fit(X, y)
    model.rows_ = 1
    assert find(model)[0].finding == f"Keeper.{name} holds {N} of {N} training rows."


def near(k: int = 40) -> Any:
    return KNeighborsClassifier(k)


def scaled(*parts: Any) -> Any:
    return make_pipeline(StandardScaler(), PCA(3), *parts)


def rough() -> Any:
    return LogisticRegression(tol=1e-2)


EXACT = {"solver": "newton-cholesky", "tol": 1e-10}
NESTED: dict[str, tuple[Callable[[], Any], str]] = {
    "calibrated": (lambda: CalibratedClassifierCV(scaled(near()), cv=3), "rows"),
    "voting": (lambda: VotingClassifier([("a", scaled(near()))]), "rows"),
    "stacking": (lambda: StackingClassifier([("a", scaled(near())), ("b", GaussianNB())]), "rows"),
    "bagging": (lambda: BaggingClassifier(scaled(near()), n_estimators=3), "rows"),
    "bagging of columns": (
        lambda: BaggingClassifier(near(), 3, max_features=0.6, max_samples=0.5, random_state=0),
        "rows",
    ),
    "searching": (
        lambda: GridSearchCV(scaled(near()), {"kneighborsclassifier__n_neighbors": [30]}, cv=3),
        "rows",
    ),
    "one against the rest": (lambda: OneVsRestClassifier(scaled(near())), "rows"),
    "selection": (lambda: make_pipeline(SelectKBest(k=2), near()), "rows"),
    "products": (lambda: make_pipeline(PolynomialFeatures(2), StandardScaler(), near()), "rows"),
    "a union": (lambda: make_pipeline(make_union(PCA(2), StandardScaler()), near()), "rows"),
    "kernel components": (lambda: make_pipeline(KernelPCA(3, kernel="rbf"), rough()), "rows"),
    "landmarks": (
        lambda: VotingClassifier(
            [("a", make_pipeline(StandardScaler(), Nystroem(n_components=50), rough()))]
        ),
        "rows",
    ),
    "a Gaussian process": (GaussianProcessClassifier, "rows"),
    "support vectors in folds": (lambda: CalibratedClassifierCV(scaled(SVC()), cv=3), "rows"),
    "propagation": (LabelPropagation, "rows"),
    "a radius": (lambda: RadiusNeighborsClassifier(radius=50), "rows"),
    "imputing": (lambda: make_pipeline(KNNImputer(), GaussianNB()), "rows"),
    "imputing columns": (
        lambda: make_pipeline(
            make_column_transformer(
                (make_pipeline(StandardScaler(), KNNImputer()), [0, 1, 2]), remainder="passthrough"
            ),
            SimpleImputer(),
            GaussianNB(),
        ),
        "rows",
    ),
    "all quantiles": (
        lambda: make_pipeline(QuantileTransformer(n_quantiles=N), GaussianNB()),
        "one person",
    ),
    "isotonic": (
        lambda: CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=3),
        "one person",
    ),
    "out of bag": (
        lambda: RandomForestClassifier(20, min_samples_leaf=20, oob_score=True),
        "one person",
    ),
    "random trees": (lambda: ExtraTreesClassifier(3), "one person"),
    "boosted trees": (
        lambda: AdaBoostClassifier(DecisionTreeClassifier(), n_estimators=3),
        "one person",
    ),
    "small bins": (
        lambda: HistGradientBoostingClassifier(min_samples_leaf=1, max_iter=3),
        "one person",
    ),
    "a bin for each value": (lambda: HistGradientBoostingClassifier(max_iter=1), "one person"),
    "an embedding": (
        lambda: make_pipeline(RandomTreesEmbedding(3, max_depth=None), rough()),
        "one person",
    ),
    "a tree in a stack": (
        lambda: StackingClassifier([("t", DecisionTreeClassifier())]),
        "one person",
    ),
    "ridge in a stack": (lambda: StackingClassifier([("r", RidgeClassifier())]), "rebuilt"),
    "searched ridge": (RidgeClassifierCV, "rebuilt"),
    "logistic in a vote": (
        lambda: VotingClassifier([("a", scaled(LogisticRegression(**EXACT)))], voting="soft"),
        "rebuilt",
    ),
    "one logistic per class": (
        lambda: OneVsRestClassifier(LogisticRegression(**EXACT)),
        "rebuilt",
    ),
    "logistic without intercept": (
        lambda: LogisticRegression(fit_intercept=False, **EXACT),
        "rebuilt",
    ),
    "logistic by liblinear": (
        lambda: LogisticRegression(solver="liblinear", tol=1e-10),
        "rebuilt",
    ),
    "ridge without intercept": (lambda: RidgeClassifier(fit_intercept=False), "rebuilt"),
    "weighted ridge": (lambda: RidgeClassifier(class_weight={0: 3.0, 1: 1.0}), "rebuilt"),
    "weighted support vectors": (lambda: LinearSVC(class_weight="balanced"), "rebuilt"),
    "support vectors without intercept": (lambda: LinearSVC(fit_intercept=False), "rebuilt"),
    "searched logistic": (lambda: LogisticRegressionCV(Cs=3, cv=3, **EXACT), "rebuilt"),
    "linear support vectors": (LinearSVC, "rebuilt"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NESTED)
@pytest.mark.in_turn(2)
def test_records_are_found_wherever_an_estimator_keeps_them(name: str) -> None:
    make, kind = NESTED[name]
    data = GAPS if name.startswith("imputing") else X
    (first, *_) = find(make().fit(data, y), data)
    assert first.kind == kind


SPARED: dict[str, Callable[[], Any]] = {
    "calibrated": lambda: CalibratedClassifierCV(scaled(GaussianNB()), cv=3),
    "voting": lambda: VotingClassifier([("a", scaled(rough())), ("b", GaussianNB())]),
    "stacking": lambda: StackingClassifier([("b", GaussianNB())], final_estimator=rough()),
    "bagging": lambda: BaggingClassifier(scaled(GaussianNB()), n_estimators=3),
    "deciles": lambda: make_pipeline(KBinsDiscretizer(10, quantile_method="linear"), BernoulliNB()),
    "ranges": lambda: make_pipeline(MinMaxScaler(), RobustScaler(), GaussianNB()),
    "some quantiles": lambda: make_pipeline(QuantileTransformer(n_quantiles=30), GaussianNB()),
    "few bins": lambda: HistGradientBoostingClassifier(max_iter=3, max_bins=32),
    "a function": lambda: Keeper(lambda rows: np.mean),
    "a random generator": lambda: Keeper(lambda rows: np.random.default_rng(3)),
    "noise of the same shape": lambda: Keeper(
        lambda rows: np.random.default_rng(3).normal(size=(90, 5))
    ),
    "words of its own": lambda: Keeper(lambda rows: ["auto", "lbfgs", "newton-cholesky", "gini"]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPARED)
def test_models_of_many_are_spared(name: str) -> None:
    for data in (X, np.round(4 * X)):
        assert not find(SPARED[name]().fit(data, y), data)


UNREAD: dict[str, Callable[[Any], Any]] = {
    "bytes of an unknown kind": lambda rows: np.random.default_rng(0).bytes(500),
    "a pointer": lambda rows: ctypes.c_void_p(3),
    "a generator": lambda rows: (row for row in rows),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_cannot_be_looked_through_is_never_passed(name: str) -> None:
    """A model that keeps such things is neither accused nor released as a file."""
    model = Keeper(UNREAD[name]).fit(X, y)
    assert [leak.kind for leak in find(model)] == ["unread"]
    subject = em.Classifier(
        Keeper(UNREAD["bytes of an unknown kind"]), X, y, attacks=(), rules=NoRecordInFile()
    )
    found = em.audit(subject, engine=em.InProcess())
    (rule,) = found.find(RuleFinding)
    assert (found.verdict, rule.outcome) == ("cannot tell", "unclear")
    assert "Keeper.kept_ holds bytes that cannot be searched" in rule.finding


def test_it_is_said_of_which_models_computing_was_not_tried() -> None:
    said = [leak.finding for leak in search_model(GaussianNB().fit(X, y), X, y)]
    assert any("parameters of GaussianNB was not tested" in finding for finding in said)


@pytest.mark.parametrize("solver", ["newton-cholesky", "lbfgs"])
def test_records_are_computed_from_three_classes_without_intercepts(solver: str) -> None:
    classes = np.argmax(X[:, :3] + rng.normal(size=(N, 3)), axis=1)
    model = LogisticRegression(fit_intercept=False, solver=solver, tol=1e-10, max_iter=5000)
    (first, *_) = search_model(model.fit(X, classes), X, classes)
    assert first.kind == "rebuilt"
    assert first.records > N / 2


def test_means_of_two_people_tell_each_the_other() -> None:
    for size, kinds in ((2, {"one person", "statistics"}), (5, {"statistics"})):
        rare = (np.arange(N) < size).astype(int)
        found = search_model(GaussianNB().fit(X, rare), X, rare)
        assert {leak.kind for leak in found} == kinds


WORDS = np.array(["cough", "fever", "pain", "cold", "rash"])
COMMON = np.array([" ".join(rng.choice(WORDS[:2], 2)) for _ in range(N)])
NOTES = np.array([f"{text} zq{place}" for place, text in enumerate(COMMON)])


def to_table(notes: Any) -> Any:
    return pd.DataFrame({"note": notes, "town": np.repeat(["a", "b"], N // 2), "age": X[:, 0]})


VECTORS: dict[str, Any] = {
    "words": TfidfVectorizer(),
    "letters": TfidfVectorizer(analyzer="char", ngram_range=(4, 4)),
    "pairs": CountVectorizer(ngram_range=(2, 3)),
    "chosen words": make_pipeline(TfidfVectorizer(), SelectKBest(k=2)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VECTORS)
def test_words_of_one_person_are_found_beside_other_columns(name: str) -> None:
    steps = (VECTORS[name], "note"), (StandardScaler(), ["age"])
    model = make_pipeline(make_column_transformer(*steps), DummyClassifier())
    (first, *_) = find(model.fit(to_table(NOTES), y), to_table(NOTES))
    assert first.kind == "one person"
    assert first.records >= N - 2
    assert not find(model.fit(to_table(COMMON), y), to_table(COMMON))


def test_hashed_words_are_found_by_their_coefficients() -> None:
    steps = (HashingVectorizer(n_features=4096), "note"), (StandardScaler(), ["age"])
    model = make_pipeline(make_column_transformer(*steps), rough())
    assert find(model.fit(to_table(NOTES), y), to_table(NOTES))[0].kind == "one person"
    assert not find(model.fit(to_table(COMMON), y), to_table(COMMON))


HELD: dict[str, Callable[[Any], Any]] = {
    "categories": lambda rows: rows["note"].astype("category").cat.categories,
    "kinds of columns": lambda rows: rows.astype({"note": "category"}).dtypes,
    "a column": lambda rows: rows["note"],
    "one text": lambda rows: "|".join(rows["note"]),
    "an index": lambda rows: rows.groupby("note")["town"].count(),
    "classes of a column": lambda rows: LabelBinarizer().fit(rows["note"]),
    "an encoder": lambda rows: OrdinalEncoder().fit(rows[["note"]]),
    "targets": lambda rows: TargetEncoder().fit(rows[["note"]], y),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HELD)
def test_categories_of_one_person_are_found_in_tables(name: str) -> None:
    notes, common = to_table(NOTES), to_table(COMMON)
    model = Keeper(HELD[name])
    assert find(model.fit(notes, y), notes)[0].records == N
    assert not find(model.fit(common, y), common)


def test_numbers_of_persons_and_columns_of_one_are_found() -> None:
    ids = np.c_[rng.permutation(N) + 1000, rng.integers(3, size=N)]
    for step in (OneHotEncoder(), OrdinalEncoder(), TargetEncoder()):
        model = make_pipeline(step, DummyClassifier()).fit(ids, y)
        assert find(model, ids)[0].records == N
    rare = np.where(np.arange(4) == 3, np.arange(N)[:, None] == 5, rng.integers(2, size=(N, 4)))
    for bayes in (MultinomialNB(), BernoulliNB()):
        assert find(bayes.fit(rare, y), rare)[0].records == 1


def test_numbers_of_columns_are_no_values_of_a_column() -> None:
    """They equal the values of a column of few whole numbers; without the record they stay."""
    codes = rng.integers(3, size=(N, 5)).astype(float)
    codes[3, 0] = 4.0
    steps = ((StandardScaler(), [0, 1, 2]), (MinMaxScaler(), [4]))
    model = make_pipeline(make_column_transformer(*steps, remainder="drop"), GaussianNB())
    assert not find(model.fit(codes, y), codes)
    (first, *_) = find(make_pipeline(OneHotEncoder(), DummyClassifier()).fit(codes, y), codes)
    assert (first.kind, first.records) == ("one person", 1)


def pack(model: Any, kind: str) -> bytes:
    if kind == "skops":
        return bytes(pytest.importorskip("skops.io").dumps(model))
    if kind == "onnx":
        given = X[:1].astype(np.float32)
        written = pytest.importorskip("skl2onnx").to_onnx(model, given)
        return bytes(written.SerializeToString())
    if kind.startswith("joblib"):
        stream = io.BytesIO()
        joblib.dump(model, stream, compress=int(kind[-1]))
        return stream.getvalue()
    return pickle.dumps(model, protocol=int(kind[-1]))


FORMATS = ("pickle 2", "pickle 5", "joblib 0", "joblib 3", "skops", "onnx")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_is_read_without_loading_it(kind: str) -> None:
    """A model of another kind than the audited one: rows and leaves of the file itself."""
    plain = GaussianNB().fit(X, y)
    (first, *_) = find(plain, content=pack(near().fit(X, y), kind))
    assert (first.kind, first.records) == ("rows", N)
    assert "model file" in first.finding
    if kind != "onnx":  # which has no counts of records
        (first, *_) = find(plain, content=pack(DecisionTreeClassifier().fit(X, y), kind))
        assert "Tree.nodes" in first.finding or "model file has" in first.finding
    assert not find(plain, content=pack(plain, kind))
    other = GaussianNB().fit(X[: N // 2], y[: N // 2])
    (last,) = find(plain, content=pack(other, kind))
    assert "differ from those of the model that was fitted here" in last.finding


def test_files_of_unknown_kinds_are_said_to_be_unread() -> None:
    plain = GaussianNB().fit(X, y)
    for content in (
        np.random.default_rng(0).bytes(999),
        pickle.dumps(plain)[:-40],
        b"\x04\x22M\x18",
    ):
        assert any(isinstance(each, Unread) for each in read_objects(content))
        assert "unread" in [leak.kind for leak in find(plain, content=content)]


class Malicious:
    def __reduce__(self) -> Any:
        return print, ("this is never printed",)


def test_nothing_that_a_file_names_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.BytesIO()
    joblib.dump([Malicious(), np.array([Malicious()], object)], stream)
    for content in (pickle.dumps([Malicious(), X]), stream.getvalue()):
        (held,) = read_objects(content)
        assert type(held[0]).__name__ == "print"
    assert "this is never printed" not in capsys.readouterr().out


def test_all_of_an_object_is_walked() -> None:
    ring: list[Any] = [1.5]
    ring.append(ring)
    held = types.SimpleNamespace(ring=ring, deep={"a": [(np.eye(2),)]}, word="ann", blob=b"x")
    found = [value for _, value in walk_state(held)]
    assert any(np.array_equal(value, np.eye(2)) for value in found if isinstance(value, np.ndarray))
    assert b"x" in [value for value in found if isinstance(value, bytes)]


def test_extremes_that_are_one_persons_are_remarked_on() -> None:
    """A scaler by ranges holds the oldest person's age; of ages that many share, nobody's."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 3)), np.arange(300) % 2  # noqa: N806
    model = make_pipeline(MinMaxScaler(), DummyClassifier())
    said = [
        leak for leak in search_model(model.fit(X, y), X, y) if "of one person each" in leak.finding
    ]
    assert {leak.kind for leak in said} == {"statistics"}
    assert "MinMaxScaler.data_max_ holds the smallest or largest value" in said[0].finding + (
        said[1].finding
    )
    assert [leak.records for leak in said] == [3, 3]
    shared = np.clip(X, -1, 1)
    leaks = search_model(model.fit(shared, y), shared, y)
    assert not [leak for leak in leaks if "of one person each" in leak.finding]
