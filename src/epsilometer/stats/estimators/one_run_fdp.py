"""One training run, many canaries, under Gaussian DP (Mahloujifar, Melis, Chaudhuri 2024)."""

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import CANARIES
from epsilometer.errors import InvalidArgument
from epsilometer.stats.derivation import Derivation, epsilon_of_mu, known, shown
from epsilometer.stats.estimators.guesses import (
    RULES,
    Guesses,
    best_guess,
    count_guesses,
    explain_guessing_cost,
)
from epsilometer.stats.estimators.method import Found, Method
from epsilometer.stats.gaussians import gdp_epsilon
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
    """The largest μ at which so many right guesses have probability at most ``alpha``, as ε(δ)."""
    if delta == 0:
        raise InvalidArgument(
            "one_run_fdp needs delta > 0: at δ = 0 every Gaussian mechanism has ε = ∞."
        )
    best = best_guess(observed, refutes_gdp, alpha=alpha, rule=rule, rng=rng)
    return Found(
        epsilon=gdp_epsilon(best.merit, delta),
        direction=best.direction,
        threshold=best.threshold,
        basis=(*best.basis, ("μ", best.merit)),
    )


def refutes_gdp(ways: Guesses, mu: FloatArray, level: float) -> NDArray[np.bool_]:
    """Whether so many right guesses have probability at most ``level`` under μ-GDP.

    If they had more, the chances of exactly i right guesses would obey the recursion of the
    paper's Algorithm 3, started from the level; it raises their sum above the share of canaries
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
        least = scipy.special.ndtr(scipy.special.ndtri(right[at]) - mu[at])
        raised = np.maximum(least, wrong[at])
        right[at] += i / (ways.made[at] - i) * (raised - wrong[at])
        refuted[at] = right[at] + raised > share[at]
        # A sequence that stands still stays so; one that is refuted stays that too.
        live[at] = (raised > wrong[at]) & ~refuted[at]
        wrong[at] = raised
    return refuted


def _derive(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    at: tuple[str, ...] = ()
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


METHOD = Method(
    find=find,
    derive=_derive,
    rules=RULES,
    exact=True,
    guarantees="Exceeds the true ε in at most 1 − confidence of runs of a Gaussian mechanism.",
    assumes="One run; every canary was put in or left out by its own fair coin; the mechanism's "
    "trade-off curve for each canary is Gaussian. For other mechanisms it can be too large.",
    cites=("mahloujifar2024", "dong2022", "balle2018"),
    designs=CANARIES,
)
