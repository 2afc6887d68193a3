"""Render all results of a folder as one HTML file, with links to their reports."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from epsilometer.cli import history_words
from epsilometer.cli.trend_page import build_trends
from epsilometer.core import judge
from epsilometer.core.document import Badge, Document, Notes, Section, Table, Verdict
from epsilometer.core.printing import one_line
from epsilometer.errors import InvalidArgument
from epsilometer.files.history.entries import Entry
from epsilometer.files.history.index import History
from epsilometer.files.history.trend import trends
from epsilometer.report.page import LARGEST, render_page

_ATTEMPTS = (2_000, 500, 100)  # results, until the page is small enough: the latest
_FOLLOWED = 50  # subjects whose trend is drawn


def index_page(history: History, entries: Sequence[Entry], file: Path) -> str:
    """Return the results, newest first, with their verdicts, trends and links from ``file``.

    The same results give the same bytes. Of very many the latest are shown; the page then says so.
    """
    for most in _ATTEMPTS:
        shown = entries[-most:]
        text = render_page(
            _build(history, shown, file),
            {"kind": "Runs", "entries": [entry.to_dict() for entry in shown]},
            is_cut=len(shown) < len(entries),
        )
        if len(text.encode()) <= LARGEST:
            return text
    raise InvalidArgument(
        f"Expected results whose page fits into {LARGEST:,} bytes. Select some, by --subject."
    )


def _build(history: History, entries: Sequence[Entry], file: Path) -> Document:
    newest = sorted(entries, key=lambda entry: -entry.written)
    table = Table(
        head=("run", "written (UTC)", "audit", "subject", "claimed ε", "found"),
        rows=tuple(
            (
                history_words.run(entry),
                history_words.date(entry),
                one_line(entry.kind),
                one_line(entry.subject),
                history_words.claimed(entry),
                history_words.found(entry),
            )
            for entry in newest
        ),
        numeric=False,
        links=tuple(_find_report(history.folder, entry, file) for entry in newest),
        badges=tuple(Badge(entry.view_verdict, judge.tone(entry.view_verdict)) for entry in newest),
    )
    followed = [trend for trend in trends(entries) if len(trend.entries) > 1][:_FOLLOWED]
    missing = [f"Not finished: {one_line(run)}" for run in history.unfinished]
    missing += [f"Skipped {one_line(p)}: {one_line(why)}" for p, why in history.unreadable]
    more = (
        Section(title="Trends", key="trends", blocks=build_trends(followed)),
        Section(
            title="Without a result",
            key="open",
            blocks=(Notes(lines=tuple(missing)),) if missing else (),
        ),
    )
    return Document(
        title=f"Runs in {history.folder.resolve().name}",
        verdict=Verdict(finding=_word_counts(entries), lead=history_words.CAUTION),
        blocks=(
            Section(title="Results", key="results", blocks=(table,)),
            *(each for each in more if each.blocks),
        ),
    )


def _word_counts(entries: Sequence[Entry]) -> str:
    """Count audits, not their views: all entries of one file have its verdict."""
    verdicts = {entry.path: entry.verdict for entry in entries}.values()
    bad, unclear = (sum(v in kind for v in verdicts) for kind in (judge.BAD, judge.UNCLEAR))
    many = f"{len(verdicts):,} audit{'s'[: len(verdicts) != 1]}"
    return f"{many}: {bad:,} refuted or not to be released, {unclear:,} cannot be judged."


def _find_report(folder: Path, entry: Entry, file: Path) -> str:
    """Return the address of the page of a result, or of the result itself, as seen from a file."""
    result = folder / entry.path
    page = result.with_name("report.html") if result.name == "result.json" else None
    page = page or result.with_suffix(".html")
    shown = page if page.exists() else result
    path = os.path.relpath(shown.resolve(), file.resolve().parent).replace(os.sep, "/")
    return f"./{quote(path)}"
