"""Which form of predictions may be published: the finest that stays below the line."""

import math
from collections.abc import Sequence
from dataclasses import replace

from epsilometer.attacks.disclosure import ReleaseForm
from epsilometer.audits.posterior_runs import LEARNED_FROM, Asked
from epsilometer.core.findings import FormFinding, FormPlan, Standing
from epsilometer.stats.decisions import scores_needed

_WORST_FIRST: tuple[Standing, ...] = ("above", "cannot tell", "below")
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
    """Whoever sees a form can make coarser ones of it: it stands no better than any of these."""
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
    """Whether all that one form shows can be computed from the other.

    Example:
        >>> derives(ReleaseForm("samples"), ReleaseForm("mean", unit=0.1))
        True
        >>> derives(ReleaseForm("samples", unit=0.1), ReleaseForm("mean", unit=0.01))
        False
    """
    if fine.unit is None:
        return coarse.kind == fine.kind or coarse.kind in _MADE_OF[fine.kind]
    # A rounded mean may tie, and leave the label open; what was rounded is not rounded otherwise.
    return coarse == fine or (fine.kind == "mean+std" and coarse == replace(fine, kind="mean"))


def plan_of(findings: Sequence[FormFinding], asked: Asked) -> FormPlan:
    """The finest form below the line, and what to do where it cannot be told."""
    below = [each for each in findings if each.standing == "below"]
    chosen = below[0].form if below else None
    line = f"ε = {asked.line:g} and an advantage of {asked.advantage:.3g}"
    advice = []
    if chosen is None:
        advice.append(f"No form is known to stay below the line ({line}).")
    else:
        advice.append(
            f"Publish {chosen}: the finest form that stays below the line ({line}), as these "
            "attacks on this record found it."
        )
    before = findings if chosen is None else findings[: findings.index(below[0])]
    if finer := [each for each in before if each.standing == "cannot tell"]:
        first = finer[0]
        needed = _needed(first, asked)
        advice.append(
            f"Of {'; '.join(each.form for each in finer)} it cannot be told: "
            + (
                f"for {first.form} some {needed:,} runs of either world might."
                if needed
                else "more runs might."
            )
        )
    if all(each.standing == "above" for each in findings):
        advice.append("Train with more noise, or publish nothing of such records.")
    return FormPlan(
        epsilon=asked.line,
        advantage=asked.advantage,
        chosen=chosen,
        pareto=_pareto(findings),
        advice=tuple(advice),
    )


def _needed(finding: FormFinding, asked: Asked) -> int:
    """Runs of either world with which the upper limit would reach the line, the value staying."""
    room = asked.advantage - finding.advantage
    if room <= 0 or asked.advantage >= 1:
        return 0
    scored = scores_needed(room, confidence=finding.audit.bound.confidence)
    return math.ceil(scored / LEARNED_FROM)


def _pareto(findings: Sequence[FormFinding]) -> tuple[str, ...]:
    """Forms that no other beats in both log loss and advantage."""
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
