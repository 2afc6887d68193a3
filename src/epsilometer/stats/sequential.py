"""Bound ε by a sequence that may be watched after every pair and stopped at any time.

Bets with mean payoff at most 1 ever reach wealth 1/α with probability at most α (Ville 1939).
Wealth is averaged over thresholds and bets (``bets``), which use both directions at once. A claim
is refuted when wealth has reached 1/α against it and every smaller claim. Between two multiples of
``bets.WIDTH`` wealth falls as ε rises; from one to the next it is asked step by step.
"""

import math
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.core.bound import Basis, EpsilonLowerBound
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Claim
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats import bets, search
from epsilometer.stats.thresholds import grid
from epsilometer.stats.tradeoff import epsilon_of_rates
from epsilometer.types import FloatArray

_LARGEST = 16.0
_RATIO = 4  # of neighbouring ranks at which thresholds are placed
# After so many pairs a sequence places thresholds of its own, each time with this share of wealth.
_STAGES = {8: 0.35, 32: 0.3, 128: 0.15, 512: 0.1, 2048: 0.1}


def anytime_limits(
    successes: ArrayLike, trials: ArrayLike, *, alpha: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    r"""Return limits on a success probability that hold after every trial at once.

    A bettor who believes that p was drawn from Beta(½, ½) has, against any true p, wealth
    :math:`B(k+½, n-k+½) / (B(½, ½)\, p^k (1-p)^{n-k})`, which ever reaches 1/α with probability at
    most α (Ville 1939). The limits are where it does.

    Args:
        successes: Counts ``k``, any shape.
        trials: Counts ``n``, broadcast against ``successes``.
        alpha: Chance that either limit ever fails, in (0, 1); broadcast too.

    Returns:
        Lower and upper limits, in [0, 1].

    Example:
        >>> low, high = anytime_limits([0, 50], 100, alpha=0.05)
        >>> low.round(3), high.round(3)
        (array([0.   , 0.338]), array([0.057, 0.662]))
    """
    for level in np.ravel(alpha):
        _validate.open_unit(alpha=float(level))
    goal = -np.log(np.asarray(alpha, np.float64))
    k, n = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    mixed = scipy.special.betaln(k + 0.5, n - k + 0.5) - scipy.special.betaln(0.5, 0.5)

    def ruined(p: FloatArray) -> NDArray[np.bool_]:
        likelihood = scipy.special.xlogy(k, p) + scipy.special.xlog1py(n - k, -p)
        return np.asarray(mixed - likelihood >= goal)

    rate = k / np.maximum(n, 1)
    low, _ = search.bisect(ruined, np.zeros_like(rate), rate)
    _, high = search.bisect(lambda p: ~ruined(p), rate, np.ones_like(rate))
    return np.where(k > 0, low, 0.0), np.where(k < n, high, 1.0)


def place_thresholds(inside: FloatArray, outside: FloatArray) -> FloatArray:
    """Return thresholds between neighbouring scores, beyond ranks 1, 4, 16, … of either side.

    Example:
        >>> place_thresholds(np.array([1.0, 7.0, 8.0]), np.array([0.0, 2.0, 4.0]))
        array([0.5, 5.5])
    """
    every = np.unique(np.concatenate([inside, outside]).astype(np.float64))
    if every.size == 1:
        return every
    highest = np.sort(outside)[outside.size - grid(outside.size, _RATIO)]
    lowest = np.sort(inside)[grid(inside.size, _RATIO) - 1]
    above, at = np.searchsorted(every, highest, "right"), np.searchsorted(every, lowest)
    upper = np.clip(np.concatenate([above, at]), 1, every.size - 1)
    low, high = every[upper - 1], every[upper]
    with np.errstate(invalid="ignore"):  # of −∞ and ∞
        middle = low / 2 + high / 2
    return np.unique(np.where((low < middle) & (middle < high), middle, high))


def _find_top(epsilon: float) -> float:
    """Return the claim that stakes against ``epsilon`` are made for."""
    return (math.floor(epsilon / bets.WIDTH) + 1) * bets.WIDTH


class ConfidenceSequence:
    """Pairs of runs, one with the record and one without, that arrive one by one.

    Guarantee: with probability at least ``confidence``, *no* ``lower_bound()`` ever exceeds the
        true ε, however often it is computed and whenever the audit stops.
    Assumption: all runs are independent, including the two of a pair, and any given thresholds were
        fixed before the first pair. Runs that share a seed, or the same pair given twice, are
        not independent. Runs may change from pair to pair while every pair satisfies the claim.

    Args:
        thresholds: Thresholds to bet at. By default they are placed automatically after 8, 32,
            128, … pairs, and only used for later pairs.
        delta: δ of all bounds.
        confidence: One-sided, for all looks together.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> audit = ConfidenceSequence(delta=1e-5)
        >>> for _ in range(200):
        ...     audit.update(rng.normal(4), rng.normal(0))
        >>> audit.refuted(1.0)
        True
    """

    def __init__(
        self, thresholds: Any = None, *, delta: float, confidence: float = DEFAULT_CONFIDENCE
    ) -> None:
        """Bet at these thresholds; every pair is used once."""
        _validate.probability(delta=delta)
        _validate.open_unit(confidence=confidence)
        self.delta, self.confidence = delta, confidence
        self.pairs = 0
        self.thresholds: FloatArray = np.empty(0)
        self._shares: FloatArray = np.empty(0)  # of wealth at the start; the rest is not yet bet
        self._skipped: FloatArray = np.empty(0)  # pairs before a threshold was placed
        self._inside: FloatArray = np.empty(0)
        self._outside: FloatArray = np.empty(0)
        self._both: FloatArray = np.empty(0)
        self._places_itself = thresholds is None
        self._seen: list[tuple[FloatArray, FloatArray]] = []  # to place the next thresholds
        if thresholds is not None:
            self._place(np.unique(_validate.scores("thresholds", thresholds)), 1.0)
        self._best = 0.0
        self._threshold = math.inf
        self._basis: Basis = ()

    @classmethod
    def from_pilot(
        cls, pilot: Scores, *, delta: float, confidence: float = DEFAULT_CONFIDENCE
    ) -> "ConfidenceSequence":
        """Place thresholds at ranks 1, 4, 16, … of scores that will not be bet on."""
        return cls(
            place_thresholds(pilot.inside, pilot.outside), delta=delta, confidence=confidence
        )

    def update(self, inside_score: Any, outside_score: Any) -> None:
        """Add one pair, or two arrays of pairs in order."""
        inside = _validate.scores("inside_score", np.atleast_1d(inside_score))
        outside = _validate.scores("outside_score", np.atleast_1d(outside_score))
        if inside.shape != outside.shape:
            raise InvalidArgument(
                f"Expected as many inside as outside scores, got {inside.size} and {outside.size}."
            )
        if self._places_itself:
            for stage, share in _STAGES.items():
                missing = stage - self.pairs
                if 0 < missing <= inside.size:
                    self._count(inside[:missing], outside[:missing])
                    inside, outside = inside[missing:], outside[missing:]
                    seen = [np.concatenate(side) for side in zip(*self._seen, strict=True)]
                    self._place(place_thresholds(*seen), share)
        self._count(inside, outside)

    def lower_bound(self) -> EpsilonLowerBound:
        """Return the largest ε refuted so far; it never falls from one call to the next."""
        if self.pairs == 0:
            raise InvalidArgument("Expected at least one pair before a bound, got none.")
        before = self._best
        while self._best < _LARGEST:
            top = _find_top(self._best)
            if self._lack(top, top) <= 0:
                self._best = top
                continue
            if self._lack(self._best, top) <= 0:
                self._best, _ = search.root(
                    lambda epsilon, top=top: self._lack(epsilon, top),  # type: ignore[misc]
                    self._best,
                    top,
                    relative=1e-9,
                )
            break
        if self._best > before or before == 0:
            self._keep_basis()
        placed = "Placed by earlier pairs" if self._places_itself else "Fixed before the first pair"
        return EpsilonLowerBound(
            epsilon=self._best,
            delta=self.delta,
            confidence=self.confidence,
            method="anytime",
            threshold_rule=f"{placed}, {self.thresholds.size} thresholds",
            valid=True,
            direction="both",
            threshold=self._threshold,
            n_in=self.pairs,
            n_out=self.pairs,
            cites=bets.CITES,
            basis=self._basis,
        )

    def ceiling(self) -> float:
        """Return the most this attack can prove at these thresholds, with any number of pairs.

        Guarantee: with probability at least ``confidence``, no ``ceiling()`` is ever below
            the ε that the attack's true error rates imply at the best of the thresholds placed so
            far. It says nothing about the mechanism's own ε, which another attack may show to be
            larger.
        """
        if not self.thresholds.size:
            return math.inf
        alpha = (1 - self.confidence) * self._shares / 2  # two limits per threshold
        pairs = self.pairs - self._skipped
        _, caught = anytime_limits(self._inside, pairs, alpha=alpha)
        false, _ = anytime_limits(self._outside, pairs, alpha=alpha)
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
        asked = self.pairs > 0 and self._best <= claim < _LARGEST
        if asked and self._lack(claim, _find_top(claim)) <= 0:  # else no bound is above it
            self.lower_bound()
        return self._best > claim

    def _count(self, inside: FloatArray, outside: FloatArray) -> None:
        if self._places_itself and self.pairs < max(_STAGES):
            self._seen.append((inside.copy(), outside.copy()))
        for i, threshold in enumerate(self.thresholds):
            caught, false = inside >= threshold, outside >= threshold
            self._inside[i] += np.count_nonzero(caught)
            self._outside[i] += np.count_nonzero(false)
            self._both[i] += np.count_nonzero(caught & false)
        self.pairs += inside.size

    def _place(self, thresholds: FloatArray, share: float) -> None:
        """Bet a share of wealth at further thresholds, from the next pair on."""
        size = thresholds.size
        self.thresholds = np.concatenate([self.thresholds, thresholds])
        self._shares = np.concatenate([self._shares, np.full(size, share / size)])
        self._skipped = np.concatenate([self._skipped, np.full(size, self.pairs)])
        self._inside = np.concatenate([self._inside, np.zeros(size)])
        self._outside = np.concatenate([self._outside, np.zeros(size)])
        self._both = np.concatenate([self._both, np.zeros(size)])

    def _keep_basis(self) -> None:
        """Store the current counts at the threshold with the largest gain."""
        if not self.thresholds.size:
            return
        at = int(np.argmax(self._log_wealth(self._best, self._best)))
        self._threshold = float(self.thresholds[at])
        self._basis = (
            ("pairs", self.pairs),
            ("thresholds", self.thresholds.size),
            ("pairs at the threshold", self.pairs - self._skipped[at]),
            ("inside at or above", self._inside[at]),
            ("outside at or above", self._outside[at]),
            ("pairs with both", self._both[at]),
            ("level", 1 - self.confidence),
        )

    def _lack(self, epsilon: float, top: float) -> float:
        """Return the logarithm of what wealth lacks to refute a claim, by stakes made for ``top``.

        It is 0 or less where the claim is refuted, and rises with ``epsilon`` up to ``top``.
        """
        wealth = self._log_wealth(epsilon, top)
        kept = max(1 - float(self._shares.sum()), 0.0)  # for thresholds that are not yet placed
        most = float(wealth.max(initial=0.0))
        total = most + math.log(kept * math.exp(-most) + float(np.exp(wealth - most).sum()))
        return -math.log(1 - self.confidence) - total

    def _log_wealth(self, epsilon: float, top: float) -> FloatArray:
        """Return the log-wealth at each threshold."""
        payoffs = bets.compute_log_payoffs(epsilon, self.delta, top=top)
        caught, false = self._inside - self._both, self._outside - self._both
        neither = self.pairs - self._skipped - caught - false - self._both
        every = payoffs @ np.stack([self._both, caught, false, neither]) + bets.LOG_WEIGHTS[:, None]
        most = every.max(axis=0)
        total = np.exp(every - most).sum(axis=0)
        return np.asarray(np.log(self._shares) + most + np.log(total))
