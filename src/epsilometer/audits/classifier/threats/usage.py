"""Estimate which share of a dataset a model was trained on, from weak guesses about records.

If a share p of the records was used, guesses say "in" for p·TPR + (1 − p)·FPR of them. Both rates
are measured on other models, which gives p. Its error is measured on models with known p.
"""

import math
from dataclasses import dataclass

import numpy as np

from epsilometer.audits.classifier.threats.asking import OWN, Asked
from epsilometer.errors import InvalidArgument
from epsilometer.stats.membership import Limited
from epsilometer.types import BoolArray, FloatArray

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # used shares of the datasets on which errors are measured
_PARTS = 3  # a dataset is a third of the records, so that all shares can be drawn
_LEAST = 1e-3  # smallest TPR − FPR from which a share can be estimated


@dataclass(frozen=True)
class UsageError:
    """Error of the estimated use of a dataset.

    Attributes:
        width: Largest error of the estimated share, at the given confidence.
        records: Number of records per test dataset.
        models: Number of models on which they were tested.
    """

    width: float
    records: int
    models: int


def estimate_share(said: BoolArray, tpr: float, fpr: float) -> float:
    """Return the used share that explains how often guesses say "in", not clipped to [0, 1].

    Example:
        >>> round(estimate_share(np.array([True] * 60 + [False] * 40), tpr=0.7, fpr=0.5), 2)
        0.5
    """
    gap = tpr - fpr
    return float((said.mean() - fpr) / gap) if gap > _LEAST else 0.5


def measure_usage(
    asked: Asked, *, confidence: float = 0.95, rng: np.random.Generator
) -> UsageError:
    """Measure the error of the estimated used share, on models whose share is known.

    Guarantee: for a model trained like these, and a dataset drawn like those tested with one of
        ``SHARES`` in use, the estimate is off by at most ``width`` with probability at least
        ``confidence``. With too few models, ``width`` is 1.
    Assumption: the model is exchangeable with these.

    Args:
        asked: Models' answers for unchanged records.
        confidence: Confidence of the width.
        rng: Draws datasets.
    """
    gains = asked.gains(OWN)[:, :, 0]
    models, n = gains.shape
    size = n // _PARTS
    if size < 4:
        raise InvalidArgument(f"Expected at least {4 * _PARTS} records, got {n}.")
    said = gains > 0
    worst = []
    for pair in range(models // 2):
        model = 2 * pair + int(rng.integers(2))  # only one of a pair: the other mirrors it
        tpr, fpr = _find_rates(said, asked.member, pair)
        inside = rng.permutation(np.flatnonzero(asked.member[model]))
        outside = rng.permutation(np.flatnonzero(~asked.member[model]))
        errors = []
        for share in SHARES:
            used = round(share * size)
            if used <= inside.size and size - used <= outside.size:
                rows = np.concatenate([inside[:used], outside[: size - used]])
                found = min(1.0, max(0.0, estimate_share(said[model, rows], tpr, fpr)))
                errors.append(abs(found - used / size))
        worst.append(max(errors))
    rank = math.ceil(confidence * (len(worst) + 1))
    width = 1.0 if rank > len(worst) else float(np.sort(worst)[rank - 1])
    return UsageError(width, size, len(worst))


def find_usage(asked: Asked, log_proba: FloatArray, error: UsageError) -> Limited:
    """Estimate which share of the records a model from elsewhere was trained on.

    Args:
        asked: Answers of models with known members.
        log_proba: ln p of each record's own label under the model, shape ``(records,)``.
        error: Error of estimated shares.
    """
    likely = np.exp(asked.answers[OWN][:, :, 0].astype(np.float64)).mean(axis=0)
    said = log_proba > np.log(likely)
    tpr, fpr = _find_rates(asked.gains(OWN)[:, :, 0] > 0, asked.member, None)
    share = min(1.0, max(0.0, estimate_share(said, tpr, fpr)))
    return Limited(share, max(0.0, share - error.width), min(1.0, share + error.width))


def _find_rates(said: BoolArray, member: BoolArray, pair: int | None) -> tuple[float, float]:
    """Return TPR and FPR over all models except one pair."""
    others = np.ones(len(said), bool)
    if pair is not None:
        others[2 * pair : 2 * pair + 2] = False
    return float(said[others][member[others]].mean()), float(said[others][~member[others]].mean())
