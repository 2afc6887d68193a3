"""Read attack scores from a file of any kind that a reader takes."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.core.scores import Design, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import Column, hash_file, open_columns, parse_number
from epsilometer.types import BoolArray

_INSIDE = {"1", "1.0", "true", "yes", "in", "inside", "member"}
_OUTSIDE = {"0", "0.0", "false", "no", "out", "outside", "non-member", "nonmember"}
_COUNT = "Count them in blocks instead: ScoreCounts.at(thresholds).add(inside=…, outside=…)."


@dataclass(frozen=True)
class ScoreFile:
    """A file of scores, by its path: what a result names in place of the scores themselves."""

    path: Path
    STATES: ClassVar = ("design", "inclusion")  # which settings must not contradict

    def load(self) -> dict[str, Any]:
        """Read the scores, their design where the file states one, and its name as ``title``."""
        scores, stated = _read_file(self.path)
        sides = {"inside": scores.inside, "outside": scores.outside}
        return {**sides, "title": scores.title, **stated}

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the name of the file and the SHA-256 of its contents."""
        return (hash_file(self.path),)


def read_scores(path: str | os.PathLike[str]) -> Scores:
    """Read attack scores; higher must mean "was in".

    The name's ending says how: ``.csv``, ``.csv.gz``, ``.parquet`` (needs the extra ``parquet``) or
    ``.npz``. It has columns or arrays ``score`` and ``member`` (1 or 0, true or false, in or out),
    or ``inside`` and ``outside``, of which the shorter may be filled up with blanks.

    A file may state its design, as of ``Scores``: in columns or arrays ``design`` and
    ``inclusion`` of one value each, or in the metadata of a ``.parquet``.

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
    return _read_file(Path(path))[0]


def _read_file(path: Path) -> tuple[Scores, dict[str, Any]]:
    """Return the scores of a file, and what it states of their design."""
    with open_columns(path, advice=_COUNT) as content:
        wanted = _choose_columns(content.names)
        found = dict(zip(wanted, content.read(list(wanted.values())), strict=True))
        stated = {
            name: _take_one(name, found.pop(name)) for name in ScoreFile.STATES if name in found
        }
        if not stated:
            stated = {n: text for n, text in content.metadata if n in ScoreFile.STATES}
        design = _read_design(stated)
        if "inside" in found:
            inside, outside = (_take_scores(n, _cut_padding(c)) for n, c in found.items())
            scores = Scores(inside=inside, outside=outside, **design)
        else:
            score = _take_scores("score", found["score"])
            scores = _divide_scores(score, _read_members(found["member"]), design)
    return replace(scores, title=path.name, source=ScoreFile(path)), design


def _take_one(name: str, column: Column) -> str:
    """Return the one value that a column has in all of its rows, but for blanks."""
    if column.words is None:
        values = column.values.ravel()
        blank = np.zeros(values.size, bool) if column.blank is None else column.blank
        known = {str(value).strip() for value in np.unique(values[~blank]).tolist()}
    else:
        known = {column.words[place] for place in np.unique(column.values)} - {""}
    if len(known) != 1:
        raise InvalidArgument(  # without the values: another table may have such a column
            f"Expected one value of {name!r} in all rows, got {len(known)}. Scores of different "
            "designs are audited one by one."
        )
    return known.pop()


def _read_design(stated: dict[str, str]) -> dict[str, Any]:
    """Return what a file states of its design, as fields of scores."""
    found: dict[str, Any] = {name: text.strip().lower() for name, text in stated.items()}
    if found.get("design", "runs") not in get_args(Design):
        raise InvalidArgument(
            f"Expected 'design' to be one of {', '.join(get_args(Design))}, got another word."
        )
    if "inclusion" in found:
        found["inclusion"] = parse_number(found["inclusion"])
        if found["inclusion"] is None:
            raise InvalidArgument("Expected a number in 'inclusion', got something else.")
    return found


def _divide_scores(score: NDArray[Any], member: BoolArray, design: dict[str, Any]) -> Scores:
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
    return Scores(inside=score[member], outside=score[~member], **design)


def _choose_columns(found: Iterable[str]) -> dict[str, int]:
    """Return the columns to read: our name → its place in the file."""
    names = {name.strip().lower(): place for place, name in enumerate(found)}
    for pair in (("score", "member"), ("inside", "outside")):
        if set(pair) <= set(names):
            return {name: names[name] for name in (*pair, *ScoreFile.STATES) if name in names}
    if any(parse_number(name) is not None for name in names):  # a record, nobody else's business
        shown = "numbers in the first line, which names the columns"
    else:
        shown = _validate.listed(names)
    raise InvalidArgument(
        "Expected columns 'score' and 'member' (1 inside, 0 outside), or 'inside' and 'outside', "
        f"found {shown}."
    )


def _cut_padding(column: Column) -> Column:
    """Cut off the blanks that fill up the shorter column; one in between stays, as an error."""
    if column.blank is None:
        return column
    filled = np.flatnonzero(~column.blank)
    end = int(filled[-1]) + 1 if filled.size else 0
    return replace(column, values=column.values[:end], blank=column.blank[:end])


def _take_scores(name: str, column: Column) -> NDArray[Any]:
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
            f"Expected numbers in column {name!r}, row {wrong[0] + 1} of the data has something "
            "else."
        )
    found: NDArray[Any] = np.array(numbers, np.float64)[column.values]
    return found


def _read_members(column: Column) -> BoolArray:
    words, values = column.words, column.values
    if words is None and values.dtype.kind in "SU":
        unique, codes = np.unique(values.astype(str), return_inverse=True)
        words, values = tuple(unique.tolist()), codes.reshape(values.shape)
    if words is None:
        inside, known = values == 1, (values == 0) | (values == 1)
    else:
        plain = [word.strip().lower() for word in words]
        inside = np.array([word in _INSIDE for word in plain], bool)[values]
        known = inside | np.array([word in _OUTSIDE for word in plain], bool)[values]
    if not known.all():
        row = int(np.argmin(known.ravel()))
        blank = column.blank is not None and column.blank[row]
        raise InvalidArgument(
            f"Expected 'member' to be 1 or 0 (or true/false, in/out), row {row + 1} of the data "
            f"has {'none' if blank else 'another value'}."
        )
    return np.asarray(inside)
