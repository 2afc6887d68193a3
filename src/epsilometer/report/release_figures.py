"""Draw what publishing a classifier risks: records, attacks, groups, and what would help."""

import math
from collections.abc import Iterator

from epsilometer.core.audit import Audit
from epsilometer.core.document import Axis, Figure, Mark, Role, plot, plot_level
from epsilometer.core.findings import (
    GroupRisk,
    LeaveOneOut,
    MembershipFinding,
    RemovalPlan,
    RoundingStep,
    Variation,
)
from epsilometer.core.words import short
from epsilometer.report.texts import describe, look_up

_ROLES: tuple[Role, ...] = ("attack", "claim", "gdp", "bound", "law", "outside")
_GROUPS = 16  # in one figure; more could not be told apart
_LONGEST_NAME = 24
_LOWEST_RATE = 1e-4


def draw_release(audit: Audit) -> Iterator[Figure]:
    """Return the figures, in the order they are read; those without anything to show not."""
    for draw in (_draw_risk, _draw_attacks, _draw_rounding, _draw_removal, _draw_groups):
        yield from draw(audit)
    yield from _draw_variation(audit)


def _draw_risk(audit: Audit) -> Iterator[Figure]:
    """Return how risks of records lie, beside what another seed alone does."""
    for left in audit.find(LeaveOneOut)[:1]:
        total, floors = max(sum(left.bins), 1), max(sum(left.floor_bins), 1)
        series = [plot("records", "bars", "attack", left.edges, [n / total for n in left.bins])]
        if left.floor_bins:
            shares = [n / floors for n in left.floor_bins]
            series.insert(0, plot("another seed alone", "bars", "outside", left.edges, shares))
        floor = left.median_floor
        yield describe(
            "risk",
            audit,
            left,
            x=Axis(left.edges[0], left.edges[-1], log=True),
            y=Axis(0.5 / max(total, floors), 1.0, log=True),
            series=series,
            marks=(Mark(f"limit {short(left.limit)}", left.limit),),
            floor="" if floor is None else f" Another seed alone: median {floor:.2g}.",
        )


def _draw_attacks(audit: Audit) -> Iterator[Figure]:
    """Return what attacks catch at few false alarms."""
    attacks = sorted(audit.find(MembershipFinding), key=lambda attack: -attack.auc)
    if not attacks:
        return
    lowest = max(min(1 / attack.n_out for attack in attacks), _LOWEST_RATE)
    grid = [lowest * (1 / lowest) ** (i / 60) for i in range(61)]
    drawn = attacks[: len(_ROLES)]
    yield describe(
        "attacks",
        audit,
        drawn[0],
        each=drawn,
        x=Axis(lowest, 1.0, log=True),
        y=Axis(lowest, 1.0, log=True),
        series=(
            plot("knows nothing", "line", "chance", grid, grid, dashed=True),
            *(
                plot(attack.attack, "step", role, attack.roc_fpr, attack.roc_tpr)
                for attack, role in zip(drawn, _ROLES, strict=False)
            ),
        ),
        marks=(Mark(f"{100 * drawn[0].fpr:.3g}%", drawn[0].fpr),),
    )


def _draw_rounding(audit: Audit) -> Iterator[Figure]:
    """Return what showing fewer decimals costs and gains."""
    steps, left = audit.find(RoundingStep), audit.one(LeaveOneOut)
    if len(steps) < 2 or left is None:
        return
    places, shares = range(1, len(steps) + 1), [s.exposed / left.measured for s in steps]
    series = [
        plot("accuracy", "points", "gdp", places, [s.accuracy for s in steps], dashed=True),
        plot("exposed records", "points", "attack", places, shares),
    ]
    gains = [math.inf if s.advantage is None else s.advantage for s in steps]  # not drawn
    if any(map(math.isfinite, gains)):
        series.append(plot("TPR − FPR of an attack", "points", "claim", places, gains))
    names = [look_up(audit, step, "shown_decimals") for step in steps]
    yield describe(
        "rounding",
        audit,
        left,
        each=steps,
        x=Axis.of_names(names),
        y=Axis(0.0, 1.02),
        series=series,
    )


def _draw_removal(audit: Audit) -> Iterator[Figure]:
    """Return the saw-tooth: what is left after each record dropped."""
    plan, left = audit.one(RemovalPlan), audit.one(LeaveOneOut)
    if plan is None or len(plan.removed) < 2 or left is None:
        return
    x = Axis(0.0, max(plan.removed))
    yield describe(
        "removal",
        audit,
        plan,
        x=x,
        y=Axis.from_zero(plan.exposed, least=1),
        series=[plot("exposed", "points", "attack", plan.removed, plan.exposed)],
        marks=(Mark("fewest", float(plan.best)),),
        left=plan.exposed[-1],
        dropped=plan.removed[-1],
        fewest=min(plan.exposed),
    )
    largest = [risk for risk in plan.largest if math.isfinite(risk)]
    if len(largest) > 1:
        yield describe(
            "saw-tooth",
            audit,
            plan,
            x=x,
            y=Axis.from_zero([*largest, left.limit]),
            series=(
                plot_level(f"limit {short(left.limit)}", "claim", x, left.limit),
                plot("largest PDTP", "points", "attack", plan.removed, plan.largest),
            ),
            first=largest[0],
            last=largest[-1],
        )


def _draw_groups(audit: Audit) -> Iterator[Figure]:
    """Return one figure per column: share exposed, and how the strongest attack does."""
    every = audit.find(GroupRisk)
    for i, column in enumerate(dict.fromkeys(group.column for group in every), start=1):
        groups = [group for group in every if group.column == column]
        if not 1 < len(groups) <= _GROUPS:
            continue
        places = range(1, len(groups) + 1)
        series = [plot("share exposed", "left_bars", "attack", places, [g.exposed for g in groups])]
        aucs = [math.inf if g.auc is None else g.auc for g in groups]  # not drawn
        if any(map(math.isfinite, aucs)):
            series.append(plot("AUC of the strongest attack", "right_bars", "claim", places, aucs))
        yield describe(
            "groups",
            audit,
            groups[0],
            each=groups,
            suffix=f"-{i}",
            x=Axis.of_names([group.name[:_LONGEST_NAME] for group in groups]),
            y=Axis(0.0, 1.02),
            series=series,
        )


def _draw_variation(audit: Audit) -> Iterator[Figure]:
    """Return how much predictions vary for reasons that are nobody's record."""
    variations = audit.find(Variation)
    if not variations:
        return
    tenths = [i / 10 for i in range(11)]
    yield describe(
        "variation",
        audit,
        variations[0],
        each=variations,
        x=Axis(0.0, 1.0),
        y=Axis.from_zero([max(v.deciles) for v in variations]),
        series=(
            plot(variation.cause, "points", role, tenths, variation.deciles)
            for variation, role in zip(variations, _ROLES[:4], strict=False)
        ),
    )
