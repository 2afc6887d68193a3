"""Is the target surer of the record than a threshold? The simplest attack, and one for each class.

Thresholds are those that best tell insiders from outsiders of the shadows.
"""

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from epsilometer.audits.classifier.attacks.membership import RecordScores
from epsilometer.audits.classifier.attacks.shadows import FLOOR, ShadowPool
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray

Statistic: TypeAlias = Literal["loss", "confidence"]
_FEW = 10  # shadows' records on a side below which a class has the common threshold


def threshold(
    pool: ShadowPool,
    target: int | ArrayLike,
    *,
    statistic: Statistic = "loss",
    by_class: bool = False,
) -> RecordScores:
    """How much surer than the threshold the target is of each record; "in" iff above 0.

    Args:
        pool: The shadows, which place thresholds.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        statistic: ``"loss"``: ln p of the own label; ``"confidence"``: of the likeliest one, for an
            adversary who does not know the label.
        by_class: A threshold for each class, or one for all. It changes how records of different
            classes compare, and so the AUC.

    Example:
        >>> p = np.array([[0.9, 0.6, 0.5], [0.6, 0.9, 0.9], [0.9, 0.9, 0.6], [0.5, 0.6, 0.9]])
        >>> member = [[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]]
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 2] = every[:, 2, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, ["a", "a", "b"])
        >>> threshold(pool, np.log([[0.95, 0.05], [0.5, 0.5], [0.1, 0.9]])).values > 0
        array([ True, False,  True])
    """
    if statistic not in ("loss", "confidence"):
        raise InvalidArgument(
            f"Expected statistic to be 'loss' or 'confidence', got {statistic!r}."
        )
    if statistic == "confidence" and pool.kept == "own":
        raise InvalidArgument(
            "Expected a pool with all classes for statistic='confidence', got one that kept own "
            "labels only. Train it with keep='all', or take statistic='loss'."
        )
    shadows, found = pool.against(target)
    if statistic == "loss":
        seen = np.maximum(found[np.arange(pool.records), pool.columns], FLOOR)
        others = shadows.own
    else:
        seen, others = found.max(axis=1), shadows.log_proba.max(axis=2)
    common = best_cut(others, shadows.member)
    cuts = np.full(pool.classes.size, common)
    if by_class:
        for place in range(pool.classes.size):
            at = pool.labels == place
            inside = int(shadows.member[:, at].sum())
            if min(inside, shadows.member[:, at].size - inside) >= _FEW:
                cuts[place] = best_cut(others[:, at], shadows.member[:, at])
    return RecordScores(
        attack=f"{statistic} threshold{', one a class' if by_class else ''}",
        values=seen - cuts[pool.labels],
        threshold=0.0,
        convention=f"best balanced accuracy on {shadows.models} shadows",
        cites=("yeom2018",),
    )


def best_cut(values: FloatArray, member: BoolArray) -> float:
    """A cut between insiders above and outsiders below, of the highest balanced accuracy.

    Example:
        >>> best_cut(np.array([1.0, 2.0, 4.0, 5.0]), np.array([False, False, True, True]))
        3.0
    """
    flat, inside = np.ravel(values).astype(np.float64), np.ravel(member)
    order = np.argsort(flat, kind="stable")
    ordered, was_in = flat[order], inside[order]
    n_in = max(int(was_in.sum()), 1)
    n_out = max(was_in.size - int(was_in.sum()), 1)
    gain = np.cumsum(np.where(was_in, -1 / n_in, 1 / n_out))  # of a cut just above each
    last = np.append(ordered[1:] > ordered[:-1], False)  # equal values stay together
    if not last.any():
        return float(ordered[-1])
    at = int(np.argmax(np.where(last, gain, -np.inf)))
    return float((ordered[at] + ordered[at + 1]) / 2)
