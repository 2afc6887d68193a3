"""Read tables for scikit-learn, and prepare its models for numbers and words."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.files.column_kinds import recognise_names, recognise_text
from epsilometer.files.readers import Column, hash_file
from epsilometer.files.spellings import read_spelled
from epsilometer.files.sql import hash_columns, is_url
from epsilometer.files.tables import Table, cut_at_quantiles, read_table, take_words
from epsilometer.types import BoolArray, FloatArray, IntArray

MODELS = ("naive-bayes", "logistic", "knn", "random-forest", "mlp")
REGRESSORS = ("linear", "ridge", "knn", "random-forest", "boosting", "mlp")
_WORDS = 1000  # different words of a column that become separate columns
_QUARTILES = 4
_MOST = 500_000  # records that are audited by default
_MISSING = frozenset({"na", "n/a", "nan", "null", "?"})  # labels that mean a missing value
_FEW = 10  # different numbers of a column that are used as groups directly
_BINS = 10  # into which naive Bayes bins numbers
_KNOWN = (
    "The lists of words in each column are assumed to be public: their words do not count as risk."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared:
    """Hold a model for a table, and the table in the model's format.

    Attributes:
        estimator: Not fitted.
        X: Numbers, nan for missing ones; words as their index.
        names: Names of the columns.
        categorical: Which columns hold indices of words or bins.
        caveats: Caveats for the report.
    """

    estimator: Any
    X: FloatArray | IntArray
    names: tuple[str, ...]
    categorical: BoolArray
    caveats: tuple[str, ...] = ()


def prepare(model: str, features: Table, *, seed: int = 0) -> Prepared:
    """Return a classifier by its name, for these columns.

    ``naive-bayes`` is ``GaussianNB`` if all columns are numbers, else ``CategoricalNB`` with
    numbers binned at their deciles. For the others, a pipeline fills missing numbers with the
    median, scales numbers and one-hot encodes words; it is refitted with the model. Forests take
    words as their index.

    Args:
        model: One of ``MODELS``.
        features: The columns to predict from.
        seed: Seed of random models.
    """
    if model not in MODELS:
        raise InvalidArgument(
            f"Expected a model among {', '.join(MODELS)}, or module:factory, got {model!r}."
        )
    _check_columns(features)
    if model == "naive-bayes" and any(column.words is not None for column in features.columns):
        return _prepare_categorical(features)
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


def prepare_regressor(model: str, features: Table, *, seed: int = 0) -> Prepared:
    """Return a regressor by its name, for these columns, in a pipeline like a classifier's.

    Args:
        model: One of ``REGRESSORS``.
        features: The columns to predict from.
        seed: Seed of random models.
    """
    if model not in REGRESSORS:
        raise InvalidArgument(
            f"Expected a model among {', '.join(REGRESSORS)}, or module:factory, got {model!r}."
        )
    with needs("sklearn", extra="sklearn"):
        from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
        from sklearn.linear_model import LinearRegression, Ridge
        from sklearn.neighbors import KNeighborsRegressor
        from sklearn.neural_network import MLPRegressor
    makers = {
        "linear": LinearRegression,
        "ridge": Ridge,
        "knn": KNeighborsRegressor,
        "random-forest": lambda: RandomForestRegressor(random_state=seed),
        "boosting": lambda: HistGradientBoostingRegressor(random_state=seed),
        "mlp": lambda: MLPRegressor((64,), tol=1e-3, max_iter=1000, random_state=seed),
    }
    plain = model in ("random-forest", "boosting")
    return with_preprocessing(makers[model](), features, scaled=not plain, spread=not plain)


def with_preprocessing(
    estimator: Any, features: Table, *, scaled: bool = True, spread: bool = True
) -> Prepared:
    """Return a pipeline that fills gaps, encodes words and scales numbers before an estimator.

    Args:
        estimator: Estimator that takes numbers.
        features: The columns to predict from.
        scaled: Whether numbers are scaled to mean 0 and variance 1.
        spread: Whether words are one-hot encoded.
    """
    with needs("sklearn", extra="sklearn"):
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler
    _check_columns(features)
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


def _prepare_categorical(features: Table) -> Prepared:
    with needs("sklearn", extra="sklearn"):
        from sklearn.naive_bayes import CategoricalNB
    cut = [cut_at_quantiles(column, _BINS) for column in features.columns]
    numbers = [column.name for column in features.columns if column.words is None]
    caveats = [_KNOWN]
    if numbers:
        caveats.append(
            f"Numbers were cut into at most {_BINS} bins at their quantiles ({', '.join(numbers)}),"
            " which were held fixed when records left."
        )
    return Prepared(
        estimator=CategoricalNB(min_categories=[column.width for column in cut]),
        X=np.stack([column.values for column in cut], axis=1).astype(np.int64),
        names=features.names,
        categorical=np.ones(len(cut), bool),
        caveats=tuple(caveats),
    )


def _check_columns(features: Table) -> None:
    if not features.columns:
        raise InvalidArgument("Expected columns besides the label to predict it from, found none.")
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
            found = "one in every row" if recognise_names(column) else f"{column.width:,}"
            raise InvalidArgument(
                f"Expected at most {_WORDS} different words in column {column.name!r}, found "
                f"{found}. If it names records, drop it: --drop {column.name}"
            )


@dataclass(frozen=True)
class TableModel:
    """Configure a classifier, and the table of people on which it is trained.

    Attributes:
        file: ``.csv``, ``.tsv``, ``.parquet``, ``.arrow`` or ``.xlsx``, with a header; cells may be
            empty. Or the URL of a database, without a password.
        label: The column to predict.
        model: One of ``MODELS``, or a function without arguments that returns an estimator.
        drop: Columns to leave out.
        group: Columns whose groups are compared.
        encoding: Encoding of a text file, by its Python name; None: detected.
        delimiter: Separator of cells in a text file; None: detected.
        decimal: Decimal point or comma in a text file, if the other separates thousands; None:
            detected.
        query: Query for a database, which the result contains; None: its only table.
        rows: Number of records drawn at random for the audit; None: all, up to 500,000.
        seed: Seed of random models, and of drawn records.

    Example:
        >>> import tempfile, pathlib
        >>> from epsilometer.integrations.sklearn import TableModel
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "people.csv"
        ...     _ = file.write_text("age,income\\n31,low\\n58,high\\n40,low\\n")
        ...     TableModel(file, "income").load()["title"]
        'naive-bayes on people.csv'
    """

    file: Path | str
    label: str
    model: str | Callable[[], Any] = "naive-bayes"
    drop: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    encoding: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    query: str | None = None
    rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_url(self.file):
            object.__setattr__(self, "file", Path(self.file))
        _validate.whole(0, seed=self.seed)
        _validate.whole(1, rows=1 if self.rows is None else self.rows)

    def load(self) -> dict[str, Any]:
        """Read the table: ``estimator``, ``X``, ``y``, and the meaning of columns."""
        table = self._draw(self._read())
        y = self._read_label(table.column(self.label))
        features = _read_features(table.without(self.label, *self.drop))
        ready = self._prepare(features)
        groups = {name: _find_groups(table.column(name)) for name in self.group}
        name = self.model if isinstance(self.model, str) else _name_function(self.model)
        return {
            "estimator": ready.estimator,
            "X": ready.X,
            "y": y,
            "groups": groups or None,
            "feature_names": ready.names,
            "categorical": ready.categorical,
            "caveats": (*features.notes, *ready.caveats),
            "title": f"{name} on {self._name}",
        }

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the name of the file and the SHA-256 of its contents."""
        if isinstance(self.file, Path):
            return (hash_file(self.file),)
        return ((self._name, hash_columns(self._read().columns)),)

    @property
    def _name(self) -> str:
        return self.file.name if isinstance(self.file, Path) else "a database"

    def _read(self) -> Table:
        return read_table(
            self.file,
            encoding=self.encoding,
            delimiter=self.delimiter,
            decimal=self.decimal,
            query=self.query,
            most=_MOST if self.rows is None else None,
        )

    def _draw(self, table: Table) -> Table:
        """Return the records of the audit, in the order of the table."""
        if self.rows is None or self.rows >= table.rows:
            return table
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(3,)))
        drawn = table.take(np.sort(rng.choice(table.rows, self.rows, replace=False)))
        note = (
            f"{self.rows:,} of {table.rows:,} records were drawn at random. A model of all records "
            "shows less of each; the audited model is that of the records drawn."
        )
        return Table(drawn.columns, (*drawn.notes, note))

    def _read_label(self, column: Column) -> NDArray[Any]:
        return _read_labels(column)

    def _prepare_named(self, model: str, features: Table) -> Prepared:
        return prepare(model, features, seed=self.seed)

    def _prepare(self, features: Table) -> Prepared:
        if isinstance(self.model, str):
            return self._prepare_named(self.model, features)
        try:
            made = self.model()
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"Expected a model that can be called without arguments, got "
                f"{_name_function(self.model)}: {error}."
            ) from error
        return with_preprocessing(made, features)


@dataclass(frozen=True)
class TableRegressor(TableModel):
    """Configure a regressor and its table of people: fields as for ``TableModel``.

    Example:
        >>> import tempfile, pathlib
        >>> from epsilometer.integrations.sklearn import TableRegressor
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "people.csv"
        ...     _ = file.write_text("age,income\\n31,1000\\n58,2500\\n40,1200\\n")
        ...     TableRegressor(file, "income").load()["y"]
        array([1000., 2500., 1200.])
    """

    model: str | Callable[[], Any] = "linear"

    def _read_label(self, column: Column) -> NDArray[Any]:
        read, _ = read_spelled(column)
        if read.words is not None:
            raise InvalidArgument(
                f"Expected numbers in {column.name!r}, which is predicted, found words. Classes "
                "are audited by epsilometer classifier."
            )
        wrong = int(np.sum(~np.isfinite(read.values)))
        if wrong:
            raise InvalidArgument(
                f"Expected a number in every row, {wrong:,} have none in {column.name!r}. Leave "
                "those records out."
            )
        return np.asarray(read.values, np.float64)

    def _prepare_named(self, model: str, features: Table) -> Prepared:
        return prepare_regressor(model, features, seed=self.seed)


def _read_features(table: Table) -> Table:
    """Return columns with numbers parsed from text, and notes on guesses and oddities."""
    columns, notes = [], list(table.notes)
    for each in table.columns:
        column, note = read_spelled(each)
        columns.append(column)
        notes += [] if note is None else [note]
        if recognise_text(column):
            raise InvalidArgument(
                f"Expected numbers, dates, or words that many share, {column.name!r} holds free "
                f"text, which no model here can take. Drop it: --drop {column.name}"
            )
        if (why := recognise_names(column)) is not None:
            notes.append(
                f"{column.name!r} {why}: drop it with --drop {column.name}, if it identifies "
                "people."
            )
    return Table(tuple(columns), tuple(notes))


def _read_labels(column: Column) -> NDArray[Any]:
    if column.words is None:
        missing = np.isnan(column.values)
    else:
        blank = [not word or word.lower() in _MISSING for word in column.words]
        missing = np.array(blank)[column.values]
    if missing.any():
        raise InvalidArgument(
            f"Expected a label in every row, {int(missing.sum()):,} have none in {column.name!r}, "
            "or one that says that it is missing. Leave those records out."
        )
    return take_words(column)


def _find_groups(column: Column) -> NDArray[Any]:
    """Return the group of each record: its word, its number, or the quartile of its number."""
    if column.words is None and np.unique(column.values).size > _FEW:
        column = cut_at_quantiles(column, _QUARTILES)
    return take_words(column)


def _name_function(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"
