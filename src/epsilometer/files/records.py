"""Records for training from the files people have: CSV, Parquet, npz."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.packed import measure_archive
from epsilometer.files.readers import not_huge, told
from epsilometer.files.tables import FEWER, FILL, Column, table_reader
from epsilometer.types import FloatArray, IntArray

WORDS = 1000  # different texts of a column that become columns of their own
_FEATURES = ("x", "features", "x_train")
_LABELS = ("label", "labels", "y", "target", "class")


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

    Example:
        >>> import tempfile, pathlib, epsilometer as em
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "people.csv"
        ...     _ = file.write_text("age,income\\n31,low\\n58,high\\n")
        ...     features, classes = em.read_records(file, label="income")
        >>> features.tolist(), classes.tolist()
        ([[31.0], [58.0]], [1, 0])
    """
    path = Path(path)
    with told(path, FEWER):
        read = table_reader(path)
        if read is not None:
            return _encoded(path, read(path), label)
        if path.suffix.lower() == ".npz":
            return _npz_records(path, label)
    raise UnreadableFile(
        f"Expected a file ending in .csv, .csv.gz, .parquet or .npz, got {path.name!r}."
    )


def _encoded(path: Path, columns: list[Column], label: str | None) -> tuple[FloatArray, IntArray]:
    at = label_at([column.name for column in columns], label)
    features = [column for i, column in enumerate(columns) if i != at]
    if not features:
        raise InvalidArgument(
            f"Expected features beside the labels {_validate.short(columns[at].name)}, found none."
        )
    rows = columns[at].values.size
    if rows == 0:
        raise InvalidArgument("Expected records, got a file without any.")
    for column in features:
        if column.width > WORDS:
            raise InvalidArgument(
                f"Expected at most {WORDS} different texts in column "
                f"{_validate.short(column.name)}, found "
                f"{column.width}. Leave out names and numbers of records, or turn it into numbers."
            )
    width = sum(column.width for column in features)
    not_huge(path, 8 * rows * width, FEWER)
    table, start = np.zeros((rows, width)), 0
    for column in features:
        if column.words is None:
            _finite(f"column {_validate.short(column.name)}", column.values)
            table[:, start] = column.values
        else:
            table[np.arange(rows), start + column.values] = 1.0
        start += column.width
    return table, _classes(f"column {_validate.short(columns[at].name)}", columns[at].values)


def label_at(names: list[str], label: str | None) -> int:
    """Which column holds the labels."""
    if label is not None:
        if label not in names:
            raise InvalidArgument(
                f"Expected a column {label!r} of labels, found {_validate.listed(names)}."
            )
        return names.index(label)
    usual = [i for i, name in enumerate(names) if name.lower() in _LABELS]
    if len(usual) > 1:
        raise InvalidArgument(
            "Expected one column of labels, found "
            f"{_validate.listed(names[i] for i in usual)}. Say which: label={names[usual[0]]!r}."
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
            f"{len(values)} records, first in row {wrong[0] + 1} of the data. {FILL}"
        )


def _npz_records(path: Path, label: str | None) -> tuple[FloatArray, IntArray]:
    not_huge(path, measure_archive(path), FEWER)
    with np.load(path, allow_pickle=False) as arrays:
        names = {name.lower(): name for name in arrays.files}
        x = next((names[name] for name in _FEATURES if name in names), None)
        y = next((names[name] for name in (*_LABELS, "y_train") if name in names), None)
        y = y if label is None else label if label in arrays.files else None
        if x is None or y is None:
            wanted = "'y' (or 'labels')" if label is None else repr(label)
            raise InvalidArgument(
                f"Expected arrays 'x' (or 'features') and {wanted}, "
                f"found {_validate.listed(arrays.files)}."
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
