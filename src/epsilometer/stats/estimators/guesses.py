"""Guess some canaries in, some out, and abstain on others, for both one-run methods.

In one run every canary is in or out by a fair coin. The guesser sees the scores but not the coins,
so it may place its thresholds on the pooled scores at no cost. Only the ways it tries are paid for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer.core.bound import Basis, Direction, EpsilonLowerBound
from epsilometer.errors import InvalidArgument
from epsilometer.stats import search, thresholds
from epsilometer.stats.derivation import count, known, rule_of, shown
from epsilometer.stats.guess_counts import find_cuts
from epsilometer.stats.thresholds import (
    Best,
    Bonferroni,
    Fixed,
    HoldOut,
    Observed,
    RankGrid,
    ThresholdRule,
    count_below,
)
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import FloatArray, IntArray

RULES = (RankGrid, HoldOut, Bonferroni, Fixed, Best)
_LARGEST = 1e3
_FINE = 1.4  # ratio of neighbouring ranks, where ways are chosen on a part


@dataclass(frozen=True, eq=False, kw_only=True)
class Guesses:
    """Ways of guessing: "in iff score ≥ high, out iff score < low", and their results.

    Attributes:
        canaries: Number of canaries.
        low: Shape ``(l,)``; nan where nothing is guessed out.
        high: Shape ``(l,)``; nan where nothing is guessed in.
        made: Guesses made.
        correct: Guesses that were right.
    """

    canaries: int
    low: FloatArray
    high: FloatArray
    made: IntArray
    correct: IntArray

    def pick(self, at: NDArray[np.intp] | NDArray[np.bool_]) -> "Guesses":
        """Return some of the guesses."""
        return Guesses(
            canaries=self.canaries,
            low=self.low[at],
            high=self.high[at],
            made=self.made[at],
            correct=self.correct[at],
        )


_PAID = MappingProxyType(
    {
        "Fixed": "Every canary was guessed by a threshold fixed beforehand, which costs nothing.",
        "HoldOut": "The way of guessing was chosen on a part of the canaries, drawn "
        "independently of who was in; the bound does not use that part, so the "
        "choice costs nothing more.",
        "RankGrid": "The guesser sees scores but not coin tosses, so thresholds at ranks of all "
        "scores cost nothing. The ways of guessing that were tried (the top k, the "
        "bottom k, or both) share α = 1 − confidence.",
        "Bonferroni": "Every way of guessing was tried, and they share α = 1 − confidence.",
        "Best": "The choice was not accounted for: the best of all ways of guessing was used. "
        "The number exceeds the true ε more often than its confidence says.",
    }
)
Refutes: TypeAlias = Callable[[Guesses, FloatArray, FloatArray], NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class BestGuess:
    """The way of guessing that refutes most, of all ways that were tried at their levels."""

    merit: float
    low: float
    high: float
    ways: Guesses
    levels: FloatArray
    basis: Basis

    @property
    def direction(self) -> Direction:
        """Which guesses were made: "in" only, "out" only, or both."""
        if np.isnan(self.low):
            return "present→absent"
        return "absent→present" if np.isnan(self.high) else "both"

    @property
    def threshold(self) -> float:
        """The threshold that separates "in" from the rest, or "out" from the rest."""
        return self.low if np.isnan(self.high) else self.high


def best_guess(
    observed: Observed,
    refutes: Refutes,
    *,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
    many: bool = False,
) -> BestGuess:
    """Return the largest merit that some way of guessing refutes, among those the rule allows.

    Args:
        observed: Scores of canaries that were in and of those that were out.
        refutes: (guesses, merits, levels) → which refute a mechanism of their merit.
        alpha: Chance of error of the whole.
        rule: ``Fixed`` guesses every canary by the one threshold; ``RankGrid`` the top k, the
            bottom k, or both, of all canaries for k = 1, r, r², …; ``HoldOut`` the best of these
            on the part; ``Bonferroni`` and ``Best`` every threshold.
        rng: For ``HoldOut``.
        many: Whether few guesses refute nothing. Then ``RankGrid`` guesses two thirds, too, and
            shares the error by the root of the number of guesses; ``HoldOut`` chooses among more
            ways, by their prediction for the remaining number of canaries.
    """
    if observed.design != "coins" or observed.inclusion != 0.5:
        raise InvalidArgument(
            f"Expected canaries included by fair coin tosses (design = 'coins') for {rule!r}, "
            f"got design = {observed.design!r} with inclusion = {observed.inclusion:g}. "
            "Use method one_run with AllRanks(), its default."
        )
    match rule:
        case Fixed(value):
            return best_of(_everybody(observed, value), refutes, alpha)
        case RankGrid(ratio):
            canaries = observed.n_in + observed.n_out
            ranks = thresholds.grid(canaries, ratio)
            if many:
                ranks = np.union1d(ranks, [max(canaries // 3, 1)])
            ways = _rank(observed, ranks)
            shares = np.sqrt(ways.made) if many else np.ones(ways.made.size)
            return best_of(ways, refutes, alpha * shares / shares.sum())
        case HoldOut():
            chosen = choose_guess(observed, refutes, alpha=alpha, rule=rule, rng=rng, many=many)
            return best_of(chosen.ways, refutes, alpha)
        case _:  # Bonferroni and Best; the registry lets no other pass
            ways = _all(observed)
            tries = ways.made.size if isinstance(rule, Bonferroni) else 1
            return best_of(ways, refutes, alpha / tries)


def choose_guess(
    observed: Observed,
    refutes: Refutes,
    *,
    alpha: float,
    rule: HoldOut,
    rng: np.random.Generator,
    many: bool = False,
) -> BestGuess:
    """Choose a way of guessing on a part of the canaries; the rest is guessed so, and not judged.

    Returns:
        The one way, as it came out on the rest, with a merit of 0.
    """
    part, rest = thresholds.split(observed, rule.fraction, rng, blind=True)
    if many:
        tried = _foresee(_rank(part, _spread(part.n_in + part.n_out)), rest.n_in + rest.n_out)
    else:
        tried = _rank(part, thresholds.grid(part.n_in + part.n_out, 2))
    chosen = best_of(tried, refutes, alpha)
    ways = _again(rest, chosen)
    basis = _found(ways, 0, alpha)
    return replace(chosen, merit=0.0, ways=ways, levels=np.array([alpha]), basis=basis)


def _found(ways: Guesses, at: int, level: float) -> Basis:
    return (
        ("canaries", ways.canaries),
        ("guesses made", ways.made[at]),
        ("guesses right", ways.correct[at]),
        ("level", level),
    )


def best_of(ways: Guesses, refutes: Refutes, level: ArrayLike) -> BestGuess:
    """Return the best of these ways, each at this level, or at its own."""
    levels = np.broadcast_to(np.asarray(level, np.float64), ways.made.shape)
    merit, at = search.largest_refuted(
        lambda merits, some: refutes(ways.pick(some), merits, levels[some]),
        ways.made.size,
        limit=_LARGEST,
        relative=1e-7,
    )
    low, high = float(ways.low[at]), float(ways.high[at])
    basis = _found(ways, at, float(levels[at]))
    return BestGuess(merit=merit, low=low, high=high, ways=ways, levels=levels, basis=basis)


def count_guesses(bound: EpsilonLowerBound) -> tuple[str, ...]:
    """Say in a sentence what was guessed."""
    has = known(bound.basis)
    if not has:
        return ("This result does not say what was guessed.",)
    made, every = has["guesses made"], has["canaries"]
    side = {
        "present→absent": f"“in” where a score is at least {shown(bound.threshold)}",
        "absent→present": f"“out” where a score is below {shown(bound.threshold)}",
        "both": f"“in” where a score is at least {shown(bound.threshold)}, “out” below that or a "
        "lower threshold",
    }[bound.direction]
    what = f"canaries, each in or out by its own {'fair ' * (bound.inclusion == 0.5)}coin"
    if has.get("paired"):
        what = "pairs of canaries, one of each in by a fair coin"
        side = f"the higher score was in, where both differ by {shown(bound.threshold)} or more"
    return (
        f"Of {count(every)} {what}, {count(made)} were guessed ({side}), and "
        f"{count(has['guesses right'])} of the guesses were right; no guess was made for the "
        f"other {count(every - made)}.",
    )


def explain_guessing_cost(bound: EpsilonLowerBound) -> str:
    """Explain what choosing the way of guessing cost."""
    return _PAID.get(rule_of(bound), f"Thresholds: {bound.threshold_rule}.")


def _everybody(observed: Observed, threshold: float) -> Guesses:
    observed.errors_at(threshold)  # refuses a threshold that was not counted at
    cut = np.array([threshold])
    return _both(_out(observed, cut), _in(observed, cut))


def _in(observed: Observed, high: FloatArray) -> Guesses:
    """Guesses "in iff score ≥ high" and no one out."""
    correct = observed.n_in - count_below(observed, high, outside=False)
    wrong = observed.n_out - count_below(observed, high, outside=True)
    nobody = np.full(high.size, np.nan)
    return _guesses(observed, nobody, high, correct, wrong)


def _out(observed: Observed, low: FloatArray) -> Guesses:
    """Guesses "out iff score < low" and no one in."""
    correct = count_below(observed, low, outside=True)
    wrong = count_below(observed, low, outside=False)
    nobody = np.full(low.size, np.nan)
    return _guesses(observed, low, nobody, correct, wrong)


def _again(observed: Observed, chosen: BestGuess) -> Guesses:
    """The way that was chosen elsewhere."""
    low, high = np.array([chosen.low]), np.array([chosen.high])
    match chosen.direction:
        case "present→absent":
            return _in(observed, high)
        case "absent→present":
            return _out(observed, low)
        case _:
            return _both(_out(observed, low), _in(observed, high))


def _guesses(
    observed: Observed, low: FloatArray, high: FloatArray, correct: IntArray, wrong: IntArray
) -> Guesses:
    canaries = observed.n_in + observed.n_out
    return Guesses(canaries=canaries, low=low, high=high, made=correct + wrong, correct=correct)


def _both(out: Guesses, inside: Guesses) -> Guesses:
    """Guesses of both kinds at once, of ways in the same order whose cuts do not cross."""
    return Guesses(
        canaries=out.canaries,
        low=out.low,
        high=inside.high,
        made=out.made + inside.made,
        correct=out.correct + inside.correct,
    )


def _together(*ways: Guesses) -> Guesses:
    return Guesses(
        canaries=ways[0].canaries,
        low=np.concatenate([way.low for way in ways]),
        high=np.concatenate([way.high for way in ways]),
        made=np.concatenate([way.made for way in ways]),
        correct=np.concatenate([way.correct for way in ways]),
    )


def _spread(canaries: int) -> IntArray:
    """Ranks 1, 2, 3, 4, 5, 7, … up to half of the canaries."""
    steps = math.ceil(math.log(max(canaries / 2, 1), _FINE)) + 1
    return np.unique(np.geomspace(1, max(canaries // 2, 1), steps).astype(np.int64))


def _foresee(ways: Guesses, canaries: int) -> Guesses:
    """Predict results of ways for that many other canaries, by Laplace's rule of succession.

    It shrinks towards one half, so that few guesses which happened to be right count little.
    """
    made = np.rint(ways.made * canaries / ways.canaries).astype(np.int64)
    right = np.floor(made * (ways.correct + 1) / (ways.made + 2)).astype(np.int64)
    return replace(ways, canaries=canaries, made=made, correct=right)


def _rank(observed: Observed, ranks: IntArray) -> Guesses:
    """The top k, the bottom k, and both, of the pooled scores; equal scores stay together."""
    half = (observed.n_in + observed.n_out) // 2  # of both sides: everybody
    ranks = np.union1d(ranks, [half])
    top, bottom = find_cuts(observed, ranks)
    inside, out, apart = _in(observed, top), _out(observed, bottom), bottom <= top
    return _together(inside, out, _both(out.pick(apart), inside.pick(apart)))


def _all(observed: Observed) -> Guesses:
    """Every threshold, with guesses above it, below it, and on both sides."""
    every = tradeoff_curve(observed).thresholds[1:]  # at the first nobody is in
    inside, out = _in(observed, every), _out(observed, every)
    return _together(inside, out, _both(out, inside))
