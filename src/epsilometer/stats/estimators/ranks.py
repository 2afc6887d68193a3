"""The exact test at a rank: the distribution of one error rate is known, and is integrated out.

At the k-th highest outside score the FPR F is Beta(k, n−k+1), and the inside scores beyond it are
binomial with the TPR. A claim allows a TPR of at most g(F), so the chance of x or more of them is
at most E_F[Pr(Bin(m, g(F)) ≥ x)] = Pr(B ≤ g(F)), where B is Beta(x, m−x+1) and independent of F.
That p-value needs no two limits that each pay half; with them the bound would be a tenth lower or
more. The same holds at ranks of the inside scores with the two sides swapped.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from epsilometer.stats import binomial, search
from epsilometer.stats.estimators.method import Winner
from epsilometer.stats.thresholds import Ranks
from epsilometer.types import FloatArray

_REACH = 8.0  # normal scores beyond hold less than 1e-15
_SIZES = tuple(64 * 2**i for i in range(8))  # intervals of the coarsest to the finest rule
_ENOUGH = 1e-3  # change from one rule to the next that is left to the safe side
_LARGEST = 1e4
_FEW = 32  # looks that are tested one by one
_CELLS = (13, 129)
_WIDTH = 4.0  # standard deviations on either side of the mean, in cells


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """What a mechanism of some merit can do, read both ways; the two are inverse to each other.

    Attributes:
        least_fpr: (TPR, merit, δ) → the smallest FPR at which it can have that TPR.
        most_tpr: (FPR, merit, δ) → the largest TPR it can have at that FPR.
    """

    least_fpr: Callable[[FloatArray, FloatArray, float], FloatArray]
    most_tpr: Callable[[FloatArray, FloatArray, float], FloatArray]


class _Look:
    """One rank: what is known of F, what was seen of B, and the error it may spend."""

    def __init__(self, side: Ranks, at: int, alpha: float) -> None:
        rank, beyond = int(side.ranks[at]), int(side.beyond[at])
        n_ranked, n_other = side.n_ranked, side.n_other
        self.f = rank, n_ranked - rank + 1
        self.b = max(beyond, 1), n_other - max(beyond, 1) + 1  # who caught nobody has no hope
        self.level = alpha * float(side.share[at])
        self.rank, self.n_ranked, self.beyond, self.n_other = rank, n_ranked, beyond, n_other
        self._nodes: dict[int, FloatArray] = {}

    def excess(self, frontier: Frontier, merit: float, delta: float) -> float:
        """Return the logarithm of the p-value of a merit over the level."""
        return math.log(max(self._p_value(frontier, merit, delta), 1e-300) / self.level)

    def _p_value(self, frontier: Frontier, merit: float, delta: float) -> float:
        """Pr(B ≤ g(F)) to 0.2 %: the trapezoid rule in normal scores of the sharper of the two.

        On that scale the tail of the other is smooth and the weight Gaussian, where the rule's
        error falls faster than any power; if not (deep tails of few counts), it is refined.
        """
        b_sharper = _relative_variance(*self.b) < _relative_variance(*self.f)
        total = doubt = math.inf
        for size in _SIZES:
            scores, fresh = _rule(size)
            if size not in self._nodes:
                self._nodes[size] = binomial.beta_at(*(self.b if b_sharper else self.f), scores)
            nodes, at = self._nodes[size], np.asarray(merit)
            if b_sharper:
                values = scipy.special.betaincc(*self.f, frontier.least_fpr(nodes, at, delta))
            else:
                values = scipy.special.betainc(*self.b, frontier.most_tpr(nodes, at, delta))
            coarse = total
            total = (0.0 if fresh else coarse / 2) + float(values @ _weights(scores, size))
            change = abs(total - coarse)
            # At a kink (B = δ) a small change may be luck: the last doubt falls fourfold at most.
            doubt = change if math.isinf(doubt) else max(change, doubt / 4)
            if doubt <= _ENOUGH * max(total, self.level):  # far below the level, near is enough
                break
        return total + doubt


def _relative_variance(a: int, b: int) -> float:
    return b / (a * (a + b + 1))


@functools.cache
def _rule(size: int) -> tuple[FloatArray, bool]:
    """Scores of the rule of so many intervals; of finer ones only those that are new."""
    scores = np.linspace(-_REACH, _REACH, size + 1)
    return (scores, True) if size == _SIZES[0] else (scores[1::2], False)


def _weights(scores: FloatArray, size: int) -> FloatArray:
    return np.asarray(np.exp(-(scores**2) / 2) / math.sqrt(2 * math.pi) * (2 * _REACH / size))


def best_rank(
    sides: tuple[Ranks, Ranks], frontier: Frontier, *, delta: float, alpha: float
) -> Winner:
    """Return the largest merit that some look refutes at its share of ``alpha``, and where.

    Args:
        sides: Outside ranks, inside ranks.
        frontier: What a merit allows.
        delta: δ of the claim.
        alpha: Chance of error of the whole, which the looks share.
    """
    thresholds = np.concatenate([side.thresholds for side in sides])
    size = sides[0].ranks.size

    hope = np.concatenate([_hope(side, frontier, delta=delta, alpha=alpha) for side in sides])
    best, winner, sifted = 0.0, 0, -1.0
    while hope.max() > best:
        if best > sifted and np.count_nonzero(hope > best) > _FEW:
            found = [may_refute(side, frontier, best, delta=delta, alpha=alpha) for side in sides]
            hope, sifted = np.where(np.concatenate(found), hope, 0.0), best
            continue
        at = int(np.argmax(hope))
        look = _Look(sides[at >= size], at % size, alpha)

        def excess(merit: float, look: _Look = look) -> float:
            return look.excess(frontier, merit, delta)

        if excess(best) <= 0:
            best, winner = search.root(excess, best, float(hope[at]), relative=1e-9)[0], at
        hope[at] = 0.0
    look, row = _Look(sides[winner >= size], winner % size, alpha), int(winner >= size)
    ranked, other = ("outside", "inside") if row == 0 else ("inside", "outside")
    return Winner(
        merit=best,
        row=row,
        threshold=float(thresholds[winner]),
        basis=(
            (f"rank {ranked}", look.rank),
            (f"scores {ranked}", look.n_ranked),
            (f"{other} beyond", look.beyond),
            (f"scores {other}", look.n_other),
            ("level", look.level),
        ),
    )


def may_refute(
    side: Ranks, frontier: Frontier, merit: float, *, delta: float, alpha: float
) -> NDArray[np.bool_]:
    """Return which looks may refute a merit; the others cannot."""
    may = side.beyond > 0
    for cells in _CELLS:  # all looks in a few, what is left in many
        at = np.flatnonzero(may)
        may[at] = _PValues(side, at, cells).find_refuted(
            frontier, np.full(at.size, merit), delta=delta, alpha=alpha
        )
    return may


def _hope(side: Ranks, frontier: Frontier, *, delta: float, alpha: float) -> FloatArray:
    """A merit that each look cannot refute, cheaply; 0 where it cannot refute any.

    Half of B lies below its median, so the p-value is at least half the tail of F there.
    """
    beyond = np.maximum(side.beyond, 1)
    median = binomial.beta_at(beyond, side.n_other - beyond + 1, np.float64(0.0))

    def refutes(merit: FloatArray) -> NDArray[np.bool_]:
        least = frontier.least_fpr(median, merit, delta)
        tail = scipy.special.betaincc(side.ranks, side.n_ranked - side.ranks + 1, least)
        return np.asarray((tail / 2 <= alpha * side.share) & (side.beyond > 0))

    none = np.zeros(side.ranks.size)
    high = search.grow(refutes, none + 1.0, limit=_LARGEST)
    _, hope = search.bisect(refutes, none, high, relative=1e-3)
    return np.where(refutes(none), hope, 0.0)


class _PValues:
    """Numbers that p-values cannot fall below: Pr(B ≤ g(F)) by a sum over cells of B.

    In a cell, g(F) is at least B where it is at least the upper end. Cells may lie anywhere.
    """

    def __init__(self, side: Ranks, at: NDArray[np.intp], cells: int) -> None:
        self.ranks, self.share, self.n_ranked = side.ranks[at], side.share[at], side.n_ranked
        a, b = side.beyond[at], side.n_other - side.beyond[at] + 1
        mean, spread = a / (a + b), np.sqrt(a * b / (a + b + 1)) / (a + b)
        ends = mean[:, None] + spread[:, None] * np.linspace(-_WIDTH, _WIDTH, cells)
        self.ends = np.clip(ends, 0.0, 1.0)
        below = scipy.special.betainc(a[:, None], b[:, None], self.ends)
        self.masses = np.diff(below, prepend=0.0)

    def find_refuted(
        self, frontier: Frontier, merit: FloatArray, *, delta: float, alpha: float
    ) -> NDArray[np.bool_]:
        """Return which looks may have a p-value at or below their level."""
        least = frontier.least_fpr(self.ends, merit[:, None], delta)
        shape = self.ranks[:, None], (self.n_ranked - self.ranks + 1)[:, None]
        tails = scipy.special.betaincc(*shape, least)
        return np.asarray((self.masses * tails).sum(axis=1) <= alpha * self.share)
