"""Render the difference of two audits as one HTML file."""

from epsilometer.cli import history_words
from epsilometer.cli.runs_words import to_plain
from epsilometer.core import judge
from epsilometer.core.document import Badge, Document, Fact, Facts, Notes, Section, Table, Verdict
from epsilometer.core.printing import one_line
from epsilometer.files.history.comparison import Compared, Comparison
from epsilometer.files.history.entries import Entry
from epsilometer.report.page import render_page


def compare_page(found: Comparison, *, title: str) -> str:
    """Return a page that compares two audits; the same audits give the same bytes."""
    differ = [audit for audit in found.audits if audit.told_apart]
    finding = (
        f"{len(differ)} of {len(found.audits)} views differ by more than random variation."
        if found.audits
        else "The two audits have no view in common."
    )
    blocks = [_build_pair(audit, place) for place, audit in enumerate(found.audits, start=1)]
    rows = tuple(tuple(map(one_line, row)) for row in found.settings)
    settings = (
        Table(head=("setting", "A", "B"), rows=rows, numeric=False)
        if rows
        else Notes(lines=("All settings are the same.",), style="text")
    )
    only = [
        f"Only in {which}: {one_line(subject)}"
        for which, subjects in (("A", found.only_first), ("B", found.only_second))
        for subject in subjects
    ]
    document = Document(
        title=title,
        verdict=Verdict(finding=finding, lead=history_words.CAUTION),
        blocks=(
            *blocks,
            Section(title="Settings that differ", key="settings", blocks=(settings,)),
            *([Section(title="Not in both", blocks=(Notes(lines=tuple(only)),))] if only else []),
        ),
    )
    return render_page(document, {"kind": "Comparison", **to_plain(found)}, is_cut=False)


def _build_pair(audit: Compared, place: int) -> Section:
    change = "" if audit.difference is None else f"B − A: {audit.difference:+.3g}. "
    facts = Facts(
        rows=(_build_fact("A", audit.first), _build_fact("B", audit.second)), style="reasons"
    )
    said = Notes(lines=(one_line(change + audit.meaning),), style="text")
    return Section(title=one_line(audit.first.subject), key=f"pair-{place}", blocks=(facts, said))


def _build_fact(name: str, entry: Entry) -> Fact:
    claim = "" if entry.claim is None else f"; ε = {history_words.claimed(entry)} was claimed"
    value = f"{history_words.found(entry)}{claim} ({history_words.run(entry)})"
    return Fact(name, value, Badge(entry.view_verdict, judge.tone(entry.view_verdict)))
