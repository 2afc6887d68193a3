"""Draw forms of publishing: leaks by form, samples and unit, and utility against them."""

import math
from collections.abc import Sequence

from epsilometer.core.audit import Audit
from epsilometer.core.findings import FormFinding, FormPlan, SweepPoint
from epsilometer.core.words import number, short
from epsilometer.report.figures import Axis, Figure, Mark, Role, Series, plotted
from epsilometer.report.words import ordered_forms

_ROLES: tuple[Role, ...] = ("attack", "claim", "gdp", "bound", "law", "outside", "chance")
_FORMS = 14  # in one figure; more could not be told apart
_SIDE_BY_SIDE = 4
_LONGEST_NAME = 24


def posterior_figures(audit: Audit) -> tuple[Figure, ...]:
    """Return the figures, in the order they are read; those without anything to show not."""
    every = (
        form_figure(audit),
        advantage_figure(audit),
        samples_figure(audit),
        unit_figure(audit),
        utility_figure(audit),
        pareto_figure(audit),
    )
    return tuple(figure for figure in every if figure is not None)


def form_figure(audit: Audit) -> Figure | None:
    """Return ε by form: what is proved, and what the paper's estimate says."""
    forms = ordered_forms(audit)[:_FORMS]
    if not forms:
        return None
    places = [float(i) for i in range(1, len(forms) + 1)]
    proved, raw = [form.epsilon for form in forms], [form.raw for form in forms]
    claim = [] if audit.claim is None else [audit.claim.epsilon]
    top = _top(*proved, *raw, *claim)
    ends = [0.5, len(forms) + 0.5]
    told = "; ".join(
        f"{form.form}: proved {number(form.epsilon)}, paper's estimate {form.raw:.2f}"
        for form in forms
    )
    return Figure(
        key="forms",
        title="ε by form",
        caption="What each form of publishing proves, beside the paper's estimate on the same "
        "runs, which is above 0 also where nothing leaks.",
        alt=f"{told}.",
        x=_forms_axis(forms),
        y=Axis(title="ε", low=0.0, high=top),
        series=(
            plotted("proved ε", "left_bars", "bound", places, [min(e, top) for e in proved]),
            plotted(
                "paper's ε̂, no bound", "right_bars", "outside", places, [min(e, top) for e in raw]
            ),
            *(plotted("claimed ε", "line", "claim", ends, [e, e], dashed=True) for e in claim),
        ),
        cites=("shibahara2021",),
    )


def advantage_figure(audit: Audit) -> Figure | None:
    """Return what the learned attack gains by each form, with limits, and what is allowed."""
    forms, plan = ordered_forms(audit)[:_FORMS], audit.one(FormPlan)
    if not forms:
        return None
    places = [float(i) for i in range(1, len(forms) + 1)]
    ends, most = [0.5, len(forms) + 0.5], [] if plan is None else [plan.advantage]
    band = Series(
        name="limits",
        kind="band",
        role="attack",
        x=tuple(places),
        y=tuple(form.advantage_low for form in forms),
        top=tuple(form.advantage_high for form in forms),
    )
    told = "; ".join(
        f"{form.form}: {form.advantage:.2f}, limits {form.advantage_low:.2f} to "
        f"{form.advantage_high:.2f}, {form.standing}"
        for form in forms
    )
    low = min(0.0, *(form.advantage_low for form in forms))
    return Figure(
        key="advantage",
        title="What the attack gains",
        caption="TPR − FPR of the learned attack on runs it was not learned from. A form is below "
        "what is allowed where its upper limit is, and those of all forms that can be made of it.",
        alt="".join(f"Allowed is {a:.3g}. " for a in most) + f"{told}.",
        x=_forms_axis(forms),
        y=Axis(title="TPR − FPR", low=1.05 * low, high=1.02),
        series=(
            band,
            plotted("knows nothing", "line", "chance", ends, [0.0, 0.0], dashed=True),
            *(
                plotted(f"allowed, {a:.3g}", "line", "claim", ends, [a, a], dashed=True)
                for a in most
            ),
            plotted("TPR − FPR", "points", "attack", places, [f.advantage for f in forms]),
        ),
    )


def samples_figure(audit: Audit) -> Figure | None:
    """Return ε by number of samples."""
    points = [point for point in audit.find(SweepPoint) if point.swept == "samples"]
    if not points:
        return None
    counts = [float(point.samples) for point in points]
    return Figure(
        key="samples",
        title="How many samples",
        caption="The same models, asked less often: the first T of their samples. Dashed is the "
        "paper's estimate, solid what is proved, each point alone.",
        alt=_told(points, [f"{point.samples:,}" for point in points]),
        x=Axis(title="samples T", low=min(counts) / 1.2, high=1.2 * max(counts), log=True),
        y=Axis(
            title="ε", low=0.0, high=_top(*(p.raw for p in points), *(p.epsilon for p in points))
        ),
        series=_swept(points, counts),
    )


def unit_figure(audit: Audit) -> Figure | None:
    """Return ε by unit of rounding."""
    points = [point for point in audit.find(SweepPoint) if point.swept == "unit"]
    if not points:
        return None
    names = _units(points)
    places = [1.0 + names.index(_unit(point)) for point in points]
    return Figure(
        key="units",
        title="Rounding",
        caption="The same predictions, rounded. Dashed is the paper's estimate, solid what is "
        "proved, each point alone.",
        alt=_told(points, [_unit(point) for point in points]),
        x=Axis(title="rounded to", low=0.5, high=len(names) + 0.5, names=tuple(names)),
        y=Axis(
            title="ε", low=0.0, high=_top(*(p.raw for p in points), *(p.epsilon for p in points))
        ),
        series=_swept(points, places),
    )


def utility_figure(audit: Audit) -> Figure | None:
    """Return what rounding costs: accuracy, and records that no label can be given."""
    points = [point for point in audit.find(SweepPoint) if point.swept == "unit"]
    kinds = dict.fromkeys(point.shows for point in points if point.accuracy is not None)
    if not kinds:
        return None
    kind = "mean+std" if "mean+std" in kinds else next(iter(kinds))
    own = [point for point in points if point.shows == kind]
    names = _units(own)
    places = [1.0 + names.index(_unit(point)) for point in own]
    accuracy, ties = (
        [value or 0.0 for value in column]
        for column in zip(*((p.accuracy, p.ties) for p in own), strict=True)
    )
    told = "; ".join(
        f"{_unit(p)}: accuracy {a:.1%}, ties {t:.1%}"
        for p, a, t in zip(own, accuracy, ties, strict=True)
    )
    return Figure(
        key="rounding-utility",
        title="What rounding costs",
        caption=f"Of {kind}: how often what is shown names the right class, and how often two "
        "classes tie, so that none can be named.",
        alt=f"{told}.",
        x=Axis(title="rounded to", low=0.5, high=len(names) + 0.5, names=tuple(names)),
        y=Axis(title="share of test records", low=0.0, high=1.02),
        series=(
            plotted("accuracy", "points", "gdp", places, accuracy),
            plotted("ties", "points", "claim", places, ties, dashed=True),
        ),
    )


def pareto_figure(audit: Audit) -> Figure | None:
    """Return utility against leakage: what no other form beats in both."""
    plan = audit.one(FormPlan)
    forms = [form for form in ordered_forms(audit)[:_FORMS] if form.log_loss is not None]
    losses = [form.log_loss for form in forms if form.log_loss is not None]
    if plan is None or len(forms) < 2:
        return None
    front = sorted((f.advantage, f.log_loss or 0.0) for f in forms if f.form in plan.pareto)
    low, high = min(losses), max(losses)
    told = "; ".join(
        f"{form.form}: TPR − FPR {form.advantage:.2f}, log loss {form.log_loss:.3g}"
        for form in forms
    )
    least = min(0.0, *(form.advantage for form in forms))
    return Figure(
        key="pareto",
        title="Utility against leakage",
        caption="Each form by what the attack gains and by the log loss of what users see; lower "
        "and further left is better. The line joins forms that no other beats in both.",
        alt=f"Not beaten: {'; '.join(plan.pareto)}. {told}.",
        x=Axis(title="TPR − FPR of the attack", low=least - 0.03, high=1.02),
        y=Axis(title="log loss (logarithmic)", low=low / 1.3, high=1.3 * high, log=True),
        series=(
            plotted(
                "not beaten", "line", "chance", [x for x, _ in front], [y for _, y in front], True
            ),
            *(
                plotted(form.form, "points", _ROLES[i % len(_ROLES)], [form.advantage], [loss])
                for i, (form, loss) in enumerate(zip(forms, losses, strict=True))
            ),
        ),
        marks=(Mark(name=f"allowed {plan.advantage:.3g}", x=plan.advantage),),
    )


def _forms_axis(forms: Sequence[FormFinding]) -> Axis:
    names = [form.form[:_LONGEST_NAME].replace(", to ", "\nto ") for form in forms]
    if len(names) > _SIDE_BY_SIDE:  # every second one lower, where they would touch
        names = ["\n" * (i % 2) + name for i, name in enumerate(names)]
    return Axis(title="published", low=0.5, high=len(names) + 0.5, names=tuple(names))


def _swept(points: Sequence[SweepPoint], places: Sequence[float]) -> tuple[Series, ...]:
    """Return two curves per form: the paper's estimate, and what is proved."""
    found = []
    kinds = list(dict.fromkeys(point.shows for point in points))
    for kind, role in zip(kinds, _ROLES, strict=False):
        own = [(x, point) for x, point in zip(places, points, strict=True) if point.shows == kind]
        xs = [x for x, _ in own]
        found.append(plotted(f"{kind}, ε̂", "points", role, xs, [p.raw for _, p in own], True))
        found.append(plotted(f"{kind}, proved", "points", role, xs, [p.epsilon for _, p in own]))
    return tuple(found)


def _told(points: Sequence[SweepPoint], at: Sequence[str]) -> str:
    said = [
        f"{point.shows}, {where}: paper's estimate {point.raw:.2f}, proved {number(point.epsilon)}"
        for point, where in zip(points, at, strict=True)
    ]
    return f"{'; '.join(said)}."


def _units(points: Sequence[SweepPoint]) -> list[str]:
    finest_first = sorted({point.unit or 0.0 for point in points})
    return ["as it is" if unit == 0 else short(unit) for unit in finest_first]


def _unit(point: SweepPoint) -> str:
    return "as it is" if point.unit is None else short(point.unit)


def _top(*values: float) -> float:
    """Return a little above the largest that can be drawn."""
    return 1.08 * max([value for value in values if math.isfinite(value)] + [0.5])
