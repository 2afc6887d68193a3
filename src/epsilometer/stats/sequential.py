"""Bound ε by a sequence that may be watched after every pair and stopped at any time.

For a threshold fixed beforehand and a true claim (ε, δ), X = 1[inside ≥ τ] − e^ε 1[outside ≥ τ] − δ
has mean at most 0, so a bettor who stakes a share λ of all wealth on X wins nothing in the long
run: Pr[wealth ever reaches 1/α] ≤ α (Ville 1939). Wealth is averaged over stakes, thresholds
and both directions. For every stake it falls as ε rises, so all ε below some point fall together.
"""

import math
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.core.bound import Basis, EpsilonLowerBound
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Claim
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import search
from epsilometer.stats.thresholds import grid
from epsilometer.stats.tradeoff import epsilon_of_rates
from epsilometer.types import FloatArray

CITES = ("ville1939", "waudbysmith2024", "kairouz2015")
_STAKES = 0.9 * 0.5 ** np.arange(24)  # shares of wealth; the last serve ε up to 16
_LARGEST = 16.0


def anytime_limits(
    successes: ArrayLike, trials: ArrayLike, *, alpha: float
) -> tuple[FloatArray, FloatArray]:
    r"""Return limits on a success probability that hold after every trial at once.

    A bettor who believes that p was drawn from Beta(½, ½) has, against any true p, wealth
    :math:`B(k+½, n-k+½) / (B(½, ½)\, p^k (1-p)^{n-k})`, which ever reaches 1/α with probability at
    most α (Ville 1939). The limits are where it does.

    Args:
        successes: Counts ``k``, any shape.
        trials: Counts ``n``, broadcast against ``successes``.
        alpha: Chance that either limit ever fails, in (0, 1).

    Returns:
        Lower and upper limits, in [0, 1].

    Example:
        >>> low, high = anytime_limits([0, 50], 100, alpha=0.05)
        >>> low.round(3), high.round(3)
        (array([0.   , 0.338]), array([0.057, 0.662]))
    """
    _validate.open_unit(alpha=alpha)
    k, n = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    mixed = scipy.special.betaln(k + 0.5, n - k + 0.5) - scipy.special.betaln(0.5, 0.5)

    def ruined(p: FloatArray) -> NDArray[np.bool_]:
        likelihood = scipy.special.xlogy(k, p) + scipy.special.xlog1py(n - k, -p)
        return np.asarray(mixed - likelihood >= -math.log(alpha))

    rate = k / np.maximum(n, 1)
    low, _ = search.bisect(ruined, np.zeros_like(rate), rate)
    _, high = search.bisect(lambda p: ~ruined(p), rate, np.ones_like(rate))
    return np.where(k > 0, low, 0.0), np.where(k < n, high, 1.0)


class ConfidenceSequence:
    """Pairs of runs, one with the record and one without, that arrive one by one.

    Guarantee: with probability at least ``confidence``, *no* ``lower_bound()`` ever given exceeds
        the true ε, however often it is asked for and whenever the audit stops.
    Assumption: pairs are independent of each other and of the thresholds, which were fixed before
        the first pair (``from_pilot`` chooses them on pairs of their own).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> audit = ConfidenceSequence([2.0, 3.0], delta=1e-5)
        >>> for _ in range(200):
        ...     audit.update(rng.normal(4), rng.normal(0))
        >>> audit.refuted(1.0)
        True
    """

    def __init__(
        self, thresholds: Any, *, delta: float, confidence: float = DEFAULT_CONFIDENCE
    ) -> None:
        """Bet at these thresholds, and never look at a pair twice."""
        _validate.probability(delta=delta)
        _validate.open_unit(confidence=confidence)
        self.thresholds = np.unique(_validate.scores("thresholds", thresholds)).astype(np.float64)
        self.delta, self.confidence = delta, confidence
        self.pairs = 0
        self._both = np.zeros(self.thresholds.size)
        self._inside = np.zeros(self.thresholds.size)
        self._outside = np.zeros(self.thresholds.size)
        self._best, self._threshold, self._row = 0.0, float(self.thresholds[0]), 0
        self._basis: Basis = ()

    @classmethod
    def from_pilot(
        cls, pilot: Scores, *, delta: float, confidence: float = DEFAULT_CONFIDENCE, ratio: int = 4
    ) -> "ConfidenceSequence":
        """Place thresholds at ranks 1, r, r², … of scores that will not be bet on."""
        outside, inside = np.sort(pilot.outside), np.sort(pilot.inside)
        highest = outside[outside.size - grid(outside.size, ratio)]
        lowest = inside[grid(inside.size, ratio) - 1]
        every = np.concatenate([highest, lowest])
        return cls(every, delta=delta, confidence=confidence)

    def update(self, inside_score: Any, outside_score: Any) -> None:
        """Take one pair, or two arrays of pairs in order."""
        inside = _validate.scores("inside_score", np.atleast_1d(inside_score))
        outside = _validate.scores("outside_score", np.atleast_1d(outside_score))
        if inside.shape != outside.shape:
            raise InvalidArgument(
                f"Expected as many inside as outside scores, got {inside.size} and {outside.size}."
            )
        for i, threshold in enumerate(self.thresholds):
            caught, false = inside >= threshold, outside >= threshold
            self._inside[i] += np.count_nonzero(caught)
            self._outside[i] += np.count_nonzero(false)
            self._both[i] += np.count_nonzero(caught & false)
        self.pairs += inside.size

    def lower_bound(self) -> EpsilonLowerBound:
        """Return the largest ε refuted so far; it never falls from one call to the next."""
        if self.pairs == 0:
            raise InvalidArgument("Expected at least one pair before a bound, got none.")
        if self._refutes_now(self._best):
            high = search.grow(self._refutes_now, max(1.0, self._best), limit=_LARGEST)
            found, _ = search.bisect(self._refutes_now, self._best, high, relative=1e-9)
            self._best = float(found)
            wealth = self._log_wealth(self._best)
            self._row, at = (int(i) for i in np.unravel_index(np.argmax(wealth), wealth.shape))
            self._threshold = float(self.thresholds[at])
            self._basis = self._counts(at)
        return EpsilonLowerBound(
            epsilon=self._best,
            delta=self.delta,
            confidence=self.confidence,
            method="anytime",
            threshold_rule=f"Fixed before the first pair, {self.thresholds.size} thresholds",
            valid=True,
            direction=("present→absent", "absent→present")[self._row],
            threshold=self._threshold,
            n_in=self.pairs,
            n_out=self.pairs,
            cites=CITES,
            basis=self._basis or self._counts(0),
        )

    def ceiling(self) -> float:
        """Return what this attack can prove at most at these thresholds, with any number of pairs.

        Guarantee: with probability at least ``confidence``, no ``ceiling()`` ever given is below
            the ε that the attack's true error rates imply at the best of the thresholds. It says
            nothing about the mechanism's own ε, which another attack may show to be larger.
        """
        alpha = (1 - self.confidence) / (2 * self.thresholds.size)  # two limits a threshold
        _, caught = anytime_limits(self._inside, self.pairs, alpha=alpha)
        false, _ = anytime_limits(self._outside, self.pairs, alpha=alpha)
        return float(epsilon_of_rates(false, 1 - caught, self.delta).max())

    def refuted(self, claim: Claim | float) -> bool:
        """Tell whether a claim at this δ is refuted. Once true, it stays true."""
        if isinstance(claim, Claim):
            if claim.delta != self.delta:
                raise InvalidArgument(
                    f"Expected a claim at δ = {self.delta!r}, got one at {claim.delta!r}."
                )
            claim = claim.epsilon
        _validate.at_least(0, claim=claim)
        if self._best <= claim and self.pairs > 0 and self._refutes_now(claim):
            self.lower_bound()  # keeps what was refuted
        return self._best > claim

    def _counts(self, at: int) -> Basis:
        """Return the counts at a threshold now."""
        return (
            ("pairs", self.pairs),
            ("thresholds", self.thresholds.size),
            ("inside at or above", self._inside[at]),
            ("outside at or above", self._outside[at]),
            ("pairs with both", self._both[at]),
            ("level", 1 - self.confidence),
        )

    def _refutes_now(self, epsilon: FloatArray | float) -> NDArray[np.bool_]:
        wealth = self._log_wealth(float(epsilon))
        total = np.logaddexp.reduce(wealth, axis=None) - math.log(wealth.size)
        return np.asarray(total >= -math.log(1 - self.confidence))

    def _log_wealth(self, epsilon: float) -> FloatArray:
        """Return the log-wealth of each direction and threshold, averaged over stakes."""
        both, caught, false = self._both, self._inside - self._both, self._outside - self._both
        neither = self.pairs - both - caught - false
        price = math.exp(epsilon) + self.delta
        stakes = _STAKES[_STAKES * price < 1][:, None]
        won, lost = np.log1p(stakes * (1 - self.delta)), np.log1p(-stakes * price)
        tied, idle = np.log1p(stakes * (1 - price)), np.log1p(-stakes * self.delta)
        paid = won * caught + lost * false
        # With the sides swapped, pairs with both above and pairs with neither change places.
        directions = [paid + tied * both + idle * neither, paid + tied * neither + idle * both]
        # Stakes too high for this claim were never placed: their share counts as lost.
        return np.stack([np.logaddexp.reduce(d, axis=0) for d in directions]) - math.log(
            _STAKES.size
        )
