"""The figures of a report as plain descriptions: what is drawn, not how.

The page draws them in the browser, ``drawing`` into files; both from the same numbers.
"""

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.findings import EpsilonFinding, Evidence
from epsilometer.core.printing import one_line
from epsilometer.core.words import claimed, number
from epsilometer.report.fitting import cut
from epsilometer.report.words import own_views
from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.stats.tradeoff import dp_curve, gdp_curve
from epsilometer.types import FloatArray

Kind: TypeAlias = Literal["line", "step", "band", "bars", "left_bars", "right_bars", "points"]
Role: TypeAlias = Literal["attack", "claim", "gdp", "bound", "law", "outside", "chance"]

# Colours of the roles on light ground and on dark; each has 3 : 1 contrast or more against it.
COLOURS: dict[Role, tuple[str, str]] = {
    "attack": ("#1f5fbf", "#7db1ff"),
    "claim": ("#b3540c", "#ffae5c"),
    "gdp": ("#2f7d4b", "#77d39a"),
    "bound": ("#7a3ea8", "#cfa3f7"),
    "law": ("#a82c6a", "#f78fc2"),
    "outside": ("#6a7280", "#a3acba"),
    "chance": ("#868e99", "#7b8494"),
}
_LARGEST_EPSILON = 700.0  # beyond it e^ε overflows, and on paper nothing changes
_SMALLEST_DELTA = 1e-200  # below it there may be no σ that a float can hold
_LOWEST_RATE = 1e-6
_SIDE_BY_SIDE = 16  # audits in one figure; more could not be told apart
_LONGEST_NAME = 24
_LONGEST_TITLE = 40  # of an axis, on a phone


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis shows, and from where to where; names stand at 1, 2, … in place of numbers."""

    title: str
    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """An axis ends somewhere, whatever a file holds."""
        most = sys.float_info.max
        for name in ("low", "high"):
            object.__setattr__(self, name, min(max(getattr(self, name), -most), most))


@dataclass(frozen=True, kw_only=True)
class Series:
    """One thing that is drawn; what a file holds and nobody can draw is left out.

    Attributes:
        name: What the legend calls it.
        kind: ``step`` keeps each value until the next x; ``bars`` have one x more than y, their
            edges; ``left_bars`` and ``right_bars`` stand on either side of their x; ``points`` are
            joined by a thin line; a ``band`` is filled from ``y`` to ``top``.
        role: What it stands for, and so its colour.
        x: Rising.
        y: Beside it.
        top: Upper limits of a band; of the others, nothing.
        dashed: So that colour alone need not tell it from the others.
    """

    name: str
    kind: Kind
    role: Role
    x: tuple[float, ...]
    y: tuple[float, ...]
    top: tuple[float, ...] = ()
    dashed: bool = False

    def __post_init__(self) -> None:
        if self.kind == "bars":  # without one of the edges, the others would be others
            drawable = all(map(math.isfinite, (*self.x, *self.y)))
            columns = [self.x, self.y] if drawable else [(), ()]
        else:
            rows = zip(self.x, self.y, self.top or self.y, strict=True)
            kept = [row for row in rows if all(map(math.isfinite, row))]
            columns = [tuple(row[i] for row in kept) for i in range(3 if self.top else 2)]
        for name, column in zip(("x", "y", "top"), columns, strict=False):
            object.__setattr__(self, name, column)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line at a value of x that matters."""

    name: str
    x: float


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart: everything a renderer needs, in words and numbers.

    Attributes:
        key: Its name in files and anchors.
        title: A few words.
        caption: How to read it.
        alt: What it shows, with its numbers, for those who cannot see it.
        x: The horizontal axis.
        y: The vertical axis.
        series: From back to front.
        marks: Values of x that matter.
        cites: Keys of the bibliography that the curves rest on.
    """

    key: str
    title: str
    caption: str
    alt: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    cites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        there = tuple(mark for mark in self.marks if math.isfinite(mark.x))
        object.__setattr__(self, "marks", there)


def view_figures(view: EpsilonFinding, claim: Claim | None) -> tuple[Figure, ...]:
    """Return the figures of a view, in the order they are read; those without anything not."""
    every = (tradeoff(view, claim), low_rates(view, claim), score_bins(view), growth(view, claim))
    return tuple(figure for figure in every if figure.series)


def compare_views(audit: Audit) -> tuple[Figure, ...]:
    """Return views whose ε was estimated too, side by side: one figure per adversary with several.

    Bounds of different adversaries are no series of anything.
    """
    alike: dict[str, list[EpsilonFinding]] = {}
    for view in own_views(audit):
        if _sampled(view):
            alike.setdefault(view.bound.adversary, []).append(view)
    several = [views for views in alike.values() if 1 < len(views) <= _SIDE_BY_SIDE]
    return tuple(
        side_by_side(views, audit.claim, key=f"views-{i}")
        for i, views in enumerate(several, start=1)
    )


def side_by_side(views: Sequence[EpsilonFinding], claim: Claim | None, *, key: str) -> Figure:
    """Return estimated, proved and claimed ε of views of one adversary."""
    views = _in_order(views)
    title, names = _differences([view.subject for view in views])
    adversary = one_line(views[0].bound.adversary)
    estimated = [_sampled(view)[0].epsilon for view in views]
    proved = [view.bound.epsilon if view.bound.valid else 0.0 for view in views]
    limit = [] if claim is None else [claim.epsilon]
    top = _headroom(e for e in (*estimated, *proved, *limit) if math.isfinite(e))
    places = np.arange(1.0, len(views) + 1)
    left, right = np.minimum(estimated, top), np.minimum(proved, top)  # infinity ends there too
    bars = [
        plotted("estimated ε, no bound", "left_bars", "attack", places, left),
        plotted("proved ε", "right_bars", "bound", places, right),
    ]
    ends = [0.5, len(views) + 0.5]
    bars += [plotted("claimed ε", "line", "claim", ends, [e, e], dashed=True) for e in limit]
    said = [
        f"{name}: estimated {number(e)}, proved {number(p)}"
        for name, e, p in zip(names, estimated, proved, strict=True)
    ]
    said += [f"claimed {claimed(e)}" for e in limit]
    return Figure(
        key=key,
        title="Estimated and proved ε",
        caption="Views that differ in one thing. The bounds hold together; an estimate may lie "
        "above the truth, and refutes nothing.",
        alt=f"{cut(title)} (adversary: {adversary}). {'; '.join(said)}.",
        x=Axis(title=_end(title), low=0.5, high=len(views) + 0.5, names=names),
        y=Axis(title="ε", low=0.0, high=top),
        series=tuple(bars),
    )


def _sampled(view: EpsilonFinding) -> list[EpsilonEstimate]:
    """Return estimates from the same observations, not what theory says."""
    return [estimate for estimate in view.estimates if estimate.confidence < 1]


def tradeoff(view: EpsilonFinding, claim: Claim | None) -> Figure:
    """Return misses against false alarms: the attack, its band, and what guarantees allow."""
    evidence = view.evidence
    grid = _linear_grid()
    low, high = _band(evidence, grid)
    curves = _curves(view, claim, grid)
    return Figure(
        key="tradeoff",
        title="Trade-off curve",
        caption="Both errors of the attack at every threshold. A guarantee forbids everything "
        "below its curve: an attack that gets there, band and all, refutes it.",
        alt=f"Trade-off curve. {_rates_in_words(view, claim)}",
        x=Axis(title="false positive rate", low=0.0, high=1.0),
        y=Axis(title="false negative rate", low=0.0, high=1.0),
        series=(
            plotted(_band_name(evidence), "band", "attack", grid, low, top=high),
            plotted("knows nothing", "line", "chance", [0.0, 1.0], [1.0, 0.0], dashed=True),
            *curves,
            plotted("the attack", "step", "attack", evidence.fpr, evidence.fnr),
        ),
        cites=_curve_cites(curves),
    )


def low_rates(view: EpsilonFinding, claim: Claim | None) -> Figure:
    """Return the same at low false positive rates, where leaks show: both axes logarithmic."""
    evidence = view.evidence
    x_low, y_low = _lowest(view.attack.n_out), _lowest(view.attack.n_in)
    grid = np.concatenate([np.geomspace(x_low, 0.99, 140), [1.0]])
    low, high = _band(evidence, grid)
    curves = tuple(_caught(series) for series in _curves(view, claim, grid))
    return Figure(
        key="low_fpr",
        title="At few false alarms",
        caption="The same attack where leaks show first: how many of those inside it catches while "
        "it accuses almost nobody. Here a guarantee forbids everything above its curve.",
        alt="True positive rate against false positive rate on logarithmic axes. "
        f"{_rates_in_words(view, claim)}",
        x=Axis(title="false positive rate", low=x_low, high=1.0, log=True),
        y=Axis(title="true positive rate", low=y_low, high=1.0, log=True),
        series=(
            plotted(_band_name(evidence), "band", "attack", grid, 1 - high, top=1 - low),
            plotted("knows nothing", "line", "chance", grid, grid, dashed=True),
            *curves,
            plotted("the attack", "step", "attack", evidence.fpr, 1 - np.asarray(evidence.fnr)),
        ),
        cites=_curve_cites(curves),
    )


def score_bins(view: EpsilonFinding) -> Figure:
    """Return how the scores lie with the record and without it."""
    evidence, bound = view.evidence, view.bound
    inside, outside = (_shares(bins) for bins in (evidence.inside_bins, evidence.outside_bins))
    low, high = evidence.edges[0], evidence.edges[-1]
    shown = math.isfinite(bound.threshold) and low <= bound.threshold <= high
    bars = (
        plotted("without the record", "bars", "outside", evidence.edges, outside),
        plotted("with the record", "bars", "attack", evidence.edges, inside),
    )
    # Differences too: a width of more than a float can hold cannot be drawn.
    drawable = np.isfinite(evidence.edges).all() and low < high and math.isfinite(high - low)
    return Figure(
        key="scores",
        title="Scores of the attack",
        caption="The further apart the two histograms lie, the more the attack knows. The outer "
        "bins also hold what lies beyond them.",
        alt=f"Histogram of scores: {sum(evidence.inside_bins):,} with the record, "
        f"{_typical(evidence.edges, evidence.inside_bins)}; {sum(evidence.outside_bins):,} "
        f"without, {_typical(evidence.edges, evidence.outside_bins)}. "
        f"A score from inside exceeds one from outside with chance {view.attack.auc:.3f}.",
        x=Axis(title="score (higher means: was in)", low=low, high=high),
        y=Axis(title="share of scores", low=0.0, high=_headroom([*inside, *outside])),
        series=bars if drawable else (),
        marks=(Mark(name="threshold of the bound", x=bound.threshold),) if shown else (),
    )


def growth(view: EpsilonFinding, claim: Claim | None) -> Figure:
    """Return what more observations prove."""
    points = [(n, e) for n, e in view.evidence.growth if n > 0 and math.isfinite(e)]
    counts, epsilons = [float(n) for n, _ in points], [e for _, e in points]
    low, high = (counts[0], counts[-1]) if points else (1.0, 1.0)
    limit = [] if claim is None else [claim.epsilon]
    lines = [
        plotted(f"claimed ε = {claimed(e)}", "line", "claim", [low, high], [e, e], dashed=True)
        for e in limit
    ]
    proved = plotted("proved ε", "points", "bound", counts, epsilons)
    ends = [f"{number(e)} from {n:,.0f}" for n, e in (points[0], points[-1])] if points else []
    return Figure(
        key="growth",
        title="ε against observations",
        caption="What parts of the observations prove. Each point holds at the bound's confidence "
        "alone, not all together. A curve that still rises says: more runs may prove more.",
        alt=f"The proved ε: {' observations, '.join(ends)} observations. "
        + "".join(f"Claimed: ε = {claimed(e)}." for e in limit),
        x=Axis(title="observations", low=low, high=high, log=True),
        y=Axis(title="ε", low=0.0, high=_headroom([*epsilons, *limit])),
        series=(*lines, proved) if low < high else (),
    )


def plotted(
    name: str,
    kind: Kind,
    role: Role,
    x: ArrayLike,
    y: ArrayLike,
    dashed: bool = False,
    *,
    top: ArrayLike = (),
) -> Series:
    """Return a curve or bars of few digits: what nobody sees need not be in the page."""
    few_x, few_y, few_top = (_few(np.asarray(column, np.float64)) for column in (x, y, top))
    return Series(name=name, kind=kind, role=role, x=few_x, y=few_y, top=few_top, dashed=dashed)


def _in_order(views: Sequence[EpsilonFinding]) -> Sequence[EpsilonFinding]:
    """Return the views by the one number in which they differ; as they come where there is none.

    The gravest come first in an audit; a series is read by what was varied.
    """
    _, names = _differences([view.subject for view in views])
    numbers = [re.findall(r"\d+(?:\.\d+)?", name.replace("once", "1")) for name in names]
    if any(len(found) != 1 for found in numbers):
        return views
    pairs = zip((float(found[0]) for found in numbers), views, strict=True)
    return [view for _, view in sorted(pairs, key=lambda pair: pair[0])]


def _differences(subjects: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return what subjects share, with "…" where they differ, and the words in which they do."""
    parted = [one_line(subject).split() for subject in subjects]
    shortest = min(map(len, parted))
    first = _shared(zip(*parted, strict=False))
    last = min(_shared(zip(*(part[::-1] for part in parted), strict=False)), shortest - first)
    ends = parted[0][:first], parted[0][len(parted[0]) - last :]
    own = (" ".join(part[first : len(part) - last]).strip(" ,:;") for part in parted)
    names = (name or str(place) for place, name in enumerate(own, start=1))
    title = " ".join([*ends[0], "…", *ends[1]])
    return title, tuple(cut(name, _LONGEST_NAME) for name in names)


def _end(title: str) -> str:
    """Return the last words of it, as many as an axis has room for."""
    while len(title) > _LONGEST_TITLE and " … " in title:
        title = title.partition(" ")[2]
    return cut(title, _LONGEST_TITLE)


def _shared(columns: Iterable[tuple[str, ...]]) -> int:
    """Count columns that have one word alone, before the first that has several."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _few(values: FloatArray) -> tuple[float, ...]:
    """Keep six digits: enough to draw, and a third of the size."""
    return tuple(float(f"{value:.6g}") for value in values)


def _curves(view: EpsilonFinding, claim: Claim | None, grid: FloatArray) -> tuple[Series, ...]:
    """Return what the claim, the Gaussian mechanism of that claim, and the proved bound allow."""
    bound = view.bound
    curves = []
    if claim is not None:
        name = f"(ε, δ) claimed: ε = {claimed(claim.epsilon)}"
        curves.append(_dp_series(name, "claim", grid, claim.epsilon, claim.delta))
        curves.extend(_gdp_series(grid, claim.epsilon, claim.delta))
    for law in view.evidence.curves:
        curves.append(plotted(law.name, "line", "law", law.fpr, law.fnr))
    kind = "(ε, δ) proved" if bound.valid else "(ε, δ) not a valid bound"
    name = f"{kind}: ε = {number(bound.epsilon)}"
    curves.append(_dp_series(name, "bound", grid, bound.epsilon, bound.delta, dashed=True))
    return tuple(curves)


def _dp_series(
    name: str, role: Role, grid: FloatArray, epsilon: float, delta: float, *, dashed: bool = False
) -> Series:
    epsilon = min(epsilon, _LARGEST_EPSILON)
    corner = (1 - delta) / (1 + math.exp(epsilon))  # where its two straight parts meet
    x = np.unique(np.append(grid, [corner, 1 - delta]))
    x = x[x >= grid[0]]
    return plotted(name, "line", role, x, dp_curve(x, epsilon=epsilon, delta=delta), dashed=dashed)


def _gdp_series(grid: FloatArray, epsilon: float, delta: float) -> Iterable[Series]:
    """Return the curve of the Gaussian mechanism that is just (ε, δ)-DP; none without δ."""
    if not _SMALLEST_DELTA < delta < 1 or epsilon > _LARGEST_EPSILON:
        return
    mu = 1 / gaussian_sigma(epsilon, delta)
    fnr = gdp_curve(grid, mu=mu)
    yield plotted(f"GDP of that claim: μ = {mu:.3g}", "line", "gdp", grid, fnr, dashed=True)


def _caught(series: Series) -> Series:
    """Return a curve of misses as one of hits."""
    y = 1 - np.asarray(series.y)
    return plotted(series.name, series.kind, series.role, series.x, y, dashed=series.dashed)


def _curve_cites(curves: Iterable[Series]) -> tuple[str, ...]:
    roles = {series.role for series in curves}
    return ("kairouz2015", *(("balle2018", "dong2022") if "gdp" in roles else ()))


def _band(evidence: Evidence, grid: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return least and largest FNR at each FPR of the grid that the limits leave open.

    The true curve falls and runs through the box of limits at each threshold: left of a box it
    lies above its floor, right of a box below its ceiling.
    """
    floor, ceiling = np.zeros(grid.size), np.ones(grid.size)
    for at, fnr in zip(evidence.fpr_low, evidence.fnr_low, strict=True):
        floor = np.where(grid <= at, np.maximum(floor, fnr), floor)
    for at, fnr in zip(evidence.fpr_high, evidence.fnr_high, strict=True):
        ceiling = np.where(grid >= at, np.minimum(ceiling, fnr), ceiling)
    return floor, ceiling


def _band_name(evidence: Evidence) -> str:
    return f"{evidence.band_confidence:.4g} confidence band"


def _linear_grid() -> FloatArray:
    """Return rates over [0, 1], denser at both ends, where curves are steep."""
    near = np.geomspace(1e-4, 0.02, 20)
    return np.unique(np.concatenate([[0.0], near, np.linspace(0.02, 0.98, 97), 1 - near, [1.0]]))


def _lowest(observations: int) -> float:
    """Return the power of ten below the smallest rate that this many observations can show."""
    smallest = 10.0 ** math.floor(-math.log10(max(observations, 100)))
    return max(smallest, _LOWEST_RATE)


def _shares(bins: Iterable[int]) -> FloatArray:
    counts = np.asarray(list(bins), np.float64)
    return counts / max(float(counts.sum()), 1.0)


def _headroom(values: Iterable[float]) -> float:
    """Return a little above the largest, so that it does not touch the frame."""
    return min(1.08 * max([*values, 1e-9]), sys.float_info.max)


def _typical(edges: tuple[float, ...], bins: tuple[int, ...]) -> str:
    """Say where the middle score lies, as far as bins tell."""
    total = np.cumsum(np.asarray(bins, np.float64))
    if not total.size or not total[-1]:
        return "none"
    middle = int(np.searchsorted(total, total[-1] / 2))
    return f"half of them below {edges[middle + 1]:.3g}"


def _rates_in_words(view: EpsilonFinding, claim: Claim | None) -> str:
    """Say what the attack catches at low false positive rates, beside what guarantees allow."""
    pairs = view.attack.tpr_at_fpr
    if not pairs:
        return ""
    rates = [fpr for fpr, _ in pairs]
    said = [f"the attack catches {_listed(tpr for _, tpr in pairs)} of those inside"]
    if claim is not None:
        allowed = _allowed(rates, claim)
        said.append(f"the claim of ε = {claimed(claim.epsilon)} allows {allowed}")
    kind = ", proved," if view.bound.valid else ", not valid as a bound,"
    said.append(f"ε = {number(view.bound.epsilon)}{kind} allows {_allowed(rates, view.bound)}")
    return f"At false positive rates of {_listed(rates)} {'; '.join(said)}."


def _allowed(rates: list[float], law: Claim | EpsilonLowerBound) -> str:
    fnr = dp_curve(rates, epsilon=min(law.epsilon, _LARGEST_EPSILON), delta=law.delta)
    return _listed(1 - fnr)


def _listed(rates: Iterable[float]) -> str:
    return ", ".join(f"{100 * rate:.3g}%" for rate in rates)
