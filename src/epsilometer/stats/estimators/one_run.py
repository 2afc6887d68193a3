"""One training run, many canaries, under (ε, δ)-DP.

A guess of a canary's coin is right with chance e^ε/(1 + e^ε) at most, whatever is known of the
other coins (Steinke, Nasr, Jagielski 2023). What δ adds is proved in
:mod:`epsilometer.stats.guess_looks`, for one look at the guesses and for many at once. ``AllRanks``
makes looks at fine ranks from the top, from the bottom and from both ends, up to everyone.

**Pairs.** One of each pair is in, by a fair coin, and the higher score is guessed to be it. The
other face of the coin is a replacement: (ε, δ)-DP of replaced records is used as it is. Of records
that are added or removed it is two steps: if M(s) is the run, M(−) the run without either, then
M(s) ≤ e^ε·M(−) + δ ≤ e^(2ε)·M(s′) + e^ε·δ + δ, which is (2ε, (1 + e^ε)·δ)-DP for the coin.

**A fixed number inside.** Canaries are paired at random, in with out, without regard to scores.
Given the pairs, either canary of each was in with the same chance, independently: see
:func:`epsilometer.stats.guess_counts.pair_scores`. Then they are pairs as above.
"""

import functools
from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from epsilometer.core.bound import Direction, EpsilonLowerBound
from epsilometer.core.scores import CANARIES
from epsilometer.errors import warn
from epsilometer.stats.derivation import Derivation, known, rule_of, shown
from epsilometer.stats.estimators.guesses import (
    RULES,
    Guesses,
    Refutes,
    best_guess,
    count_guesses,
    explain_guessing_cost,
)
from epsilometer.stats.estimators.method import Found, Method
from epsilometer.stats.guess_counts import count_right, count_right_pairs, pair_scores
from epsilometer.stats.guess_looks import Game, compute_slope, find_epsilon, get_family, is_refuted
from epsilometer.stats.thresholds import AllRanks, Observed, ThresholdRule
from epsilometer.stats.tie_orders import choose_order, count_orders, count_orders_of_pairs
from epsilometer.types import FloatArray, IntArray

_DIRECTIONS: dict[str, Direction] = {
    "in": "present→absent",
    "out": "absent→present",
    "both": "both",
}


def find(
    observed: Observed,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
    steps: int = 2,
) -> Found:
    """Return the largest ε at which this many right guesses have probability at most ``alpha``.

    Args:
        observed: Scores of canaries.
        delta: δ of the claim.
        alpha: Chance of error.
        rule: How ways of guessing are chosen.
        rng: Breaks ties, pairs canaries, and splits them for ``HoldOut``.
        steps: Neighbours from one face of a pair's coin to the other.
    """
    if isinstance(rule, AllRanks):
        return _find_at_all_ranks(observed, delta=delta, alpha=alpha, rng=rng, steps=steps)
    best = best_guess(observed, _refutes(delta), alpha=alpha, rule=rule, rng=rng)
    twice = np.full(best.ways.made.size, 2 * best.merit)
    lost = delta > 0 and bool(_refutes(0.0)(best.ways, twice, best.levels).any())
    return Found(
        epsilon=best.merit,
        direction=best.direction,
        threshold=best.threshold,
        basis=best.basis,
        caveats=_remark(best.ways.canaries * delta) if lost else (),
    )


def _find_at_all_ranks(
    observed: Observed, *, delta: float, alpha: float, rng: np.random.Generator, steps: int
) -> Found:
    paired = observed.design != "coins"
    if paired:
        differences = pair_scores(observed, rng)
        game = Game(canaries=differences.size, paired=True, steps=steps, delta=delta)
        family = get_family(game, alpha)
        draw = functools.partial(count_right_pairs, differences, family, rng)
    else:
        canaries = observed.n_in + observed.n_out
        game = Game(canaries=canaries, inclusion=observed.inclusion, delta=delta)
        family = get_family(game, alpha)
        draw = functools.partial(count_right, observed, family, rng)
    guesses = draw()
    if guesses.tied:
        orders = count_orders_of_pairs(differences) if paired else count_orders(observed)
        guesses = choose_order(guesses, draw, lambda seen: family.order(seen.right)[0], orders)
    value, chosen = family.order(guesses.right)
    epsilon = find_epsilon(game, alpha, value) if value > 0 else 0.0
    lost = _is_lost_to_delta(game, alpha, guesses.right, epsilon)
    side = str(family.sides[chosen])
    low, high = float(guesses.low[chosen]), float(guesses.high[chosen])
    return Found(
        epsilon=epsilon,
        direction=_DIRECTIONS[side],
        threshold=low if np.isnan(high) else high,
        basis=(
            ("canaries", game.canaries),
            ("guesses made", family.made[chosen]),
            ("guesses right", guesses.right[chosen]),
            ("paired", int(paired)),
            ("steps", game.steps),
            ("ties broken", int(guesses.tied)),
            ("α", alpha),
            ("speaks for", max(value, 0.0)),
        ),
        caveats=_remark(game.canaries * delta) if lost else (),
    )


def _is_lost_to_delta(game: Game, alpha: float, right: IntArray, epsilon: float) -> bool:
    """Whether twice as much would be proved without δ."""
    if game.canaries * game.delta < 1e-3 * alpha:
        return False
    without = replace(game, delta=0.0)
    value, _ = get_family(without, alpha).order(right)
    return value > 0 and is_refuted(2 * epsilon, without, alpha=alpha, value=value)


def _remark(lost: float) -> tuple[str, ...]:
    caveat = (
        f"mδ = {lost:.3g} takes away more than half of the bound: use a smaller δ, fewer "
        "canaries, or the rule HoldOut(), which makes one look only."
    )
    warn(caveat)
    return (caveat,)


def p_value(
    canaries: int, made: ArrayLike, correct: ArrayLike, *, epsilon: ArrayLike, delta: float
) -> FloatArray:
    """Bound the chance of this many right guesses if the run is (ε, δ)-DP.

    With W ~ Bin(r, e^ε/(1+e^ε)) and β = Pr[W ≥ v] it is β + mδ·β·(1 − β)/(v·Pr[W = v]). Of r = m
    some mechanism attains it.

    Args:
        canaries: m, each in or out by a fair coin.
        made: r, guesses made; the others are abstained from.
        correct: v, guesses that were right.
        epsilon: At least 0.
        delta: In [0, 1].

    Example:
        >>> p_value(100, 100, [75, 90], epsilon=np.log(3), delta=0.0).round(3)
        array([0.553, 0.   ])
    """
    r, v, chance = np.broadcast_arrays(
        made, correct, scipy.special.expit(np.asarray(epsilon, np.float64))
    )
    some = np.maximum(v, 1)
    tail = np.where(v > 0, scipy.special.betainc(some, np.maximum(r - v + 1, 1), chance), 1.0)
    if delta > 0:
        certain = chance >= 1 - 2.0**-53
        slope = compute_slope(np.maximum(r, 1), some, np.where(certain, 0.5, chance))
        tail = tail + np.where(certain, 0.0, canaries * delta * slope * (1 - tail))
    return np.minimum(tail, 1.0)


def _refutes(delta: float) -> Refutes:
    """Whether the p-value is at most the level; its costly part is computed only if needed."""

    def refutes(ways: Guesses, epsilon: FloatArray, levels: FloatArray) -> NDArray[np.bool_]:
        made, correct = ways.made, ways.correct
        answer = p_value(ways.canaries, made, correct, epsilon=epsilon, delta=0.0) <= levels
        if delta > 0:
            at = np.flatnonzero(answer)
            answer[at] = (
                p_value(ways.canaries, made[at], correct[at], epsilon=epsilon[at], delta=delta)
                <= levels[at]
            )
        return np.asarray(answer)

    return refutes


def _derive(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    if rule_of(bound) == "AllRanks":
        return _derive_at_all_ranks(bound)
    if not has:
        last: tuple[str, ...] = ()
    elif bound.epsilon == 0:
        last = (f"p(0) > α′ = {shown(has['level'])}: nothing is refuted, ε = 0",)
    else:
        m, r, v = (shown(has[name]) for name in ("canaries", "guesses made", "guesses right"))
        at = f"m = {m}, r = {r}, v = {v}, δ = {shown(bound.delta)}"
        last = (f"With {at}: p({shown(bound.epsilon)}) = α′ = {shown(has['level'])}",)
    return Derivation(
        counted=count_guesses(bound),
        formula=(
            "If the run is (ε, δ)-DP, a guess is right with chance e^ε/(1 + e^ε) at most, but for "
            "δ: so many are right with chance at most",
            "p(ε) = β + mδ·β·(1 − β)/(v·Pr[W = v]), β = Pr[W ≥ v], W ~ Bin(r, e^ε/(1 + e^ε))",
            "ε is the largest with p(ε) ≤ α′",
            *last,
        ),
        holds=(explain_guessing_cost(bound),),
    )


def _derive_at_all_ranks(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    counted: tuple[str, ...] = ("This result does not say what was guessed.",)
    last: tuple[str, ...] = ()
    odds = "2ε" if has.get("steps") == 2 else "ε"
    chance = f"e^{odds}/(1 + e^{odds})"
    if bound.inclusion != 0.5:
        chance = "p·e^ε/(1 − p + p·e^ε) of “in”, (1 − p)·e^ε/(p + (1 − p)·e^ε) of “out”"
    if has:
        counted = count_guesses(bound)
        m, value = shown(has["canaries"]), shown(has["speaks for"])
        last = (
            f"With m = {m}, δ = {shown(bound.delta)}: looks that speak for {value} or more happen "
            f"with chance p({shown(bound.epsilon)}) = α = {shown(has['α'])}"
            if bound.epsilon > 0
            else f"p(0) > α = {shown(has['α'])}: nothing is refuted, ε = 0",
        )
    return Derivation(
        counted=counted,
        formula=(
            "If the run is (ε, δ)-DP, a guess is right with chance at most "
            f"{chance}, whatever is known of other canaries, but for δ",
            "A look counts right guesses among the first k, for k = 1, 2, 3, … in a ratio of 1.2, "
            "and speaks for the ε at which so many would be as likely as its level",
            "p(ε) = Pr[some look speaks for as much, guesses being right independently] + mδ·λ, "
            "λ = β·(1 − β)/(v·Pr[W = v]) of one look, limited likewise for all",
            *last,
        ),
        holds=(
            "The guesser sees scores but not coin tosses, so looks at ranks of all scores cost "
            "nothing. All looks are one event, whose probability is computed, so choosing among "
            "them costs nothing. Equal scores are ordered at random, by the seed.",
        ),
    )


METHOD = Method(
    find=find,
    find_replaced=functools.partial(find, steps=1),
    derive=_derive,
    rules=(AllRanks, *RULES),
    exact=True,
    guarantees="The bound exceeds the true ε in at most 1 − confidence of runs, for any attack.",
    assumes="One run, whose canaries were included as their design says: each by its own coin "
    "toss; one of each pair by a fair coin toss; or a fixed number, drawn at random.",
    cites=("steinke2023",),
    designs=CANARIES,
)
