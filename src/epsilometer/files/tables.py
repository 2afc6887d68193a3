"""Tables as people have them: named columns of numbers or words, some cells empty."""

import csv
import gzip
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files import readers
from epsilometer.files.packed import measure_text, open_parquet
from epsilometer.files.readers import is_number, not_huge, number, told

MISSING = {"na", "n/a", "nan", "null", "none", "?", "-", "."}
FEWER = "Give fewer records, or an .npz of float32, which is half as large."
FILL = "Fill them in, or leave those records out."


@dataclass(frozen=True, eq=False)
class Column:
    """Numbers; or, where there are words, which of them stands in each row.

    Attributes:
        name: As the file has it.
        values: Numbers, nan where one is missing; or places in ``words``.
        words: In sorted order, the empty one first where a word is missing; None of numbers.
    """

    name: str
    values: NDArray[Any]
    words: tuple[str, ...] | None = None

    @property
    def width(self) -> int:
        """How many features it makes."""
        return 1 if self.words is None else len(self.words)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length, each under its name."""

    columns: tuple[Column, ...]

    @property
    def rows(self) -> int:
        """How many records there are."""
        return int(self.columns[0].values.size)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The column of that name; ``InvalidArgument`` where there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise InvalidArgument(f"Expected a column {name!r}, found {_validate.listed(self.names)}.")

    def without(self, *names: str) -> "Table":
        """The table without those columns; ``InvalidArgument`` where one is not there."""
        for name in names:
            self.column(name)
        return Table(tuple(column for column in self.columns if column.name not in names))


def at_quantiles(column: Column, bins: int) -> Column:
    """A column of numbers as one of words, cut where equal shares lie; of words, as it is.

    What is missing has a word of its own.

    Example:
        >>> cut = at_quantiles(Column("age", np.array([20.0, 30.0, 40.0, np.nan])), 2)
        >>> cut.words, cut.values
        (('…30', '30…', 'missing'), array([0, 1, 1, 2]))
    """
    if column.words is not None:
        return column
    missing = np.isnan(column.values)
    edges = np.unique(np.quantile(column.values[~missing], np.linspace(0, 1, bins + 1)[1:-1]))
    ends = ["", *(f"{edge:g}" for edge in edges), ""]
    words = [f"{low}…{high}" for low, high in pairwise(ends)]
    places = np.searchsorted(edges, column.values, side="right")
    if missing.any():
        places = np.where(missing, len(words), places)
        words.append("missing")
    return Column(column.name, places, tuple(words))


_Reader: TypeAlias = Callable[..., list[Column]]


def read_table(path: str | os.PathLike[str]) -> Table:
    """Reads a table with its columns as they are; cells may be empty.

    The kind of file is told by its ending: ``.csv``, ``.csv.gz`` or ``.parquet`` (needs the extra
    ``parquet``). A column is of numbers where all of its cells are, but for blanks and what people
    write in place of one (NA, ?, -, null): these become nan. All others are of words, and a blank
    is the empty word: that it is missing may mean something.

    Raises:
        UnreadableFile: The file is not there, damaged, or too large.
        InvalidArgument: It has no records, or its lines do not fit together.
    """
    path = Path(path)
    read = table_reader(path)
    if read is None:
        raise UnreadableFile(
            f"Expected a file ending in .csv, .csv.gz or .parquet, got {path.name!r}."
        )
    with told(path, FEWER):
        table = Table(tuple(read(path, gaps=True)))
        if table.rows == 0:
            raise InvalidArgument("Expected records, got a file without any.")
        return table


def table_reader(path: Path) -> _Reader | None:
    """What reads such a file; None where it is no table."""
    kinds: dict[str, _Reader] = {
        ".csv": _csv_table,
        ".csv.gz": _csv_table,
        ".parquet": _parquet_table,
    }
    return next((kinds[end] for end in kinds if path.name.lower().endswith(end)), None)


def _csv_table(path: Path, *, gaps: bool = False) -> list[Column]:
    """In two passes, so that no more than numbers is kept: what columns hold, then their cells.

    Without ``gaps`` empty cells are refused.
    """
    not_huge(path, measure_text(path, largest=readers.LARGEST), FEWER)
    names, texts, rows = _csv_kinds(path, gaps=gaps)
    not_huge(path, 8 * rows * len(names), FEWER)
    numbers = np.empty((rows, len(names)))
    words: list[dict[str, int]] = [{} for _ in names]  # each word → its number, as they came
    for row, (_, cells) in enumerate(_csv_rows(path)):
        numbers[row] = [
            seen.setdefault(cell.strip(), len(seen)) if text else _number(cell, gaps)
            for cell, text, seen in zip(cells, texts, words, strict=True)
        ]
    return [
        _sorted_words(name, column.astype(np.int64), list(seen)) if text else Column(name, column)
        for name, column, text, seen in zip(names, numbers.T, texts, words, strict=True)
    ]


def _csv_kinds(path: Path, *, gaps: bool) -> tuple[list[str], list[bool], int]:
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
                if gaps:
                    continue
                raise InvalidArgument(
                    f"Expected no blanks, row {rows} of the data has one in column "
                    f"{_validate.short(names[i])}. "
                    f"{FILL}"
                )
            elif len(words[i]) <= len(MISSING):
                words[i].add(cell.strip().lower())
    for name, some, others in zip(names, numbers, words, strict=True):
        if some and others and others <= MISSING:
            if gaps:
                others.clear()
                continue
            raise InvalidArgument(
                f"Expected numbers in column {_validate.short(name)}, found "
                f"{_validate.short(min(others))} among them. {FILL}"
            )
    return names, [bool(others) for others in words], rows


def _number(cell: str, gaps: bool) -> float:
    return float("nan") if gaps and not is_number(cell) else number(cell)


def _csv_header(path: Path) -> list[str]:
    with _opened(path) as file:
        names = [name.strip() for name in next((row for row in csv.reader(file) if row), [])]
    count = Counter(names)
    twice = [place for place, name in enumerate(names, start=1) if count[name] > 1]
    numbers = [
        place for place, name in enumerate(names, start=1) if is_number(name) and not name.isdigit()
    ]
    if not names or twice or numbers:
        found = "nothing"
        if numbers:
            found = f"a number in column {numbers[0]}"
        elif twice:
            found = f"the same in columns {' and '.join(map(str, twice[:2]))}"
        raise InvalidArgument(  # without what stands there: it may be a record
            f"Expected a first line of names of columns, all different, found {found}. Does the "
            "file begin with a record?"
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


def _sorted_words(name: str, codes: NDArray[np.int64], words: list[str]) -> Column:
    """A column of words that are numbered in sorted order."""
    order = sorted(range(len(words)), key=words.__getitem__)
    place = np.empty(len(words), np.int64)
    place[order] = np.arange(len(words))
    return Column(name, place[codes], tuple(words[i] for i in order))


def _parquet_table(path: Path, *, gaps: bool = False) -> list[Column]:
    file = open_parquet(path)
    not_huge(path, 8 * file.metadata.num_rows * file.metadata.num_columns, FEWER)
    table = file.read()
    if not table.column_names:
        raise InvalidArgument("Expected columns, found none.")
    return [
        _parquet_column(name, column, gaps=gaps)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _read_words(name: str, column: Any) -> Column:
    """Return a column of texts by its list of words, which is never written out row by row."""
    whole = column.unify_dictionaries().combine_chunks()
    words = [*(word or "" for word in whole.dictionary.to_pylist()), ""]  # the last where none is
    codes = whole.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
    order = sorted(set(words))
    number = {word: place for place, word in enumerate(order)}
    places = np.array([number[word] for word in words], np.int64)[codes]
    used = np.unique(places)
    return Column(name, np.searchsorted(used, places), tuple(order[place] for place in used))


def _parquet_column(name: str, column: Any, *, gaps: bool) -> Column:
    from pyarrow import types

    if column.null_count and not gaps:
        raise InvalidArgument(
            f"Expected no nulls in column {_validate.short(name)}, found {column.null_count}. "
            f"{FILL}"
        )
    if _is_text(column.type):
        column = column.dictionary_encode()
    if types.is_dictionary(column.type):
        if _is_text(column.type.value_type):
            return _read_words(name, column)
        column = column.cast(column.type.value_type)
    known = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    if not any(is_known(column.type) for is_known in known):
        raise InvalidArgument(
            f"Expected numbers or text in column {_validate.short(name)}, got {column.type}. "
            "Leave it out, or turn it into numbers."
        )
    return Column(name, column.to_numpy(zero_copy_only=False).astype(np.float64))
