"""Records for training from the files people have: CSV, Parquet, npz."""

import csv
import gzip
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from epsilometer import readers
from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.readers import is_number, not_huge, number, told
from epsilometer.types import FloatArray, IntArray

WORDS = 1000  # different texts of a column that become columns of their own
_FEATURES = ("x", "features", "x_train")
_LABELS = ("label", "labels", "y", "target", "class")
_MISSING = {"na", "n/a", "nan", "null", "none", "?", "-", "."}
_FEWER = "Give fewer records, or an .npz of float32, which is half as large."
_FILL = "Fill them in, or leave those records out."


def read_records(
    path: str | os.PathLike[str], *, label: str | None = None
) -> tuple[FloatArray, IntArray]:
    """Reads records for training: features of shape ``(n, …)``, and classes 0 to k − 1.

    The kind of file is told by its ending: ``.csv``, ``.csv.gz``, ``.parquet`` (needs the extra
    ``parquet``) or ``.npz``. An npz has arrays ``x`` (or ``features``, ``x_train``) and ``y`` (or
    ``labels``, ``y_train``); a table has a column of labels, and every other column is a feature:
    numbers as they are, text as one column a word, in sorted order, which is 1 where the word
    stands.

    Args:
        path: The file.
        label: The column or array of labels. By default the one that is named label, labels, y,
            target or class; of a table without such, the last.

    Returns:
        Features, float32 where an npz has them so or in 16 bits or less, else float64; and labels
        as int64: the classes, of whatever type, are numbered in sorted order.

    Raises:
        UnreadableFile: The file is not there, damaged, or too large.
        InvalidArgument: Something is missing in it, is no number, or does not fit together.
    """
    path = Path(path)
    kinds = {".csv": _csv_table, ".csv.gz": _csv_table, ".parquet": _parquet_table}
    with told(path, _FEWER):
        for ending, read in kinds.items():
            if path.name.lower().endswith(ending):
                return _encoded(path, read(path), label)
        if path.suffix.lower() == ".npz":
            return _npz_records(path, label)
    raise UnreadableFile(
        f"Expected a file ending in .csv, .csv.gz, .parquet or .npz, got {path.name!r}."
    )


@dataclass(frozen=True, eq=False)
class _Column:
    """Numbers; or, where there are words, which of them stands in each row."""

    name: str
    values: NDArray[Any]
    words: tuple[str, ...] | None = None

    @property
    def width(self) -> int:
        """How many features it makes."""
        return 1 if self.words is None else len(self.words)


def _encoded(path: Path, columns: list[_Column], label: str | None) -> tuple[FloatArray, IntArray]:
    at = _label_at([column.name for column in columns], label)
    features = [column for i, column in enumerate(columns) if i != at]
    if not features:
        raise InvalidArgument(f"Expected features beside the labels {columns[at].name!r}.")
    rows = columns[at].values.size
    if rows == 0:
        raise InvalidArgument("Expected records, got a file without any.")
    for column in features:
        if column.width > WORDS:
            raise InvalidArgument(
                f"Expected at most {WORDS} different texts in column {column.name!r}, found "
                f"{column.width}. Leave out names and numbers of records, or turn it into numbers."
            )
    width = sum(column.width for column in features)
    not_huge(path, 8 * rows * width, _FEWER)
    table, start = np.zeros((rows, width)), 0
    for column in features:
        if column.words is None:
            _finite(f"column {column.name!r}", column.values)
            table[:, start] = column.values
        else:
            table[np.arange(rows), start + column.values] = 1.0
        start += column.width
    return table, _classes(f"column {columns[at].name!r}", columns[at].values)


def _label_at(names: list[str], label: str | None) -> int:
    if label is not None:
        if label not in names:
            raise InvalidArgument(
                f"Expected a column {label!r} of labels, found {', '.join(map(repr, names))}."
            )
        return names.index(label)
    usual = [i for i, name in enumerate(names) if name.lower() in _LABELS]
    if len(usual) > 1:
        raise InvalidArgument(
            "Expected one column of labels, found "
            f"{', '.join(repr(names[i]) for i in usual)}. Say which: label={names[usual[0]]!r}."
        )
    return usual[0] if usual else len(names) - 1


def _classes(name: str, values: NDArray[Any]) -> IntArray:
    """Labels numbered from 0 in sorted order."""
    if values.dtype.kind == "f":
        _finite(name, values)
    return np.unique(values, return_inverse=True)[1].reshape(values.shape).astype(np.int64)


def _finite(name: str, values: NDArray[Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if wrong.size:
        raise InvalidArgument(
            f"Expected finite numbers in {name}, found nan or infinite ones in {wrong.size} of "
            f"{len(values)} records, first in row {wrong[0] + 1} of the data. {_FILL}"
        )


def _npz_records(path: Path, label: str | None) -> tuple[FloatArray, IntArray]:
    with zipfile.ZipFile(path) as archive:
        not_huge(path, sum(member.file_size for member in archive.infolist()), _FEWER)
    with np.load(path, allow_pickle=False) as arrays:
        names = {name.lower(): name for name in arrays.files}
        x = next((names[name] for name in _FEATURES if name in names), None)
        y = next((names[name] for name in (*_LABELS, "y_train") if name in names), None)
        y = y if label is None else label if label in arrays.files else None
        if x is None or y is None:
            wanted = "'y' (or 'labels')" if label is None else repr(label)
            raise InvalidArgument(
                f"Expected arrays 'x' (or 'features') and {wanted}, "
                f"found {', '.join(map(repr, arrays.files)) or 'none'}."
            )
        features, labels = np.asarray(arrays[x]), np.asarray(arrays[y])
    if features.dtype.kind not in "biuf":
        raise InvalidArgument(f"Expected numbers in {x!r}, got {features.dtype}.")
    if features.ndim < 2 or features.size == 0 or labels.shape != features.shape[:1]:
        raise InvalidArgument(
            f"Expected {x!r} of shape (n, …) with n ≥ 1 and {y!r} of shape (n,), "
            f"got {features.shape} and {labels.shape}."
        )
    if features.dtype not in (np.float32, np.float64):
        features = features.astype(np.float32 if features.dtype.itemsize <= 2 else np.float64)
    _finite(repr(x), features)
    if labels.dtype.kind not in "biufSU":
        raise InvalidArgument(f"Expected numbers or text in {y!r}, got {labels.dtype}.")
    return features, _classes(repr(y), labels)


def _csv_table(path: Path) -> list[_Column]:
    """In two passes, so that no more than numbers is kept: what columns hold, then their cells."""
    not_huge(path, _size(path), _FEWER)
    names, texts, rows = _csv_kinds(path)
    not_huge(path, 8 * rows * len(names), _FEWER)
    numbers = np.empty((rows, len(names)))
    words: list[dict[str, int]] = [{} for _ in names]  # each word → its number, as they came
    for row, (_, cells) in enumerate(_csv_rows(path)):
        numbers[row] = [
            seen.setdefault(cell.strip(), len(seen)) if text else number(cell)
            for cell, text, seen in zip(cells, texts, words, strict=True)
        ]
    return [
        _sorted_words(name, column.astype(np.int64), list(seen)) if text else _Column(name, column)
        for name, column, text, seen in zip(names, numbers.T, texts, words, strict=True)
    ]


def _csv_kinds(path: Path) -> tuple[list[str], list[bool], int]:
    """Names of the columns, which of them hold text, and how many rows there are."""
    names = _csv_header(path)
    words: list[set[str]] = [set() for _ in names]  # what is no number; a few tell enough
    numbers, rows = [False] * len(names), 0
    for rows, (line, cells) in enumerate(_csv_rows(path), start=1):
        if len(cells) != len(names):
            raise InvalidArgument(
                f"Expected {len(names)} cells in every line, as in the first, "
                f"line {line} has {len(cells)}."
            )
        for i, cell in enumerate(cells):
            if is_number(cell):
                numbers[i] = True
            elif not cell.strip():
                raise InvalidArgument(
                    f"Expected no blanks, row {rows} of the data has one in column {names[i]!r}. "
                    f"{_FILL}"
                )
            elif len(words[i]) <= len(_MISSING):
                words[i].add(cell.strip().lower())
    for name, some, others in zip(names, numbers, words, strict=True):
        if some and others and others <= _MISSING:
            raise InvalidArgument(
                f"Expected numbers in column {name!r}, found {min(others)!r} among them. {_FILL}"
            )
    return names, [bool(others) for others in words], rows


def _csv_header(path: Path) -> list[str]:
    with _opened(path) as file:
        names = [name.strip() for name in next((row for row in csv.reader(file) if row), [])]
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    data = [name for name in names if is_number(name) and not name.isdigit()]
    if not names or twice or data:
        raise InvalidArgument(
            "Expected a first line of names of columns, all different, "
            f"found {', '.join(map(repr, twice or data)) or 'nothing'}"
            f"{' more than once' if twice else ''}. Does the file begin with a record?"
        )
    return names


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of data, each with the number of its line."""
    with _opened(path) as file:
        lines = csv.reader(file)
        first = True
        for row in lines:
            if row and not first:
                yield lines.line_num, row
            first = first and not row


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", newline="", encoding="utf-8-sig") as file:
        yield cast("TextIO", file)


def _size(path: Path) -> int:
    """Bytes of text; of a compressed file no more are unpacked than are too many."""
    if path.suffix.lower() != ".gz":
        return path.stat().st_size
    size = 0
    with gzip.open(path, "rb") as file:
        while size <= readers.LARGEST and (part := file.read(2**20)):
            size += len(part)
    return size


def _sorted_words(name: str, codes: NDArray[np.int64], words: list[str]) -> _Column:
    """A column of words that are numbered in sorted order."""
    order = sorted(range(len(words)), key=words.__getitem__)
    place = np.empty(len(words), np.int64)
    place[order] = np.arange(len(words))
    return _Column(name, place[codes], tuple(words[i] for i in order))


def _parquet_table(path: Path) -> list[_Column]:
    with needs("pyarrow", extra="parquet"):
        import pyarrow.parquet
    file = pyarrow.parquet.ParquetFile(path)
    not_huge(path, 8 * file.metadata.num_rows * file.metadata.num_columns, _FEWER)
    table = file.read()
    if not table.column_names:
        raise InvalidArgument("Expected columns, found none.")
    return [
        _parquet_column(name, column)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]


def _parquet_column(name: str, column: Any) -> _Column:
    from pyarrow import types

    if column.null_count:
        raise InvalidArgument(
            f"Expected no nulls in column {name!r}, found {column.null_count}. {_FILL}"
        )
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_string(column.type) or types.is_large_string(column.type):
        found = column.combine_chunks().dictionary_encode()
        codes = found.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return _sorted_words(name, codes, found.dictionary.to_pylist())
    known = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    if not any(is_known(column.type) for is_known in known):
        raise InvalidArgument(
            f"Expected numbers or text in column {name!r}, got {column.type}. Leave it out, or "
            "turn it into numbers."
        )
    return _Column(name, column.to_numpy(zero_copy_only=False).astype(np.float64))
