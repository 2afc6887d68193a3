"""Plan which records to drop: the riskiest first, with all measured again after each step."""

from collections.abc import Callable
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.pdtp import Pdtp, measure_changes, predict_class
from epsilometer.audits.classifier.sklearn_models import take_rows
from epsilometer.engine.shards import Arrays

_PATIENCE = 5  # measurements without a new best after which the search ends
_SHARE = 10  # one in this many of the exposed records is dropped at a time


def plan_removal(
    measure: Callable[[Any, Any], Pdtp],
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    limit: float,
    decimals: int | None,
    steps: int,
) -> Arrays:
    """Drop the riskiest tenth of the records above the limit, measure all again, and repeat.

    It ends when no record is above the limit, after five measurements without a new best, before
    a class would vanish, or after ``steps`` measurements.

    Args:
        measure: Returns PDTP of all records, given features and labels.
        X: Features.
        y: Labels.
        limit: Limit above which a record is exposed.
        decimals: Number of decimals of shown probabilities; −1: the class alone.
        steps: Largest number of measurements, not counting the first.

    Returns:
        ``dropped``: row numbers, in the order they were dropped. For each measurement, ``removed``:
        records dropped before it; ``largest``: the largest risk; ``exposed``: records above the
        limit; ``accuracy``: leave-one-out accuracy on the remaining records.
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
