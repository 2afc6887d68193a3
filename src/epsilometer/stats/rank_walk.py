"""Compute the exact distribution of rank looks under the worst (ε, δ)-DP mechanism.

A look (k, x) happens where the x-th highest inside score is above the k-th highest outside one.
Walk down all scores of both sides: after s = k − 1 + x steps the look has happened exactly where
fewer than k of them were outside. So the chance that no look happens is that of a walk which is
checked at a few times.

The worst mechanism has four outcomes, in falling order: δ reveals inside; q′ outside and e^ε·q′
inside; e^ε·q′ outside and q′ inside; δ reveals outside; q′ = (1 − δ)/(1 + e^ε). Within an outcome
every order is equally likely. With s_r scores in outcome r, n outside and m inside, a given order
has the probability n!·m!·Π w / s_r!, where w is each score's weight. Steps are independent but for
the factorials, so walks from both ends meet between the second outcome and the third.
"""

import functools
import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from epsilometer.types import FloatArray, IntArray

_BESIDE = 1e-4  # of α that may be lost at the edges of windows, on the safe side
_SPARE = 0.6  # standard deviations by which windows are wider, for an ε nearby
_PIECE = 2.5  # standard deviations that a few times stand for, at most
_FEWEST_NODES = 6  # such times, where α is
_USUAL = 0.05  # or more; what they miss is a part of 1, not of α, so that
_MORE_NODES = 2  # more are needed per decade of α below it, and
_FEWER_NODES = 0.3  # fewer away from the middle, times the squared standard deviations
_ALL_TIMES = 160  # up to which none stands for others
_MARGIN = 1e-3  # of α: more than what they are wrong by
_LEAST_ALPHA = 1e-9  # below it too few digits of 1 − chance are left
# Scores up to which walks take milliseconds, by how many the δ outcomes may reveal: each number
# of them is a walk of its own.
_LARGEST = {24: 200_000, 60: 1_000}
_DIRECT = 1 << 18  # products of a convolution that take less time than transforms
_STEPS = 80
_NEAR = 1e-4  # of α that the chance may be below it, or
_NEAREST = 1e-6  # of the answer, on the safe side
_SLOPE = 0.7  # about what the logarithm of the chance rises by within the radius of a distribution
_STIRLING = 64  # from which on three terms of his series have all digits
# The least number outside, and the chances of it and the following ones, for each time.
_Walked: TypeAlias = list[tuple[int, FloatArray]]


@dataclass(frozen=True, eq=False)
class Looks:
    """Looks of which any refutes: the x-th highest inside score above the k-th highest outside.

    Both ranks rise strictly from look to look: others would add nothing.

    Attributes:
        k: Ranks of outside scores, from above.
        x: Ranks of inside scores, from above.
        n_out: Number of outside scores.
        n_in: Number of inside scores.
    """

    k: IntArray
    x: IntArray
    n_out: int
    n_in: int

    @property
    def turned(self) -> "Looks":
        """The same looks from below, with the sides exchanged."""
        return Looks(
            (self.n_in - self.x + 1)[::-1], (self.n_out - self.k + 1)[::-1], self.n_in, self.n_out
        )


class WalkLaw:
    """The chance that some look happens, as a function of ε near one ε.

    Guarantee: too small by less than ``_MARGIN`` of α, where it is about α.
    """

    def __init__(self, looks: Looks, epsilon: float, *, delta: float, alpha: float) -> None:
        self._looks, self._delta = looks, delta
        n, m = looks.n_out, looks.n_in
        high, low = compute_weights(epsilon, delta)
        above, below = m * high + n * low, m * low + n * high
        # Chances of a step: in and out above, in and out below.
        self._steps = m * high / above, n * low / above, m * low / below, n * high / below
        reach = math.sqrt(2 * math.log(1 / (_BESIDE * alpha))) + _SPARE
        inside_above = delta + high
        sd = math.sqrt(m * inside_above * low + n * low * (1 - low))
        #: How far from ``epsilon`` it may be asked: half a standard deviation of what is above.
        self.radius = 0.5 / max(1.0, math.sqrt(m * inside_above * low), math.sqrt(n * low))
        checks = looks.k - 1 + looks.x
        centre = m * inside_above + n * low
        nodes = _FEWEST_NODES + math.ceil(_MORE_NODES * max(0.0, math.log10(_USUAL / alpha)))
        self._times, self._shares = _place(checks, centre, sd, reach, n + m, nodes)
        self._keep_meetings(*self._walk_from_ends(alpha, reach))

    def _walk_from_ends(self, alpha: float, reach: float) -> tuple[_Walked, _Walked]:
        """Walk from above and from below to the times at which both meet."""
        looks, times = self._looks, self._times
        n, m = looks.n_out, looks.n_in
        front, back = (count_revealed(side, self._delta, alpha) for side in (m, n))
        ends = (n + m - times)[::-1]
        turned = looks.turned
        if n == m and np.array_equal(looks.k, turned.k) and np.array_equal(looks.x, turned.x):
            every = sort_distinct(
                np.concatenate([times, ends])
            )  # from both ends the walk is the same
            walked = _walk(looks, self._steps[1], front, every, reach)
            found = dict(zip(every.tolist(), walked, strict=True))
            return [found[t] for t in times.tolist()], [found[t] for t in ends.tolist()][::-1]
        return (
            _walk(looks, self._steps[1], front, times, reach),
            _walk(turned, self._steps[2], back, ends, reach)[::-1],
        )

    def _keep_meetings(self, fronts: _Walked, backs: _Walked) -> None:
        """Keep the numbers outside at which both walks may meet, one time after the other."""
        n, m = self._looks.n_out, self._looks.n_in
        sizes, starts, above, below = [], [], [], []
        turns = (self._times - m).tolist()  # of inside scores so many are left beyond it
        for turn, (low, front), (left, back) in zip(turns, fronts, backs, strict=True):
            lowest = turn + left
            least = max(low, lowest)
            most = max(least, min(low + front.shape[1], lowest + back.shape[1]))
            above.append(front[:, least - low : most - low])
            below.append(back[:, least - lowest : most - lowest])
            sizes.append(most - least)
            starts.append(least)
        ends = np.cumsum(sizes)
        self._outs = np.arange(ends[-1]) - np.repeat(ends - sizes - starts, sizes)
        times = np.repeat(self._times, sizes)
        self._after = times
        self._above = np.concatenate(above, axis=1) * self._count_choices(times, len(above[0]))
        self._below = np.concatenate(below, axis=1) * self._count_choices(
            n + m - times, len(below[0])
        )
        logs = _log_factorials(1 << (n + m).bit_length())
        self._fixed = logs[n] + logs[m] - logs[times] - logs[n + m - times]
        self._shares = np.repeat(self._shares, sizes)

    def hit(self, epsilon: float) -> float:
        """Return the chance that some look happens at an ε within ``radius``."""
        n, m = self._looks.n_out, self._looks.n_in
        weights = compute_weights(epsilon, self._delta)
        high, low, low_in, high_out = (
            math.log(weight / chance)
            for weight, chance in zip((*weights, *weights[::-1]), self._steps, strict=True)
        )
        at = self._fixed + (high - low_in) * self._after + (m * low_in + n * high_out)
        at += (low - high + low_in - high_out) * self._outs
        np.exp(at, out=at)
        at *= _raise(high, len(self._above)) @ self._above
        at *= _raise(high_out, len(self._below)) @ self._below
        return 1 - float(at @ self._shares)

    def _count_choices(self, steps: IntArray, size: int) -> FloatArray:
        """Ways to reveal a = 0, 1, … of so many steps instead of usual steps, times δ^a."""
        weights = np.ones((size, steps.size))
        for a in range(1, size):
            weights[a] = weights[a - 1] * self._delta * np.maximum(steps - a + 1, 0) / a
        return weights


def _raise(log_weight: float, size: int) -> FloatArray:
    return np.asarray(np.exp(-log_weight * np.arange(size)))


def compute_weights(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the chances e^ε·q′ and q′ of the two outcomes that do not reveal."""
    low = (1 - delta) / (1 + math.exp(epsilon))
    return (1 - delta) / (1 + math.exp(-epsilon)), low


def is_affordable(n_in: int, n_out: int, *, delta: float, alpha: float) -> bool:
    """Return whether the exact distribution takes milliseconds and has enough digits."""
    revealed = sum(count_revealed(side, delta, alpha) for side in (n_in, n_out))
    largest = next((most for many, most in _LARGEST.items() if revealed <= many), 0)
    scores = n_in + n_out
    lost = 2.0**-52 * scores * math.log(scores)  # digits of a chance, as ln n! is so large
    return alpha >= max(_LEAST_ALPHA, lost / _MARGIN) and scores <= largest


def find_epsilon(looks: Looks, guess: float, *, delta: float, alpha: float) -> float:
    """Return the largest ε at which some look happens with chance ``alpha`` or less, or 0.

    Args:
        looks: Looks, any of which refutes.
        guess: About what is returned; a good one saves time.
        delta: δ of the claim.
        alpha: Chance of error.
    """
    target = math.log(alpha * (1 - _MARGIN))
    centre = max(guess, 0.0)
    law = WalkLaw(looks, centre, delta=delta, alpha=alpha)
    low, high = 0.0, math.inf  # no look is rarer at a larger ε
    epsilon, slope = centre, _SLOPE / law.radius
    seen: tuple[float, float] | None = None
    for _ in range(_STEPS):
        if abs(epsilon - centre) > law.radius:
            centre = epsilon
            law = WalkLaw(looks, centre, delta=delta, alpha=alpha)
        excess = math.log(max(law.hit(epsilon), 1e-300)) - target
        low, high = (low, epsilon) if excess > 0 else (epsilon, high)
        if -_NEAR <= excess <= 0 or high - low <= _NEAREST or high <= _NEAREST:
            break
        if seen is not None and (excess - seen[1]) * (epsilon - seen[0]) > 0:
            slope = (excess - seen[1]) / (epsilon - seen[0])
        seen = epsilon, excess
        most = 4 * law.radius
        epsilon = max(0.0, epsilon - min(max((excess + _NEAR / 2) / slope, -most), most))
        if not low < epsilon < high and (epsilon, low) != (0.0, 0.0):
            epsilon = (low + high) / 2 if math.isfinite(high) else low + most
    return low


def _place(
    checks: IntArray, centre: float, sd: float, reach: float, size: int, fewest: int
) -> tuple[IntArray, FloatArray]:
    """Times at which walks meet, and the weights that make a sum over all times of one over them.

    Between two checks what is added up is smooth, so a few times stand for all of them; at a check
    it has a kink.
    """
    half = reach * sd + reach**2 / 3
    first, last = max(0, math.floor(centre - half)), min(size, math.ceil(centre + half))
    if last - first < _ALL_TIMES:
        times = np.arange(first, last + 1)
        return times, np.ones(times.size)
    cuts = [first, *checks[(checks > first) & (checks < last)].tolist(), last]
    weights: dict[int, float] = {last: 1.0}
    for start, end in pairwise(cuts):
        parts = max(1, math.ceil((end - start) / (_PIECE * sd)))
        for low, high in pairwise(np.linspace(start, end, parts + 1).round().astype(int).tolist()):
            away = max(low - centre, centre - high, 0.0) / sd  # where little is added up
            nodes = fewest + int(2 * (high - low) / sd - _FEWER_NODES * away**2)
            nodes = min(high - low + 1, max(nodes, 3))
            for at, weight in zip(*_summing_rule(high - low, nodes), strict=True):
                weights[low + at] = weights.get(low + at, 0.0) + weight
    times = np.array(sorted(weights))
    return times, np.array([weights[time] for time in times.tolist()])


def sort_distinct(counts: IntArray) -> IntArray:
    """Return whole numbers from 0 on, each once; ``np.unique`` would load ``numpy.ma``."""
    ordered = np.sort(counts)
    return ordered[np.diff(ordered, prepend=-1) > 0]


@functools.lru_cache(maxsize=4096)
def _summing_rule(length: int, nodes: int) -> tuple[list[int], list[float]]:
    """Points of 0 … length and weights that add up polynomials over 0 … length − 1."""
    if nodes > length:
        return list(range(length)), [1.0] * length
    spread = (1 - np.cos(np.pi * np.arange(nodes) / (nodes - 1))) / 2
    at = sort_distinct((spread * length).round().astype(np.int64))
    basis = _compute_legendre(2 * at / length - 1, at.size)
    sums = _compute_legendre(2 * np.arange(length) / length - 1, at.size).sum(axis=1)
    return at.tolist(), np.linalg.solve(basis, sums).tolist()


def _compute_legendre(x: FloatArray, size: int) -> FloatArray:
    """Return the first Legendre polynomials at some points, one row each.

    Those of NumPy take longer to import than this bound takes to compute.
    """
    rows = [np.ones_like(x), x]
    for i in range(2, size):
        rows.append((rows[-1] * x * (2 * i - 1) - rows[-2] * (i - 1)) / i)
    return np.array(rows[:size])


@functools.lru_cache(maxsize=256)
def count_revealed(size: int, delta: float, alpha: float) -> int:
    """Return how many scores the δ outcome may reveal, up to a chance that does not matter."""
    if delta <= 0:
        return 0
    limit = _BESIDE * alpha
    if delta == 1 or size * delta > max(_LARGEST):  # more than walks are affordable for
        return size
    most = min(size, 5 * max(_LARGEST))  # beyond it no chance is left that a float could tell
    many = np.arange(most + 1)
    logs = _log_factorials(1 << size.bit_length())
    odds = many * math.log(delta) + (size - many) * math.log1p(-delta)
    chances = np.exp(logs[size] - logs[many] - logs[size - many] + odds)
    more = np.append(np.cumsum(chances[:0:-1])[::-1], 0.0)  # the chance of more than so many
    return int(np.argmax(more <= limit))


def _walk(looks: Looks, p_out: float, revealed: int, times: IntArray, reach: float) -> _Walked:
    """Chances of the number outside before any look happens, a row for every number revealed.

    Returns:
        For each of the times the smallest number, and the chances of it and the following ones.
    """
    checks = dict(zip((looks.k - 1 + looks.x).tolist(), looks.k.tolist(), strict=True))
    wanted = set(times.tolist())
    last = int(times[-1])
    stops = sorted(t for t in {*wanted, *checks, *range(1, revealed + 1)} if t <= last)
    laws = _binomials({time - at for at, time in pairwise([0, *stops])}, p_out, reach)
    middles = p_out * np.array(stops)
    spreads = reach * np.sqrt(middles * (1 - p_out)) + reach**2 / 3
    windows = zip(
        np.floor(middles - spreads).astype(np.int64).tolist(),
        (np.ceil(middles + spreads).astype(np.int64) + 1).tolist(),
        strict=True,
    )  # all but what does not matter is in them
    found: _Walked = []
    at, low = 0, 0
    chances: FloatArray = np.zeros((revealed + 1, 1))
    chances[0, 0] = 1.0
    alive = revealed  # rows beyond have met a look among the revealed
    for time, (first_in, first_beyond) in zip(stops, windows, strict=True):
        if time > at:
            first, kernel = laws[time - at]
            low, chances = low + first, _convolve(chances, kernel)
            if time <= alive and low == 0:
                chances[time, 0] = 1.0  # all steps so far were revealed, and inside
            least = max(low, first_in)
            low, chances = least, chances[:, least - low : max(least, first_beyond) - low]
        at = time
        if time in checks:
            alive = min(alive, time)
            if low < checks[time]:
                chances, low = chances[:, checks[time] - low :], checks[time]
        if time in wanted:
            found.append((low, chances))
    return found


def _convolve(rows: FloatArray, kernel: FloatArray) -> FloatArray:
    size = rows.shape[1] + kernel.size - 1
    if rows.shape[1] * kernel.size <= _DIRECT:
        if len(rows) == 1 and rows.size:
            return np.convolve(rows[0], kernel)[None]
        apart = np.zeros((len(rows), size))  # each row followed by as many zeros as it needs
        apart[:, : rows.shape[1]] = rows
        return np.convolve(apart.ravel(), kernel)[: apart.size].reshape(apart.shape)
    length = 1 << (size - 1).bit_length()
    if 3 * length >= 4 * size:
        length = 3 * length // 4
    product = np.fft.rfft(rows, length) * np.fft.rfft(kernel, length)
    return np.fft.irfft(product, length)[:, :size]


def _binomials(
    trials: Collection[int], p: float, reach: float
) -> dict[int, tuple[int, FloatArray]]:
    """The smallest number that matters, and the chances from there on, for each number of
    trials."""
    if not trials:
        return {}
    n = np.array(sorted(trials))
    half = reach * np.sqrt(n * p * (1 - p)) + reach**2 / 3
    first = np.maximum(0, np.floor(n * p - half)).astype(np.int64)
    last = np.minimum(n, np.ceil(n * p + half)).astype(np.int64)
    ends = np.cumsum(last + 1 - first)
    each = np.repeat(np.arange(n.size), last + 1 - first)
    total, d = n[each], np.arange(ends[-1]) - (ends - last - 1)[each]
    logs = _log_factorials(1 << int(n[-1]).bit_length())
    odds = d * math.log(p) + (total - d) * math.log1p(-p)
    chances = np.exp(logs[total] - logs[d] - logs[total - d] + odds)
    return dict(
        zip(n.tolist(), zip(first.tolist(), np.split(chances, ends[:-1]), strict=True), strict=True)
    )


@functools.lru_cache(maxsize=20)
def _log_factorials(size: int) -> FloatArray:
    """ln 0!, ln 1!, … up to ``size``, by Stirling's series."""
    x = np.arange(1.0, size + 2)
    logs = (x - 0.5) * np.log(x) - x + (math.log(2 * math.pi) / 2)
    logs += (1 / 12 - (1 / 360 - 1 / (1260 * x * x)) / (x * x)) / x
    few = min(size + 1, _STIRLING)
    logs[:few] = [math.lgamma(each) for each in range(1, few + 1)]
    return np.asarray(logs)
