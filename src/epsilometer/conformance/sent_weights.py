"""Compare the weights that clients receive with those that were released.

A server that keeps weights without noise, and adds noise only to its result, sends unprotected
weights to every client.
"""

import math

import numpy as np
import scipy.stats

from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.conformance.round_sums import COARSE, Arrays, RoundSums
from epsilometer.core import judge
from epsilometer.core.findings import Check

_NAME = "weights that clients are sent"
_EXPECTED = "clients are sent what was released"


class SentWeights:
    """Compare what clients receive after a round with what was released in it.

    Other weights may be correct: averaged over rounds, for example, or changed by momentum. They
    are wrong if they contain more of the mean than any such sum over rounds with as much noise.

    Args:
        level: Probability of flagging a correct server.

    Attributes:
        other: How often clients received other weights, about which nothing is known.
    """

    def __init__(self, *, level: float) -> None:
        self._level, self._round, self._square = level, 0, 0.0
        self._same = self.other = self._bare = self._first = 0
        self._ended: RoundSums | None = None
        self._released: Arrays = {}

    def hold(self, ended: RoundSums, released: Arrays, number: int) -> None:
        """Record the release of the round with this number."""
        self._ended, self._released, self._round = ended, released, number
        self._square += (float(np.linalg.norm(ended.mean)) / ended.unit) ** 2

    def drop(self) -> None:
        """Forget the recorded round: the next release does not follow it."""
        self._ended, self._released = None, {}

    def see(self, sent: Arrays) -> None:
        """Add weights that clients receive, before they train or evaluate."""
        if self._ended is None:
            return
        apart = self._ended.measure_apart(sent, self._released)
        if apart <= COARSE * self._ended.accounted.rate:
            self._same += 1
        elif math.isfinite(apart) and self._hold_less_noise(self._ended, sent):
            self._bare += 1
            self._first = self._first or self._round
        else:
            self.other += 1

    def _hold_less_noise(self, ended: RoundSums, sent: Arrays) -> bool:
        """Tell whether weights contain more of the mean than their noise explains."""
        if ended.accounted.noise is not None:
            return False
        alpha = self._level / (self._round * (self._round + 1)) / 3
        limits = ended.limit_rate(alpha, sent)
        length = float(np.linalg.norm(ended.mean)) / ended.unit
        if limits is None or not length:
            return False
        # Rounds k with weights wₖ have noise r² = Σ wₖ², at most the upper limit squared, and along
        # the mean at most Σ wₖ lengthₖ + r N(0, 1), where Σ wₖ lengthₖ ≤ r √Σ lengthₖ².
        along = ended.find_share(sent) * length / limits[1]
        return along - math.sqrt(self._square) > float(scipy.stats.norm.isf(alpha))

    def check(self) -> Check:
        """Return the observations so far."""
        if not self._same + self._bare:
            return leave_untested(_NAME, _EXPECTED, "what clients were sent was not observed")
        seen = f"{self._same} times what was released"
        if self._bare:
            seen = f"{self._bare} times weights with less noise than was accounted for"
        return Check(
            name=_NAME,
            outcome=judge.judge_limit(self._bare, limit=0),
            expected=_EXPECTED,
            seen=seen,
            value=float(self._bare),
            steps=self._first or self._round,
        )
