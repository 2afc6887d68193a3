"""Read CSV: detect encoding and delimiter, then read the columns.

It is read by pyarrow if that is installed, else by the standard library, with the same columns.
Files with lines that pyarrow finds irregular are read by the standard library, which accepts some
of them and explains what is wrong with the others.
"""

import codecs
import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import numpy as np

from epsilometer._files import check_plain
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.cells import CellCounter, Parse, make_column
from epsilometer.files.readers import (
    LARGEST,
    Column,
    Content,
    check_header,
    parse_number,
    refuse_growth,
    refuse_huge,
)
from epsilometer.files.spellings import read_comma, read_grouped

_GROWS = 100  # largest ratio of expanded size to file size; tables of people reach 5 to 20
_LONGEST = 2**20  # bytes of a line
_BLOCK = 2**17  # bytes that are checked together: they stay in a cache
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_LINES = 100  # bytes to detect the delimiter in
_MARKS = {  # at the beginning of a text → its encoding; UTF-16's is the beginning of UTF-32's
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_PARSERS: dict[str | None, Parse] = {None: parse_number, ".": read_grouped, ",": read_comma}
_UNDEFINED = frozenset(b"\x81\x8d\x8f\x90\x9d")  # bytes that are undefined in cp1252


@dataclass(frozen=True)
class _Layout:
    """Hold the encoding and punctuation of a CSV file.

    Attributes:
        path: The file.
        encoding: As Python names it.
        delimiter: What separates cells.
        decimal: Decimal separator of numbers, if given.
    """

    path: Path
    encoding: str
    delimiter: str = ","
    decimal: str | None = None

    def read(self) -> Iterator[tuple[int, list[str]]]:
        """Yield all rows that are not empty, each with the number of its line."""
        with self._open() as file:
            lines = csv.reader(file, delimiter=self.delimiter)
            yield from ((lines.line_num, row) for row in lines if row)

    def _open(self) -> TextIO:
        return io.TextIOWrapper(_open_bytes(self.path), encoding=self.encoding, newline="")


def open_csv(
    path: Path,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
) -> Content:
    """Return the names of a file's columns, and a function that reads them.

    Args:
        path: The file.
        encoding: Python's name of the encoding; None: by its byte order mark, else UTF-8 if valid,
            else cp1252.
        delimiter: Separator of cells; None: the only one of comma, semicolon, tab and bar that
            splits the first lines into as many cells as there are names.
        decimal: ``.`` if commas, spaces or apostrophes separate thousands; ``,`` if points do.
            None: a decimal point, and no separator of thousands.

    Raises:
        UnreadableFile: It is not text, or expands too much when decompressed.
        InvalidArgument: More than one delimiter fits, or there is no such encoding.
    """
    delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
    _check_given(encoding, delimiter, decimal)
    size, lines, found = _measure_text(path, encoding)
    refuse_huge(path, size)
    layout = _Layout(path, encoding or found)
    layout = _Layout(path, encoding or found, delimiter or _find_delimiter(layout), decimal)
    names = [name.strip() for _, row in islice(layout.read(), 1) for name in row]
    notes: tuple[str, ...] = ()
    if layout.encoding != encoding and layout.encoding in ("cp1252", "latin-1"):
        notes = (f"{path.name} is not UTF-8, and was read as {layout.encoding}.",)
    read = partial(_read_columns, layout, names)
    return Content(tuple(names), read, notes=notes, rows=lines)


def _check_given(encoding: str | None, delimiter: str | None, decimal: str | None) -> None:
    if decimal not in _PARSERS:
        raise InvalidArgument(f"Expected a point or a comma as decimal, got {decimal!r}.")
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise InvalidArgument(f"Expected one character as delimiter, or tab, got {delimiter!r}.")
    if encoding is not None:
        try:
            "".encode(encoding)
        except LookupError as error:
            raise InvalidArgument(
                f"Expected an encoding such as utf-8, cp1252 or utf-16, got {encoding!r}."
            ) from error


def _find_delimiter(plain: _Layout) -> str:
    """Return the only delimiter that splits the first lines into as many cells as names."""
    cuts: dict[str, bool] = {}  # delimiter that cuts lines → whether all into as many cells
    for delimiter in _DELIMITERS:
        rows = _Layout(plain.path, plain.encoding, delimiter).read()
        try:
            counts = [len(row) for _, row in islice(rows, _LINES)]
        except csv.Error:  # a cell that is too long: said where it is read
            continue
        if counts and counts[0] > 1 and max(counts[1:], default=2) > 1:
            cuts[delimiter] = len(set(counts)) == 1
    regular = [delimiter for delimiter, even in cuts.items() if even]
    if len(regular) > 1:
        both = " and ".join(_DELIMITERS[delimiter] for delimiter in regular)
        raise InvalidArgument(
            f"Expected one delimiter, {both} both cut every line into as many cells. Say which "
            "with --delimiter, or separate cells by commas and quote those that have some."
        )
    return next(iter(regular or cuts), ",")


def _read_columns(
    layout: _Layout, names: list[str], places: Sequence[int] | None = None
) -> list[Column]:
    """Return the columns at some places; without places, all, if lines have equal lengths."""
    if places is None:
        check_header(names)
    wanted = range(len(names)) if places is None else places
    found = _read_by_pyarrow(layout, wanted)
    if found is None:
        found = _read_by_csv(layout, wanted, len(names), whole=places is None)
    return [make(names[place]) for place, make in zip(wanted, found, strict=True)]


def _read_by_pyarrow(layout: _Layout, places: Sequence[int]) -> list[Any] | None:
    """Return a maker for each column; None without pyarrow, or if lines are irregular."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
    except ModuleNotFoundError:
        return None
    names = [f"f{place}" for place in places]  # as pyarrow numbers columns
    longest = csv.field_size_limit()
    with _open_bytes(layout.path) as file:
        try:
            table = pyarrow.csv.read_csv(
                file,
                read_options=pyarrow.csv.ReadOptions(
                    autogenerate_column_names=True,
                    block_size=4 * _LONGEST,
                    encoding=layout.encoding.removesuffix("-sig"),  # it skips the mark by itself
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    newlines_in_values=True, delimiter=layout.delimiter
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=names, column_types=dict.fromkeys(names, pyarrow.string())
                ),
            )
        except pyarrow.ArrowInvalid:
            return None
    refuse_huge(layout.path, 8 * table.num_rows * len(places))
    columns = [column.slice(1) for column in table.columns]  # without the header
    lengths = (pyarrow.compute.max(pyarrow.compute.binary_length(each)) for each in columns)
    if any((length.as_py() or 0) > longest for length in lengths):
        return None  # the standard library refuses such cells
    parse = _PARSERS[layout.decimal]
    return [partial(_convert_cells, cells=column, parse=parse) for column in columns]


def _convert_cells(name: str, cells: Any, parse: Parse) -> Column:
    """Return a column of pyarrow text, converted to numbers at once if all cells are."""
    import pyarrow
    import pyarrow.compute as pc

    blank = pc.equal(cells, "")
    try:
        if parse is not parse_number:
            raise pyarrow.ArrowInvalid
        numbers = pc.cast(pc.if_else(blank, None, cells), pyarrow.float64())
        values = numbers.to_numpy()
        empty = blank.to_numpy()
        # pyarrow takes nan(text) for nan, so that cells that became nan are checked one by one.
        if not np.isnan(values[~empty]).any():
            return Column(name, values, blank=empty if empty.any() else None)
    except pyarrow.ArrowInvalid:  # a text; or a number that is written otherwise, as +1 or 1,5
        pass
    coded = cells.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(coded, pyarrow.ChunkedArray):  # without any row
        return Column(name, np.empty(0))
    codes = coded.indices.to_numpy(zero_copy_only=False)
    return make_column(name, coded.dictionary.to_pylist(), codes, parse=parse)


def _read_by_csv(layout: _Layout, places: Sequence[int], width: int, *, whole: bool) -> list[Any]:
    """Return a maker for each column, by the standard library.

    Args:
        layout: How the file is written.
        places: Places of the columns.
        width: Cells of the first line.
        whole: Whether every line must have as many. Otherwise these columns must exist, and no cell
            beyond the last: a comma within a number would move all cells.
    """
    counter, least = CellCounter(places), max(places, default=-1) + 1
    for line, row in islice(layout.read(), 1, None):  # without the header
        if len(row) < least or (whole and len(row) != width) or any(row[width:]):
            asked = f"at least {least}" if len(row) < least and not whole else str(width)
            like = "" if asked != str(width) else ", as in the first"
            raise InvalidArgument(
                f"Expected {asked} cells in every line{like}, line {line} has {len(row)}."
            )
        counter.add(row)
    refuse_huge(layout.path, 8 * counter.count)
    return counter.makers(_PARSERS[layout.decimal])


def _measure_text(path: Path, encoding: str | None) -> tuple[int, int, str]:
    """Return the bytes of a text, unpacked, its ends of lines, and how it is encoded.

    A count beyond the largest ends there. What is not UTF-8 is read as cp1252, and where that has
    no such letter for Latin-1: words differ in one where they differ in another.
    """
    packed = check_plain(path).st_size
    if not _is_packed(path) and packed > LARGEST:
        return packed, 0, ""
    size, lines, unbroken = 0, 0, 0
    found, decoder = "utf-8", codecs.getincrementaldecoder("utf-8")()
    with _open_bytes(path) as file:
        while size <= LARGEST and (block := file.read(_BLOCK)):
            if size == 0:
                marked = (name for mark, name in _MARKS.items() if block.startswith(mark))
                found = next(marked, found)
            size += len(block)
            lines += max(_count_byte(block, b"\n"), _count_byte(block, b"\r"))
            wide = (encoding or found).lower().startswith(("utf-16", "utf_16", "utf-32", "utf_32"))
            if b"\0" in block and not wide:
                raise UnreadableFile(
                    f"Expected text in {path.name!r}, found bytes that are none. Save it as UTF-8."
                )
            unbroken = 0 if b"\n" in block or b"\r" in block else unbroken + len(block)
            if unbroken >= _LONGEST:
                raise UnreadableFile(
                    f"Expected lines of at most {_LONGEST:,} bytes in {path.name!r}, found a "
                    "longer one."
                )
            refuse_growth(path, size, packed, _GROWS)
            if found == "utf-8" and not _is_valid(decoder, block):
                found = "cp1252"
            if found == "cp1252" and not _UNDEFINED.isdisjoint(block):
                found = "latin-1"
    if found == "utf-8" and not _is_valid(decoder, b"", final=True):
        found = "cp1252"
    return size, lines, found


def _count_byte(block: bytes, wanted: bytes) -> int:
    """Count a byte in a block; ``bytes.count`` takes five times as long."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == wanted[0]))


def _is_valid(decoder: codecs.IncrementalDecoder, block: bytes, final: bool = False) -> bool:
    try:
        decoder.decode(block, final)
    except UnicodeDecodeError:
        return False
    return True


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _open_bytes(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, "rb")) if _is_packed(path) else path.open("rb")
