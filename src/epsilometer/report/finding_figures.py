"""Draw findings other than views: risks of records, attacks, groups, forms of publishing, plans."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from epsilometer.core.audit import Audit
from epsilometer.core.document import Axis, Figure, Mark, Role, Series, plot, plot_level
from epsilometer.core.findings import (
    FormFinding,
    FormPlan,
    GroupRisk,
    LeaveOneOut,
    MembershipFinding,
    RemovalPlan,
    RoundingStep,
    SweepPoint,
    Variation,
)
from epsilometer.core.words import short
from epsilometer.report.texts import TEXTS, describe, fill, list_findings, look_up

_ROLES: tuple[Role, ...] = ("attack", "claim", "gdp", "bound", "law", "outside", "chance")
_MOST = 16  # groups or forms in one figure; more could not be told apart
_SIDE_BY_SIDE = 4
_LONGEST_NAME = 24
_LOWEST_RATE = 1e-4
_LEAST = 0.5  # ε that an axis shows, though all of them are smaller


def draw_findings(audit: Audit) -> Iterator[Figure]:
    """Return the figures, in the order they are read; those without anything to show not."""
    yield from _draw_risk(audit)
    yield from _draw_attacks(audit)
    steps = audit.find(RoundingStep)
    if len(steps) > 1 and audit.find(LeaveOneOut):
        yield _draw_across("rounding", audit, steps)
    yield from _draw_removal(audit)
    groups = audit.find(GroupRisk)
    for i, column in enumerate(dict.fromkeys(group.column for group in groups), start=1):
        alike = [group for group in groups if group.column == column]
        if 1 < len(alike) <= _MOST:
            yield _draw_across("groups", audit, alike, suffix=f"-{i}")
    yield from _draw_variation(audit)
    forms: list[FormFinding] = list_findings(audit, "FormFinding")[:_MOST]
    if forms:
        yield _draw_across("forms", audit, forms)
        yield _draw_across("advantage", audit, forms)
    yield from _draw_sweeps(audit)
    yield from _draw_pareto(audit, [form for form in forms if form.log_loss is not None])


def _draw_across(key: str, audit: Audit, items: Sequence[Any], *, suffix: str = "") -> Figure:
    """Return a figure with a place for each item, whose series are data: fields of the items."""
    spec = TEXTS["figures"][key]
    names = [fill(spec["names"], audit, item)[:_LONGEST_NAME] for item in items]
    names = [name.replace(", to ", "\nto ") for name in names]
    if spec.get("stagger") and len(names) > _SIDE_BY_SIDE:  # they would touch
        names = ["\n" * (i % 2) + name for i, name in enumerate(names)]
    x = Axis.of_names(names)
    columns = [[_read(audit, item, each["y"]) for item in items] for each in spec["series"]]
    every = [value for column in columns for value in column if math.isfinite(value)]
    y = Axis.from_zero(every, least=_LEAST)
    if "high" in spec:
        y = Axis(1.05 * min(0.0, *every), spec["high"])
    drawn = []
    for each, column in zip(spec["series"], columns, strict=True):
        if all(map(math.isnan, column)):
            continue
        if each["kind"] == "level":
            drawn.append(
                plot_level(fill(each["name"], audit, items[0]), each["role"], x, column[0])
            )
            continue
        tops = [_read(audit, item, each["top"]) for item in items] if "top" in each else ()
        heights = [min(value, y.high) for value in column]  # infinity ends there
        places = range(1, len(items) + 1)
        style = each["name"], each["kind"], each["role"]
        drawn.append(plot(*style, places, heights, each.get("dashed", False), top=tops))
    return describe(key, audit, items[0], each=items, suffix=suffix, x=x, y=y, series=drawn)


def _read(audit: Audit, item: Any, field: str) -> float:
    """Return a field to be drawn; what is None is not drawn."""
    value = look_up(audit, item, field)
    return math.nan if value is None else float(value)


def _draw_risk(audit: Audit) -> Iterator[Figure]:
    """Return the distribution of risks of records, and of what another seed alone does."""
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
    series = [plot("random guessing", "line", "chance", grid, grid, dashed=True)]
    for attack, role in zip(attacks, _ROLES[:-1], strict=False):
        series.append(plot(attack.attack, "step", role, attack.roc_fpr, attack.roc_tpr))
    yield describe(
        "attacks",
        audit,
        attacks[0],
        each=attacks[: len(series) - 1],
        x=Axis(lowest, 1.0, log=True),
        y=Axis(lowest, 1.0, log=True),
        series=series,
        marks=(Mark(f"{100 * attacks[0].fpr:.3g}%", attacks[0].fpr),),
    )


def _draw_removal(audit: Audit) -> Iterator[Figure]:
    """Return the curve of what is left after each record dropped."""
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
    limit = plot_level(f"limit {short(left.limit)}", "claim", x, left.limit)
    if len(largest) > 1:
        yield describe(
            "saw-tooth",
            audit,
            plan,
            x=x,
            y=Axis.from_zero([*largest, left.limit]),
            series=(limit, plot("largest PDTP", "points", "attack", plan.removed, plan.largest)),
            first=largest[0],
            last=largest[-1],
        )


def _draw_variation(audit: Audit) -> Iterator[Figure]:
    """Return how much predictions vary for reasons that are no one's record."""
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


def _draw_sweeps(audit: Audit) -> Iterator[Figure]:
    """Return ε by number of samples and by unit of rounding, and what rounding costs."""
    points = audit.find(SweepPoint)
    samples = [point for point in points if point.swept == "samples"]
    units = sorted((p for p in points if p.swept == "unit"), key=lambda point: point.unit or 0.0)
    if samples:
        counts = [float(point.samples) for point in samples]
        x = Axis(min(counts) / 1.2, 1.2 * max(counts), log=True)
        yield _draw_sweep("samples", audit, samples, counts, x)
    if units:
        names = [look_up(audit, point, "rounded") for point in units]
        every = list(dict.fromkeys(names))
        places = [1.0 + every.index(name) for name in names]
        yield _draw_sweep("units", audit, units, places, Axis.of_names(every))
    kinds = [point.shows for point in units if point.accuracy is not None]
    if kinds:
        kind = "mean+std" if "mean+std" in kinds else kinds[0]
        own = [point for point in units if point.shows == kind]
        yield _draw_across("rounding-utility", audit, own)


def _draw_sweep(
    key: str, audit: Audit, points: Sequence[SweepPoint], places: Sequence[float], x: Axis
) -> Figure:
    """Return two curves per form: the paper's estimate, and what is proved."""
    series: list[Series] = []
    for kind, role in zip(dict.fromkeys(p.shows for p in points), _ROLES, strict=False):
        own = [(at, point) for at, point in zip(places, points, strict=True) if point.shows == kind]
        xs = [at for at, _ in own]
        series.append(plot(f"{kind}, ε̂", "points", role, xs, [p.raw for _, p in own], True))
        series.append(plot(f"{kind}, proved", "points", role, xs, [p.epsilon for _, p in own]))
    y = Axis.from_zero([e for p in points for e in (p.raw, p.epsilon)], least=_LEAST)
    return describe(key, audit, points[0], each=points, x=x, y=y, series=series)


def _draw_pareto(audit: Audit, forms: Sequence[FormFinding]) -> Iterator[Figure]:
    """Return utility against leakage: what no other form beats in both."""
    plan = audit.one(FormPlan)
    if plan is None or len(forms) < 2:
        return
    points = [(form.form, form.advantage, form.log_loss or 0.0) for form in forms]
    front = sorted((gain, loss) for form, gain, loss in points if form in plan.pareto)
    xs, ys = [gain for gain, _ in front], [loss for _, loss in front]
    gains, losses = [gain for _, gain, _ in points], [loss for _, _, loss in points]
    yield describe(
        "pareto",
        audit,
        plan,
        each=forms,
        x=Axis(min(0.0, *gains) - 0.03, 1.02),
        y=Axis(min(losses) / 1.3, 1.3 * max(losses), log=True),
        series=(
            plot("not beaten", "line", "chance", xs, ys, dashed=True),
            *(
                plot(form, "points", _ROLES[i % len(_ROLES)], [gain], [loss])
                for i, (form, gain, loss) in enumerate(points)
            ),
        ),
        marks=(Mark(f"allowed {plan.advantage:.3g}", plan.advantage),),
    )
