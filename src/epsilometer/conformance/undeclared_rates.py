"""Compare noise with the mean if a server may have multiplied both by an unknown rate.

Multiplying a noisy mean does not affect its privacy. So if no rate is declared, noise below the
accounted scale is a fault only if more of the mean was released than this noise allows.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.conformance.round_sums import RoundSums
from epsilometer.core import judge
from epsilometer.core.findings import Check

_MOST = 16.0**2  # of one round, as bets on shifts are capped


class UndeclaredRates:
    """Estimate the rate of every round from its noise.

    Attributes:
        spread: Factor for the latest round's residual, so that correct noise has at least the
            accounted scale.
    """

    def __init__(self) -> None:
        self.spread = 1.0
        self._below: list[float] = []  # measured rates of rounds with less noise than accounted
        self._information = 0.0

    def see(self, ended: RoundSums, alpha: float) -> bool:
        """Add a round; return whether its rate is not 1, and rescale its residual to that rate.

        Args:
            ended: The round.
            alpha: Error probability of each limit of the rate.
        """
        own = ended.accounted
        if own.server_rate is not None or own.noise is not None:  # which is one for all rounds
            return False
        limits = ended.limit_rate(alpha)
        if limits is None:
            return False
        low, high = limits
        if low <= 1 <= high:
            return False
        ended.residual = ended.rescale(high)
        # Noise above the accounted scale is compared with that, not with a rate above 1: there may
        # be more of it in one array than in another.
        self.spread = high / min(low, 1.0) if low else 1.0
        if high < 1:
            self._below.append(high)
            square = float(np.vdot(ended.mean, ended.mean)) / ended.unit**2
            self._information += min(_MOST, (1 / high - 1) ** 2 * square)
        return True

    def judge(self, checks: Sequence[Check], *, needed: float) -> tuple[Check, ...]:
        """Interpret small noise in all checks.

        Args:
            checks: The checks so far.
            needed: Squared length of a shift that could have been found.
        """
        every = tuple(checks)
        if not self._below or any(check.outcome == judge.VIOLATED for check in every):
            return every
        rate = float(np.median(self._below))
        seen = (
            f"in {len(self._below)} rounds noise is {rate:.2g} of the accounted scale or less, "
            "which is right where the noisy mean is multiplied by that"
        )
        if self._information < needed:
            reason = f"{seen}; updates are too short to tell: declare server_rate"
            return tuple(leave_untested(check.name, check.expected, reason) for check in every)
        return tuple(
            msgspec.structs.replace(check, outcome=judge.REMARK, seen=f"{seen}: so is the mean")
            if check.name == "noise scale"
            else check
            for check in every
        )
