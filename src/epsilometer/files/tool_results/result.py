"""Hold another tool's result: scores of its attacks, and what it does not state about them."""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import FloatArray

_LONGEST = 80  # letters of a name that a file gives an attack
_MOST = 10**8  # records of a curve
_ROUNDED = 1e-4  # of an AUC that a tool reports
_TOLERANCE = 1e-6  # tolerance, in records, for a rate times their number to be a whole number


@dataclass(frozen=True, eq=False)
class Attack:
    """Hold scores of one attack; higher means "was in".

    Attributes:
        name: Name by which it is chosen if a file has several.
        inside: Scores of records that were trained on.
        outside: Scores of records that were not.
    """

    name: str
    inside: FloatArray
    outside: FloatArray


@dataclass(frozen=True, eq=False)
class ToolResult:
    """Hold the attacks for which a result has scores.

    Attributes:
        tool: The tool that wrote it.
        attacks: At least one attack.
        usual: How the tool itself includes records, in words; empty if it leaves that to users.
        beside: Further files that were read.
        designs: Designs that a user may state: not ``runs`` if all scores are of one model.
    """

    tool: str
    attacks: tuple[Attack, ...]
    usual: str = ""
    beside: tuple[Path, ...] = ()
    designs: tuple[str, ...] = ("fixed", "coins")

    def choose(self, name: str | None) -> Attack:
        """Return the attack with a name, or a unique part of it; by default the only attack.

        Raises:
            InvalidArgument: It is not clear which one is meant.
        """
        if name is None and len(self.attacks) == 1:
            return self.attacks[0]
        exact = [attack for attack in self.attacks if attack.name == name]
        part = (name or "").strip().lower()
        found = exact or [each for each in self.attacks if part and part in each.name.lower()]
        if len(found) == 1:
            return found[0]
        raise InvalidArgument(
            f"Expected which attack of {self.tool} is meant, by --attack or attack=, got "
            f"{_validate.short(name)}. There are: "
            f"{'; '.join(attack.name for attack in self.attacks)}. Choose before you look: the "
            "largest of several bounds is not valid."
        )

    def ask_design(self) -> str:
        """Return the error that asks how records were included, which these files do not state."""
        usual = f" {self.usual}" if self.usual else ""
        runs = ", runs where every score is of a separate run" if "runs" in self.designs else ""
        return (
            f"Expected a design with a result of {self.tool}, which does not say how records "
            "came in, got none. Give --design (or design=) fixed where a random split chose those "
            f"that were trained on, coins where each had its own coin{runs}. Coins prove about "
            f"twice as much, and falsely so of a split.{usual} A split by time, place or person is "
            "none of them."
        )


@dataclass(frozen=True, eq=False)
class Opened:
    """Hold the contents of a file before its tool is recognised.

    Attributes:
        path: The file.
        names: Names of its columns or arrays, or of lists in a JSON object, in order.
        read: Function that returns the numbers of one of them.
        tree: Contents of a JSON or pickle file, as inert objects; None for others.
        open_beside: Function that opens another file in the same folder.
    """

    path: Path
    names: Set[str]
    read: Callable[[str], NDArray[Any]]
    open_beside: Callable[[str], "Opened"]
    tree: Any = None

    def find(self, name: str) -> NDArray[Any] | None:
        """Return the numbers of a column, array or list; None if it is missing."""
        return self.read(name) if name in self.names else None


def take_side(values: Any, name: str, *, classes: bool = False) -> FloatArray:
    """Return scores as a row of numbers.

    Args:
        values: A one-dimensional array, or a column.
        name: Name to use in errors.
        classes: Whether two columns are probabilities to be out and in; the second is used.

    Example:
        >>> take_side([[0.25, 0.75], [0.5, 0.5]], "inferred_train", classes=True).tolist()
        [0.75, 0.5]
    """
    try:
        if np.iscomplexobj(values):
            raise TypeError("a complex number is not a score")
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"Expected numbers in {name!r}, got something else.") from error
    if array.ndim == 2 and array.shape[1] in ((1, 2) if classes else (1,)):
        array = array[:, -1]
    if array.ndim != 1 or not array.size:
        raise InvalidArgument(
            f"Expected a row of scores in {name!r}, got an array of shape {array.shape}."
        )
    return array


def divide_by_member(name: str, score: Any, member: Any) -> Attack:
    """Return the attack of scores that stand other than memberships of 1 and 0."""
    scores, members = take_side(score, name), take_side(member, f"memberships of {name}")
    if scores.shape != members.shape or not np.isin(members, (0, 1)).all():
        raise InvalidArgument(
            f"Expected a membership of 1 or 0 for every score of {name!r}, got others."
        )
    inside = members == 1
    if inside.all() or not inside.any():
        raise InvalidArgument(f"Expected scores of both kinds of {name!r}, got one kind only.")
    return Attack(shorten(name), scores[inside], scores[~inside])


def check_area(attack: Attack, area: Any = None, *, fpr: Any = None, tpr: Any = None) -> Attack:
    """Return an attack after checking that its scores have the AUC that its tool reports.

    Scores of another run, with the wrong sign or truncated have a different one.

    Args:
        attack: Scores as they were read.
        area: The reported AUC; None if there is none.
        fpr: False positive rates of a ROC curve reported instead; None without one.
        tpr: Its true positive rates, likewise.

    Raises:
        InvalidArgument: The scores have another AUC.
    """
    if area is None and fpr is not None and tpr is not None:
        fpr, tpr = (take_side(rates, f"ROC curve of {attack.name}") for rates in (fpr, tpr))
        area = np.trapezoid(tpr, fpr) if fpr.size == tpr.size else np.nan
    if area is None:
        return attack
    found = tradeoff_curve(Scores(attack.inside, attack.outside)).auc
    reported = float(take_side(np.ravel(area), f"AUC of {attack.name}")[0])
    if not abs(found - reported) <= _ROUNDED:
        raise InvalidArgument(
            f"Expected scores with the AUC of {reported:.4f} that {attack.name!r} reports with "
            f"them, got {found:.4f}. They are of another run, cut off, or of the other sign."
        )
    return attack


def rank_by_curve(name: str, fpr: Any, tpr: Any, *, inside: int, outside: int) -> Attack:
    """Return scores with the given ROC curve, whose points count the records above each score.

    Guarantee: errors at every point are those of the scores that the curve was drawn from.
    Assumption: the curve begins at (0, 0) and ends at (1, 1), as that of scikit-learn does.

    Example:
        >>> rank_by_curve("an attack", [0, 0, 1], [0, 0.5, 1], inside=2, outside=1).inside.tolist()
        [-1.0, -2.0]
    """
    if not 0 < inside <= _MOST or not 0 < outside <= _MOST:
        raise InvalidArgument(f"Expected 1 to {_MOST:,} records of either kind in {name!r}.")
    counts = []
    for rates, total in ((tpr, inside), (fpr, outside)):
        exact = take_side(rates, f"ROC curve of {name}") * total
        whole = np.rint(exact)
        ends = whole.size > 1 and whole[0] == 0 and whole[-1] == total
        if not ends or np.abs(exact - whole).max() > _TOLERANCE or np.any(np.diff(whole) < 0):
            raise InvalidArgument(
                f"Expected a whole ROC curve of {inside} and {outside} records in {name!r}."
            )
        counts.append(np.diff(whole, prepend=0).astype(np.int64))
    if counts[0].size != counts[1].size:
        raise InvalidArgument(f"Expected as many false as true positive rates in {name!r}.")
    ranks = -np.arange(counts[0].size, dtype=np.float64)
    return Attack(shorten(name), np.repeat(ranks, counts[0]), np.repeat(ranks, counts[1]))


def shorten(name: str) -> str:
    """Return the name of an attack in one line of at most 80 characters."""
    return " ".join(str(name).split())[:_LONGEST]


def say_none(tool: str, reasons: Iterable[str], advice: str) -> InvalidArgument:
    """Return the error for a result that has no scores to audit."""
    found = " ".join(dict.fromkeys(reasons))
    return InvalidArgument(
        f"Expected scores of records in a result of {tool}, found none that an audit can use."
        f"{f' {found}' if found else ''} {advice}"
    )
