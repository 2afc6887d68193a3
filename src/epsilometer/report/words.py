"""Word bounds, estimates and claims: the sentences that builders share."""

from typing import Any

from epsilometer.core.audit import Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.document import Fact
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.words import claimed
from epsilometer.report.texts import TEXTS, fill
from epsilometer.stats.estimators import REGISTRY

# Titles of an explanation.
COUNTED, FORMULA = "What was counted", "From that to ε"
HOLDS, NOT_SAID = "Why the confidence holds", "What it does not say"
MEASURED = "How it is measured"
CODE = (FORMULA, MEASURED)  # whoever copies a formula must get it whole


def say(key: str, item: Any, **more: Any) -> str:
    """Return a sentence about an item."""
    return fill(TEXTS["sentences"][key], None, item, **more)


def word_bound(bound: EpsilonLowerBound) -> str:
    """Say what a bound alone says, in a sentence."""
    return say("proved" if bound.valid else "not_proved", bound)


def word_estimate(estimate: EpsilonEstimate) -> str:
    """Say what an estimate says, and what it may decide."""
    how = "computed" if estimate.confidence == 1 else f"{estimate.confidence:.4g} sure"
    role = "; decides nothing" if estimate.role == "reference" else ""
    return say("estimated", estimate, how_sure=f"{how}{role}")


def word_claim(claim: Claim) -> str:
    """Say a claim in a sentence."""
    parts = [f"ε = {claimed(claim.epsilon)} at δ = {claim.delta:g}"]
    if claim.adjacency != "unstated":
        parts.append(f"for {TEXTS['adjacency'][claim.adjacency].replace('record', claim.unit)}")
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
        return [*bound.caveats, word_limits(bound)]
    found = say("above" if bound.epsilon else "nothing", bound)
    return [found, *word_assumptions(bound), word_limits(bound), *bound.caveats]


def word_assumptions(bound: EpsilonLowerBound) -> list[str]:
    """Say what the method of a bound assumes; nothing where the method is not ours."""
    return [say("assumes", bound)] if bound.method in REGISTRY else []


def word_limits(bound: EpsilonLowerBound) -> str:
    """Say what a bound does not say."""
    return say("not_private" if bound.valid else "only_to_compare", bound)


def word_threat(bound: EpsilonLowerBound, claim: Claim | None) -> list[Fact]:
    """Say who attacks what."""
    texts, kinds = TEXTS["threat"], TEXTS["adjacency"]
    sees = texts["unstated"] if bound.adversary == "unstated" else bound.adversary
    mismatch = ""
    if claim is not None and claim.adjacency != bound.adjacency:
        sides = {"claimed": kinds[claim.adjacency], "bounded": kinds[bound.adjacency]}
        mismatch = fill(texts["mismatch"], None, bound, **sides)
    more = {
        "sees": sees,
        "neighbours": TEXTS["neighbours"][bound.adjacency],
        "without": f"{bound.n_out:,} without it" if bound.n_out else "the law without it is known",
        "claim_said": "" if claim is None else word_claim(claim),
        "mismatch": mismatch,
    }
    return [
        Fact(name, fill(value, None, bound, **more))
        for name, value, *needed in texts["rows"]
        if all(more[field] for field in needed)
    ]


def word_run(source: Provenance | EpsilonFinding) -> list[str]:
    """Say what a reader must know of a run: units that failed, or were not needed."""
    notes = [say("failed", source)] if source.failed else []
    if source.used + source.failed < source.units:
        notes.append(say("stopped", source))
    return notes
