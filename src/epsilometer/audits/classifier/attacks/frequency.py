"""How often do models with the record say what the target says, and how often those without it?

The frequency-based targeted attack of the training-privacy paper, on predictions in bins of 0.01.
"""

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.distance import first
from epsilometer.audits.classifier.attacks.membership import RecordScores
from epsilometer.audits.classifier.attacks.shadows import ShadowPool
from epsilometer.audits.classifier.leave_one_out.binning import centres
from epsilometer.types import FloatArray

_DIGITS = 6  # of p: ln p is kept in single precision, and bins must not be crossed by that


def frequency(
    pool: ShadowPool, target: int | ArrayLike, *, pairs: int | None = 5, smoothing: float = 0.5
) -> RecordScores:
    """ln of the product over classes of how often each side says the same; "in" iff above 0.

    For each class, the share of models with the record that put it into the target's bin is
    (count + s)/(models + 2s), and likewise for models without it: unsmoothed the ratio is 0/0 for
    most records, of which the paper does not speak.

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        pairs: How many models of either side are used for each record; None for all.
        smoothing: s.

    Example:
        >>> p = np.array([[0.9, 0.6], [0.6, 0.9], [0.9, 0.9], [0.6, 0.6]])
        >>> member = [[1, 0], [0, 1], [1, 1], [0, 0]]
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 1] = every[:, 1, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, ["a", "b"])
        >>> frequency(pool, np.log([[0.9, 0.1], [0.3, 0.7]])).values.round(2)  # 2 of 2 against 0
        array([3.22, 0.  ])
    """
    _validate.positive(smoothing=smoothing)
    shadows, found = pool.against(target)
    seen = _binned(found)
    likely = []
    for side in (True, False):
        where = first(shadows, pairs, inside=side)
        same = np.zeros(seen.shape)
        for each, chosen in zip(shadows.log_proba, where, strict=True):
            same[chosen] += _binned(each[chosen]) == seen[chosen]
        used = where.sum(axis=0)[:, None]
        likely.append(np.log((same + smoothing) / (used + 2 * smoothing)).sum(axis=1))
    inside, outside = likely
    return RecordScores(
        attack="frequency",
        values=inside - outside,
        threshold=0.0,
        convention=f"bins of 0.01, {smoothing:g} added to every count, "
        f"{'all' if pairs is None else pairs} models a side",
        cites=("long2017",),
    )


def _binned(log_proba: ArrayLike) -> FloatArray:
    return centres(np.round(np.exp(np.asarray(log_proba, np.float64)), _DIGITS))
