"""Render how results changed over releases, as one HTML file."""

import math
from collections.abc import Sequence

from epsilometer.cli import history_words
from epsilometer.core import judge
from epsilometer.core.printing import one_line
from epsilometer.errors import InvalidArgument
from epsilometer.files.history.trend import Trend
from epsilometer.report.figures import Axis, Figure, Series
from epsilometer.report.fitting import cut
from epsilometer.report.frame import LARGEST, framed

_NAMED = 16  # entries whose names fit under a figure; more have numbers
_LONGEST_NAME = 24
# How much is kept, until the page is small enough: things followed, and entries of each.
_ATTEMPTS = ((200, 1_000), (50, 200), (20, 50))


def trend_page(trends: Sequence[Trend], *, title: str) -> str:
    """Return each trend with its figure and table; the same entries give the same bytes.

    Of very many the first are shown, and the latest entries of each; the page then says so.
    """
    if not trends:
        raise InvalidArgument("Expected at least one result to follow, found none.")
    for many, long in _ATTEMPTS:
        text = _page(trends, title=title, many=many, long=long)
        if len(text.encode()) <= LARGEST:
            return text
    raise InvalidArgument(
        f"Expected trends whose page fits into {LARGEST:,} bytes. Follow one, by --subject."
    )


def _page(trends: Sequence[Trend], *, title: str, many: int, long: int) -> str:
    kept = [
        Trend(
            subject=cut(t.subject),
            adversary=cut(t.adversary),
            delta=t.delta,
            entries=t.entries[-long:],
        )
        for t in trends[:many]
    ]
    drawn: list[Figure] = []
    shown = []
    for i, trend in enumerate(kept, start=1):
        figures = []
        if len(trend.entries) > 1:  # a single point is no trend
            figures.append((len(drawn), _figure(trend, key=f"trend-{i}")))
            drawn.append(figures[0][1])
        shown.append((history_words.trend_title(trend), figures, history_words.trend_rows(trend)))
    entries = [entry for trend in kept for entry in trend.entries]
    refuted = sum(entry.verdict in judge.BAD for entry in entries)
    return framed(
        "trend.html",
        title=title,
        plain={"kind": "History", "entries": [entry.to_dict() for entry in entries]},
        figures=drawn,
        cites=(),
        is_cut=kept != list(trends),
        drawn=True,
        finding=f"{_count(len(kept), 'audit')} followed over {_count(len(entries), 'result')}: "
        f"{refuted:,} refuted or not to be released.",
        caution=history_words.CAUTION,
        head=history_words.TREND_HEAD,
        trends=shown,
    )


def _figure(trend: Trend, *, key: str) -> Figure:
    values = [(place, v) for place, v in enumerate(trend.values, start=1) if v is not None]
    claims = [
        (float(place), e.claim)
        for place, e in enumerate(trend.entries, start=1)
        if e.claim is not None and math.isfinite(e.claim)
    ]
    finite = [v for _, v in values if math.isfinite(v)] + [v for _, v in claims]
    top = 1.1 * max([*finite, 1e-3])
    names = tuple(cut(history_words.run(e), _LONGEST_NAME) for e in trend.entries)
    what = "proved ε" if trend.measure == "ε" else trend.measure
    said = "; ".join(
        f"{history_words.run(e)}: {history_words.found(e)}" for e in trend.entries[-_NAMED:]
    )
    drawn = [
        Series(
            name=what,
            kind="points",
            role="bound",
            x=tuple(float(place) for place, _ in values),
            y=tuple(min(v, top) for _, v in values),  # infinity ends there too
        )
    ]
    if claims:
        drawn.append(
            Series(
                name="claimed ε",
                kind="points",
                role="claim",
                x=tuple(place for place, _ in claims),
                y=tuple(v for _, v in claims),
                dashed=True,
            )
        )
    return Figure(
        key=key,
        title=f"{trend.measure} by result",
        caption="In the order of the table. A lower bound: the truth lies above it."
        if trend.measure == "ε"
        else "In the order of the table: what the strongest attack was seen to gain over guessing.",
        alt=f"{one_line(trend.subject)}. {said}.",
        x=Axis(
            title="result",
            low=0.5,
            high=len(trend.entries) + 0.5,
            names=names if len(names) <= _NAMED else (),
        ),
        y=Axis(title=trend.measure, low=0.0, high=top),
        series=tuple(drawn),
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
