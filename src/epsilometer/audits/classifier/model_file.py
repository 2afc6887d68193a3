"""Search a fitted model for its training records, as whoever is given its file can.

Everything that pickle would write is looked through: attributes, nested estimators, trees, lists,
vocabularies. Each table that passes through a pipeline is looked for, not the first alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from epsilometer.audits.classifier.model_state import count_in_bytes, unpack, walk_state
from epsilometer.audits.classifier.rebuilding import rebuild_records
from epsilometer.audits.classifier.sklearn_models import (
    clone_with_seed,
    count_rows,
    seed_globals,
    take_rows,
)
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

Kind: TypeAlias = Literal["rows", "one person", "rebuilt", "statistics"]
_PROJECTIONS = 4  # two rows that agree in so many random directions are equal
_NEAR = 1e-4  # standard deviations by which equal rows may differ: single precision is enough
_DECOYS = 10  # tables of people who do not exist, for each table that is looked for
_WHOLE = 0.5  # share of a table's rows that is found by more than chance
_LARGEST = 1 << 27  # cells of an array that is looked through
_VALUES = 3  # values of a list from which it may be a column's
_TRIED = 5  # columns of one record each that are tried by fitting again
_RUN = 8  # records from which columns are compared by their correlation
_CHANGE = 1e-6  # relative; below it a parameter did not change
_LABELS = ("classes_", "_y", "y_")  # hold classes, which are not features


@dataclass(frozen=True, kw_only=True)
class Leak:
    """What of single records is in a model's file.

    Attributes:
        kind: Training rows; parts of the model that belong to one record; records that whoever
            knows all others computes; statistics of many records, from which they can too.
        records: How many records that concerns.
        finding: What is where, in a sentence without any value.
    """

    kind: Kind
    records: int
    finding: str


def search_model(
    model: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    codes: IntArray,
    *,
    content: bytes | None = None,
    seed: int = 0,
) -> tuple[Leak, ...]:
    """Return what a fitted model tells of single records to whoever has its file.

    Guarantee: rows and texts that are named are in the model; an array that resembles the table by
        chance is told by tables of people who do not exist. What is encrypted, hashed or spread
        over many parameters is not found.

    Args:
        model: Fitted.
        X: The features it was fitted to.
        codes: Position of each record's label among the classes.
        content: Of the file in which it is kept, if there is one already: pickle, joblib, skops,
            ONNX. It is searched as bytes, and never loaded.
        seed: Of random directions, and of fits without a record.

    Example:
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> X, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
        >>> [leak.finding for leak in search_model(KNeighborsClassifier().fit(X, y), X, y)]
        ['KNeighborsClassifier._fit_X holds 50 of 50 training rows.']
    """
    tables = [Table(name, table, seed) for name, table in list_tables(model, X)]
    search = _Search(X=X, codes=codes, tables=tables, n=count_rows(X))
    for where, value in walk_state(model):
        search.look_at(where, value)
    if content is not None:
        search.look_into(content)
    last, reached = find_last(model, X)
    search.try_columns(last, reached, seed)
    rebuilt = rebuild_records(last, reached, codes, seed=seed)
    if rebuilt is not None and rebuilt.hits:
        share = rebuilt.hits / rebuilt.tried
        search.add(
            "rebuilt",
            round(share * search.n),
            f"From the coefficients of {type(last).__name__}, whoever knows all other records "
            f"computes the missing one: {rebuilt.hits:,} of {rebuilt.tried:,} tried.",
        )
    return search.leaks


def list_tables(model: Any, X: Any) -> Iterator[tuple[str, Any]]:  # noqa: N803
    """Yield the features as they are, and after each step of a pipeline, where they are numbers."""
    if (table := _read_table(X)) is not None:
        yield "training rows", table
    for step in _list_transformers(model):
        X = step.transform(X)  # noqa: N806
        if (table := _read_table(X)) is not None:
            yield "transformed training rows", table


def find_last(model: Any, X: Any) -> tuple[Any, Any]:  # noqa: N803
    """Return the last estimator of a pipeline, and the features that reach it."""
    for step in _list_transformers(model):
        X = step.transform(X)  # noqa: N806
    while isinstance(steps := getattr(model, "steps", None), list):
        model = steps[-1][1]
    return model, X


def _list_transformers(model: Any) -> Iterator[Any]:
    steps = getattr(model, "steps", None)
    if isinstance(steps, list):
        for _, step in steps[:-1]:
            if step not in (None, "passthrough"):
                yield step
        yield from _list_transformers(steps[-1][1])


def _read_table(X: Any) -> Any:  # noqa: N803
    """Return a matrix of numbers, sparse or dense; None where there is none in it."""
    if hasattr(X, "tocsr"):
        return X.tocsr().astype(np.float64)
    if hasattr(X, "select_dtypes"):
        X = X.select_dtypes("number")  # noqa: N806
    try:
        table = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return None
    return table if table.ndim == 2 and table.shape[1] else None


class Table:
    """Rows that are looked for, known by their projections on a few random directions.

    Attributes:
        name: What its rows are, in words.
        values: Shape ``(n, columns)``, dense or sparse.
    """

    def __init__(self, name: str, values: Any, seed: int) -> None:
        self.name, self.values = name, values
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(5,)))
        self._directions = rng.normal(size=(values.shape[1], _PROJECTIONS))
        self.sparse = hasattr(values, "tocsr")
        if self.sparse:
            spread = np.sqrt(np.asarray(values.multiply(values).mean(axis=0)).ravel())
            self._centre = np.zeros(values.shape[1])
        else:
            with np.errstate(all="ignore"):
                self._centre = np.nan_to_num(np.nanmean(_finite(values), axis=0))
                spread = np.nanstd(_finite(values), axis=0)
        self._spread = np.where(np.nan_to_num(spread) > 0, np.nan_to_num(spread), 1.0)
        self._at = self.project(values)
        self._decoys = [] if self.sparse else [self.project(rng.permuted(values, axis=0))]
        for _ in range(0 if self.sparse else _DECOYS - 1):
            self._decoys.append(self.project(rng.permuted(values, axis=0)))

    def project(self, values: Any) -> FloatArray:
        """Return rows by their projections, in standard deviations."""
        if hasattr(values, "tocsr"):
            found: Any = values.multiply(1 / self._spread) @ self._directions
            return np.asarray(found) - (self._centre / self._spread) @ self._directions
        scaled = (_finite(np.asarray(values, np.float64)) - self._centre) / self._spread
        # A gap is a value like any other: two gaps are equal.
        return np.nan_to_num(np.clip(scaled, -1e9, 1e9), nan=7.77) @ self._directions

    def count_matches(self, values: Any) -> int:
        """Return how many rows are among these; 0 where as many strangers are, by chance."""
        tree = cKDTree(self.project(values))
        found = _count_near(tree, self._at)
        strangers = max((_count_near(tree, decoy) for decoy in self._decoys), default=0)
        chance = strangers and (found < _WHOLE * len(self._at) or found <= strangers)
        thin = self.sparse and self.values.getnnz() < 3 * len(self._at)
        return 0 if chance or (thin and found < len(self._at)) else found

    def select_columns(self, values: FloatArray) -> "IntArray | None":
        """Return to which columns those of an array belong; None where one belongs to none."""
        if self.sparse:
            return None
        chosen: list[int] = []
        for column in values.T:
            held = [
                place
                for place, own in enumerate(self.values.T)
                if place not in chosen and np.isin(column, own).all()
            ]
            if not held:
                return None
            chosen.append(held[0])
        return np.array(chosen)

    def match_scaled(self, values: FloatArray) -> bool:
        """Tell whether each column is one of the table's in another unit, row by row."""
        if self.sparse or len(values) != len(self.values):
            return False
        if values.shape[1] * self.values.shape[1] > 1 << 20 or len(values) < _RUN:
            return False
        own, other = _standardise(self.values), _standardise(values)
        varies = np.abs(other).max(axis=0) > 0
        alike = np.abs(other.T @ own / len(own)).max(axis=1, initial=0.0)
        return bool(varies.sum() > 1 and (alike[varies] > 1 - 1e-9).all())


def _finite(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values), values, np.nan)


def _standardise(values: FloatArray) -> FloatArray:
    filled = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    centred = filled - filled.mean(axis=0)
    spread = centred.std(axis=0)
    return np.asarray(np.where(spread > 0, centred, 0.0) / np.where(spread > 0, spread, 1.0))


def _count_near(tree: Any, at: FloatArray) -> int:
    away, _ = tree.query(at, distance_upper_bound=_NEAR * 10)
    return int(np.sum(away <= _NEAR * (1 + np.abs(at).max(axis=1) * 1e-3)))


@dataclass(eq=False, kw_only=True)
class _Search:
    """Collects what is found.

    Attributes:
        X: Features as they were given.
        codes: Places of labels.
        tables: What is looked for.
        n: Records.
        found: Kind and sentence, in which ``{}`` is the number of records.
    """

    X: Any
    codes: IntArray
    tables: Sequence[Table]
    n: int
    found: dict[tuple[Kind, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.words = _count_words(self.X)
        self._once = [_find_once(table) for table in self.tables if not table.sparse]
        self._means = [_list_means(table.values, self.codes) for table in self.tables]

    def add(self, kind: Kind, records: int, finding: str, *, sums: bool = False) -> None:
        """Keep a finding; of several alike the largest, or their sum."""
        before = self.found.get((kind, finding), 0)
        self.found[kind, finding] = before + records if sums else max(before, records)

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """What was found, in the order of ``Kind`` and the largest first."""
        leaks = [
            Leak(kind=kind, records=min(records, self.n), finding=finding.format(f"{records:,}"))
            for (kind, finding), records in self.found.items()
        ]
        return tuple(
            sorted(leaks, key=lambda leak: (get_args(Kind).index(leak.kind), -leak.records))
        )

    def look_at(self, where: str, value: Any) -> None:
        """Compare one array of the model with the records."""
        if getattr(value, "dtype", None) is not None and value.dtype.names:
            return self._look_at_leaves(where, value)
        if value.dtype.kind in "OUS":
            return self._look_at_words(where, value)
        if hasattr(value, "tocsr") or value.size > _LARGEST:
            if hasattr(value, "tocsr"):
                self._look_for_rows(where, value.tocsr())
            return None
        if value.dtype.kind not in "fiub" or not value.size or where.endswith(_LABELS):
            return None
        if value.dtype == np.uint8 and value.ndim == 1:
            self.look_into(value.tobytes(), where)
        numbers = value.astype(np.float64)
        self._look_at_counts(where, numbers)
        matrix = numbers.reshape(-1, numbers.shape[-1]) if numbers.ndim else numbers.reshape(1, 1)
        turned = [matrix, matrix.T] if matrix.shape[1] == self.n else [matrix]
        if not any(self._look_for_rows(where, each) for each in turned):
            self._look_for_values(where, matrix)
        return None

    def _look_for_rows(self, where: str, matrix: Any) -> bool:
        for table, means in zip(self.tables, self._means, strict=True):
            width = table.values.shape[1]
            found = 0
            if matrix.shape[1] == width:
                if width > 1:
                    found = table.count_matches(matrix)
                if not found and _holds_means(table, matrix, means):
                    self.add(
                        "statistics",
                        self.n,
                        f"{where} holds means of many records: whoever knows all others computes "
                        "the missing one.",
                    )
            elif not hasattr(matrix, "tocsr") and 1 < matrix.shape[1] < width:
                columns = table.select_columns(matrix)
                if columns is not None and len(matrix) > 1:
                    part = Table(table.name, table.values[:, columns], 0)
                    found = part.count_matches(matrix)
            if not found and not hasattr(matrix, "tocsr") and table.match_scaled(matrix):
                found = self.n
            if found:
                self.add("rows", found, f"{where} holds {{}} of {self.n:,} {table.name}.")
                return True
        return False

    def _look_for_values(self, where: str, matrix: FloatArray) -> None:
        """Find lists of a column's values, some of which one record alone has."""
        single = matrix.astype(np.float32)
        lists = [single.ravel()] if 1 in single.shape else [*single.T]
        for table_once in self._once:
            for once, every in table_once:
                for values in lists:
                    if values.size < _VALUES or values.size > 2 * self.n:
                        continue
                    if np.isin(once, values).all() and np.isin(values, every).all():
                        self.add(
                            "one person",
                            once.size,
                            f"{where} lists the values of a column; {{}} of them belong to one "
                            "record each.",
                        )

    def _look_at_words(self, where: str, value: NDArray[Any]) -> None:
        texts = {str(each) for each in value.ravel().tolist() if isinstance(each, str | np.str_)}
        once = sum(1 for word in texts & self.words.keys() if self.words[word] == 1)
        if once and not where.endswith(_LABELS):
            self.add("one person", once, f"{where} holds {{}} texts, each of one record alone.")
        for table in self.tables:
            if where.endswith("vocabulary_") and len(texts) == table.values.shape[1]:
                alone = int(_find_lonely(table.values).sum())
                if alone:
                    self.add(
                        "one person",
                        alone,
                        f"{where} lists {{}} words or n-grams, each of one record alone.",
                    )

    def _look_at_leaves(self, where: str, nodes: NDArray[Any]) -> None:
        for size, leaf in (("n_node_samples", "left_child"), ("count", "is_leaf")):
            if {size, leaf} <= set(nodes.dtype.names or ()):
                ends = nodes[leaf] < 0 if leaf == "left_child" else nodes[leaf].astype(bool)
                alone = int(np.sum(ends & (nodes[size] == 1)))
                if alone:
                    text = f"{where} has {{}} leaves of one training record each."
                    self.add("one person", alone, text, sums=True)

    def _look_at_counts(self, where: str, numbers: FloatArray) -> None:
        """Find counts of records: whole numbers, and as many in all as there are records."""
        if numbers.size < 2 or numbers.size >= self.n or numbers.max() < 2:
            return
        whole = (numbers >= 0).all() and (numbers == np.round(numbers)).all()
        if not whole or numbers.sum() != self.n:
            return
        alone = int(np.sum(numbers == 1))
        if alone:
            self.add("one person", alone, f"{where} counts records, and {{}} cells hold one.")
        else:
            self.add("statistics", 0, f"{where} counts records; no cell holds one alone.")

    def look_into(self, content: bytes, where: str = "The model file") -> None:
        """Search a file as bytes, unpacked as often as it was packed."""
        for part in unpack(content):
            for table in self.tables:
                found = 0 if table.sparse else count_in_bytes(part, table.values)
                if found:
                    self.add("rows", found, f"{where} holds {{}} of {self.n:,} {table.name}.")
            once = sum(
                1
                for word, count in self.words.items()
                if count == 1 and len(word) > _VALUES and word.encode() in part
            )
            if once:
                text = f"{where} holds {{}} texts, each of one record alone."
                self.add("one person", once, text)

    def try_columns(self, last: Any, reached: Any, seed: int) -> None:
        """Find parameters of columns in which one record alone differs from all others."""
        table = _read_table(reached)
        if table is None or not hasattr(last, "fit"):
            return
        lonely = np.flatnonzero(_find_lonely(table))
        if not lonely.size:
            return
        labels = getattr(last, "classes_", np.arange(self.codes.max() + 1))[self.codes]
        names = [*_list_parameters(last, table.shape[1])]
        hits, tried = 0, lonely[:_TRIED] if names else lonely[:0]
        for column in tried.tolist():
            values = _take_column(table, column)
            (record,) = np.flatnonzero(values != _find_usual(values))
            others = np.delete(np.arange(self.n), record)
            if np.unique(labels[others]).size == np.unique(labels).size:
                part = take_rows(reached, others), labels[others]
                without, noise = (_fit_again(last, *part, seed + more) for more in (0, 1))
                hits += any(
                    _belongs_to_record(
                        *(
                            _slice_of(model, name, table.shape[1], column)
                            for model in (last, without, noise)
                        )
                    )
                    for name in names
                )
        if hits:
            self.add(
                "one person",
                lonely.size if hits == tried.size else hits,
                f"{type(last).__name__} has parameters of {{}} columns that one record alone "
                "fills; they change when it leaves.",
            )


def _count_words(X: Any) -> Counter[str]:  # noqa: N803
    """Return how many records each text belongs to."""
    if hasattr(X, "tocsr"):
        return Counter()
    table = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
    if table.dtype.kind not in "OUS":
        return Counter()
    rows = table if table.ndim > 1 else table[:, None]
    return Counter(
        word for row in rows for word in {str(cell) for cell in row if isinstance(cell, str)}
    )


def _find_once(table: Table) -> list[tuple[FloatArray, FloatArray]]:
    """Return, of each column, values of one record alone, and all values."""
    found = []
    for column in table.values.T:
        # In single precision: quantiles are interpolated, and off by a last digit.
        given = column[np.isfinite(column)].astype(np.float32)
        every, counts = np.unique(given, return_counts=True)
        if (counts == 1).any():
            found.append((every[counts == 1], every))
    return found


def _list_means(values: Any, codes: IntArray) -> FloatArray:
    """Return the means of all records, and of each class that has several."""
    groups = [np.ones(codes.size, bool), *(codes == code for code in np.unique(codes))]
    return np.stack(
        [np.asarray(values[group].mean(axis=0)).ravel() for group in groups if group.sum() > 1]
    )


def _holds_means(table: Table, matrix: Any, means: FloatArray) -> bool:
    return _count_near(cKDTree(table.project(matrix)), table.project(means)) > 0


def _find_lonely(table: Any) -> BoolArray:
    """Return which columns have one value but for one record."""
    if hasattr(table, "tocsr"):
        return np.asarray(table.getnnz(axis=0) == 1)
    return np.array([np.sum(column != _find_usual(column)) == 1 for column in table.T])


def _find_usual(column: FloatArray) -> float:
    values, counts = np.unique(column, return_counts=True)
    return float(values[np.argmax(counts)])


def _take_column(table: Any, column: int) -> FloatArray:
    if hasattr(table, "tocsr"):
        return np.asarray(table[:, [column]].toarray()).ravel()
    return np.asarray(table[:, column])


def _list_parameters(model: Any, width: int) -> Iterator[str]:
    """Yield names of fitted arrays with an entry for each column."""
    for name, value in vars(model).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and width in value.shape:
            yield name


def _slice_of(model: Any, name: str, width: int, column: int) -> FloatArray:
    value = getattr(model, name, np.zeros(0))
    return np.take(value, column, axis=value.shape.index(width)) if width in value.shape else value


def _belongs_to_record(own: FloatArray, without: FloatArray, noise: FloatArray) -> bool:
    """Tell whether a parameter changes with the record, and without it is the same for all seeds.

    One that another seed changes too is noise, initial weights or the order of records.
    """
    if not own.shape == without.shape == noise.shape or _differs(without, noise):
        return False
    return _differs(own, without)


def _differs(one: FloatArray, other: FloatArray) -> bool:
    return bool(np.any(np.abs(one - other) > _CHANGE * (np.abs(one) + np.abs(other))))


def _fit_again(last: Any, reached: Any, labels: Any, seed: int) -> Any:
    model = clone_with_seed(last, seed)
    with seed_globals(seed):
        try:
            return model.fit(reached, labels)
        except Exception as error:
            raise InvalidArgument(
                f"Expected a {type(last).__name__} that can be fitted without a record, it failed.",
                withheld=str(error)[:200],
            ) from error
