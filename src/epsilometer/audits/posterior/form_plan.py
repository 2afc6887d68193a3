"""Choose the form of predictions to publish: the finest that stays below the line."""

import dataclasses
import math
from collections.abc import Sequence

from msgspec.structs import replace

from epsilometer.audits.posterior.disclosure import ReleaseForm
from epsilometer.audits.posterior.runs import LEARNED_FROM, Question
from epsilometer.core.findings import FormFinding, FormPlan, Standing
from epsilometer.stats.membership import scores_needed

_WORST_FIRST: tuple[Standing, ...] = ("above", "unclear", "below")
_MADE_OF: dict[str, tuple[str, ...]] = {
    "samples": ("quantiles", "mean+std", "mean", "label"),
    "quantiles": (),
    "mean+std": ("mean", "label"),
    "mean": ("label",),
    "vector": (),
    "label": (),
}


def no_better_than_coarser(
    findings: Sequence[FormFinding], forms: Sequence[ReleaseForm]
) -> list[FormFinding]:
    """Return findings of which none stands better than a coarser form.

    Whoever sees a form can make coarser ones of it.
    """
    kept = []
    for finding, form in zip(findings, forms, strict=True):
        within = [
            other.standing
            for other, coarser in zip(findings, forms, strict=True)
            if derives(form, coarser)
        ]
        worst = min((finding.standing, *within), key=_WORST_FIRST.index)
        kept.append(replace(finding, standing=worst))
    return kept


def derives(fine: ReleaseForm, coarse: ReleaseForm) -> bool:
    """Tell whether all that one form shows can be computed from the other.

    Example:
        >>> derives(ReleaseForm("samples"), ReleaseForm("mean", unit=0.1))
        True
        >>> derives(ReleaseForm("samples", unit=0.1), ReleaseForm("mean", unit=0.01))
        False
    """
    if fine.unit is None:
        return coarse.kind == fine.kind or coarse.kind in _MADE_OF[fine.kind]
    # A rounded mean may tie, and leave the label open; what was rounded is not rounded otherwise.
    mean = dataclasses.replace(fine, kind="mean")
    return coarse == fine or (fine.kind == "mean+std" and coarse == mean)


def plan_forms(findings: Sequence[FormFinding], question: Question) -> FormPlan:
    """Return the finest form below the line, and what to do where that is unclear.

    Args:
        findings: Of all forms, finest first.
        question: Where the line is.
    """
    below = [each for each in findings if each.standing == "below"]
    chosen = below[0].form if below else None
    line = f"ε = {question.line:g} and an advantage of {question.advantage:.3g}"
    advice = []
    if chosen is None:
        advice.append(f"No form is known to stay below the line ({line}).")
    else:
        advice.append(
            f"Publish {chosen}: the finest form that stays below the line ({line}), as these "
            "attacks on this record found it."
        )
    before = findings if chosen is None else findings[: findings.index(below[0])]
    if finer := [each for each in before if each.standing == "unclear"]:
        first = finer[0]
        needed = _count_needed(first, question)
        advice.append(
            f"It is unclear of {'; '.join(each.form for each in finer)}: "
            + (
                f"{needed:,} runs with the record, and as many without it, might settle it for "
                f"{first.form}."
                if needed
                else "more runs might settle it."
            )
        )
    if all(each.standing == "above" for each in findings):
        advice.append("Train with more noise, or publish nothing of such records.")
    return FormPlan(
        epsilon=question.line,
        advantage=question.advantage,
        forms=tuple(each.form for each in findings),
        chosen=chosen,
        pareto=_list_pareto(findings),
        advice=tuple(advice),
    )


def _count_needed(finding: FormFinding, question: Question) -> int:
    """Return with how many runs of either kind the upper limit would be at the line.

    The value is taken to stay as it is; 0 where no number of runs would do.
    """
    room = question.advantage - finding.advantage
    if room <= 0 or question.advantage >= 1:
        return 0
    scored = scores_needed(room, confidence=finding.view.bound.confidence)
    return math.ceil(scored / LEARNED_FROM)


def _list_pareto(findings: Sequence[FormFinding]) -> tuple[str, ...]:
    """Return the forms that no other beats in both log loss and advantage."""
    known = [(each.form, each.log_loss, each.advantage) for each in findings]
    tested = [(form, loss, leak) for form, loss, leak in known if loss is not None]
    return tuple(
        form
        for form, loss, leak in tested
        if not any(
            other <= loss and less <= leak and (other, less) != (loss, leak)
            for _, other, less in tested
        )
    )
