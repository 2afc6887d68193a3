"""Order rank looks by their evidence, in nested sets that grow as their ε shrinks.

A look at outside rank k counts the inside scores above the k-th highest outside score. A look at
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

from epsilometer.stats import binomial
from epsilometer.stats.rank_walk import Looks
from epsilometer.types import FloatArray, IntArray

_RATIO = 1.5  # of neighbouring ranks
_NODES = np.linspace(-4.0, 4.0, 21)
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()
_EDGES = np.array([-0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 60.0])
_PARTS = 128  # marks of a cell, of up to so many scores:
_COARSE = 5_000
_FEW = 40  # scores below which the distribution of a rate is computed without approximation
_EXTREME = 0.7  # favour of the ranks below ten, in logarithms per decade
_MOST = 0.5  # level of a look
_BLOCK = 5  # cells whose ends are checked together
_WAYS = 11  # parts of a cell between which marks are checked together
_PLACES = np.arange(1, 5)[:, None]  # of five, between which counts are checked together
_NEARBY = np.array([-30, -8, -3, -2, -1, 0, 1, 2, 7, 30])[:, None]
_EVERY = slice(None)
_NODES_PER_UNIT = 64  # of the table of Φ
_SPREAD, _OFFSET = 1.8, 1.4  # of the number of looks that are as good as independent


def spread_ranks(size: int) -> IntArray:
    """Return ranks 1, 2, 3, 4, 6, 9, … up to half the scores."""
    ranks = [1]
    while (following := max(ranks[-1] + 1, math.floor(ranks[-1] * _RATIO))) <= size / 2:
        ranks.append(following)
    return np.array(ranks)


class LookFamily:
    """Sets of looks for this many scores, one for every mark; none depends on the scores.

    Looks at ranks of outside scores come first, then those at ranks of inside scores. A count is of
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
        self._least: dict[int, IntArray] = {}

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
            marks = np.arange(low, high, max(1, (high - low) // _WAYS))[1:]
            hit = self._rarity(self._roots(marks, rare), counts[rare], rare) <= level[rare]
            hits = int(hit.any(axis=1).sum())
            marks = np.concatenate([[low], marks, [high]])
            low, high = int(marks[hits]), int(marks[hits + 1])
        return low if low >= 0 else None

    def looks(self, mark: int) -> Looks:
        """Return the looks that reach a mark, without those that others make needless."""
        if mark not in self._kept:
            self._kept[mark] = self._find_looks(mark)
        return self._kept[mark]

    def choose(self, counts: IntArray, mark: int) -> int:
        """Return the look with the clearest hit."""
        rarity = self._rarity(self._roots(np.array([mark])), counts)[0]
        return int(np.argmin(rarity / self._levels[mark // self._parts]))

    def value_of(self, mark: IntArray | int) -> FloatArray:
        """Return the ε that marks speak for."""
        cell, part = np.divmod(mark, self._parts)
        width = _EDGES[cell + 1] - _EDGES[cell]
        return np.asarray(_EDGES[cell] + width * part / self._parts)

    def find_least(self, mark: int) -> IntArray:
        """Return the smallest counts that reach a mark; one above the possible where none does."""
        roots, level = self._roots(np.array([mark])), self._levels[mark // self._parts]
        low, high = np.zeros_like(self._others), self._others + 1
        between, some = self._guess_least(mark), np.arange(high.size)
        while some.size:
            hit = self._rarity(roots[:, some], between, some) <= level[some]
            low[some] = np.where(hit, low[some], between).max(axis=0)
            high[some] = np.where(hit, between, high[some]).min(axis=0)
            some = np.flatnonzero(high - low > 1)
            between = low[some] + (high - low)[some] * _PLACES // (_PLACES.size + 1)
        self._least[mark] = high
        return high

    def _guess_least(self, mark: int) -> IntArray:
        """Counts about the least: where one direction limits counts they grow by e^ε."""
        if not self._least:
            return np.asarray((self._others + 1) * _PLACES // (_PLACES.size + 1))
        near = min(self._least, key=lambda known: abs(known - mark))
        least, value = self._least[near], self.value_of(mark)
        grow = np.exp(value - self.value_of(near))
        limited = self._rates[:, _NODES.size // 2] * (1 + np.exp(value)) < 1 - self._delta
        left = self._others + 1 - least
        about = np.where(limited, least * grow, self._others + 1 - left / grow)
        guesses = np.rint(about).astype(np.int64) + _NEARBY
        return np.asarray(np.minimum(np.maximum(guesses, 0), self._others))

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
        """Approximate how rare such counts are, by Paulson's normal approximation of cube roots.

        Falls in the count and rises in the mark, as an approximation that changes tails would not.
        """
        others = self._others[looks]
        c = np.minimum(np.maximum(counts, 1.0), others)[..., None]
        b = others[:, None] + 1 - c
        fb, fc = 1 / (9 * b), 1 / (9 * c)
        root = roots * np.cbrt(b / c)
        score = (root * (1 - fb) - (1 - fc)) / np.sqrt(root * root * fb + fc)
        return np.where(counts > 0, _compute_normal(score) @ _WEIGHTS, 1.0)


def _compute_normal(x: FloatArray) -> FloatArray:
    """Φ, by three terms of Taylor's series at the nearest node; right to 10⁻⁶ of itself.

    scipy.special takes longer to import than a bound takes to compute.
    """
    nodes, values, slopes = _tabulate_normal()
    x = np.minimum(np.maximum(x, nodes[0]), nodes[-1])
    at = np.rint((x - nodes[0]) * _NODES_PER_UNIT).astype(np.intp)
    node = nodes[at]
    d = x - node
    return np.asarray(values[at] + slopes[at] * d * (1 - d / 2 * (node - d / 3 * (node**2 - 1))))


@functools.cache
def _tabulate_normal() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Nodes, Φ and its slope there."""
    nodes = np.arange(-38 * _NODES_PER_UNIT, 9 * _NODES_PER_UNIT + 1) / _NODES_PER_UNIT
    values = np.array([math.erfc(-node / math.sqrt(2)) / 2 for node in nodes.tolist()])
    return nodes, values, np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)


def _rates(ranks: IntArray, size: int) -> FloatArray:
    """Quantiles of Beta(k, n + 1 − k) at the nodes, by inverting Paulson's approximation."""
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
    """Return the family for this many scores; cached."""
    return LookFamily(n_in, n_out, delta=delta, alpha=alpha)
