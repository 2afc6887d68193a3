"""The anytime-valid bound on pairs in the order given (``stats.sequential``)."""

import numpy as np

from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.bets import CITES
from epsilometer.stats.derivation import Derivation, count, known, shown
from epsilometer.stats.designs import refuse_sorted_pairs
from epsilometer.stats.estimators.counting import best_look, two_rates
from epsilometer.stats.estimators.method import Found, Method
from epsilometer.stats.sequential import ConfidenceSequence
from epsilometer.stats.thresholds import Best, Fixed, HoldOut, Observed, RankGrid, ThresholdRule


def find(
    observed: Observed,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> Found:
    """Bet on pairs; ``RankGrid`` places thresholds by earlier ones, ``HoldOut`` by the first."""
    if isinstance(observed, ScoreCounts):
        raise InvalidArgument(
            "anytime bets on pairs in order, and counts have none. "
            "Feed a ConfidenceSequence as scores arrive instead."
        )
    refuse_sorted_pairs(observed)
    pairs = min(observed.n_in, observed.n_out)
    used, confidence = 0, 1 - alpha
    match rule:
        case Fixed(value):
            audit = ConfidenceSequence([value], delta=delta, confidence=confidence)
        case HoldOut(fraction):
            used = _pilot_size(pairs, fraction)
            pilot = Scores(observed.inside[:used], observed.outside[:used])
            judge = two_rates("clopper_pearson")
            best = best_look(pilot, judge, delta=delta, alpha=alpha, rule=Best(), rng=rng)
            audit = ConfidenceSequence([best.threshold], delta=delta, confidence=confidence)
        case _:
            audit = ConfidenceSequence(delta=delta, confidence=confidence)
    audit.update(observed.inside[used:pairs], observed.outside[used:pairs])
    bound = audit.lower_bound()
    return Found(
        epsilon=bound.epsilon,
        direction=bound.direction,
        threshold=bound.threshold,
        basis=(*bound.basis, ("pairs that placed thresholds", used)),
    )


def _pilot_size(pairs: int, fraction: float) -> int:
    if pairs < 2:
        raise InvalidArgument(f"Expected at least 2 pairs, one to bet on, got {pairs}.")
    return min(max(round(pairs * fraction), 1), pairs - 1)


def _derive(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    counted, last = ("This result does not say what was counted.",), ""
    if has:
        counted = (
            f"{count(has['pairs'])} pairs of runs were bet on at {count(has['thresholds'])} "
            f"thresholds. At {shown(bound.threshold)}, where most was won, "
            f"{count(has['inside at or above'])} scores inside and "
            f"{count(has['outside at or above'])} outside reach it, in "
            f"{count(has['pairs with both'])} pairs both, of "
            f"{count(has['pairs at the threshold'])} pairs since it was placed.",
        )
        level = has["level"]
        last = f": {shown(bound.epsilon)}, where 1/α = {shown(1 / level)}"
    return Derivation(
        counted=counted,
        formula=(
            "a bet pays 1 + λ·X(ε) per pair, X(ε) = 1[inside ≥ τ] − e^ε·1[outside ≥ τ] − δ or "
            "its mirror image; or A(1[inside ≥ τ])·B(1[outside ≥ τ]), the probability under rates "
            "(p₁, q₁) divided by that under the nearest (p₀, q₀) that (ε, δ)-DP allows",
            "W(ε) = mean over τ and a fixed grid of λ and of (p₁, q₁) of the product of "
            "payoffs, over all pairs since τ was placed: the wealth of a bettor who began with 1",
            f"ε is the largest with W(ε') ≥ 1/α for all ε' ≤ ε, at this or an earlier look{last}",
        ),
        holds=(
            "If (ε, δ)-DP holds, X(ε) has mean at most 0. The rates that it allows form a convex "
            "region; (p₀, q₀) is nearest, so A(p) + B(q) ≤ 2 for all (p, q) in it, and the mean "
            "payoff is A(p)·B(q) ≤ 1. That uses both directions of the definition at once.",
            "A bettor whose payoffs have mean at most 1 reaches 1/α with probability at most α "
            "(Ville 1939), however often they look and whenever they stop. All thresholds and "
            "bets share one wealth, so none costs extra; a threshold is placed before the pairs "
            "it is used on.",
        ),
    )


METHOD = Method(
    find=find,
    derive=_derive,
    rules=(RankGrid, HoldOut, Fixed),
    exact=True,
    guarantees="No bound of the sequence ever exceeds the true ε, in all but 1 − confidence of "
    "audits, whenever they are stopped.",
    assumes="Pairs of runs, one inside and one outside, in the order they arrived; all runs are "
    "independent, also in a pair. Scores beyond the shorter side are not used.",
    cites=CITES,
)
