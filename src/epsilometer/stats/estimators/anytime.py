"""The anytime-valid bound on pairs in the order given (``stats.sequential``)."""

import numpy as np

from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.scores import ScoreCounts, Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.derivation import Derivation, count, known, shown
from epsilometer.stats.estimators.counting import best_look, two_rates
from epsilometer.stats.estimators.method import Found, Method
from epsilometer.stats.sequential import CITES, ConfidenceSequence
from epsilometer.stats.thresholds import Best, Fixed, HoldOut, Observed, RankGrid, ThresholdRule

_PILOT = 0.1  # of the pairs place the thresholds of a rank grid


def find(
    observed: Observed,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> Found:
    """Bets on the pairs; ``HoldOut`` and ``RankGrid`` place thresholds on the first ones."""
    if isinstance(observed, ScoreCounts):
        raise InvalidArgument(
            "anytime bets on pairs in order, and counts have none. "
            "Feed a ConfidenceSequence as scores arrive instead."
        )
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
            used = _pilot_size(pairs, _PILOT)
            pilot = Scores(observed.inside[:used], observed.outside[:used])
            audit = ConfidenceSequence.from_pilot(pilot, delta=delta, confidence=confidence)
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
            f"{count(has['pairs with both'])} pairs both.",
        )
        level = has["level"]
        last = f": {shown(bound.epsilon)}, where 1/α = {shown(1 / level)}"
    return Derivation(
        counted=counted,
        formula=(
            "X(ε) = 1[inside ≥ τ] − e^ε·1[outside ≥ τ] − δ has mean at most 0 if (ε, δ)-DP holds",
            "W(ε) = mean over τ, stakes λ and both directions of Π (1 + λ·X(ε)), over all pairs: "
            "what a bettor who began with 1 owns",
            f"ε is the largest with W(ε) ≥ 1/α, at this or an earlier look{last}",
        ),
        holds=(
            "Who bets on what has mean at most 0 ever owns 1/α with chance at most α (Ville 1939), "
            "however often he looks and whenever he stops. All thresholds and stakes share one "
            "wealth, so none is paid for apart; they were placed before the first pair that is "
            "bet on.",
        ),
    )


METHOD = Method(
    find=find,
    derive=_derive,
    rules=(RankGrid, HoldOut, Fixed),
    exact=True,
    guarantees="No bound of the sequence ever exceeds the true ε, in all but 1 − confidence of "
    "audits, whenever they are stopped.",
    assumes="Pairs of runs, one inside and one outside, independent of each other, in the order "
    "they arrived; scores beyond the shorter side are not used.",
    cites=CITES,
)
