"""What decisions show that were fixed before the runs they are made on: in, or not, of each run."""

import math

import numpy as np

from epsilometer import _validate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.membership import Limited
from epsilometer.types import BoolArray

_RESAMPLES = 2000


def advantage_at(
    scores: Scores, threshold: float, *, confidence: float = DEFAULT_CONFIDENCE
) -> Limited:
    """TPR − FPR of the rule "in iff score ≥ threshold".

    Guarantees: both limits hold together with probability at least ``confidence`` (Hoeffding 1963,
        for a sum over both samples).
    Assumes: scores are independent, and the threshold was fixed without them.

    Example:
        >>> scores = Scores(inside=[1.0] * 80 + [0.0] * 20, outside=[1.0] * 30 + [0.0] * 70)
        >>> [round(x, 3) for x in advantage_at(scores, 0.5)]
        [0.5, 0.308, 0.692]
    """
    _validate.open_unit(confidence=confidence)
    alarms, missed = scores.errors_at(threshold)
    value = 1 - missed / scores.n_in - alarms / scores.n_out
    spread = 1 / scores.n_in + 1 / scores.n_out
    off = math.sqrt(math.log(2 / (1 - confidence)) * spread / 2)
    return Limited(value, max(-1.0, value - off), min(1.0, value + off))


def scores_needed(width: float, *, confidence: float = DEFAULT_CONFIDENCE) -> int:
    """Scores of either side with which :func:`advantage_at` errs by at most ``width``.

    Example:
        >>> scores_needed(0.1)
        369
    """
    _validate.positive(width=width)
    _validate.open_unit(confidence=confidence)
    return math.ceil(math.log(2 / (1 - confidence)) / width**2)


def advantage_difference(
    first: tuple[BoolArray, BoolArray],
    second: tuple[BoolArray, BoolArray],
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    rng: np.random.Generator,
) -> Limited:
    """By how much one attack's advantage exceeds another's, on the very same runs.

    The interval is a bootstrap's over runs, of either world apart; what two attacks get right or
    wrong together cancels out.

    Assumes: decisions of one run stand at the same place in both; runs are many: some tens.

    Args:
        first: Decisions "in" of runs with the record, and of runs without it.
        second: The other attack's.
        confidence: Of both ends together.
        rng: What resamples.

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
