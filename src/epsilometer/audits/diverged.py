"""Runs that diverged: they are scored against the attack, counted, and told."""

from dataclasses import replace

import numpy as np

from epsilometer.engine.shards import Arrays
from epsilometer.core.audit import AuditResult
from epsilometer.types import IntArray


def lost_scores(arrays: Arrays, view: str = "") -> IntArray:
    """How many scores diverged, with the target and without it."""
    inside, outside = arrays[f"{view}inside"], arrays[f"{view}outside"]
    return np.array([np.sum(inside == -np.inf), np.sum(outside == np.inf)])


def told_of_lost(audit: AuditResult, lost: IntArray, what: str) -> AuditResult:
    """The audit, with what a reader must know of runs that diverged."""
    if not lost.any():
        return audit
    said = (
        f"Diverged: {lost[0]} of {audit.attack.n_in} {what} with the target, {lost[1]} of "
        f"{audit.attack.n_out} without it. They count against a refutation; with a smaller "
        "learning_rate there would be fewer."
    )
    return replace(audit, bound=replace(audit.bound, caveats=(*audit.bound.caveats, said)))
