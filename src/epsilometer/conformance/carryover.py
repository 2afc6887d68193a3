"""Check that a record counts only in its own steps, using canaries of earlier steps."""

import math
from collections import deque

import numpy as np

from epsilometer.conformance import evidence
from epsilometer.conformance.evidence_check import EvidenceCheck
from epsilometer.types import FloatArray

_LAGS = 8
_SHARES = np.array([0.05, 0.1, 0.2, 0.4, 0.7, 1.0])  # of an earlier canary that is still there


class CarryoverCheck(EvidenceCheck):
    """Test whether canaries of earlier steps are still in the released sum.

    Momentum of sums before noise, gradients that are not cleared, and noise meant for one step
    that covers several show here. The noise of a step is independent of which canaries were in
    earlier steps.

    Guarantee: at most a fraction ``level`` of correct programs is ever flagged, at any stopping
    time.
    Assumption: components of the noise in the canaries' directions are independent, Gaussian and
        of one scale, given all earlier steps.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> watch = CarryoverCheck(level=1e-4)
        >>> before = np.zeros(100)
        >>> for _ in range(20):
        ...     now = (rng.random(100) < 0.3) * 1.0
        ...     watch.see(rng.normal(size=100) + 0.9 * before, now)
        ...     before = now
        >>> watch.check().outcome
        'violated'
    """

    name = "records of earlier steps"
    expected = "canaries of earlier steps are not in the sum"
    missing = "fewer than two steps with canaries"

    def begin(self) -> None:
        """Begin without observations."""
        self._earlier: deque[FloatArray] = deque(maxlen=_LAGS)
        self._logs: dict[int, FloatArray] = {}
        self._sums: dict[int, tuple[float, float]] = {}
        self._steps = 0

    def see(self, noise: FloatArray, planted: FloatArray) -> None:
        """Add the next step.

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
        self.keep_largest(self._steps)

    def compute_evidence(self) -> float | None:
        """Return the evidence at this step; None before the second step with canaries."""
        if not self._logs:
            return None
        return evidence.add_weighted(
            evidence.average(logs) - math.log(lag * (lag + 1)) for lag, logs in self._logs.items()
        )

    def measure(self) -> tuple[float, None, None]:
        """Return the largest share of an earlier canary that is still there."""
        return max(map(self._share, self._sums)), None, None

    def describe(self) -> str:
        """Report how much of which earlier canaries is still present."""
        lag = max(self._sums, key=self._share)
        before = "1 step" if lag == 1 else f"{lag} steps"
        return f"{self._share(lag):.2g} of canaries of {before} before, at most"

    def _share(self, lag: int) -> float:
        total, weights = self._sums[lag]
        return total / weights
