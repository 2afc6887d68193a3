"""Share what checks of noise have in common: bets over steps, and how a check is concluded."""

import math

import numpy as np

from epsilometer.conformance import evidence
from epsilometer.conformance.summary import StepSummary
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.types import FloatArray


class Bets:
    """Average of bets, each a product of ratios. New ones begin at steps 1, 2, 4, 8, …

    Those that begin late notice what goes wrong late. Bet j has the weight 1/((j+1)(j+2)).
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


class Once:
    """Sum of e-values that belong to one step each, of which step t has the weight 1/(t(t+1))."""

    def __init__(self) -> None:
        self._log = -math.inf

    def add(self, log_e: float, step: int) -> None:
        """Add the e-value of a step, as a logarithm."""
        self._log = evidence.add_weighted([self._log, log_e - math.log(step * (step + 1))])

    def value(self) -> float:
        """Return the evidence so far, as a logarithm."""
        return self._log


class NoiseCheck:
    """A check of noise: what it expects, its evidence, and the step at which it was violated."""

    name = ""
    expected = ""
    steady = True  # whether it needs residuals that are noise alone
    missing = "nothing to test it on"

    def __init__(self) -> None:
        self.log_e: float | None = None
        self.crossed: int | None = None
        self.tested = 0
        self._detail = ""

    def see(self, step: StepSummary, number: int) -> None:
        """Take the next step, which has this number."""
        raise NotImplementedError

    def value_now(self) -> float | None:
        """Evidence at this step; None where nothing was tested yet."""
        raise NotImplementedError

    def describe(self) -> str:
        """Say what was seen, in a few words."""
        raise NotImplementedError

    def where(self) -> str:
        """Say where it was seen."""
        return ""

    def number(self) -> tuple[float | None, float | None, float | None]:
        """Return the number that was measured, with limits where there are any."""
        return None, None, None

    def remarks(self, *, shares: int, level: float) -> bool:
        """Tell whether something is worth a remark where nothing is violated."""
        return False

    def keep_largest(self, step: int, *, shares: int, level: float) -> None:
        """Keep the largest evidence so far, and when it sufficed."""
        now = self.value_now()
        if now is None:
            return
        self.tested = step
        if self.log_e is None or now > self.log_e:
            self.log_e = now
            if self.crossed is None:
                outcome = judge.judge_evidence(now, shares=shares, level=level)
                if outcome == judge.VIOLATED:
                    self.crossed, self._detail = step, self.where()

    def conclude(self, *, shares: int, level: float, drift: str) -> Check:
        """Return the check as it stands now."""
        distrusted = self.steady and bool(drift)
        log_e = None if distrusted else self.log_e
        outcome = judge.judge_evidence(log_e, shares=shares, level=level)
        if outcome == judge.NOT_TESTED:
            reason = drift if distrusted else self.missing
            return Check(name=self.name, outcome=outcome, expected=self.expected, seen=reason)
        if outcome == judge.CONFORMS and self.remarks(shares=shares, level=level):
            outcome = judge.REMARK
        value, low, high = self.number()
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
