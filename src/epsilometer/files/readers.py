"""Read columns from files: one reader per file suffix.

A reader is a function that takes a path and returns the file's :class:`Content`. A new format is a
module and an entry of ``READERS``, or an entry point of the group ``epsilometer.readers`` in
another package, named by the suffix without its dot.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epsilometer._files import check_plain
from epsilometer.core.registry import Registry
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.types import BoolArray

LARGEST = 4 * 2**30  # largest number of bytes to load into memory
MISSING = frozenset({"na", "n/a", "nan", "null", "none", "?", "-", "."})
_SMALL = 256 * 2**20  # bytes below which expansion is harmless
_EXCERPT = 300  # characters of a decoder's message: it may repeat the file


@dataclass(frozen=True, eq=False)
class Column:
    """Hold a column of numbers, or of words by their index.

    Attributes:
        name: Its name in the file.
        values: Numbers, nan if missing; or indices into ``words``; or an array of any kind.
        words: Sorted words, the empty one first if a word is missing; None for numbers.
        blank: Rows whose cell is empty; None if no such row is known.
    """

    name: str
    values: NDArray[Any]
    words: tuple[str, ...] | None = None
    blank: BoolArray | None = None

    @classmethod
    def of_words(
        cls, name: str, texts: Sequence[str], codes: NDArray[Any], blank: BoolArray | None = None
    ) -> "Column":
        """Return a column of words from texts in any order, and the index of each row's text."""
        order = sorted(set(texts))
        place = {word: i for i, word in enumerate(order)}
        places = np.array([place[text] for text in texts], np.int64)[codes]
        used = np.unique(places)
        words = tuple(order[i] for i in used)
        return cls(name, np.searchsorted(used, places), words, blank)

    @property
    def width(self) -> int:
        """Return the number of features that the column becomes."""
        return 1 if self.words is None else len(self.words)


class _Read(Protocol):
    def __call__(self, places: Sequence[int] | None = None) -> list[Column]: ...


@dataclass(frozen=True)
class Content:
    """Describe the contents of a file before reading it.

    Attributes:
        names: Names of its columns or arrays.
        read: Function that returns the columns at given places; without places all of them, which
            must then have equal lengths.
        is_arrays: Whether they are arrays of any shape, and not cells of a table.
        metadata: (name, text) pairs in the file's metadata.
        notes: Detected details of the format, to be reported with the result.
        rows: Upper limit of its number of records, if known before reading.
    """

    names: tuple[str, ...]
    read: _Read
    is_arrays: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    rows: int | None = None


@contextmanager
def open_columns(path: Path, *, advice: str, **layout: str) -> Iterator[Content]:
    """Open a file by the reader for its suffix; any problem becomes a one-sentence error.

    Args:
        path: The file.
        advice: Advice if the file is too large.
        layout: Known format of a text: its ``encoding``, ``delimiter`` or ``decimal``.

    Raises:
        UnreadableFile: The file is missing, damaged, too large, or has an unknown suffix.
        InvalidArgument: Its contents are not what the caller expects.
    """
    with wrap_decoder_errors(path, advice):
        reader = _find_reader(path)
        if layout and reader is not READERS["csv"]:
            raise InvalidArgument(f"Expected {' and '.join(layout)} of CSV only, got others.")
        yield reader(path, **layout)


READERS: Registry[Callable[..., Content]] = Registry(
    "readers",
    {
        "csv": "epsilometer.files.csv_text:open_csv",
        "csv.gz": "epsilometer.files.csv_text:open_csv",
        "tsv": "epsilometer.files.csv_text:open_csv",
        "tsv.gz": "epsilometer.files.csv_text:open_csv",
        "parquet": "epsilometer.files.parquet:open_parquet",
        "arrow": "epsilometer.files.arrow:open_arrow",
        "feather": "epsilometer.files.arrow:open_arrow",
        "xlsx": "epsilometer.files.excel:open_excel",
        "npz": "epsilometer.files.npz:open_npz",
    },
)


def _find_reader(path: Path) -> Callable[..., Content]:
    for ending in READERS:
        if path.name.lower().endswith(f".{ending}"):
            return READERS[ending]
    *others, last = (f".{ending}" for ending in READERS)
    raise UnreadableFile(
        f"Expected a file ending in {', '.join(others)} or {last}, got {path.name!r}. "
        "Save it as CSV."
    )


def hash_file(path: Path) -> tuple[str, str]:
    """Return the name of a file and the SHA-256 of its contents."""
    with wrap_decoder_errors(path, ""):
        check_plain(path)
        with path.open("rb") as file:
            return path.name, hashlib.file_digest(file, "sha256").hexdigest()


class _TooLarge(UnreadableFile):
    """Raised for a file that is larger than any reader expects."""


def refuse_huge(path: Path, size: int) -> None:
    """Refuse a file that would take more memory than expected."""
    if size > LARGEST:
        raise _TooLarge(
            f"Expected at most {LARGEST / 2**30:g} GiB, {path.name!r} has {size / 2**30:.1f}."
        )


def refuse_growth(path: Path, size: int, packed: int, times: int) -> None:
    """Refuse a decompression bomb: kilobytes that expand to gigabytes."""
    if size > _SMALL and size > times * packed:
        raise UnreadableFile(
            f"Expected {path.name!r} to become at most {times} times as large as it is, it has "
            f"{packed:,} bytes and becomes {size / 2**20:,.0f} MiB or more. Unpack it yourself."
        )


@contextmanager
def wrap_decoder_errors(path: Path, advice: str) -> Iterator[None]:
    """Turn any error of a decoder on a damaged file into one sentence that names the file."""
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
            f"Could not read {path.name!r}: it is no {error.encoding} text, at byte "
            f"{error.start:,}."
        ) from error
    except Exception as error:  # decoders of binary files raise almost anything
        excerpt = str(error)[:_EXCERPT].rstrip(".")
        kind = type(error).__name__
        raise UnreadableFile(
            f"Could not read {path.name!r}: it is damaged, or of another kind ({kind}).",
            withheld=f"The reader said: {excerpt}.",  # it may repeat the file
        ) from error


def parse_number(text: str) -> float | None:
    """Return a cell as a number, which may be nan or infinite; None if it is not a number."""
    if "_" in text:  # Python would read 1_000 as a number
        return None
    try:
        return float(text)
    except ValueError:
        return None


def read_numbers(name: str, column: Column) -> NDArray[Any]:
    """Return the numbers of a column of scores, and refuse blanks and words in it."""
    if column.blank is not None and column.blank.any():
        row = int(np.argmax(column.blank)) + 1
        raise InvalidArgument(
            f"Expected numbers in column {name!r}, row {row} of the data has a blank. "
            "A run that diverged is an observation: score it ±inf."
        )
    if column.words is None:
        return column.values
    numbers = [parse_number(word) for word in column.words]
    wrong = np.flatnonzero(np.array([number is None for number in numbers])[column.values])
    if wrong.size:
        raise InvalidArgument(
            f"Expected numbers in column {name!r}, row {wrong[0] + 1} has something else."
        )
    found: NDArray[Any] = np.array(numbers, np.float64)[column.values]
    return found


def check_single(names: Sequence[str], name: str) -> str:
    """Return the name of a column; refuse one that several have."""
    if (found := names.count(name)) > 1:
        raise InvalidArgument(f"Expected one column {name!r}, found {found}.")
    return name


def cut_padding(column: Column) -> Column:
    """Remove the blanks that pad the shorter column; a blank in between stays an error."""
    if column.blank is None:
        return column
    filled = np.flatnonzero(~column.blank)
    end = int(filled[-1]) + 1 if filled.size else 0
    return replace(column, values=column.values[:end], blank=column.blank[:end])


def check_header(names: Sequence[str]) -> None:
    """Refuse a first line that does not consist of names: it may be a record."""
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
        raise InvalidArgument(  # without its text: it may be a record
            f"Expected a first line of names of columns, all different, found {found}. Does the "
            "file begin with a record?"
        )
