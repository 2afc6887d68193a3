"""Count scores beyond ranks of the other side, with ties broken at random.

Equal scores are put in a random order, drawn once for all looks: that is post-processing, which
proves nothing about a private mechanism, and afterwards the distribution of ranks is exact. Only
groups of equal scores at which someone looks are ordered.

Seeds are shared: most users keep the default. If a seed gave the same order to every audit, a lucky
one would err in far more audits than it says (measured: 13 % of randomised response, 100 + 100, at
seed 1, where 5 % were meant). So the order depends on two more things: a score's place in its
array, and how large the groups are. Over seeds, all orders remain equally likely for any scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.stats.rank_walk import sort_distinct
from epsilometer.stats.thresholds import Observed
from epsilometer.types import FloatArray, IntArray

# (group, places outside and inside, sizes) → inside scores in front of outside places, and reverse.
_Order: TypeAlias = Callable[
    [int, tuple[IntArray, IntArray], tuple[int, int]], tuple[IntArray, IntArray]
]
_SORTED = 1 << 15  # scores of a side up to which a sorted copy of them is quicker than selecting
_BINS = 1 << 12
_BLOCK = 1 << 15  # scores of a block that stays in a core's cache


@dataclass(frozen=True, eq=False, kw_only=True)
class RankCounts:
    """Counts beyond ranks.

    Attributes:
        inside_above: Inside scores above each rank of outside scores.
        outside_below: Outside scores below each rank of inside scores.
        at_out: The outside scores of those ranks.
        at_in: The inside scores of those ranks.
        tied: Whether equal scores had to be ordered at random.
    """

    inside_above: IntArray
    outside_below: IntArray
    at_out: FloatArray
    at_in: FloatArray
    tied: bool

    @property
    def beyond(self) -> IntArray:
        """All counts, those above outside ranks first."""
        return np.concatenate([self.inside_above, self.outside_below])


@dataclass(frozen=True, eq=False)
class _Groups:
    """Groups of equal scores at which someone looks, rising.

    Attributes:
        values: The score of each group.
        of_out: Which group each rank of outside scores is in.
        of_in: Likewise inside.
        below: Scores below each group, outside and inside.
        size: Scores of each group, outside and inside.
    """

    values: FloatArray
    of_out: IntArray
    of_in: IntArray
    below: tuple[IntArray, IntArray]
    size: tuple[IntArray, IntArray]


def count_ranks(
    observed: Observed, ranks_out: IntArray, ranks_in: IntArray, rng: np.random.Generator
) -> RankCounts:
    """Count the inside scores above outside ranks, and the outside scores below inside ranks.

    Args:
        observed: Scores, or counts of them; scores in the same bin are equal.
        ranks_out: Ranks of outside scores from above, rising.
        ranks_in: Ranks of inside scores from below, rising.
        rng: Breaks ties.
    """
    if isinstance(observed, ScoreCounts):
        groups = _group_bins(observed, ranks_out, ranks_in)
    else:
        groups = _group_scores(observed.inside, observed.outside, ranks_out, ranks_in)
    n_out, n_in = observed.n_out, observed.n_in
    (out_below, in_below), (out_size, in_size) = groups.below, groups.size
    above = (n_in - in_below - in_size)[groups.of_out]
    below = out_below[groups.of_in]
    looked = sort_distinct(np.concatenate([groups.of_out, groups.of_in]))
    mixed = looked[(out_size[looked] > 0) & (in_size[looked] > 0)]
    if mixed.size:
        sizes_drawn = np.concatenate([out_size[mixed], in_size[mixed]])
        fresh = np.random.default_rng([int(rng.integers(2**63)), *sizes_drawn.tolist()])
        order = (
            _order_counts(fresh)
            if isinstance(observed, ScoreCounts)
            else _order_scores(observed, groups.values, fresh)
        )
    for group in mixed.tolist():
        outs, ins = groups.of_out == group, groups.of_in == group
        sizes = int(out_size[group]), int(in_size[group])
        places = (  # within the group, from above
            ranks_out[outs] - (n_out - out_below[group] - sizes[0]),
            sizes[1] + 1 - (ranks_in[ins] - in_below[group]),
        )
        in_front, out_front = order(group, places, sizes)
        above[outs] += in_front
        below[ins] += sizes[0] - out_front
    return RankCounts(
        inside_above=above,
        outside_below=below,
        at_out=groups.values[groups.of_out],
        at_in=groups.values[groups.of_in],
        tied=bool(mixed.size),
    )


def _order_scores(observed: Scores, values: FloatArray, rng: np.random.Generator) -> _Order:
    """Give every score a key, in the order of its array; equal scores are ordered by it."""
    keys = rng.random(observed.n_out), rng.random(observed.n_in)

    def order(
        group: int, places: tuple[IntArray, IntArray], _: tuple[int, int]
    ) -> tuple[IntArray, IntArray]:
        outs, ins = (
            np.sort(key[scores == values[group]])
            for key, scores in zip(keys, (observed.outside, observed.inside), strict=True)
        )
        return np.searchsorted(ins, outs[places[0] - 1]), np.searchsorted(outs, ins[places[1] - 1])

    return order


def _order_counts(rng: np.random.Generator) -> _Order:
    """Draw places as order statistics of uniform numbers.

    Scores of the other side between two of its own places fall anywhere between them.
    """

    def order(
        _: int, places: tuple[IntArray, IntArray], sizes: tuple[int, int]
    ) -> tuple[IntArray, IntArray]:
        out_rank, in_rank = places[0], places[1][::-1]  # both rise from above
        out_at, in_at = _draw_places(out_rank, sizes[0], rng), _draw_places(in_rank, sizes[1], rng)
        in_front = _count_front(out_at, in_rank, in_at, sizes[1], rng)
        return in_front, _count_front(in_at, out_rank, out_at, sizes[0], rng)[::-1]

    return order


def _draw_places(ranks: IntArray, size: int, rng: np.random.Generator) -> FloatArray:
    """Order statistics of this many uniform numbers, at rising ranks."""
    sums = np.cumsum(rng.standard_gamma(np.diff(ranks, prepend=0, append=size + 1)))
    return np.asarray(sums[:-1] / sums[-1])


def _count_front(
    points: FloatArray,
    ranks: IntArray,
    places: FloatArray,
    size: int,
    rng: np.random.Generator,
) -> IntArray:
    """How many of this many uniform numbers lie in front of points, given some order statistics."""
    ranks = np.concatenate([[0], ranks, [size + 1]])
    places = np.concatenate([[0.0], places, [1.0]])
    before = np.searchsorted(places, points) - 1
    counts = np.zeros(points.size, np.int64)
    for i, (point, interval) in enumerate(zip(points, before, strict=True)):
        start, count = places[interval], int(ranks[interval])
        if i and before[i - 1] == interval:
            start, count = points[i - 1], int(counts[i - 1])
        left = int(ranks[interval + 1]) - 1 - count
        width = places[interval + 1] - start
        share = (point - start) / width if width > 0 else 0.0
        counts[i] = count + rng.binomial(left, min(max(share, 0.0), 1.0))
    return counts


def _group_scores(
    inside: FloatArray, outside: FloatArray, ranks_out: IntArray, ranks_in: IntArray
) -> _Groups:
    few = max(inside.size, outside.size) <= _SORTED
    if few:
        low_out, low_in = np.sort(outside), np.sort(inside)
        at_out, at_in = low_out[outside.size - ranks_out], low_in[ranks_in - 1]
    else:
        low_out, low_in = outside, inside
        at_out = _select(outside, outside.size + 1 - ranks_out)
        at_in = _select(inside, ranks_in)
    values, of = np.unique(np.concatenate([at_out, at_in]), return_inverse=True)
    count = _count_sorted if few else _count_unsorted
    (out_below, out_most), (in_below, in_most) = count(low_out, values), count(low_in, values)
    return _Groups(
        values,
        of[: ranks_out.size],
        of[ranks_out.size :],
        (out_below, in_below),
        (out_most - out_below, in_most - in_below),
    )


def _count_sorted(scores: FloatArray, values: FloatArray) -> tuple[IntArray, IntArray]:
    """How many of rising scores are below each value, and how many at most it."""
    return np.searchsorted(scores, values), np.searchsorted(scores, values, side="right")


class _Bins:
    """Scores in bins of equal width between two; beyond them the first and the last go on."""

    def __init__(self, scores: FloatArray, low: float, high: float) -> None:
        self._low, self._high = low, high
        with np.errstate(all="ignore"):
            scale = np.float64(_BINS) / (np.float64(high) - np.float64(low))
        self._scale = float(scale) if np.isfinite(scale) else 0.0
        parts = [scores[start : start + _BLOCK] for start in range(0, scores.size, _BLOCK)]
        self._parts = [(part, self.place(part)) for part in parts]

    def place(self, scores: FloatArray) -> NDArray[np.uint16]:
        """Return each score's bin, which never falls where scores rise."""
        at = np.clip(scores, self._low, self._high)
        at -= self._low
        at *= self._scale
        return at.astype(np.uint16)

    def count(self) -> IntArray:
        """Return how many scores are in each bin."""
        sums = np.zeros(_BINS + 1, np.int64)
        for _, bins in self._parts:
            sums += np.bincount(bins, minlength=_BINS + 1)
        return sums

    def gather(self, wanted: NDArray[np.integer[Any]]) -> FloatArray:
        """Return the scores of some bins, rising."""
        chosen = np.zeros(_BINS + 1, bool)
        chosen[wanted] = True
        return np.sort(np.concatenate([part[chosen.take(bins)] for part, bins in self._parts]))


def _select(scores: FloatArray, ranks: IntArray) -> FloatArray:
    """The scores of ranks from below: only those in the bins of the ranks are sorted."""
    sample = scores[:: max(scores.size // _BLOCK, 1)]
    low, high = np.quantile(sample[np.isfinite(sample)], (0.01, 0.99)) if _some(sample) else (0, 0)
    bins = _Bins(scores, float(low), float(high))
    sums = bins.count()
    wanted = np.searchsorted(np.cumsum(sums), ranks)
    gathered = np.zeros(_BINS + 1, np.int64)
    gathered[wanted] = sums[wanted]
    left_out = np.append(0, np.cumsum(sums - gathered))[wanted]
    return np.asarray(bins.gather(wanted)[ranks - left_out - 1])


def _some(sample: FloatArray) -> bool:
    return bool(np.isfinite(sample).any())


def _count_unsorted(scores: FloatArray, values: FloatArray) -> tuple[IntArray, IntArray]:
    """The same of scores in any order: they are binned, and compared in the values' bins only."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite[0]), float(finite[-1])) if finite.size else (0.0, 0.0)
    bins = _Bins(scores, low, high)
    wanted, sums = bins.place(values), bins.count()
    sums[wanted] = 0
    before = np.append(0, np.cumsum(sums))[wanted]
    below, most = _count_sorted(bins.gather(wanted), values)
    return before + below, before + most


def _group_bins(counts: ScoreCounts, ranks_out: IntArray, ranks_in: IntArray) -> _Groups:
    """Every bin is a group; it is called by its lower end."""
    sums = np.cumsum(counts.outside_bins), np.cumsum(counts.inside_bins)
    return _Groups(
        np.concatenate([[-np.inf], counts.thresholds]),
        np.searchsorted(sums[0], counts.n_out + 1 - ranks_out),
        np.searchsorted(sums[1], ranks_in),
        (sums[0] - counts.outside_bins, sums[1] - counts.inside_bins),
        (counts.outside_bins, counts.inside_bins),
    )
