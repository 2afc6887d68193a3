"""How well scores tell who was in, with limits that hold whatever the law of the scores."""

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from epsilometer import _validate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.core.scores import Scores
from epsilometer.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from epsilometer.stats.tradeoff import tradeoff_curve


class Limited(NamedTuple):
    """What was measured, and both limits on the truth."""

    value: float
    low: float
    high: float


def advantage(scores: Scores, *, confidence: float = DEFAULT_CONFIDENCE) -> Limited:
    """The largest TPR − FPR of any threshold.

    Guarantees: both limits hold together with probability at least ``confidence``, though the
        threshold was chosen on the same scores: the error of an empirical distribution is limited
        at all thresholds at once (Massart 1990), for each of the two samples.
    Assumes: scores are independent.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(inside=rng.normal(1, 1, 4000), outside=rng.normal(0, 1, 4000))
        >>> [round(x, 3) for x in advantage(scores)]  # the truth is 0.383
        [0.365, 0.318, 0.411]
    """
    _validate.open_unit(confidence=confidence)
    curve = tradeoff_curve(scores)
    value = float(np.max(1 - curve.fnr - curve.fpr))
    off = sum(_deviation(n, (1 - confidence) / 4) for n in (scores.n_in, scores.n_out))
    return Limited(value, max(0.0, value - off), min(1.0, value + off))


def tpr_at(scores: Scores, fpr: float, *, confidence: float = DEFAULT_CONFIDENCE) -> Limited:
    """Share of those inside that the best threshold catches whose true FPR is at most ``fpr``.

    Guarantees: both limits hold together with probability at least ``confidence``. Thresholds
        stand at ranks of the outside scores, where the true FPR is Beta distributed, whatever the
        law of the scores; inside scores are counted there afterwards.
    Assumes: scores are independent.

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
    """Chance that a score inside exceeds one outside, ties counted half.

    Guarantees: both limits hold together with probability at least ``confidence`` (Hoeffding 1963,
        for means over pairs).
    Assumes: scores are independent.

    Example:
        >>> auc(Scores(inside=[1.0] * 500, outside=[1.0] * 500)).value
        0.5
    """
    _validate.open_unit(confidence=confidence)
    value = tradeoff_curve(scores).auc
    off = _deviation(min(scores.n_in, scores.n_out), (1 - confidence) / 2)
    return Limited(value, max(0.0, value - off), min(1.0, value + off))


def share_above(
    above: int, measured: int, of: int, *, confidence: float = DEFAULT_CONFIDENCE
) -> Limited:
    """Share of all ``of`` records above a line, of which ``above`` of ``measured`` are.

    Guarantees: both limits hold together with probability at least ``confidence``; none is needed
        where all were measured.
    Assumes: which were measured was drawn by chance. The limits are those of drawing with
        replacement, whose tails are the heavier ones.

    Example:
        >>> round(share_above(0, 500, 10_000).high, 4)
        0.0074
        >>> share_above(3, 100, 100)
        Limited(value=0.03, low=0.03, high=0.03)
    """
    _validate.open_unit(confidence=confidence)
    if measured == of:
        return Limited(above / of, above / of, above / of)
    half = (1 - confidence) / 2
    low = float(clopper_pearson_lower(above, measured, alpha=half))
    high = float(clopper_pearson_upper(above, measured, alpha=half))
    # Those seen are there, and those seen to be below are below.
    return Limited(above / measured, max(low, above / of), min(high, 1 - (measured - above) / of))


def _deviation(n: int, alpha: float) -> float:
    """By how much a mean over n values in [0, 1], or an empirical distribution, exceeds the truth.

    With probability at most ``alpha``, one-sided; for distributions where α ≤ 1/2.
    """
    return math.sqrt(math.log(1 / alpha) / (2 * n))
