"""Search a fitted model for its training records, as anyone with its file can.

Everything that pickle would write is searched: attributes, nested estimators, trees, lists,
vocabularies, closures. Not only the input table is searched for, but also each transformed one.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.leaks import Kind, Leak
from epsilometer.audits.classifier.model_bytes import (
    count_in_bytes,
    find_in_text,
    read_objects,
    unpack,
)
from epsilometer.audits.classifier.model_state import Unread, walk_state
from epsilometer.audits.classifier.model_tables import (
    PREDICTIONS,
    OwnValues,
    Reached,
    Table,
    are_near,
    find_once,
    follow_records,
    list_means,
    list_statistics,
    read_table,
    scale_range,
    standardise,
)
from epsilometer.audits.classifier.model_words import TextIndex
from epsilometer.audits.classifier.rebuilding import UNTRACED, rebuild_records
from epsilometer.audits.classifier.sklearn_models import (
    clone_with_seed,
    count_rows,
    seed_globals,
    take_rows,
)
from epsilometer.types import BoolArray, FloatArray, IntArray

_LARGEST = 1 << 27  # largest number of cells of an array to search
_VALUES = 3  # values from which a list may be that of a column
_TRIED = 5  # columns with a value of one record alone that are tested by refitting
_RUN = 8  # records from which matches of some columns are beyond chance
_CHANGE = 1e-6  # relative change below which a parameter did not change
_LABELS = (
    "classes_",
    "classes",
    "_y",
    "y_",
    "y",
    "y_train_",
)  # attributes that hold classes, not features
_SAME = 0.5  # share of a model's parameters that are in its file
_BLOB = 64  # bytes from which unknown content is reported as not understood


def search_model(
    model: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    codes: IntArray,
    *,
    content: bytes | None = None,
    targets: FloatArray | None = None,
    seed: int = 0,
) -> tuple[Leak, ...]:
    """Return what a fitted model reveals about single records to anyone with its file.

    Guarantee: rows and texts that are named are in the model; decoy tables of people who do not
        exist control for resemblance by chance. Parts that cannot be searched are named. Records
        that are encrypted, hashed or spread over many parameters are not found.

    Args:
        model: A fitted model.
        X: The features it was fitted to.
        codes: Position of each record's label among the classes.
        content: Content of the model's file, if there is one already: pickle, joblib, skops, ONNX.
            It is read without running anything that it names.
        targets: The targets of a regressor, instead of classes.
        seed: Seed of random directions, and of fits without a record.

    Example:
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> X, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
        >>> search_model(KNeighborsClassifier().fit(X, y), X, y)[0].finding
        'KNeighborsClassifier._fit_X holds 50 of 50 training rows.'
    """
    route = follow_records(model, X)
    tables = [Table(name, table, seed) for name, table in route.tables]
    if tables and not tables[0].sparse:
        for rescale in (standardise, scale_range):
            tables.append(Table("training rows", rescale(tables[0].values), seed))
    search = _Search(X=X, codes=codes, tables=tables, n=count_rows(X), targets=targets)
    search.find_classes(model)
    for where, value in walk_state(model):
        search.look_at(where, value)
    if content is not None:
        search.look_into_file(content, model)
    search.look_for_parts_of_records(model, seed)
    search.compute_records(route.reached, seed)
    for name in route.linear:
        said = f"Records may follow from coefficients: {UNTRACED.format(name)}."
        search.add("unread", search.n, said)
    if route.lost:
        search.add(
            "statistics",
            0,
            f"The inputs of {', '.join(route.lost)} inside the model could not be traced: only "
            "rows before preprocessing were searched for there.",
        )
    return search.leaks


@dataclass(eq=False, kw_only=True)
class _Search:
    """A search of a model, which collects its findings.

    Attributes:
        X: Features as they were given.
        codes: Positions of labels.
        tables: Tables to search for.
        n: Number of records.
        targets: Targets of a regressor; None for a classifier.
        found: Kind and sentence, in which ``{}`` is the number of records.
        per_record: Names of arrays with as many entries as there are records.
        suspected: Names of lists that may be a column's values, with a record that one of these
            belongs to, the value, and how many there are.
    """

    X: Any
    codes: IntArray
    tables: Sequence[Table]
    n: int
    targets: FloatArray | None = None
    found: dict[tuple[Kind, str], int] = field(default_factory=dict)
    per_record: list[str] = field(default_factory=list)
    suspected: dict[str, tuple[int, float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.words = TextIndex(self.X)
        dense = [table for table in self.tables if not table.sparse]
        self._once = [find_once(table.values) for table in dense]
        self._own = [OwnValues(table.values) for table in dense]
        self._means = [list_means(table.values, self.codes) for table in self.tables]
        self._pairs = [list_means(table.values, self.codes, pairs=True) for table in self.tables]
        self._rows: dict[tuple[Kind, str], BoolArray] = {}
        self._classes: NDArray[Any] = np.arange(int(self.codes.max()) + 1)

    def find_classes(self, model: Any) -> None:
        """Collect the names of classes, which a model may hold."""
        classes = getattr(model, "classes_", None)
        if isinstance(classes, np.ndarray) and classes.size == self._classes.size:
            self._classes = classes

    def add(self, kind: Kind, records: int, finding: str, *, sums: bool = False) -> None:
        """Store a finding; of equal ones keep the largest, or their sum."""
        before = self.found.get((kind, finding), 0)
        self.found[kind, finding] = before + records if sums else max(before, records)

    def _add_rows(self, kind: Kind, rows: BoolArray, finding: str) -> None:
        """Store which records were found in one place, over all arrays there."""
        before = self._rows.setdefault((kind, finding), np.zeros(self.n, bool))
        before[: rows.size] |= rows
        self.add(kind, int(before.sum()), finding)

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """The findings, in the order of ``Kind`` and the largest first."""
        leaks = [
            Leak(
                kind=kind,
                records=min(records, self.n),
                finding=finding.format(f"{records:,}"),
            )
            for (kind, finding), records in self.found.items()
        ]
        return tuple(
            sorted(leaks, key=lambda leak: (get_args(Kind).index(leak.kind), -leak.records))
        )

    def look_at(self, where: str, value: Any) -> None:
        """Compare one part of the model with the records."""
        if isinstance(value, Unread):
            self.add("unread", self.n, f"{where} {value.why}.")
        elif isinstance(value, bytes):
            self._look_at_bytes(where, value)
        elif hasattr(value, "tocsr"):
            self._look_at_sparse(where, value)
        elif value.size > _LARGEST:
            self.add("unread", self.n, f"{where} is too large to be searched.")
        elif value.dtype.names:
            self._look_at_fields(where, value)
        elif self._holds_labels(where, value):
            pass
        elif value.dtype.kind in "OUS":
            self._look_at_words(where, value)
        elif value.dtype.kind in "fiub" and value.size:
            if value.dtype == np.uint8 and value.ndim == 1:
                self.look_into(value.tobytes(), where)
            if self.n in value.shape and self.n > _VALUES and value.dtype.kind == "f":
                self.per_record.append(where)
            self._look_at_numbers(where, value.astype(np.float64))

    def _look_at_numbers(self, where: str, numbers: FloatArray) -> None:
        self._look_at_counts(where, numbers)
        matrix = numbers.reshape(-1, numbers.shape[-1]) if numbers.ndim else numbers.reshape(1, 1)
        turned = [matrix, *([matrix.T] if matrix.shape[0] > 1 else [])]
        if not any(self._look_for_rows(where, each) for each in turned):
            self._look_for_values(where, matrix)

    def _look_at_sparse(self, where: str, value: Any) -> None:
        for each in (value.tocsr(), value.T.tocsr()):
            if self._look_for_rows(where, each):
                return
        if value.size <= _LARGEST >> 4:
            self._look_for_values(where, np.asarray(value.tocsr().data, np.float64)[None])
        if np.prod(value.shape) <= _LARGEST >> 4:
            self._look_at_numbers(where, np.asarray(value.toarray(), np.float64))

    def _holds_labels(self, where: str, value: NDArray[Any]) -> bool:
        """Tell whether an array holds classes, by its name and its contents."""
        if where.rpartition(".")[2] not in _LABELS or value.dtype.kind not in "fiubOUS":
            return False
        try:
            held = np.unique(value)
        except TypeError:
            return False
        if value.dtype.kind in "fiub" and np.isin(held, np.arange(-1, self._classes.size)).all():
            return True
        same = (held.dtype.kind in "OUS") == (self._classes.dtype.kind in "OUS")
        return same and bool(np.isin(held, self._classes).all())

    def _look_for_rows(self, where: str, matrix: Any) -> bool:
        for table, means, pairs in zip(self.tables, self._means, self._pairs, strict=True):
            if table.name == PREDICTIONS:
                continue  # certain predictions are alike; single values are searched for elsewhere
            width = table.values.shape[1]
            rows = np.zeros(self.n, bool)
            sparse = hasattr(matrix, "tocsr")
            if matrix.shape[1] == width:
                if width > 1:
                    rows = table.find_rows(matrix)
                for records, said in () if rows.any() else list_statistics(table, matrix, means):
                    self.add("statistics", records, f"{where} {said}")
                if not rows.any() and len(pairs) and are_near(table, matrix, pairs):
                    text = f"{where} holds means of {{}} records, two in each class: either "
                    self.add("one person", 2 * len(pairs), f"{text}computes the other.")
            elif not sparse and min(matrix.shape) > 1:
                columns = table.select_columns(matrix)
                if columns is not None:
                    part = Table(table.name, table.values[:, columns[columns >= 0]], 0)
                    rows = part.find_rows(matrix[:, columns >= 0])
                    different = len(np.unique(part.values[rows], axis=0))
                    if 2 * rows.sum() < len(matrix) or different < _RUN:
                        rows[:] = False  # a few matches in a few columns may be chance
            if not rows.any() and not sparse and table.match_scaled(matrix):
                rows[:] = True
            if rows.any():
                self._add_rows("rows", rows, f"{where} holds {{}} of {self.n:,} {table.name}.")
                return True
        return False

    def _look_for_values(self, where: str, matrix: FloatArray) -> None:
        """Find lists of a column's values, some of which belong to one record alone."""
        text = f"{where} lists the values of a column; {{}} of them belong to one record alone."
        for own in self._own:
            records = own.find_records(matrix)
            if records.size:
                return self._add_rows("one person", np.isin(np.arange(self.n), records), text)
            between = own.find_between(matrix)
            if between.size:
                said = f"{where} lists midpoints between a column's values, from which {{}} follow "
                said += "that belong to one record alone."
                return self._add_rows("one person", np.isin(np.arange(self.n), between), said)
        with np.errstate(over="ignore"):
            single = matrix.astype(np.float32)
        lists = [single.ravel()] if 1 in single.shape else [*single.T]
        lists = [values for values in lists if _VALUES <= values.size <= 2 * self.n]
        for table_once in self._once:
            for once, every, records in table_once:
                for values in lists:
                    if np.isin(once, values).all() and np.isin(values, every).all():
                        # With a few whole numbers that may be chance: a refit will decide.
                        known = self.suspected.get(where, (0, 0.0, 0))
                        case = int(records[0]), float(once[0]), max(once.size, known[2])
                        self.suspected[where] = case
        return None

    def _look_at_words(self, where: str, value: NDArray[Any]) -> None:
        cells = [each for each in value.ravel().tolist() if isinstance(each, str | bytes)]
        texts = {each if isinstance(each, str) else each.decode("latin1") for each in cells}
        once = self.words.count_own(texts)
        if once:
            self.add("one person", once, f"{where} holds {{}} texts, each of one record alone.")
        long = "\n".join(texts)
        for found in find_in_text(long):
            if isinstance(found, bytes):
                self.look_into(found, where)
            else:
                self._look_at_text_numbers(where, found)
        parts = self.words.count_parts(texts)
        if parts > once:
            self.add(
                "one person",
                parts,
                f"{where} lists {{}} words or n-grams, each of one record alone.",
            )

    def _look_at_text_numbers(self, where: str, numbers: FloatArray) -> None:
        """Compare numbers written in a text, also arranged in rows of any table's width."""
        self._look_for_values(where, numbers[None])
        for width in {table.values.shape[1] for table in self.tables}:
            for more in (0, 1):  # a table written as text may have a row number
                if numbers.size > 2 * (width + more):
                    cut = numbers[numbers.size % (width + more) :].reshape(-1, width + more)
                    self._look_for_rows(where, cut[:, more:])

    def _look_at_bytes(self, where: str, value: bytes) -> None:
        """Search bytes that a model holds; unknown formats are reported as unread."""
        self.look_into(value, where)
        if len(value) < _BLOB:
            return
        for part in read_objects(value):
            if isinstance(part, Unread):
                text = f"{where} holds bytes that cannot be searched: only rows and texts "
                self.add("unread", self.n, f"{text}were looked for in them.")
            else:
                for _, inner in walk_state(part):
                    if not isinstance(inner, bytes):
                        self.look_at(where, inner)

    def _look_at_fields(self, where: str, value: NDArray[Any]) -> None:
        """Find leaves of one record among the nodes of a tree, and rows among any other fields."""
        for size, leaf in (("n_node_samples", "left_child"), ("count", "is_leaf")):
            if {size, leaf} <= set(value.dtype.names or ()):
                ends = value[leaf] < 0 if leaf == "left_child" else value[leaf].astype(bool)
                alone = int(np.sum(ends & (value[size] == 1)))
                if alone:
                    text = f"{where} has {{}} leaves of one training record each."
                    self.add("one person", alone, text, sums=True)
                return
        fields = [value[name] for name in value.dtype.names or () if value[name].ndim == 1]
        numbers = [part for part in fields if part.dtype.kind in "fiub"]
        if numbers:
            self.look_at(where, np.column_stack(numbers))

    def _look_at_counts(self, where: str, numbers: FloatArray) -> None:
        """Find counts of records: whole numbers that sum to the number of records.

        Arrays with as many cells as records or more need a row per class: others may be one number
        per record, such as weights.
        """
        sizes = np.bincount(self.codes)
        by_class = numbers.ndim == 2 and np.array_equal(numbers.sum(axis=1), sizes)
        if numbers.size < 2 or (numbers.size >= self.n and not by_class):
            return
        if numbers.max() < 2 and not by_class:
            return
        whole = (numbers >= 0).all() and (numbers == np.round(numbers)).all()
        if not whole or numbers.sum() != self.n:
            return
        alone = int(np.sum(numbers == 1))
        if alone:
            self.add("one person", alone, f"{where} counts records, and {{}} cells hold one.")
        else:
            self.add("statistics", 0, f"{where} counts records; no cell holds one alone.")

    def look_into_file(self, content: bytes, model: Any) -> None:
        """Search a file: its contents, and its raw bytes."""
        held: list[FloatArray] = [np.zeros(0)]
        for part in read_objects(content):
            if isinstance(part, Unread):
                self.add("unread", self.n, f"The model file {part.why}.")
                continue
            for where, value in walk_state(part):
                held += _list_fractions(value)
                self.look_at(f"{where} of the model file", value)
        if not any(kind == "rows" and "model file" in text for kind, text in self.found):
            self.look_into(content)
        own = [each for _, value in walk_state(model) for each in _list_fractions(value)]
        if own and np.isin(np.unique(np.concatenate(own)), np.concatenate(held)).mean() < _SAME:
            self.add(
                "unread",
                self.n,
                "The parameters in the model file differ from those of the model that was "
                "fitted here: whether records follow from them was not tested.",
            )

    def look_into(self, content: bytes, where: str = "The model file") -> None:
        """Search bytes, and all their unpacked contents."""
        for part in unpack(content):
            for table in self.tables:
                found = 0 if table.sparse else count_in_bytes(part, table.values)
                if found:
                    self.add("rows", found, f"{where} holds {{}} of {self.n:,} {table.name}.")
                    break
            once = self.words.count_in_bytes(part)
            if once:
                text = f"{where} holds {{}} texts, each of one record alone."
                self.add("one person", once, text)

    def look_for_parts_of_records(self, model: Any, seed: int) -> None:
        """Refit without single records, and find the parts that disappear with them."""
        if not hasattr(model, "fit") or not (self.per_record or self.suspected):
            return
        before = _group_arrays(model)
        for where, (record, value, count) in [*self.suspected.items()][:_TRIED]:
            after = _group_arrays(self._fit_without(model, record, seed))
            if any(
                np.isin(value, old) and not np.isin(value, new)
                for old, new in zip(before[where], after.get(where, ()), strict=False)
            ):
                text = f"{where} lists the values of a column; {{}} of them belong to one record "
                self.add("one person", count, f"{text}alone.")
        held = {text.split(" ")[0] for kind, text in self.found if kind == "rows"}
        kept = [where for where in dict.fromkeys(self.per_record) if where not in held]
        if not kept:
            return
        after = _group_arrays(self._fit_without(model, 0, seed))
        for where in kept:
            shapes = [value.shape for value in after.get(where, ())]
            if any(self.n in value.shape for value in before[where]) and any(
                self.n - 1 in shape and self.n not in shape for shape in shapes
            ):
                text = f"{where} has an entry for each of {{}} training records."
                self.add("one person", self.n, text)

    def _fit_without(self, model: Any, record: int, seed: int) -> Any:
        """Refit without a record; None if that fails."""
        others = np.delete(np.arange(self.n), record)
        if np.unique(self.codes[others]).size < self._classes.size:
            return None
        labels = self._classes[self.codes] if self.targets is None else self.targets
        return _fit_again(model, take_rows(self.X, others), labels[others], seed)

    def compute_records(self, reached: Sequence[Reached], seed: int) -> None:
        """Rebuild records from parameters, and find parameters that one record alone decides."""
        untried = []
        for estimator, features in reached:
            name = type(estimator).__name__
            if not hasattr(estimator, "predict"):
                continue
            self._try_columns(estimator, features, seed)
            known = self.codes if self.targets is None else self.targets
            rebuilt = rebuild_records(estimator, features, known, seed=seed)
            if rebuilt is None:
                untried.append(name)
            elif rebuilt.why:
                self.add("unread", self.n, f"Records may follow from coefficients: {rebuilt.why}.")
            elif rebuilt.hits:
                self.add(
                    "rebuilt",
                    round(rebuilt.hits / rebuilt.tried * self.n),
                    f"From the coefficients of {name}, anyone who knows all other records "
                    f"computes the missing one: {rebuilt.hits:,} of {rebuilt.tried:,} tried.",
                )
        if untried:
            self.add(
                "statistics",
                0,
                "Whether records can be computed from the parameters of "
                f"{', '.join(sorted(set(untried)))} was not tested.",
            )

    def _try_columns(self, last: Any, reached: Any, seed: int) -> None:
        """Find parameters of columns in which one record alone differs from all others."""
        table = read_table(reached)
        if table is None or count_rows(table) != self.n:
            return
        lonely = np.flatnonzero(_find_lonely(table))
        names = [*_list_parameters(last, table.shape[1])]
        if not lonely.size or not names:
            return
        classes = getattr(last, "classes_", self._classes)
        labels = (classes if len(classes) == self._classes.size else self._classes)[self.codes]
        if self.targets is not None:
            labels = self.targets
        again = _fit_again(last, reached, labels, seed)
        if again is None or not any(
            _are_alike(getattr(last, name), getattr(again, name, None)) for name in names
        ):
            return  # it was trained on other records, or training is random
        hits, tried = 0, lonely[:_TRIED]
        for column in tried.tolist():
            values = _take_column(table, column)
            (record,) = np.flatnonzero(values != _find_usual(values))
            others = np.delete(np.arange(self.n), record)
            gone = np.unique(self.codes[others]).size < self._classes.size
            if not gone:
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


def _list_fractions(value: Any) -> list[FloatArray]:
    """Return an array's parameters without signs, in single precision, as files store them."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return []
    with np.errstate(all="ignore"):
        return [np.abs(value.astype(np.float32)).ravel()]


def _group_arrays(model: Any) -> dict[str, list[NDArray[Any]]]:
    """Return the numeric arrays of a model by the names of the objects that hold them."""
    found: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for where, value in walk_state(model) if model is not None else ():
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            found[where].append(value)
    return found


def _find_lonely(table: Any) -> BoolArray:
    """Return which columns have a single value except for one record."""
    if hasattr(table, "tocsr"):
        return np.asarray(np.diff(table.tocsc().indptr) == 1)
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
    for name, value in getattr(model, "__dict__", {}).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and width in value.shape:
            yield name


def _slice_of(model: Any, name: str, width: int, column: int) -> FloatArray:
    value = getattr(model, name, np.zeros(0))
    return np.take(value, column, axis=value.shape.index(width)) if width in value.shape else value


def _belongs_to_record(own: FloatArray, without: FloatArray, noise: FloatArray) -> bool:
    """Tell whether a parameter changes with the record, and without it is the same for all seeds.

    A parameter that another seed changes too depends on noise, initial weights or batch order.
    """
    same = own.shape == without.shape and _are_alike(without, noise)
    return same and not _are_alike(own, without)


def _are_alike(one: Any, other: Any) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return bool(np.all(np.abs(one - other) <= _CHANGE * (np.abs(one) + np.abs(other))))


def _fit_again(model: Any, features: Any, labels: Any, seed: int) -> Any:
    """Return a copy that was fitted to these data; None if that fails."""
    copy = clone_with_seed(model, seed, overwrite=False)
    with seed_globals(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return copy.fit(features, labels)
        except Exception:  # without a record there may be too few
            return None
