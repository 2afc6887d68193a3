"""Convert pyarrow columns: numbers as they are, dates to days, texts to categories."""

from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import Column

_DAY = 86_400_000_000  # microseconds


def make_column(name: str, cells: Any) -> Column:
    """Return a column from a chunked array; timestamps become days since 1970.

    Raises:
        InvalidArgument: It holds lists, bytes or other values that are not numbers or texts.
    """
    from pyarrow import types

    blank = cells.is_null().to_numpy() if cells.null_count else None
    if is_text(cells.type):
        cells = cells.dictionary_encode()
    if types.is_dictionary(cells.type):
        if is_text(cells.type.value_type):
            # By the dictionary of words, which is never expanded to rows.
            whole = cells.unify_dictionaries().combine_chunks()
            words = [*(word or "" for word in whole.dictionary.to_pylist()), ""]
            codes = whole.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
            return Column.of_words(name, words, codes, blank)
        cells = cells.cast(cells.type.value_type)
    if types.is_date(cells.type) or types.is_timestamp(cells.type):
        return Column(name, _count_days(cells), blank=blank)
    known = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    if not any(is_known(cells.type) for is_known in known):
        raise InvalidArgument(
            f"Expected numbers, dates or text in column {_validate.short(name)}, got {cells.type}. "
            "Leave it out, or turn it into numbers."
        )
    values = cells.to_numpy()
    floats = values if values.dtype.kind == "f" else values.astype(np.float64)
    return Column(name, floats, blank=blank)


def is_text(kind: Any) -> bool:
    """Tell whether a pyarrow type is text."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _count_days(cells: Any) -> Any:
    import pyarrow

    moments = cells.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
    return moments.cast(pyarrow.float64(), safe=False).to_numpy() / _DAY
