"""Render how results changed over releases, as one HTML file."""

import math
from collections.abc import Sequence

from epsilometer.cli import history_words
from epsilometer.core import judge
from epsilometer.core.document import (
    Axis,
    Block,
    Document,
    Figure,
    Figures,
    Section,
    Table,
    Verdict,
    plot,
)
from epsilometer.core.printing import one_line
from epsilometer.errors import InvalidArgument
from epsilometer.files.history.trend import Trend
from epsilometer.report.fitting import cut
from epsilometer.report.page import LARGEST, render_page

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
        fitted = [_fit(trend, long) for trend in trends[:many]]
        entries = [entry.to_dict() for trend in fitted for entry in trend.entries]
        text = render_page(
            _build(fitted, title),
            {"kind": "History", "entries": entries},
            is_cut=fitted != list(trends),
        )
        if len(text.encode()) <= LARGEST:
            return text
    raise InvalidArgument(
        f"Expected trends whose page fits into {LARGEST:,} bytes. Follow one, by --subject."
    )


def _fit(trend: Trend, long: int) -> Trend:
    return Trend(
        subject=cut(trend.subject),
        adversary=cut(trend.adversary),
        delta=trend.delta,
        entries=trend.entries[-long:],
    )


def _build(trends: Sequence[Trend], title: str) -> Document:
    entries = [entry for trend in trends for entry in trend.entries]
    refuted = sum(entry.view_verdict in judge.BAD for entry in entries)
    finding = (
        f"{_count(len(trends), 'audit')} followed over {_count(len(entries), 'result')}: "
        f"{refuted:,} refuted or not to be released."
    )
    return Document(
        title=title,
        verdict=Verdict(finding=finding, lead=history_words.CAUTION),
        blocks=build_trends(trends),
    )


def build_trends(trends: Sequence[Trend]) -> tuple[Section, ...]:
    """Return a section per trend: its figure and its table."""
    return tuple(_build_section(trend, place) for place, trend in enumerate(trends, start=1))


def _build_section(trend: Trend, place: int) -> Section:
    table = Table(
        head=history_words.TREND_HEAD,
        rows=tuple(history_words.trend_rows(trend)),
    )
    blocks: tuple[Block, ...] = (table,)
    if len(trend.entries) > 1:  # a single point is no trend
        figures = (_draw(trend, key=f"trend-{place}"),)
        blocks = (Figures(figures=figures, key=f"audit-{place}"), table)
    return Section(title=history_words.trend_title(trend), key=f"trend-{place}", blocks=blocks)


def _draw(trend: Trend, *, key: str) -> Figure:
    entries, is_bound = trend.entries, trend.measure == "ε"
    places = range(1, len(entries) + 1)
    values = [-math.inf if value is None else value for value in trend.values]  # not drawn
    claims = [-math.inf if entry.claim is None else entry.claim for entry in entries]
    finite = [value for value in (*values, *claims) if math.isfinite(value)]
    top = 1.1 * max([*finite, 1e-3])
    # An infinite bound ends at the top; an infinite claim is not drawn.
    what = "proved ε" if is_bound else trend.measure
    series = [plot(what, "points", "bound", places, [min(value, top) for value in values])]
    if any(map(math.isfinite, claims)):
        series.append(plot("claimed ε", "points", "claim", places, claims, dashed=True))
    names = tuple(cut(history_words.run(entry), _LONGEST_NAME) for entry in entries)
    said = "; ".join(f"{history_words.run(e)}: {history_words.found(e)}" for e in entries[-_NAMED:])
    caption = "In the order of the table. A lower bound: the truth lies above it."
    if not is_bound:
        caption = "In the order of the table: what the strongest attack gains over guessing."
    return Figure(
        key=key,
        title=f"{trend.measure} by result",
        caption=caption,
        alt=f"{one_line(trend.subject)}. {said}.",
        x=Axis(0.5, len(names) + 0.5, names=names if len(names) <= _NAMED else (), title="result"),
        y=Axis(0.0, top, title=trend.measure),
        series=tuple(series),
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
