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

import numpy as np
from scipy.special import ndtr

from epsilometer.stats import binomial
from epsilometer.stats.rank_walk import Looks
from epsilometer.types import FloatArray, IntArray

_RATIO = 1.5  # of neighbouring ranks
_NODES = np.linspace(-4.0, 4.0, 21)
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()
_EDGES = np.array([-0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 60.0])
_PARTS = 128  # marks of a cell, of up to so many scores:
_COARSE = 5_000
_FEW = 40  # scores below which the law of a rate is computed without approximation
_EXTREME = 0.7  # favour of the ranks below ten, in logarithms per decade
_MOST = 0.5  # level of a look
_BLOCK = 5  # cells whose ends are looked at together
_EVERY = slice(None)
_SPREAD, _OFFSET = 1.8, 1.4  # of the number of looks that are as good as independent


def spread_ranks(size: int) -> IntArray:
    """Return ranks 1, 2, 3, 4, 6, 9, … up to half the scores."""
    ranks = [1]
    while (following := max(ranks[-1] + 1, math.floor(ranks[-1] * _RATIO))) <= size / 2:
        ranks.append(following)
    return np.array(ranks)


class LookFamily:
    """Sets of looks for so many scores, one for every mark; none depends on the scores.

    Looks at ranks of outside scores come first, then those at ranks of inside scores; a count is of
    inside scores above, or of outside scores below.

    Attributes:
        n_in: Number of inside scores.
        n_out: Number of outside scores.
        ranks_out: Ranks of outside scores, from above.
        ranks_in: Ranks of inside scores, from below.
        marks: Number of marks.
    """

    def __init__(self, n_in: int, n_out: int, *, delta: float, alpha: float) -> None:
        self.n_in, self.n_out, self._delta = n_in, n_out, delta
        self.ranks_out, self.ranks_in = spread_ranks(n_out), spread_ranks(n_in)
        ranks = np.concatenate([self.ranks_out, self.ranks_in])
        self._others = np.repeat([n_in, n_out], [self.ranks_out.size, self.ranks_in.size])
        self._rates = np.concatenate([_rates(self.ranks_out, n_out), _rates(self.ranks_in, n_in)])
        favour = np.exp(_EXTREME * np.maximum(0.0, 1 - np.log10(ranks)))
        self._parts = _PARTS << max(0, math.ceil(math.log(max(n_in, n_out) / _COARSE, 4)))
        self.marks = (_EDGES.size - 1) * self._parts
        share = (1 - delta) / (1 + np.exp(_EDGES[:-1]))
        many = sum(np.log(np.maximum(size * share, 1.0)) for size in (n_in, n_out))
        levels = alpha / np.maximum(1.0, _SPREAD * many - _OFFSET)
        self._levels = np.minimum(levels[:, None] * favour, max(_MOST, alpha))
        self._ends = np.arange(self._parts, self.marks + 1, self._parts) - 1
        self._roots_at_ends = self._roots(self._ends)
        self._kept: dict[int, Looks] = {}

    def reach(self, counts: IntArray) -> int | None:
        """Return the last mark that counts reach, by its number; None where they reach none."""
        rarity = np.zeros((1, counts.size))
        for start in range(0, _EDGES.size - 1, _BLOCK):
            block = slice(start, start + _BLOCK)
            rarity = np.vstack([rarity[-1:], self._rarity(self._roots_at_ends[block], counts)])
            failed = np.flatnonzero(~(rarity[1:] <= self._levels[block]).any(axis=1))
            if failed.size:
                break
        else:
            return self.marks - 1
        cell = start + int(failed[0])
        high = int(self._ends[cell])
        low = high - self._parts  # every mark up to it is reached
        level = self._levels[cell]
        # Within a cell levels are the same, so that hits end once; what was no hit stays none.
        rare = np.flatnonzero(rarity[failed[0]] <= level)
        while high - low > 1:
            middle = (low + high) // 2
            roots = self._roots(np.array([middle]), rare)
            hit = self._rarity(roots, counts[rare], rare)[0] <= level[rare]
            low, high = (middle, high) if hit.any() else (low, middle)
        return low if low >= 0 else None

    def looks(self, mark: int) -> Looks:
        """Return the looks that reach a mark, without those that others make needless."""
        if mark not in self._kept:
            self._kept[mark] = self._find_looks(mark)
        return self._kept[mark]

    def choose(self, counts: IntArray, mark: int) -> int:
        """Return which look is hit most clearly."""
        rarity = self._rarity(self._roots(np.array([mark])), counts)[0]
        return int(np.argmin(rarity / self._levels[mark // self._parts]))

    def value_of(self, mark: IntArray | int) -> FloatArray:
        """Return the ε that marks speak for."""
        cell, part = np.divmod(mark, self._parts)
        width = _EDGES[cell + 1] - _EDGES[cell]
        return np.asarray(_EDGES[cell] + width * part / self._parts)

    def find_least(self, mark: int) -> IntArray:
        """Return the least counts that reach a mark; one more than there can be where none does."""
        roots, level = self._roots(np.array([mark])), self._levels[mark // self._parts]
        low, high = np.zeros_like(self._others), self._others + 1
        while np.any(high - low > 1):
            middle = (low + high) // 2
            hit = self._rarity(roots, middle)[0] <= level
            open_ = high - low > 1
            low, high = np.where(open_ & ~hit, middle, low), np.where(open_ & hit, middle, high)
        return high

    def _find_looks(self, mark: int) -> Looks:
        n, m, outs = self.n_out, self.n_in, self.ranks_out.size
        least = self.find_least(mark)
        k = np.concatenate([self.ranks_out, n + 1 - least[outs:]])
        x = np.concatenate([least[:outs], m + 1 - self.ranks_in])
        possible = least <= self._others
        return Looks(*_keep_stairs(k[possible], x[possible]), n, m)

    def _roots(self, marks: IntArray, looks: IntArray | slice = _EVERY) -> FloatArray:
        """Cube roots of the odds of the largest rate beyond that the marks' ε allow.

        Returns:
            Shape (marks, looks, nodes of the ranked score's rate).
        """
        grow = np.exp(self.value_of(marks))[:, None, None]
        rates = self._rates[looks]
        most = np.minimum(grow * rates + self._delta, 1 - (1 - self._delta - rates) / grow)
        most = np.minimum(np.maximum(most, 1e-300), 1 - 1e-16)
        return np.asarray(np.cbrt(most / (1 - most)))

    def _rarity(
        self, roots: FloatArray, counts: IntArray, looks: IntArray | slice = _EVERY
    ) -> FloatArray:
        """About how rare such counts are: Paulson's law of a Beta variable's cube roots.

        Falls in the count and rises in the mark, which a law that changes tails would not.
        """
        others = self._others[looks]
        c = np.minimum(np.maximum(counts, 1.0), others)[:, None]
        b = others[:, None] + 1 - c
        fb, fc = 1 / (9 * b), 1 / (9 * c)
        root = roots * np.cbrt(b / c)
        score = (root * (1 - fb) - (1 - fc)) / np.sqrt(root * root * fb + fc)
        return np.where(counts > 0, ndtr(score) @ _WEIGHTS, 1.0)


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


def _keep_stairs(k: IntArray, x: IntArray) -> tuple[IntArray, IntArray]:
    """Drop looks that happen only where another does: of larger k and smaller x."""
    order = np.lexsort((-k, x))  # x rises; of equal x the largest k first
    k, x = k[order], x[order]
    keep = k > np.maximum.accumulate(np.append(0, k))[:-1]
    return k[keep], x[keep]


@functools.lru_cache(maxsize=64)
def get_family(n_in: int, n_out: int, delta: float, alpha: float) -> LookFamily:
    """Return the family for so many scores, which is kept."""
    return LookFamily(n_in, n_out, delta=delta, alpha=alpha)
