"""A result in plain sentences: what was found, what it means, and what it does not."""

from epsilometer.results import AuditResult, EpsilonLowerBound


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
    """What the bound says, and what it does not."""
    if not bound.valid:
        return [*bound.caveats, "Use it to compare with a paper, not to judge a claim."]
    wrong = f"{1 - bound.confidence:.3g}".rstrip("0").rstrip(".")
    lines = [
        f"No mechanism with a smaller ε at this δ behaves like this; that is wrong in at most a "
        f"fraction {wrong} of audits.",
        "It does not say that the true ε is this small: another attack, a worse record or more "
        "runs may prove more. A lower bound never proves privacy.",
    ]
    if bound.epsilon == 0:
        lines[0] = "Nothing was found: these scores do not tell the two worlds apart."
    return [*lines, *bound.caveats]
