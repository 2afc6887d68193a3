r"""Compose privacy losses on a grid, and read δ(ε) and ε(δ) from them.

One engine serves all mechanisms. A mechanism supplies the distribution of one step or of one epoch:
the masses of its loss L = ln(P/Q) in cells, under P and under Q. Here cells are rounded to their
ends, distributions are composed by FFT, and both are done in a stated direction:

- ``"up"`` moves the masses of a cell to its two ends so that both the mass under P and that under Q
  stay (Doroshenko et al. 2022). Such a pair is easier to tell apart, so ε is never too small. The
  error falls with the square of the cell.
- ``"down"`` rounds losses at random so that their mean does not grow. The sum of many such errors
  is small: beyond √T cells it is rarer than any δ. This much is subtracted, so that ε is
  never too large.
- ``"nearest"`` gives half of a cell to either end: an estimate, whose error the caller finds.

An FFT leaves rounding of about 1e-16 of the largest mass everywhere, which would drown tails of
1e-14. So distributions are *tilted* first: mass m at loss ℓ becomes m e^{tℓ}, t such that the
losses that decide ε at δ are the typical ones. Tilted ones stay tilted; only δ(ε) undoes it.
"""

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import scipy.fft
import scipy.signal
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, ndtr

from epsilometer.types import FloatArray

ComplexArray: TypeAlias = NDArray[np.complex128]
Rounding: TypeAlias = Literal["up", "down", "nearest"]

_OUTSIDE = 1e-18  # of a distribution, that may lie outside the window of an FFT
_CUT = 1e-9  # of δ, that may do so where ε at one δ is asked for
_NEGLIGIBLE = 1e-5  # of δ: numerical errors that move ε by less than that
_RARE = 1e-5  # of δ: how seldom errors of losses that are rounded down add up to more than stated
_CLEAR = 4e-6  # δ per step, relative to which the rounding of an FFT is negligible
_BELOW = 0.999  # of ε: an ε by Rényi accounting that is less is below it, whatever its rounding
_VANISHED = -60.0  # logarithm of a frequency that may be left out: below _OUTSIDE
_GATHERED = 64  # cells that are taken together where only a bound of moments is wanted
_LARGEST_EXPONENT = 700.0  # of e, that is still a float


@dataclass(frozen=True, eq=False, kw_only=True)
class LossDistribution:
    """The distribution of a privacy loss on the grid ``start + step · (0, 1, …)``.

    Attributes:
        start: The smallest loss.
        step: Distance between losses.
        masses: Masses of each loss ℓ, as mass · e^{tilt · ℓ − log_scale}. Mass missing to 1 counts
            as a loss of −∞.
        infinite: Mass of an infinite loss.
        tilt: See ``masses``.
        log_scale: See ``masses``.
        error: Numerical error of δ in the direction of rounding, tilted as the masses are.
    """

    start: float
    step: float
    masses: FloatArray
    infinite: float = 0.0
    tilt: float = 0.0
    log_scale: float = 0.0
    error: float = 0.0

    @classmethod
    def from_cells(
        cls,
        start: float,
        step: float,
        present: FloatArray,
        absent: FloatArray,
        *,
        beyond: float,
        rounding: Rounding,
    ) -> "LossDistribution":
        """Round the masses of cells to their ends.

        Args:
            start: Lower end of the first cell.
            step: Width of each cell.
            present: Mass of each cell under the distribution P whose loss this is.
            absent: Mass of each cell under Q.
            beyond: Mass under P of losses above the last cell.
            rounding: Direction of rounding.
        """
        lower = start + step * np.arange(present.size)
        if rounding == "up":
            # u at the upper end ℓ + h and p − u at the lower end ℓ keep the mass p under P, and
            # that under Q if (p − u) e^{−ℓ} + u e^{−ℓ−h} = q. Rounding may leave u outside [0, p].
            upper = (absent * np.exp(lower) - present) / math.expm1(-step)
        elif rounding == "down":
            # The mean loss of a cell is at least ln(p/q), by Jensen's inequality.
            with np.errstate(divide="ignore", invalid="ignore"):
                upper = present * (np.log(present / absent) - lower) / step
        else:
            upper = present / 2
        upper = np.clip(np.nan_to_num(upper), 0.0, present)
        masses = np.append(present - upper, 0.0)
        masses[1:] += upper
        if rounding == "down":
            masses[-1] += beyond
            return cls(start=start, step=step, masses=masses)
        if rounding == "up":  # what lies below the first cell
            masses[0] += max(0.0, 1.0 - beyond - float(present.sum()))
        return cls(start=start, step=step, masses=masses, infinite=beyond)

    @property
    def losses(self) -> FloatArray:
        """All losses, rising."""
        return self.start + self.step * np.arange(self.masses.size)

    def delta(self, epsilon: ArrayLike) -> FloatArray:
        """Compute δ(ε) = E[(1 − e^{ε − L})₊]."""
        epsilon = np.asarray(epsilon, np.float64)
        gaps, weighed = self._above
        # The least loss of at least ε; beyond the last there is nothing.
        first = np.ceil((epsilon - self.start) / self.step - 1e-9)
        first = np.clip(first, 0, self.masses.size).astype(np.int64)
        gap = np.minimum(epsilon - (self.start + self.step * first), 0.0)
        tilted = gaps[first] - np.expm1(gap) * weighed[first]
        return np.asarray(self.infinite + tilted * np.exp(self._log_factor(first)))

    def epsilon(self, delta: float) -> float:
        """Find the smallest ε ≥ 0 with δ(ε) ≤ ``delta``."""
        delta -= self.infinite
        if delta <= 0:
            return math.inf
        gaps, weighed = self._above

        def fall_short(i: int) -> bool:
            return bool(gaps[i] * math.exp(self._log_factor(i)) <= delta)

        # δ at losses falls; the first loss where it is small enough.
        i = bisect.bisect_left(range(self.masses.size - 1), True, key=fall_short)
        # Between losses δ(ε) = factor · (gap + (1 − e^{ε − loss}) · weighed), which is solved.
        tilted = delta * math.exp(-self._log_factor(i))
        if gaps[i] + weighed[i] <= tilted:
            return 0.0  # no loss is large enough to matter
        solved = math.log1p((gaps[i] - tilted) / weighed[i])
        return float(max(0.0, self.start + self.step * i + solved))

    def is_clear(self, epsilon: float, delta: float) -> bool:
        """Return whether the numerical error is negligible at this ``delta`` and ``epsilon``."""
        if not 0 < epsilon < math.inf:
            return True
        tilted = delta * math.exp(-self._log_factor((epsilon - self.start) / self.step))
        return abs(self.error) <= _NEGLIGIBLE * tilted

    def _log_factor(self, i: ArrayLike) -> FloatArray:
        """Return the logarithm of what undoes the tilt at the i-th loss."""
        log_factor = self.log_scale - self.tilt * (self.start + self.step * np.asarray(i))
        return np.asarray(np.clip(log_factor, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))

    @cached_property
    def _above(self) -> tuple[FloatArray, FloatArray]:
        """For every loss ℓ, and past the last, sums over L ≥ ℓ of tilted masses times weights.

        The weights are e^{−t(L−ℓ)} (1 − e^{ℓ−L}), which is δ(ℓ), and e^{−(t+1)(L−ℓ)}. Both follow
        from those of the next loss by sums of positive numbers: nothing cancels, where a difference
        of two tails would leave no digits of a δ that is much smaller.
        """
        # Past the last loss there is nothing.
        backwards = np.zeros(self.masses.size + 1)
        backwards[1:] = self.masses[::-1]
        kept = math.exp(-self.tilt * self.step)
        weighed = scipy.signal.lfilter([1.0], [1.0, -kept * math.exp(-self.step)], backwards)
        gaps = scipy.signal.lfilter([0.0, -kept * math.expm1(-self.step)], [1.0, -kept], weighed)
        gaps, weighed = gaps[::-1], weighed[::-1]
        if self.error < 0:
            # Where tilted δ drowns in the error, δ is at least what it is at a larger loss.
            first = int(np.argmax(gaps > -2 * self.error))
            gaps[:first] = gaps[first] * kept ** np.arange(first, 0, -1)
        gaps += self.error
        return np.maximum(gaps, 0.0, out=gaps), weighed


Parts: TypeAlias = Sequence[tuple[LossDistribution, int]]


def compose(
    parts: Parts, *, rounding: Rounding, tilt: float = 0.0, outside: float = _OUTSIDE
) -> LossDistribution:
    """Return the distribution of a sum of independent losses, all on grids of the same step.

    What the FFT and its finite window can do to δ is added (``"up"``) or subtracted (``"down"``),
    so the direction of rounding survives. Only distributions without a tilt are composed.

    Args:
        parts: Distributions, and how many of each.
        rounding: Rounding of the distributions.
        tilt: Tilt of the result.
        outside: Mass of the tilted result that may lie outside the window of the FFT.
    """
    step = parts[0][0].step
    if sum(times for _, times in parts) == 1:
        return parts[0][0]
    start = log_scale = log_finite = 0.0
    tilted = []
    for law, times in parts:
        masses, log_total = _tilt_masses(law, tilt)
        tilted.append((masses, times))
        start += times * law.start
        log_scale += times * log_total
        log_finite += times * math.log1p(-law.infinite)
    low, composed, error = convolve(tilted, outside=outside)
    # An error of each mass counts in δ with its weight e^{−tj}(1 − e^{−j}), j steps above ε; mass
    # that came in from outside the window, or is missing there, with 1 at most.
    size = composed.size
    counted = _sum_powers(tilt * step, size) - _sum_powers((tilt + 1) * step, size)
    error = error * counted + outside
    return LossDistribution(
        start=start + step * low,
        step=step,
        masses=composed,
        infinite=-math.expm1(log_finite),
        tilt=tilt,
        log_scale=log_scale,
        error={"up": error, "down": -error, "nearest": 0.0}[rounding],
    )


def _sum_powers(rate: float, count: int) -> float:
    """Return the sum of e^{−rate · j} over j = 0, 1, …, count − 1."""
    return float(count) if rate == 0 else math.expm1(-rate * count) / math.expm1(-rate)


def convolve(
    parts: Sequence[tuple[FloatArray, int]], *, outside: float = _OUTSIDE
) -> tuple[int, FloatArray, float]:
    """Convolve masses on the cells 0, 1, …, this many times each, by FFT.

    Args:
        parts: Masses that sum to about 1, and the multiplicity of each.
        outside: Mass of the result that may lie outside the returned cells.

    Returns:
        The first cell of the result, its masses, and the error of each mass.
    """
    low, high = _find_window(parts, outside)
    longest = max(masses.size for masses, _ in parts)
    size = scipy.fft.next_fast_len(max(high - low + 1, longest), real=True)
    spectrum, error = _raise_spectrum(parts, size)
    composed = scipy.fft.irfft(spectrum, size, overwrite_x=True)
    np.maximum(composed, 0.0, out=composed)
    return low, np.roll(composed, -low)[: high - low + 1], error


def _tilt_masses(law: LossDistribution, tilt: float) -> tuple[FloatArray, float]:
    """Return m e^{tℓ} scaled to a sum of 1, and ln of the sum; by logarithms, as tℓ may be 1e5."""
    if tilt == 0:
        return law.masses, 0.0
    with np.errstate(divide="ignore"):
        logs = np.log(law.masses) + tilt * law.losses
    peak = float(logs.max())
    masses = np.exp(logs - peak)
    total = float(masses.sum())
    return masses / total, peak + math.log(total)


def _raise_spectrum(
    tilted: Sequence[tuple[FloatArray, int]], size: int
) -> tuple[ComplexArray, float]:
    """Return the transform of the sum of all cells, and how wrong a mass of it may be.

    A transform of n numbers whose sum is 1 is right to about 2⁻⁵² log₂ n. Its T-th power X^T is
    then wrong by T |X|^{T−1} of that, and a mass by the mean over frequencies at most.
    """
    spectra = [scipy.fft.rfft(masses, size) for masses, _ in tilted]
    log_size = np.zeros(size // 2 + 1)
    with np.errstate(divide="ignore"):
        for spectrum, (_, times) in zip(spectra, tilted, strict=True):
            log_size += times * np.log(np.abs(spectrum))
    # Of many steps nearly all frequencies vanish: nothing more is computed there.
    alive = np.flatnonzero(log_size > _VANISHED)
    log_size = log_size[alive]
    angle = np.zeros(alive.size)
    wrong = np.exp(log_size).sum()  # the transform back
    for spectrum, (_, times) in zip(spectra, tilted, strict=True):
        wrong += times * np.exp(log_size - np.log(np.abs(spectrum[alive]))).sum()
        angle += times * np.angle(spectrum[alive])
    raised = np.zeros(size // 2 + 1, np.complex128)
    raised[alive] = np.exp(log_size + 1j * angle)
    return raised, 2.0**-52 * math.log2(size) * float(wrong) / raised.size


def _find_window(tilted: Sequence[tuple[FloatArray, int]], outside: float) -> tuple[int, int]:
    """Return ends of the sum of cells, beyond which lies less than ``outside`` (Chernoff)."""
    most = sum(times * (masses.size - 1) for masses, times in tilted)
    longest = max(masses.size for masses, _ in tilted)
    orders = 2.0 ** np.arange(-8, 12, 0.5) / longest
    above = below = np.full(orders.size, math.log(2 / outside))
    for masses, times in tilted:
        cells, log_masses = _gather(masses)
        above = above + times * logsumexp(orders[:, None] * cells + log_masses, axis=1)
        below = below + times * logsumexp(-orders[:, None] * cells + log_masses, axis=1)
    low, high = float(np.max(-below / orders)), float(np.min(above / orders))
    return max(0, math.floor(low)), min(most, math.ceil(high))


def _gather(masses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return every 64th cell, and logarithms of masses there that bound all exponential moments.

    Each mass is split between the two chosen cells around it so that its mean stays. As e^{sk} is
    convex in k, moments only grow by that, and by little, whatever the number of steps.
    """
    blocks = np.zeros((masses.size // _GATHERED + 2, _GATHERED))
    blocks.flat[: masses.size] = masses
    share = np.arange(_GATHERED) / _GATHERED
    few = blocks @ (1 - share)
    few[1:] += (blocks @ share)[:-1]
    with np.errstate(divide="ignore"):
        return _GATHERED * np.arange(few.size, dtype=np.float64), np.log(few)


def find_epsilon(parts: Parts, delta: float, *, rounding: Rounding, floor: float = 0.0) -> float:
    """Return ε at ``delta`` of a composition, with tails that are accurate at any ``delta``.

    Args:
        parts: Distributions, and how many of each.
        delta: δ.
        rounding: Rounding of the distributions.
        floor: Returned where ε is below it. If Rényi accounting shows that, nothing is composed.
    """
    shift = 0.0
    if rounding == "down":
        # The error of each loss has a mean of at most 0 and a width of one cell, so T of them
        # exceed h √(T ln(1/η) / 2) with a probability of at most η (Hoeffding 1963), and T h never.
        steps, rare = sum(times for _, times in parts), _RARE * delta
        shift = parts[0][0].step * min(steps, math.sqrt(steps * -math.log(rare) / 2))
        delta += rare
    renyi = _account_renyi(parts, delta)
    infinite = any(law.infinite for law, _ in parts)
    if not infinite and float(renyi[2].min()) < _BELOW * floor:
        return floor
    epsilons = []
    for tilt, outside in _choose_tilts(*renyi, delta, sum(times for _, times in parts)):
        law = compose(parts, rounding=rounding, tilt=tilt, outside=outside)
        # Below its window a tilted distribution has no mass, but the original may: ε there may be
        # too small.
        low = min(tilt, law.start, delta - float(law.delta(law.start)))
        if low <= 0 or rounding == "down":
            epsilons.append(law.epsilon(delta))
            if law.is_clear(epsilons[-1], delta):
                break
    # Each is valid; they differ only in their error.
    return max(floor, (max if rounding == "down" else min)(epsilons) - shift)


def _account_renyi(parts: Parts, delta: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return tilts λ, ln E[e^{λL}] of a composition without infinite losses, and ε by each.

    A part of the cells suffices: their moments bound the moments of all.
    """
    gathered, variance = [], 0.0
    for law, times in parts:
        cells, log_masses = _gather(law.masses)
        losses, masses = law.start + law.step * cells, np.exp(log_masses)
        mean = float(masses @ losses / masses.sum())
        variance += times * float(masses @ (losses - mean) ** 2 / masses.sum())
        gathered.append((losses, log_masses, times))
    tilts = 2.0 ** np.arange(-8, 7, 0.25) / math.sqrt(variance)
    log_moments = np.zeros(tilts.size)
    for losses, log_masses, times in gathered:
        log_moments += times * logsumexp(tilts[:, None] * losses + log_masses, axis=1)
    # ε = (ln E[e^{λL}] − ln δ − ln(λ + 1) + λ ln(λ / (λ + 1))) / λ (Canonne et al. 2020)
    epsilons = log_moments - math.log(delta) - np.log1p(tilts) - tilts * np.log1p(1 / tilts)
    return tilts, log_moments, epsilons / tilts


def _choose_tilts(
    tilts: FloatArray, log_moments: FloatArray, epsilons: FloatArray, delta: float, steps: int
) -> Iterator[tuple[float, float]]:
    """Yield tilts to try, the last of them 0, and the mass that may lie outside of each window.

    Rényi accounting locates ε roughly: at the smallest ε(λ) over orders λ + 1. A tilt t makes δ
    there e^{tε} / E[e^{tL}] times as large relative to the rounding of the FFT, most at t = λ. The
    smallest tilt that suffices is tried first, since tilted distributions are wide; then t = λ.
    """
    best = int(np.argmin(epsilons))
    tilts = np.append(0.0, tilts[: best + 1])
    log_moments = np.append(0.0, log_moments[: best + 1])
    tilted_deltas = delta * np.exp(np.minimum(tilts * epsilons[best] - log_moments, 50.0))
    # Rounding adds up to some 1e-14 times the steps: more than that is wanted, by far.
    enough = np.flatnonzero(tilted_deltas > _CLEAR * steps)
    first = int(enough[0]) if enough.size else best + 1
    yield float(tilts[first]), max(_OUTSIDE, _CUT * min(1.0, float(tilted_deltas[first])))
    yield from ((float(tilts[i]), _OUTSIDE) for i in (best + 1, 0))


def normal_masses(edges: FloatArray) -> FloatArray:
    """Return the standard normal mass between neighbours along the first axis, edges rising.

    Each from the tail that is the smaller one: a difference of numbers near 1 has no digits left.
    """
    tails = ndtr(-np.abs(edges))
    start, stop = tails[:-1], tails[1:]
    one_side = np.abs(stop - start)
    return np.asarray(np.where((edges[:-1] < 0) & (edges[1:] > 0), 1.0 - start - stop, one_side))
