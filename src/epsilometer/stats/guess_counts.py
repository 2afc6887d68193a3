"""Count right guesses from both ends of the scores of canaries, with ties broken at random.

Equal scores are put in a random order, independent of the coins. As seeds are shared, the
order also depends on how many scores are equal: see :mod:`epsilometer.stats.rank_counts`.
"""

from dataclasses import dataclass

import numpy as np

from epsilometer.core.scores import ScoreCounts
from epsilometer.stats.guess_looks import LookFamily
from epsilometer.stats.shared_seeds import mix_sorted
from epsilometer.stats.thresholds import Observed, just_above
from epsilometer.types import FloatArray, IntArray


@dataclass(frozen=True, eq=False, kw_only=True)
class RightGuesses:
    """Right guesses of every look of a family.

    Attributes:
        right: How many guesses are right.
        high: "in" is guessed from this score on; nan where none is. Of pairs, the difference of
            scores from which on they are guessed.
        low: "out" is guessed below this score; nan where none is.
        tied: Whether equal scores had to be ordered at random.
    """

    right: IntArray
    high: FloatArray
    low: FloatArray
    tied: bool


def count_right(observed: Observed, family: LookFamily, rng: np.random.Generator) -> RightGuesses:
    """Count the right guesses of canaries that were included by coin tosses."""
    canaries, k = family.game.canaries, family.ranks
    cuts, at = np.unique(np.concatenate([k, canaries - k]), return_inverse=True)
    inside, tied = _count_inside(observed, cuts, rng)
    top = inside[at[: k.size]]
    bottom = k - (observed.n_in - inside[at[k.size :]])
    of_in, of_out = family.sides != "out", family.sides != "in"
    high, low = find_cuts(observed, k)
    return RightGuesses(
        right=np.where(of_in, top, 0) + np.where(of_out, bottom, 0),
        high=np.where(of_in, high, np.nan),
        low=np.where(of_out, low, np.nan),
        tied=tied,
    )


def pair_scores(observed: Observed, rng: np.random.Generator) -> FloatArray:
    """Return by how much the inside score of every pair exceeds the outside one.

    With a fixed number inside, canaries are paired at random, in with out. Exchanging the two of a
    pair gives an equally likely draw with the same pairs: given the pairs, each has its own fair
    coin. Remaining canaries are not used.
    """
    if isinstance(observed, ScoreCounts):  # scores of one bin are equal
        every = np.arange(observed.inside_bins.size)
        inside = np.repeat(every, observed.inside_bins).astype(np.float64)
        outside = np.repeat(every, observed.outside_bins).astype(np.float64)
    else:
        inside, outside = (side.astype(np.float64) for side in (observed.inside, observed.outside))
    if observed.design == "fixed":
        pairs, rng = min(inside.size, outside.size), mix_sorted(rng, observed)
        inside, outside = (rng.permutation(side)[:pairs] for side in (inside, outside))
    with np.errstate(invalid="ignore", over="ignore"):  # two diverged runs are a tie
        return np.asarray(np.nan_to_num(inside - outside, posinf=np.inf, neginf=-np.inf))


def count_right_pairs(
    differences: FloatArray, family: LookFamily, rng: np.random.Generator
) -> RightGuesses:
    """Count the right guesses of pairs: the higher score was in, larger differences come first."""
    size = np.abs(differences)
    zeros = int((size == 0).sum())
    fresh = np.random.default_rng([int(rng.integers(2**63)), zeros, int((differences > 0).sum())])
    right = np.where(size == 0, fresh.random(size.size) < 0.5, differences > 0)
    order = np.lexsort((fresh.random(size.size), -size))
    high = size[order][family.ranks - 1]
    return RightGuesses(
        right=np.cumsum(right[order])[family.ranks - 1],
        high=high,
        low=np.full(high.size, np.nan),
        tied=bool(np.unique(size).size < size.size),
    )


def _count_inside(
    observed: Observed, cuts: IntArray, rng: np.random.Generator
) -> tuple[IntArray, bool]:
    """How many of the highest 0, 1, … scores were in, at rising cuts, and whether any were tied."""
    above_in, equal_in, above_out, equal_out = _count_groups(observed, cuts)
    taken = cuts - above_in - above_out  # of the group of equal scores that the cut is in
    counts = above_in + np.minimum(taken, equal_in)  # true but where a group of both is split
    split = taken < equal_in + equal_out
    mixed = np.flatnonzero((taken > 0) & split & (equal_in > 0) & (equal_out > 0))
    if not mixed.size:
        return counts, False
    sizes = np.concatenate([equal_in[mixed], equal_out[mixed]]).tolist()
    fresh = np.random.default_rng([int(rng.integers(2**63)), *sizes])
    group, seen, found = (-1, -1), 0, 0
    for at in mixed.tolist():
        if group != (int(above_in[at]), int(above_out[at])):
            group, seen, found = (int(above_in[at]), int(above_out[at])), 0, 0
        left_in = int(equal_in[at]) - found
        left_out = int(equal_out[at]) - (seen - found)
        found += int(fresh.hypergeometric(left_in, left_out, int(taken[at]) - seen))
        seen = int(taken[at])
        counts[at] = above_in[at] + found
    return counts, True


def _count_groups(
    observed: Observed, cuts: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Inside and outside scores above, and equal to, the score at each cut from above."""
    if isinstance(observed, ScoreCounts):
        bins = observed.inside_bins[::-1], observed.outside_bins[::-1]
        at = np.searchsorted(np.cumsum(bins[0] + bins[1]), np.maximum(cuts, 1))
        (above_in, equal_in), (above_out, equal_out) = (
            (np.append(0, np.cumsum(side))[at], side[at]) for side in bins
        )
        return above_in, equal_in, above_out, equal_out
    inside, outside = np.sort(observed.inside), np.sort(observed.outside)
    pooled = np.sort(np.concatenate([inside, outside]))
    at = pooled[pooled.size - np.maximum(cuts, 1)]
    found = []
    for side in (inside, outside):
        low, high = (np.searchsorted(side, at, side=end) for end in ("left", "right"))
        found += [side.size - high, high - low]
    return found[0], found[1], found[2], found[3]


def find_cuts(observed: Observed, ranks: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return thresholds with the highest k scores at or above, and with the lowest k below."""
    if isinstance(observed, ScoreCounts):
        bins = observed.inside_bins + observed.outside_bins
        edges = np.concatenate([[-np.inf], observed.thresholds, [np.inf]])
        from_top = bins.size - 1 - np.searchsorted(np.cumsum(bins[::-1]), ranks)
        return edges[from_top], edges[np.searchsorted(np.cumsum(bins), ranks) + 1]
    pooled = np.sort(np.concatenate([observed.inside, observed.outside]))
    return pooled[pooled.size - ranks], just_above(pooled[ranks - 1])
