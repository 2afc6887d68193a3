"""One training run, many canaries, under (ε, δ)-DP (Steinke, Nasr, Jagielski 2023, Theorem 5.2)."""

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import CANARIES
from epsilometer.errors import warn
from epsilometer.stats.derivation import Derivation, known, shown
from epsilometer.stats.estimators.guesses import (
    RULES,
    Guesses,
    Refutes,
    best_guess,
    count_guesses,
    explain_guessing_cost,
)
from epsilometer.stats.estimators.method import Found, Method
from epsilometer.stats.thresholds import Observed, ThresholdRule
from epsilometer.types import FloatArray


def find(
    observed: Observed,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> Found:
    """The largest ε at which so many right guesses have probability at most ``alpha``."""
    best = best_guess(observed, _refutes(delta), alpha=alpha, rule=rule, rng=rng)
    caveats: tuple[str, ...] = ()
    twice = np.full(best.ways.made.size, 2 * best.merit)
    if delta > 0 and _refutes(0.0)(best.ways, twice, best.level).any():  # without δ, twice as much
        lost = 2 * (observed.n_in + observed.n_out) * delta
        caveats = (
            f"2mδ = {lost:.3g} swallows more than half of the bound: "
            "take a smaller δ or fewer canaries.",
        )
        warn(caveats[0])
    return Found(
        epsilon=best.merit,
        direction=best.direction,
        threshold=best.threshold,
        basis=best.basis,
        caveats=caveats,
    )


def p_value(
    canaries: int, made: ArrayLike, correct: ArrayLike, *, epsilon: ArrayLike, delta: float
) -> FloatArray:
    """Chance of so many right guesses, at most, if the run is (ε, δ)-DP; capped at 1.

    With W ~ Bin(r, e^ε/(1+e^ε)) it is Pr[W ≥ v] + 2mδ · max_i Pr[v > W ≥ v−i]/i.

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
    tail = _at_least(v, r, chance)
    if delta > 0:
        tail = tail + 2 * canaries * delta * _steepest(v, r, chance)
    return np.minimum(tail, 1.0)


def _refutes(delta: float) -> Refutes:
    """Whether the p-value is at most the level; its dear part is spared where the rest decides."""

    def refutes(ways: Guesses, epsilon: FloatArray, level: float) -> NDArray[np.bool_]:
        made, correct = ways.made, ways.correct
        answer = p_value(ways.canaries, made, correct, epsilon=epsilon, delta=0.0) <= level
        if delta > 0:
            at = np.flatnonzero(answer)
            answer[at] = (
                p_value(ways.canaries, made[at], correct[at], epsilon=epsilon[at], delta=delta)
                <= level
            )
        return np.asarray(answer)

    return refutes


def _at_least(v: FloatArray, r: FloatArray, chance: FloatArray) -> FloatArray:
    """Pr[Bin(r, chance) ≥ v]."""
    inside = scipy.special.betainc(np.maximum(v, 1), np.maximum(r - v + 1, 1), chance)
    return np.asarray(np.where(v <= 0, 1.0, inside))


def _steepest(v: FloatArray, r: FloatArray, chance: FloatArray) -> FloatArray:
    """max over i of Pr[v > W ≥ v−i]/i, for each (v, r).

    That is the highest mean of the i probabilities below v. They rise to the mode and fall beyond,
    so the mean rises exactly as long as the next probability exceeds it: i is found by halving.
    """
    tail = _at_least(v, r, chance)
    past_mode = v - np.floor((r + 1) * chance)  # up to the mode every probability exceeds the mean
    high = np.maximum(v, 1) + 1  # it rises up to low, not at high
    low = np.clip(past_mode, 1, high - 1)
    reach = past_mode + 3 * np.sqrt(r * chance * (1 - chance))  # beyond, likely enough
    i = np.clip(np.floor(reach), low, high - 1)
    while np.any(high - low > 1):
        rises = _mass(v - i, r, chance) * i >= _at_least(v - i, r, chance) - tail
        low, high = np.where(rises, i, low), np.where(rises, high, np.maximum(i, low + 1))
        i = np.floor((low + high) / 2)
    return np.where(v > 0, (_at_least(v - low, r, chance) - tail) / low, 0.0)


def _mass(k: FloatArray, r: FloatArray, chance: FloatArray) -> FloatArray:
    k = np.maximum(k, 0)
    log_choose = -scipy.special.betaln(k + 1, r - k + 1) - np.log1p(r)
    return np.asarray(
        np.exp(log_choose + scipy.special.xlogy(k, chance) + scipy.special.xlog1py(r - k, -chance))
    )


def _derive(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
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
            "p(ε) = Pr[W ≥ v] + 2mδ·maxᵢ Pr[v > W ≥ v − i]/i, W ~ Bin(r, e^ε/(1 + e^ε))",
            "ε is the largest with p(ε) ≤ α′ (Theorem 5.2)",
            *last,
        ),
        holds=(explain_guessing_cost(bound),),
    )


METHOD = Method(
    find=find,
    derive=_derive,
    rules=RULES,
    exact=True,
    guarantees="The bound exceeds the true ε in at most 1 − confidence of runs, for any attack.",
    assumes="One run; every canary was put in or left out by its own fair coin, so that about "
    "half the scores are inside.",
    cites=("steinke2023",),
    designs=CANARIES,
)
