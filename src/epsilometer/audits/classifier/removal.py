"""Plan which records to drop: the riskiest first, with all measured again after each step."""

from collections.abc import Callable
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.pdtp import Pdtp, measure_changes, predict_class
from epsilometer.audits.classifier.sklearn_models import take_rows
from epsilometer.engine.shards import Arrays

_PATIENCE = 5  # measurements without a new best
_SHARE = 10  # of the exposed records, one in so many is dropped at a time


def plan_removal(
    measure: Callable[[Any, Any], Pdtp],
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    limit: float,
    decimals: int | None,
    steps: int,
) -> Arrays:
    """Drop the riskiest tenth of those above the limit, measure all again, and so on.

    It ends where none is above the limit, where five measurements brought no new best, where a
    class would vanish, or after ``steps`` measurements.

    Args:
        measure: PDTP of all records of given features and labels.
        X: Features.
        y: Labels.
        limit: Limit above which a record is exposed.
        decimals: With how many decimals probabilities are shown; −1: the class alone.
        steps: Measurements at most, the first not counted.

    Returns:
        ``dropped``: row numbers, in the order they were dropped. At each measurement ``removed``:
        how many had been dropped; ``largest``: the largest risk; ``exposed``: records above the
        limit; ``accuracy``: leave-one-out accuracy on those left.
    """
    labels = np.asarray(y)
    left = np.arange(labels.size)
    dropped: list[int] = []
    removed, largest, exposed, accuracy = [], [], [], []
    while True:
        found = measure(take_rows(X, left), labels[left])
        risk = measure_changes(found.full, found.without, decimals=decimals).risk
        above = int(np.sum(risk > limit))
        right = found.classes[predict_class(found.without)] == labels[left]
        removed.append(len(dropped))
        largest.append(float(risk.max()))
        exposed.append(above)
        accuracy.append(float(right.mean()))
        stalled = len(exposed) - 1 - int(np.argmin(exposed)) >= _PATIENCE
        if not above or len(removed) > steps or stalled:
            break
        worst = np.argsort(-risk, kind="stable")[: max(1, above // _SHARE)]
        after = np.delete(left, worst)
        if np.unique(labels[after]).size < np.unique(labels[left]).size:
            break
        dropped += left[worst].tolist()
        left = after
    return {
        "dropped": np.array(dropped, np.int64),
        "removed": np.array(removed, np.int64),
        "largest": np.array(largest),
        "exposed": np.array(exposed, np.int64),
        "accuracy": np.array(accuracy),
    }
