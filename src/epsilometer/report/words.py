"""A result in plain sentences: what was found, what it means, and what it does not."""

from epsilometer.results import AuditResult, EpsilonLowerBound
from epsilometer.stats.estimators import REGISTRY


def verdict(result: AuditResult) -> str:
    """The verdict in a sentence."""
    bound = result.bound
    measured = f"ε ≥ {bound.epsilon:.2f} at δ = {bound.delta:g}"
    if result.claim is None:
        return (
            f"The attack proves {measured}." if bound.valid else f"Not a valid bound: {measured}."
        )
    promised = f"ε = {result.claim.epsilon:g}"
    match result.verdict:
        case "refuted":
            return f"REFUTED: {promised} was promised, the attack proves {measured}."
        case "no verdict":
            return f"NO VERDICT: {measured} is not a valid bound."
        case _:
            return f"NOT REFUTED: {promised} was promised, the attack proves only {measured}."


def meaning(bound: EpsilonLowerBound) -> list[str]:
    """What the bound says, what it rests on, and what it does not say."""
    if not bound.valid:
        return [*bound.caveats, "Use it to compare with a paper, not to judge a claim."]
    if bound.epsilon == 0:
        found = "Nothing was proved: the scores do not tell the two worlds apart, or are too few."
    else:
        found = (
            f"With {bound.confidence:.4g} confidence the true ε is above {bound.epsilon:.2f}: "
            f"bounds like this exceed the truth in at most {1 - bound.confidence:.3g} of audits."
        )
    return [
        found,
        *(f"It assumes: {row.assumes}" for name, row in REGISTRY.items() if name == bound.method),
        "It does not say that ε is this small: another attack, a worse record or more runs may "
        "prove more. A lower bound never proves privacy.",
        *bound.caveats,
    ]
