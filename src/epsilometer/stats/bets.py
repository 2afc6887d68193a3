r"""Bet against (ε, δ)-DP on pairs of runs, so that nobody gains in the long run if it holds.

At a threshold, a run with the record reaches it with probability p, one without with q. The claim
says p ≤ e^ε q + δ and 1 − q ≤ e^ε (1 − p) + δ: a convex region of (p, q), with a corner V where
both are equal. A bet pays A per run with the record and B per run without it, each by whether the
threshold was reached. Its mean is A(p) B(q) ≤ ((A(p) + B(q)) / 2)², and A(p) + B(q) is linear: it
is at most 2 on the region when the line of equality supports it. These are the likelihood ratios of
some (p₁, q₁) to its Kullback–Leibler projection on the region, which grow fastest if (p₁, q₁) is
the truth (Turner, Ly, Grünwald 2024).

Nothing is projected here: a bet is written down at the point where its line supports the region.
At the corner any line between both edges does: shares ``s`` of the corner's error rates are
expected. On an edge, the share κ of false positives that an attack avoids and the place on the edge
are chosen. Wealth is averaged over a fixed grid of both.
"""

import math

import numpy as np
import scipy.special

from epsilometer.types import FloatArray

CITES = ("ville1939", "turner2024", "kairouz2015")
WIDTH = 1 / 32  # claims between two multiples are bet against by the same stakes
_LOGITS = -4 + 0.8 * np.arange(18)
_SHARES, _LIKELY = scipy.special.expit(_LOGITS), scipy.special.expit(3 - _LOGITS)
_APART = np.array([(s, t) for s in (0.01, 0.3, 0.6) for t in (0.01, 0.3, 0.6) if s != t])
_PLACES = np.array([0.0, 0.3, 0.7])  # on an edge, as a share of the way to the corner

_MISSES = np.concatenate([_SHARES, _APART[:, 0]])
_ALARMS = np.concatenate([_SHARES, _APART[:, 1]])
# Below this price e^ε, the line of such a bet supports the region elsewhere than at its corner.
_PRICE = np.maximum((1 - _MISSES) / (1 - _ALARMS), (1 - _ALARMS) / (1 - _MISSES))
_PLACE, _AVOIDED = (grid.ravel() for grid in np.meshgrid(_PLACES, 1 - _SHARES, indexing="ij"))


def _list_weights() -> FloatArray:
    corner = np.concatenate([_LIKELY, np.full(len(_APART), 0.25)])
    edge = np.tile(_LIKELY, 2 * _PLACES.size)
    return np.concatenate([0.4 * corner / corner.sum(), 0.6 * edge / edge.sum()])


LOG_WEIGHTS = np.log(_list_weights())  # of bets, which begin with 1 together


def compute_log_payoffs(epsilon: float, delta: float, *, top: float) -> FloatArray:
    """Return what every bet pays against a claim, as logarithms.

    Guarantee: no bet's mean payoff per pair exceeds 1 under any (ε, δ)-DP pair of runs that are
        independent of each other. No payoff rises with ``epsilon`` up to ``top``.

    Args:
        epsilon: The claim, at most ``top``.
        delta: Its δ.
        top: The ε that stakes are made for.

    Returns:
        One row per bet: with the record at or above the threshold, below it; without the record
        at or above it, below it.
    """
    price, most = math.exp(epsilon), math.exp(top)
    error = (1 - delta) / (1 + np.maximum(price, _PRICE))  # both rates at the corner
    corner = (
        (1 - _MISSES * error) / (1 - error),
        _MISSES,
        _ALARMS,
        (1 - _ALARMS * error) / (1 - error),
    )
    moved = _PLACE * (1 - delta) * most / (1 + most)
    stake = _AVOIDED / (most - moved)
    edge = (
        1 + stake * (1 - delta - moved),
        1 - stake * (delta + moved),
        1 - stake * (price - moved),
        1 + stake * moved,
    )
    # The other edge is the mirror image: what was missed is what was no false alarm.
    both = zip(corner, edge, edge[::-1], strict=True)
    return np.asarray(np.log(np.stack([np.concatenate(parts) for parts in both], axis=1)))
