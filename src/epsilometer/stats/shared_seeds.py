"""Prevent a seed that everyone shares from being lucky for everyone.

Most users keep the default seed. Scores in a special order bring chance to what a seed
chooses. Of scores that come sorted it chooses the same ranks in every audit, and a lucky seed errs
in far more audits than it says. Measured by the default seed, 604 + 604 null canaries of a fixed
number inside: a false bound in 42 % of audits.
"""

import zlib

import numpy as np

from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.types import FloatArray


def is_sorted(side: FloatArray) -> bool:
    """Tell whether scores rise or fall all the way, but for equal ones."""
    before, after = side[:-1], side[1:]
    return bool((before <= after).all() or (before >= after).all())


def mix_sorted(rng: np.random.Generator, observed: Scores | ScoreCounts) -> np.random.Generator:
    """Return the stream; where scores come sorted, one that depends on them but not on who was in.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> mix_sorted(rng, Scores([1.0, 3.0, 2.0], [0.0, 3.0, 1.0])) is rng
        True
    """
    if isinstance(observed, ScoreCounts):
        pooled = observed.inside_bins + observed.outside_bins
    elif is_sorted(observed.inside) and is_sorted(observed.outside):
        pooled = np.sort(np.concatenate([observed.inside, observed.outside]))
    else:
        return rng
    return np.random.default_rng([int(rng.integers(2**63)), zlib.crc32(pooled.tobytes())])
