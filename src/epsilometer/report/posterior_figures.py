"""Draw forms of publishing: leaks by form, samples and unit, and utility against them."""

from collections.abc import Iterator, Sequence

import numpy as np

from epsilometer.core.audit import Audit
from epsilometer.core.document import Axis, Figure, Mark, Role, Series, plot, plot_level
from epsilometer.core.findings import FormFinding, FormPlan, SweepPoint
from epsilometer.report.texts import describe, list_findings, look_up

_ROLES: tuple[Role, ...] = ("attack", "claim", "gdp", "bound", "law", "outside", "chance")
_FORMS = 14  # in one figure; more could not be told apart
_SIDE_BY_SIDE = 4
_LONGEST_NAME = 24
_LEAST = 0.5  # ε that an axis shows, though all of them are smaller


def draw_posterior(audit: Audit) -> Iterator[Figure]:
    """Return the figures, in the order they are read; those without anything to show not."""
    forms: list[FormFinding] = list_findings(audit, "FormFinding")[:_FORMS]
    if forms:
        yield _draw_epsilons(audit, forms)
        yield _draw_advantages(audit, forms)
    points = audit.find(SweepPoint)
    for swept in ("samples", "unit"):
        yield from _draw_sweep(audit, [point for point in points if point.swept == swept])
    yield from _draw_cost(audit, [point for point in points if point.swept == "unit"])
    yield from _draw_pareto(audit, [form for form in forms if form.log_loss is not None])


def _draw_epsilons(audit: Audit, forms: Sequence[FormFinding]) -> Figure:
    """Return ε by form: what is proved, and what the paper's estimate says."""
    places = range(1, len(forms) + 1)
    proved, raw = [form.epsilon for form in forms], [form.raw for form in forms]
    claim = [] if audit.claim is None else [audit.claim.epsilon]
    x, y = _name_forms(forms), Axis.from_zero([*proved, *raw, *claim], least=_LEAST)
    left, right = np.minimum(proved, y.high), np.minimum(raw, y.high)  # infinity ends there
    return describe(
        "forms",
        audit,
        forms[0],
        each=forms,
        x=x,
        y=y,
        series=(
            plot("proved ε", "left_bars", "bound", places, left),
            plot("paper's ε̂, no bound", "right_bars", "outside", places, right),
            *(plot_level("claimed ε", "claim", x, e) for e in claim),
        ),
    )


def _draw_advantages(audit: Audit, forms: Sequence[FormFinding]) -> Figure:
    """Return what the learned attack gains by each form, with limits, and what is allowed."""
    places, x = range(1, len(forms) + 1), _name_forms(forms)
    allowed = [plan.advantage for plan in audit.find(FormPlan)[:1]]
    lows, highs = [f.advantage_low for f in forms], [f.advantage_high for f in forms]
    return describe(
        "advantage",
        audit,
        forms[0],
        each=forms,
        x=x,
        y=Axis(1.05 * min(0.0, *lows), 1.02),
        series=(
            plot("limits", "band", "attack", places, lows, top=highs),
            plot_level("knows nothing", "chance", x, 0.0),
            *(plot_level(f"allowed, {a:.3g}", "claim", x, a) for a in allowed),
            plot("TPR − FPR", "points", "attack", places, [f.advantage for f in forms]),
        ),
        allowed="".join(f"Allowed is {a:.3g}. " for a in allowed),
    )


def _draw_sweep(audit: Audit, points: Sequence[SweepPoint]) -> Iterator[Figure]:
    """Return ε by number of samples, or by unit of rounding: two curves per form."""
    if not points:
        return
    if points[0].swept == "unit":
        x, places = _name_units(audit, points)
    else:
        places = [float(point.samples) for point in points]
        x = Axis(min(places) / 1.2, 1.2 * max(places), log=True)
    series: list[Series] = []
    for kind, role in zip(dict.fromkeys(p.shows for p in points), _ROLES, strict=False):
        own = [(at, point) for at, point in zip(places, points, strict=True) if point.shows == kind]
        xs = [at for at, _ in own]
        series.append(plot(f"{kind}, ε̂", "points", role, xs, [p.raw for _, p in own], True))
        series.append(plot(f"{kind}, proved", "points", role, xs, [p.epsilon for _, p in own]))
    yield describe(
        "units" if points[0].swept == "unit" else "samples",
        audit,
        points[0],
        each=points,
        x=x,
        y=Axis.from_zero([e for p in points for e in (p.raw, p.epsilon)], least=_LEAST),
        series=series,
    )


def _draw_cost(audit: Audit, points: Sequence[SweepPoint]) -> Iterator[Figure]:
    """Return what rounding costs: accuracy, and records that no label can be given."""
    kinds = [point.shows for point in points if point.accuracy is not None]
    if not kinds:
        return
    kind = "mean+std" if "mean+std" in kinds else kinds[0]
    own = [point for point in points if point.shows == kind]
    x, places = _name_units(audit, own)
    yield describe(
        "rounding-utility",
        audit,
        own[0],
        each=own,
        x=x,
        y=Axis(0.0, 1.02),
        series=(
            plot("accuracy", "points", "gdp", places, [p.accuracy or 0.0 for p in own]),
            plot("ties", "points", "claim", places, [p.ties or 0.0 for p in own], dashed=True),
        ),
    )


def _draw_pareto(audit: Audit, forms: Sequence[FormFinding]) -> Iterator[Figure]:
    """Return utility against leakage: what no other form beats in both."""
    plan = audit.one(FormPlan)
    if plan is None or len(forms) < 2:
        return
    points = [(form.advantage, form.log_loss or 0.0) for form in forms]
    gains, losses = zip(*points, strict=True)
    front = sorted(
        point for point, form in zip(points, forms, strict=True) if form.form in plan.pareto
    )
    yield describe(
        "pareto",
        audit,
        plan,
        each=forms,
        x=Axis(min(0.0, *gains) - 0.03, 1.02),
        y=Axis(min(losses) / 1.3, 1.3 * max(losses), log=True),
        series=(
            plot(
                "not beaten", "line", "chance", [x for x, _ in front], [y for _, y in front], True
            ),
            *(
                plot(form.form, "points", _ROLES[i % len(_ROLES)], [gains[i]], [losses[i]])
                for i, form in enumerate(forms)
            ),
        ),
        marks=(Mark(f"allowed {plan.advantage:.3g}", plan.advantage),),
    )


def _name_forms(forms: Sequence[FormFinding]) -> Axis:
    names = [form.form[:_LONGEST_NAME].replace(", to ", "\nto ") for form in forms]
    if len(names) > _SIDE_BY_SIDE:  # every second one lower, where they would touch
        names = ["\n" * (i % 2) + name for i, name in enumerate(names)]
    return Axis.of_names(names)


def _name_units(audit: Audit, points: Sequence[SweepPoint]) -> tuple[Axis, list[float]]:
    """Return an axis of the units that points are rounded to, finest first, and their places."""
    finest_first = sorted(points, key=lambda point: point.unit or 0.0)
    names = list(dict.fromkeys(look_up(audit, point, "rounded") for point in finest_first))
    return Axis.of_names(names), [
        1.0 + names.index(look_up(audit, point, "rounded")) for point in points
    ]
