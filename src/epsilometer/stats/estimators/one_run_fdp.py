"""One training run, many canaries, under f-DP (Mahloujifar, Melis, Chaudhuri 2024).

As a method the trade-off curve f is Gaussian. Where the mechanism is known but for one number, as
DP-SGD is but for its noise, :func:`bound_in_family` takes its curves.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.derivation import Derivation, epsilon_of_mu, known, shown
from epsilometer.stats.estimators.guesses import (
    RULES,
    Guesses,
    best_guess,
    choose_guess,
    count_guesses,
    explain_guessing_cost,
)
from epsilometer.stats.estimators.method import Found, Method
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.thresholds import HoldOut, Observed, RankGrid, ThresholdRule
from epsilometer.types import FloatArray

_LEAK_RATIO = 1.01  # of neighbouring leaks whose curves are computed
_ENOUGH = 200  # canaries, below which a part tells too little about how to guess the others
_LEAST_LEAK = 500  # steps of that ratio: a hundredth of the leak that is claimed, or its inverse


def find(
    observed: Observed,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> Found:
    """Return as ε(δ) the largest μ at which these guesses have probability at most ``alpha``."""
    if delta == 0:
        raise InvalidArgument(
            "one_run_fdp needs delta > 0: at δ = 0 every Gaussian mechanism has ε = ∞."
        )
    best = best_guess(observed, refutes_gdp, alpha=alpha, rule=rule, rng=rng, many=True)
    return Found(
        epsilon=gdp_epsilon(best.merit, delta),
        direction=best.direction,
        threshold=best.threshold,
        basis=(*best.basis, ("μ", best.merit)),
    )


@dataclass(frozen=True, kw_only=True)
class CurveFamily:
    """Mechanisms that each have a trade-off curve, by how much they leak.

    Attributes:
        least_wrong: (right, leak) → the smallest chance that an event has without the canary which
            has chance ``right`` with it, or reversed. Convex, and falling in the leak, which is
            1 for the mechanism that is claimed.
        epsilon: (leak, δ) → ε at δ, rounded down.
        assumed: What a reader must know of it, in words.
    """

    least_wrong: Callable[[FloatArray, float], FloatArray]
    epsilon: Callable[[float, float], float]
    assumed: str


def bound_in_family(
    scores: Scores,
    family: CurveFamily,
    *,
    delta: float,
    confidence: float,
    seed: int,
    adversary: str = "unstated",
) -> EpsilonLowerBound:
    """Bound ε from below where only the leak of a family's mechanism is unknown.

    Guarantee: refutes the mechanism that is claimed in at most ``1 - confidence`` of runs that
        have it, whatever the attack. The bound exceeds the true ε as seldom if the mechanism is
        one of the family.
    Assumption: one run; every canary was included by its own fair coin toss.

    The way of guessing is chosen on three tenths of the canaries, by Gaussian curves.
    """
    rule, rng = HoldOut(), np.random.default_rng(seed)
    alpha = 1 - confidence
    way = choose_guess(scores, refutes_gdp, alpha=alpha, rule=rule, rng=rng, many=True)

    def refuted(power: int) -> bool:
        leak = _LEAK_RATIO**power
        least = functools.partial(_ask_one, family.least_wrong, leak)
        return bool(refute_curve(way.ways, least, np.ones(1), way.levels)[0])

    low, high = -_LEAST_LEAK, 1
    if refuted(0):
        low = 0
        while high < _LEAST_LEAK and refuted(high):
            low, high = high, 2 * high
    else:
        high, step = 0, -8
        while step > -_LEAST_LEAK and not refuted(step):
            high, step = step, 2 * step
        low = max(step, -_LEAST_LEAK)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    leak = _LEAK_RATIO**low if low > -_LEAST_LEAK else 0.0
    return EpsilonLowerBound(
        epsilon=family.epsilon(leak, delta) if leak else 0.0,
        delta=delta,
        confidence=confidence,
        method="one_run_fdp",
        threshold_rule=repr(rule),
        valid=True,
        direction=way.direction,
        threshold=way.threshold,
        n_in=scores.n_in,
        n_out=scores.n_out,
        design=scores.design,
        inclusion=scores.inclusion,
        adjacency="add_remove",
        adversary=adversary,
        seed=seed,
        cites=("mahloujifar2024",),
        caveats=(family.assumed,),
        basis=(*way.basis, ("leak", leak)),
    )


def _ask_one(
    least_wrong: Callable[[FloatArray, float], FloatArray],
    leak: float,
    right: FloatArray,
    _: FloatArray,
) -> FloatArray:
    return least_wrong(right, leak)


def refutes_gdp(ways: Guesses, mu: FloatArray, level: FloatArray) -> NDArray[np.bool_]:
    """Return whether this many right guesses have probability at most ``level`` under μ-GDP."""
    return refute_curve(ways, _least_wrong_of_gaussians, mu, level)


def _least_wrong_of_gaussians(right: FloatArray, mu: FloatArray) -> FloatArray:
    return np.asarray(scipy.special.ndtr(scipy.special.ndtri(right) - mu))


def refute_curve(
    ways: Guesses,
    least_wrong: Callable[[FloatArray, FloatArray], FloatArray],
    mu: FloatArray,
    level: FloatArray,
) -> NDArray[np.bool_]:
    """Return whether this many right guesses have probability at most ``level`` under f-DP.

    If they had more, the chances of exactly i right guesses would obey the recursion of the
    paper's Algorithm 3, started from the level. It raises their sum above the share of canaries
    that was guessed, which is a contradiction.
    """
    share = ways.made / ways.canaries
    right = level * ways.correct / ways.canaries
    wrong = level * (ways.made - ways.correct) / ways.canaries
    refuted, live = np.zeros(share.size, bool), ways.correct > 0
    for i in reversed(range(int(ways.correct.max(initial=0)))):
        if not live.any():
            break
        at = np.flatnonzero(live & (ways.correct > i))
        raised = np.maximum(least_wrong(right[at], mu[at]), wrong[at])
        right[at] += i / (ways.made[at] - i) * (raised - wrong[at])
        refuted[at] = right[at] + raised > share[at]
        # A sequence that stands still stays so; one that is refuted stays that too.
        live[at] = (raised > wrong[at]) & ~refuted[at]
        wrong[at] = raised
    return refuted


def _derive(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    at: tuple[str, ...] = ()
    if "leak" in has:
        return _derive_in_family(bound)
    if has:
        m, r, v = (shown(has[name]) for name in ("canaries", "guesses made", "guesses right"))
        at = (
            f"With m = {m}, r = {r}, v = {v}, α′ = {shown(has['level'])} the largest μ that is "
            f"refuted is {shown(has['μ'])}",
        )
    return Derivation(
        counted=count_guesses(bound),
        formula=(
            "If v or more of r guesses were right with chance α′, then, with aᵥ = α′·v/m and "
            "bᵥ = α′·(r − v)/m, and i from v − 1 down to 0,",
            "bᵢ = max(bᵢ₊₁, Φ(Φ⁻¹(aᵢ₊₁) − μ)), aᵢ = aᵢ₊₁ + i/(r − i)·(bᵢ − bᵢ₊₁);",
            "a₀ + b₀ > r/m is a contradiction: μ-GDP is refuted (Algorithm 3)",
            *at,
            *epsilon_of_mu(bound),
        ),
        holds=(explain_guessing_cost(bound),),
    )


def _derive_in_family(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    m, r, v = (shown(has[name]) for name in ("canaries", "guesses made", "guesses right"))
    return Derivation(
        counted=count_guesses(bound),
        formula=(
            "If v or more of r guesses were right with chance α′, then, with aᵥ = α′·v/m and "
            "bᵥ = α′·(r − v)/m, and i from v − 1 down to 0,",
            "bᵢ = max(bᵢ₊₁, f(1 − aᵢ₊₁)), aᵢ = aᵢ₊₁ + i/(r − i)·(bᵢ − bᵢ₊₁), with f the trade-off "
            "curve of the mechanism that is claimed, its noise divided by c;",
            "a₀ + b₀ > r/m is a contradiction: noise so large is refuted (Algorithm 3)",
            f"With m = {m}, r = {r}, v = {v}, α′ = {shown(has['level'])} the largest c that is "
            f"refuted is {shown(has['leak'])}; ε = {shown(bound.epsilon)} is that of its curve at "
            f"δ = {shown(bound.delta)}",
        ),
        holds=(explain_guessing_cost(bound),),
    )


def _choose_rule(observed: Observed) -> ThresholdRule:
    """Choose on a part where there are canaries enough: a small share of α refutes far less."""
    many = observed.n_in + observed.n_out >= _ENOUGH
    return HoldOut() if many and isinstance(observed, Scores) else RankGrid()


METHOD = Method(
    find=find,
    derive=_derive,
    rules=RULES,
    exact=True,
    guarantees="Exceeds the true ε in at most 1 − confidence of runs of a Gaussian mechanism.",
    assumes="One run; every canary was included by its own fair coin toss; the trade-off curve "
    "for each canary is Gaussian. For other mechanisms it can be too large.",
    cites=("mahloujifar2024", "dong2022", "balle2018"),
    designs=("coins",),
    choose_rule=_choose_rule,
)
