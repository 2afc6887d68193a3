"""scikit-learn: data that ships with it, and its classifiers for tables of numbers and words."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer._extras import needs
from epsilometer.engine.fingerprints import fingerprint
from epsilometer.errors import InvalidArgument
from epsilometer.files.tables import Table, cut_at_quantiles
from epsilometer.types import BoolArray, FloatArray, IntArray

MODELS = ("naive-bayes", "logistic", "knn", "random-forest", "mlp")
_WORDS = 1000  # different words of a column that become columns of their own
_BINS = 10  # into which naive Bayes cuts numbers
_KNOWN = (
    "The lists of words in each column are taken as known to everybody: that a word is among them "
    "does not count as risk."
)


def digits() -> tuple[FloatArray, IntArray]:
    """The 1,797 handwritten digits that ship with scikit-learn: pixels 0–16, and their classes."""
    with needs("sklearn", extra="sklearn"):
        from sklearn.datasets import load_digits
    bunch = load_digits()
    return np.asarray(bunch.data, np.float64), np.asarray(bunch.target, np.int64)


@dataclass(frozen=True)
class Digits:
    """The handwritten digits of scikit-learn, by reference: what a result names in their place."""

    def load(self) -> dict[str, Any]:
        """Read ``features`` and ``labels``."""
        features, labels = digits()
        return {"features": features, "labels": labels}

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the SHA-256 of both."""
        return tuple((name, fingerprint(value)) for name, value in self.load().items())


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """A classifier for a table, and the table as it takes it.

    Attributes:
        estimator: Not fitted.
        X: Numbers, nan where one is missing; words by their places.
        names: Of the columns.
        categorical: Which columns hold places of words, or of bins.
        caveats: What a reader must know.
    """

    estimator: Any
    X: FloatArray | IntArray
    names: tuple[str, ...]
    categorical: BoolArray
    caveats: tuple[str, ...] = ()


def prepared(model: str, features: Table, *, seed: int = 0) -> Prepared:
    """A classifier by its name, for these columns.

    ``naive-bayes`` is ``GaussianNB`` where all columns are of numbers, else ``CategoricalNB`` with
    numbers cut at their deciles. For the others, missing numbers are filled with the median,
    numbers scaled and words spread over columns of their own, in a pipeline that is refitted with
    the model; forests take words by their places.

    Args:
        model: One of ``MODELS``.
        features: The columns to predict from.
        seed: Of models that are random.
    """
    if model not in MODELS:
        raise InvalidArgument(
            f"Expected a model among {', '.join(MODELS)}, or module:factory, got {model!r}."
        )
    _checked(features)
    if model == "naive-bayes" and any(column.words is not None for column in features.columns):
        return _categorical(features)
    with needs("sklearn", extra="sklearn"):
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.naive_bayes import GaussianNB
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.neural_network import MLPClassifier
    makers = {
        "naive-bayes": GaussianNB,
        "logistic": lambda: LogisticRegression(max_iter=1000),
        "knn": KNeighborsClassifier,
        "random-forest": lambda: RandomForestClassifier(random_state=seed),
        "mlp": lambda: MLPClassifier((64,), tol=1e-3, max_iter=1000, random_state=seed),
    }
    plain = model in ("naive-bayes", "random-forest")
    return with_preprocessing(makers[model](), features, scaled=not plain, spread=not plain)


def with_preprocessing(
    estimator: Any, features: Table, *, scaled: bool = True, spread: bool = True
) -> Prepared:
    """An estimator behind whatever these columns need: gaps filled, words spread, numbers scaled.

    Args:
        estimator: Takes numbers.
        features: The columns to predict from.
        scaled: Whether numbers are brought to mean 0 and variance 1.
        spread: Whether words are spread over columns of their own.
    """
    with needs("sklearn", extra="sklearn"):
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler
    _checked(features)
    columns = features.columns
    table = np.stack([np.asarray(column.values, np.float64) for column in columns], axis=1)
    numbers = [i for i, column in enumerate(columns) if column.words is None]
    names = [i for i, column in enumerate(columns) if column.words is not None]
    gaps = bool(np.isnan(table).any())
    steps = [*([SimpleImputer(strategy="median")] if gaps else [])]
    steps += [StandardScaler()] if scaled else []
    parts: list[tuple[str, Any, list[int]]] = []
    if numbers:
        parts.append(("numbers", make_pipeline(*steps) if steps else "passthrough", numbers))
    if names:
        known = [np.arange(columns[i].width, dtype=np.float64) for i in names]
        encoder = OneHotEncoder(categories=known, handle_unknown="ignore", sparse_output=False)
        parts.append(("words", encoder if spread else "passthrough", names))
    needed = bool(steps and numbers) or bool(names and spread)
    return Prepared(
        estimator=make_pipeline(ColumnTransformer(parts), estimator) if needed else estimator,
        X=table,
        names=features.names,
        categorical=np.array([column.words is not None for column in columns]),
        caveats=(_KNOWN,) if names and spread else (),
    )


def _categorical(features: Table) -> Prepared:
    with needs("sklearn", extra="sklearn"):
        from sklearn.naive_bayes import CategoricalNB
    cut = [cut_at_quantiles(column, _BINS) for column in features.columns]
    numbers = [column.name for column in features.columns if column.words is None]
    told = [_KNOWN]
    if numbers:
        told.append(
            f"Numbers were cut into at most {_BINS} bins at their quantiles ({', '.join(numbers)}),"
            " which were held fixed when records left."
        )
    return Prepared(
        estimator=CategoricalNB(min_categories=[column.width for column in cut]),
        X=np.stack([column.values for column in cut], axis=1).astype(np.int64),
        names=features.names,
        categorical=np.ones(len(cut), bool),
        caveats=tuple(told),
    )


def _checked(features: Table) -> None:
    if not features.columns:
        raise InvalidArgument("Expected columns beside the label to predict it from, found none.")
    for column in features.columns:
        if column.words is None and np.isnan(column.values).all():
            raise InvalidArgument(
                "Expected values in every column, "
                f"{column.name!r} is empty. Drop it: --drop {column.name}"
            )
        if column.words is None and np.isinf(column.values).any():
            raise InvalidArgument(
                f"Expected finite numbers in column {column.name!r}, found "
                f"{np.isinf(column.values).sum()} infinite ones. Leave these records out."
            )
        if column.width > _WORDS:
            raise InvalidArgument(
                f"Expected at most {_WORDS} different words in column {column.name!r}, found "
                f"{column.width}. If it names records, drop it: --drop {column.name}"
            )
