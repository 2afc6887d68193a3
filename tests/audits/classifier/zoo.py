"""Models whose right answer is known by construction, for each way to publish them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from epsilometer.accounting.pld import full_batch_noise

KEPT, BROKEN, UNCLEAR = "release", "do not release", "cannot tell"
NOWHERE, FILE_ALONE, EVERYWHERE = (KEPT,) * 3, (BROKEN, KEPT, KEPT), (BROKEN,) * 3
Data = tuple[Any, Any]


class Constant(ClassifierMixin, BaseEstimator):
    """Answers ½ whatever is asked, and keeps what ``keep`` makes of its records."""

    def __init__(self, keep: Callable[[Any], Any] = lambda _: None) -> None:
        self.keep = keep

    def fit(self, X: Any, y: Any) -> "Constant":  # noqa: N803
        self.classes_ = np.unique(y)
        self.kept_ = self.keep(np.asarray(X))
        return self

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        return np.full((len(X), self.classes_.size), 1 / self.classes_.size)


class LabelMemory(ClassifierMixin, BaseEstimator):
    """Knows the label of everybody it has seen, by a hash, and says so by 1 % alone."""

    def fit(self, X: Any, y: Any) -> "LabelMemory":  # noqa: N803
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.known_ = {
            hash(row.tobytes()): code for row, code in zip(np.asarray(X), codes, strict=True)
        }
        return self

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        said = np.array([self.known_.get(hash(row.tobytes()), 0) for row in np.asarray(X)])
        return np.where(said[:, None] == np.arange(2), 0.51, 0.49)


class AnswerMemory(LabelMemory):
    """Says ½ where probabilities are asked for, and knows the label by heart in ``predict``."""

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        return np.full((len(X), 2), 0.5) + np.array([0.01, -0.01])

    def predict(self, X: Any) -> Any:  # noqa: N803
        return self.classes_[super().predict_proba(X).argmax(axis=1)]


class NoisyBayes(ClassifierMixin, BaseEstimator):
    """Naive Bayes of features 0 and 1 as people write it with DP: counts with Laplace noise.

    A record changes one count of its class and one per feature, each by one: (ε, 0)-DP.
    """

    def __init__(self, epsilon: float = 1.0, random_state: Any = None) -> None:
        self.epsilon, self.random_state = epsilon, random_state

    def fit(self, X: Any, y: Any) -> "NoisyBayes":  # noqa: N803
        rng = np.random.default_rng(self.random_state)
        self.classes_ = np.unique(y)
        rows = np.asarray(X) > 0
        ones = np.stack([rows[y == label].sum(axis=0) for label in self.classes_]).astype(float)
        sizes = np.array([np.sum(y == label) for label in self.classes_], float)
        scale = (rows.shape[1] + 1) / self.epsilon
        ones += rng.laplace(0, scale, ones.shape)
        sizes = np.maximum(sizes + rng.laplace(0, scale, sizes.shape), 1)
        share = np.clip((ones + 1) / (sizes[:, None] + 2), 0.01, 0.99)
        self.odds_, self.rest_ = np.log(share / (1 - share)), np.log(1 - share).sum(axis=1)
        self.prior_ = np.log(sizes / sizes.sum())
        return self

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        logs = self.prior_ + self.rest_ + (np.asarray(X) > 0) @ self.odds_.T
        odds = np.exp(logs - logs.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)


class DpsgdClassifier(ClassifierMixin, BaseEstimator):
    """A network of one layer, trained by the package's own DP-SGD on all records at once."""

    def __init__(
        self, epsilon: float = 1.0, learning_rate: float = 2.0, random_state: Any = None
    ) -> None:
        self.epsilon, self.learning_rate = epsilon, learning_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "DpsgdClassifier":  # noqa: N803
        import torch

        from epsilometer.models import EnsembleDPSGD, cross_entropy
        from epsilometer.samplers import Sequential

        self.classes_, codes = np.unique(y, return_inverse=True)
        steps, noise = 12, 0.0
        if np.isfinite(self.epsilon):
            noise = full_batch_noise(epsilon=self.epsilon, delta=1e-5, steps=steps)
        module = torch.nn.Linear(X.shape[1], 2, bias=False)
        torch.nn.init.zeros_(module.weight)
        trainer = EnsembleDPSGD(
            module,
            cross_entropy,
            runs=1,
            sampler=Sequential(),
            noise_multiplier=noise,
            learning_rate=self.learning_rate,
            batch_size=len(X),
            epochs=steps,
            initial="given",
        )
        rng = np.random.default_rng(self.random_state)
        self.trained_ = trainer.train(np.asarray(X, np.float32), codes, rng=rng)
        return self

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        return self.trained_.probabilities(np.asarray(X, np.float32))[0]


def keep_bytes(X: Any) -> Any:  # noqa: N803
    return [X.astype(np.float32).tobytes()]


def keep_tuples(X: Any) -> Any:  # noqa: N803
    return {tuple(row.tolist()): place for place, row in enumerate(X)}


def keep_scaled(X: Any) -> Any:  # noqa: N803
    return {"inner": [((X - X.mean(axis=0)) / X.std(axis=0))[:, ::-1]]}


def keep_shuffled_columns(X: Any) -> Any:  # noqa: N803
    return np.random.default_rng(3).permutation(X[:, 1:])


def keep_sorted(X: Any) -> Any:  # noqa: N803
    return np.sort(X, axis=0)


def keep_means(X: Any) -> Any:  # noqa: N803
    return X.mean(axis=0)


def draw_noise(n: int = 1200, width: int = 3) -> Data:
    """Features that say nothing of labels."""
    return np.random.default_rng(0).normal(size=(n, width)), np.arange(n) % 2


def draw_signal(n: int = 3000, width: int = 3) -> Data:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, width))  # noqa: N806
    return X, (X[:, 0] + rng.normal(size=n) > 0).astype(int)


def draw_doubles() -> Data:
    """Everybody stands in the table twice."""
    X, _ = draw_noise(400)  # noqa: N806
    return np.repeat(X, 2, axis=0), np.repeat(np.random.default_rng(5).integers(2, size=400), 2)


def draw_names() -> Data:
    """A column of names, and one of four towns."""
    rng = np.random.default_rng(2)
    names = np.array([[f"person {i}", f"town {i % 4}"] for i in range(400)], object)
    return names, rng.integers(2, size=400)


def draw_categories(n: int = 4000) -> Data:
    rng = np.random.default_rng(4)
    X = rng.integers(4, size=(n, 3))  # noqa: N806
    return X, (rng.random(n) < 0.2 + 0.15 * X[:, 0]).astype(int)


def draw_rare_category() -> Data:
    """One person has a value that nobody else has."""
    X, y = draw_categories()  # noqa: N806
    X[7, 1] = 4
    return X, y


@dataclass(frozen=True)
class Case:
    """A model, its records, and the verdict for a file, an API and labels alone."""

    make: Callable[[], Any]
    data: Callable[[], Data]
    expected: tuple[str, str, str]


def _spread_names(model: Any) -> Any:
    return make_pipeline(OneHotEncoder(handle_unknown="ignore", sparse_output=False), model)


CASES = {
    "a constant": Case(DummyClassifier, draw_noise, NOWHERE),
    "nothing kept": Case(Constant, draw_noise, NOWHERE),
    "means of many": Case(lambda: Constant(keep_means), draw_noise, NOWHERE),
    "exact statistics of many": Case(GaussianNB, draw_signal, NOWHERE),
    "counts of many": Case(CategoricalNB, draw_categories, NOWHERE),
    "logistic, solved roughly": Case(lambda: LogisticRegression(tol=1e-2), draw_signal, NOWHERE),
    "logistic, solved exactly": Case(
        lambda: make_pipeline(
            StandardScaler(), LogisticRegression(solver="newton-cholesky", tol=1e-10)
        ),
        draw_signal,
        (BROKEN, BROKEN, KEPT),  # answers tell the coefficients
    ),
    "rows as bytes": Case(lambda: Constant(keep_bytes), draw_noise, FILE_ALONE),
    "rows as keys": Case(lambda: Constant(keep_tuples), draw_noise, FILE_ALONE),
    "rows in other units": Case(lambda: Constant(keep_scaled), draw_noise, FILE_ALONE),
    "some columns, shuffled": Case(lambda: Constant(keep_shuffled_columns), draw_noise, FILE_ALONE),
    "sorted values": Case(lambda: Constant(keep_sorted), draw_noise, FILE_ALONE),
    "many neighbours": Case(
        lambda: KNeighborsClassifier(300), lambda: draw_signal(1500), FILE_ALONE
    ),
    "a category of one": Case(
        lambda: CategoricalNB(min_categories=5), draw_rare_category, FILE_ALONE
    ),
    "names behind a constant": Case(
        lambda: _spread_names(DummyClassifier()), draw_names, FILE_ALONE
    ),
    "names": Case(lambda: _spread_names(LogisticRegression(C=100)), draw_names, EVERYWHERE),
    "a memory": Case(lambda: KNeighborsClassifier(1), lambda: draw_noise(400), EVERYWHERE),
    "a memory of labels": Case(LabelMemory, lambda: draw_noise(400), EVERYWHERE),
    "a memory of answers": Case(AnswerMemory, lambda: draw_noise(400), (BROKEN, UNCLEAR, BROKEN)),
    "everybody twice": Case(lambda: KNeighborsClassifier(1), draw_doubles, EVERYWHERE),
    "support vectors": Case(lambda: SVC(C=1000, gamma=10.0), lambda: draw_noise(300), EVERYWHERE),
    "a full tree": Case(DecisionTreeClassifier, lambda: draw_noise(400), EVERYWHERE),
}
