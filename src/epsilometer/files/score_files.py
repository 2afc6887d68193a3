"""Read attack scores from a file of any supported format."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.core.scores import Design, Scores
from epsilometer.core.settings import Unstated, check_answer
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import (
    Column,
    check_single,
    cut_padding,
    hash_file,
    open_columns,
    parse_number,
    read_numbers,
)
from epsilometer.files.tool_results.reading import TREES, find_result, open_content, read_tree
from epsilometer.files.tool_results.result import ToolResult
from epsilometer.types import BoolArray

_INSIDE = {"1", "1.0", "true", "yes", "in", "inside", "member"}
_OUTSIDE = {"0", "0.0", "false", "no", "out", "outside", "non-member", "nonmember"}
_COUNT = "Count them in blocks instead: ScoreCounts.at(thresholds).add(inside=…, outside=…)."


@dataclass(frozen=True)
class ScoreFile:
    """Refer to a file of scores by its path, which results store instead of the scores.

    Attributes:
        path: The file.
        attack: Name of the attack, if another tool wrote the file and it has several.
    """

    path: Path
    attack: str | None = None
    STATES: ClassVar = ("design", "inclusion")  # which settings must not contradict

    def load(self) -> dict[str, Any]:
        """Read the scores, their design if the file states it, and its name as ``title``."""
        scores, stated = _read_file(self)
        sides = {"inside": scores.inside, "outside": scores.outside}
        return {**sides, "title": scores.title, **stated}

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the names and SHA-256 of the file, and of those that are read with it."""
        return tuple(map(hash_file, (self.path, *_list_beside(self.path))))


def read_scores(
    path: str | os.PathLike[str], *, design: Design | None = None, attack: str | None = None
) -> Scores:
    """Read attack scores; higher must mean "was in".

    Formats are ``.csv``, ``.csv.gz``, ``.parquet`` (extra ``parquet``) and ``.npz``. Columns or
    arrays are ``score`` and ``member`` (1 or 0, true or false, in or out). Or they are ``inside``
    and ``outside``, the shorter padded with blanks.

    A file may state the design of ``Scores`` in columns or arrays ``design`` and ``inclusion``, or
    in the metadata of a ``.parquet``.

    Results of Privacy Meter, PrivacyGuard, SACRO-ML, ART, JAX-Privacy and TensorFlow Privacy are
    recognised too. Nothing in a ``.pickle`` is executed. These files do not state their design.

    Args:
        path: The file.
        design: Design of ``Scores``; required if another tool wrote the file.
        attack: Name of the attack, or a part of it, if such a file has several.

    Raises:
        UnreadableFile: The file is missing, damaged, or too large.
        InvalidArgument: Columns are missing, scores are nan, blank or empty on one side, or the
            design is not stated.

    Example:
        >>> import tempfile, pathlib, epsilometer as em
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "scores.csv"
        ...     _ = file.write_text("score,member\\n2.5,1\\n0.5,0\\n1.5,0\\n")
        ...     scores = em.read_scores(file)
        >>> scores.inside.tolist(), scores.outside.tolist()
        ([2.5], [0.5, 1.5])
    """
    scores, stated = _read_file(ScoreFile(Path(path), attack))
    known = stated.get("design")
    if isinstance(known, Unstated):
        check_answer("design", design, known)
    elif known is not None and design not in (None, known):
        raise InvalidArgument(
            f"Expected the design that the file states, {known!r}, got {_validate.short(design)}."
        )
    return scores if design is None else replace(scores, design=design)


def _read_file(file: ScoreFile) -> tuple[Scores, dict[str, Any]]:
    """Return the scores of a file, and the design that it states."""
    if file.path.suffix.lower() in TREES:
        return _take_attack(read_tree(file.path), file)
    with open_columns(file.path, advice=_COUNT) as content:
        wanted = _choose_columns(content.names)
        if wanted is None:
            return _take_attack(find_result(open_content(file.path, content)), file)
        if file.attack is not None:
            raise InvalidArgument(
                "Expected no attack with columns of scores, which are of one attack, got "
                f"{_validate.short(file.attack)}."
            )
        found = dict(zip(wanted, content.read(list(wanted.values())), strict=True))
        stated = {
            name: _take_one(name, found.pop(name)) for name in ScoreFile.STATES if name in found
        }
        if not stated:
            stated = {n: text for n, text in content.metadata if n in ScoreFile.STATES}
        design = _read_design(stated)
        if "inside" in found:
            inside, outside = (read_numbers(n, cut_padding(c)) for n, c in found.items())
            scores = Scores(inside=inside, outside=outside, **design)
        else:
            score = read_numbers("score", found["score"])
            scores = _divide_scores(score, _read_members(found["member"]), design)
    return replace(scores, title=file.path.name, source=file), design


def _take_attack(result: ToolResult, file: ScoreFile) -> tuple[Scores, dict[str, Any]]:
    """Return the scores of the selected attack, whose design is not known."""
    chosen = result.choose(file.attack)
    if len({*chosen.inside.tolist(), *chosen.outside.tolist()}) == 1:
        raise InvalidArgument(
            f"Expected scores that differ, got the same for all records by {result.tool}: the "
            "attack answers nothing, and not to be refuted by it would mean nothing."
        )
    title = f"{chosen.name} of {result.tool}, {file.path.name}"
    scores = Scores(inside=chosen.inside, outside=chosen.outside, title=title, source=file)
    return scores, {"design": Unstated(result.ask_design(), result.designs)}


def _list_beside(path: Path) -> tuple[Path, ...]:
    """Return the further files that another tool's result is read from."""
    if path.suffix.lower() in TREES:
        return read_tree(path).beside
    with open_columns(path, advice=_COUNT) as content:
        if _choose_columns(content.names) is not None:
            return ()
        return find_result(open_content(path, content)).beside


def _take_one(name: str, column: Column) -> str:
    """Return the single value that a column has in all rows, except for blanks."""
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
    """Return the design that a file states, as fields of ``Scores``."""
    found: dict[str, Any] = {name: text.strip().lower() for name, text in stated.items()}
    if found.get("design", "runs") not in get_args(Design):
        raise InvalidArgument(
            f"Expected 'design' to be one of {', '.join(get_args(Design))}, got another word."
        )
    if "inclusion" in found:
        found["inclusion"] = parse_number(found["inclusion"])
        inclusion, usual = found["inclusion"], found.get("design", "runs") != "coins"
        if inclusion is None or not 0 < inclusion < 1 or (usual and inclusion != 0.5):
            raise InvalidArgument(  # without the value, likewise
                "Expected a number in (0, 1) in 'inclusion', and 0.5 for all designs but coins, "
                "got something else."
            )
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


def _choose_columns(found: Iterable[str]) -> dict[str, int] | None:
    """Return the columns to read: name → its place in the file; None if they are missing."""
    names = [name.strip().lower() for name in found]
    for pair in (("score", "member"), ("inside", "outside")):
        if set(pair) <= set(names):
            wanted = [name for name in (*pair, *ScoreFile.STATES) if name in names]
            return {name: names.index(check_single(names, name)) for name in wanted}
    return None


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
