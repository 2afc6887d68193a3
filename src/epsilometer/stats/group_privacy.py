"""Turn a bound on a group of copies into a bound on one record.

(ε, δ)-DP for one record is (kε, δ·(e^(kε) − 1)/(e^ε − 1))-DP for k records that are added or
removed together. So scores of canaries that are k records each refute ε for one record where they
refute kε at that larger δ.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.stats import search
from epsilometer.types import FloatArray

_GRID = 1 / 32  # of ε: what is proved is rounded down to it
_TINY = 1e-9
_LARGEST = 700.0  # e to that is still a float


def group_delta(epsilon: float, delta: float, *, copies: int) -> float:
    """Return the δ of a group of records, at ε times their number; at most 1.

    Example:
        >>> group_delta(0.0, 1e-5, copies=4)
        4e-05
    """
    _validate.at_least(0, epsilon=epsilon)
    _validate.probability(delta=delta)
    _validate.whole(1, copies=copies)
    if delta == 0 or copies == 1:
        return delta
    if epsilon < _TINY:  # both parts of the ratio would be lost; this is no smaller
        return min(1.0, copies * delta * math.exp(copies * epsilon))
    if copies * epsilon > _LARGEST:
        return 1.0
    return min(1.0, delta * math.expm1(copies * epsilon) / math.expm1(epsilon))


def bound_one_record(prove: Callable[[float], float], *, delta: float, copies: int) -> float:
    """Return the largest ε for one record that bounds on groups of copies refute.

    Guarantees: where ``prove(δ)`` exceeds the true ε of groups at δ with some chance, at every δ
        of the same event, this exceeds the true ε of one record with no larger chance. If it does,
        the bound at the δ of the true ε is too large as well. Rounded down to 1/32.

    Args:
        prove: Function from δ to the ε proved for groups; falls as δ grows.
        delta: δ of one record.
        copies: Records of a group.

    Example:
        >>> bound_one_record(lambda delta: 4.0, delta=0.0, copies=4)
        1.0
    """
    if copies == 1:
        return prove(delta)
    # On a grid, so that bounds of other scores reuse the distributions at the same δ.
    most = math.floor(prove(delta) / copies / _GRID)

    def refuted(place: FloatArray) -> NDArray[np.bool_]:
        at = math.floor(float(place)) * _GRID
        spent = group_delta(at, delta, copies=copies)
        return np.asarray(spent < 1 and prove(spent) >= copies * at)

    low, _ = search.bisect(refuted, 0.0, most + 1.0, relative=0.5 / (most + 1.0))
    return math.floor(float(low)) * _GRID
