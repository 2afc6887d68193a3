"""Detect noise whose values were used before in other places: shuffled, or cut from a table."""

from collections import deque
from collections.abc import Iterable

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.types import FloatArray

_KEPT = 64  # number of largest values of an array: these are far apart
_MOST = 1 << 12  # arrays whose values are kept
_FINEST = 1e-9  # resolution of sums of replies
_LEVEL = 1e-6
# So few earlier values are compared that chance matches 1 in 20, even if residuals have a mean;
# then 20 of 64 match with probability below 1e-10.
_NEAR, _LEAST = 0.025, 20
_NAME = "values of noise"
_EXPECTED = "no values of noise are repeated in other places"


class ReusedValues:
    """Compare the largest values of noise with those of earlier rounds, and of other arrays.

    A reused value keeps its sign. Fresh noise is symmetric: if its values match others, by chance
    or on a lattice, the opposite sign is equally likely.

    Guarantee: chance flags fewer than one correct run in a million.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> reused, noise = ReusedValues(), rng.normal(size=500)
        >>> for _ in range(3):
        ...     reused.see([("weight", rng.permutation(noise))], resolution=1e-6)
        >>> reused.check().outcome
        'violated'
    """

    def __init__(self) -> None:
        self._kept: deque[FloatArray] = deque(maxlen=_MOST)
        self._rounds = self._compared = self._first = self._again = 0
        self._where = ""

    def see(self, residuals: Iterable[tuple[str, FloatArray]], *, resolution: float) -> None:
        """Add the noise of a round, one array at a time, in the same unit in all rounds.

        Args:
            residuals: The noise.
            resolution: Largest difference of equal values, due to rounding.
        """
        self._rounds += 1
        resolution = max(resolution, _FINEST)
        for name, part in residuals:
            values = np.ravel(part)
            if values.size < 2 * _KEPT:
                continue
            largest = values[np.argpartition(np.abs(values), -_KEPT)[-_KEPT:]]
            near = np.diff(np.sort(np.abs(largest))) <= resolution
            if near.sum() > _KEPT // 8:  # a lattice, or too coarse values
                continue
            if self._kept:
                self._compare(name, largest, resolution)
            self._kept.append(largest)

    def _compare(self, name: str, largest: FloatArray, resolution: float) -> None:
        """Count values that came before, and those that came with the opposite sign."""
        arrays = int(_NEAR / (resolution * _KEPT))
        if not arrays:
            return
        earlier = np.sort(np.concatenate(list(self._kept)[-arrays:]))
        same, other = (_find(sign * largest, earlier, resolution) for sign in (1, -1))
        again, against = int(np.sum(same & ~other)), int(np.sum(other & ~same))
        self._compared += 1
        alpha = _LEVEL / (self._compared * (self._compared + 1))
        most = max(again, against)  # earlier noise may be subtracted
        rare = 2 * scipy.stats.binom.sf(most - 1, again + against, 0.5) < alpha
        if rare and most >= _LEAST and not self._first:
            self._first, self._again, self._where = self._rounds, most, name

    def check(self) -> Check:
        """Return the observations so far."""
        if not self._compared:
            return leave_untested(_NAME, _EXPECTED, "one round only, or few values of noise")
        seen = "the largest values are new in every round"
        if self._first:
            seen = f"{self._again} of the {_KEPT} largest values of {self._where} occurred before"
        return Check(
            name=_NAME,
            outcome=judge.judge_limit(int(self._first > 0), limit=0),
            expected=_EXPECTED,
            seen=seen,
            value=float(self._again),
            steps=self._first or self._rounds,
        )


def _find(values: FloatArray, known: FloatArray, resolution: float) -> NDArray[np.bool_]:
    """Return which values are known, up to a resolution."""
    place = np.searchsorted(known, values - resolution)
    return np.asarray(np.append(known, np.inf)[place] <= values + resolution, np.bool_)
