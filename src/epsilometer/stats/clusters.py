"""Limit what attacks achieve over records, where one record has several scores.

Models that were attacked on the same records do not make more records. What is independent is a
record with all its scores, so every limit here is one on a mean over records: of the share of a
record's models that catch it, in [0, 1], or of a difference of two shares.

For independent x in [0, 1] of mean μ and any u ≥ 0, the mean of ∏(1 + u·x) is (1 + u·μ)ⁿ. By Markov
it exceeds (1 + u·μ)ⁿ/α with probability α at most, so μ is at least

    (exp((Σ ln(1 + u·x) − ln(1/α))/n) − 1)/u.

With the best u that is Chernoff's limit where x is 0 or 1, and narrower where x varies less. The
records are taken in random order. U of each stretch is learned from the stretches before it, which
leaves the argument as it is (Waudby-Smith & Ramdas 2024).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import membership
from epsilometer.stats.membership import Limited
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import BoolArray, FloatArray, IntArray

_LEARNED_FROM = 10  # one record of this many places thresholds; no limit counts it
_PLACES = 128  # thresholds at scores inside, and as many at those outside
_MOST_SCORES = 64  # of one side in a group of independent scores
_STEPS = 50  # of bisection
_BET_STEPS = 20  # which find a bet to 0.01 %
_LEAST_BET, _LARGEST_BET = 1e-9, 1e9
_AT_ONCE = 1 << 12  # records whose counts are held in memory


@dataclass(frozen=True, eq=False)
class ScoresByRecord:
    """Attack scores of records, each asked of several models; higher means "was in".

    Attributes:
        inside: Scores from models trained on the record, shape ``(records, models)``.
        outside: Scores from models not trained on it, shape ``(records, models)``.

    Example:
        >>> values, member = [[3.0, 1.0], [0.0, 2.0]], [[True, False], [False, True]]
        >>> ScoresByRecord.from_models(values, member).inside  # two models, two records
        array([[3.],
               [2.]])
    """

    inside: FloatArray
    outside: FloatArray

    @classmethod
    def from_models(cls, values: ArrayLike, member: ArrayLike) -> "ScoresByRecord":
        """Sort scores by membership.

        Args:
            values: Scores, shape ``(models, records)``.
            member: Whether each record was in each model, of the same shape.
        """
        scores, was_in = np.asarray(values, np.float64).T, np.asarray(member, bool).T
        counts = np.unique(was_in.sum(axis=1))
        if counts.size != 1 or not 0 < counts[0] < was_in.shape[1]:
            raise InvalidArgument(
                "Expected every record in the same number of models, and out of some, got records "
                f"in {counts.min()} to {counts.max()} of {was_in.shape[1]} models. "
                "Take both models of every pair."
            )
        sides = (scores[side].reshape(len(scores), -1) for side in (was_in, ~was_in))
        return cls(*sides)

    @classmethod
    def from_scores(cls, scores: Scores) -> "ScoresByRecord":
        """Group independent scores at random: one of the fewer side, some of the other."""
        groups = min(scores.n_in, scores.n_out)
        rng = np.random.default_rng(0)
        sides = []
        for values in (scores.inside, scores.outside):
            each = min(values.size // groups, _MOST_SCORES)
            sides.append(rng.permutation(values)[: groups * each].reshape(groups, each))
        return cls(*sides)

    @property
    def pooled(self) -> Scores:
        """The scores of all records."""
        return Scores(inside=self.inside.ravel(), outside=self.outside.ravel())

    @property
    def steps(self) -> int:
        """Steps from 0 to 1 that a difference of two shares can take."""
        return math.lcm(self.inside.shape[1], self.outside.shape[1])

    def take(self, records: IntArray) -> "ScoresByRecord":
        """Return some of the records."""
        return ScoresByRecord(self.inside[records], self.outside[records])


Observed: TypeAlias = Scores | ScoresByRecord
_Count: TypeAlias = Callable[[ScoresByRecord], IntArray]  # → (records, thresholds)


def pool(observed: Observed) -> Scores:
    """Return all scores of all records."""
    return observed if isinstance(observed, Scores) else observed.pooled


def advantage(observed: Observed, *, confidence: float = DEFAULT_CONFIDENCE) -> Limited:
    """Return the largest TPR − FPR of any threshold.

    A tenth of the records places thresholds, the others are counted. The lower limit is that of
    the threshold which was best on the tenth. Between two thresholds the difference is at most the
    TPR of the lower minus the FPR of the upper. The largest upper limit of these holds without
    sharing the error out: the true optimum lies between two of them, and theirs is enough.

    Guarantee: both limits hold together with probability at least ``confidence``.
    Assumption: records, with all their scores, are independent and drawn from one population.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(inside=rng.normal(1, 1, 4000), outside=rng.normal(0, 1, 4000))
        >>> [round(x, 3) for x in advantage(scores)]  # the truth is 0.383
        [0.365, 0.333, 0.406]
    """
    _validate.open_unit(confidence=confidence)
    value, _ = _find_best(pool(observed))
    grouped = _group(observed)
    parts = _split(len(grouped.inside))
    taught = grouped.take(parts[0]).pooled
    grid, (_, best) = _place(taught), _find_best(taught)
    alpha = (1 - confidence) / 2

    def count(some: ScoresByRecord) -> IntArray:
        """Count above each threshold, less those from the next one on; at the ends all, none."""
        above = _count(some.inside, grid, strict=True)
        kept = _count(some.outside, grid, strict=False)
        return _subtract(
            some,
            np.pad(above, ((0, 0), (1, 0)), constant_values=some.inside.shape[1]),
            np.pad(kept, ((0, 0), (0, 1))),
        )

    above = _limit_from_above(_tabulate(grouped, parts, count, 2 * grouped.steps), alpha=alpha)
    below = _limit_from_below(
        _tabulate(grouped, parts, _make_gap(best), 2 * grouped.steps), alpha=alpha
    )
    low, high = 2 * float(below[0]) - 1, 2 * float(above.max()) - 1
    return Limited(value, min(max(0.0, low), value), max(high, value))


def advantage_at(
    observed: Observed, threshold: float, *, confidence: float = DEFAULT_CONFIDENCE
) -> Limited:
    """Return TPR − FPR of the rule "in iff score ≥ threshold".

    Guarantee: both limits hold together with probability at least ``confidence``.
    Assumption: records, with all their scores, are independent and drawn from one population; the
        threshold was fixed without them.

    Example:
        >>> scores = Scores(inside=[1.0] * 80 + [0.0] * 20, outside=[1.0] * 30 + [0.0] * 70)
        >>> [round(x, 3) for x in advantage_at(scores, 0.5)]
        [0.5, 0.298, 0.664]
    """
    _validate.open_unit(confidence=confidence)
    scores, grouped = pool(observed), _group(observed)
    value = float((scores.inside >= threshold).mean() - (scores.outside >= threshold).mean())
    nobody = np.arange(0)  # nothing need be learned
    parts = [nobody, *_split(len(grouped.inside))]
    tables = _tabulate(grouped, parts, _make_gap(threshold), 2 * grouped.steps)
    low, high = (2 * limit - 1 for limit in _limit_share(tables, alpha=(1 - confidence) / 2))
    return Limited(value, min(low, value), max(high, value))


def tpr_at(observed: Observed, fpr: float, *, confidence: float = DEFAULT_CONFIDENCE) -> Limited:
    """Return the TPR of the best threshold whose true FPR is at most ``fpr``.

    Of independent scores that is :func:`membership.tpr_at`. Otherwise a tenth of the records places
    thresholds. From above they are tried while their FPR is surely at most ``fpr``, from
    below while it surely exceeds it. Where that ends depends on the same records as the TPR there.
    So the lower limit is the smallest of this threshold and of all below it: the lowest threshold
    that truly keeps to ``fpr`` is among them. The upper limit likewise.

    Guarantee: both limits hold together with probability at least ``confidence``.
    Assumption: records, with all their scores, are independent and drawn from one population.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = ScoresByRecord(rng.normal(2, 1, (2000, 8)), rng.normal(0, 1, (2000, 8)))
        >>> [round(x, 3) for x in tpr_at(scores, 0.01)]  # the truth is 0.372
        [0.368, 0.298, 0.419]
    """
    if isinstance(observed, Scores):
        return membership.tpr_at(observed, fpr, confidence=confidence)
    _validate.open_unit(confidence=confidence, fpr=fpr)
    value = float(tradeoff_curve(observed.pooled).tpr_at(fpr))
    parts = _split(len(observed.inside))
    grid = _place(observed.take(parts[0]).pooled)
    alpha = (1 - confidence) / 4

    def tabulate(side: str, *, strict: bool) -> list[IntArray]:
        models = getattr(observed, side).shape[1]
        return _tabulate(
            observed, parts, lambda some: _count(getattr(some, side), grid, strict=strict), models
        )

    caught = tabulate("inside", strict=True)
    most = _limit_from_above(tabulate("outside", strict=True), alpha=alpha)
    least = _limit_from_below(tabulate("outside", strict=False), alpha=alpha)
    within, beyond = np.append(False, most <= fpr), np.append(least > fpr, False)
    first = int(grid.size - np.argmin(within[::-1]))  # and all above it keep to the FPR
    last = int(np.argmin(beyond)) - 1  # and all below it exceed it
    low, high = 0.0, 1.0
    if first < grid.size:
        low = float(_limit_from_below([t[: first + 1] for t in caught], alpha=alpha).min())
    if last >= 0:
        high = float(_limit_from_above([t[last:] for t in caught], alpha=alpha).max())
    return Limited(value, min(low, value), max(high, value))


def auc(observed: Observed, *, confidence: float = DEFAULT_CONFIDENCE) -> Limited:
    """Return the chance that a score inside exceeds one outside of another record, ties half.

    Records are paired at random: each pair has its share of comparisons won, in [0, 1].

    Guarantee: both limits hold together with probability at least ``confidence``.
    Assumption: records, with all their scores, are independent and drawn from one population.

    Example:
        >>> auc(ScoresByRecord(np.ones((500, 2)), np.ones((500, 2)))).value
        0.5
    """
    if isinstance(observed, Scores):
        return membership.auc(observed, confidence=confidence)
    _validate.open_unit(confidence=confidence)
    value = tradeoff_curve(observed.pooled).auc
    pairs = np.random.default_rng(1).permutation(len(observed.inside) // 2 * 2).reshape(-1, 2)
    most = 4 * observed.inside.shape[1] * observed.outside.shape[1]
    tables = [np.zeros((1, most + 1), np.int64)]
    for part in _split(len(pairs)):
        won = [_count_won(observed, pairs[records]) for records in _chunk(part)]
        tables.append(np.bincount(np.concatenate(won), minlength=most + 1)[None])
    low, high = _limit_share(tables, alpha=(1 - confidence) / 2)
    return Limited(value, min(low, value), max(high, value))


def extrapolate(limits: Sequence[Limited]) -> Limited:
    """Return the advantage at twice the size, from those at three sizes, each twice the last.

    The least-squares line through the logarithms; its ends put every size at its own end.

    Guarantee: limits hold where those of all three sizes do.
    Assumption: the advantage is a power of the number of records, and does not grow with it.

    Example:
        >>> sizes = [Limited(value, value - 0.01, value + 0.01) for value in (0.2, 0.14, 0.1)]
        >>> [round(x, 3) for x in extrapolate(sizes)]
        [0.07, 0.058, 0.085]
    """
    small, middle, large = limits

    def follow(first: float, second: float, third: float) -> float:
        if third <= 0 or second <= 0:
            return 0.0
        ratio = (third**4 * second) / first**2 if first > 0 else math.inf
        return min(math.cbrt(ratio), third)

    low = follow(small.high, middle.low, large.low)
    high = follow(small.low, middle.high, large.high)
    return Limited(min(max(follow(small.value, middle.value, large.value), low), high), low, high)


def scores_needed(width: float, *, confidence: float = DEFAULT_CONFIDENCE) -> int:
    """Return the scores per side with which :func:`advantage_at` errs by about ``width`` at most.

    Example:
        >>> scores_needed(0.1)
        369
    """
    _validate.positive(width=width)
    _validate.open_unit(confidence=confidence)
    return math.ceil(math.log(2 / (1 - confidence)) / width**2)


def _group(observed: Observed) -> ScoresByRecord:
    if isinstance(observed, Scores):
        return ScoresByRecord.from_scores(observed)
    return observed


def _split(n: int) -> list[IntArray]:
    """Return records in random order, in stretches: a tenth, and each as many as all before it."""
    order = np.random.default_rng(0).permutation(n)
    ends = [max(n // _LEARNED_FROM, 1)]
    while 2 * ends[-1] < n:
        ends.append(2 * ends[-1])
    return np.split(order, ends)


def _find_best(scores: Scores) -> tuple[float, float]:
    """Return the largest TPR − FPR of these scores, and its threshold."""
    curve = tradeoff_curve(scores)
    gaps = 1 - curve.fnr - curve.fpr
    best = int(np.argmax(gaps))
    return float(gaps[best]), float(curve.thresholds[best])


def _place(scores: Scores) -> FloatArray:
    """Return thresholds in rising order: at even ranks of both sides, denser at low FPR."""
    inside, outside = np.sort(scores.inside), np.sort(scores.outside)
    even = [
        side[np.linspace(0, side.size - 1, _PLACES).astype(np.int64)] for side in (inside, outside)
    ]
    ranks = np.geomspace(1, outside.size, _PLACES // 2).astype(np.int64)
    return np.unique(np.concatenate([*even, outside[outside.size - ranks]]))


def _count(values: FloatArray, thresholds: FloatArray, *, strict: bool) -> IntArray:
    """Count each record's scores above each threshold, or at and above it."""
    place = np.searchsorted(thresholds, values, side="left" if strict else "right")
    width = thresholds.size + 1
    rows = np.arange(len(values))[:, None] * width
    counts = np.bincount((rows + place).ravel(), minlength=len(values) * width)
    table = counts.reshape(len(values), width)[:, :0:-1]  # from the highest threshold on
    return np.asarray(table.cumsum(axis=1)[:, ::-1])


def _subtract(some: ScoresByRecord, inside: IntArray, outside: IntArray) -> IntArray:
    """Return differences of shares in steps, moved so that −1 is 0 and 1 is twice the steps."""
    steps = some.steps
    ahead = inside * (steps // some.inside.shape[1]) - outside * (steps // some.outside.shape[1])
    return np.asarray(ahead + steps)


def _make_gap(threshold: float) -> _Count:
    at = np.array([threshold])
    return lambda some: _subtract(
        some,
        _count(some.inside, at, strict=False),
        _count(some.outside, at, strict=False),
    )


def _tabulate(
    grouped: ScoresByRecord, parts: Sequence[IntArray], count: _Count, most: int
) -> list[IntArray]:
    """Return how many records of each part have each count, shape ``(thresholds, most + 1)``."""
    tables = []
    for part in parts:
        table: IntArray | int = 0
        for records in _chunk(part):
            counts = count(grouped.take(records))
            width = counts.shape[1]
            flat = (counts + np.arange(width) * (most + 1)).ravel()
            table = table + np.bincount(flat, minlength=width * (most + 1)).reshape(width, -1)
        tables.append(np.asarray(table))
    return tables


def _chunk(part: IntArray) -> list[IntArray]:
    return np.array_split(part, part.size // _AT_ONCE + 1)


def _count_won(scores: ScoresByRecord, pairs: IntArray) -> IntArray:
    """Count in halves how often either record of a pair, inside, exceeds the other, outside."""
    won = np.zeros(len(pairs), np.int64)
    for first, second in (pairs.T, pairs.T[::-1]):
        inside, outside = scores.inside[first, :, None], scores.outside[second, None, :]
        won += (inside > outside).sum((1, 2)) + (inside >= outside).sum((1, 2))
    return won


def _limit_share(tables: Sequence[IntArray], *, alpha: float) -> tuple[float, float]:
    """Return both limits on a mean share at one threshold, each wrong with ``alpha``."""
    limits = _limit_from_below(tables, alpha=alpha), _limit_from_above(tables, alpha=alpha)
    return float(limits[0][0]), float(limits[1][0])


def _limit_from_above(tables: Sequence[IntArray], *, alpha: float) -> FloatArray:
    return 1 - _limit_from_below([table[:, ::-1] for table in tables], alpha=alpha)


def _limit_from_below(tables: Sequence[IntArray], *, alpha: float) -> FloatArray:
    """Solve Σ n·ln(1 + u·μ) = Σ ln(1 + u·x) − ln(1/α) for μ, over stretches of n records.

    The first table is only learned from.
    """
    shares = np.linspace(0.0, 1.0, tables[0].shape[1])
    total = sum(int(table[0].sum()) for table in tables[1:])
    gained = np.full(len(tables[0]), math.log(alpha))
    past, bets = tables[0], []
    for table in tables[1:]:
        bet = _choose_bet(past, shares, growth=-math.log(alpha) / max(total, 1))
        gained += (table * np.log1p(bet[:, None] * shares)).sum(axis=1)
        bets.append((int(table[0].sum()), bet))
        past = past + table

    def is_below(mean: FloatArray) -> BoolArray:
        return np.asarray(sum(n * np.log1p(bet * mean) for n, bet in bets) <= gained)

    low, high = np.zeros(gained.size), np.ones(gained.size)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        below = is_below(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def _choose_bet(past: IntArray, shares: FloatArray, *, growth: float) -> FloatArray:
    """Return u with which records like those seen so far would give the largest limit.

    The best u for a mean m makes the mean of (x − m)/(1 + u·x) vanish, which gives m by u; the
    limit is where ln(1 + u·x) exceeds ln(1 + u·m) by ``growth`` on average. Half a record is added
    to those seen, as often 0 as 1.
    """
    weights = past.astype(np.float64)
    weights[:, [0, -1]] += 0.25
    weights /= weights.sum(axis=1, keepdims=True)
    low, high = np.full(len(past), _LEAST_BET), np.full(len(past), _LARGEST_BET)
    for _ in range(_BET_STEPS):
        bet = np.sqrt(low * high)
        wealth = 1 + bet[:, None] * shares
        mean = (weights * shares / wealth).sum(axis=1) / (weights / wealth).sum(axis=1)
        grown = (weights * np.log(wealth)).sum(axis=1) - np.log1p(bet * mean)
        low, high = np.where(grown < growth, bet, low), np.where(grown < growth, high, bet)
    return low
