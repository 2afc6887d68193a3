"""What all methods share that judge a threshold by its error counts: trying the thresholds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epsilometer.results import Direction
from epsilometer.stats import binomial, thresholds
from epsilometer.stats.estimators import ranks
from epsilometer.stats.estimators.method import DIRECTIONS, Find, Found, Winner
from epsilometer.stats.thresholds import (
    Best,
    Bonferroni,
    Fixed,
    HoldOut,
    Looks,
    Observed,
    RankGrid,
    ThresholdRule,
)
from epsilometer.stats.tradeoff import epsilon_of_limits, epsilon_of_rates
from epsilometer.types import FloatArray

RULES = (RankGrid, HoldOut, Bonferroni, Fixed, Best)
_FIRST_CHUNK = 128


@dataclass(frozen=True, kw_only=True)
class Judge:
    """How a method values a look.

    Attributes:
        merit: (looks, δ) → bound of each direction at each look, shape ``(directions, l)``. May be
            any increasing function of ε, and lower than it is where another look is better.
        optimistic: (looks, δ) → a cheap upper limit of the best merit at each look, ``(l,)``.
        least_fpr: (TPR, merit, δ) → the least FPR at which a mechanism of that merit can have that
            TPR. With it ranks are judged exactly; without it as the counts they stand for.
    """

    merit: Callable[[Looks, float], FloatArray]
    optimistic: Callable[[Looks, float], FloatArray]
    least_fpr: Callable[[FloatArray, float, float], FloatArray] | None = None


def finder(
    judge: Judge,
    *,
    directions: tuple[Direction, ...] = DIRECTIONS,
    epsilon_of: Callable[[float, float], float] = lambda merit, delta: merit,
) -> Find:
    """The ``find`` of a method that judges looks by their counts.

    Args:
        judge: Values the looks.
        directions: What the rows of its merit are called.
        epsilon_of: (merit, δ) → ε.
    """

    def find(
        observed: Observed,
        *,
        delta: float,
        alpha: float,
        rule: ThresholdRule,
        rng: np.random.Generator,
    ) -> Found:
        best = best_look(observed, judge, delta=delta, alpha=alpha, rule=rule, rng=rng)
        return Found(
            epsilon=epsilon_of(best.merit, delta),
            direction=directions[best.row],
            threshold=best.threshold,
        )

    return find


def two_rates(kind: Literal["clopper_pearson", "jeffreys"]) -> Judge:
    """Judges by upper limits on both rates, and the ε these imply."""

    def least_fpr(tpr: FloatArray, epsilon: float, delta: float) -> FloatArray:
        return np.asarray(np.maximum(tpr - delta, 0.0) * np.exp(-epsilon))

    def merit(looks: Looks, delta: float) -> FloatArray:
        fpr = binomial.upper_limit(
            looks.false_positives, looks.n_out, alpha=looks.alpha_fpr, kind=kind
        )
        fnr = binomial.upper_limit(
            looks.false_negatives, looks.n_in, alpha=looks.alpha_fnr, kind=kind
        )
        return epsilon_of_limits(fpr, fnr, delta)

    def raw(looks: Looks, delta: float) -> FloatArray:
        """ε of the observed rates: no limit is below the rate it limits."""
        fpr, fnr = looks.false_positives / looks.n_out, looks.false_negatives / looks.n_in
        return np.asarray(epsilon_of_rates(fpr, fnr, delta).max(axis=0))

    exact = kind == "clopper_pearson"
    return Judge(merit=merit, optimistic=raw, least_fpr=least_fpr if exact else None)


def best_look(
    observed: Observed,
    judge: Judge,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> Winner:
    """The look of greatest merit among those the rule allows, at the price the rule names."""
    match rule:
        case Fixed(value):
            return _at(thresholds.fixed(observed, value, alpha=alpha), judge, delta)
        case RankGrid():
            if judge.least_fpr is None:
                return _at(thresholds.rank_looks(observed, rule, alpha=alpha), judge, delta)
            sides = thresholds.rank_grid(observed, rule)
            return ranks.best_rank(sides, judge.least_fpr, delta=delta, alpha=alpha)
        case HoldOut(fraction):
            part, rest = thresholds.split(observed, fraction, rng)
            chosen = _best_corner(part, judge, delta=delta, alpha=alpha, corrected=False)
            return _at(thresholds.fixed(rest, chosen.threshold, alpha=alpha), judge, delta)
        case Bonferroni() | Best():
            corrected = isinstance(rule, Bonferroni)
            return _best_corner(observed, judge, delta=delta, alpha=alpha, corrected=corrected)


def _at(looks: Looks, judge: Judge, delta: float) -> Winner:
    """The best of these looks, all of them judged."""
    merit = judge.merit(looks, delta)
    row, at = np.unravel_index(np.argmax(merit), merit.shape)
    return Winner(merit=float(merit[row, at]), row=int(row), threshold=float(looks.thresholds[at]))


def _best_corner(
    observed: Observed, judge: Judge, *, delta: float, alpha: float, corrected: bool
) -> Winner:
    """The best of all thresholds, judging only those that could still win.

    The same answer as judging all: a look is passed over only when its optimistic merit does not
    exceed one already found.
    """
    best = Winner(merit=-1.0, row=0, threshold=np.inf)
    for looks in thresholds.corners(observed, alpha=alpha, corrected=corrected):
        best = _walk(looks, judge, delta, best)
    return best


def _walk(looks: Looks, judge: Judge, delta: float, best: Winner) -> Winner:
    hope = judge.optimistic(looks, delta)
    order = np.flatnonzero(hope > best.merit)
    order = order[np.argsort(-hope[order], kind="stable")]
    start, size = 0, _FIRST_CHUNK
    while start < order.size and hope[order[start]] > best.merit:
        chunk = order[start : start + size]
        found = _at(_pick(looks, chunk), judge, delta)
        best = found if found.merit > best.merit else best
        start, size = start + size, 2 * size
    return best


def _pick(looks: Looks, at: NDArray[np.intp]) -> Looks:
    return replace(
        looks,
        thresholds=looks.thresholds[at],
        false_positives=looks.false_positives[at],
        false_negatives=looks.false_negatives[at],
    )
