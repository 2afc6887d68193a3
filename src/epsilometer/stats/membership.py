"""Measure how well scores separate members, with limits that hold for any distribution."""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from epsilometer import _validate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import BoolArray, FloatArray

_RESAMPLES = 2000


class Limited(NamedTuple):
    """A measured value with both limits on the truth."""

    value: float
    low: float
    high: float


class RateAt(NamedTuple):
    """True positive rate at a low false positive rate.

    Attributes:
        fpr: The requested false positive rate.
        tpr: True positive rate at the lowest threshold that keeps to it, and its limits.
        fpr_high: Upper limit on the true false positive rate there.
    """

    fpr: float
    tpr: Limited
    fpr_high: float


def tpr_at(scores: Scores, fpr: float, *, confidence: float = DEFAULT_CONFIDENCE) -> Limited:
    """Return the TPR of the best threshold whose true FPR is at most ``fpr``.

    Guarantee: both limits hold together with probability at least ``confidence``. Thresholds
        are at ranks of the outside scores, where the true FPR is Beta distributed for any
        distribution of the scores. Inside scores are counted there afterwards.
    Assumption: scores are independent.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(inside=rng.normal(2, 1, 4000), outside=rng.normal(0, 1, 4000))
        >>> [round(x, 3) for x in tpr_at(scores, 0.01)]  # the truth is 0.372
        [0.38, 0.318, 0.425]
    """
    _validate.open_unit(confidence=confidence, fpr=fpr)
    quarter, n = (1 - confidence) / 4, scores.n_out
    outside = np.sort(scores.outside)[::-1]
    value = float(tradeoff_curve(scores).tpr_at(fpr))
    # Above the k-th highest the true FPR exceeds fpr only where fewer than k of n would.
    strict = int(np.searchsorted(special.bdtr(np.arange(n), n, fpr), quarter, side="right"))
    low = 0.0
    if strict:
        caught = np.sum(scores.inside > outside[strict - 1])
        low = float(clopper_pearson_lower(caught, scores.n_in, alpha=quarter))
    # At or above the k-th highest it falls short of fpr only where k or more of n would; where
    # it does not, only thresholds above that score are left, also where many scores are equal.
    above = special.bdtrc(np.arange(n), n, fpr)  # the chance of more than 0, 1, …
    loose = int(np.searchsorted(-above, -quarter)) + 1
    high = 1.0
    if loose <= n:
        caught = np.sum(scores.inside > outside[loose - 1])
        high = float(clopper_pearson_upper(caught, scores.n_in, alpha=quarter))
    return Limited(value, min(low, value), max(high, value))


def auc(scores: Scores, *, confidence: float = DEFAULT_CONFIDENCE) -> Limited:
    """Return the chance that a score inside exceeds one outside, ties counted half.

    Guarantee: both limits hold together with probability at least ``confidence`` (Hoeffding 1963,
        for means over pairs).
    Assumption: scores are independent.

    Example:
        >>> auc(Scores(inside=[1.0] * 500, outside=[1.0] * 500)).value
        0.5
    """
    _validate.open_unit(confidence=confidence)
    value = tradeoff_curve(scores).auc
    off = _deviation(min(scores.n_in, scores.n_out), (1 - confidence) / 2)
    return Limited(value, max(0.0, value - off), min(1.0, value + off))


def share_above(
    above: int,
    measured: int,
    of: int,
    *,
    screened: tuple[int, int] = (0, 0),
    confidence: float = DEFAULT_CONFIDENCE,
) -> Limited:
    """Return the share of records above a limit, of which ``above`` of ``measured`` are.

    Guarantee: both limits hold together with probability at least ``confidence``; none is needed
        where all were measured.
    Assumption: measured records were drawn at random from those not screened. The limits are those
        of drawing with replacement, which has heavier tails.

    Args:
        above: Number of measured records above the limit.
        measured: Number of measured records.
        of: Number of all records.
        screened: The same two numbers for records chosen by a screen, which ``above`` and
            ``measured`` include: they do not represent other records.
        confidence: Confidence of both limits together.

    Example:
        >>> round(share_above(0, 500, 10_000).high, 4)
        0.0074
        >>> share_above(3, 100, 100)
        Limited(value=0.03, low=0.03, high=0.03)
        >>> round(share_above(90, 500, 10_000, screened=(90, 250)).high, 4)  # none of 250 drawn
        0.0233
    """
    _validate.open_unit(confidence=confidence)
    if measured == of:
        return Limited(above / of, above / of, above / of)
    if screened[1]:
        others = of - screened[1]
        rest = share_above(
            above - screened[0], measured - screened[1], others, confidence=confidence
        )
        return Limited(*((screened[0] + share * others) / of for share in rest))
    share = limit_share(above, measured, alpha=(1 - confidence) / 2)
    # Those seen are there, and those seen to be below are below.
    return Limited(
        share.value, max(share.low, above / of), min(share.high, 1 - (measured - above) / of)
    )


def count_unseen(sampled: int, of: int, *, confidence: float = DEFAULT_CONFIDENCE) -> int:
    r"""Return how many records may have a larger value than the largest of a sample.

    A sample of s of n records without replacement misses the k largest with probability
    :math:`\binom{n-k}{s} / \binom{n}{s}`; the answer is the largest k for which that is still
    above 1 − confidence.

    Guarantee: with probability ``confidence`` at most this many have a larger value, for any
        values.
    Assumption: the sample was drawn uniformly, independently of the values.

    Example:
        >>> count_unseen(500, 1_000_000)
        5972
        >>> count_unseen(1_000, 1_000)
        0
    """
    _validate.whole(1, sampled=sampled)
    _validate.whole(sampled, of=of)
    _validate.open_unit(confidence=confidence)
    left = of - np.arange(sampled)  # records still there at each draw

    def missed(largest: int) -> float:
        return float(np.exp(np.log1p(-largest / left).sum())) if largest <= of - sampled else 0.0

    low, high = 0, of - sampled + 1  # missed at low, not at high
    while high - low > 1:
        middle = (low + high) // 2
        if missed(middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def limit_share(successes: int, trials: int, *, alpha: float) -> Limited:
    """Return a share with Clopper–Pearson limits, each wrong with probability ``alpha``."""
    low = float(clopper_pearson_lower(successes, trials, alpha=alpha))
    high = float(clopper_pearson_upper(successes, trials, alpha=alpha))
    return Limited(successes / trials, low, high)


def rate_at(scores: Scores, fpr: float, *, confidence: float = DEFAULT_CONFIDENCE) -> RateAt:
    """Return the TPR at a low FPR of the sample, and how large the true FPR may be there.

    The threshold is placed by outside scores only, so it is independent of those inside.
    """
    half = (1 - confidence) / 2
    allowed = math.floor(fpr * scores.n_out * (1 + 1e-12))  # 0.01 · 100 may fall below 1
    rank = scores.n_out - 1 - allowed
    barrier = np.partition(scores.outside, rank)[rank]
    hits, alarms = int((scores.inside > barrier).sum()), int((scores.outside > barrier).sum())
    high = limit_share(alarms, scores.n_out, alpha=half).high
    return RateAt(fpr, limit_share(hits, scores.n_in, alpha=half), high)


def approximate_auc(scores: Scores, *, confidence: float = DEFAULT_CONFIDENCE) -> Limited:
    """Return the AUC with DeLong's limits, an approximation for many scores.

    The standard error is at least that of half a pair of records.
    """

    def place(others: FloatArray, values: FloatArray) -> FloatArray:
        """Return the share of the others below each value, equal ones counted half."""
        ordered = np.sort(others)
        ranks = [np.searchsorted(ordered, values, side=side) for side in ("left", "right")]
        return np.asarray((ranks[0] + ranks[1]) / (2 * ordered.size))

    beaten, beating = place(scores.outside, scores.inside), place(scores.inside, scores.outside)
    variance = beaten.var() / max(scores.n_in - 1, 1) + beating.var() / max(scores.n_out - 1, 1)
    error = max(math.sqrt(float(variance)), 0.5 / min(scores.n_in, scores.n_out))
    half = -float(special.ndtri((1 - confidence) / 2)) * error
    value = tradeoff_curve(scores).auc
    return Limited(value, max(value - half, 0.0), min(value + half, 1.0))


def predict_next(values: FloatArray, *, alpha: float, resolution: float) -> tuple[float, float]:
    """Return limits for a further normal value (Student), each wrong with ``alpha``."""
    n = values.size
    spread = math.hypot(float(values.std(ddof=1)), resolution) * math.sqrt(1 + 1 / n)
    half = -float(special.stdtrit(n - 1, alpha)) * spread
    return float(values.mean()) - half, float(values.mean()) + half


def rank_sum_pvalue(inside: FloatArray, outside: FloatArray, *, continuity: float = 0.0) -> float:
    """Return the one-sided p-value of the rank sum test: are inside values the larger ones?

    Mann and Whitney 1947, by the normal approximation with its variance corrected for ties.

    Args:
        inside: Values said to be larger.
        outside: The others.
        continuity: Subtracted from the statistic, which moves in steps of ½ or 1.

    Example:
        >>> rank_sum_pvalue(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
        0.5
    """
    n_in, n_out = inside.size, outside.size
    n = n_in + n_out
    statistic = (tradeoff_curve(Scores(inside, outside)).auc - 0.5) * n_in * n_out
    _, ties = np.unique(np.concatenate([inside, outside]), return_counts=True)
    t = ties.astype(np.float64)
    variance = n_in * n_out / 12 * (n + 1 - float((t**3 - t).sum()) / (n * (n - 1)))
    if variance <= 0:  # all values are equal
        return 1.0
    return float(special.ndtr(-(statistic - continuity) / math.sqrt(variance)))


def sign_test_pvalue(only_first: int, only_second: int) -> float:
    """Return the chance of so many or more of the first kind, if both kinds were as likely.

    Example:
        >>> sign_test_pvalue(3, 0)
        0.125
    """
    return float(special.bdtrc(only_first - 1, only_first + only_second, 0.5))


def _deviation(n: int, alpha: float) -> float:
    """Return how far a mean of n values in [0, 1], or an empirical distribution, exceeds the truth.

    With probability at most ``alpha``, one-sided; for distributions where α ≤ 1/2.
    """
    return math.sqrt(math.log(1 / alpha) / (2 * n))


def advantage_difference(
    first: tuple[BoolArray, BoolArray],
    second: tuple[BoolArray, BoolArray],
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    rng: np.random.Generator,
) -> Limited:
    """Return how much one attack's advantage exceeds another's, on the same runs.

    The interval is a bootstrap's over runs, resampled with the record and without it apart. What
    two attacks get right or wrong together cancels out.

    Assumption: decisions of one run have the same index in both; there are at least some tens.

    Args:
        first: Decisions "in" of runs with the record, and of runs without it.
        second: The other attack's.
        confidence: Confidence of both ends together.
        rng: Generator for resampling.

    Example:
        >>> right, wrong = np.ones(50, bool), np.zeros(50, bool)
        >>> rng = np.random.default_rng(0)
        >>> advantage_difference((right, wrong), (wrong, wrong), rng=rng)
        Limited(value=1.0, low=1.0, high=1.0)
    """
    _validate.open_unit(confidence=confidence)
    gaps = []
    for mine, other in zip(first, second, strict=True):
        if np.shape(mine) != np.shape(other) or np.ndim(mine) != 1 or not len(mine):
            raise InvalidArgument(
                f"Expected decisions on the same runs, got {np.shape(mine)} and {np.shape(other)}."
            )
        gaps.append(np.subtract(mine, other, dtype=np.float64))
    value = gaps[0].mean() - gaps[1].mean()
    drawn = [gap[rng.integers(gap.size, size=(_RESAMPLES, gap.size))].mean(1) for gap in gaps]
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn[0] - drawn[1], [tail, 1 - tail])
    return Limited(float(value), float(min(low, value)), float(max(high, value)))
