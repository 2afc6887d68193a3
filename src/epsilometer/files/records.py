"""Read records for training from a file of any supported format."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.files.digits import read_digits
from epsilometer.files.readers import Column, Content, hash_file, open_columns, refuse_huge
from epsilometer.files.tables import FEWER
from epsilometer.types import FloatArray, IntArray

_DIGITS = Path("digits")
FILL = "Fill them in, or leave those records out."
WORDS = 1000  # distinct texts of a column that become separate columns
_FEATURES = ("x", "features", "x_train")
_LABELS = ("label", "labels", "y", "target", "class")


def read_records(
    path: str | os.PathLike[str], *, label: str | None = None
) -> tuple[FloatArray, IntArray]:
    """Read records for training: features of shape ``(n, …)``, and classes 0 to k − 1.

    Formats are ``.csv``, ``.csv.gz``, ``.parquet`` (extra ``parquet``) and ``.npz``. An npz has
    arrays ``x`` (or ``features``, ``x_train``) and ``y`` (or ``labels``, ``y_train``). A table has
    a column of labels; every other column is a feature. Text becomes one column of 0 and 1 per
    word, in sorted order.

    Args:
        path: The file.
        label: The column or array of labels. By default the one named label, labels, y, target or
            class; in a table without one, the last column.

    Returns:
        Features, float32 if an npz has 32 bits or fewer, else float64. Labels as int64: classes of
        any type are numbered in sorted order.

    Raises:
        UnreadableFile: The file is missing, damaged, or too large.
        InvalidArgument: Columns are missing, not numeric, or of unequal lengths.

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
    with open_columns(path, advice=FEWER) as content:
        if content.is_arrays:
            return _read_arrays(content, label)
        return _encode_table(path, content.read(), label)


def read_named_records(
    file: Path, *, label: str | None = None, divide_by: float | None = None
) -> tuple[FloatArray, IntArray]:
    """Read all records of a file, or the digits that ship with the package.

    Args:
        file: A file for :func:`read_records`, or "digits".
        label: The column or array of labels.
        divide_by: Number that divides every feature.
    """
    if divide_by is not None:
        _validate.positive(divide_by=divide_by)
    if file != _DIGITS:
        features, labels = read_records(file, label=label)
        if divide_by is not None:
            features = features / features.dtype.type(divide_by)
        return features, labels
    if label is not None or divide_by is not None:
        raise InvalidArgument(
            f"Expected no label and no divide_by with the digits, got {label!r} and "
            f"{divide_by!r}: they are known, and scaled to [0, 1]."
        )
    features, labels = read_digits()
    return features.reshape(-1, 8, 8) / 16.0, labels


def hash_records(file: Path) -> tuple[tuple[str, str], ...]:
    """Return the name and the SHA-256 of a file of records; none for the digits."""
    return () if file == _DIGITS else (hash_file(file),)


def _encode_table(
    path: Path, columns: list[Column], label: str | None
) -> tuple[FloatArray, IntArray]:
    at = _find_label([column.name for column in columns], label)
    features = [column for i, column in enumerate(columns) if i != at]
    if not features:
        raise InvalidArgument(
            f"Expected features besides the labels {_validate.short(columns[at].name)}, found none."
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
    for column in columns:
        _refuse_blanks(column)
    width = sum(column.width for column in features)
    refuse_huge(path, 8 * rows * width)
    table, start = np.zeros((rows, width)), 0
    for column in features:
        if column.words is None:
            _refuse_non_finite(f"column {_validate.short(column.name)}", column.values)
            table[:, start] = column.values
        else:
            table[np.arange(rows), start + column.values] = 1.0
        start += column.width
    return table, _number_classes(f"column {_validate.short(columns[at].name)}", columns[at].values)


def _find_label(names: list[str], label: str | None) -> int:
    """Return which column holds the labels."""
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


def _number_classes(name: str, values: NDArray[Any]) -> IntArray:
    """Return labels numbered from 0 in sorted order."""
    if values.dtype.kind == "f":
        _refuse_non_finite(name, values)
    return np.unique(values, return_inverse=True)[1].reshape(values.shape).astype(np.int64)


def _refuse_non_finite(name: str, values: NDArray[Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if wrong.size:
        raise InvalidArgument(
            f"Expected finite numbers in {name}, found missing, nan or infinite ones in "
            f"{wrong.size} of {len(values)} records, first in row {wrong[0] + 1} of the data. "
            f"{FILL}"
        )


def _refuse_blanks(column: Column) -> None:
    if column.blank is not None:
        raise InvalidArgument(
            f"Expected no blanks in column {_validate.short(column.name)}, found "
            f"{int(column.blank.sum())}, first in row {int(np.argmax(column.blank)) + 1} of the "
            f"data. {FILL}"
        )


def _read_arrays(content: Content, label: str | None) -> tuple[FloatArray, IntArray]:
    names = {name.lower(): name for name in content.names}
    x = next((names[name] for name in _FEATURES if name in names), None)
    y = next((names[name] for name in (*_LABELS, "y_train") if name in names), None)
    y = y if label is None else label if label in content.names else None
    if x is None or y is None:
        wanted = "'y' (or 'labels')" if label is None else repr(label)
        raise InvalidArgument(
            f"Expected arrays 'x' (or 'features') and {wanted}, "
            f"found {_validate.listed(content.names)}."
        )
    pair = content.read([content.names.index(name) for name in (x, y)])
    features, labels = (column.values for column in pair)
    if features.dtype.kind not in "biuf":
        raise InvalidArgument(f"Expected numbers in {x!r}, got {features.dtype}.")
    if features.ndim < 2 or features.size == 0 or labels.shape != features.shape[:1]:
        raise InvalidArgument(
            f"Expected {x!r} of shape (n, …) with n ≥ 1 and {y!r} of shape (n,), "
            f"got {features.shape} and {labels.shape}."
        )
    if features.dtype not in (np.float32, np.float64):
        features = features.astype(np.float32 if features.dtype.itemsize <= 2 else np.float64)
    _refuse_non_finite(repr(x), features)
    if labels.dtype.kind not in "biufSU":
        raise InvalidArgument(f"Expected numbers or text in {y!r}, got {labels.dtype}.")
    return features, _number_classes(repr(y), labels)
