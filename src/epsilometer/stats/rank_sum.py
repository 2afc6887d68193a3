"""Compare all pairs of scores by a rank sum, simulated under the most leaky mechanism.

Let p be the FPR at an inside score. A mechanism of merit m allows Pr(p ≤ F) ≤ g(F), a known curve
that rises with m. So normal scores −Φ⁻¹(p) of inside runs are at most those of the curve itself,
whatever the attack, and those of outside runs are N(0, 1): with μ-GDP the pair is N(μ, 1) against
N(0, 1) (Dong et al. 2022). A sum over pairs only grows when inside scores move up, so that its
chance is largest under that pair, and grows with m (Mann & Whitney 1947).

The same draws serve every merit, so that each simulated sum grows with it: the merits that a sum
refutes are all those below some point. The draws do not depend on scores and are the same for
everyone. Barnard's p-value, which is exact on average over draws, would therefore err more often
than it says for whole sizes of samples (measured: 6.5 % of audits of 20 + 20 runs, 999 draws). Here
a rank is taken that is right with probability 0.999 over the draws.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from epsilometer.stats.rank_counts import count_ranks
from epsilometer.stats.rank_simulation import draw_order_statistics, find_safe_rank
from epsilometer.stats.thresholds import Observed
from epsilometer.stats.tie_orders import choose_order, count_orders
from epsilometer.types import IntArray

Normals: TypeAlias = NDArray[np.float32]
# (normal scores of inside runs, merit) → where a mechanism of that merit may move them.
Move: TypeAlias = Callable[[Normals, float], Normals]
LEAST_ALPHA = 1e-4  # below it there are too few draws
_RELATIVE = 0.002  # distance of merits that are tried, at most
_NEAR = 40  # of them to a standard error, at least, where they are small
_EVEN = 50  # ranks of a side far from where the two meet: more gain little
_CELLS, _FEWEST, _DRAWS = 1_500_000, 9_999, 39_999  # draws times ranks; draws at 5 %
_SCARCE = 4  # times as many draws at most where α is small
_STREAM = 20_220_507


class RankSum(NamedTuple):
    """Pairs of an inside and an outside score at the compared ranks.

    Attributes:
        won: Pairs in which the inside score is the higher.
        tied: Whether equal scores had to be ordered at random.
    """

    won: int
    tied: bool


def shift_normals(normals: Normals, mu: float) -> Normals:
    """Move inside scores as μ-GDP allows."""
    return normals + np.float32(mu)


@functools.lru_cache(maxsize=8)
def get_law(n_in: int, n_out: int, alpha: float) -> "RankSumLaw":
    """Return the distribution of rank sums of this many scores; cached."""
    return RankSumLaw(n_in, n_out, alpha)


class RankSumLaw:
    """Which rank sums of this many scores refute which merits.

    Fewer than 100 scores of a side are all compared; of more, about 50 evenly spaced ranks and the
    extreme ones at which the two sides meet.

    Guarantee: ``find_merit`` exceeds the true merit with chance ``alpha`` or less. That holds with
        the probability 0.999 over the draws, for each merit and whatever the attack.

    Args:
        n_in: Inside scores.
        n_out: Outside scores.
        alpha: Chance of error.

    Example:
        >>> law = RankSumLaw(20, 20, 0.05)
        >>> round(law.find_merit(400, shift_normals, largest=16.0), 1)  # all pairs won
        2.6
    """

    def __init__(self, n_in: int, n_out: int, alpha: float) -> None:
        self._n_in = n_in
        self.ranks_out, self.ranks_in = _choose_ranks(n_out), _choose_ranks(n_in)
        self.pairs = self.ranks_out.size * self.ranks_in.size
        compared = self.ranks_out.size + self.ranks_in.size
        draws = min(max(_CELLS // compared, _FEWEST), _DRAWS)
        self.draws = math.ceil(draws * min(max(0.05 / alpha, 1.0), _SCARCE))
        rng = np.random.default_rng([_STREAM, n_in, n_out])
        self._outside = -_draw_normals(self.ranks_out, n_out, self.draws, rng)
        self._inside = _draw_normals(self.ranks_in, n_in, self.draws, rng)
        self._rank = find_safe_rank(self.draws, alpha)
        self._scale = math.sqrt(1 / n_in + 1 / n_out) / (_NEAR * _RELATIVE)
        self._least: dict[tuple[Move, float], float] = {}

    def count(self, observed: Observed, rng: np.random.Generator) -> RankSum:
        """Count the pairs won; equal scores are put in a random order."""
        first = self._count_once(observed, rng)
        if not first.tied:
            return first
        draw = functools.partial(self._count_once, observed, rng)
        return choose_order(first, draw, lambda seen: seen.won, count_orders(observed))

    def _count_once(self, observed: Observed, rng: np.random.Generator) -> RankSum:
        counts = count_ranks(observed, self.ranks_out, np.zeros(0, np.int64), rng)
        # The x-th lowest of m inside scores is above if m + 1 − x or more of them are.
        won = np.searchsorted(np.sort(self._n_in + 1 - self.ranks_in), counts.inside_above, "right")
        return RankSum(int(won.sum()), counts.tied)

    def find_merit(self, won: int, move: Move, *, largest: float) -> float:
        """Return the largest merit that this many pairs won refute, up to ``largest``; 0 for
        none."""
        if won < self.find_least(move, 0.0):
            return 0.0
        low, high = 0, math.ceil(math.asinh(largest / self._scale) / _RELATIVE)
        while high - low > 1:
            middle = (low + high) // 2
            refuted = won >= self.find_least(move, self._merit_at(middle))
            low, high = (middle, high) if refuted else (low, middle)
        last = min(self._merit_at(high), largest)  # of which only this one was not asked
        return last if won >= self.find_least(move, last) else self._merit_at(low)

    def find_least(self, move: Move, merit: float) -> float:
        """Return the fewest pairs won that refute a merit."""
        if (move, merit) not in self._least:
            self._least[move, merit] = self._simulate_least(move(self._inside, merit))
        return self._least[move, merit]

    def _simulate_least(self, inside: Normals) -> float:
        if self._rank == 0:
            return math.inf
        won = np.zeros(self.draws, np.int32)
        for row in self._outside:
            won += (inside > row).sum(axis=0, dtype=np.int32)
        place = self.draws - self._rank
        return int(np.partition(won, place)[place]) + 1

    def _merit_at(self, step: int) -> float:
        return self._scale * math.sinh(_RELATIVE * step)


def _choose_ranks(size: int) -> IntArray:
    """Ranks from where the other side begins: dense there, evenly spaced farther away."""
    ranks = [1]
    while (rank := ranks[-1] + max(1, min(ranks[-1] // 4, size // _EVEN))) <= size:
        ranks.append(rank)
    return np.array(ranks)


def _draw_normals(ranks: IntArray, size: int, draws: int, rng: np.random.Generator) -> Normals:
    """Order statistics of normal numbers from below, one row per rank."""
    found = np.empty((ranks.size, draws), np.float32)
    for row, uniform in zip(found, draw_order_statistics(ranks, size, draws, rng), strict=True):
        row[:] = scipy.special.ndtri(uniform)
    return found
