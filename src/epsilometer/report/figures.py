"""Draw views of the adversary: trade-off curves, scores, growth, and views side by side."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.document import (
    NOT_VALID,
    Axis,
    Figure,
    Kind,
    Mark,
    Role,
    plot,
    plot_level,
)
from epsilometer.core.findings import EpsilonFinding, Evidence
from epsilometer.core.printing import one_line
from epsilometer.core.words import claimed, number
from epsilometer.report.fitting import cut
from epsilometer.report.texts import describe
from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.stats.tradeoff import dp_curve, gdp_curve
from epsilometer.types import FloatArray

_LARGEST_EPSILON = 700.0  # beyond it e^ε overflows, and on paper nothing changes
_SMALLEST_DELTA = 1e-200  # below it there may be no σ that a float can hold
_LOWEST_RATE = 1e-6
_SIDE_BY_SIDE = 16  # audits in one figure; more could not be told apart
_LONGEST_NAME = 24
_LONGEST_TITLE = 40  # of an axis, on a phone
_VIEW_ROLES: tuple[Role, ...] = ("attack", "bound", "gdp", "outside")  # of views in one figure
_BANDS = 2  # views with a band; more would cover each other
_GDP = "GDP of that claim"
# Name, kind, role, false positive rates, false negative rates, dashed.
_Misses: TypeAlias = tuple[str, Kind, Role, ArrayLike, ArrayLike, bool]


def draw_views(views: Sequence[EpsilonFinding], claim: Claim | None) -> tuple[Figure, ...]:
    """Return the figures of views, in the order they are read; those without anything not.

    Views share their figures, four in each; only scores, whose scales differ, have one per view.
    """
    groups = [views[i : i + len(_VIEW_ROLES)] for i in range(0, len(views), len(_VIEW_ROLES))]
    names = name_views(views)
    every: list[Figure] = []
    for place, group in enumerate(groups):
        suffix = "" if len(groups) == 1 else f"-{place + 1}"
        start = place * len(_VIEW_ROLES)
        labels = names[start : start + len(group)]
        lowest = min(_find_lowest(view.attack.n_out) for view in group)
        low_rates = np.append(np.geomspace(lowest, 0.99, 140), 1.0)
        least = min(_find_lowest(view.attack.n_in) for view in group)
        every += [
            _draw_rates(group, labels, claim, _make_grid(), y=Axis(0.0, 1.0), suffix=suffix),
            _draw_rates(
                group, labels, claim, low_rates, y=Axis(least, 1.0, log=True), suffix=suffix
            ),
            *(
                _draw_scores(view, label, suffix="" if len(views) == 1 else f"-{start + i}")
                for i, (view, label) in enumerate(zip(group, labels, strict=True), start=1)
            ),
            _draw_growth(group, labels, claim, suffix=suffix),
        ]
    return tuple(figure for figure in every if figure.series)


def name_views(views: Sequence[EpsilonFinding]) -> tuple[str, ...]:
    """Return in which words each view differs from the others; nothing of a lone one."""
    if len(views) < 2:
        return ("",) * len(views)
    subjects = [view.subject for view in views]
    if len(set(subjects)) < len(subjects):  # adversaries differ, and not what they attack
        subjects = [f"{view.subject} {view.bound.adversary}" for view in views]
    return _find_differences(subjects, longest=_LONGEST_TITLE)[1]


def compare_views(audit: Audit) -> tuple[Figure, ...]:
    """Return views whose ε was estimated too, side by side: one figure per adversary with several.

    Bounds of different adversaries do not form a series.
    """
    alike: dict[str, list[EpsilonFinding]] = {}
    for view in audit.find(EpsilonFinding):
        if _list_sampled(view):
            alike.setdefault(view.bound.adversary, []).append(view)
    several = [views for views in alike.values() if 1 < len(views) <= _SIDE_BY_SIDE]
    return tuple(
        _draw_side_by_side(_sort_views(views), audit.claim, suffix=f"-{i}")
        for i, views in enumerate(several, start=1)
    )


def _draw_side_by_side(
    views: Sequence[EpsilonFinding], claim: Claim | None, *, suffix: str
) -> Figure:
    """Return estimated, proved and claimed ε of views of one adversary."""
    shared, names = _find_differences([view.subject for view in views])
    estimated = [_list_sampled(view)[0].epsilon for view in views]
    proved = [view.bound.epsilon if view.bound.valid else 0.0 for view in views]
    limit = [] if claim is None else [claim.epsilon]
    x, y = Axis.of_names(names), Axis.from_zero([*estimated, *proved, *limit])
    places = range(1, len(views) + 1)
    left, right = np.minimum(estimated, y.high), np.minimum(proved, y.high)  # infinity ends there
    return describe(
        "views",
        None,
        views[0],
        each=zip(names, estimated, proved, strict=True),
        suffix=suffix,
        x=x,
        y=y,
        series=(
            plot("estimated ε, no bound", "left_bars", "attack", places, left),
            plot("proved ε", "right_bars", "bound", places, right),
            *(plot_level("claimed ε", "claim", x, e) for e in limit),
        ),
        shared=cut(shared),
        axis=_shorten_title(shared),
        adversary=one_line(views[0].bound.adversary),
        claimed="".join(f"; claimed {claimed(e)}" for e in limit),
    )


def _list_sampled(view: EpsilonFinding) -> list[EpsilonEstimate]:
    """Return estimates from the same observations, not what theory says."""
    return [estimate for estimate in view.estimates if estimate.confidence < 1]


def _draw_rates(
    views: Sequence[EpsilonFinding],
    names: Sequence[str],
    claim: Claim | None,
    grid: FloatArray,
    *,
    y: Axis,
    suffix: str,
) -> Figure:
    """Return misses against false alarms: the attacks, their bands, and what guarantees allow.

    Leaks show at low false positive rates: on logarithmic axes, where who is not missed is caught.
    """
    log = y.log
    straight = grid if log else grid[[0, -1]]  # a line is no line on logarithmic axes
    lines: list[_Misses] = [
        ("random guessing", "line", "chance", straight, 1 - straight, True),
        *_list_guarantees(views, claim, grid),
    ]
    bands = []
    for view, name, colour in zip(views, names, _VIEW_ROLES, strict=False):
        evidence = view.evidence
        said = f": {name}" if name else ""
        lines.append((f"the attack{said}", "step", colour, evidence.fpr, evidence.fnr, False))
        low, high = _limit_band(evidence, grid)
        band = f"{evidence.band_confidence:.4g} confidence band{said}"
        bottom, top = (1 - high, 1 - low) if log else (low, high)
        bands.append(plot(band, "band", colour, grid, bottom, top=top))
    gaussian = any(name.startswith(_GDP) for name, *_ in lines)
    return describe(
        "low_fpr" if log else "tradeoff",
        None,
        views[0],
        x=Axis(grid[0], 1.0, log),
        y=y,
        series=(
            *bands[:_BANDS],
            *(
                plot(name, kind, role, x, 1 - np.asarray(misses) if log else misses, dashed)
                for name, kind, role, x, misses, dashed in lines
            ),
        ),
        suffix=suffix,
        cites=("kairouz2015", *(("balle2018", "dong2022") if gaussian else ())),
        rates=" ".join(
            f"{name}: {said}" if name else said
            for view, name in zip(views, names, strict=True)
            if (said := _word_rates(view, claim))
        ),
    )


def _draw_scores(view: EpsilonFinding, name: str, *, suffix: str) -> Figure:
    """Return how the scores lie with the record and without it."""
    edges, threshold = view.evidence.edges, view.bound.threshold
    counts = view.evidence.inside_bins, view.evidence.outside_bins
    inside, outside = (np.asarray(bins) / max(sum(bins), 1) for bins in counts)
    # Differences too: a width of more than a float can hold cannot be drawn.
    drawable = np.isfinite(edges).all() and 0 < edges[-1] - edges[0] < math.inf
    series = (
        plot("without the record", "bars", "outside", edges, outside),
        plot("with the record", "bars", "attack", edges, inside),
    )
    marked = math.isfinite(threshold) and edges[0] <= threshold <= edges[-1]
    return describe(
        "scores",
        None,
        view,
        x=Axis(edges[0], edges[-1]),
        y=Axis.from_zero([*inside, *outside]),
        series=series if drawable else (),
        marks=(Mark("threshold of the bound", threshold),) if marked else (),
        suffix=suffix,
        which=f": {name}" if name else "",
        inside=sum(counts[0]),
        outside=sum(counts[1]),
        inside_median=_word_median(edges, counts[0]),
        outside_median=_word_median(edges, counts[1]),
    )


def _draw_growth(
    views: Sequence[EpsilonFinding], names: Sequence[str], claim: Claim | None, *, suffix: str
) -> Figure:
    """Return what more observations prove."""
    limit = [] if claim is None else [claim.epsilon]
    drawn, ends, counts, epsilons = [], [], [], []
    single = len(views) == 1
    for view, name, colour in zip(views, names, _VIEW_ROLES, strict=False):
        points = [(n, e) for n, e in view.evidence.growth if n > 0 and math.isfinite(e)]
        if not points:
            continue
        counts += [n for n, _ in points]
        epsilons += [e for _, e in points]
        said = f"proved ε: {name}" if name else "proved ε"
        role: Role = "bound" if single else colour
        drawn.append(plot(said, "points", role, [n for n, _ in points], [e for _, e in points]))
        parts = [f"{number(e)} from {n:,.0f}" for n, e in (points[:1] + points[-1:])]
        ends.append((f"{name}: " if name else "") + " observations, ".join(parts))
    x = Axis(min(counts, default=1), max(counts, default=1), log=True)
    series = (
        *(plot_level(f"claimed ε = {claimed(e)}", "claim", x, e) for e in limit),
        *drawn,
    )
    return describe(
        "growth",
        None,
        views[0],
        x=x,
        y=Axis.from_zero([*epsilons, *limit]),
        series=series if x.low < x.high else (),
        suffix=suffix,
        ends=" observations; ".join(ends),
        claimed="".join(f"Claimed: ε = {claimed(e)}." for e in limit),
    )


def _sort_views(views: Sequence[EpsilonFinding]) -> Sequence[EpsilonFinding]:
    """Return the views by the one number in which they differ; as they come where there is none.

    The most severe come first in an audit; a series is read by what was varied.
    """
    _, names = _find_differences([view.subject for view in views])
    numbers = [re.findall(r"\d+(?:\.\d+)?", name.replace("once", "1")) for name in names]
    if any(len(found) != 1 for found in numbers):
        return views
    pairs = zip((float(found[0]) for found in numbers), views, strict=True)
    return [view for _, view in sorted(pairs, key=lambda pair: pair[0])]


def _find_differences(
    subjects: Sequence[str], *, longest: int = _LONGEST_NAME
) -> tuple[str, tuple[str, ...]]:
    """Return what subjects share, with "…" where they differ, and the words in which they do."""
    parted = [one_line(subject).split() for subject in subjects]
    shortest = min(map(len, parted))
    first = _count_shared(zip(*parted, strict=False))
    last = _count_shared(zip(*(part[::-1] for part in parted), strict=False))
    last = min(last, shortest - first)
    own = (" ".join(part[first : len(part) - last]).strip(" ,:;") for part in parted)
    names = (name or str(place) for place, name in enumerate(own, start=1))
    title = " ".join([*parted[0][:first], "…", *parted[0][len(parted[0]) - last :]])
    return title, tuple(cut(name, longest) for name in names)


def _count_shared(columns: Iterable[tuple[str, ...]]) -> int:
    """Count columns that have one word alone, before the first that has several."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _shorten_title(title: str) -> str:
    """Return the last words of it, as many as an axis has room for."""
    while len(title) > _LONGEST_TITLE and " … " in title:
        title = title.partition(" ")[2]
    return cut(title, _LONGEST_TITLE)


def _list_guarantees(
    views: Sequence[EpsilonFinding], claim: Claim | None, grid: FloatArray
) -> Iterator[_Misses]:
    """Return what the claim, a Gaussian mechanism of that claim, and the proved bound allow.

    The Gaussian one is left out where a computed curve would cover it, and with several views.
    """
    laws = [*dict.fromkeys(law for view in views for law in view.evidence.curves)]
    if claim is not None:
        x = _add_corners(grid, claim)
        name = f"(ε, δ) claimed: ε = {claimed(claim.epsilon)}"
        yield name, "line", "claim", x, _allow(x, claim), False
        # The Gaussian mechanism that is just (ε, δ)-DP; there is none without δ.
        known = _SMALLEST_DELTA < claim.delta < 1 and claim.epsilon <= _LARGEST_EPSILON
        if known and not laws and len(views) == 1:
            mu = 1 / gaussian_sigma(claim.epsilon, claim.delta)
            yield f"{_GDP}: μ = {mu:.3g}", "line", "gdp", grid, gdp_curve(grid, mu=mu), True
    for law in laws:
        yield law.name, "line", "law", law.fpr, law.fnr, False
    if len(views) == 1:
        bound = views[0].bound
        kind = "(ε, δ) proved" if bound.valid else f"(ε, δ) {NOT_VALID}"
        x = _add_corners(grid, bound)
        yield f"{kind}: ε = {number(bound.epsilon)}", "line", "bound", x, _allow(x, bound), True


def _add_corners(grid: FloatArray, law: Claim | EpsilonLowerBound) -> FloatArray:
    """Return the grid with the rates at which the straight parts of a guarantee meet."""
    corner = (1 - law.delta) / (1 + math.exp(min(law.epsilon, _LARGEST_EPSILON)))
    corners = [x for x in (corner, 1 - law.delta) if x >= grid[0]]
    return np.unique(np.append(grid, corners))


def _allow(rates: ArrayLike, law: Claim | EpsilonLowerBound) -> FloatArray:
    """Return the smallest FNR that a guarantee allows at each FPR."""
    return dp_curve(rates, epsilon=min(law.epsilon, _LARGEST_EPSILON), delta=law.delta)


def _limit_band(evidence: Evidence, grid: FloatArray) -> tuple[FloatArray, FloatArray]:
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


def _make_grid() -> FloatArray:
    """Return rates over [0, 1], denser at both ends, where curves are steep."""
    near = np.geomspace(1e-4, 0.02, 20)
    return np.unique(np.concatenate([[0.0], near, np.linspace(0.02, 0.98, 97), 1 - near, [1.0]]))


def _find_lowest(observations: int) -> float:
    """Return the power of ten below the smallest rate that this many observations can show."""
    smallest = 10.0 ** math.floor(-math.log10(max(observations, 100)))
    return max(smallest, _LOWEST_RATE)


def _word_median(edges: tuple[float, ...], bins: tuple[int, ...]) -> str:
    """Say where the middle score lies, as far as bins tell."""
    total = np.cumsum(bins)
    if not total.size or not total[-1]:
        return "none"
    return f"half of them below {edges[int(np.searchsorted(total, total[-1] / 2)) + 1]:.3g}"


def _word_rates(view: EpsilonFinding, claim: Claim | None) -> str:
    """Say what the attack catches at low false positive rates, and what guarantees allow."""
    bound, pairs = view.bound, view.attack.tpr_at_fpr
    if not pairs:
        return ""
    rates = [fpr for fpr, _ in pairs]
    said = [f"the attack catches {_list_rates(tpr for _, tpr in pairs)} of those inside"]
    if claim is not None:
        allowed = _list_rates(1 - _allow(rates, claim))
        said.append(f"the claim of ε = {claimed(claim.epsilon)} allows {allowed}")
    kind = ", proved," if bound.valid else ", not valid as a bound,"
    allowed = _list_rates(1 - _allow(rates, bound))
    said.append(f"ε = {number(bound.epsilon)}{kind} allows {allowed}")
    return f"At false positive rates of {_list_rates(rates)} {'; '.join(said)}."


def _list_rates(rates: Iterable[float]) -> str:
    return ", ".join(f"{100 * rate:.3g}%" for rate in rates)
