"""Train models on halves of the records, and query each about changed records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.attacks.shadows import FLOOR, Halves, show_logs, train_halves
from epsilometer.audits.classifier.sklearn_models import FitEstimator, count_rows, take_rows
from epsilometer.engine.engines import Engine
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

OWN = "own"  # the question about unchanged records


@dataclass(frozen=True, eq=False)
class Asked:
    """Models' answers for each record's own label, at its features changed in several ways.

    Attributes:
        answers: Question → ln p of the own label, shape ``(models, records, ways)``.
        member: Whether each model was trained on each record, shape ``(models, records)``.
    """

    answers: Mapping[str, NDArray[np.float32]]
    member: BoolArray

    def gains(self, question: str) -> FloatArray:
        """Return ln p minus ln of the mean p over all models except the model's own pair.

        The two models of a pair split the records, so the reference is independent of the model's
        members.
        """
        likely = np.exp(self.answers[question].astype(np.float64))
        models = len(likely)
        pairs = likely.reshape(models // 2, 2, *likely.shape[1:]).sum(axis=1)
        others = np.maximum(pairs.sum(axis=0) - np.repeat(pairs, 2, axis=0), 0.0) / (models - 2)
        floor = np.exp(FLOOR)
        return np.asarray(np.log(np.maximum(likely, floor)) - np.log(np.maximum(others, floor)))


@dataclass(frozen=True, eq=False, kw_only=True)
class AskingHalves(Halves):
    """Classifiers trained on about half of the records each, queried about changed records.

    Attributes:
        fit: Trains, and returns a function that predicts ln p.
        features: Features of all records.
        labels: Positions of their labels among the classes.
        questions: Question → features of all records, changed in one way after the other.
        decimals: Number of decimals of shown probabilities; None: all; −1: the class alone.
    """

    fit: FitEstimator
    features: Any
    labels: IntArray
    questions: Mapping[str, Sequence[Any]]
    decimals: int | None = None

    def describe(self) -> dict[str, Any]:
        """Return how models are trained, and how they are queried."""
        ways = {name: len(changed) for name, changed in self.questions.items()}
        how = {"fit": name_of(type(self.fit.estimator)), "decimals": self.decimals}
        return {**how, "questions": ways}

    def fingerprint(self) -> str:
        """Return a hash of the records and questions, and of how models are trained."""
        asked = {name: [*map(np.asarray, changed)] for name, changed in self.questions.items()}
        return fingerprint([self.fit, np.asarray(self.features), self.labels, asked])

    def train(self, member: BoolArray, seed: int) -> Arrays:
        """Train one model, and query it with all questions."""
        rows = np.flatnonzero(member)
        predict = self.fit(take_rows(self.features, rows), self.labels[rows], seed)
        every = np.arange(self.labels.size)
        return {
            name: np.stack(
                [
                    np.maximum(show_logs(predict(features), self.decimals), FLOOR)[
                        every, self.labels
                    ]
                    for features in changed
                ],
                axis=1,
            ).astype(np.float32)
            for name, changed in self.questions.items()
        }


def ask_models(
    fit: FitEstimator,
    X: Any,  # noqa: N803 - as in scikit-learn
    labels: IntArray,
    questions: Mapping[str, Sequence[Any]],
    *,
    models: int = 16,
    decimals: int | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    directory: Any = None,
    listen: Sequence[Listener] = (),
) -> Asked:
    """Train an even number of models, and query each about all records in every way.

    Args:
        fit: Trains on features and positions of labels.
        X: Features.
        labels: Positions of the records' labels among the classes.
        questions: Question → features of all records, changed in one way after the other.
        models: Number of models, at least 4.
        decimals: Number of decimals of shown probabilities; None: all; −1: the class alone.
        seed: Seed from which records and the seeds of training are drawn.
        engine: Executes training.
        directory: Where models are stored, so that the same call can finish them.
        listen: Callbacks that receive events.
    """
    models = max(4, models // 2 * 2)
    asking = AskingHalves(
        records=labels.size,
        seed=seed,
        fit=fit,
        features=X,
        labels=labels,
        questions={OWN: [X], **questions},
        decimals=decimals,
    )
    found = train_halves(asking, models, directory, engine=engine, listen=listen)
    return Asked(
        {name: np.stack([arrays[name] for arrays in found]) for name in asking.questions},
        np.stack([asking.members(model) for model in range(models)]),
    )


def replace_column(X: Any, column: int, values: Any) -> Any:  # noqa: N803
    """Return features with one column replaced: an array or a table with ``iloc``."""
    changed = X.copy()
    if hasattr(X, "iloc"):
        changed.isetitem(column, values)
    else:
        changed[:, column] = values
    return changed


def read_column(X: Any, column: int) -> NDArray[Any]:  # noqa: N803
    """Return the values of one column."""
    return np.asarray(X.iloc[:, column] if hasattr(X, "iloc") else X[:, column])


def check_features(X: Any) -> Any:  # noqa: N803
    """Return features whose columns can be changed; refuse sparse ones and other shapes."""
    features = X if hasattr(X, "shape") else np.asarray(X)
    if hasattr(features, "tocsr") or len(features.shape) != 2 or count_rows(features) < 4:
        raise InvalidArgument(
            "Expected a table of columns for threats to attributes and ranges, got features of "
            f"shape {features.shape}{', sparse' if hasattr(features, 'tocsr') else ''}."
        )
    return features
