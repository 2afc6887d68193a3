"""Read CSV, gzipped or not: by pyarrow where it is installed, else by the standard library.

Both give the same columns. Lines that pyarrow finds irregular are read again by the standard
library, which takes some of them and says what is wrong with the others.
"""

import csv
import gzip
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from epsilometer._files import check_plain
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files import readers
from epsilometer.files.readers import Column, Content, refuse_growth, refuse_huge

MISSING = frozenset({"na", "n/a", "nan", "null", "none", "?", "-", "."})
_GROWS = 100  # times its size that a text may become; tables of people become 5 to 20
_BLOCK = 2**20  # bytes that are looked at together; every line of a text ends in one or the next


def open_csv(path: Path) -> Content:
    """Return the names of a file's columns, and what reads them.

    Raises:
        UnreadableFile: It is no text, or grows too much when it is unpacked.
    """
    refuse_huge(path, _measure_text(path))
    with _open_text(path) as file:
        names = [name.strip() for name in next((row for row in csv.reader(file) if row), [])]
    return Content(tuple(names), partial(_read_columns, path, names))


def parse_number(text: str) -> float | None:
    """Return a cell as a number, which may be nan or infinite; None where it is none."""
    if "_" in text:  # Python would read 1_000 as a number
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _read_columns(
    path: Path, names: list[str], places: Sequence[int] | None = None
) -> list[Column]:
    """Return the columns at some places; without places, all of lines that fit together."""
    if places is None:
        _check_header(names)
    wanted = range(len(names)) if places is None else places
    found = _read_by_pyarrow(path, wanted)
    if found is None:
        found = _read_by_csv(path, wanted, len(names) if places is None else None)
    return [make(names[place]) for place, make in zip(wanted, found, strict=True)]


def _check_header(names: list[str]) -> None:
    count = Counter(names)
    twice = [place for place, name in enumerate(names, start=1) if count[name] > 1]
    numbers = [
        place
        for place, name in enumerate(names, start=1)
        if parse_number(name) is not None and not name.isdigit()
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


def _read_by_pyarrow(path: Path, places: Sequence[int]) -> list[Any] | None:
    """Return what makes each column; None without pyarrow, or where lines are irregular."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
    except ModuleNotFoundError:
        return None
    names = [f"f{place}" for place in places]  # as pyarrow numbers columns
    longest = csv.field_size_limit()
    with _open_bytes(path) as file:
        try:
            table = pyarrow.csv.read_csv(
                file,
                read_options=pyarrow.csv.ReadOptions(
                    autogenerate_column_names=True, block_size=4 * _BLOCK
                ),
                parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=names, column_types=dict.fromkeys(names, pyarrow.string())
                ),
            )
        except pyarrow.ArrowInvalid:
            return None
    refuse_huge(path, 8 * table.num_rows * len(places))
    columns = [column.slice(1) for column in table.columns]  # without the header
    lengths = (pyarrow.compute.max(pyarrow.compute.binary_length(each)) for each in columns)
    if any((length.as_py() or 0) > longest for length in lengths):
        return None  # the standard library refuses such cells
    return [partial(_convert_cells, cells=column) for column in columns]


def _convert_cells(name: str, cells: Any) -> Column:
    """Return a column of pyarrow's text: as numbers at once, where all cells are numbers."""
    import pyarrow
    import pyarrow.compute as pc

    blank = pc.equal(cells, "")
    try:
        numbers = pc.cast(pc.if_else(blank, None, cells), pyarrow.float64())
        values = numbers.to_numpy()
        empty = blank.to_numpy()
        # pyarrow takes nan(text) for nan, so that cells that became nan are looked at one by one.
        if not np.isnan(values[~empty]).any():
            return Column(name, values, blank=empty if empty.any() else None)
    except pyarrow.ArrowInvalid:  # a text; or a number that Python writes otherwise, as +1
        pass
    coded = cells.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(coded, pyarrow.ChunkedArray):  # without any row
        return Column(name, np.empty(0))
    codes = coded.indices.to_numpy(zero_copy_only=False)
    return _make_column(name, coded.dictionary.to_pylist(), codes)


def _read_by_csv(path: Path, places: Sequence[int], exact: int | None) -> list[Any]:
    """Return what makes each column, by the standard library.

    Args:
        path: The file.
        places: Of the columns.
        exact: Cells of every line; None where it is enough that these columns are there.
    """
    words: list[dict[str, int]] = [{} for _ in places]  # each cell → its number, as they came
    codes = [array("q") for _ in places]
    least = max(places, default=-1) + 1
    columns = list(zip(places, words, codes, strict=True))
    for line, row in _read_rows(path):
        if len(row) < least or (exact is not None and len(row) != exact):
            asked = f"at least {least}" if exact is None else str(exact)
            like = "" if exact is None else ", as in the first"
            raise InvalidArgument(
                f"Expected {asked} cells in every line{like}, line {line} has {len(row)}."
            )
        for place, known, numbers in columns:
            numbers.append(known.setdefault(row[place], len(known)))
    refuse_huge(path, 8 * sum(map(len, codes)))
    return [
        partial(_make_column, words=list(known), codes=np.array(numbers, np.int64))
        for _, known, numbers in columns
    ]


def _make_column(name: str, words: list[str], codes: NDArray[Any]) -> Column:
    """Return a column from its different cells, and which of them stands in each row.

    It is of numbers where all cells are, but for blanks and what people write in place of one.
    """
    texts = [word.strip() for word in words]
    numbers = [parse_number(text) for text in texts]
    others = {t.lower() for t, n in zip(texts, numbers, strict=True) if t and n is None}
    blank = np.array([not text for text in texts], bool)[codes]
    empty = blank if blank.any() else None
    has_number = any(number is not None for number in numbers)
    if not others or (has_number and others <= MISSING):
        known = np.array([np.nan if number is None else number for number in numbers], np.float64)
        return Column(name, known[codes], blank=empty)
    return Column.of_words(name, texts, codes, empty)


def _read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield rows of data, each with the number of its line."""
    with _open_text(path) as file:
        lines = csv.reader(file)
        rows = ((lines.line_num, row) for row in lines if row)
        next(rows, None)  # the header
        yield from rows


def _measure_text(path: Path) -> int:
    """Return the bytes of a text, unpacked; a count beyond the largest ends there."""
    packed = check_plain(path).st_size
    if not _is_packed(path) and packed > readers.LARGEST:
        return packed
    size = 0
    with _open_bytes(path) as file:
        while size <= readers.LARGEST and (block := file.read(_BLOCK)):
            size += len(block)
            if b"\0" in block:
                raise UnreadableFile(f"Expected text in {path.name!r}, found bytes that are none.")
            if len(block) == _BLOCK and b"\n" not in block and b"\r" not in block:
                raise UnreadableFile(
                    f"Expected lines of at most {_BLOCK:,} bytes in {path.name!r}, found a longer "
                    "one."
                )
            refuse_growth(path, size, packed, _GROWS)
    return size


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


@contextmanager
def _open_bytes(path: Path) -> Iterator[BinaryIO]:
    opener: Any = gzip.open if _is_packed(path) else open
    with opener(path, "rb") as file:
        yield file


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    opener = gzip.open if _is_packed(path) else open
    with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
        yield cast("TextIO", file)
