"""Word audits for reports: what was found means, what it does not, and how to do it again."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.findings import (
    ConformanceFinding,
    EpsilonFinding,
    FormFinding,
    FormPlan,
    PosteriorRuns,
    RuleFinding,
)
from epsilometer.core.printing import one_line
from epsilometer.core.words import claimed, number, number_up, word_reach
from epsilometer.stats.estimators import REGISTRY

ADJACENCY = {
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
_ONLY_TO_COMPARE = "Use it to compare with a paper, not to judge a claim."
_T = TypeVar("_T")


def own_views(audit: Audit) -> tuple[EpsilonFinding, ...]:
    """Return the views that stand for themselves, and are not those of a form of publishing."""
    return audit.find(EpsilonFinding)


def ordered_forms(audit: Audit) -> tuple[FormFinding, ...]:
    """Return the forms of publishing, finest first, as their plan lists them."""
    plan, forms = audit.one(FormPlan), audit.find(FormFinding)
    if plan is None:
        return forms
    place = {form: i for i, form in enumerate(plan.forms)}
    return tuple(sorted(forms, key=lambda form: place.get(form.form, len(place))))


def take_view(audit: Audit, view: EpsilonFinding) -> Audit:
    """Return an audit of one of its views alone, for everything that is said of an audit."""
    return replace(audit, subject=view.subject, findings=(view,), advice=(), caveats=(), cites=())


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
        parts.append(f"for {ADJACENCY[claim.adjacency].replace('record', claim.unit)}")
    elif claim.unit != "record":
        parts.append(f"for a {claim.unit}")
    if claim.sampler != "unstated":
        parts.append(f"batches: {claim.sampler}")
    if claim.accountant != "unstated":
        parts.append(f"computed by {claim.accountant}")
    return ", ".join(parts) + "."


def word_views(audit: Audit) -> str:
    """Say how far several bounds hold together."""
    use = "the largest may be quoted" if audit.claim is None else "one of them suffices to refute"
    return (
        f"The {len(audit.views)} bounds hold together with {audit.confidence:.4g} confidence, so "
        f"that {use}."
    )


def meaning(audit: Audit) -> list[str]:
    """Say what an audit says, what it rests on, and what it does not say."""
    views, lines = own_views(audit), list[str]()
    if audit.find(RuleFinding):
        lines += _word_rules(audit)
    if audit.find(FormFinding):
        lines += _word_forms(audit)
    for finding in audit.find(ConformanceFinding):
        if finding.bound is not None:
            lines += bound_meaning(finding.bound)
    if len(views) == 1:
        lines += bound_meaning(views[0].bound)
    elif views:
        lines += [word_views(audit), *not_said(views[0].bound)]
    reach = word_reach(audit)
    return list(dict.fromkeys([*lines, *([reach] if reach else []), *audit.caveats]))


def bound_meaning(bound: EpsilonLowerBound) -> list[str]:
    """Say what a bound says, what it rests on, and what it does not say."""
    if not bound.valid:
        return [*bound.caveats, *not_said(bound)]
    if bound.epsilon == 0:
        found = (
            "Nothing was proved: the scores do not tell whether the record was there, or are "
            "too few."
        )
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
    """Say what a bound does not say."""
    if not bound.valid:
        return (_ONLY_TO_COMPARE,)
    return (
        "It does not say that ε is this small: another attack, a worse record or more runs may "
        "prove more. A lower bound never proves privacy.",
    )


def threat_model(bound: EpsilonLowerBound, claim: Claim | None) -> list[tuple[str, str]]:
    """Say who attacks what, as titles and sentences."""
    without = f"{bound.n_out:,} without it" if bound.n_out else "the law without it is known"
    rows = [
        (
            "What the adversary sees",
            bound.adversary
            if bound.adversary != "unstated"
            else "Not stated. A bound speaks only of adversaries who see at least as much as the "
            "one whose scores these are.",
        ),
        ("The two datasets it tells apart", _NEIGHBOURS[bound.adjacency]),
        ("How often it tried", f"{bound.n_in:,} observations with the record, {without}."),
    ]
    if claim is not None:
        rows.append(("What was claimed", word_claim(claim)))
    return rows + [("Beware", line) for line in _mismatch(bound, claim)]


def run_notes(source: Provenance | EpsilonFinding) -> list[str]:
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


def again(source: Provenance) -> str:
    """Say how to do an audit again."""
    if source.supplied:
        needed = ", ".join(source.supplied)
        return (
            f"Call epsilometer.audit again from Python with the settings below. It needs what was "
            f"supplied then: {one_line(needed)}."
        )
    return "Save the audit as JSON and run it again; the same settings give the same bytes:"


def again_command(source: Provenance) -> str:
    """Return the command that does an audit again; empty where something must be supplied."""
    return "" if source.supplied else "epsilometer audit audit.json"


def settings_rows(source: Provenance) -> list[tuple[str, str]]:
    """Return the settings of an audit as names and values, exactly as JSON has them."""
    rows = [
        ("subject", source.subject),
        *((name, _value(value)) for name, value in source.settings.items()),
    ]
    if source.delta is not None:
        rows.append(("delta", _value(source.delta)))
    rows += [("confidence", _value(source.confidence)), ("seed", _value(source.seed))]
    if source.until is not None:
        rows.append(("until", _value(source.until)))
    return rows


def once(rows: Iterable[_T]) -> list[_T]:
    """Return each of them once, in their order."""
    return list(dict.fromkeys(rows))


def _value(value: Any) -> str:
    """Return a setting as text: a string as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) == {"supplied"}:
        return f"supplied from Python ({value['supplied']})"
    return json.dumps(value, ensure_ascii=False)


def _word_rules(audit: Audit) -> Sequence[str]:
    if audit.verdict in judge.BAD:
        first = (
            "Some rule fails. Where that rests on samples, such a verdict is wrong in at "
            f"most {1 - audit.confidence:.3g} of audits, whatever the number of rules and "
            "attacks."
        )
    elif audit.verdict in judge.GOOD:
        first = (
            f"Every rule passes, each with {audit.confidence:.4g} confidence where it rests on "
            "samples. That is no proof of privacy: other attacks, or an adversary who knows more, "
            "may do better. A guarantee needs differentially private training."
        )
    else:
        first = "What was measured lies on neither side of some rule: see which, and why."
    return (
        first,
        "PDTP compares predictions at a record with and without it. A record can also show in "
        "predictions at other places, which PDTP does not see and dtp_over looks for.",
    )


def _word_forms(audit: Audit) -> Sequence[str]:
    runs = audit.one(PosteriorRuns)
    trained = (
        []
        if runs is None
        else [
            f"{runs.runs:,} models were trained with the record and as many without it; each was "
            f"asked {runs.samples:,} times what it says of the record. All forms are judged on "
            "the same answers."
        ]
    )
    return (
        *trained,
        "Proved bounds are those of an attack that is learned on half of the runs and judged on "
        "the others. All of them together are above the truth in at most "
        f"{1 - audit.confidence:.3g} of audits.",
        "The paper's ε̂ is the most that thresholds chosen on the very runs they are judged by "
        "are worth, rates floored at one run. It is no bound: it is above 0 also where nothing "
        "leaks.",
        "That a form stays below the limit is no proof of privacy: another attack, another record "
        "or more runs may show more.",
    )


def _mismatch(bound: EpsilonLowerBound, claim: Claim | None) -> list[str]:
    if claim is None or claim.adjacency == bound.adjacency:
        return []
    return [
        f"The claim counts neighbours as {ADJACENCY[claim.adjacency]}, the bound as "
        f"{ADJACENCY[bound.adjacency]}: compare the two only where one kind covers the other."
    ]
