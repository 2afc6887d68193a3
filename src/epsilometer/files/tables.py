"""Hold tables: named columns of numbers or words, with empty cells allowed."""

import os
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import Column, open_columns
from epsilometer.files.sql import is_url, read_sql
from epsilometer.types import IntArray

FEWER = "Give fewer records, or an .npz of float32, which is half as large."


@dataclass(frozen=True, eq=False)
class Table:
    """Hold columns of one length, each under its name.

    Attributes:
        columns: In order.
        notes: Detected details of their format.
    """

    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Count the records."""
        return int(self.columns[0].values.size)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return the column of that name, or raise ``InvalidArgument``."""
        for column in self.columns:
            if column.name == name:
                return column
        raise InvalidArgument(f"Expected a column {name!r}, found {_validate.listed(self.names)}.")

    def without(self, *names: str) -> "Table":
        """Return the table without those columns; ``InvalidArgument`` where one is not there."""
        for name in names:
            self.column(name)
        left = tuple(column for column in self.columns if column.name not in names)
        return Table(left, self.notes)

    def take(self, rows: IntArray) -> "Table":
        """Return some of the records, with only the words that they have."""
        return Table(tuple(_take_rows(column, rows) for column in self.columns), self.notes)


def _take_rows(column: Column, rows: IntArray) -> Column:
    blank = None if column.blank is None or not column.blank[rows].any() else column.blank[rows]
    if column.words is None:
        return Column(column.name, column.values[rows], blank=blank)
    return Column.of_words(column.name, column.words, column.values[rows], blank)


def cut_at_quantiles(column: Column, bins: int) -> Column:
    """Return a column of numbers as one of words, cut where equal shares lie; of words, as it is.

    Missing values have their own word.

    Example:
        >>> cut = cut_at_quantiles(Column("age", np.array([20.0, 30.0, 40.0, np.nan])), 2)
        >>> cut.words, cut.values
        (('…30', '30…', 'missing'), array([0, 1, 1, 2]))
    """
    if column.words is not None:
        return column
    values = column.values.astype(np.float64)
    missing = np.isnan(values)
    edges = np.unique(np.quantile(values[~missing], np.linspace(0, 1, bins + 1)[1:-1]))
    # As few digits as keep edges apart: bins of one name would be one group
    digits = next((d for d in (6, 9, 12) if len({f"{e:.{d}g}" for e in edges}) == len(edges)), 17)
    ends = ["", *(f"{edge:.{digits}g}" for edge in edges), ""]
    words = [f"{low}…{high}" for low, high in pairwise(ends)]
    places = np.searchsorted(edges, values, side="right")
    if missing.any():
        places = np.where(missing, len(words), places)
        words.append("missing")
    return Column(column.name, places, tuple(words))


def take_words(column: Column) -> NDArray[Any]:
    """Return the text of each row: its word, or its number with all distinguishing digits."""
    if column.words is None:
        return np.array([spell_number(value) for value in column.values.tolist()])
    found: NDArray[Any] = np.array(column.words)[column.values]
    return found


def spell_number(value: float) -> str:
    """Return a number as a text: different numbers have different texts.

    Example:
        >>> spell_number(1.0), spell_number(1000001.0), spell_number(0.1)
        ('1', '1000001', '0.1')
    """
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def read_table(
    path: str | os.PathLike[str],
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    query: str | None = None,
    most: int | None = None,
) -> Table:
    """Read a table with its columns unchanged; cells may be empty.

    The format follows from the suffix: ``.csv`` or ``.tsv``, packed by gzip (``.gz``) or not,
    ``.parquet``, ``.arrow`` or ``.feather`` (need the extra ``parquet``), ``.xlsx`` (``excel``) or
    ``.npz``. A URL names a database (``sql``). A column is numeric if all its cells are numbers or
    gaps (blank, NA, ?, -, null), which become nan. All others are of words, and a blank is the
    empty word, since missing values may be informative.

    Args:
        path: The file, or the URL of a database as SQLAlchemy takes it.
        encoding: Python's name of a text's encoding; None to detect it.
        delimiter: Separator of cells in a text; None to detect it.
        decimal: Point or comma of a text's numbers; the other may separate thousands.
        query: Query for a database; None for all of its only table.
        most: Largest number of records; larger files are refused, before reading if possible.

    Raises:
        UnreadableFile: The file is missing, damaged, or too large.
        InvalidArgument: It has no records, or lines of different lengths.
    """
    given = {"encoding": encoding, "delimiter": delimiter, "decimal": decimal}
    layout = {name: value for name, value in given.items() if value is not None}
    if is_url(path):
        if layout:
            raise InvalidArgument(f"Expected {' and '.join(layout)} of CSV only, got a database.")
        count = partial(_refuse_many, most=most)
        found = _check_table(Table(tuple(read_sql(str(path), query, check=count))))
        _refuse_many(found.rows, most)
        return found
    if query is not None:
        raise InvalidArgument("Expected a query with the URL of a database, got one with a file.")
    path = Path(path)
    with open_columns(path, advice=FEWER, **layout) as content:
        _refuse_many(content.rows, most)
        table = _check_table(Table(tuple(map(_check_column, content.read())), content.notes))
        _refuse_many(table.rows, most)
        return table


def _check_table(table: Table) -> Table:
    if len({column.values.size for column in table.columns}) > 1:
        raise InvalidArgument("Expected columns of one length, got others.")
    if not table.columns or table.rows == 0:
        raise InvalidArgument("Expected records, got a table without any.")
    return table


def _refuse_many(rows: int | None, most: int | None) -> None:
    if rows is not None and most is not None and rows > most:
        raise InvalidArgument(
            f"Expected at most {most:,} records, got about {rows:,}: their audit takes hours. "
            f"Audit a model of fewer, drawn at random, where each counts more: --rows "
            f"{most // 10}. Or say that you can wait: --rows {rows}."
        )


def _check_column(column: Column) -> Column:
    """Refuse an array that is not a column of numbers or texts."""
    kind = column.values.dtype.kind
    if column.values.ndim != 1 or kind not in "biufSU":
        raise InvalidArgument(
            f"Expected numbers or texts, one per record, in {_validate.short(column.name)}, got "
            f"{column.values.dtype} of shape {column.values.shape}."
        )
    if column.words is not None or kind == "f":
        return column
    if kind in "biu":
        return Column(column.name, column.values.astype(np.float64), blank=column.blank)
    words, codes = np.unique(column.values.astype(str), return_inverse=True)
    return Column.of_words(column.name, words.tolist(), codes)
