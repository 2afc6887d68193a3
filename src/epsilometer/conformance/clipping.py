"""Check that a loud record is clipped, by what it adds to the program's own sum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from epsilometer.conformance import evidence
from epsilometer.conformance.evidence_check import WeightedSum, leave_untested
from epsilometer.conformance.neighbours import describe_norms
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.stats.sphere import cosine_logsf

LEAST = 8  # coordinates of a part that is checked separately
TOLERANCE = 1e-3  # relative, for the program's own arithmetic
NAME = "clipping"
_EXPECTED = "a loud record adds one clipping norm at most"


@dataclass(frozen=True, kw_only=True)
class LoudRecord:
    """Measure a record in a random direction in the sum, for one part of the parameters.

    Attributes:
        part: Part of the parameters, in words.
        size: Coordinates.
        along: Component of the sum in the record's direction, in clipping norms.
        square: Squared norm of the sum, in the same units.
    """

    part: str
    size: int
    along: float
    square: float


class ClippingWatch:
    """Test what loud records add to sums, in every physical batch.

    A sum is the loud record's contribution, at most 1 in its direction, plus that of the others.
    The direction is drawn after them, so its cosine with their contribution has a known
    distribution. If sums with and without the record can be subtracted, the norm of the difference
    is used directly.

    Guarantee: at most a fraction ``level`` of correct programs is ever flagged.
    Assumption: directions are uniform on the sphere, redrawn for each batch, and unknown to the
        program.

    Example:
        >>> watch = ClippingWatch(level=1e-4)
        >>> watch.see([LoudRecord(part="all", size=1000, along=9.98, square=110.0)])
        >>> watch.check().outcome
        'violated'
    """

    def __init__(self, *, level: float, missing: str = "no loud record was inserted") -> None:
        self._level, self._missing = level, missing
        self._sum = WeightedSum()
        self._batches = self._exact = self._crossed = 0
        self._largest: tuple[float, str] = (-math.inf, "")
        self._difference: tuple[float, float, str] = (0.0, 1.0, "")

    @property
    def sensitivity(self) -> float:
        """The largest norm, in clipping norms, that a record added; 0 if none was observed."""
        return self._difference[0]

    def see(self, sums: Sequence[LoudRecord], *, rounding: float = 0.0) -> None:
        """Add the sum of one batch; ``rounding`` is the relative precision of its type."""
        allowed = 1 + max(TOLERANCE, 8 * rounding)
        logs = []
        for each in sums:
            if each.size < LEAST:
                continue
            above = each.along - allowed
            across = math.sqrt(max(0.0, each.square - each.along**2))
            if above <= 0:
                logs.append(0.0)
            elif across == 0:
                logs.append(-math.inf)
            else:
                cosine = min(1.0, above / math.hypot(above, across))
                logs.append(float(cosine_logsf(cosine, each.size)))
            self._largest = max(self._largest, (each.along, each.part))
        if not logs:
            return
        self._batches += 1
        self._sum.add(evidence.calibrate(evidence.smallest_log_p(logs)), self._batches)
        self._note()

    def see_difference(self, norm: float, *, what: str, rounding: float = 0.0) -> None:
        """Add the norm, in clipping norms, of what a record added to a sum, measured exactly."""
        self._exact += 1
        allowed = 1 + max(TOLERANCE, 8 * rounding)
        norm = math.inf if math.isnan(norm) else norm
        if self._exact == 1 or norm - allowed > self._difference[0] - self._difference[1]:
            self._difference = norm, allowed, what
        self._note()

    def _outcomes(self) -> tuple[str, str]:
        norm, limit, _ = self._difference
        return (
            judge.judge_limit(norm if self._exact else None, limit=limit),
            judge.judge_evidence(self._log_e, shares=1, level=self._level),
        )

    @property
    def _log_e(self) -> float | None:
        return self._sum.value if self._batches else None

    def _note(self) -> None:
        """Record the first violation."""
        if not self._crossed and judge.VIOLATED in self._outcomes():
            self._crossed = self._batches + self._exact

    def check(self) -> Check:
        """Return the observations so far."""
        if not self._batches and not self._exact:
            return leave_untested(NAME, _EXPECTED, self._missing)
        norm, _, what = self._difference
        by_norm, by_law = self._outcomes()
        violated = judge.VIOLATED in (by_norm, by_law)
        along, part = self._largest
        if by_norm == judge.VIOLATED or not self._batches:
            seen = f"{describe_norms(norm)}, {what}"
        elif violated:
            seen = f"{describe_norms(along)} in its direction, in {part}"
        else:
            seen = f"at most {describe_norms(norm)}, measured exactly in {self._exact} cases"
        return Check(
            name=NAME,
            outcome=judge.VIOLATED if violated else judge.CONFORMS,
            expected=_EXPECTED,
            seen=seen,
            value=norm if self._exact else None,
            log_e=self._log_e,
            detail=f"{self._exact} differences of sums; loud records in {self._batches:,} batches",
            steps=self._crossed or self._batches + self._exact,
        )
