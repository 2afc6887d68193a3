"""Is the target closer to models with the record, or to those without it?

The distance-based targeted attack of the training-privacy paper: Kullback–Leibler divergence of the
target's prediction from the mean prediction of each side.
"""

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.membership import RecordScores
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, sided
from epsilometer.audits.classifier.leave_one_out.binning import centres
from epsilometer.types import BoolArray, FloatArray

_DIGITS = 6  # of p: ln p is kept in single precision, and bins must not be crossed by that
_LEAST = 1e-12  # unbinned p count as at least this much


def distance(
    pool: ShadowPool, target: int | ArrayLike, *, pairs: int | None = 5, binned: bool = True
) -> RecordScores:
    """D(q ‖ mean without) − D(q ‖ mean with) for each record; "in" iff above 0.

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        pairs: How many models of either side are used for each record; None for all.
        binned: Whether predictions are put into bins of 0.01 first, as the paper does. Binned
            predictions are scaled to sum to 1, which the paper does not speak of.

    Example:
        >>> p = np.array([[0.9, 0.6], [0.6, 0.9], [0.8, 0.9], [0.6, 0.6]])
        >>> member = [[1, 0], [0, 1], [1, 1], [0, 0]]
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 1] = every[:, 1, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, ["a", "b"])
        >>> distance(pool, np.log([[0.9, 0.1], [0.4, 0.6]])).values > 0
        array([ True, False])
    """
    shadows, found = pool.against(target)
    inside, outside = (
        mean_prediction(shadows, first(shadows, pairs, inside=side), binned=binned)
        for side in (True, False)
    )
    q = shown(found, binned=binned)
    return RecordScores(
        attack="distance",
        values=np.sum(q * (np.log(inside) - np.log(outside)), axis=1),
        threshold=0.0,
        convention=f"Kullback–Leibler, {'bins of 0.01' if binned else 'full precision'}, "
        f"{'all' if pairs is None else pairs} models a side",
        cites=("long2017",),
    )


def shown(log_proba: ArrayLike, *, binned: bool) -> FloatArray:
    """Predictions as the adversary sees them: rows of probabilities, none 0, that sum to 1."""
    p = np.exp(np.asarray(log_proba, np.float64))
    seen = centres(np.round(p, _DIGITS)) if binned else np.maximum(p, _LEAST)
    return np.asarray(seen / seen.sum(axis=1, keepdims=True))


def first(pool: ShadowPool, pairs: int | None, *, inside: bool) -> BoolArray:
    """Which models are used for each record: the first of a side, shape ``(models, n)``."""
    sided(pool, inside=inside)
    where = pool.member if inside else ~pool.member
    if pairs is None:
        return where
    _validate.whole(1, pairs=pairs)
    return np.asarray(where & (np.cumsum(where, axis=0) <= pairs))


def mean_prediction(pool: ShadowPool, where: BoolArray, *, binned: bool) -> FloatArray:
    """Mean over chosen models of what is shown, shape ``(n, classes)``; one model at a time."""
    total = np.zeros(pool.log_proba.shape[1:])
    for each, chosen in zip(pool.log_proba, where, strict=True):
        total[chosen] += shown(each[chosen], binned=binned)
    return np.asarray(total / where.sum(axis=0)[:, None])
