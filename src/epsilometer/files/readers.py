"""Scores from the files people have: CSV, Parquet, npz."""

import csv
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._files import check_plain
from epsilometer.core.scores import Scores
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.files.packed import measure_archive, measure_text, open_parquet

LARGEST = 4 * 2**30  # bytes that are taken into memory at once
_INSIDE = {"1", "1.0", "true", "yes", "in", "inside", "member"}
_OUTSIDE = {"0", "0.0", "false", "no", "out", "outside", "non-member", "nonmember"}
_COUNT = "Count them in blocks instead: ScoreCounts.at(thresholds).add(inside=…, outside=…)."
_SAID = 300  # characters of what a decoder says: it may repeat the file
Columns: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class ScoreFile:
    """A file of scores, by its path: what a result names in place of the scores themselves."""

    path: Path

    def load(self) -> dict[str, Any]:
        """Read the scores: ``inside``, ``outside``, and the file's name as ``title``."""
        scores = read_scores(self.path)
        return {"inside": scores.inside, "outside": scores.outside, "title": scores.title}

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the name of the file and the SHA-256 of its contents."""
        return (hash_file(self.path),)


def hash_file(path: Path) -> tuple[str, str]:
    """Return the name of a file and the SHA-256 of its contents."""
    with told(path, ""):
        check_plain(path)
        with path.open("rb") as file:
            return path.name, hashlib.file_digest(file, "sha256").hexdigest()


def read_scores(path: str | os.PathLike[str]) -> Scores:
    """Reads attack scores; higher must mean "was in".

    The kind of file is told by its ending: ``.csv``, ``.parquet`` (needs the extra ``parquet``) or
    ``.npz``. It has columns or arrays ``score`` and ``member`` (1 or 0, true or false, in or out),
    or ``inside`` and ``outside``, of which the shorter may be filled up with blanks.

    Raises:
        UnreadableFile: The file is not there, damaged, or too large.
        InvalidArgument: It has other columns, or its scores are no scores (nan, gaps, one side
            empty).

    Example:
        >>> import tempfile, pathlib, epsilometer as em
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "scores.csv"
        ...     _ = file.write_text("score,member\\n2.5,1\\n0.5,0\\n1.5,0\\n")
        ...     scores = em.read_scores(file)
        >>> scores.inside.tolist(), scores.outside.tolist()
        ([2.5], [0.5, 1.5])
    """
    path = Path(path)
    kinds = {".csv": _csv_columns, ".parquet": _parquet_columns, ".npz": _npz_columns}
    if path.suffix.lower() not in kinds:
        raise UnreadableFile(
            f"Expected a file ending in .csv, .parquet or .npz, got {path.name!r}."
        )
    with told(path, _COUNT):
        scores = _scores(kinds[path.suffix.lower()](path))
    return replace(scores, title=path.name, source=ScoreFile(path))


def _scores(columns: Columns) -> Scores:
    if "inside" in columns:
        return Scores(inside=columns["inside"], outside=columns["outside"])
    score, member = np.asarray(columns["score"]), _members(columns["member"])
    if score.shape != member.shape or score.ndim != 1:
        raise InvalidArgument(
            f"Expected as many scores as memberships, got shapes {score.shape} and {member.shape}."
        )
    if score.size == 0:
        raise InvalidArgument("Expected scores, got a file without any.")
    if member.all() or not member.any():
        side = "inside" if member.any() else "outside"
        raise InvalidArgument(
            f"Expected scores of both kinds, got only {side} ones in 'member'. "
            "An audit compares runs with the record to runs without it."
        )
    return Scores(inside=score[member], outside=score[~member])


def _wanted(found: Iterable[str]) -> dict[str, str]:
    """The two columns to read: our name → the file's."""
    names = {name.strip().lower(): name for name in found}
    for pair in (("score", "member"), ("inside", "outside")):
        if set(pair) <= set(names):
            return {name: names[name] for name in pair}
    if any(is_number(name) for name in names):  # a record, which is nobody else's business
        shown = "numbers in the first line, which names the columns"
    else:
        shown = _validate.listed(names)
    raise InvalidArgument(
        "Expected columns 'score' and 'member' (1 inside, 0 outside), or 'inside' and 'outside', "
        f"found {shown}."
    )


def _members(values: Any) -> NDArray[np.bool_]:
    if isinstance(values, list):  # an array of texts would have the width of the longest for each
        return _said_to_be_inside(values)
    array = np.asarray(values)
    if array.dtype == bool:
        return array
    if array.dtype.kind in "iuf":
        wrong = np.flatnonzero((array != 0) & (array != 1))
        if wrong.size:
            raise InvalidArgument(
                f"Expected 'member' to be 0 or 1, row {wrong[0] + 1} of the data has another value."
            )
        return np.asarray(array == 1)
    texts = array.astype(str) if array.dtype.kind == "S" else array
    return _said_to_be_inside([str(each) for each in texts.ravel().tolist()]).reshape(array.shape)


def _said_to_be_inside(words: list[str]) -> NDArray[np.bool_]:
    plain = {word: word.strip().lower() for word in set(words)}
    unknown = {word for word, known in plain.items() if known not in _INSIDE | _OUTSIDE}
    if unknown:
        row = next(row for row, word in enumerate(words, start=1) if word in unknown)
        found = "another value" if words[row - 1].strip() else "none"
        raise InvalidArgument(
            f"Expected 'member' to be 1 or 0 (or true/false, in/out), row {row} of the data has "
            f"{found}."
        )
    inside = {word: plain[word] in _INSIDE for word in plain}
    return np.fromiter(map(inside.__getitem__, words), bool, count=len(words))


def _csv_columns(path: Path) -> Columns:
    not_huge(path, measure_text(path, largest=LARGEST), _COUNT)
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        rows = (row for row in lines if row)
        header = next(rows, [])
        at = {name: header.index(column) for name, column in _wanted(header).items()}
        cells: dict[str, list[str]] = {name: [] for name in at}
        for row in rows:
            for name, index in at.items():
                if index >= len(row):
                    raise InvalidArgument(
                        f"Expected at least {index + 1} cells in every line, "
                        f"line {lines.line_num} has {len(row)}."
                    )
                cells[name].append(row[index])
    if "member" in cells:
        return {"score": _numbers("score", cells["score"]), "member": cells["member"]}
    return {name: _numbers(name, _unpadded(column)) for name, column in cells.items()}


def _unpadded(cells: list[str]) -> list[str]:
    """Without the blanks that fill up the shorter column; one in between stays, as an error."""
    end = len(cells)
    while end and not cells[end - 1].strip():
        end -= 1
    return cells[:end]


def _numbers(name: str, cells: list[str]) -> NDArray[np.float64]:
    try:
        return np.fromiter(map(number, cells), np.float64, count=len(cells))
    except ValueError:
        row, cell = next(
            (row, cell) for row, cell in enumerate(cells, start=1) if not is_number(cell)
        )
        found = "something else" if cell.strip() else "a blank"
        advice = "" if cell.strip() else " A run that diverged is an observation: score it ±inf."
        raise InvalidArgument(
            f"Expected numbers in column {name!r}, row {row} of the data has {found}.{advice}"
        ) from None  # whose text is the cell


def number(cell: str) -> float:
    """A cell as a number; ``ValueError`` where it is none."""
    if "_" in cell:  # Python would read 1_000 as a number
        raise ValueError(cell)
    return float(cell)


def is_number(cell: str) -> bool:
    """Whether a cell holds a number, which may be nan or infinite."""
    try:
        number(cell)
    except ValueError:
        return False
    return True


def _parquet_columns(path: Path) -> Columns:
    file = open_parquet(path, width=16)
    not_huge(path, 16 * file.metadata.num_rows, _COUNT)
    wanted = _wanted(file.schema_arrow.names)
    table = file.read(columns=list(wanted.values()))
    columns = {}
    for name, column in wanted.items():
        values = table.column(column)
        if name in ("inside", "outside"):  # the shorter one is filled up with nulls
            values = values.slice(0, len(values) - _trailing_nulls(values))
        if values.null_count:
            raise InvalidArgument(
                f"Expected no nulls in {name!r}, found {values.null_count}. "
                "A run that diverged is an observation too: score it as ±inf, do not drop it."
            )
        columns[name] = take_words(values) if _is_words(values) else _to_numpy(values)
    return columns


def take_words(values: Any) -> NDArray[Any]:
    """Return the texts of a column of pyarrow that holds them as numbers of a list of words."""
    whole = values.unify_dictionaries().combine_chunks()
    words = np.array(whole.dictionary.to_pylist(), dtype=object)
    found: NDArray[Any] = words[whole.indices.to_numpy(zero_copy_only=False)]
    return found


def _is_words(values: Any) -> bool:
    from pyarrow import types

    return bool(types.is_dictionary(values.type) and types.is_string(values.type.value_type))


def _to_numpy(values: Any) -> NDArray[Any]:
    found: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


def _trailing_nulls(values: Any) -> int:
    present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    return len(values) - (int(present[-1]) + 1 if present.size else 0)


def _npz_columns(path: Path) -> Columns:
    not_huge(path, measure_archive(path), _COUNT)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[column] for name, column in _wanted(arrays.files).items()}


def not_huge(path: Path, size: int, advice: str) -> None:
    """Refuses what would take more memory than anybody expects of a file."""
    if size > LARGEST:
        raise UnreadableFile(
            f"Expected at most {LARGEST / 2**30:g} GiB, {path.name!r} has {size / 2**30:.1f}. "
            f"{advice}"
        )


@contextmanager
def told(path: Path, advice: str) -> Iterator[None]:
    """Turns whatever a decoder raises on a damaged file into one sentence that names the file."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{path.name}: {error}") from error
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
        said = str(error)[:_SAID].rstrip(".")
        kind = type(error).__name__
        raise UnreadableFile(
            f"Could not read {path.name!r}: it is damaged, or of another kind ({kind}).",
            withheld=f"The reader said: {said}.",  # it may repeat the file
        ) from error
