"""Check that records take part only in their turn, if groups of records take turns."""

import numpy as np

from epsilometer import _validate
from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.types import IntArray

NAME = "turns of records"
_EXPECTED = "a record takes part at one place of every cycle only"


class TurnsWatch:
    """Watch at which positions of a cycle of steps each record takes part.

    Correlated noise over b bands is accounted for as if a record's steps were b apart. This holds
    if records are divided into b groups that take turns, as in cyclic Poisson sampling.

    Guarantee: exact.

    Args:
        records: Records of the training set.
        cycle_length: Number of groups, and of steps until the next turn of a group.

    Example:
        >>> watch = TurnsWatch(6, 2)
        >>> for batch in ([0, 1], [2, 3], [0, 4], [2, 0]):  # record 0 in both turns
        ...     watch.see(batch)
        >>> watch.check().outcome, watch.check().steps
        ('violated', 4)
    """

    def __init__(self, records: int, cycle_length: int) -> None:
        _validate.whole(1, records=records, cycle_length=cycle_length)
        self._turn: IntArray = np.full(records, -1, np.int64)
        self._cycle, self._steps, self._crossed, self._strays = cycle_length, 0, 0, 0

    def see(self, indices: IntArray | list[int]) -> None:
        """Add the records of the next step."""
        place, batch = self._steps % self._cycle, np.asarray(indices, np.int64)
        self._steps += 1
        strays = int(np.count_nonzero((self._turn[batch] >= 0) & (self._turn[batch] != place)))
        self._turn[batch] = np.where(self._turn[batch] >= 0, self._turn[batch], place)
        self._strays += strays
        if strays and not self._crossed:
            self._crossed = self._steps

    def check(self) -> Check:
        """Return the observations so far."""
        if self._steps <= self._cycle:
            return leave_untested(NAME, _EXPECTED, "no step after the first cycle")
        return Check(
            name=NAME,
            outcome=judge.judge_limit(self._strays, limit=0),
            expected=_EXPECTED,
            seen=f"out of turn {self._strays} times in {self._steps} steps",
            value=float(self._strays),
            steps=self._crossed or self._steps,
        )
