"""Infer a hidden attribute of records whose other columns and label are known.

The adversary puts each possible value into the record, queries the model, and multiplies the
likelihood of the true label by the prior of the value. A right guess alone is not a leak:
attributes follow from other columns. What counts is how much more often guesses are right about
members than about others, for whom the model reveals the same correlations.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.threats.asking import Asked, read_column, replace_column
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

_VALUES = 12  # distinct values up to which a column is guessed exactly
_BINS = 4  # bins into which other columns are cut
_FOLDS = 5
_PSEUDO = 1.0  # added to each count of the imputation


@dataclass(frozen=True, eq=False)
class Hidden:
    """A column that the adversary does not know.

    Attributes:
        column: Position of the column.
        values: A representative of each possible value.
        codes: Position of each record's value among these.
        changed: Features of all records with each value in turn.
    """

    column: int
    values: NDArray[Any]
    codes: IntArray
    changed: tuple[Any, ...]


def hide_column(X: Any, column: int, *, categorical: bool = False) -> Hidden:  # noqa: N803
    """Return a column's possible values, and records with each of them in its place.

    Numeric columns with more than 12 distinct values are cut at their quartiles, and each part is
    represented by its median.

    Example:
        >>> hidden = hide_column(np.array([[0.0, 5.0], [1.0, 6.0], [0.0, 7.0]]), 0)
        >>> hidden.values, hidden.codes, hidden.changed[1][:, 0]
        (array([0., 1.]), array([0, 1, 0]), array([1., 1., 1.]))
    """
    given = read_column(X, column)
    values, codes = _list_values(given)
    if values.size > _VALUES and not categorical and given.dtype.kind in "iuf":
        edges = np.unique(np.nanquantile(given, np.linspace(0, 1, _BINS + 1)[1:-1]))
        codes = np.searchsorted(edges, given, side="right")
        present = np.unique(codes)
        codes = np.searchsorted(present, codes)
        values = np.array([np.nanmedian(given[codes == code]) for code in range(present.size)])
    if values.size < 2:
        raise InvalidArgument(f"Expected column {column} to differ, all records have the same.")
    changed = tuple(replace_column(X, column, value) for value in values)
    return Hidden(column, values, np.asarray(codes, np.int64), changed)


def _list_values(column: NDArray[Any]) -> tuple[NDArray[Any], IntArray]:
    """Return the distinct values of a column, and each record's; missing texts are a value too."""
    texts = column.astype(str) if column.dtype.kind == "O" else column  # None has no order
    _, first, codes = np.unique(texts, return_index=True, return_inverse=True)
    return column[first], np.asarray(codes, np.int64)


def impute(
    table: NDArray[Any], labels: IntArray, hidden: Hidden, rng: np.random.Generator
) -> FloatArray:
    """Return ln of each value's probability given other columns and the label, by naive Bayes.

    Each record is imputed from the other folds, independently of membership.

    Args:
        table: Columns as codes, shape ``(records, columns)``.
        labels: Positions of labels among the classes.
        hidden: The hidden column, which is not used as a predictor.
        rng: Splits the records into folds.
    """
    n, count = labels.size, hidden.values.size
    known = np.column_stack([np.delete(table, hidden.column, axis=1), labels])
    fold = rng.permutation(n) % _FOLDS
    prior = np.empty((n, count))
    for each in range(_FOLDS):
        rest, at = fold != each, fold == each
        logs = np.log(np.bincount(hidden.codes[rest], minlength=count) + _PSEUDO)[None].repeat(
            int(at.sum()), axis=0
        )
        for column in known.T:
            size = int(column.max()) + 1
            counts = np.full((count, size), _PSEUDO)
            np.add.at(counts, (hidden.codes[rest], column[rest]), 1.0)
            logs += np.log(counts / counts.sum(axis=1, keepdims=True))[:, column[at]].T
        prior[at] = logs
    return prior - np.logaddexp.reduce(prior, axis=1, keepdims=True)


def code_columns(X: Any) -> IntArray:  # noqa: N803
    """Return each column as codes of its values if they are few, else of its quartiles."""
    columns = []
    for place in range(X.shape[1]):
        given = read_column(X, place)
        values, codes = _list_values(given)
        if values.size > _VALUES and given.dtype.kind in "iuf":
            edges = np.unique(np.nanquantile(given, np.linspace(0, 1, _BINS + 1)[1:-1]))
            codes = np.searchsorted(edges, given, side="right")
        columns.append(np.asarray(codes, np.int64))
    return np.stack(columns, axis=1)


def guess_attribute(asked: Asked, question: str, hidden: Hidden, prior: FloatArray) -> FloatArray:
    """Return 1 for right guesses and 0 for others, shape ``(models, records)``.

    If models do not memorise records, guesses are right equally often about members and others.

    Args:
        asked: Models' answers with each value instead of the hidden one.
        question: Key of these answers.
        hidden: The hidden column.
        prior: ln of each value's prior probability, shape ``(records, values)``.
    """
    guesses = (asked.answers[question].astype(np.float64) + prior).argmax(axis=2)
    return np.asarray(guesses == hidden.codes, np.float64)
