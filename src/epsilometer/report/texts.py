"""Word findings: fill the texts of ``texts.toml`` with fields of findings and bounds."""

import math
import string
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from itertools import chain, compress
from types import MappingProxyType
from typing import Any

import msgspec

from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.document import NONE, NOT_VALID, Axis, Fact, Figure, Mark, Series, Table
from epsilometer.core.findings import EpsilonFinding, FormFinding, FormPlan, LeaveOneOut
from epsilometer.core.scores import describe_design
from epsilometer.core.words import claimed, number, number_up, short
from epsilometer.stats.estimators import REGISTRY

TEXTS = MappingProxyType(
    tomllib.loads(resources.files(__package__).joinpath("texts.toml").read_text("utf-8"))
)


# Titles of an explanation.
COUNTED, FORMULA = "What was counted", "From that to ε"
HOLDS, NOT_SAID = "Why the confidence holds", "What it does not say"
MEASURED = "How it is measured"
CODE = (FORMULA, MEASURED)  # a copied formula must be complete


def word_decimals(decimals: int) -> str:
    """Say how many decimals are shown."""
    if decimals < 0:
        return "class alone"
    return "1 decimal" if decimals == 1 else f"{decimals} decimals"


# Formats beside Python's own. What is proved is never shown larger than it is.
FORMATS: dict[str, Callable[[Any], str]] = {
    "cut": number,
    **{f"cut{digits}": partial(number, decimals=digits) for digits in (1, 3, 4)},
    "up": number_up,
    "claim": claimed,
    "short": short,
    "list": "; ".join,
    "commas": ", ".join,
    "upper": str.upper,
}


def proves(bound: EpsilonLowerBound | EpsilonEstimate) -> bool:
    """Tell whether a result proves its ε: a valid bound, or a computed value of the subject."""
    if isinstance(bound, EpsilonLowerBound):
        return bound.valid
    return bound.confidence == 1 and bound.role != "reference"


def _word_proved(bound: EpsilonLowerBound | None) -> str | None:
    if bound is None:
        return None
    return f"≥ {number(bound.epsilon)}" + ("" if bound.valid else f" ({NOT_VALID})")


def _word_threshold(bound: EpsilonLowerBound) -> str:
    ranked = bound.threshold_rule.startswith("RankSum")
    return "all pairs of scores" if ranked else f"score ≥ {number(bound.threshold, 4)}"


def _find_bound(form: FormFinding, place: int, *, valid: bool) -> float | None:
    """Return ε of the decision by all, or by any; a single statistic has one decision."""
    alike = [bound.epsilon for bound in form.view.also if bound.valid == valid]
    return alike[place] if place < len(alike) else None


def _share_confidence(audit: Audit) -> float:
    return 1 - (1 - audit.confidence) / len(audit.find(FormFinding))


# What is computed of an audit and a finding of it; all else are fields.
LOOKUPS: dict[str, Callable[[Any, Any], Any]] = {
    "audit": lambda audit, _: audit,
    "error": lambda audit, _: 1 - audit.confidence,
    "form_count": lambda audit, _: len(audit.find(FormFinding)),
    "each_confidence": lambda audit, _: _share_confidence(audit),
    "verdict": lambda audit, finding: judge.judge_finding(audit.claim, finding),
    "reach": lambda _, view: None if view.reach is None else judge.reach_of(view),
    "proved_epsilon": lambda _, finding: _word_proved(finding.bound),
    "diverged": lambda _, runs: runs.diverged_inside + runs.diverged_outside,
    "shown_decimals": lambda _, item: (
        "all digits" if item.decimals is None else word_decimals(item.decimals)
    ),
    "tick_decimals": lambda _, item: {None: "all", -1: "class"}.get(
        item.decimals, str(item.decimals)
    ),
    "done": lambda _, remedy: remedy.action or "no remedy",
    "rounded": lambda _, point: short(point.unit) if point.unit else "as it is",
    "sure": lambda _, item: (
        "computed" if item.confidence == 1 else f"{item.confidence:.4g} confidence"
    ),
    "one_sided": lambda _, bound: (
        f"{bound.confidence:g} one-sided" if bound.valid else f"none: {NOT_VALID}"
    ),
    "decides": lambda _, estimate: "yes" if proves(estimate) else "no",
    "design_said": lambda _, bound: describe_design(bound.design, bound.inclusion),
    "found_at": lambda _, bound: _word_threshold(bound),
    "guarantees": lambda _, bound: (
        getattr(REGISTRY.get(bound.method), "guarantees", None) if bound.valid else "Nothing here."
    ),
    "assumes": lambda _, bound: getattr(REGISTRY.get(bound.method), "assumes", None),
    "risk_of_error": lambda _, bound: 1 - bound.confidence,
    "bounds_count": lambda _, audit: len(audit.views),
    "nothing": lambda _, __: 0.0,
    "claimed_epsilon": lambda audit, _: audit.claim.epsilon if audit.claim else None,
    "allowed_advantage": lambda audit, _: getattr(audit.one(FormPlan), "advantage", None),
    "allowed_said": lambda audit, _: "".join(
        f"Allowed is {plan.advantage:.3g}. " for plan in audit.find(FormPlan)[:1]
    ),
    "exposed_share": lambda audit, step: step.exposed / audit.one(LeaveOneOut).measured,
    "has_floor": lambda _, left: None not in (left.median_floor, left.largest_floor),
    "is_separated": lambda _, left: left.separation is not None,
    "valid_all": lambda _, form: _find_bound(form, 0, valid=True),
    "valid_any": lambda _, form: _find_bound(form, 1, valid=True),
    "paper_all": lambda _, form: _find_bound(form, 0, valid=False),
    "paper_any": lambda _, form: _find_bound(form, 1, valid=False),
}


def look_up(audit: Audit | None, item: Any, name: str) -> Any:
    """Return a computed value or a field of an item of an audit."""
    return LOOKUPS[name](audit, item) if name in LOOKUPS else getattr(item, name)


class _AbsentField(Exception):
    """Raised when a field is None, so that its text is omitted."""


class _Filler(string.Formatter):
    """Format fields of a finding: users' texts are values, never formats."""

    def __init__(self, audit: Audit | None, item: Any, more: dict[str, Any]) -> None:
        self._audit, self._item, self._more = audit, item, more

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Any) -> Any:
        if isinstance(key, int):
            return self._item[key]
        value = self._more[key] if key in self._more else look_up(self._audit, self._item, key)
        if value is None:
            raise _AbsentField
        return value

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise _AbsentField
        if format_spec in FORMATS:
            return FORMATS[format_spec](value)
        return format(value, format_spec)


def fill(text: str, audit: Audit | None, item: Any, **more: Any) -> str:
    """Return a text with fields of an item of an audit; a dash where one of them is None."""
    try:
        return _Filler(audit, item, more).format(text)
    except _AbsentField:
        return NONE


def list_findings(audit: Audit, kind: str) -> list[Any]:
    """Return findings by the name of their type, forms of publishing as their plan lists them."""
    plan = audit.one(FormPlan)
    place = {form: i for i, form in enumerate(() if plan is None else plan.forms)}
    found = [finding for finding in audit.findings if type(finding).__name__ == kind]
    return sorted(found, key=lambda each: place.get(getattr(each, "form", ""), len(place)))


def list_facts(audit: Audit, kind: str, item: Any) -> Iterator[Fact]:
    """Return the facts of one item, without those that it does not have."""
    for name, value, *needed in TEXTS["facts"].get(kind, ()):
        if all(look_up(audit, item, field) for field in needed):
            yield Fact(fill(name, audit, item), fill(value, audit, item))


def list_every_fact(audit: Audit) -> tuple[Fact, ...]:
    """Return what was measured once, and what theory says, in the order of the texts."""
    return tuple(
        fact
        for kind in TEXTS["facts"]
        for finding in list_findings(audit, kind)
        for fact in list_facts(audit, kind, finding)
    )


def tabulate(spec: dict[str, Any], audit: Audit, items: Iterable[Any], **more: Any) -> Table:
    """Return a table with a row per item, as a text describes it, without columns of dashes."""
    every = [[fill(cell, audit, item) for cell in spec["columns"].values()] for item in items]
    used = [any(row[i] != NONE for row in every) for i in range(len(spec["columns"]))]
    return Table(
        title=spec["title"],
        head=tuple(compress(spec["columns"], used)),
        rows=tuple(tuple(compress(row, used)) for row in every),
        brief=spec.get("brief", True),
        numeric=spec.get("numeric", True),
        **{"note": spec.get("note", ""), **more},
    )


REMEDIES = next(spec["title"] for spec in TEXTS["tables"] if spec["of"] == "RemedyFinding")


def list_tables(audit: Audit) -> Iterator[Table]:
    """Return the tables of an audit, in the order they are read; those without rows not."""
    for spec in TEXTS["tables"]:
        found = list_findings(audit, spec["of"])
        if "having" in spec:
            found = [item for item in found if getattr(item, spec["having"]) is not None]
        parts = (getattr(item, spec["each"]) if "each" in spec else [item] for item in found)
        items = list(chain.from_iterable(parts))
        if len(items) >= spec.get("least", 1):
            yield tabulate(spec, audit, items, note=fill(spec.get("note", ""), audit, found[0]))


def list_lines(specs: Iterable[dict[str, str]], audit: Audit) -> Iterator[str]:
    """Return sentences: of the audit, or of each finding of a kind."""
    for spec in specs:
        if spec.get("tone") in (None, judge.tone(audit.verdict)):
            items = list_findings(audit, spec["of"]) if "of" in spec else [audit]
            yield from (fill(spec["say"], audit, item) for item in items)


def explain_kinds(audit: Audit) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return sections that say how the verdict of rules, or of forms of publishing, was reached."""
    for kind, sections in TEXTS["explanations"].items():
        for spec in sections if list_findings(audit, kind) else ():
            facts = list_every_fact(audit) if "facts" in spec else ()
            said = [f"{fact.name}: {fact.value.rstrip('.')}." for fact in facts]
            said += list_lines(spec["lines"], audit)
            said += audit.caveats if "caveats" in spec else ()
            yield spec["title"], tuple(said) or ("Nothing was measured.",)


def describe(
    key: str,
    audit: Audit | None,
    item: Any,
    *,
    x: Axis,
    y: Axis,
    series: Iterable[Series],
    each: Iterable[Any] = (),
    marks: tuple[Mark, ...] = (),
    suffix: str = "",
    cites: tuple[str, ...] = (),
    **more: Any,
) -> Figure:
    """Return a figure with its texts.

    Args:
        key: Key of the texts.
        audit: Whose figure it is; None where the texts name nothing of it.
        item: Whose fields the texts name.
        x: The horizontal axis.
        y: The vertical axis.
        series: From back to front.
        each: The series whose numbers the alternative text lists one by one.
        marks: Values of x that matter.
        suffix: After the key, where there are several figures of it.
        cites: Keys of the bibliography, in addition to those of the texts.
        more: What the texts name and is not a field.
    """
    texts = TEXTS["figures"][key]
    more["each"] = "; ".join(fill(texts["each"], audit, part) for part in each)
    said = {
        name: fill(texts[name], audit, item, **more) for name in ("title", "caption", "alt", "x")
    }
    return Figure(
        key=f"{key}{suffix}",
        title=said["title"],
        caption=said["caption"],
        alt=said["alt"],
        x=replace(x, title=said["x"]),
        y=replace(y, title=texts["y"]),
        series=tuple(series),
        marks=marks,
        cites=(*texts.get("cites", ()), *cites),
    )


def say(key: str, item: Any, **more: Any) -> str:
    """Return a sentence about an item."""
    return fill(TEXTS["sentences"][key], None, item, **more)


def word_bound(bound: EpsilonLowerBound) -> str:
    """Say what a bound alone says, in a sentence."""
    return say("attack_proves" if bound.valid else "not_proved", bound)


def word_estimate(estimate: EpsilonEstimate) -> str:
    """Say what an estimate says, and what it may decide."""
    how = "computed" if estimate.confidence == 1 else f"{estimate.confidence:.4g} sure"
    role = "; decides nothing" if estimate.role == "reference" else ""
    return say("estimated", estimate, how_sure=f"{how}{role}")


def word_claim(claim: Claim) -> str:
    """Say a claim in a sentence."""
    parts = [f"ε = {claimed(claim.epsilon)} at δ = {claim.delta:g}"]
    unit = "client" if claim.unit == "client" else "record"
    if claim.adjacency != "unstated":
        parts.append(f"for {TEXTS['adjacency'][claim.adjacency].replace('record', unit)}")
    elif claim.unit == "client":
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
    """Describe the adversary and the target."""
    texts, kinds = TEXTS["threat"], TEXTS["adjacency"]
    sees = texts["unstated"] if bound.adversary == "unstated" else bound.adversary
    mismatch = ""
    if claim is not None and claim.adjacency != bound.adjacency:
        sides = {"claimed": kinds[claim.adjacency], "bounded": kinds[bound.adjacency]}
        mismatch = fill(texts["mismatch"], None, bound, **sides)
    more = {
        "sees": sees,
        "neighbours": TEXTS["neighbours"][bound.adjacency],
        "without": f"{bound.n_out:,} without it"
        if bound.n_out
        else ("the distribution without it is known"),
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


def take_view(audit: Audit, view: EpsilonFinding) -> Audit:
    """Return an audit of one of its views alone, for everything that is said of an audit."""
    return msgspec.structs.replace(
        audit, subject=view.subject, findings=(view,), advice=(), caveats=(), cites=()
    )


SUSPICIONS = (0.01, 0.5)  # how sure somebody is before looking: one in a hundred, a coin toss


def word_belief(epsilon: float, before: float) -> str:
    """Say how sure someone can become who believed it with chance ``before``, under ε-DP.

    Example:
        >>> word_belief(3.0, 0.01), word_belief(8.0, 0.5)
        ('16.9%', '99.97%')
    """
    doubt = (1 - before) / before * math.exp(-epsilon)
    believed = 1 / (1 + doubt)
    if believed <= 0.9995:
        return f"{believed:.1%}"
    return f"{believed:.2%}" if believed < 0.99995 else "99.99%"


def list_next(audit: Audit) -> tuple[str, ...]:
    """Say what to do next after a verdict; nothing where rules about publishing decide."""
    return tuple(fill(line, audit, audit) for line in TEXTS["next"].get(audit.verdict, ()))


def word_together(audit: Audit) -> str:
    """Say how several bounds hold jointly."""
    use = "the largest may be quoted" if audit.claim is None else "one of them suffices to refute"
    return say("together", audit, use=use)
