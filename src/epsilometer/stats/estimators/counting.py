"""Try thresholds, for all methods that judge them by error counts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from epsilometer.core.bound import Direction
from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial, thresholds
from epsilometer.stats.estimators import ranks
from epsilometer.stats.estimators.method import DIRECTIONS, Find, Found, Winner
from epsilometer.stats.estimators.ranks import Frontier
from epsilometer.stats.thresholds import (
    AllRanks,
    Best,
    Bonferroni,
    Fixed,
    HoldOut,
    Looks,
    Observed,
    Published,
    RankGrid,
    Ranks,
    RankSum,
    ThresholdRule,
)
from epsilometer.stats.tradeoff import epsilon_of_limits
from epsilometer.types import FloatArray, IntArray

RULES = (RankGrid, HoldOut, Bonferroni, Fixed, Best)
DP_FRONTIER = Frontier(  # of (ε, δ)-DP
    least_fpr=lambda tpr, epsilon, delta: np.maximum(tpr - delta, 0.0) * np.exp(-epsilon),
    most_tpr=lambda fpr, epsilon, delta: np.minimum(np.exp(epsilon) * fpr + delta, 1.0),
)
_STRETCH = 16


@dataclass(frozen=True, kw_only=True)
class Judge:
    """How a method values a look.

    Attributes:
        merit: (looks, δ) → bound of each direction at each look, shape ``(directions, l)``. May be
            any increasing function of ε, and lower than it is where another look is better.
            Falls as either count grows.
        beats: (looks, δ, merit) → which looks have a greater merit, ``(l,)``.
        frontier: What a merit allows. With it ranks are judged exactly; without it as the counts
            they stand for.
    """

    merit: Callable[[Looks, float], FloatArray]
    beats: Callable[[Looks, float, float], NDArray[np.bool_]]
    frontier: Frontier | None = None


def finder(
    judge: Judge,
    *,
    directions: tuple[Direction, ...] = DIRECTIONS,
    epsilon_of: Callable[[float, float], float] = lambda merit, delta: merit,
    merit: str = "ε",
) -> Find:
    """Return the ``find`` of a method that judges looks by their counts.

    Args:
        judge: Values the looks.
        directions: What the rows of its merit are called.
        epsilon_of: (merit, δ) → ε.
        merit: What its merit is, where that is not ε.
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
            basis=best.basis if merit == "ε" else (*best.basis, (merit, best.merit)),
        )

    return find


def two_rates(kind: Literal["clopper_pearson", "jeffreys"]) -> Judge:
    """Judge by upper limits on both rates, and the ε these imply."""

    def merit(looks: Looks, delta: float) -> FloatArray:
        fpr = binomial.upper_limit(
            looks.false_positives, looks.n_out, alpha=looks.alpha_fpr, kind=kind
        )
        fnr = binomial.upper_limit(
            looks.false_negatives, looks.n_in, alpha=looks.alpha_fnr, kind=kind
        )
        return epsilon_of_limits(fpr, fnr, delta)

    def beats(looks: Looks, delta: float, mark: float) -> NDArray[np.bool_]:
        return np.asarray(merit(looks, delta).max(axis=0) > mark)

    exact = kind == "clopper_pearson"
    return Judge(merit=merit, beats=beats, frontier=DP_FRONTIER if exact else None)


def best_look(
    observed: Observed,
    judge: Judge,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> Winner:
    """Return the look of greatest merit that the rule allows, at the price it names."""
    match rule:
        case Fixed(value):
            return _at(thresholds.fixed(observed, value, alpha=alpha), judge, delta)
        case RankGrid():
            if judge.frontier is None:
                return _at(thresholds.rank_looks(observed, rule, alpha=alpha), judge, delta)
            sides = thresholds.rank_grid(observed, rule)
            return ranks.best_rank(sides, judge.frontier, delta=delta, alpha=alpha)
        case HoldOut(fraction):
            part, rest = thresholds.split(observed, fraction, rng)
            cuts = thresholds.cuts(part, alpha_each=alpha / 2)
            chosen = _best_corner(part, cuts, _Search.by_counts(judge, delta))
            return _at(thresholds.fixed(rest, chosen.threshold, alpha=alpha), judge, delta)
        case Bonferroni() | Published() | Best():
            each = alpha if isinstance(rule, Published) else alpha / 2
            corrected = isinstance(rule, Bonferroni)
            cuts = thresholds.cuts(observed, alpha_each=each, corrected=corrected)
            search = _Search.by_counts(judge, delta)
            if isinstance(rule, Best) and judge.frontier is not None:
                search = _Search.by_ranks(judge.frontier, delta, alpha)
            return _best_corner(observed, cuts, search)
        case AllRanks() | RankSum():
            raise InvalidArgument(f"Expected a rule that chooses a threshold, got {rule!r}.")


def _at(looks: Looks, judge: Judge, delta: float) -> Winner:
    """The best of these looks, all of them judged."""
    merit = judge.merit(looks, delta)
    row, at = np.unravel_index(np.argmax(merit), merit.shape)
    return Winner(
        merit=float(merit[row, at]),
        row=int(row),
        threshold=float(looks.thresholds[at]),
        basis=(
            ("false positives", looks.false_positives[at]),
            ("scores outside", looks.n_out),
            ("level of the FPR", looks.alpha_fpr),
            ("false negatives", looks.false_negatives[at]),
            ("scores inside", looks.n_in),
            ("level of the FNR", looks.alpha_fnr),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Search:
    """How looks are compared.

    Attributes:
        best: The best of some looks.
        beats: (looks, merit) → which looks may have a greater merit, ``(l,)``.
    """

    best: Callable[[Looks], Winner]
    beats: Callable[[Looks, float], NDArray[np.bool_]]

    @classmethod
    def by_counts(cls, judge: Judge, delta: float) -> "_Search":
        """Compare looks by their counts."""
        return cls(
            best=lambda looks: _at(looks, judge, delta),
            beats=lambda looks, mark: judge.beats(looks, delta, mark),
        )

    @classmethod
    def by_ranks(cls, frontier: Frontier, delta: float, alpha: float) -> "_Search":
        """Compare looks by the exact test at their ranks, each of which spends all of α."""

        def may_refute(looks: Looks, mark: float) -> NDArray[np.bool_]:
            sides = (
                ranks.may_refute(side, frontier, mark, delta=delta, alpha=alpha)
                for side in _as_ranks(looks)
            )
            return np.asarray(np.logical_or(*sides))

        return cls(
            best=lambda looks: ranks.best_rank(
                _as_ranks(looks), frontier, delta=delta, alpha=alpha
            ),
            beats=may_refute,
        )


def _as_ranks(looks: Looks) -> tuple[Ranks, Ranks]:
    """Looks as ranks of either side; where all of a side lie beyond, nothing is refuted."""

    def side(errors: IntArray, n_ranked: int, beyond: IntArray, n_other: int) -> Ranks:
        return Ranks(
            thresholds=looks.thresholds,
            ranks=np.minimum(errors + 1, n_ranked),
            n_ranked=n_ranked,
            beyond=np.where(errors < n_ranked, beyond, 0),
            n_other=n_other,
            share=np.ones(errors.size),
        )

    positives, negatives = looks.false_positives, looks.false_negatives
    return (
        side(positives, looks.n_out, looks.n_in - negatives, looks.n_in),
        side(negatives, looks.n_in, looks.n_out - positives, looks.n_out),
    )


def _best_corner(observed: Observed, cuts: Looks, search: _Search) -> Winner:
    """The best of all thresholds, judging only those that could still win.

    Merit falls as either count grows. So between two thresholds none beats one that had the false
    positives of the upper and the false negatives of the lower: stretches are passed over whole
    where that does not exceed a merit already found, and the answer is that of judging all.
    """
    best = search.best(cuts)
    ideal = _looks(cuts, cuts.false_positives[:-1], cuts.false_negatives[1:])
    open_ = np.concatenate([[False], search.beats(ideal, best.merit), [False]])
    edges = np.flatnonzero(open_[1:] != open_[:-1])
    for upper, lower in zip(edges[::2], edges[1::2], strict=True):  # runs of bands left open
        looks = thresholds.corners(observed, cuts, upper=upper, lower=lower)
        best = _best_between(looks, search, best)
    return best


def _best_between(looks: Looks, search: _Search, best: Winner) -> Winner:
    """Halves stretches of corners, sixteen ways at a time, until single ones are left."""
    end, size = looks.thresholds.size, _STRETCH**3
    starts = np.arange(0, end, size)
    while starts.size:
        stops = np.minimum(starts + size, end)
        ideal = _looks(looks, looks.false_positives[stops - 1], looks.false_negatives[starts])
        starts = starts[search.beats(ideal, best.merit)]
        if not starts.size:
            break
        found = search.best(_pick(looks, np.minimum(starts + size // 2, end - 1)))
        best = found if found.merit > best.merit else best
        if size == 1:
            break
        size //= _STRETCH
        starts = (starts[:, None] + np.arange(0, size * _STRETCH, size)).ravel()
        starts = starts[starts < end]
    return best


def _looks(looks: Looks, positives: IntArray, negatives: IntArray) -> Looks:
    return replace(
        looks,
        thresholds=np.full(positives.size, np.nan),
        false_positives=positives,
        false_negatives=negatives,
    )


def _pick(looks: Looks, at: NDArray[np.intp]) -> Looks:
    return replace(
        looks,
        thresholds=looks.thresholds[at],
        false_positives=looks.false_positives[at],
        false_negatives=looks.false_negatives[at],
    )
