"""Scores from the files people have: CSV, Parquet, npz."""

import csv
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from epsilometer._extras import needs
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.observations import Scores

LARGEST = 4 * 2**30  # bytes of scores that are taken into memory at once
_INSIDE = {"1", "1.0", "true", "yes", "in", "inside", "member"}
_OUTSIDE = {"0", "0.0", "false", "no", "out", "outside", "non-member", "nonmember"}
_WANTED = "Expected columns 'score' and 'member' (1 inside, 0 outside), or 'inside' and 'outside'"


def read_scores(path: str | os.PathLike[str]) -> Scores:
    """Reads attack scores; higher must mean "was in".

    The kind of file is told by its ending: ``.csv``, ``.parquet`` (needs the extra ``parquet``) or
    ``.npz``. It has columns or arrays ``score`` and ``member`` (1 or 0, true or false, in or out),
    or ``inside`` and ``outside``.

    Raises:
        UnreadableFile: The file is not there, damaged, too large, or has other columns.
        InvalidArgument: Its scores are no scores (nan, or one side is empty).
    """
    path = Path(path)
    kinds = {".csv": _csv_columns, ".parquet": _parquet_columns, ".npz": _npz_columns}
    if path.suffix.lower() not in kinds:
        raise UnreadableFile(
            f"Expected a file ending in .csv, .parquet or .npz, got {path.name!r}."
        )
    with _told(path):
        columns = kinds[path.suffix.lower()](path)
        return _scores(columns)


def _scores(columns: dict[str, Any]) -> Scores:
    if "score" in columns and "member" in columns:
        score, member = np.asarray(columns["score"]), _members(columns["member"])
        if score.shape != member.shape:
            raise InvalidArgument(
                f"Expected as many scores as memberships, got {score.shape} and {member.shape}."
            )
        if member.all() or not member.any():
            side = "inside" if member.any() else "outside"
            raise InvalidArgument(
                f"Expected scores of both kinds, got only {side} ones in 'member'. "
                "An audit compares runs with the record to runs without it."
            )
        return Scores(inside=score[member], outside=score[~member])
    if "inside" in columns and "outside" in columns:
        return Scores(inside=columns["inside"], outside=columns["outside"])
    raise InvalidArgument(f"{_WANTED}, found {', '.join(map(repr, columns)) or 'none'}.")


def _members(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype == bool:
        return array
    if array.dtype.kind in "iuf":
        wrong = array[(array != 0) & (array != 1)]
        if wrong.size:
            raise InvalidArgument(f"Expected 'member' to be 0 or 1, found {wrong[0]!s}.")
        return np.asarray(array == 1)
    words = np.char.lower(np.char.strip(array.astype(str)))
    known, inverse = np.unique(words, return_inverse=True)
    for word in known:
        if word not in _INSIDE | _OUTSIDE:
            raise InvalidArgument(
                f"Expected 'member' to be 1 or 0 (or true/false, in/out), found {str(word)!r}."
            )
    return np.isin(known, list(_INSIDE))[inverse].reshape(array.shape)


def _csv_columns(path: Path) -> dict[str, Any]:
    _not_huge(path, path.stat().st_size)
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        names = [name.strip().lower() for name in next(rows, [])]
        wanted = [
            pair for pair in (("score", "member"), ("inside", "outside")) if set(pair) <= set(names)
        ]
        if not wanted:
            return dict.fromkeys(names)
        first, second = wanted[0]
        cells = _cells(rows, names.index(first), names.index(second))
        if first == "score":
            scores, members = _columns(cells)
            return {"score": _numbers("score", scores), "member": members}
        inside, outside = _columns(cells)
        return {
            "inside": _numbers("inside", [cell for cell in inside if cell.strip()]),
            "outside": _numbers("outside", [cell for cell in outside if cell.strip()]),
        }


def _cells(rows: Iterator[list[str]], first: int, second: int) -> Iterator[tuple[str, str]]:
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) <= max(first, second):
            raise InvalidArgument(
                f"Expected at least {max(first, second) + 1} cells in every line, "
                f"line {number} has {len(row)}."
            )
        yield row[first], row[second]


def _columns(cells: Iterator[tuple[str, str]]) -> tuple[list[str], list[str]]:
    left, right = [], []
    for a, b in cells:
        left.append(a)
        right.append(b)
    return left, right


def _numbers(name: str, cells: Sequence[str]) -> np.ndarray:
    try:
        return np.fromiter(map(float, cells), np.float64, count=len(cells))
    except ValueError as error:
        raise InvalidArgument(f"Expected numbers in column {name!r}: {error}.") from error


def _parquet_columns(path: Path) -> dict[str, Any]:
    with needs("pyarrow", extra="parquet"):
        import pyarrow.parquet
    file = pyarrow.parquet.ParquetFile(path)
    _not_huge(path, 16 * file.metadata.num_rows)
    names = {name.strip().lower(): name for name in file.schema_arrow.names}
    wanted = [name for name in ("score", "member", "inside", "outside") if name in names]
    if not wanted:
        return dict.fromkeys(names)
    table = file.read(columns=[names[name] for name in wanted])
    columns = {name: table.column(names[name]) for name in wanted}
    if not {"score", "member"} <= set(columns):  # lists of unequal length are filled with nulls
        columns = {name: column.drop_null() for name, column in columns.items()}
    if any(column.null_count for column in columns.values()):
        raise InvalidArgument("Expected no nulls in 'score' and 'member': drop or fill those rows.")
    return {name: column.to_numpy(zero_copy_only=False) for name, column in columns.items()}


def _npz_columns(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        _not_huge(path, sum(member.file_size for member in archive.infolist()))
    with np.load(path, allow_pickle=False) as arrays:
        return {name.lower(): arrays[name] for name in arrays.files}


def _not_huge(path: Path, size: int) -> None:
    if size > LARGEST:
        raise UnreadableFile(
            f"Expected at most {LARGEST / 2**30:g} GiB of scores, {path.name!r} has "
            f"{size / 2**30:.1f}. Count them in blocks instead: "
            "ScoreCounts.at(thresholds).add(inside=…, outside=…)."
        )


@contextmanager
def _told(path: Path) -> Iterator[None]:
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
        raise UnreadableFile(
            f"{path.name!r} does not fit into memory. Count it in blocks with ScoreCounts."
        ) from error
    except Exception as error:  # decoders of binary files raise almost anything
        raise UnreadableFile(f"Could not read {path.name!r}: {error}.") from error
