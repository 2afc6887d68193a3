"""Compare the risk of groups of records: limits and differences that share one error."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from epsilometer.core.findings import GroupDifference, GroupRisk
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import Column
from epsilometer.files.tables import cut_at_quantiles, take_words
from epsilometer.stats import clusters, membership
from epsilometer.stats.membership import Limited
from epsilometer.types import BoolArray, FloatArray, IntArray

SMALLEST = 20  # records that a group needs to be shown on its own
_MISSING = "missing"
_DISTINCT = 20  # different numbers above which a column is cut at its quartiles


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupedRisk:
    """The quantities by which groups are compared.

    Attributes:
        columns: Column → group of each record.
        records: Which records were measured.
        risk: Risk of each of these.
        limit: Limit above which a record is exposed.
        scores: Returns scores of an attack on some records; None if no attack was run.
        member: Members of the first attacked model; None if none was attacked.
        attacked: Index that selects the records attacks queried.
        confidence: Confidence of all limits and differences together.
        screened: Which measured records a screen chose for their risk; they do not represent their
            group, and do not count in its share.
        attacks: Number of attacks, from which the strongest was chosen.
    """

    columns: Mapping[str, NDArray[Any]]
    records: IntArray
    risk: FloatArray
    limit: float
    scores: Callable[[BoolArray], clusters.Observed] | None
    member: BoolArray | None
    attacked: Any
    confidence: float
    screened: BoolArray | None = None
    attacks: int = 1


def read_groups(groups: Any, n: int) -> dict[str, NDArray[np.str_]]:
    """Return the groups of all records by column, as texts.

    Args:
        groups: Column → group of each record, or a table. Numbers of many values are cut at their
            quartiles; missing values are a separate group.
        n: Number of records.

    Example:
        >>> read_groups({"sex": ["f", None, "m"]}, 3)["sex"].tolist()
        ['f', 'missing', 'm']
    """
    if groups is None:
        return {}
    if not isinstance(groups, Mapping) and not hasattr(groups, "columns"):
        raise InvalidArgument(
            f"Expected groups by column, such as {{'sex': values}}, got {type(groups).__name__}."
        )
    found = {}
    for column in groups:
        array = np.asarray(groups[column])
        if array.shape != (n,):
            raise InvalidArgument(
                f"Expected a group for each of {n} records in groups[{column!r}], got shape "
                f"{array.shape}."
            )
        # The class is a group already, under this name
        found["class as given" if column == "class" else str(column)] = _read_column(array)
    return found


def _read_column(array: NDArray[Any]) -> NDArray[np.str_]:
    """Return groups as texts."""
    if array.dtype.kind in "iuf" and np.unique(array[np.isfinite(array)]).size > _DISTINCT:
        array = take_words(cut_at_quantiles(Column("group", array), 4))
    texts = array.astype(np.str_)
    given = array.tolist()
    missing = [each is None or (isinstance(each, float) and math.isnan(each)) for each in given]
    return np.where(missing | np.isin(texts, ["", "<NA>", "NaT"]), _MISSING, texts)


def describe_left_out(grouped: GroupedRisk) -> list[str]:
    """Return sentences on records in groups that are too small to be shown or merged."""
    said = []
    for column, values in grouped.columns.items():
        shown = np.zeros(values.size, bool)
        for _, at in list_groups(values, grouped.records):
            shown |= at
        left = int((~shown[grouped.records]).sum())
        if left:
            said.append(
                f"{left:,} of {grouped.records.size:,} measured records are in groups of {column} "
                f"with fewer than {SMALLEST} together: they are not compared."
            )
    return said


def compare_groups(grouped: GroupedRisk) -> tuple[GroupRisk, ...]:
    """Return the risk of each group, and how it differs from the rest of its column.

    Guarantee: all limits of all groups and all stated differences hold together in at least
        ``confidence`` of audits, for people like these.
    Assumption: records, with all their scores, are independent and drawn from one population per
        group.
    """
    found = [
        (column, name, at, ~at)
        for column, values in grouped.columns.items()
        for name, at in list_groups(values, grouped.records)
    ]
    # Four statements about each: two limits, and two comparisons
    each = (1 - grouped.confidence) / max(4 * len(found), 1)
    return tuple(
        _describe(grouped, column, name, at, rest, each) for column, name, at, rest in found
    )


def _describe(
    grouped: GroupedRisk, column: str, name: str, at: BoolArray, rest: BoolArray, alpha: float
) -> GroupRisk:
    risk = grouped.risk
    drawn: BoolArray = np.ones(risk.size, bool)
    if grouped.screened is not None:
        drawn = ~grouped.screened
    inside, others = at[grouped.records] & drawn, rest[grouped.records] & drawn
    above = int(np.sum(risk[inside] > grouped.limit))
    above_others = int(np.sum(risk[others] > grouped.limit))
    count, count_others = int(inside.sum()), int(others.sum())
    share = Limited(0.0, 0.0, 1.0)  # where all that were measured were chosen
    if count:
        share = membership.limit_share(above, count, alpha=alpha / 2)
    auc = _limit_auc(grouped, at, alpha)
    other_auc = None if auc is None else _limit_auc(grouped, rest, alpha)
    differs: list[GroupDifference] = []
    if min(count, count_others) > 0 and count_others >= SMALLEST:
        rows = [[above, count - above], [above_others, count_others - above_others]]
        table = np.array(rows, np.int64)
        if scipy.stats.fisher_exact(table).pvalue <= alpha:
            more = above / count > above_others / count_others
            differs.append("more exposed" if more else "less exposed")
    if auc is not None and other_auc is not None:
        if auc.low > other_auc.high:
            differs.append("more attacked")
        elif auc.high < other_auc.low:
            differs.append("less attacked")
    return GroupRisk(
        column=column,
        name=name,
        records=int(at[grouped.records].sum()),
        exposed=share.value,
        exposed_low=share.low,
        exposed_high=share.high,
        median=float(np.median(risk[at[grouped.records]])),
        auc=auc and auc.value,
        auc_low=auc and auc.low,
        auc_high=auc and auc.high,
        differs=tuple(differs),
    )


def _limit_auc(grouped: GroupedRisk, at: BoolArray, alpha: float) -> Limited | None:
    """Return the AUC of the attack within a group; None with too few members or non-members."""
    if grouped.scores is None or grouped.member is None:
        return None
    member = grouped.member[at[grouped.attacked]]
    if min(int(member.sum()), int((~member).sum())) < SMALLEST:
        return None
    # Half of it for each of the two groups that are compared, for each attack that was a choice
    return clusters.auc(grouped.scores(at), confidence=1 - alpha / 2 / grouped.attacks)


def list_groups(values: NDArray[Any], records: IntArray) -> Iterator[tuple[str, BoolArray]]:
    """Yield groups and their records; small groups are merged, and dropped if still too small."""
    small = np.zeros(values.size, bool)
    measured = values[records]
    for name in sorted(np.unique(values).tolist(), key=_sort_key):
        at = values == name
        if np.sum(measured == name) >= SMALLEST:
            yield name, at
        else:
            small |= at
    if small[records].sum() >= SMALLEST:
        yield f"(fewer than {SMALLEST} each)", small


def _sort_key(name: str) -> tuple[float, str]:
    """Return a sort key: groups that begin with a number by that number, then all others."""
    number = re.match(r"-?\d+(\.\d+)?(e[+-]?\d+)?", name)
    if name.startswith("…"):
        return -math.inf, name
    return (float(number[0]) if number else math.inf), name
