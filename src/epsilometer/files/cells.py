"""Make columns from cells of text: numbers if all cells are numbers, else words."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.files.readers import MISSING, Column, parse_number

Parse: TypeAlias = Callable[[str], float | None]


class CellCounter:
    """Number the distinct cells of some columns, row by row: a repeated text is stored once.

    Attributes:
        places: Indices of the columns in a row.

    Example:
        >>> counter = CellCounter([1])
        >>> counter.add(["Ann", "31"])
        >>> counter.add(["Bob", "NA"])
        >>> counter.makers()[0]("age").values
        array([31., nan])
    """

    def __init__(self, places: Sequence[int]) -> None:
        self.places = places
        self._words: list[dict[str, int]] = [{} for _ in places]  # each → its number, as they came
        self._codes = [array("q") for _ in places]
        self._columns = list(zip(places, self._words, self._codes, strict=True))

    def add(self, row: Sequence[str]) -> None:
        """Add one row."""
        for place, known, numbers in self._columns:
            numbers.append(known.setdefault(row[place], len(known)))

    @property
    def count(self) -> int:
        """Number of cells that were added."""
        return sum(map(len, self._codes))

    def makers(self, parse: Parse = parse_number) -> list[Any]:
        """Return one function per column, which makes it with a name; ``parse`` reads numbers."""
        return [
            partial(make_column, words=list(known), codes=np.array(numbers, np.int64), parse=parse)
            for _, known, numbers in self._columns
        ]


def make_column(
    name: str, words: Sequence[str], codes: NDArray[Any], *, parse: Parse = parse_number
) -> Column:
    """Return a column from its distinct cells, and the index of the cell in each row.

    It is numeric if all cells are numbers, except for blanks and the usual marks for missing
    values.
    """
    texts = [word.strip() for word in words]
    numbers = [parse(text) for text in texts]
    others = {t.lower() for t, n in zip(texts, numbers, strict=True) if t and n is None}
    blank = np.array([not text for text in texts], bool)[codes]
    empty = blank if blank.any() else None
    has_number = any(number is not None for number in numbers)
    if not others or (has_number and others <= MISSING):
        known = np.array([np.nan if number is None else number for number in numbers], np.float64)
        return Column(name, known[codes], blank=empty)
    return Column.of_words(name, texts, codes, empty)


def spell_cell(value: Any) -> str:
    """Return a cell of a spreadsheet or a database as it would appear in CSV.

    Example:
        >>> [spell_cell(cell) for cell in (None, 2.0, True, date(2001, 12, 31), "a")]
        ['', '2.0', '1', '2001-12-31', 'a']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float, Decimal)):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, date) else str(value)


def read_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[Column]:
    """Return columns from rows of any values; a row has one value per name."""
    counter = CellCounter(range(len(names)))
    for row in rows:
        counter.add([spell_cell(value) for value in row])
    return [make(name) for name, make in zip(names, counter.makers(), strict=True)]
