"""Measure how much the shown predictions of a pool's models reveal about their records."""

import numpy as np

from epsilometer.audits.classifier.attacks.shadows import ShadowPool, show_logs
from epsilometer.audits.classifier.leave_one_out.pdtp import SHOWN, predict_class
from epsilometer.core.scores import Scores
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import FloatArray


def measure_held_out(pool: ShadowPool) -> float:
    """Return the accuracy of all models on records they were not trained on, as shown."""
    right = np.stack([predict_class(each) == pool.labels for each in pool.log_proba])
    return float(right[~pool.member].mean())


def measure_shown(pool: ShadowPool) -> FloatArray:
    """Return TPR − FPR of a threshold on the own class's shown probability, for ``SHOWN``.

    This is the simplest attack, with the best threshold over all models of the pool. So these
    numbers may be compared with each other, not with a limit.
    """
    advantages = []
    for decimals in SHOWN:
        values = []
        for each in pool.log_proba:
            log_proba = each.astype(np.float64)
            values.append(show_logs(log_proba, decimals)[np.arange(pool.records), pool.labels])
        scores = np.stack(values)
        curve = tradeoff_curve(Scores(scores[pool.member], scores[~pool.member]))
        advantages.append(float(np.max(1 - curve.fnr - curve.fpr)))
    return np.array(advantages)
