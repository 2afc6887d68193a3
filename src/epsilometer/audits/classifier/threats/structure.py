"""Count records that a model singles out by its structure: shown answers that few others share."""

from dataclasses import dataclass

import numpy as np

from epsilometer.audits.classifier.attacks.shadows import show_logs
from epsilometer.types import BoolArray, FloatArray, IntArray

SMALLEST = 5  # records that share an answer, below which each of them is singled out
_STEPS = 0.5  # share of records with a shared answer from which answers come in steps
_DIGITS = 12  # digits by which answers are compared: later ones depend on the order of sums


@dataclass(frozen=True, eq=False)
class Structure:
    """Records that are singled out by answers that few share.

    Attributes:
        in_steps: Whether answers come in steps, as those of trees do; if not, a unique answer
            means nothing.
        singled_out: Which records have an answer that fewer than ``SMALLEST`` records share.
    """

    in_steps: bool
    singled_out: BoolArray


def measure_structure(
    log_proba: FloatArray, unseen: FloatArray, *, decimals: int | None
) -> Structure:
    """Find the records whose shown answer few others share.

    Answers come in steps if at least half of the records that a model was not trained on share
    their answer with another. A linear model gives everyone a different answer, member or not, so
    its answers single out no one.

    Args:
        log_proba: ln p of the model trained on all records, shape ``(records, classes)``.
        unseen: ln p of a model that was trained on some of them, at the others.
        decimals: Number of decimals of shown probabilities; None: all; −1: the class alone.

    Example:
        >>> steps = np.log(np.repeat([[0.25, 0.75], [0.5, 0.5]], [3, 7], axis=0))
        >>> found = measure_structure(steps, steps, decimals=None)
        >>> found.in_steps, int(found.singled_out.sum())
        (True, 3)
    """
    sizes = _count_alike(show_logs(log_proba, decimals))
    in_steps = bool(np.mean(_count_alike(show_logs(unseen, decimals)) > 1) >= _STEPS)
    return Structure(in_steps, sizes < SMALLEST)


def _count_alike(log_proba: FloatArray) -> IntArray:
    """Return how many records share each record's answer, itself included."""
    shown = np.round(np.exp(log_proba), _DIGITS)
    _, same, counts = np.unique(shown, axis=0, return_inverse=True, return_counts=True)
    return np.asarray(counts[same.reshape(-1)], np.int64)
