"""Word bounds, estimates and claims: the sentences that builders share."""

from epsilometer.core.audit import Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.document import Fact
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.words import claimed, number, number_up
from epsilometer.stats.estimators import REGISTRY

# Titles of an explanation.
COUNTED, FORMULA = "What was counted", "From that to ε"
HOLDS, NOT_SAID = "Why the confidence holds", "What it does not say"
MEASURED = "How it is measured"
CODE = (FORMULA, MEASURED)  # whoever copies a formula must get it whole
_ADJACENCY = {
    "add_remove": "one record added or removed",
    "zero_out": "one record zeroed out",
    "replace": "one record replaced",
    "unstated": "not stated",
}
_NEIGHBOURS = {
    "add_remove": "One has the record, the other does not; all else is the same.",
    "zero_out": "One has the record, the other has zeros in its place; all else is the same.",
    "replace": "In one of them another record stands in its place; all else is the same.",
    "unstated": "One has the record, the other does not. How the two differ beyond that was not "
    "stated, and an ε for one kind of neighbours says nothing about another.",
}


def word_bound(bound: EpsilonLowerBound) -> str:
    """Say what a bound alone says, in a sentence."""
    measured = f"ε ≥ {number(bound.epsilon)} at δ = {bound.delta:g}"
    return f"{'The attack proves' if bound.valid else 'Not a valid bound:'} {measured}."


def word_estimate(estimate: EpsilonEstimate) -> str:
    """Say what an estimate says, and what it may decide."""
    how = "computed" if estimate.confidence == 1 else f"{estimate.confidence:.4g} sure"
    ends = f"{number(estimate.low)} to {number_up(estimate.high)}, {how}"
    role = "; decides nothing" if estimate.role == "reference" else ""
    return f"ε = {number(estimate.epsilon)} at δ = {estimate.delta:g} ({ends}{role})"


def word_claim(claim: Claim) -> str:
    """Say a claim in a sentence."""
    parts = [f"ε = {claimed(claim.epsilon)} at δ = {claim.delta:g}"]
    if claim.adjacency != "unstated":
        parts.append(f"for {_ADJACENCY[claim.adjacency].replace('record', claim.unit)}")
    elif claim.unit != "record":
        parts.append(f"for a {claim.unit}")
    if claim.sampler != "unstated":
        parts.append(f"batches: {claim.sampler}")
    if claim.accountant != "unstated":
        parts.append(f"computed by {claim.accountant}")
    return ", ".join(parts) + "."


def word_bound_meaning(bound: EpsilonLowerBound) -> list[str]:
    """Say what a bound says, what it rests on, and what it does not say."""
    if not bound.valid:
        return [*bound.caveats, *word_limits(bound)]
    found = (
        f"With {bound.confidence:.4g} confidence the true ε is above {number(bound.epsilon)}: "
        f"bounds like this exceed the truth in at most {1 - bound.confidence:.3g} of audits."
        if bound.epsilon
        else "Nothing was proved: the scores do not tell whether the record was there, or are "
        "too few."
    )
    return [found, *word_assumptions(bound), *word_limits(bound), *bound.caveats]


def word_assumptions(bound: EpsilonLowerBound) -> list[str]:
    """Say what the method of a bound assumes; nothing where the method is not ours."""
    method = REGISTRY.get(bound.method)
    return [] if method is None else [f"It assumes: {method.assumes}"]


def word_limits(bound: EpsilonLowerBound) -> tuple[str, ...]:
    """Say what a bound does not say."""
    if not bound.valid:
        return ("Use it to compare with a paper, not to judge a claim.",)
    return (
        "It does not say that ε is this small: another attack, a worse record or more runs may "
        "prove more. A lower bound never proves privacy.",
    )


def word_threat(bound: EpsilonLowerBound, claim: Claim | None) -> list[Fact]:
    """Say who attacks what."""
    without = f"{bound.n_out:,} without it" if bound.n_out else "the law without it is known"
    sees = bound.adversary
    if sees == "unstated":
        sees = (
            "Not stated. A bound speaks only of adversaries who see at least as much as the one "
            "whose scores these are."
        )
    facts = [
        Fact("What the adversary sees", sees),
        Fact("The two datasets it tells apart", _NEIGHBOURS[bound.adjacency]),
        Fact("How often it tried", f"{bound.n_in:,} observations with the record, {without}."),
    ]
    if claim is not None:
        facts.append(Fact("What was claimed", word_claim(claim)))
    if claim is not None and claim.adjacency != bound.adjacency:
        mismatch = (
            f"The claim counts neighbours as {_ADJACENCY[claim.adjacency]}, the bound as "
            f"{_ADJACENCY[bound.adjacency]}: compare the two only where one kind covers the other."
        )
        facts.append(Fact("Beware", mismatch))
    return facts


def word_run(source: Provenance | EpsilonFinding) -> list[str]:
    """Say what a reader must know of a run: units that failed, or were not needed."""
    used, units, failed = source.used, source.units, source.failed
    notes = []
    if failed:
        notes.append(
            f"{failed:,} of {units:,} units failed; what they would have shown is counted against "
            "a refutation."
        )
    if used + failed < units:
        notes.append(f"The run stopped early: {used:,} of {units:,} units were used.")
    return notes
