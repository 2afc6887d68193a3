"""The exact test at a rank: the law of one error rate is known, and is integrated out.

At the k-th highest outside score the FPR F is Beta(k, n−k+1), and the inside scores beyond it are
binomial with the TPR. A claim allows a TPR of at most g(F), so the chance of x or more of them is
at most E_F[Pr(Bin(m, g(F)) ≥ x)] = Pr(B ≤ g(F)), where B is Beta(x, m−x+1) and independent of F.
That p-value needs no two limits that each pay half; with them the bound would be a tenth lower or
more. The same holds at ranks of the inside scores with the worlds swapped.
"""

from collections.abc import Callable

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer.stats import binomial, search
from epsilometer.stats.estimators.method import Winner
from epsilometer.stats.thresholds import Ranks
from epsilometer.types import FloatArray

# Trapezoid rule in normal scores of B. F is the wider of the two wherever there is evidence, so
# its tail is smooth on this scale, and the rule's error is far below the tail it computes.
_SCORES = np.linspace(-8.0, 8.0, 65)
_WEIGHTS = np.exp(-(_SCORES**2) / 2) / np.sqrt(2 * np.pi) * (_SCORES[1] - _SCORES[0])
_LARGEST = 1e4


def best_rank(
    sides: tuple[Ranks, Ranks],
    least_fpr: Callable[[FloatArray, float, float], FloatArray],
    *,
    delta: float,
    alpha: float,
) -> Winner:
    """The largest merit that some look refutes at its share of ``alpha``, and where.

    Args:
        sides: Outside ranks, inside ranks.
        least_fpr: (TPR, merit, δ) → the least FPR at which that merit allows that TPR.
        delta: δ of the claim.
        alpha: Chance of error of the whole, which the looks share.
    """
    rank = np.concatenate([side.ranks for side in sides])[:, None]
    n_ranked = np.concatenate([np.full(side.ranks.size, side.n_ranked) for side in sides])[:, None]
    beyond = np.concatenate([side.beyond for side in sides])[:, None]
    n_other = np.concatenate([np.full(side.ranks.size, side.n_other) for side in sides])[:, None]
    level = alpha * np.concatenate([side.share for side in sides])
    rate = binomial.beta_at(np.maximum(beyond, 1), n_other - np.maximum(beyond, 1) + 1, _SCORES)

    def refuted(merit: float, at: NDArray[np.intp]) -> NDArray[np.bool_]:
        needed = least_fpr(rate[at], merit, delta)
        p = scipy.special.betaincc(rank[at], n_ranked[at] - rank[at] + 1, needed) @ _WEIGHTS
        caught = beyond[at, 0] > 0  # a look that caught nobody refutes nothing
        return np.asarray((p <= level[at]) & caught)

    best, winner = search.largest_refuted(refuted, rank.size, limit=_LARGEST)
    thresholds = np.concatenate([side.thresholds for side in sides])
    row = int(winner >= sides[0].ranks.size)
    return Winner(merit=best, row=row, threshold=float(thresholds[winner]))
