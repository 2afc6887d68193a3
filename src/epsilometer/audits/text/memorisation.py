"""Measure memorisation of planted texts: exact and near extraction, and exposure."""

from collections.abc import Sequence

import numpy as np
import scipy.stats

from epsilometer.audits.text.canaries import Canary
from epsilometer.audits.text.measuring import NEAR, Measured, compare_texts
from epsilometer.core.memorisation import MemorisationFinding
from epsilometer.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from epsilometer.types import BoolArray, FloatArray


def measure_memorisation(
    measured: Measured,
    canaries: Sequence[Canary],
    included: BoolArray,
    *,
    scores: FloatArray | None,
    confidence: float,
    named: str,
) -> MemorisationFinding | None:
    """Return the memorisation finding of a model; None if it completes no prompts.

    Guarantees: each interval covers the value for the canaries' distribution with probability
        ``confidence``. Held-out canaries show how much is guessed.

    Args:
        measured: The model's predictions of the canaries.
        canaries: Planted or not.
        included: Which are planted.
        scores: Scores by which held-out canaries are ranked; None if only text is known.
        confidence: Two-sided confidence.
        named: Description of the canaries.
    """
    if not measured.completions or not included.any():
        return None
    close = compare_texts([canary.secret for canary in canaries], measured.completions)
    planted, held = int(included.sum()), int((~included).sum())
    exact = _limit_share(int((close[included] == 1).sum()), planted, confidence)
    near = _limit_share(int((close[included] >= NEAR).sum()), planted, confidence)
    exposure = None
    if scores is not None and held:
        values = compute_exposure(scores[included], scores[~included])
        exposure = _limit_median(values, confidence, most=float(np.log2(held + 1)))
    middle, low, high = exposure or (None, None, None)
    return MemorisationFinding(
        canaries=named,
        planted=planted,
        held_out=held,
        exact=exact[0],
        exact_low=exact[1],
        exact_high=exact[2],
        near=near[0],
        near_low=near[1],
        near_high=near[2],
        near_held_out=float((close[~included] >= NEAR).mean()) if held else 0.0,
        similarity=NEAR,
        exposure=middle,
        exposure_low=low,
        exposure_high=high,
        most_exposure=float(np.log2(held + 1)),
        confidence=confidence,
    )


def compute_exposure(inside: FloatArray, outside: FloatArray) -> FloatArray:
    """Return log₂(n + 1) − log₂(rank) of each planted score among n held-out ones, in bits.

    Rank 1 is above all held-out scores; equal ones count against the planted score.

    Example:
        >>> compute_exposure(np.array([5.0, 0.5]), np.array([0.0, 1.0, 2.0])).round(3)
        array([2.   , 0.415])
    """
    ordered = np.sort(outside)
    rank = 1 + outside.size - np.searchsorted(ordered, inside, side="left")
    return np.asarray(np.log2(outside.size + 1) - np.log2(rank))


def _limit_share(successes: int, trials: int, confidence: float) -> tuple[float, float, float]:
    alpha = (1 - confidence) / 2
    low = float(clopper_pearson_lower(successes, trials, alpha=alpha))
    high = float(clopper_pearson_upper(successes, trials, alpha=alpha))
    return successes / trials, low, high


def _limit_median(
    values: FloatArray, confidence: float, *, most: float
) -> tuple[float, float, float]:
    """Return the median, with order statistics as its limits (an inverted sign test)."""
    ordered = np.sort(values)
    place = int(scipy.stats.binom.ppf((1 - confidence) / 2, ordered.size, 0.5))
    below = max(place - 1, 0)
    middle = float(np.median(ordered))
    if place < 1:  # too few for a limit within the observed range
        return middle, 0.0, most
    return middle, float(ordered[below]), float(ordered[ordered.size - 1 - below])
