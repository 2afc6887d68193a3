"""Advise on a classifier: of remedies that were carried out, only those that helped."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.findings import (
    LeaveOneOut,
    MembershipFinding,
    RemedyFinding,
    RemovalPlan,
    RoundingStep,
)
from epsilometer.engine.shards import Arrays

RECORDS = "records.csv"  # in the run's directory: private
_ADVISED = 3  # remedies that are advised
_FEWER = 0.75  # of those caught before, at most so many where a remedy helps
_NOTICED = 0.02  # share of people by which that must differ


class PartSummary(NamedTuple):
    """What rules say of one way to publish, in numbers; −1 where not all was measured."""

    action: str
    caught: float
    advantage: float
    accuracy: float
    exposed: int
    in_file: int
    failed: int
    unclear: int

    def to_finding(self, base: "PartSummary") -> RemedyFinding:
        """Return it as a finding, compared with what was audited."""
        falls = (_falls(self.caught, base.caught), _falls(self.advantage, base.advantage))
        helps = self.failed < base.failed or (self.failed == base.failed and any(falls))
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
    """Return summaries as arrays, one per number."""
    kinds = {"action": np.str_, "exposed": np.int64, "in_file": np.int64}
    kinds |= {"failed": np.int64, "unclear": np.int64}
    return {
        name: np.array([getattr(row, name) for row in rows], kinds.get(name, np.float64))
        for name in PartSummary._fields
    }


def rank_remedy(row: PartSummary) -> tuple[float, ...]:
    """Sort by rules that fail, then by those unclear or the share caught, then by accuracy."""
    harm = row.caught if row.failed else row.unclear
    return row.failed, round(harm, 2), -round(row.accuracy, 2)


def advise(result: Audit) -> Iterator[str]:
    """Yield what to do, the most useful first: of remedies only those that were seen to help."""
    (risk,) = result.find(LeaveOneOut)
    yield from _advise_remedies(result.find(RemedyFinding))
    if risk.exposed and not result.find(MembershipFinding):  # PDTP alone decides
        yield _advise_rounding(result.find(RoundingStep), risk)
        yield from (plan.ended for plan in result.find(RemovalPlan))
    if risk.exposed:
        yield (
            f"Look at the riskiest records: {RECORDS} in the run's directory says which they are. "
            "What makes them stand out may be a mistake in the data, or a person who must not be "
            "in it."
        )
    if result.verdict == judge.CANNOT_TELL:
        yield "To be able to tell, measure more: all records, more shadows, more records."
    if result.verdict == judge.RELEASE:
        yield (
            "Publish what was audited: this model, trained on these records in this way. After "
            "any change, audit again."
        )
    if risk.decimals is not None and risk.hidden:
        hidden = risk.hidden
        shown = "class labels" if risk.decimals == -1 else f"{risk.decimals} decimals"
        more = "1 more record is" if hidden == 1 else f"{hidden:,} more records are"
        yield (
            f"Show no more than {shown}, and do not give the model itself away: at full precision "
            f"{more} exposed."
        )


def _advise_remedies(tried: Sequence[RemedyFinding]) -> Iterator[str]:
    """Name the remedies that helped, best first, with what they cost."""
    if not tried:
        return
    base, *others = tried
    helpful = [remedy for remedy in others if remedy.helps]
    for remedy in helpful[:_ADVISED]:
        after = {"pass": "All rules then pass.", "fail": "Not enough alone: a rule still fails."}
        last = after.get(remedy.outcome, "It is unclear whether all rules then pass.")
        yield (
            f"{remedy.action} Of 100 people in the data, an attacker then identifies "
            f"{100 * remedy.caught:.0f} (before: {100 * base.caught:.0f}); accuracy on others is "
            f"{remedy.accuracy:.1%} (before: {base.accuracy:.1%}). {last}"
        )
    if others and not helpful:
        yield f"None of {len(others)} remedies that were tried helps: publish nothing of it."


def _advise_rounding(steps: Sequence[RoundingStep], risk: LeaveOneOut) -> str:
    """Name the most decimals with which no record is exposed."""
    for step in steps:
        if step.exposed == 0:
            shown = "the class alone" if step.decimals == -1 else f"{step.decimals} decimals"
            return (
                f"Showing {shown} exposes no record; what is shown then names the right class in "
                f"{step.accuracy:.1%} of records."
            )
    fewest = min(steps, key=lambda step: step.exposed)
    return (
        f"Showing fewer decimals is not enough: {fewest.exposed:,} of {risk.measured:,} records "
        "are exposed at best."
    )
