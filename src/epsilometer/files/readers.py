"""Read columns from the files people have: one reader per ending of a name, and that of CSV.

A reader is a function that takes a path and returns the file's :class:`Content`. A new format is a
module and a line of ``READERS``, or an entry point of the group ``epsilometer.readers`` in another
package, named by the ending without its dot.

CSV is read by pyarrow where it is installed, else by the standard library, with the same columns.
Lines that pyarrow finds irregular are read again by the standard library, which takes some of them
and says what is wrong with the others.
"""

import csv
import gzip
import hashlib
import io
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from epsilometer._files import check_plain
from epsilometer.core.registry import Registry
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.types import BoolArray

LARGEST = 4 * 2**30  # bytes that are taken into memory at once
MISSING = frozenset({"na", "n/a", "nan", "null", "none", "?", "-", "."})
_GROWS = 100  # times its size that a text may become; tables of people become 5 to 20
_BLOCK = 2**20  # bytes that are looked at together; every line of a text ends in one or the next
_SMALL = 256 * 2**20  # bytes below which growth harms nobody
_EXCERPT = 300  # characters of what a decoder says: it may repeat the file


@dataclass(frozen=True, eq=False)
class Column:
    """Hold numbers; or, where there are words, which of them stands in each row.

    Attributes:
        name: As the file has it.
        values: Numbers, nan where one is missing; or places in ``words``; or an array of any kind.
        words: In sorted order, the empty one first where a word is missing; None of numbers.
        blank: Rows whose cell is empty; None where no row is known to be.
    """

    name: str
    values: NDArray[Any]
    words: tuple[str, ...] | None = None
    blank: BoolArray | None = None

    @classmethod
    def of_words(
        cls, name: str, texts: Sequence[str], codes: NDArray[Any], blank: BoolArray | None = None
    ) -> "Column":
        """Return a column of words from texts in any order, and which of them each row has."""
        order = sorted(set(texts))
        place = {word: i for i, word in enumerate(order)}
        places = np.array([place[text] for text in texts], np.int64)[codes]
        used = np.unique(places)
        words = tuple(order[i] for i in used)
        return cls(name, np.searchsorted(used, places), words, blank)

    @property
    def width(self) -> int:
        """Count the features that it makes."""
        return 1 if self.words is None else len(self.words)


class _Read(Protocol):
    def __call__(self, places: Sequence[int] | None = None) -> list[Column]: ...


@dataclass(frozen=True)
class Content:
    """Describe what a file holds, before it is read.

    Attributes:
        names: Of its columns or arrays.
        read: Returns the columns at the given places; without places all of them, which must
            then fit together.
        is_arrays: Whether they are arrays of any shape, and not cells of a table.
        metadata: (name, text) pairs that the file has beside its columns.
    """

    names: tuple[str, ...]
    read: _Read
    is_arrays: bool = False
    metadata: tuple[tuple[str, str], ...] = ()


@contextmanager
def open_columns(path: Path, *, advice: str) -> Iterator[Content]:
    """Open a file by the reader of its ending; whatever is wrong with it becomes one sentence.

    Args:
        path: The file.
        advice: What to do with one that is too large.

    Raises:
        UnreadableFile: The file is not there, damaged, too large, or has another ending.
        InvalidArgument: It holds something else than the caller expects.
    """
    with wrap_decoder_errors(path, advice):
        yield _find_reader(path)(path)


READERS: Registry[Callable[[Path], Content]] = Registry(
    "readers",
    {
        "csv": "epsilometer.files.readers:open_csv",
        "csv.gz": "epsilometer.files.readers:open_csv",
        "parquet": "epsilometer.files.parquet:open_parquet",
        "npz": "epsilometer.files.npz:open_npz",
    },
)


def _find_reader(path: Path) -> Callable[[Path], Content]:
    for ending in READERS:
        if path.name.lower().endswith(f".{ending}"):
            return READERS[ending]
    *others, last = (f".{ending}" for ending in READERS)
    raise UnreadableFile(
        f"Expected a file ending in {', '.join(others)} or {last}, got {path.name!r}."
    )


def hash_file(path: Path) -> tuple[str, str]:
    """Return the name of a file and the SHA-256 of its contents."""
    with wrap_decoder_errors(path, ""):
        check_plain(path)
        with path.open("rb") as file:
            return path.name, hashlib.file_digest(file, "sha256").hexdigest()


class _TooLarge(UnreadableFile):
    """More than anybody expects of a file."""


def refuse_huge(path: Path, size: int) -> None:
    """Refuse what would take more memory than anybody expects of a file."""
    if size > LARGEST:
        raise _TooLarge(
            f"Expected at most {LARGEST / 2**30:g} GiB, {path.name!r} has {size / 2**30:.1f}."
        )


def refuse_growth(path: Path, size: int, packed: int, times: int) -> None:
    """Refuse a file that is made to fill a machine: kilobytes that unpack to gigabytes."""
    if size > _SMALL and size > times * packed:
        raise UnreadableFile(
            f"Expected {path.name!r} to become at most {times} times as large as it is, it has "
            f"{packed:,} bytes and becomes {size / 2**20:,.0f} MiB or more. Unpack it yourself if "
            "you trust it."
        )


@contextmanager
def wrap_decoder_errors(path: Path, advice: str) -> Iterator[None]:
    """Turn whatever a decoder raises on a damaged file into one sentence that names the file."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{path.name}: {error}") from error
    except _TooLarge as error:
        raise UnreadableFile(f"{error} {advice}") from error
    except EpsilometerError:
        raise
    except FileNotFoundError as error:
        raise UnreadableFile(f"Expected a file at {str(path)!r}, found none.") from error
    except MemoryError as error:
        raise UnreadableFile(f"{path.name!r} does not fit into memory. {advice}") from error
    except OSError as error:
        raise UnreadableFile(
            f"Could not read {path.name!r}: {error.strerror or type(error).__name__}."
        ) from error
    except UnicodeDecodeError as error:
        raise UnreadableFile(
            f"Could not read {path.name!r}: it is no utf-8 text, at byte {error.start:,}."
        ) from error
    except Exception as error:  # decoders of binary files raise almost anything
        excerpt = str(error)[:_EXCERPT].rstrip(".")
        kind = type(error).__name__
        raise UnreadableFile(
            f"Could not read {path.name!r}: it is damaged, or of another kind ({kind}).",
            withheld=f"The reader said: {excerpt}.",  # it may repeat the file
        ) from error


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
    if not _is_packed(path) and packed > LARGEST:
        return packed
    size = 0
    with _open_bytes(path) as file:
        while size <= LARGEST and (block := file.read(_BLOCK)):
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


def _open_bytes(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, "rb")) if _is_packed(path) else path.open("rb")


def _open_text(path: Path) -> TextIO:
    return io.TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", newline="")
