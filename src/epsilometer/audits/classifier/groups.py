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
from epsilometer.stats import clusters, membership
from epsilometer.stats.membership import Limited
from epsilometer.types import BoolArray, FloatArray, IntArray

SMALLEST = 20  # records that a group needs to be shown on its own


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
    """

    columns: Mapping[str, NDArray[Any]]
    records: IntArray
    risk: FloatArray
    limit: float
    scores: Callable[[BoolArray], clusters.Observed] | None
    member: BoolArray | None
    attacked: Any
    confidence: float


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
    inside, others = at[grouped.records], rest[grouped.records]
    above = int(np.sum(risk[inside] > grouped.limit))
    above_others = int(np.sum(risk[others] > grouped.limit))
    count, count_others = int(inside.sum()), int(others.sum())
    share = membership.limit_share(above, count, alpha=alpha / 2)
    auc = _limit_auc(grouped, at, alpha)
    other_auc = None if auc is None else _limit_auc(grouped, rest, alpha)
    differs: list[GroupDifference] = []
    if count_others >= SMALLEST:
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
        records=count,
        exposed=share.value,
        exposed_low=share.low,
        exposed_high=share.high,
        median=float(np.median(risk[inside])),
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
    # Half of it for each of the two groups that are compared
    return clusters.auc(grouped.scores(at), confidence=1 - alpha / 2)


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
