"""Order rank looks by how much they show, in sets that grow as the ε shrinks that they speak for.

A look at outside rank k counts the inside scores above the k-th highest outside score; a look at
inside rank j counts the outside scores below the j-th lowest inside score. At a *mark* t a look
counts as a hit where it would be about as rare as its level under the worst mechanism of ε = t.
Observations reach a mark where every mark up to it has a hit. What is hit, and how rare that is
under the worst mechanism, does not depend on the scores: :mod:`epsilometer.stats.rank_walk`
computes it. Whatever is approximate here costs power and never validity, as long as a look is the
rarer the larger its count.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from epsilometer.stats import binomial
from epsilometer.stats.rank_walk import Looks
from epsilometer.types import BoolArray, FloatArray, IntArray

_RATIO = 1.5  # of neighbouring ranks
_NODES = np.linspace(-4.0, 4.0, 21)
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()
_EDGES = np.array([-0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 60.0])
_PARTS = 128  # marks of a cell, of up to so many scores:
_COARSE = 5_000
_FEW = 40  # scores below which the law of a rate is computed without approximation
_EXTREME = 0.7  # favour of the ranks below ten, in logarithms per decade
_SPREAD, _OFFSET = 1.8, 1.4  # of the number of looks that are as good as independent


def spread_ranks(size: int) -> IntArray:
    """Return ranks 1, 2, 3, 4, 6, 9, … up to half the scores."""
    ranks = [1]
    while (following := max(ranks[-1] + 1, math.floor(ranks[-1] * _RATIO))) <= size / 2:
        ranks.append(following)
    return np.array(ranks)


@dataclass(frozen=True, eq=False)
class _Side:
    """Looks at ranks of one side; the other is counted."""

    ranks: IntArray
    others: int
    rates: FloatArray  # at normal scores of the ranked score's rate, a row for each rank
    favour: FloatArray

    def rarity(self, counts: IntArray, marks: FloatArray, delta: float) -> FloatArray:
        """About how rare so many beyond are: Paulson's law of a Beta variable's cube roots.

        Falls in the count and rises in the mark, which a law that changes tails would not.
        """
        grow = np.exp(marks)[..., None]
        rates = self.rates
        most = np.minimum(grow * rates + delta, 1 - (1 - delta - rates) / grow)
        most = np.clip(most, 1e-300, 1 - 1e-16)
        c = np.maximum(counts, 1)[..., None].astype(np.float64)
        b = self.others + 1 - c
        root = np.cbrt(most * b / ((1 - most) * c))
        fb, fc = 1 / (9 * b), 1 / (9 * c)
        score = (root * (1 - fb) - (1 - fc)) / np.sqrt(root * root * fb + fc)
        return np.where(counts > 0, ndtr(score) @ _WEIGHTS, 1.0)


class LookFamily:
    """Sets of looks for so many scores, one for every mark; none depends on the scores.

    Attributes:
        n_in: Number of inside scores.
        n_out: Number of outside scores.
        ranks_out: Ranks of outside scores, from above.
        ranks_in: Ranks of inside scores, from below.
        marks: Number of marks.
    """

    def __init__(self, n_in: int, n_out: int, *, delta: float, alpha: float) -> None:
        self.n_in, self.n_out, self._delta = n_in, n_out, delta
        self._sides = tuple(
            _Side(ranks, others, _rates(ranks, size), _favour(ranks))
            for ranks, size, others in (
                (spread_ranks(n_out), n_out, n_in),
                (spread_ranks(n_in), n_in, n_out),
            )
        )
        self.ranks_out, self.ranks_in = (side.ranks for side in self._sides)
        share = (1 - delta) / (1 + np.exp(_EDGES[:-1]))
        many = sum(np.log(np.maximum(size * share, 1.0)) for size in (n_in, n_out))
        self._parts = _PARTS << max(0, math.ceil(math.log(max(n_in, n_out) / _COARSE, 4)))
        self.marks = (_EDGES.size - 1) * self._parts
        self._levels = alpha / np.maximum(1.0, _SPREAD * many - _OFFSET)

    def reach(self, counts: tuple[IntArray, IntArray]) -> int | None:
        """Return the last mark that counts reach, by its number; None where they reach none.

        Args:
            counts: Inside scores above each of ``ranks_out``; outside ones below ``ranks_in``.
        """
        ends = np.arange(self._parts, self.marks + 1, self._parts) - 1
        failed = np.flatnonzero(~self._hits(counts, ends))
        if not failed.size:
            return self.marks - 1
        high = int(ends[failed[0]])
        low = high - self._parts  # every mark up to it is reached
        while high - low > 1:  # within a cell levels are the same, so that hits end once
            middle = (low + high) // 2
            if self._hits(counts, np.array([middle]))[0]:
                low = middle
            else:
                high = middle
        return low if low >= 0 else None

    def looks(self, mark: int) -> Looks:
        """Return the looks that reach a mark, without those that others make needless."""
        n, m = self.n_out, self.n_in
        out, inside = (self._least(side, mark) for side in self._sides)
        k = np.concatenate([self.ranks_out, n + 1 - inside])
        x = np.concatenate([out, m + 1 - self.ranks_in])
        possible = np.concatenate([out <= m, inside <= n])
        return Looks(*_stairs(k[possible], x[possible]), n, m)

    def choose(self, counts: tuple[IntArray, IntArray], mark: int) -> tuple[int, int]:
        """Return the side (0 outside, 1 inside) and place of the look that is hit most clearly."""
        margins = [
            np.log(np.maximum(self._rarity(side, seen, np.array([mark]))[0], 1e-300))
            - np.log(side.favour)
            for side, seen in zip(self._sides, counts, strict=True)
        ]
        side = int(margins[1].min() < margins[0].min())
        return side, int(np.argmin(margins[side]))

    def value_of(self, mark: IntArray | int) -> FloatArray:
        """Return the ε that marks speak for."""
        cell, part = np.divmod(mark, self._parts)
        width = _EDGES[cell + 1] - _EDGES[cell]
        return np.asarray(_EDGES[cell] + width * part / self._parts)

    def _rarity(self, side: _Side, counts: IntArray, marks: IntArray) -> FloatArray:
        return side.rarity(counts, self.value_of(marks)[:, None], self._delta)

    def _hits(self, counts: tuple[IntArray, IntArray], marks: IntArray) -> BoolArray:
        level = self._levels[marks // self._parts][:, None]
        hit = [
            (self._rarity(side, seen, marks) <= level * side.favour).any(axis=1)
            for side, seen in zip(self._sides, counts, strict=True)
        ]
        return np.asarray(hit[0] | hit[1])

    def _least(self, side: _Side, mark: int) -> IntArray:
        """The least counts that are hits; one more than there can be where none is."""
        low = np.zeros(side.ranks.size, np.int64)
        high = np.full(side.ranks.size, side.others + 1)
        at, level = np.array([mark]), self._levels[mark // self._parts] * side.favour
        while np.any(high - low > 1):
            middle = (low + high) // 2
            hit = self._rarity(side, np.minimum(middle, side.others), at)[0] <= level
            hit &= middle > low
            low, high = np.where(hit, low, np.maximum(middle, low)), np.where(hit, middle, high)
        return high


def _rates(ranks: IntArray, size: int) -> FloatArray:
    """Quantiles of Beta(k, n + 1 − k) at the nodes: Paulson's law solved for the variable."""
    a = ranks[:, None].astype(np.float64)
    b = size + 1 - a
    if size < _FEW:
        return np.asarray(binomial.beta_at(a, b, _NODES))
    fa, fb = 1 / (9 * a), 1 / (9 * b)
    spread = (1 - fb) ** 2 * fa + (1 - fa) ** 2 * fb - _NODES**2 * fa * fb
    root = (1 - fa) * (1 - fb) + _NODES * np.sqrt(np.maximum(spread, 0.0))
    odds = np.maximum(root / ((1 - fb) ** 2 - _NODES**2 * fb), 1e-4) ** 3 * a / b
    return np.asarray(odds / (1 + odds))


def _favour(ranks: IntArray) -> FloatArray:
    return np.asarray(np.exp(_EXTREME * np.maximum(0.0, 1 - np.log10(ranks))))


def _stairs(k: IntArray, x: IntArray) -> tuple[IntArray, IntArray]:
    """Drop looks that happen only where another does: of larger k and smaller x."""
    order = np.lexsort((-k, x))  # x rises; of equal x the largest k first
    k, x = k[order], x[order]
    keep = k > np.maximum.accumulate(np.append(0, k))[:-1]
    return k[keep], x[keep]


@functools.lru_cache(maxsize=64)
def get_family(n_in: int, n_out: int, delta: float, alpha: float) -> LookFamily:
    """Return the family for so many scores, which is kept."""
    return LookFamily(n_in, n_out, delta=delta, alpha=alpha)
