"""Advise on a classifier: recommend only remedies that were tried and helped."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from epsilometer.audits.classifier.file_rules import IN_ANSWERS, IN_FILE
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.findings import (
    LeaveOneOut,
    MembershipFinding,
    RemedyFinding,
    RemovalPlan,
    RoundingStep,
    RuleFinding,
)
from epsilometer.engine.shards import Arrays

RECORDS = "records.csv"  # in the run's directory: private
_ADVISED = 3  # largest number of remedies to advise
_FEWER = 0.75  # a remedy helps if at most this share of those caught before is still caught
_NOTICED = 0.02  # and if the share of people caught falls by at least this much


class PartSummary(NamedTuple):
    """Outcome of the rules for one way to publish, in numbers; −1 where not all was measured."""

    action: str
    caught: float
    advantage: float
    accuracy: float
    exposed: int
    in_file: int
    failed: int
    unclear: int

    def to_finding(self, base: "PartSummary") -> RemedyFinding:
        """Return it as a finding, compared with the audited model."""
        falls = _falls(self.caught, base.caught) or _falls(self.advantage, base.advantage)
        passes = not self.failed and not self.unclear
        helps = self.failed < base.failed or (self.failed == base.failed and (passes or falls))
        return RemedyFinding(
            action=self.action,
            caught=self.caught,
            advantage=self.advantage,
            accuracy=self.accuracy,
            exposed=None if self.exposed < 0 else self.exposed,
            in_file=None if self.in_file < 0 else self.in_file,
            outcome="fail" if self.failed else "unclear" if self.unclear else "pass",
            helps=bool(self.action) and helps,
        )


def _falls(after: float, before: float) -> bool:
    return after <= _FEWER * before and before - after >= _NOTICED


def list_outcomes(rows: Sequence[PartSummary]) -> Arrays:
    """Return summaries as arrays, one per field."""
    kinds = {"action": np.str_, "exposed": np.int64, "in_file": np.int64}
    kinds |= {"failed": np.int64, "unclear": np.int64}
    return {
        name: np.array([getattr(row, name) for row in rows], kinds.get(name, np.float64))
        for name in PartSummary._fields
    }


def rank_remedy(row: PartSummary) -> tuple[float, ...]:
    """Return a sort key: failed rules, then unclear rules or the share caught, then accuracy."""
    harm = row.caught if row.failed else row.unclear
    return row.failed, round(harm, 2), -round(row.accuracy, 2)


def advise(result: Audit, *, unmeasured: Sequence[str] = ()) -> Iterator[str]:
    """Yield advice, the most useful first; remedies are named only if they were found to help.

    Args:
        result: The audit.
        unmeasured: What the usual rules examine and these do not, in sentences.
    """
    (risk,) = result.find(LeaveOneOut)
    yield from _advise_remedies(result.find(RemedyFinding), result.verdict)
    if not result.find(RemedyFinding):
        yield from _advise_other_form(result.find(RuleFinding))
    if risk.exposed and not result.find(MembershipFinding):  # PDTP alone decides
        yield _advise_rounding(result.find(RoundingStep), risk)
        yield from (plan.ended for plan in result.find(RemovalPlan))
    if risk.exposed:
        yield (
            f"Look up the riskiest records: {RECORDS} in the run directory lists their rows. They "
            "may be mistakes in the data."
        )
    if result.verdict == judge.CANNOT_TELL:
        yield from _advise_unclear(result.find(RuleFinding))
    if result.verdict == judge.RELEASE:
        if unmeasured:
            yield f"Before publishing, also apply the default rules. {' '.join(unmeasured)}"
        yield (
            "Publish what was audited: this model, trained on these records. After any change, "
            "audit again."
        )
    if risk.decimals is not None and risk.hidden:
        hidden = risk.hidden
        shown = "class labels" if risk.decimals == -1 else f"{risk.decimals} decimals"
        more = "1 more record is" if hidden == 1 else f"{hidden:,} more records are"
        yield (
            f"Show no more than {shown}, and do not publish the model: at full precision {more} "
            "exposed."
        )


def _advise_unclear(rules: Sequence[RuleFinding]) -> Iterator[str]:
    """Yield what is needed to decide the rules that are unclear."""
    unclear = {rule.rule: rule for rule in rules if rule.outcome == "unclear"}
    if unclear.pop(IN_FILE, None) is not None:
        yield ("To decide, remove from the model what could not be searched; or audit an API.")
    if unclear:
        yield (
            "To decide, follow the advice of the unclear rules. Where they give none, measure "
            "more: all records, more shadow models, or more data."
        )


def _advise_other_form(rules: Sequence[RuleFinding]) -> Iterator[str]:
    """Yield forms of publication that the failed rules do not concern, if no remedy was tried."""
    failed = {rule.rule for rule in rules if rule.outcome == "fail"}
    if IN_FILE in failed:
        yield "Do not publish the file. Audit an API or labels: they do not contain its parts."
    elif IN_ANSWERS in failed:
        yield "Do not publish the API. Audit labels only, or a model trained with DP."


def _advise_remedies(tried: Sequence[RemedyFinding], verdict: judge.Verdict) -> Iterator[str]:
    """Name the remedies that helped, best first, with what they cost."""
    if not tried:
        return
    base, *others = tried
    helpful = [remedy for remedy in others if remedy.helps]
    for remedy in helpful[:_ADVISED]:
        after = {
            "pass": "All rules then pass.",
            "fail": "This alone is not enough: a rule still fails.",
        }
        last = after.get(remedy.outcome, "It is unclear whether all rules then pass.")
        yield (
            f"{remedy.action} Of 100 people in the data, an attacker then identifies "
            f"{100 * remedy.caught:.0f} (before: {100 * base.caught:.0f}); accuracy on others is "
            f"{remedy.accuracy:.1%} (before: {base.accuracy:.1%}). {last}"
        )
    if others and not helpful:
        last = ": do not publish the model" if verdict == judge.DO_NOT_RELEASE else ""
        yield f"None of the {len(others)} remedies tried helps{last}."


def _advise_rounding(steps: Sequence[RoundingStep], risk: LeaveOneOut) -> str:
    """Name the most decimals with which no record is exposed."""
    for step in steps:
        if step.exposed == 0:
            named = {-1: "the class alone", 1: "1 decimal", None: "all digits"}
            shown = named.get(step.decimals, f"{step.decimals} decimals")
            return (
                f"Try an API that shows {shown}: no record is then exposed, and "
                f"{step.accuracy:.1%} of records get the correct class. No attack was run on it "
                "yet."
            )
    fewest = min(steps, key=lambda step: step.exposed)
    return (
        f"Fewer decimals are not enough: {fewest.exposed:,} of {risk.measured:,} records are "
        "exposed at best."
    )
