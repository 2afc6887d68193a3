"""Define how thresholds are chosen, and what the choice costs.

A rule turns scores into *looks*: thresholds, the counts an estimator may use there, and the error
each limit may spend. Choosing a threshold by the data is paid for here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.shared_seeds import mix_sorted
from epsilometer.types import FloatArray, IntArray


@dataclass(frozen=True)
class Fixed:
    """A threshold chosen before seeing the data: costs nothing. Valid.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(np.arange(300) + 250.0, np.arange(300.0))
        >>> round(em.epsilon_lower_bound(scores, delta=1e-5, rule=Fixed(299.5)).epsilon, 2)
        4.16
    """

    value: float

    def __post_init__(self) -> None:
        _validate.number(value=self.value)


@dataclass(frozen=True)
class HoldOut:
    """A threshold chosen on a random ``fraction`` of the scores, which the bound ignores. Valid.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(np.arange(300) + 250.0, np.arange(300.0))
        >>> round(em.epsilon_lower_bound(scores, delta=1e-5, rule=HoldOut(0.3)).epsilon, 2)
        3.37
    """

    fraction: float = 0.3

    def __post_init__(self) -> None:
        _validate.open_unit(fraction=self.fraction)


@dataclass(frozen=True)
class Bonferroni:
    """All thresholds at once, with the error divided by their number. Valid, but weak.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(np.arange(300) + 250.0, np.arange(300.0))
        >>> round(em.epsilon_lower_bound(scores, delta=1e-5, rule=Bonferroni()).epsilon, 2)
        3.18
    """


@dataclass(frozen=True)
class RankGrid:
    """Thresholds at the 1st, 4th, 16th, 64th … highest outside (and lowest inside) score. Valid.

    With "in iff score > k-th highest outside score" the FPR is Beta(k, n−k+1) distributed for any
    distribution of continuous scores, and smaller where scores are tied (Wilks 1941). The data
    place the threshold, yet the distribution of its FPR is known. Only the number of ranks costs.

    Where a rank falls among equal scores, both ends of the group are checked too, for an eighth
    of the error. Rank k of all n gets a share 1/k, so that no rank need be chosen beforehand.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(np.arange(300) + 250.0, np.arange(300.0))
        >>> round(em.epsilon_lower_bound(scores, delta=1e-5, rule=RankGrid()).epsilon, 2)
        3.87
    """

    ratio: int = 4

    def __post_init__(self) -> None:
        _validate.whole(2, ratio=self.ratio)


@dataclass(frozen=True)
class AllRanks:
    """Ranks 1, 2, 3, 4, 6, 9, … of both sides, all in one exact test. Valid.

    Ties are broken at random by the seed. Under the worst mechanism that a claim allows, ranks then
    have a known distribution, so the error need not be split among looks. For canaries of one run:
    finer ranks of all scores, from the top, the bottom and both.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(np.arange(300) + 250.0, np.arange(300.0))
        >>> round(em.epsilon_lower_bound(scores, delta=1e-5, rule=AllRanks()).epsilon, 2)
        4.17
    """


@dataclass(frozen=True)
class RankSum:
    """Every inside score against every outside score, without any threshold to pay for. Valid.

    For methods that know the mechanism's trade-off curve. Ties are broken at random by the seed.

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(np.arange(300) + 250.0, np.arange(300.0))
        >>> bound = em.epsilon_lower_bound(scores, delta=1e-5, method="gdp", rule=RankSum())
        >>> round(bound.epsilon, 2)
        16.42
    """


@dataclass(frozen=True)
class Best:
    """The most favourable threshold at no cost. **Not valid**: for comparison.

    Every threshold is tested in both directions, each with the whole error, so no other rule that
    chooses one threshold can prove more on the same scores. On data with ε = 0 the result exceeds
    0 far more often than it says (docs/calibration.md).

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(np.arange(300) + 250.0, np.arange(300.0))
        >>> bound = em.epsilon_lower_bound(scores, delta=1e-5, rule=Best())
        >>> round(bound.epsilon, 2), bound.valid
        (4.42, False)
    """


@dataclass(frozen=True)
class Published:
    """The best threshold as reported in papers, to reproduce them. **Not valid**.

    Limits on both rates at every threshold, each with the whole error instead of half of it, and
    the choice costs nothing (Annamalai et al. 2025).

    Example:
        >>> import epsilometer as em
        >>> scores = em.Scores(np.arange(300) + 250.0, np.arange(300.0))
        >>> bound = em.epsilon_lower_bound(scores, delta=1e-5, rule=Published())
        >>> round(bound.epsilon, 2), bound.valid
        (4.38, False)
    """


ThresholdRule: TypeAlias = (
    Fixed | HoldOut | Bonferroni | RankGrid | AllRanks | RankSum | Best | Published
)
UNPAID = (Best, Published)  # no bound by these is valid
Observed: TypeAlias = Scores | ScoreCounts

_BLOCK = 1 << 15  # elements of a block that stays in a core's cache
_SAMPLE = 1 << 14  # scores that tell about where a rank lies
_TIES = 1 / 8  # of the error of a rank grid is kept for groups of equal scores


@dataclass(frozen=True, eq=False, kw_only=True)
class Looks:
    """Counts at some thresholds, and what the limits there may cost.

    Attributes:
        thresholds: "in iff score ≥ threshold", shape ``(l,)``.
        false_positives: Counts (or ranks, which bound them) to limit the FPR by, shape ``(l,)``.
        false_negatives: Likewise for the FNR.
        n_in: Scores inside.
        n_out: Scores outside.
        alpha_fpr: Chance that the FPR's limit may fail, at each look.
        alpha_fnr: Chance that the FNR's limit may fail, at each look.
    """

    thresholds: FloatArray
    false_positives: IntArray
    false_negatives: IntArray
    n_in: int
    n_out: int
    alpha_fpr: float
    alpha_fnr: float


def fixed(observed: Observed, threshold: float, *, alpha: float) -> Looks:
    """Return one look at a threshold chosen independently of these scores."""
    positives, negatives = observed.errors_at(threshold)
    return Looks(
        thresholds=np.array([threshold]),
        false_positives=np.array([positives]),
        false_negatives=np.array([negatives]),
        n_in=observed.n_in,
        n_out=observed.n_out,
        alpha_fpr=alpha / 2,
        alpha_fnr=alpha / 2,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranks:
    """Looks at ranks of one sample, seen from its far end: outside from above, inside from below.

    Attributes:
        thresholds: "in iff score ≥ threshold", shape ``(l,)``.
        ranks: Rank k of the score each threshold stands at; k − 1 scores, or fewer, lie beyond.
        n_ranked: Size of the ranked sample.
        beyond: Scores of the other sample beyond the threshold.
        n_other: Its size.
        share: What part of the whole error each look may spend.
    """

    thresholds: FloatArray
    ranks: IntArray
    n_ranked: int
    beyond: IntArray
    n_other: int
    share: FloatArray


def rank_grid(observed: Observed, rule: RankGrid) -> tuple[Ranks, Ranks]:
    """Look at ranks 1, r, r², … of outside scores from above and of inside ones from below."""
    if isinstance(observed, ScoreCounts):
        bins = observed.outside_bins, observed.inside_bins
        above = _count_side(*bins, observed.thresholds, rule.ratio, from_above=True)
        below = _count_side(*bins[::-1], observed.thresholds, rule.ratio, from_above=False)
    else:
        samples = observed.outside, observed.inside
        above = _score_side(*samples, rule.ratio, from_above=True)
        below = _score_side(*samples[::-1], rule.ratio, from_above=False)
    return above, below


def rank_looks(observed: Observed, rule: RankGrid, *, alpha: float) -> Looks:
    """Return the rank grid as counts: rank k bounds a rate at least as well as k − 1 errors."""
    out, inside = rank_grid(observed, rule)
    spent = alpha / (2 * (out.ranks.size + inside.ranks.size))
    return Looks(
        thresholds=np.concatenate([out.thresholds, inside.thresholds]),
        false_positives=np.concatenate([out.ranks - 1, inside.n_other - inside.beyond]),
        false_negatives=np.concatenate([out.n_other - out.beyond, inside.ranks - 1]),
        n_in=observed.n_in,
        n_out=observed.n_out,
        alpha_fpr=spent,
        alpha_fnr=spent,
    )


def cuts(observed: Observed, *, alpha_each: float, corrected: bool = False) -> Looks:
    """Return a few thresholds from the highest to the lowest; all others lie between two of them.

    Each limit may fail with ``alpha_each``, ``corrected`` for the number of all thresholds or not:
    for n scores the limits of n counts cover every threshold there is. With j false positives the
    true FPR is at most that of the (j+1)-th highest score, whose distribution is the one the limit
    of the count j is the quantile of.
    """
    looks_out, looks_in = (observed.n_out, observed.n_in) if corrected else (1, 1)
    if isinstance(observed, ScoreCounts):
        every = observed.thresholds
        looks_out, looks_in = min(looks_out, every.size), min(looks_in, every.size)
    else:
        sides = rank_grid(observed, RankGrid())
        every = np.concatenate([side.thresholds for side in sides])
    every = np.unique(np.append(every, [np.inf, -np.inf]))[::-1]
    return Looks(
        thresholds=every,
        false_positives=observed.n_out - count_below(observed, every, outside=True),
        false_negatives=count_below(observed, every, outside=False),
        n_in=observed.n_in,
        n_out=observed.n_out,
        alpha_fpr=alpha_each / looks_out,
        alpha_fnr=alpha_each / looks_in,
    )


def corners(observed: Observed, looks: Looks, *, upper: int, lower: int) -> Looks:
    """Return every threshold worth a look between two cuts, from the lowest to the highest.

    A threshold just above an outside score misses fewest for its number of false positives. Of
    those that miss equally many, the one with fewest false positives is enough.
    """
    high, low = looks.thresholds[upper], looks.thresholds[lower]
    if isinstance(observed, ScoreCounts):  # counted at the cuts, and nowhere between
        return replace(looks, thresholds=looks.thresholds[:0])
    outside, inside = (
        np.sort(values[(values >= low) & (values < high)])
        for values in (observed.outside, observed.inside)
    )
    last = np.flatnonzero(np.append(outside[1:] != outside[:-1], True)[: outside.size])
    missed = np.searchsorted(inside, outside[last], side="right")
    fewer = np.append(missed[1:] > missed[:-1], True)[: last.size]  # than the next one up misses
    last, missed = last[fewer], missed[fewer]
    return replace(
        looks,
        thresholds=just_above(outside[last]),
        false_positives=looks.false_positives[upper] + outside.size - 1 - last,
        false_negatives=looks.false_negatives[lower] + missed,
    )


def count_below(observed: Observed, thresholds: FloatArray, *, outside: bool) -> IntArray:
    """Count the outside (or inside) scores below each threshold."""
    if isinstance(observed, ScoreCounts):
        bins = observed.outside_bins if outside else observed.inside_bins
        edges = np.concatenate([[-np.inf], observed.thresholds])
        total = np.append(0, np.cumsum(bins))
        return total[np.searchsorted(edges, thresholds)]
    return _count_below(observed.outside if outside else observed.inside, thresholds)


def split(
    scores: Observed, fraction: float, rng: np.random.Generator, *, blind: bool = False
) -> tuple[Scores, Scores]:
    """Return a random part of the scores to choose on, and the rest.

    The same fraction of both sides; or, ``blind``, of all scores together, so that who is chosen
    says nothing about who was in. One-run methods need the coins of the rest to stay fair.
    """
    if isinstance(scores, ScoreCounts):
        raise InvalidArgument(
            "HoldOut needs the scores one by one, and these are counted. "
            "Count a pilot apart and give its threshold as Fixed(value), or use RankGrid()."
        )
    rng = mix_sorted(rng, scores)
    if blind:
        chosen = np.zeros(scores.n_in + scores.n_out, bool)
        chosen[: _part(chosen.size, fraction)] = True
        chosen_in, chosen_out = np.split(rng.permutation(chosen), [scores.n_in])
    else:
        chosen_in, chosen_out = (
            rng.permutation(np.arange(n) < _part(n, fraction)) for n in (scores.n_in, scores.n_out)
        )
    if not (0 < chosen_in.sum() < scores.n_in and 0 < chosen_out.sum() < scores.n_out):
        raise InvalidArgument(
            "HoldOut needs at least two scores inside and two outside, to choose on one of each "
            "and use the other; a blind split of few canaries may need more."
        )
    return (
        replace(scores, inside=scores.inside[chosen_in], outside=scores.outside[chosen_out]),
        replace(scores, inside=scores.inside[~chosen_in], outside=scores.outside[~chosen_out]),
    )


def just_above(values: FloatArray) -> FloatArray:
    """Return thresholds at which "score ≥ threshold" means "score > value", in the scores' type."""
    with np.errstate(over="ignore"):  # above the largest number is +inf
        return np.nextafter(values, np.array(np.inf, values.dtype))


def _part(n: int, fraction: float) -> int:
    """Return this share of n, but neither none nor all if possible."""
    return min(max(round(n * fraction), 1), max(n - 1, 1))


def grid(n: int, ratio: int) -> IntArray:
    """1, r, r², … up to half the scores: beyond, an attack says "in" of most outsiders."""
    ranks = [1]
    while ranks[-1] * ratio <= n / 2:
        ranks.append(ranks[-1] * ratio)
    return np.array(ranks)


def _side(
    ranks: IntArray,
    cuts: FloatArray,
    group_cuts: FloatArray,
    beyond: Callable[[int, FloatArray], IntArray],
    sizes: tuple[int, int],
) -> Ranks:
    """Looks at fixed ranks, and at the ends of groups of equal scores.

    Args:
        ranks: Ranks fixed in advance.
        cuts: "in iff score ≥ cut" that leaves only scores beyond those ranks.
        group_cuts: Cuts at the ends of groups.
        beyond: (sample, cuts) → how many of the ranked sample (0) or the other (1) lie beyond.
        sizes: Sizes of the ranked sample, and of the other.
    """
    n_ranked, n_other = sizes
    every = np.concatenate([cuts, group_cuts])
    group_ranks = beyond(0, group_cuts) + 1
    fixed_share = np.full(ranks.size, (1 - _TIES) / (2 * ranks.size))
    group_share = _TIES / (2 * group_ranks * (1 + math.log(n_ranked)))  # Σ 1/k < 1 + ln n
    keep = np.append(np.ones(ranks.size, bool), group_ranks <= n_ranked)
    return Ranks(
        thresholds=every[keep],
        ranks=np.concatenate([ranks, group_ranks])[keep],
        n_ranked=n_ranked,
        beyond=beyond(1, every[keep]),
        n_other=n_other,
        share=np.concatenate([fixed_share, group_share])[keep],
    )


def _score_side(ranked: FloatArray, other: FloatArray, ratio: int, *, from_above: bool) -> Ranks:
    ranks = grid(ranked.size, ratio)
    values, tied = extremes(ranked, ranks, from_above=from_above)
    groups = np.unique(values[tied])
    groups = groups[~np.isposinf(groups)]
    ends = np.concatenate([groups, just_above(groups)])
    # Nothing exceeds +inf: there the attack must call nobody in, and nan is below every score.
    above = np.where(np.isposinf(values), np.nan, just_above(values))

    def beyond(sample: int, cuts: FloatArray) -> IntArray:
        values = (ranked, other)[sample]
        below = _count_below(values, cuts)
        return np.where(np.isnan(cuts), 0, values.size - below) if from_above else below

    side = _side(ranks, above if from_above else values, ends, beyond, (ranked.size, other.size))
    return replace(side, thresholds=np.where(np.isnan(side.thresholds), np.inf, side.thresholds))


def _count_side(
    ranked: IntArray, other: IntArray, thresholds: FloatArray, ratio: int, *, from_above: bool
) -> Ranks:
    """As ``_score_side``, of scores rounded down to their bin: every bin is a group."""
    edges = np.concatenate([[-np.inf], thresholds, [np.inf]])  # bin j is [edges[j], edges[j+1])
    ranks = grid(int(ranked.sum()), ratio)
    if from_above:
        bins = ranked.size - np.searchsorted(np.cumsum(ranked[::-1]), ranks)  # the next one up
    else:
        bins = np.searchsorted(np.cumsum(ranked), ranks)

    def beyond(sample: int, cuts: FloatArray) -> IntArray:
        before = np.append(0, np.cumsum((ranked, other)[sample]))
        below = before[np.searchsorted(edges, cuts)]
        return before[-1] - below if from_above else below

    sizes = int(ranked.sum()), int(other.sum())
    return _side(ranks, edges[bins], thresholds, beyond, sizes)


def extremes(
    values: FloatArray, ranks: IntArray, *, from_above: bool
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return the k-th highest (or lowest) values for rising ranks k, and which are tied.

    A sample tells about where each rank lies: the last one is selected among the few values about
    there, the others among those beyond, each on the last one's top.
    """
    found, tied = [], []
    last, one_of_many = _about(values, int(ranks[-1]), from_above=from_above)
    top = _far_end(values, int(ranks[-2]), from_above=from_above) if ranks.size > 1 else values[:0]
    for rank in ranks[-2::-1]:
        top.partition(top.size - rank)
        top = top[top.size - rank :]
        found.append(top[0])
        tied.append(np.count_nonzero(top == top[0]) > 1)
    ordered = np.array(found[::-1], values.dtype)
    ordered = ordered if from_above else -ordered
    return np.append(ordered, last), np.array([*tied[::-1], one_of_many])


def _about(values: FloatArray, rank: int, *, from_above: bool) -> tuple[Any, bool]:
    """The value of one rank, and whether it has an equal."""
    sample, expected, margin = _sample(values, rank)
    far, near = min(expected + margin, sample.size), max(expected - margin, 1)
    at = (-far, -near) if from_above else (near - 1, far - 1)
    low, high = sample[list(at)]
    beyond = int(np.count_nonzero(values > high if from_above else values < low))
    middle = values[(values >= low) & (values <= high)]
    if not beyond < rank <= beyond + middle.size:  # an odd sample: it costs time, not truth
        beyond, middle = 0, values.copy()
    place = middle.size - (rank - beyond) if from_above else rank - beyond - 1
    middle.partition(place)
    return middle[place], bool(np.count_nonzero(middle == middle[place]) > 1)


def _far_end(values: FloatArray, least: int, *, from_above: bool) -> FloatArray:
    """A copy of at least this many of the highest values, or of the lowest with changed sign."""
    sample, expected, margin = _sample(values, least)
    beyond = min(expected + margin, sample.size)
    part = (
        values[values >= sample[-beyond]] if from_above else -values[values <= sample[beyond - 1]]
    )
    if part.size < least:
        part = values.copy() if from_above else -values
    return np.asarray(part)


def _sample(values: FloatArray, rank: int) -> tuple[FloatArray, int, int]:
    """Some of the values in order, the rank's place among them, and how far off it may be."""
    sample = np.sort(values[:: max(values.size // _SAMPLE, 1)])
    return sample, round(rank / values.size * sample.size), math.ceil(5 * math.sqrt(sample.size))


def _count_below(values: FloatArray, thresholds: FloatArray) -> IntArray:
    counts = np.zeros(thresholds.size, np.int64)
    for start in range(0, values.size, _BLOCK):  # one pass over memory for all thresholds
        block = values[start : start + _BLOCK]
        for i, threshold in enumerate(thresholds):
            counts[i] += np.count_nonzero(block < threshold)
    return counts
