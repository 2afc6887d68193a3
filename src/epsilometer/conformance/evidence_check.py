"""Turn e-values of a run into a check: bet over steps, and conclude the check."""

import math

import numpy as np

from epsilometer.conformance import evidence
from epsilometer.core import judge
from epsilometer.core.findings import Check, CheckOutcome
from epsilometer.types import FloatArray


def leave_untested(name: str, expected: str, reason: str) -> Check:
    """Return a check that could not be tested."""
    outcome = judge.judge_limit(None, limit=0.0)
    return Check(name=name, outcome=outcome, expected=expected, seen=reason)


class Bets:
    """Average bets, each a product of ratios. New ones begin at steps 1, 2, 4, 8, …

    Later bets detect later faults. Bet j has the weight 1/((j+1)(j+2)).
    """

    def __init__(self) -> None:
        self._logs = np.zeros((0, 0))  # one row per beginning, with its weight

    def add(self, ratios: FloatArray, step: int) -> None:
        """Multiply by the ratios of the next step, which has this number; as logarithms."""
        if step & (step - 1) == 0:
            place = len(self._logs)
            weight = -math.log((place + 1) * (place + 2) * ratios.size)
            rows = [*self._logs, np.full(ratios.size, weight)]
            self._logs = np.array(rows)
        if len(self._logs):  # else none has begun
            self._logs += ratios

    def value(self) -> float:
        """Return the evidence so far, as a logarithm."""
        return float(np.logaddexp.reduce(self._logs, axis=None))


class WeightedSum:
    """Sum e-values of single steps, where step t has the weight 1/(t(t+1))."""

    def __init__(self) -> None:
        self.value = -math.inf  # as a logarithm

    def add(self, log_e: float, step: int) -> None:
        """Add the e-value of a step, as a logarithm."""
        self.value = evidence.add_weighted([self.value, log_e - math.log(step * (step + 1))])


class EvidenceCheck:
    """Keep the largest evidence of a check by e-values, and the step at which it was violated.

    A subclass adds its evidence of a step, then calls :meth:`keep_largest`.

    Args:
        shares: Checks that share the level.
        level: Probability of flagging a correct program, for all of them together.

    Attributes:
        name: Name of the check.
        expected: What a correct program shows, in words.
        missing: Why nothing was tested, if nothing was.
        steady: Whether it needs residuals that are pure noise.
        log_e: The largest evidence so far, as a logarithm; None if nothing was tested.
        crossed: The step at which it sufficed; None if it did not.
        tested: The last step that was tested.
    """

    name = ""
    expected = ""
    missing = "nothing to test it on"
    steady = True

    def __init__(self, *, shares: int = 1, level: float) -> None:
        self._shares, self._level = shares, level
        self.log_e: float | None = None
        self.crossed: int | None = None
        self.tested = 0
        self._detail = ""
        self.begin()

    def begin(self) -> None:
        """Begin without observations."""

    def compute_evidence(self) -> float | None:
        """Return the evidence at this step; None if nothing was tested yet."""
        raise NotImplementedError

    def describe(self) -> str:
        """Summarise the evidence in a few words."""
        raise NotImplementedError

    def locate(self) -> str:
        """Report where it was observed."""
        return ""

    def measure(self) -> tuple[float | None, float | None, float | None]:
        """Return the measured value, with its limits if there are any."""
        return None, None, None

    def deserves_remark(self) -> bool:
        """Tell whether a remark is due although nothing is violated."""
        return False

    def hide_little(self, log_e: float, *, could_find: bool) -> float | None:
        """Return evidence; None if it is too small, and more could not have been found."""
        return log_e if could_find or self.judge(log_e) == judge.VIOLATED else None

    def judge(self, log_e: float | None) -> CheckOutcome:
        """Judge evidence at this check's share of the level."""
        return judge.judge_evidence(log_e, shares=self._shares, level=self._level)

    def keep_largest(self, step: int) -> None:
        """Update the largest evidence, and the step at which it sufficed."""
        now = self.compute_evidence()
        if now is None:
            return
        self.tested = step
        if self.log_e is None or now > self.log_e:
            self.log_e = now
            if self.crossed is None and self.judge(now) == judge.VIOLATED:
                self.crossed, self._detail = step, self.locate()

    def check(self, *, drift: str = "") -> Check:
        """Return the check so far.

        Args:
            drift: Why residuals may not be pure noise; then a steady check is not tested.
        """
        distrusted = self.steady and bool(drift)
        if distrusted or self.log_e is None:
            return leave_untested(self.name, self.expected, drift if distrusted else self.missing)
        outcome = self.judge(self.log_e)
        if outcome == judge.CONFORMS and self.deserves_remark():
            outcome = judge.REMARK
        value, low, high = self.measure()
        return Check(
            name=self.name,
            outcome=outcome,
            expected=self.expected,
            seen=self.describe(),
            value=value,
            low=low,
            high=high,
            log_e=self.log_e,
            detail=self._detail,
            steps=self.tested if self.crossed is None else self.crossed,
        )
