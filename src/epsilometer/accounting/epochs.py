r"""Tabulate the privacy loss of an epoch of shuffled batches, without sampling.

One epoch of the batched Gaussian mechanism has T batches with noise of standard deviation σ. The
target's batch has mean a + 1 with the record and a without it, all others 0 (a = 1: the worst case
under shuffling; a = 0: no other contributes, as for balls in bins; a = 2B − 1: batches of B that
were formed before they were shuffled). With v = exp(x/σ²) the loss of an epoch is

    L = −(2a + 1)/(2σ²) + ln Σ_t v_t^{a+1} − ln Σ_t v_t^a        (for a = 0 the last term is ln T)

and L > τ says Σ_t g(v_t/K) > 0 with g(r) = r^a (r − 1) and ln K = τ + (2a + 1)/(2σ²): a sum of
*independent* terms. So both tails of L are a convolution power of one distribution, taken by FFT,
and the target's own term in closed form. Epochs are independent and add.

Where an epoch leaves the record out with chance p, all batches have mean 0 with this chance, with
the record and without it. Both densities are mixtures with the same third one, and L > τ says
Σ_t g(v_t/K) > c with c = (1 − e^{−τ}) K^{−a} e^{a²/2σ²} T p/(1 − p), still a sum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import scipy.fft
import scipy.interpolate
import scipy.special
from numpy.typing import NDArray

from epsilometer.accounting.loss_distribution import LossDistribution, compose, normal_masses
from epsilometer.core.bound import Direction
from epsilometer.errors import InvalidArgument
from epsilometer.stats import search
from epsilometer.stats.gaussians import gaussian_delta, gaussian_epsilon
from epsilometer.stats.tradeoff import gdp_curve
from epsilometer.types import FloatArray

_LEAST = 1e-11  # of a tail: below, the rounding of the FFT shows
_MOST_STEPS = 1_000_000
_LOST = 10  # times the least tail, per epoch: tails that are cut off, and rounding
_DIRECTIONS: tuple[Direction, Direction] = ("present→absent", "absent→present")
_TINY = -65.0  # logarithm of what may lie below the window of sums
# Logarithms by which sums beyond the window are damped before they wrap around: much, where the
# lower tail is wanted; little, where the upper is, which undoing it would fill with rounding.
_DAMPING = {"lower": 27.0, "upper": 12.0}
_FARTHEST = 1e6  # threshold
_STEP = 1.6  # by which noise is raised or lowered until the wanted one is passed
_NEARLY_ONE = 1 - 2**-53
_POINTS = 2**12  # of the FFT of sums, to begin with; up to _FINER times as many where needed
_FINER, _MOST_POINTS = 4, 2**16
_SMOOTH = -20.0  # logarithm of high frequencies: below, sums are smooth where cells are not seen
_NEAR = 0.05  # variances times squares of frequencies, up to which X − 1 is computed
_VANISHED = -60.0  # logarithm of a frequency that may be left out
_ENOUGH = 2e-5  # relative error at which no finer grid is tried
_FEWEST_CELLS, _MOST_CELLS = 2**12, 2**21  # of the distribution of one epoch, and of all together
_NODES = 81  # thresholds at which tails are computed
_Z = np.linspace(-14.0, 14.0, 281)
_WEIGHTS = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()
_TILTS = np.geomspace(1e-8, 1e6, 60)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch: T batches, noise σ, and the mean of the target's batch without the record.

    Attributes:
        steps: T.
        noise: σ.
        absent: a.
        left_out: p.
    """

    steps: int
    noise: float
    absent: int
    left_out: float = 0.0

    def __post_init__(self) -> None:
        if self.steps > _MOST_STEPS:
            raise InvalidArgument(
                f"Expected at most {_MOST_STEPS} steps an epoch, got {self.steps}: with more, "
                "rounding spoils the tails."
            )

    @property
    def least(self) -> float:
        """The smallest tail that is computed."""
        return _LEAST

    def tails(self, tau: float, *, points: int) -> tuple[float, float, float, float]:
        """Return P(L ≤ τ), P(L > τ), Q(L ≤ τ), Q(L > τ), each in its own direction."""
        if self.left_out and self.steps > 1 and self._stands_out():
            return replace(self, steps=1).tails(tau, points=points)
        log_k = tau + (2 * self.absent + 1) / (2 * self.noise**2)
        least = self._least_that_tells(tau, log_k)
        sums, masses = self._others(log_k, points, least)
        upper, lower = _branches(least - sums, self.absent)
        high, low = (self.noise * (branch + log_k) for branch in (upper, lower))
        found = []
        beyond = max(0.0, 1.0 - float(masses.sum()))  # sums that no target can pull below ``least``
        for mean in (self.absent + 1, self.absent, 0)[: 3 if self.left_out else 2]:
            between, above = _split_normal(low - mean / self.noise, high - mean / self.noise)
            found += [float((masses * between).sum()), float((masses * above).sum()) + beyond]
        if self.left_out:
            kept, missing = 1 - self.left_out, [self.left_out * tail for tail in found[4:]]
            found = [kept * tail + missing[at % 2] for at, tail in enumerate(found[:4])]
        return found[0], found[1], found[2], found[3]

    def _least_that_tells(self, tau: float, log_k: float) -> float:
        """Return c: the loss exceeds τ where the sum of g does so to this."""
        if not self.left_out:
            return 0.0
        scale = self.absent**2 / (2 * self.noise**2) - self.absent * log_k
        scale += math.log(self.steps * self.left_out / (1 - self.left_out))
        if scale - min(tau, 0.0) > 600.0:  # c would overflow: no sum is that small
            return -math.inf
        return -math.expm1(-tau) * math.exp(scale)

    def reveals_the_batch(self) -> bool:
        """Return whether this is the Gaussian mechanism: the target's batch always stands out."""
        return not self.left_out and self._stands_out()

    def _stands_out(self) -> bool:
        """Return whether the target's batch stands out so far that only its own value counts."""
        mistaken = (self.steps - 1) * scipy.special.ndtr(-self.absent / (math.sqrt(2) * self.noise))
        return bool(self.steps == 1 or (self.absent > 0 and mistaken < self.least))

    def _others(self, log_k: float, points: int, decisive: float) -> tuple[FloatArray, FloatArray]:
        """The distribution of the other batches' sum of g, below the value that decides alone."""
        floor = _floor(self.absent)
        if self.steps == 1:
            some = int(floor <= decisive)  # else the target's term alone is more
            return np.zeros(some), np.ones(some)
        terms = self.steps - 1
        least, centring = self._least_sum(log_k, terms)
        least = max(least, terms * floor)
        if least > decisive - floor:  # no target can pull such a sum below ``decisive``
            return np.zeros(0), np.zeros(0)
        top = decisive - least - floor  # a single term above this decides
        spare = 8 + math.ceil(6 * math.sqrt(terms))  # cells; what rounding to the grid may scatter
        width = (top - min(least, 0.0) - floor) / (points - spare)
        # The grid has a point where terms crowd when K is large: g ≈ 0, or −1 where a = 0.
        crowd = floor if self.absent == 0 else 0.0
        cells = np.arange(math.floor((floor - crowd) / width), math.ceil((top - crowd) / width) + 1)
        edges = crowd + width * cells
        law = self._discretise(edges, log_k)
        if terms == 1:  # the sum is this term: an FFT would only add rounding
            decided = edges < decisive - floor
            return edges[decided], law[decided]
        middle = (2 * self.absent + 1) / (2 * self.noise**2) + 0.25
        at = math.floor((least - terms * crowd) / width) - spare + np.arange(points)
        sums = terms * crowd + width * at
        damping = _DAMPING["lower" if log_k < middle else "upper"]
        # No more than it takes: it is paid for in digits.
        beyond = _log_chance_above(float(sums[-1]), edges, law, terms)
        damping = min(damping, max(0.0, beyond - _TINY / 2))
        tilt = min(damping / (points * width), centring)
        tilted = law * np.exp(-tilt * edges)
        # ln of the sum of all: from what it is less than 1, which many terms multiply.
        less = float((law * np.expm1(-tilt * edges)).sum()) - self._chance_above(edges[-1], log_k)
        # Where it is little, its distance from 1 has lost its digits, and the sum itself has not.
        log_total = math.log1p(less) if less > -0.5 else math.log(float(tilted.sum()))
        # Rounding terms to the grid widens their distribution by so much, which is taken off again.
        widened = float((law * edges**2).sum()) - self._second_moment(float(edges[-1]), log_k)
        power = convolution_power(
            tilted / tilted.sum(),
            int(cells[0]),
            terms,
            points,
            widened=widened / width**2,
            tilt=tilt * width,
        )
        with np.errstate(over="ignore"):
            masses = power[at % points] * np.exp(terms * log_total + tilt * sums)
        keep = (sums < decisive - floor) & (np.abs(masses) > _LEAST / (1e3 * points))
        return sums[keep], masses[keep]

    def _chance_above(self, top: float, log_k: float) -> float:
        """Return the chance that the term of one untouched batch is above ``top``, where r > 1."""
        (end,), _ = _branches(np.array([top]), self.absent)
        return float(scipy.special.ndtr(-self.noise * (end + log_k)))

    def _second_moment(self, top: float, log_k: float) -> float:
        """E[g²] of one untouched batch's term, where g is at most ``top``."""
        (end,), _ = _branches(np.array([top]), self.absent)
        end = self.noise * (end + log_k)
        total = 0.0
        for power, factor in ((2, 1.0), (1, -2.0), (0, 1.0)):
            power += 2 * self.absent  # noqa: PLW2901
            shift = power / self.noise
            share = scipy.special.log_ndtr(end - shift)
            total += factor * math.exp(shift**2 / 2 - power * log_k + share)
        return total

    def _discretise(self, edges: FloatArray, log_k: float) -> FloatArray:
        """Masses at ``edges`` of one untouched batch's term, with its mean in every cell kept."""
        upper, lower = (self.noise * (b + log_k) for b in _branches(edges, self.absent))
        mass, mean = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
        # The lower branch ends at 0: cells above it have no mass from there.
        few = min(int(np.isfinite(lower).sum()) + 1, edges.size)
        for ends, sign in ((upper, 1), (lower[:few], -1)):
            rising, cells = ends[::sign], slice(ends.size - 1)
            mass[cells] += normal_masses(rising)[::sign]
            for power, factor in ((self.absent + 1, 1.0), (self.absent, -1.0)):
                shift = power / self.noise
                share = normal_masses(rising - shift)[::sign]
                with np.errstate(divide="ignore"):
                    moment = np.exp(shift**2 / 2 - power * log_k + np.log(share))
                mean[cells] += factor * moment
        width = edges[1] - edges[0]
        right = np.clip((mean - mass * edges[:-1]) / width, 0.0, mass)
        law = np.zeros(edges.size)
        law[:-1] += mass - right
        law[1:] += right
        return law

    def _least_sum(self, log_k: float, terms: int) -> tuple[float, float]:
        """Below this the sum lies with a probability of at most exp(_TINY), and the tilt for it.

        By Chernoff's bound. With more tilt the distribution would lie below the window, and undoing
        it would leave only rounding. With this tilt, wrapped mass is at most exp(_TINY) × damping.
        """
        log_r = _Z / self.noise - log_k
        with np.errstate(over="ignore"):
            g = np.exp(np.minimum(self.absent * log_r, 700.0)) * np.expm1(np.minimum(log_r, 350.0))
        g = np.minimum(g, 1e12)  # large ones only raise the sum
        exponent = -_TILTS[:, None] * g[None, :]
        peak = exponent.max(axis=1)
        log_mean = peak + np.log(np.exp(exponent - peak[:, None]) @ _WEIGHTS)
        ends = (_TINY - terms * log_mean) / _TILTS
        return float(ends.max()), float(_TILTS[np.argmax(ends)])


def _split_normal(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Standard normal mass between ``low`` and ``high``, and outside, each with all its digits."""
    below, above = np.zeros(low.size), scipy.special.ndtr(-np.abs(high))
    some = np.isfinite(low)  # few have a lower end
    below[some] = scipy.special.ndtr(-np.abs(low[some]))
    outside = np.where(low < 0, below, 1 - below) + np.where(high > 0, above, 1 - above)
    across = (low < 0) & (high > 0)
    return np.where(across, 1 - below - above, np.abs(below - above)), outside


def convolution_power(
    masses: FloatArray,
    first: int,
    terms: int,
    points: int,
    *,
    widened: float = 0.0,
    tilt: float = 0.0,
) -> FloatArray:
    """Return the distribution of the sum of identical terms on a number of cells, wrapped around.

    A transform X of masses is right to 1e-16, so that X^T would be wrong by T times as much. Near
    the frequency 0, which is all that a sum of many terms keeps, X − 1 is computed instead, as
    (w − 1) m + (w − 1)² B with m the mean and B the transform of masses summed up twice.

    Args:
        masses: Masses of one term on neighbouring cells; they sum to 1.
        first: The cell of the first mass.
        terms: Number of terms.
        points: Cells of the result, the first of which is cell 0.
        widened: Variance that rounding to cells has added to one term without its tilt, in squared
            cells. It is subtracted where the sum is smooth enough for that.
        tilt: Tilt of the masses, m e^{−tilt · cell}.
    """
    places = np.arange(masses.size)
    origin = round(float((masses * places).sum()))  # near the mean, so that m is small
    once = _sum_up(masses, origin)
    twice = _sum_up(once, origin)
    buffers = np.zeros((2, points))
    for buffer, values in zip(buffers, (masses, twice), strict=True):
        np.add.at(buffer, (places - origin) % points, values)
    direct, second = scipy.fft.rfft(buffers)
    angles = -2 * np.pi * np.arange(direct.size) / points
    less = -2 * np.sin(angles / 2) ** 2 + 1j * np.sin(angles)  # w − 1
    # X − 1 is right to 1e-16 of all that is summed up twice.
    near = np.count_nonzero(float(np.abs(twice).sum()) * -less.real < _NEAR)
    change = direct - 1
    change[:near] = less[:near] * float(once.sum()) + less[:near] ** 2 * second[:near]
    with np.errstate(divide="ignore"):
        log_sizes = terms / 2 * np.log1p(change.real * (2 + change.real) + change.imag**2)
    # The variance without the tilt, at the complex frequency of the distribution with it.
    narrowed = log_sizes - terms * widened * (less.real + tilt**2 / 2)
    if float(narrowed[narrowed.size // 2 :].max()) < _SMOOTH:
        log_sizes = narrowed
    else:
        widened = 0.0
    alive = np.flatnonzero(log_sizes > _VANISHED)
    turned = np.arctan2(change.imag[alive], 1 + change.real[alive])
    turned += widened * tilt * less.imag[alive]
    raised = np.zeros(direct.size, np.complex128)
    raised[alive] = np.exp(log_sizes[alive] + 1j * terms * turned)
    power = scipy.fft.irfft(raised, points)
    return np.roll(power, terms * (origin + first) % points)


def _sum_up(values: FloatArray, origin: int) -> FloatArray:
    """Return what lies above each place, from the origin on; before it, less what lies below."""
    above = np.cumsum(values[:origin:-1])[::-1]
    return np.concatenate([-np.cumsum(values[:origin]), above, [0.0]])


def _log_chance_above(end: float, values: FloatArray, law: FloatArray, terms: int) -> float:
    """Chernoff's bound on the logarithm of the chance that this many terms sum to more than
    ``end``.

    Terms above the last of ``values`` are left out.
    """
    tilts = np.array([2.0, 5.0, 12.0, 30.0, 75.0]) / (values[-1] - values[0])
    means = (np.exp(tilts[:, None] * values) * law).sum(1)
    return float(np.min(terms * np.log(means) - tilts * end))


def _floor(absent: int) -> float:
    """The smallest value of g."""
    return -1.0 if absent == 0 else -(absent**absent) / (absent + 1) ** (absent + 1)


def _branches(values: FloatArray, absent: int) -> tuple[FloatArray, FloatArray]:
    """ln r of the two solutions of g(r) = value; −∞ for the lower one where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if absent == 0:
            upper = np.log1p(np.maximum(values, -1.0))
            return upper, np.full_like(upper, -np.inf)
        if absent > 1:
            return _tabulate_branches(values, absent)
        root = np.sqrt(np.maximum(0.25 + values, 0.0))
        upper = np.log(0.5 + root)
        lower = np.log(np.where(values < 0, np.minimum(-values, 0.25) / (0.5 + root), 0.0))
        return upper, lower


def _tabulate_branches(values: FloatArray, absent: int) -> tuple[FloatArray, FloatArray]:
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


@lru_cache(maxsize=8)
def _nodes(epoch: Epoch) -> FloatArray:
    """Thresholds over all that is not negligible."""
    points = _count_points(epoch) // 2

    def upper(tau: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(epoch.tails(float(tau), points=points)[1] > epoch.least)

    def lower(tau: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(epoch.tails(-float(tau), points=points)[2] > epoch.least)

    ends = []
    # Where records are left out, losses end abruptly: the last that is alive is wanted.
    near, side = (1e-6, 0) if epoch.left_out else (0.02, 1)
    for alive in (lower, upper):
        end = search.grow(alive, 0.5, limit=_FARTHEST)
        ends.append(float(search.bisect(alive, 0.0, end, relative=near)[side]))
    count = 2 * _NODES - 1 if epoch.left_out else _NODES
    # Denser near 0, where the bulk is: the upper tail may reach a hundred times as far.
    places = np.linspace(-math.asinh(1.0), math.asinh(ends[1] / ends[0]), count)
    return np.asarray(ends[0] * np.sinh(places))


@lru_cache(maxsize=32)
def _tails(epoch: Epoch, points: int) -> FloatArray:
    """Tails at all nodes, shape ``(nodes, 4)``."""
    return np.array([epoch.tails(tau, points=points) for tau in _nodes(epoch)])


@lru_cache(maxsize=8)
def _compose_epochs(
    epoch: Epoch, epochs: int, points: int, sparse: int = 1
) -> tuple[LossDistribution, LossDistribution]:
    """The distributions of L under P and of −L under Q after this many epochs.

    Args:
        epoch: A single epoch.
        epochs: Number of epochs.
        points: Number of points of the FFT of sums.
        sparse: Use only every ``sparse``-th node and cell, to see the effect of more of them.
    """
    taus, tails = _nodes(epoch)[::sparse], _tails(epoch, points)[::sparse]
    cells = int(np.clip(_MOST_CELLS / epochs, _FEWEST_CELLS, 4 * _FEWEST_CELLS)) // sparse
    fine = np.linspace(taus[0], taus[-1], cells + 1)
    step = float(fine[1] - fine[0])
    # Where records are left out, losses crowd at 0 and end abruptly: a spline would overshoot.
    curve = scipy.interpolate.PchipInterpolator if epoch.left_out else scipy.interpolate.CubicSpline
    present = _masses(taus, tails[:, 0], tails[:, 1], fine, epoch.least, curve)
    absent = _masses(taus, tails[:, 2], tails[:, 3], fine, epoch.least, curve)
    laws = (
        LossDistribution(start=float(fine[0]), step=step, masses=present),
        LossDistribution(start=-float(fine[-1]), step=step, masses=absent[::-1]),
    )
    first, second = (compose([(law, epochs)], rounding="nearest") for law in laws)
    return first, second


def _masses(
    taus: FloatArray,
    below: FloatArray,
    above: FloatArray,
    fine: FloatArray,
    least: float,
    curve: Callable[..., Callable[[FloatArray], FloatArray]],
) -> FloatArray:
    """Masses at ``fine`` from tails at ``taus``, where both tails keep their digits."""
    sure = (below > least / 10) & (above > least / 10)
    odds = curve(taus[sure], np.log(above[sure]) - np.log(below[sure]))
    at = odds(np.clip(fine, taus[sure][0], taus[sure][-1]))
    survival, reached = scipy.special.expit(at), scipy.special.expit(-at)
    cells = np.where(at[:-1] > 0, np.diff(reached), -np.diff(survival))
    cells = np.maximum(cells, 0.0)
    masses = np.zeros(fine.size)
    masses[:-1] += cells / 2  # half to either end keeps the middle of a cell as its mean
    masses[1:] += cells / 2
    return masses


def _count_points(epoch: Epoch) -> int:
    """Points to begin with: rounding terms to the grid widens their sum, more with more steps."""
    return _POINTS << max(0, math.ceil(math.log2(epoch.steps / 16_000) / 2))


def _extrapolate(
    epoch: Epoch,
    epochs: int,
    read: Callable[[LossDistribution], float],
    row: int,
    enough: float = _ENOUGH,
) -> tuple[float, float, int]:
    """Read a number from finer and finer grids of sums: its limit, the finest value, its points.

    Terms keep their mean when they are rounded to the grid, so the error falls with the square of
    its width: of what halving the width changed, a third is left, and is added (Richardson).
    """
    points = _count_points(epoch)
    most = min(_FINER * points, _MOST_POINTS)
    coarse = read(_compose_epochs(epoch, epochs, points // 2)[row])
    while True:
        fine = read(_compose_epochs(epoch, epochs, points)[row])
        limit = max(0.0, fine + (fine - coarse) / 3)
        if abs(limit - fine) <= enough * limit or points >= most:
            return limit, fine, points
        coarse, points = fine, 2 * points


def _read_with_error(
    epoch: Epoch, epochs: int, read: Callable[[LossDistribution], float], row: int
) -> tuple[float, float]:
    """Read a number from the distribution of one direction, and estimate its numerical error."""
    limit, fine, points = _extrapolate(epoch, epochs, read, row)
    # Halving the number of nodes and cells changes more than three times what is wrong by them.
    sparse = read(_compose_epochs(epoch, epochs, points, 2)[row])
    return limit, abs(limit - fine) + abs(fine - sparse)


def _lost(epoch: Epoch, epochs: int) -> float:
    """Return how much of δ may be missing."""
    return 0.0 if epoch.steps == 1 and not epoch.left_out else epochs * _LOST * epoch.least


def _check_delta(epoch: Epoch, epochs: int, delta: float) -> None:
    lost = _lost(epoch, epochs)
    if lost > delta / 2:
        raise InvalidArgument(
            f"Expected delta ≥ {2 * lost:.1g} for {epochs} epochs of {epoch.steps} steps, got "
            f"{delta!r}: tails of {epoch.least:.1g} per epoch are not computed. ε falls as δ "
            f"grows, so ask for the ε at {2 * lost:.1g}: it is a lower bound on this one."
        )


def check_direction(direction: Direction) -> None:
    """Refuse anything but a ``Direction``."""
    if direction not in ("both", *_DIRECTIONS):
        raise InvalidArgument(
            f"Expected direction 'both', {' or '.join(map(repr, _DIRECTIONS))}, got {direction!r}."
        )


def exact_epsilon(
    epoch: Epoch, *, epochs: int, delta: float, direction: Direction = "both"
) -> tuple[float, float, float, Direction]:
    """Return ε, the ends of its numerical error, and the direction it comes from."""
    check_direction(direction)
    _check_delta(epoch, epochs, delta)
    if direction == "both":
        either = [
            exact_epsilon(epoch, epochs=epochs, delta=delta, direction=one) for one in _DIRECTIONS
        ]
        return max(either)
    lost = _lost(epoch, epochs)
    lower, upper = min(delta + lost, _NEARLY_ONE), delta - lost
    if epoch.reveals_the_batch():
        found, low, high = (
            gaussian_epsilon(epoch.noise / math.sqrt(epochs), at) for at in (delta, lower, upper)
        )
        return found, low * (1 - 1e-9), high * (1 + 1e-9), direction
    row = _DIRECTIONS.index(direction)
    found, error = _read_with_error(epoch, epochs, lambda law: law.epsilon(delta), row)
    law = _compose_epochs(epoch, epochs, _count_points(epoch))[row]
    at = law.epsilon(delta)
    low = max(0.0, found - error - (at - law.epsilon(lower)))
    return found, low, found + error + (law.epsilon(upper) - at), direction


def exact_delta(
    epoch: Epoch, *, epochs: int, epsilon: float, direction: Direction = "both"
) -> tuple[float, float, float, Direction]:
    """Return δ, the ends of its numerical error, and the direction it comes from."""
    check_direction(direction)
    if direction == "both":
        either = [
            exact_delta(epoch, epochs=epochs, epsilon=epsilon, direction=one) for one in _DIRECTIONS
        ]
        return max(either)
    if epoch.reveals_the_batch():
        found = gaussian_delta(epoch.noise / math.sqrt(epochs), epsilon)
        error = 1e-9 * found
    else:
        row = _DIRECTIONS.index(direction)
        found, error = _read_with_error(epoch, epochs, lambda law: float(law.delta(epsilon)), row)
    error += _lost(epoch, epochs)
    return found, max(0.0, found - error), min(1.0, found + error), direction


def least_noise(
    epoch_of: Callable[[float], Epoch], *, epochs: int, epsilon: float, delta: float
) -> float:
    """Return the noise at which ε is ``epsilon``; with less, the claim is false."""
    _check_delta(epoch_of(1.0), epochs, delta)

    def kept(noise: float) -> float:
        epoch = epoch_of(noise)
        if epoch.reveals_the_batch():
            found = gaussian_delta(noise / math.sqrt(epochs), epsilon)
        else:
            found = max(
                _extrapolate(epoch, epochs, lambda law: float(law.delta(epsilon)), row, 1e-3)[0]
                for row in range(len(_DIRECTIONS))
            )
        return math.log(delta) - math.log(max(found, delta / 1e3))

    low = high = 1.0
    if kept(low) > 0:
        while kept(low) > 0:
            low, high = low / _STEP, low
    else:
        while kept(high) <= 0:
            low, high = high, high * _STEP
    return search.root(kept, low, high, relative=1e-5)[0]


def exact_curve(epoch: Epoch, *, epochs: int, fpr: FloatArray) -> FloatArray:
    """Return the smallest FNR of any attack on this pair at each FPR."""
    if epoch.reveals_the_batch():
        return gdp_curve(fpr, mu=math.sqrt(epochs) / epoch.noise)
    present, absent = _compose_epochs(epoch, epochs, _FINER // 2 * _count_points(epoch))
    # "In iff L > τ" errs with Q(L > τ) and P(L ≤ τ); half of a mass lies on either side of it.
    missed = np.cumsum(present.masses) - present.masses / 2
    false = np.cumsum(absent.masses) - absent.masses / 2
    false = np.interp(-present.losses, absent.losses, false)
    return np.interp(fpr, false[::-1], missed[::-1])
