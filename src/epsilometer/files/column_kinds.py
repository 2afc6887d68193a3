"""Recognise columns that name people or hold free text, by their cells."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.files.readers import Column

_NAMED = 20  # records from which distinct values in a column are not a coincidence
_DIFFERENT = 0.9  # share of records with a unique word, in a column of names
_TEXTS = 0.5  # the same for free text, where some texts are equal
_SPACES = 3  # gaps between the words of a cell of free text, on average
_LIKE = 0.8  # share of distinct cells with the same pattern
_LOOKED = 1000  # number of distinct cells that are checked
_LOOKS = {
    "e-mail addresses": re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"),
    "unique identifiers": re.compile(
        r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE
    ),
    "account numbers": re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?"),
    "telephone numbers": re.compile(r"(?:\+|00)\d[\d ()/.-]{6,}\d|\(?0\d{1,4}\)?[ /-][\d ./-]{4,}"),
}


def recognise_text(column: Column) -> bool:
    """Tell whether cells are free text: sentences, hardly any of them repeated.

    Example:
        >>> notes = [f"Patient {i} was seen again today" for i in range(30)]
        >>> recognise_text(Column.of_words("note", notes, np.arange(30)))
        True
    """
    if column.words is None:
        return False
    texts = _sample(column.words)
    values = _list_values(column)
    gaps = sum(len(text.split()) - 1 for text in texts)
    long = gaps >= _SPACES * max(len(texts), 1)
    return long and values.size >= _NAMED and np.unique(values).size >= _TEXTS * values.size


def recognise_names(column: Column) -> str | None:
    """Explain why a column seems to name or number people; None if it does not.

    Example:
        >>> recognise_names(Column("id", np.arange(30.0)))
        'is different in every row'
        >>> recognise_names(Column("age", np.arange(30.0) % 7)) is None
        True
    """
    values = _list_values(column)
    if values.size < _NAMED:
        return None
    different = np.unique(values).size
    if column.words is None:
        whole = np.array_equal(values, np.round(values))  # measurements differ anyway
        return "is different in every row" if whole and different == values.size else None
    texts = _sample(column.words)
    for what, look in _LOOKS.items():
        if sum(look.fullmatch(text) is not None for text in texts) > _LIKE * len(texts):
            return f"holds what look like {what}"
    if different == values.size:
        return "is different in every row"
    if different >= _DIFFERENT * values.size:
        return f"is different in {different / values.size:.0%} of rows"
    return None


def _list_values(column: Column) -> NDArray[Any]:
    """Return the values of rows that are not empty."""
    values: NDArray[Any] = column.values
    if column.words is None:
        return np.asarray(values[~np.isnan(values)])
    if column.words and column.words[0] == "":
        return np.asarray(values[values > 0])
    return values


def _sample(words: Sequence[str]) -> list[str]:
    """Return an evenly spaced sample of the sorted words."""
    texts = [word for word in words if word]
    return texts[:: max(1, len(texts) // _LOOKED)]
