"""What would help: dropping the riskiest records, showing fewer decimals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.audits.classifier.leave_one_out.pdtp import Pdtp
from epsilometer.audits.classifier.leave_one_out.refits import rows
from epsilometer.audits.classifier.leave_one_out.rounding import flipped, predicted, seen, shown
from epsilometer.core.findings import RemovalPlan, RoundingStep
from epsilometer.core.scores import Scores
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import FloatArray, IntArray

DECIMALS: tuple[int | None, ...] = (None, 4, 3, 2, 1, -1)
_PATIENCE = 5  # measurements without a new best
_SHARE = 10  # of those exposed, dropped at a time


@dataclass(frozen=True, eq=False, kw_only=True)
class Sawtooth:
    """What was measured after each drop.

    Attributes:
        dropped: Row numbers, in the order they were dropped.
        removed: How many had been dropped at each measurement.
        largest: The largest risk then.
        exposed: Records above the limit then.
        accuracy: Share of those left that were predicted rightly.
    """

    dropped: IntArray
    removed: IntArray
    largest: FloatArray
    exposed: IntArray
    accuracy: FloatArray


def sawtooth(
    measure: Callable[[Any, Any], Pdtp],
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    limit: float,
    decimals: int | None,
    steps: int,
) -> Sawtooth:
    """Drops the riskiest tenth of those above the limit, measures all again, and so on.

    It ends where none is above the limit, where five measurements brought no new best, where a
    class would vanish, or after ``steps`` measurements.

    Args:
        measure: PDTP of all records of given features and labels.
        X: Features.
        y: Labels.
        limit: Above which a record is exposed.
        decimals: With how many decimals probabilities are shown.
        steps: Measurements at most, the first not counted.
    """
    labels = np.asarray(y)
    left = np.arange(labels.size)
    dropped: list[int] = []
    removed, largest, exposed, accuracy = [], [], [], []
    while True:
        found = measure(rows(X, left), labels[left])
        risk = seen(found.full, found.without, decimals=decimals).risk
        above = int(np.sum(risk > limit))
        right = found.classes[predicted(found.full)] == labels[left]
        removed.append(len(dropped))
        largest.append(float(risk.max()))
        exposed.append(above)
        accuracy.append(float(right.mean()))
        if not above or len(removed) > steps or _stalled(exposed):
            break
        worst = np.argsort(-risk, kind="stable")[: max(1, above // _SHARE)]
        after = np.delete(left, worst)
        if np.unique(labels[after]).size < np.unique(labels[left]).size:
            break
        dropped += left[worst].tolist()
        left = after
    return Sawtooth(
        dropped=np.array(dropped, np.int64),
        removed=np.array(removed, np.int64),
        largest=np.array(largest),
        exposed=np.array(exposed, np.int64),
        accuracy=np.array(accuracy),
    )


def _stalled(exposed: Sequence[int]) -> bool:
    return len(exposed) - 1 - int(np.argmin(exposed)) >= _PATIENCE


def removal_plan(found: Sawtooth, ranks: Mapping[int, int]) -> RemovalPlan:
    """The saw-tooth, with what it comes to; ``ranks`` are those of records by row number."""
    best = int(np.argmin(found.exposed))
    dropped, first = int(found.removed[best]), int(found.exposed[0])
    fewest, last = int(found.exposed[best]), int(found.removed[-1])
    lost = float(found.accuracy[0] - found.accuracy[best])
    if not dropped:
        ended = f"Dropping {last:,} of the riskiest did not help: {first:,} were exposed, no fewer."
    elif fewest:
        ended = (
            f"Dropping {dropped:,} brings {first:,} exposed records down to {fewest:,}, not to "
            f"none; {last:,} were tried. Others come out where the riskiest leave."
        )
    else:
        ended = f"After dropping {dropped:,} no record is exposed; accuracy falls by {lost:.3f}."
    return RemovalPlan(
        removed=tuple(found.removed.tolist()),
        largest=tuple(found.largest.tolist()),
        exposed=tuple(found.exposed.tolist()),
        accuracy=tuple(found.accuracy.tolist()),
        ranks=tuple(ranks.get(record, 0) for record in found.dropped.tolist()),
        best=dropped,
        ended=ended,
    )


def rounding_steps(
    full: FloatArray,
    without: FloatArray,
    codes: IntArray,
    *,
    limit: float,
    advantages: FloatArray | None,
) -> tuple[RoundingStep, ...]:
    """Risk and accuracy with fewer and fewer decimals, down to the class alone.

    Args:
        full: ln p of the model trained on all, shape ``(records, classes)``.
        without: ln p without the record.
        codes: Place of each record's label.
        limit: Above which a record is exposed.
        advantages: Of an attack on what is shown, one for each of ``DECIMALS``.
    """
    told = []
    for place, decimals in enumerate(DECIMALS):
        if decimals == -1:
            change = seen(full, without, decimals=None).risk
            risk = np.where(flipped(full, without), change, 0.0)
            right = predicted(full) == codes
        else:
            risk = seen(full, without, decimals=decimals).risk
            right = predicted(shown(full, decimals)) == codes
        told.append(
            RoundingStep(
                decimals=decimals,
                exposed=int(np.sum(risk > limit)),
                largest=float(risk.max()),
                accuracy=float(right.mean()),
                advantage=None if advantages is None else float(advantages[place]),
            )
        )
    return tuple(told)


def shown_advantages(pool: ShadowPool) -> FloatArray:
    """TPR − FPR of a threshold on how likely the own class is shown to be, for ``DECIMALS``.

    The simplest attack, on what is left of probabilities: the best threshold over all models of
    the pool, so that these numbers are to be compared with each other, not with a limit.
    """
    column = pool.labels[None, :, None]
    found = []
    for decimals in DECIMALS:
        values = []
        for each in pool.log_proba:
            log_proba = each.astype(np.float64)
            if decimals == -1:
                values.append((predicted(log_proba) == pool.labels).astype(np.float64))
            else:
                values.append(np.take_along_axis(shown(log_proba, decimals), column[0], 1)[:, 0])
        scores = np.stack(values)
        curve = tradeoff_curve(Scores(scores[pool.member], scores[~pool.member]))
        found.append(float(np.max(1 - curve.fnr - curve.fpr)))
    return np.array(found)
