"""A privacy loss as masses on a grid: composed, and read as δ(ε) and ε(δ)."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.fft
import scipy.signal
from numpy.typing import ArrayLike

from epsilometer.types import FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Losses:
    """The law of a privacy loss on the grid ``start + step · (0, 1, …)``.

    Attributes:
        start: The least loss.
        step: Between losses.
        masses: Of each; mass that is missing counts for nothing.
    """

    start: float
    step: float
    masses: FloatArray

    @property
    def values(self) -> FloatArray:
        """The losses."""
        return self.start + self.step * np.arange(self.masses.size)

    def composed(self, times: int) -> "Losses":
        """The law of the sum of so many independent ones."""
        if times == 1:
            return self
        last = times * (self.masses.size - 1)
        size = scipy.fft.next_fast_len(last + 1, real=True)
        power = scipy.fft.irfft(scipy.fft.rfft(self.masses, size) ** times, size)
        masses = np.maximum(power[: last + 1], 0.0)
        return Losses(start=times * self.start, step=self.step, masses=masses)

    def delta(self, epsilon: ArrayLike) -> FloatArray:
        """δ(ε) = E[(1 − e^{ε − L})₊]."""
        epsilon = np.asarray(epsilon, np.float64)
        tail, weighed = self._above
        # The least loss of at least ε; beyond the last there is nothing.
        first = np.ceil((epsilon - self.start) / self.step - 1e-9)
        first = np.clip(first, 0, self.masses.size).astype(np.int64)
        gap = np.minimum(epsilon - (self.start + self.step * first), 0.0)
        return np.asarray(tail[first] - np.exp(gap) * weighed[first])

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 with δ(ε) ≤ ``delta``."""
        if float(self.delta(0.0)) <= delta:
            return 0.0
        tail, weighed = self._above
        at = tail[:-1] - weighed[:-1]  # δ at every loss; it falls
        i = int(np.searchsorted(-at, -delta))  # the first loss where it is small enough
        # Between losses δ(ε) = tail − e^{ε − loss} · weighed.
        return max(0.0, self.start + self.step * i + math.log((tail[i] - delta) / weighed[i]))

    @cached_property
    def _above(self) -> tuple[FloatArray, FloatArray]:
        """For every loss ℓ and past the last: mass of losses ≥ ℓ, and that weighed by e^{ℓ − L}."""
        backwards = self.masses[::-1]
        weighed = scipy.signal.lfilter([1.0], [1.0, -math.exp(-self.step)], backwards)
        return np.append(np.cumsum(backwards)[::-1], 0.0), np.append(weighed[::-1], 0.0)
