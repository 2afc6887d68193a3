r"""Bet against (ε, δ)-DP on pairs of runs, with bets that cannot gain on average if it holds.

At a threshold, a run with the record reaches it with probability p, one without with q. The claim
says p ≤ e^ε q + δ and 1 − q ≤ e^ε (1 − p) + δ: a convex region of (p, q) with a corner where both
are equal.

Bets at the corner use both directions at once. They pay A per run with the record times B per run
without it, each by whether the threshold was reached. The mean is A(p) B(q) ≤ ((A(p) + B(q)) / 2)²,
and A(p) + B(q) is linear: it is at most 2 on the region where the line of equality supports it. So
these are likelihood ratios of some (p₁, q₁) to its Kullback–Leibler projection on the region, and
grow fastest if (p₁, q₁) is the truth (Turner, Ly, Grünwald 2024). Nothing is projected here: the
shares of the corner's error rates that an attack has are chosen, and the projection is the corner.

Bets on an edge stake a share of wealth on 1[inside ≥ τ] − e^ε 1[outside ≥ τ] − δ, or on its mirror
image. There the likelihood ratio grows by a few percent faster, but has one more rate to guess: it
was measured to need more pairs.
"""

import math

import numpy as np

from epsilometer.types import FloatArray

CITES = ("ville1939", "turner2024", "kairouz2015")
WIDTH = 1 / 32  # claims between two multiples are bet against by the same stakes
_LOGITS = -4 + 0.6 * np.arange(24)
_SHARES = 1 / (1 + np.exp(-_LOGITS))
_APART = np.array([(s, t) for s in (0.01, 0.3, 0.6) for t in (0.01, 0.3, 0.6) if s != t])
_MISSES = np.concatenate([_SHARES, _APART[:, 0]])
_ALARMS = np.concatenate([_SHARES, _APART[:, 1]])
# Below this price e^ε, the line of such a bet supports the region elsewhere than at its corner.
_PRICE = np.maximum((1 - _MISSES) / (1 - _ALARMS), (1 - _ALARMS) / (1 - _MISSES))


def _list_weights() -> FloatArray:
    corner = np.concatenate([1 / (1 + np.exp(_LOGITS - 3)), np.full(len(_APART), 0.6)])
    edge = np.tile(1 / (1 + np.exp(_LOGITS - 5)), 2)
    return np.concatenate([0.2 * corner / corner.sum(), 0.8 * edge / edge.sum()])


LOG_WEIGHTS = np.log(_list_weights())  # of bets, which begin with 1 together


def compute_log_payoffs(epsilon: float, delta: float, *, top: float) -> FloatArray:
    """Return what every bet pays against a claim, as logarithms.

    Guarantee: no bet's mean payoff per pair exceeds 1 under any (ε, δ)-DP pair of runs that are
        independent of each other. No payoff rises with ``epsilon`` up to ``top``.

    Args:
        epsilon: The claim, at most ``top``.
        delta: Its δ.
        top: The ε for which stakes are chosen.

    Returns:
        One row per bet: both runs of a pair reach the threshold, only the one with the record,
        only the one without it, neither.
    """
    price = math.exp(epsilon) + delta
    error = (1 - delta) / (1 + np.maximum(math.exp(epsilon), _PRICE))  # both rates at the corner
    caught, quiet = ((1 - share * error) / (1 - error) for share in (_MISSES, _ALARMS))
    corner = (caught * _ALARMS, caught * quiet, _MISSES * _ALARMS, _MISSES * quiet)
    stake = (1 - _SHARES) / (math.exp(top) + delta)
    edge = (
        1 + stake * (1 - price),
        1 + stake * (1 - delta),
        1 - stake * price,
        1 - stake * delta,
    )
    mirrored = (edge[3], edge[1], edge[2], edge[0])
    every = zip(corner, edge, mirrored, strict=True)
    return np.asarray(np.log(np.stack([np.concatenate(parts) for parts in every], axis=1)))
