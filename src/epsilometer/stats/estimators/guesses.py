"""What both one-run methods share: guessing some canaries in, some out, and abstaining on others.

In one run every canary is in or out by a fair coin. The guesser sees the scores but not the coins,
so it may place its thresholds on the pooled scores at no cost; only the ways it tries are paid for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer.results import Direction
from epsilometer.stats import search, thresholds
from epsilometer.stats.thresholds import (
    Best,
    Bonferroni,
    Fixed,
    HoldOut,
    Observed,
    RankGrid,
    ThresholdRule,
)
from epsilometer.stats.tradeoff import TradeoffCurve, tradeoff_curve
from epsilometer.types import FloatArray, IntArray

RULES = (RankGrid, HoldOut, Bonferroni, Fixed, Best)
_LARGEST = 1e3


@dataclass(frozen=True, eq=False, kw_only=True)
class Guesses:
    """Ways of guessing: "in iff score ≥ high, out iff score < low", and how they came out.

    Attributes:
        canaries: How many there are.
        low: Shape ``(l,)``; -inf where nothing is guessed out.
        high: Shape ``(l,)``; +inf where nothing is guessed in.
        made: Guesses made.
        correct: Guesses that were right.
    """

    canaries: int
    low: FloatArray
    high: FloatArray
    made: IntArray
    correct: IntArray

    def pick(self, at: NDArray[np.intp] | NDArray[np.bool_]) -> "Guesses":
        """Some of them."""
        return Guesses(
            canaries=self.canaries,
            low=self.low[at],
            high=self.high[at],
            made=self.made[at],
            correct=self.correct[at],
        )


Refutes: TypeAlias = Callable[[Guesses, float, float], NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class BestGuess:
    """The way of guessing that refutes most."""

    merit: float
    low: float
    high: float

    @property
    def direction(self) -> Direction:
        """Which guesses were made: "in" only, "out" only, or both."""
        if np.isneginf(self.low):
            return "present→absent"
        return "absent→present" if np.isposinf(self.high) else "both"

    @property
    def threshold(self) -> float:
        """The one that separates "in" from the rest, or "out" from the rest."""
        return self.low if np.isposinf(self.high) else self.high


def best_guess(
    observed: Observed,
    refutes: Refutes,
    *,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> BestGuess:
    """The largest merit that some way of guessing refutes, among those the rule allows.

    Args:
        observed: Scores of canaries that were in and of those that were out.
        refutes: (guesses, merit, α) → which of them refute a mechanism of that merit at level α.
        alpha: Chance of error of the whole.
        rule: ``Fixed`` guesses every canary by the one threshold; ``RankGrid`` the top k, the
            bottom k, or both, of all canaries for k = 1, r, r², …; ``HoldOut`` the best of these
            on the part; ``Bonferroni`` and ``Best`` every threshold.
        rng: For ``HoldOut``.
    """
    match rule:
        case Fixed(value):
            return _best(_everybody(observed, value), refutes, alpha)
        case RankGrid(ratio):
            ways = _ranked(tradeoff_curve(observed), ratio)
            return _best(ways, refutes, alpha / ways.made.size)
        case HoldOut(fraction):
            part, rest = thresholds.split(observed, fraction, rng)
            chosen = _best(_ranked(tradeoff_curve(part), 2), refutes, alpha)
            return _best(_between(rest, chosen.low, chosen.high), refutes, alpha)
        case Bonferroni() | Best():
            ways = _all(tradeoff_curve(observed))
            tries = ways.made.size if isinstance(rule, Bonferroni) else 1
            return _best(ways, refutes, alpha / tries)


def _best(ways: Guesses, refutes: Refutes, alpha: float) -> BestGuess:
    merit, at = search.largest_refuted(
        lambda merit, some: refutes(ways.pick(some), merit, alpha), ways.made.size, limit=_LARGEST
    )
    return BestGuess(merit=merit, low=float(ways.low[at]), high=float(ways.high[at]))


def _everybody(observed: Observed, threshold: float) -> Guesses:
    wrong_in, wrong_out = observed.errors_at(threshold)
    canaries = observed.n_in + observed.n_out
    return Guesses(
        canaries=canaries,
        low=np.array([threshold]),
        high=np.array([threshold]),
        made=np.array([canaries]),
        correct=np.array([canaries - wrong_in - wrong_out]),
    )


def _between(observed: Observed, low: float, high: float) -> Guesses:
    wrong_in, missed = observed.errors_at(high) if high < np.inf else (0, observed.n_in)
    not_cleared, wrong_out = observed.errors_at(low)
    right_in, right_out = observed.n_in - missed, observed.n_out - not_cleared
    return Guesses(
        canaries=observed.n_in + observed.n_out,
        low=np.array([low]),
        high=np.array([high]),
        made=np.array([right_in + wrong_in + right_out + wrong_out]),
        correct=np.array([right_in + right_out]),
    )


def _ranked(curve: TradeoffCurve, ratio: int) -> Guesses:
    """The top k, the bottom k, and both, of the pooled scores; equal scores stay together."""
    canaries = curve.n_in + curve.n_out
    above, below = _sides(curve)
    ranks = thresholds.grid(canaries, ratio)
    top = above.pick(np.searchsorted(above.made, ranks))
    bottom = below.pick(below.made.size - np.searchsorted(below.made[::-1], ranks) - 1)
    apart = bottom.low <= top.high
    return Guesses(
        canaries=canaries,
        low=np.concatenate([top.low, bottom.low, bottom.low[apart]]),
        high=np.concatenate([top.high, bottom.high, top.high[apart]]),
        made=np.concatenate([top.made, bottom.made, (top.made + bottom.made)[apart]]),
        correct=np.concatenate(
            [top.correct, bottom.correct, (top.correct + bottom.correct)[apart]]
        ),
    )


def _all(curve: TradeoffCurve) -> Guesses:
    """Every threshold, with guesses above it, below it, and on both sides."""
    above, below = _sides(curve)
    return Guesses(
        canaries=above.canaries,
        low=np.concatenate([above.low, below.low, below.low]),
        high=np.concatenate([above.high, below.high, above.high]),
        made=np.concatenate([above.made, below.made, above.made + below.made]),
        correct=np.concatenate([above.correct, below.correct, above.correct + below.correct]),
    )


def _sides(curve: TradeoffCurve) -> tuple[Guesses, Guesses]:
    canaries, every = curve.n_in + curve.n_out, curve.thresholds
    hits, clear = curve.n_in - curve.false_negatives, curve.n_out - curve.false_positives
    above = Guesses(
        canaries=canaries,
        low=np.full(every.size, -np.inf),
        high=every,
        made=hits + curve.false_positives,
        correct=hits,
    )
    below = Guesses(
        canaries=canaries,
        low=every,
        high=np.full(every.size, np.inf),
        made=clear + curve.false_negatives,
        correct=clear,
    )
    return above, below
