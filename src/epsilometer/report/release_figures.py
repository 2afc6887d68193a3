"""Draw what publishing a classifier risks: records, attacks, groups, and what would help."""

import math
from collections.abc import Iterable, Sequence

from epsilometer.core.audit import Audit
from epsilometer.core.findings import (
    GroupRisk,
    LeaveOneOut,
    MembershipFinding,
    RemovalPlan,
    RoundingStep,
    Variation,
)
from epsilometer.core.words import number, short
from epsilometer.report.figures import Axis, Figure, Mark, Role, plotted
from epsilometer.report.tables import shown_as

_ATTACK_ROLES: tuple[Role, ...] = ("attack", "claim", "gdp", "bound", "law", "outside")
_GROUPS = 16  # in one figure; more could not be told apart
_LONGEST_NAME = 24
_LOWEST_RATE = 1e-4


def release_figures(audit: Audit) -> tuple[Figure, ...]:
    """Return the figures, in the order they are read; those without anything to show not."""
    every = (
        risk_figure(audit),
        attack_figure(audit),
        rounding_figure(audit),
        *removal_figures(audit),
        *group_figures(audit),
        variation_figure(audit),
    )
    return tuple(figure for figure in every if figure is not None)


def risk_figure(audit: Audit) -> Figure | None:
    """Return how risks of records lie, beside what another seed alone does."""
    leaving = audit.one(LeaveOneOut)
    if leaving is None:
        return None
    edges, total = leaving.edges, max(sum(leaving.bins), 1)
    floors = max(sum(leaving.floor_bins), 1)
    series = [plotted("records", "bars", "attack", edges, [n / total for n in leaving.bins])]
    said = ""
    if leaving.floor_bins:
        shares = [n / floors for n in leaving.floor_bins]
        series.insert(0, plotted("another seed alone", "bars", "outside", edges, shares))
        said = " Where the two lie over each other, it is training that varies, not the record."
    return Figure(
        key="risk",
        title="Risk of records",
        caption="How far predictions at a record move when it leaves. Both axes are logarithmic, "
        f"so that a single record is seen; the outer bins also hold what lies beyond.{said}",
        alt=f"{leaving.measured:,} records: median {leaving.median:.2g}, largest "
        f"{number(leaving.largest)}; {leaving.exposed:,} above {short(leaving.limit)}."
        + (
            ""
            if leaving.median_floor is None
            else f" Another seed alone: median {leaving.median_floor:.2g}."
        ),
        x=Axis(title="PDTP (change of ln p)", low=edges[0], high=edges[-1], log=True),
        y=Axis(title="share of records", low=0.5 / max(total, floors), high=1.0, log=True),
        series=tuple(series),
        marks=(Mark(name=f"limit {short(leaving.limit)}", x=leaving.limit),),
        cites=("long2017",),
    )


def attack_figure(audit: Audit) -> Figure | None:
    """Return what attacks catch at few false alarms."""
    attacks = audit.find(MembershipFinding)
    if not attacks:
        return None
    lowest = max(min(1 / attack.n_out for attack in attacks), _LOWEST_RATE)
    grid = [lowest * (1 / lowest) ** (i / 60) for i in range(61)]
    drawn = sorted(attacks, key=lambda attack: -attack.auc)[: len(_ATTACK_ROLES)]
    told = "; ".join(
        f"{a.attack} {a.tpr:.1%} at {a.fpr:.0%} false positives, AUC {a.auc:.3f}" for a in drawn
    )
    fpr = drawn[0].fpr
    return Figure(
        key="attacks",
        title="What attacks catch",
        caption="Share of those inside that each attack catches, against false alarms, both "
        "logarithmic. On the dashed line an attack knows nothing.",
        alt=f"True against false positives. {told}.",
        x=Axis(title="false positive rate", low=lowest, high=1.0, log=True),
        y=Axis(title="true positive rate", low=lowest, high=1.0, log=True),
        series=(
            plotted("knows nothing", "line", "chance", grid, grid, dashed=True),
            *(
                plotted(attack.attack, "step", role, attack.roc_fpr, attack.roc_tpr)
                for attack, role in zip(drawn, _ATTACK_ROLES, strict=False)
            ),
        ),
        marks=(Mark(name=f"{100 * fpr:.3g}%", x=fpr),),
    )


def rounding_figure(audit: Audit) -> Figure | None:
    """Return what showing fewer decimals costs and gains."""
    steps, leaving = audit.find(RoundingStep), audit.one(LeaveOneOut)
    if len(steps) < 2 or leaving is None:
        return None
    places = [float(i) for i in range(1, len(steps) + 1)]
    measured = leaving.measured
    series = [
        plotted("accuracy", "points", "gdp", places, [s.accuracy for s in steps], dashed=True),
        plotted(
            "exposed records", "points", "attack", places, [s.exposed / measured for s in steps]
        ),
    ]
    attacked = [(x, s.advantage) for x, s in zip(places, steps, strict=True)]
    known = [(x, a) for x, a in attacked if a is not None]
    if known:
        xs, ys = [x for x, _ in known], [a for _, a in known]
        series.append(plotted("TPR − FPR of an attack", "points", "claim", xs, ys))
    told = "; ".join(
        f"{shown_as(s.decimals)}: {s.exposed:,} exposed, accuracy {s.accuracy:.1%}" for s in steps
    )
    return Figure(
        key="rounding",
        title="Fewer decimals",
        caption="What is seen of records where probabilities are shown with fewer decimals, and "
        "how often what is shown still names the right class.",
        alt=f"By what is shown: {told}.",
        x=Axis(
            title="what is shown",
            low=0.5,
            high=len(steps) + 0.5,
            names=tuple(shown_as(step.decimals) for step in steps),
        ),
        y=Axis(title="share", low=0.0, high=1.02),
        series=tuple(series),
    )


def removal_figures(audit: Audit) -> Iterable[Figure]:
    """Return the saw-tooth: what is left after each record dropped."""
    plan, leaving = audit.one(RemovalPlan), audit.one(LeaveOneOut)
    if plan is None or len(plan.removed) < 2 or leaving is None:
        return
    removed = [float(n) for n in plan.removed]
    axis = Axis(title="records dropped", low=0.0, high=max(removed))
    limit = leaving.limit
    values = [(x, y) for x, y in zip(removed, plan.largest, strict=True) if math.isfinite(y)]
    yield Figure(
        key="removal",
        title="Dropping the riskiest",
        caption="Records above the limit after each one dropped, all measured again. It need not "
        "fall: who was hidden by the dropped record may come out.",
        alt=f"{plan.exposed[0]:,} exposed before, {plan.exposed[-1]:,} after dropping "
        f"{plan.removed[-1]:,}; fewest, {min(plan.exposed):,}, at {plan.best:,}.",
        x=axis,
        y=Axis(title="exposed records", low=0.0, high=1.08 * max(*plan.exposed, 1)),
        series=(plotted("exposed", "points", "attack", removed, plan.exposed),),
        marks=(Mark(name="fewest", x=float(plan.best)),),
    )
    if len(values) < 2:
        return
    xs, ys = [x for x, _ in values], [y for _, y in values]
    yield Figure(
        key="saw-tooth",
        title="The largest risk that is left",
        caption="The saw-tooth: each time the riskiest is dropped, another becomes the riskiest. "
        "Infinite risks are not drawn.",
        alt=f"The largest PDTP: {number(ys[0])} at first, {number(ys[-1])} in the end.",
        x=axis,
        y=Axis(title="largest PDTP", low=0.0, high=1.08 * max(*ys, limit)),
        series=(
            plotted(f"limit {short(limit)}", "line", "claim", [0, max(removed)], [limit] * 2, True),
            plotted("largest PDTP", "points", "attack", xs, ys),
        ),
    )


def group_figures(audit: Audit) -> Iterable[Figure]:
    """Return one figure per column: share exposed, and how the strongest attack does."""
    every = audit.find(GroupRisk)
    for i, column in enumerate(dict.fromkeys(group.column for group in every), start=1):
        groups = [group for group in every if group.column == column]
        if 1 < len(groups) <= _GROUPS:
            yield _grouped(column, groups, key=f"groups-{i}")


def _grouped(column: str, groups: Sequence[GroupRisk], *, key: str) -> Figure:
    places = [float(i) for i in range(1, len(groups) + 1)]
    series = [
        plotted("share exposed", "left_bars", "attack", places, [g.exposed for g in groups]),
    ]
    aucs = [(x, g.auc) for x, g in zip(places, groups, strict=True) if g.auc is not None]
    if aucs:
        xs, ys = [x for x, _ in aucs], [a for _, a in aucs]
        series.append(plotted("AUC of the strongest attack", "right_bars", "claim", xs, ys))
    told = "; ".join(f"{g.name}: {g.exposed:.1%} of {g.records:,} exposed" for g in groups)
    return Figure(
        key=key,
        title=f"By {column}",
        caption="Share of records above the limit, and what the strongest attack knows (0.5: "
        "nothing). Small groups are shown together.",
        alt=f"{told}.",
        x=Axis(
            title=column,
            low=0.5,
            high=len(groups) + 0.5,
            names=tuple(group.name[:_LONGEST_NAME] for group in groups),
        ),
        y=Axis(title="share, chance", low=0.0, high=1.02),
        series=tuple(series),
    )


def variation_figure(audit: Audit) -> Figure | None:
    """Return how much predictions vary for reasons that are nobody's record."""
    variations = audit.find(Variation)
    if not variations:
        return None
    roles: tuple[Role, ...] = ("attack", "claim", "gdp", "bound")
    tops = [max(variation.deciles) for variation in variations]
    told = "; ".join(
        f"{v.cause}: half of the records vary by at least {v.deciles[len(v.deciles) // 2]:.2g}"
        for v in variations
    )
    return Figure(
        key="variation",
        title="How much predictions vary anyway",
        caption="Standard deviation of the probability of the own class over models, for a share "
        "of the records, the steadiest first.",
        alt=f"{told}.",
        x=Axis(title="share of records", low=0.0, high=1.0),
        y=Axis(title="standard deviation of p", low=0.0, high=1.08 * max(*tops, 1e-9)),
        series=tuple(
            plotted(
                variation.cause,
                "points",
                role,
                [i / (len(variation.deciles) - 1) for i in range(len(variation.deciles))],
                variation.deciles,
            )
            for variation, role in zip(variations, roles, strict=False)
        ),
    )
