"""Check that the clipping norm is not computed from the batch that it clips."""

import math
from collections.abc import Callable

import numpy as np

from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.types import FloatArray

NAME = "clipping norm"
_EXPECTED = "the clipping norm is not computed from the batch"
_EQUAL = 1e-4  # relative; an unrelated number is this close to one of the five in 1 of 100 steps
_LEAST = 4  # steps


class ClippingNormWatch:
    """Compare every new clipping norm C with the norms of the records that it clips.

    A C that is their median, mean, minimum or maximum is not constant: the noise σC reveals it, and
    it depends on each record. A C that otherwise rises and falls is a remark, since it may follow a
    schedule.

    Guarantee: a C that changes independently of the batch equals one of these norms in four steps,
        and in most of those in which it changed, with probability below 1e-5.

    Args:
        private: Whether C is adapted by a noisy count, as the optimiser declares.

    Example:
        >>> watch, rng = ClippingNormWatch(), np.random.default_rng(0)
        >>> for _ in range(5):
        ...     norms = rng.exponential(size=20)
        ...     watch.see(float(np.median(norms)), lambda norms=norms: norms)
        >>> watch.check().outcome
        'violated'
    """

    def __init__(self, *, private: bool = False) -> None:
        self._private = private
        self._last = math.nan
        self._steps = self._changed = self._equal = 0
        self._directions: set[bool] = set()

    def see(self, norm: float, measure_rows: Callable[[], FloatArray]) -> None:
        """Add the C of a step; ``measure_rows`` returns the norms of its records before clipping.

        They are measured only where C changed.
        """
        self._steps += 1
        last, self._last = self._last, norm
        if self._steps == 1 or norm == last:
            return
        self._changed += 1
        self._directions.add(norm > last)
        rows = np.sort(measure_rows())
        if rows.size:
            middle = rows[(rows.size - 1) // 2]
            known = np.array([middle, np.median(rows), rows.mean(), rows[0], rows[-1]])
            self._equal += bool(np.any(np.abs(known - norm) <= _EQUAL * norm))

    def check(self) -> Check:
        """Return the observations so far."""
        if not self._steps:
            return leave_untested(NAME, _EXPECTED, "no step was taken")
        found = self._equal >= _LEAST and 2 * self._equal > self._changed
        outcome = judge.judge_limit(float(found), limit=0)
        seen = f"it changed in {self._changed:,} of {self._steps:,} steps"
        if found:
            seen = (
                f"in {self._equal:,} of {self._steps:,} steps it is the median, mean, "
                "smallest or largest of the batch's own norms"
            )
        elif len(self._directions) > 1 and not self._private:
            outcome = judge.REMARK
            seen += ", up and down: this is private only if no record decides it"
        return Check(
            name=NAME,
            outcome=outcome,
            expected=_EXPECTED,
            seen=seen,
            value=float(self._equal),
            steps=self._steps,
        )
