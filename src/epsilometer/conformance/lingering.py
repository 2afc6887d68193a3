"""Check that a record counts in its own steps alone, by canaries that were in earlier ones."""

import math
from collections import deque

import numpy as np

from epsilometer.conformance import evidence
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.types import FloatArray

NAME = "records of earlier steps"
_LAGS = 8
_SHARES = np.array([0.05, 0.1, 0.2, 0.4, 0.7, 1.0])  # of an earlier canary that is still there


class LingeringWatch:
    """Watch whether canaries of earlier steps are still in the sum that is released.

    Momentum of sums before noise, gradients that are not cleared, and noise meant for one step
    that covers several show here. The noise of a step is independent of who was in steps before.

    Guarantee: at most a share ``level`` of right programs is ever accused, whenever it is stopped.
    Assumption: components of the noise in the canaries' directions are independent, Gaussian and
        of one scale, given all earlier steps.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> watch = LingeringWatch(level=1e-4)
        >>> before = np.zeros(100)
        >>> for _ in range(20):
        ...     now = (rng.random(100) < 0.3) * 1.0
        ...     watch.see(rng.normal(size=100) + 0.9 * before, now)
        ...     before = now
        >>> watch.check().outcome
        'violated'
    """

    def __init__(self, *, level: float) -> None:
        self._level = level
        self._earlier: deque[FloatArray] = deque(maxlen=_LAGS)
        self._logs: dict[int, FloatArray] = {}
        self._sums: dict[int, tuple[float, float]] = {}
        self._largest, self._steps, self._crossed = -math.inf, 0, 0

    def see(self, noise: FloatArray, planted: FloatArray) -> None:
        """Take the next step.

        Args:
            noise: Residual of the step in each canary's direction, in units of the accounted
                noise.
            planted: What each canary added to the step, in the same units.
        """
        self._steps += 1
        size = float(noise @ noise)
        for lag, before in enumerate(reversed(self._earlier), 1):
            weight = float(before @ before)
            if weight == 0 or size == 0:
                continue
            product = float(noise @ before)
            cosine = product / math.sqrt(weight * size)
            # A random direction is sub-Gaussian, whatever the scale of the noise: see stake_ratios.
            stakes = _SHARES * math.sqrt(weight)
            ratios = stakes * math.sqrt(noise.size) * cosine - stakes**2 / 2
            self._logs[lag] = self._logs.get(lag, np.zeros(_SHARES.size)) + ratios
            total, weights = self._sums.get(lag, (0.0, 0.0))
            self._sums[lag] = total + product, weights + weight
        self._earlier.append(np.asarray(planted, np.float64))
        self._largest = max(self._largest, self._value())
        outcome = judge.judge_evidence(self._largest, shares=1, level=self._level)
        if not self._crossed and outcome == judge.VIOLATED:
            self._crossed = self._steps

    def check(self) -> Check:
        """Return what was seen so far."""
        expected = "canaries of earlier steps are not in the sum"
        if not self._logs:
            outcome = judge.judge_evidence(None, shares=1, level=self._level)
            reason = "fewer than two steps with canaries"
            return Check(name=NAME, outcome=outcome, expected=expected, seen=reason)
        lag = max(self._sums, key=self._share)
        return Check(
            name=NAME,
            outcome=judge.judge_evidence(self._largest, shares=1, level=self._level),
            expected=expected,
            seen=f"{self._share(lag):.2g} of canaries of {_count_steps(lag)} before, at most",
            value=self._share(lag),
            log_e=self._largest,
            steps=self._crossed or self._steps,
        )

    def _value(self) -> float:
        return evidence.add_weighted(
            evidence.average(logs) - math.log(lag * (lag + 1)) for lag, logs in self._logs.items()
        )

    def _share(self, lag: int) -> float:
        total, weights = self._sums[lag]
        return total / weights


def _count_steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"
