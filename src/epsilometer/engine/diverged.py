"""Count runs that diverged: they are scored against the attack, and readers are told."""

import numpy as np
from msgspec.structs import replace

from epsilometer.core.findings import EpsilonFinding
from epsilometer.engine.shards import Arrays
from epsilometer.types import IntArray


def lost_scores(arrays: Arrays, view: str = "") -> IntArray:
    """Return how many scores diverged, with the target and without it."""
    inside, outside = arrays[f"{view}inside"], arrays[f"{view}outside"]
    return np.array([np.sum(inside == -np.inf), np.sum(outside == np.inf)])


def told_of_lost(finding: EpsilonFinding, lost: IntArray, what: str) -> EpsilonFinding:
    """Return the finding with what a reader must know of runs that diverged."""
    if not lost.any():
        return finding
    said = (
        f"Diverged: {lost[0]} of {finding.attack.n_in} {what} with the target, {lost[1]} of "
        f"{finding.attack.n_out} without it. They count against a refutation; with a smaller "
        "learning_rate there would be fewer."
    )
    bound = replace(finding.bound, caveats=(*finding.bound.caveats, said))
    return replace(finding, bound=bound)
