r"""The exact privacy loss of shuffled batches, without sampling.

One epoch of the batched Gaussian mechanism has T batches with noise of standard deviation σ. The
target's batch has mean a + 1 with the record and a without it, all others 0 (a = 1: the worst case
under shuffling; a = 0: nobody else contributes, as for balls in bins; a = 2B − 1: batches of B that
were formed before they were shuffled). With v = exp(x/σ²) the loss of an epoch is

    L = −(2a + 1)/(2σ²) + ln Σ_t v_t^{a+1} − ln Σ_t v_t^a        (for a = 0 the last term is ln T)

and L > τ says Σ_t g(v_t/K) > 0 with g(r) = r^a (r − 1) and ln K = τ + (2a + 1)/(2σ²): a sum of
*independent* terms. So both tails of L are a convolution power of one law, taken by FFT, and the
target's own term in closed form. Epochs are independent and add.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.fft
import scipy.interpolate
import scipy.special
from numpy.typing import NDArray

from epsilometer.accounting.losses import Losses
from epsilometer.errors import InvalidArgument
from epsilometer.results import Direction
from epsilometer.stats import search
from epsilometer.stats.gaussians import gaussian_delta, gaussian_epsilon
from epsilometer.stats.tradeoff import gdp_curve
from epsilometer.types import FloatArray

_LEAST = 1e-11  # of a tail: below, the rounding of the FFT shows
_LOST = 1e-10  # an epoch: tails that are cut off, and rounding
_DIRECTIONS: tuple[Direction, Direction] = ("present→absent", "absent→present")
_TINY = -65.0  # logarithm of what may lie below the window of sums
# Logarithms by which sums beyond the window are damped before they wrap around: much, where the
# lower tail is wanted; little, where the upper is, which undoing it would fill with rounding.
_DAMPING = {"lower": 27.0, "upper": 12.0}
_FARTHEST = 1e6  # threshold
_Z = np.linspace(-14.0, 14.0, 1401)
_WEIGHTS = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()
_TILTS = np.geomspace(1e-8, 1e6, 120)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch: T batches, noise σ, and the mean of the target's batch without the record.

    Attributes:
        steps: T.
        noise: σ.
        absent: a.
    """

    steps: int
    noise: float
    absent: int

    def tails(self, tau: float, *, points: int) -> tuple[float, float, float, float]:
        """P(L ≤ τ), P(L > τ), Q(L ≤ τ), Q(L > τ), each in its own direction."""
        log_k = tau + (2 * self.absent + 1) / (2 * self.noise**2)
        sums, masses = self._others(log_k, points)
        upper, lower = _branches(-sums, self.absent)
        high, low = (self.noise * (branch + log_k) for branch in (upper, lower))
        found = []
        beyond = max(0.0, 1.0 - float(masses.sum()))  # sums that no target can pull below 0
        for mean in (self.absent + 1, self.absent):
            shift = mean / self.noise
            above = scipy.special.ndtr(shift - high) + scipy.special.ndtr(low - shift)
            between = _between(low - shift, high - shift)
            found += [float(masses @ between), float(masses @ above) + beyond]
        return found[0], found[1], found[2], found[3]

    def reveals_the_batch(self) -> bool:
        """Whether the target's batch stands out so far that only its own value counts."""
        mistaken = (self.steps - 1) * scipy.special.ndtr(-self.absent / (math.sqrt(2) * self.noise))
        return bool(self.steps == 1 or (self.absent > 0 and mistaken < _LEAST))

    def _others(self, log_k: float, points: int) -> tuple[FloatArray, FloatArray]:
        """The law of the other batches' sum of g, below the value that decides by itself."""
        floor = _floor(self.absent)
        if self.steps == 1:
            return np.zeros(1), np.ones(1)
        terms = self.steps - 1
        least = max(self._least_sum(log_k, terms), terms * floor)
        if least > -floor:  # no target can pull such a sum below 0
            return np.zeros(0), np.zeros(0)
        top = -least - floor  # a single term above this makes the sum positive
        spare = 8 + math.ceil(6 * math.sqrt(terms))  # cells; what rounding to the grid may scatter
        width = (top - min(least, 0.0) - floor) / (points - spare)
        # The grid has a point where terms crowd when K is large: g ≈ 0, or −1 where a = 0.
        crowd = floor if self.absent == 0 else 0.0
        cells = np.arange(math.floor((floor - crowd) / width), math.ceil((top - crowd) / width) + 1)
        edges = crowd + width * cells
        law = self._discretised(edges, log_k)
        middle = (2 * self.absent + 1) / (2 * self.noise**2) + 0.25
        tilt = _DAMPING["lower" if log_k < middle else "upper"] / (points * width)
        tilted = law * np.exp(-tilt * edges)
        total = float(tilted.sum())
        buffer = np.zeros(points)
        np.add.at(buffer, cells % points, tilted / total)
        power = scipy.fft.irfft(scipy.fft.rfft(buffer) ** terms, points)
        at = math.floor((least - terms * crowd) / width) - spare + np.arange(points)
        sums = terms * crowd + width * at
        with np.errstate(over="ignore"):
            masses = power[at % points] * np.exp(terms * math.log(total) + tilt * sums)
        keep = sums < -floor
        return sums[keep], masses[keep]

    def _discretised(self, edges: FloatArray, log_k: float) -> FloatArray:
        """Masses at ``edges`` of one untouched batch's term, with its mean in every cell kept."""
        upper, lower = (self.noise * (b + log_k) for b in _branches(edges, self.absent))
        mass, mean = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
        for ends, sign in ((upper, 1), (lower, -1)):
            start, stop = (ends[:-1], ends[1:]) if sign > 0 else (ends[1:], ends[:-1])
            mass += _between(start, stop)
            for power, factor in ((self.absent + 1, 1.0), (self.absent, -1.0)):
                shift = power / self.noise
                share = _between(start - shift, stop - shift)
                with np.errstate(divide="ignore"):
                    moment = np.exp(shift**2 / 2 - power * log_k + np.log(share))
                mean += factor * moment
        width = edges[1] - edges[0]
        right = np.clip((mean - mass * edges[:-1]) / width, 0.0, mass)
        law = np.zeros(edges.size)
        law[:-1] += mass - right
        law[1:] += right
        return law

    def _least_sum(self, log_k: float, terms: int) -> float:
        """Below this the sum lies with a probability of at most exp(_TINY) (Chernoff)."""
        log_r = _Z / self.noise - log_k
        with np.errstate(over="ignore"):
            g = np.exp(np.minimum(self.absent * log_r, 700.0)) * np.expm1(np.minimum(log_r, 350.0))
        g = np.minimum(g, 1e12)  # large ones only raise the sum
        exponent = -_TILTS[:, None] * g[None, :]
        peak = exponent.max(axis=1)
        log_mean = peak + np.log(np.exp(exponent - peak[:, None]) @ _WEIGHTS)
        return float(np.max((_TINY - terms * log_mean) / _TILTS))


def _floor(absent: int) -> float:
    """The least value of g."""
    return -1.0 if absent == 0 else -(absent**absent) / (absent + 1) ** (absent + 1)


def _branches(values: FloatArray, absent: int) -> tuple[FloatArray, FloatArray]:
    """ln r of the two solutions of g(r) = value; −∞ for the lower one where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if absent == 0:
            upper = np.log1p(np.maximum(values, -1.0))
            return upper, np.full_like(upper, -np.inf)
        if absent > 1:
            return _tabulated_branches(values, absent)
        root = np.sqrt(np.maximum(0.25 + values, 0.0))
        upper = np.log(0.5 + root)
        lower = np.log(np.where(values < 0, np.minimum(-values, 0.25) / (0.5 + root), 0.0))
        return upper, lower


def _tabulated_branches(values: FloatArray, absent: int) -> tuple[FloatArray, FloatArray]:
    """The same by interpolation; masses and means are computed at whatever points it gives."""
    (low_g, low_r), (high_g, high_r) = _branch_tables(absent)
    lower = np.interp(values, low_g, low_r)
    lower = np.where(values < 0, lower, -np.inf)
    return np.interp(values, high_g, high_r), lower


@lru_cache(maxsize=8)
def _branch_tables(absent: int) -> tuple[tuple[FloatArray, FloatArray], ...]:
    turn = math.log(absent / (absent + 1))
    down = turn - np.geomspace(1e-6, 700.0 / absent, 20_000)
    up = turn + np.geomspace(1e-6, 40.0 / absent, 20_000)
    tables = []
    for branch in (down, up):
        log_r = np.append(turn, branch)
        tables.append((np.exp(absent * log_r) * np.expm1(log_r), log_r))
    return tuple(tables)


def _between(start: FloatArray, stop: FloatArray) -> FloatArray:
    """The normal mass of intervals, without cancellation in either tail."""
    right = start > 0
    low, high = np.where(right, -stop, start), np.where(right, -start, stop)
    return np.asarray(scipy.special.ndtr(high) - scipy.special.ndtr(low))


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """How finely everything is tabulated."""

    points: int  # of the FFT of sums
    nodes: int  # thresholds at which tails are computed
    cells: int  # of the law of one epoch, before it is composed

    def halved(self) -> "_Grid":
        return _Grid(points=self.points // 2, nodes=self.nodes // 2, cells=self.cells // 2)


def _losses(epoch: Epoch, grid: _Grid) -> tuple[Losses, Losses]:
    """The laws of L under P and of −L under Q."""
    taus = _nodes(epoch, grid)
    tails = np.array([epoch.tails(tau, points=grid.points) for tau in taus])
    fine = np.linspace(taus[0], taus[-1], grid.cells + 1)
    present = _masses(taus, tails[:, 0], tails[:, 1], fine)
    absent = _masses(taus, tails[:, 2], tails[:, 3], fine)
    step = float(fine[1] - fine[0])
    return (
        Losses(start=float(fine[0]), step=step, masses=present),
        Losses(start=-float(fine[-1]), step=step, masses=absent[::-1]),
    )


def _nodes(epoch: Epoch, grid: _Grid) -> FloatArray:
    """Thresholds over all that is not negligible: beyond lies less than ``_LEAST``."""

    def upper(tau: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(epoch.tails(float(tau), points=grid.points)[1] > _LEAST)

    def lower(tau: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(epoch.tails(-float(tau), points=grid.points)[2] > _LEAST)

    ends = []
    for alive in (lower, upper):
        end = search.grow(alive, 0.5, limit=_FARTHEST)
        ends.append(float(search.bisect(alive, 0.0, end, relative=0.02)[1]))
    return np.linspace(-ends[0], ends[1], grid.nodes)


def _masses(taus: FloatArray, below: FloatArray, above: FloatArray, fine: FloatArray) -> FloatArray:
    """Masses at ``fine`` from tails at ``taus``, where both tails keep their digits."""
    sure = (below > _LEAST / 10) & (above > _LEAST / 10)
    odds = scipy.interpolate.CubicSpline(taus[sure], np.log(above[sure]) - np.log(below[sure]))
    at = odds(np.clip(fine, taus[sure][0], taus[sure][-1]))
    survival, reached = scipy.special.expit(at), scipy.special.expit(-at)
    cells = np.where(at[:-1] > 0, np.diff(reached), -np.diff(survival))
    cells = np.maximum(cells, 0.0)
    masses = np.zeros(fine.size)
    masses[:-1] += cells / 2  # half to either end keeps the middle of a cell as its mean
    masses[1:] += cells / 2
    return masses


@lru_cache(maxsize=16)
def _composed(epoch: Epoch, epochs: int, grid: _Grid) -> tuple[Losses, Losses]:
    present, absent = _losses(epoch, grid)
    return present.composed(epochs), absent.composed(epochs)


def _grid(epochs: int) -> _Grid:
    return _Grid(points=2**14, nodes=240, cells=int(np.clip(2**22 / epochs, 2**12, 2**15)))


def exact_epsilon(
    epoch: Epoch, *, epochs: int, delta: float, direction: Direction = "both"
) -> tuple[float, float, float, Direction]:
    """ε, the ends of its numerical error, and the direction it comes from."""
    if direction == "both":
        either = [
            exact_epsilon(epoch, epochs=epochs, delta=delta, direction=one) for one in _DIRECTIONS
        ]
        return max(either)
    if epoch.reveals_the_batch():
        found = gaussian_epsilon(epoch.noise / math.sqrt(epochs), delta)
        return found, found * (1 - 1e-9), found * (1 + 1e-9), direction
    row, grid = _DIRECTIONS.index(direction), _grid(epochs)
    fine = _composed(epoch, epochs, grid)[row]
    coarse = _composed(epoch, epochs, grid.halved())[row]
    lost = epochs * _LOST
    if lost > delta / 2:
        raise InvalidArgument(
            f"Expected delta above {2 * lost:.1g} for {epochs} epochs, got {delta!r}: tails of "
            f"{_LEAST:g} an epoch are not computed."
        )
    found = fine.epsilon(delta)
    error = abs(found - coarse.epsilon(delta))
    low = max(0.0, min(found, fine.epsilon(delta + lost)) - error)
    return found, low, max(found, fine.epsilon(delta - lost)) + error, direction


def exact_delta(
    epoch: Epoch, *, epochs: int, epsilon: float, direction: Direction = "both"
) -> tuple[float, float, float, Direction]:
    """δ, the ends of its numerical error, and the direction it comes from."""
    if direction == "both":
        either = [
            exact_delta(epoch, epochs=epochs, epsilon=epsilon, direction=one) for one in _DIRECTIONS
        ]
        return max(either)
    if epoch.reveals_the_batch():
        found = gaussian_delta(epoch.noise / math.sqrt(epochs), epsilon)
        return found, found * (1 - 1e-9), found * (1 + 1e-9), direction
    row, grid = _DIRECTIONS.index(direction), _grid(epochs)
    found = float(_composed(epoch, epochs, grid)[row].delta(epsilon))
    coarse = float(_composed(epoch, epochs, grid.halved())[row].delta(epsilon))
    error = abs(found - coarse) + epochs * _LOST
    return found, max(0.0, found - error), min(1.0, found + error), direction


def least_noise(
    epoch_of: Callable[[float], Epoch], *, epochs: int, epsilon: float, delta: float
) -> float:
    """The noise at which ε is ``epsilon``: with less, the promise is false."""

    def kept(log_noise: float) -> float:
        epoch = epoch_of(math.exp(log_noise))
        if epoch.reveals_the_batch():
            return epsilon - gaussian_epsilon(epoch.noise / math.sqrt(epochs), delta)
        laws = _composed(epoch, epochs, _grid(epochs).halved())
        return math.log(epsilon) - math.log(max(*(law.epsilon(delta) for law in laws), 1e-9))

    low = high = 0.0
    while kept(low) > 0:
        low -= 0.5
    while kept(high) <= 0:
        high += 0.5
    low = max(low, high - 0.5) if high > 0 else low
    return math.exp(search.root(kept, low, high, relative=1e-5)[0])


def exact_curve(epoch: Epoch, *, epochs: int, fpr: FloatArray) -> FloatArray:
    """Least FNR of any attack on this pair at each FPR."""
    if epoch.reveals_the_batch():
        return gdp_curve(fpr, mu=math.sqrt(epochs) / epoch.noise)
    present, absent = _composed(epoch, epochs, _grid(epochs))
    # "In iff L > τ" errs with Q(L > τ) and P(L ≤ τ).
    missed = np.cumsum(present.masses)
    false = np.interp(-present.values, absent.values, np.cumsum(absent.masses))
    return np.interp(fpr, false[::-1], missed[::-1])
