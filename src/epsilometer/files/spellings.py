"""Parse numbers and dates that a column has as text: 1,169 and 31.12.2001."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np

from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import MISSING, Column, parse_number

_MANY = 20  # distinct words from which a column is suspected to hold numbers
_NUMBER = r"[1-9]\d{0,2}"  # what stands before the first separator of thousands: never 0
_GROUPED = re.compile(
    rf"[+-]?{_NUMBER}([,' \u00a0\u202f\u2019])\d{{3}}(?:\1\d{{3}})*(\.\d+)?", re.ASCII
)
_COMMA = re.compile(rf"[+-]?(?:\d+|{_NUMBER}(?:\.\d{{3}})+)(?:,\d+)?", re.ASCII)
_DATE = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})([T ]\d\d:\d\d.*)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ORDERS = {"day": (2, 1, 0), "month": (2, 0, 1)}  # what stands first → places of year, month, day


def read_spelled(column: Column) -> tuple[Column, str | None]:
    """Return a column of words as numbers if all parse, and a note that quotes no word.

    Numbers may have separators of thousands, or decimal commas; dates become days since 1970. All
    cells must have the same format, except for missing ones.

    Raises:
        InvalidArgument: It holds dates whose days and months cannot be distinguished.

    Example:
        >>> column = Column("pay", np.array([1, 0, 1]), ("1,169", "950"))
        >>> found, note = read_spelled(column)
        >>> found.values.tolist(), note
        ([950.0, 1169.0, 950.0], "Numbers of 'pay' were read without separators of thousands.")
    """
    if column.words is None:
        return column, None
    texts = [word for word in column.words if word and word.lower() not in MISSING]
    if not texts:
        return column, None
    for read, note in _SPELLINGS:
        if None not in (numbers := [read(text) for text in texts]):
            return _convert(column, texts, numbers), note.format(repr(column.name))
    if all(map(_DATE.fullmatch, texts)):
        dates = _read_dates(column.name, texts)
        if dates is not None:
            return _convert(column, texts, dates), f"Dates of {column.name!r} were read as days."
    digits = sum(text.lstrip("+-$€£ ")[:1].isdigit() for text in texts)
    if len(texts) > _MANY and 2 * digits > len(texts):
        return column, (
            f"{column.name!r} looks like numbers or dates, and was read as words. Write numbers "
            "as 1234.5 and dates as 2001-12-31, each in all rows."
        )
    return column, None


def _convert(column: Column, texts: list[str], numbers: list[float | None]) -> Column:
    assert column.words is not None
    known = dict(zip(texts, numbers, strict=True))
    values = np.array([known.get(word, np.nan) for word in column.words], np.float64)
    return Column(column.name, values[column.values], blank=column.blank)


def read_grouped(text: str) -> float | None:
    """Return a number whose thousands may be separated, but by one character throughout."""
    found = _GROUPED.fullmatch(text)
    return parse_number(text.replace(found[1], "") if found else text)


def read_comma(text: str) -> float | None:
    """Return a number with a decimal comma, and points between thousands."""
    if not _COMMA.fullmatch(text):
        return None
    return parse_number(text.replace(".", "").replace(",", "."))


_SPELLINGS: tuple[tuple[Callable[[str], float | None], str], ...] = (
    (read_grouped, "Numbers of {} were read without separators of thousands."),
    (read_comma, "Numbers of {} were read with decimal commas."),
)


def _read_dates(name: str, texts: list[str]) -> list[float | None] | None:
    """Return days; None if some text is not a date."""
    found = {order: [_read_date(text, order) for text in texts] for order in _ORDERS}
    dates = [days for days in found.values() if None not in days]
    if len(dates) == 2 and dates[0] != dates[1]:
        if all("." in text for text in texts):  # where points separate, days come first
            return found["day"]
        raise InvalidArgument(
            f"Expected dates in column {name!r} whose days and months can be distinguished; they "
            f"fit both orders. Write them as 2001-12-31, or drop it: --drop {name}"
        )
    return dates[0] if dates else None


def _read_date(text: str, order: str) -> float | None:
    """Return days since 1970; None if a text is not a date in that order."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    parts = (match[1], match[3], match[4])
    year, month, day = parts if len(parts[0]) == 4 else (parts[i] for i in _ORDERS[order])
    try:
        moment = datetime.fromisoformat(f"{year}-{int(month):02d}-{int(day):02d}{match[5] or ''}")
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) / timedelta(days=1)
