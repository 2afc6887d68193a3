"""A release audit in plain sentences: what was found, what it means, and what it does not."""

from epsilometer.core.audit import ReleaseAudit
from epsilometer.core.findings import GroupRisk, LeaveOneOut, MembershipFinding, RoundingStep, RuleFinding
from epsilometer.report import words

_HEADINGS = {
    "do not release": "Do not publish it",
    "release": "Nothing measured here speaks against publishing it",
    "cannot tell": "Cannot tell whether it may be published",
}


def finding(result: ReleaseAudit) -> str:
    """The verdict in a sentence."""
    return f"{_HEADINGS[result.verdict]}: {deciding(result)}"


def deciding(result: ReleaseAudit) -> str:
    """What the verdict rests on."""
    if result.verdict == "cannot tell" and all(r.decision == "release" for r in result.reasons):
        return f"{result.provenance.failed:,} units of the work failed."
    told = [r.finding for r in result.reasons if r.decision == result.verdict]
    if result.verdict == "release":
        rules = len(result.reasons)
        return f"{'the one rule is' if rules == 1 else f'all {rules} rules are'} kept."
    return told[0].partition(". ")[0].rstrip(".") + "."


def meaning(result: ReleaseAudit) -> list[str]:
    """What the verdict says, what it rests on, and what it does not say."""
    sure = f"{result.confidence:.4g}"
    match result.verdict:
        case "do not release":
            first = (
                "Some rule is broken. Where that rests on samples, such a verdict is wrong in at "
                f"most {1 - result.confidence:.3g} of audits, whatever the number of rules and "
                "attacks."
            )
        case "release":
            first = (
                f"Every rule is kept, each with {sure} confidence where it rests on samples. That "
                "is no proof of privacy: other attacks, or an adversary who knows more, may do "
                "better. A guarantee needs differentially private training."
            )
        case "cannot tell":
            first = "What was measured lies on neither side of some rule: see which, and why."
    return [
        first,
        "PDTP compares predictions at a record with and without it. A record can also show in "
        "predictions at other places, which PDTP does not see and dtp_over looks for.",
        *result.caveats,
    ]


def shown_as(decimals: int | None) -> str:
    """Decimals in words."""
    if decimals is None:
        return "all digits"
    if decimals < 0:
        return "class alone"
    return "1 decimal" if decimals == 1 else f"{decimals} decimals"


def leaving_rows(leaving: LeaveOneOut) -> list[tuple[str, str]]:
    """Titles and values of what leaving records out showed."""
    rows = [
        ("computed", leaving.path),
        ("records", f"{leaving.measured:,} of {leaving.of:,} left out, one at a time"),
        (
            f"above {words.short(leaving.limit)}",
            f"{leaving.exposed:,} with {shown_as(leaving.decimals)} shown",
        ),
        ("largest", f"{words.number(leaving.largest, 3)}, median {leaving.median:.2g}"),
    ]
    if leaving.median_floor is not None and leaving.largest_floor is not None:
        floor = f"median {leaving.median_floor:.2g}, largest {words.number(leaving.largest_floor)}"
        apart = (
            "" if leaving.separation is None else f"; above it with p = {leaving.separation:.2g}"
        )
        rows.append(("another seed alone", f"{floor}{apart}"))
    if leaving.hidden:
        rows.append(("at full precision", f"{leaving.hidden:,} more above it"))
    if leaving.edge_only:
        rows.append(
            ("edges", f"{leaving.edge_only:,} more by the edge of a bin alone: not counted")
        )
    if leaving.infinite:
        rows.append(("infinite", f"{leaving.infinite:,}: a class is impossible to one model only"))
    if leaving.coverage:
        rows.append(("not measured", leaving.coverage))
    return rows


def attack_row(attack: MembershipFinding) -> tuple[str, ...]:
    """An attack as cells: name, AUC, advantage, caught, ε."""
    bound = attack.bound
    epsilon = "–" if bound is None or not bound.valid else f"≥ {words.number(bound.epsilon)}"
    return (
        attack.attack,
        f"{attack.auc:.3f}",
        f"{attack.advantage:.3f} ({attack.advantage_low:.3f}–{attack.advantage_high:.3f})",
        f"{attack.tpr:.1%} ({attack.tpr_low:.1%}–{attack.tpr_high:.1%})",
        epsilon,
    )


def group_row(group: GroupRisk) -> tuple[str, ...]:
    """A group as cells: which, how many, how exposed, what an attack knows of it."""
    auc = "–"
    if group.auc is not None and group.auc_low is not None and group.auc_high is not None:
        auc = f"{group.auc:.3f} ({group.auc_low:.2f}–{group.auc_high:.2f})"
    return (
        f"{group.column}: {group.name}",
        f"{group.records:,}",
        f"{group.exposed:.1%}",
        words.number(group.median, 4),
        auc,
    )


def rounding_row(step: RoundingStep) -> tuple[str, ...]:
    """A step of rounding as cells: shown, exposed, largest, accuracy, advantage."""
    return (
        shown_as(step.decimals),
        f"{step.exposed:,}",
        words.number(step.largest),
        f"{step.accuracy:.1%}",
        "–" if step.advantage is None else f"{step.advantage:.3f}",
    )


def reason_confidence(reason: RuleFinding) -> str:
    """How sure a reason is."""
    return "computed" if reason.confidence == 1 else f"{reason.confidence:.4g} confidence"
