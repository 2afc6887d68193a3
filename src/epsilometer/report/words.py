"""A result in plain sentences: what was found, what it means, and what it does not."""

import math
import re
from decimal import ROUND_FLOOR, Decimal

from epsilometer.core.claim import Claim
from epsilometer.core.audit import AuditGroup, AuditResult, Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.stats.estimators import REGISTRY

ADJACENCY = {
    "add_remove": "one record added or removed",
    "zero_out": "one record zeroed out",
    "replace": "one record replaced",
    "unstated": "not stated",
}
_WORLDS = {
    "add_remove": "One has the record, the other does not; all else is the same.",
    "zero_out": "One has the record, the other has zeros in its place; all else is the same.",
    "replace": "In one of them another record stands in its place; all else is the same.",
    "unstated": "One has the record, the other does not. How the two differ beyond that was not "
    "stated, and an ε for one kind of neighbours says nothing about another.",
}

_GRAVEST_FIRST = ("refuted", "no verdict", "not refuted", "no claim")
_ONLY_TO_COMPARE = "Use it to compare with a paper, not to judge a claim."
GROUP_RULE = "Each keeps its own confidence; nothing is concluded from the largest."
# What no page may hold, and halves of letters that no encoding can write.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without letters that cannot be printed."""
    return _UNPRINTABLE.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The text, printable, with single spaces in place of every other white space."""
    return " ".join(printable(text).split())


def number(value: float, decimals: int = 2) -> str:
    """A number for people: ∞ as such, huge ones short, the rest cut and not rounded.

    A lower bound must not be shown larger than it is.
    """
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) >= 1e5:
        return f"{value:.3g}"
    return str(Decimal(repr(value)).quantize(Decimal(1).scaleb(-decimals), ROUND_FLOOR))


def short(value: float) -> str:
    """A number as its author would write it."""
    return number(value) if math.isinf(value) else f"{value:g}"


def promised(epsilon: float, decimals: int = 2) -> str:
    """A promised ε: as its author wrote it, or cut like what is measured where it was computed.

    Example:
        >>> promised(8.0), promised(0.125), promised(9.9972561464343), promised(0.0012345)
        ('8', '0.125', '9.99', '0.00123')
    """
    if epsilon == float(f"{epsilon:.3g}"):
        return short(epsilon)
    return number(epsilon, max(decimals, 2 - math.floor(math.log10(epsilon))))


def verdict(result: AuditResult) -> str:
    """The verdict in a sentence."""
    if result.claim is None:
        return finding(result)
    return f"{result.verdict.upper()}: {finding(result)}"


def finding(result: AuditResult) -> str:
    """What the verdict rests on, in a sentence."""
    bound, claim = result.bound, result.claim
    if claim is None:
        return bound_finding(bound)
    measured = _measured(bound, claim)
    promise = f"ε = {promised(claim.epsilon, _decimals(bound, claim))}"
    match result.verdict:
        case "refuted":
            proofs = [f"the attack proves {measured}"] if bound.refutes(claim.epsilon) else []
            if result.computed is not None:
                proofs.append(f"by computation ε is at least {number(result.computed.low)}")
            return f"{promise} was promised, {'; '.join(proofs)}."
        case "no verdict" if not bound.valid:
            return f"{measured} is not a valid bound."
        case "no verdict":
            return (
                f"{_failed(result.provenance)}, and what they would have shown may refute the "
                f"claim. The others prove only {measured}; {promise} was promised."
            )
        case _:
            return f"{promise} was promised, the attack proves only {measured}."


def bound_finding(bound: EpsilonLowerBound) -> str:
    """What a bound alone says, in a sentence."""
    return f"{'The attack proves' if bound.valid else 'Not a valid bound:'} {_measured(bound)}."


def estimate_finding(estimate: EpsilonEstimate) -> str:
    """What an estimate says, in a sentence."""
    if estimate.confidence == 1:
        ends = f"{number(estimate.low)} to {number(estimate.high)}, computed"
    else:
        ends = f"{number(estimate.low)} to {number(estimate.high)}, {estimate.confidence:.4g} sure"
    return f"ε = {number(estimate.epsilon)} at δ = {estimate.delta:g} ({ends})"


def group_finding(group: AuditGroup) -> str:
    """How many audits of a group came to which verdict."""
    verdicts = [result.verdict for result in group.results]
    counts = [f"{verdicts.count(kind)} {kind}" for kind in _GRAVEST_FIRST if kind in verdicts]
    audits = "1 audit" if len(verdicts) == 1 else f"{len(verdicts)} audits"
    return f"{audits}: {', '.join(counts)}."


def meaning(bound: EpsilonLowerBound) -> list[str]:
    """What the bound says, what it rests on, and what it does not say."""
    if not bound.valid:
        return [*bound.caveats, *not_said(bound)]
    if bound.epsilon == 0:
        found = "Nothing was proved: the scores do not tell the two worlds apart, or are too few."
    else:
        found = (
            f"With {bound.confidence:.4g} confidence the true ε is above {number(bound.epsilon)}: "
            f"bounds like this exceed the truth in at most {1 - bound.confidence:.3g} of audits."
        )
    return [
        found,
        *(f"It assumes: {row.assumes}" for name, row in REGISTRY.items() if name == bound.method),
        *not_said(bound),
        *bound.caveats,
    ]


def not_said(bound: EpsilonLowerBound) -> tuple[str, ...]:
    """What a bound does not say."""
    if not bound.valid:
        return (_ONLY_TO_COMPARE,)
    return (
        "It does not say that ε is this small: another attack, a worse record or more runs may "
        "prove more. A lower bound never proves privacy.",
    )


def threat_model(bound: EpsilonLowerBound, claim: Claim | None) -> list[tuple[str, str]]:
    """Who attacks what, as titles and sentences."""
    without = f"{bound.n_out:,} without it" if bound.n_out else "the law without it is known"
    rows = [
        (
            "What the adversary sees",
            bound.adversary
            if bound.adversary != "unstated"
            else "Not stated. A bound speaks only of adversaries who see at least as much as the "
            "one whose scores these are.",
        ),
        ("The two worlds it tells apart", _WORLDS[bound.adjacency]),
        ("How often it tried", f"{bound.n_in:,} observations with the record, {without}."),
    ]
    if claim is not None:
        rows.append(("What was promised", promise(claim)))
    return rows + [("Beware", line) for line in _mismatch(bound, claim)]


def promise(claim: Claim) -> str:
    """The claim in a sentence."""
    parts = [f"ε = {promised(claim.epsilon)} at δ = {claim.delta:g}"]
    if claim.adjacency != "unstated":
        parts.append(f"for {ADJACENCY[claim.adjacency]}")
    if claim.sampler != "unstated":
        parts.append(f"batches: {claim.sampler}")
    if claim.accountant != "unstated":
        parts.append(f"computed by {claim.accountant}")
    return ", ".join(parts) + "."


def run_notes(provenance: Provenance) -> list[str]:
    """What a reader must know of the run: units that failed, or were not needed."""
    used, units, failed = provenance.used, provenance.units, provenance.failed
    notes = []
    if failed:
        notes.append(
            f"{_failed(provenance)}; what they would have shown is counted against a refutation."
        )
    if used + failed < units:
        notes.append(f"The run stopped early: {used:,} of {units:,} units were used.")
    return notes


def _failed(provenance: Provenance) -> str:
    return f"{provenance.failed:,} of {provenance.units:,} units failed"


def _measured(bound: EpsilonLowerBound, claim: Claim | None = None) -> str:
    decimals = 2 if claim is None else _decimals(bound, claim)
    return f"ε ≥ {number(bound.epsilon, decimals)} at δ = {bound.delta:g}"


def _decimals(bound: EpsilonLowerBound, claim: Claim) -> int:
    """As many as it takes to tell the bound from the promise."""
    decimals = 2
    if bound.epsilon != claim.epsilon:
        while decimals < 9 and number(bound.epsilon, decimals) == number(claim.epsilon, decimals):
            decimals += 1
    return decimals


def _mismatch(bound: EpsilonLowerBound, claim: Claim | None) -> list[str]:
    if claim is None or claim.adjacency == bound.adjacency:
        return []
    return [
        f"The promise counts neighbours as {ADJACENCY[claim.adjacency]}, the bound as "
        f"{ADJACENCY[bound.adjacency]}: compare the two only where one kind covers the other."
    ]
