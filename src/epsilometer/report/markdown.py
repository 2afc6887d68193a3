"""Render an audit as Markdown, for a comment on a pull request."""

import html
import re
import string
from collections.abc import Iterable, Iterator

from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import EpsilonFinding, RecordRisk
from epsilometer.core.printing import one_line
from epsilometer.core.words import headline
from epsilometer.report import words
from epsilometer.report.fitting import riskiest
from epsilometer.report.tables import (
    Table,
    advice_of,
    facts_of,
    proved,
    records_table,
    rule_rows,
    tables_of,
)
from epsilometer.report.tones import LOOKS, look_of, rule_tone

_LONGEST = 300  # letters of a text
_LARGEST = 65_536  # letters of a comment
_HEADLINE = 1_000
_VIEWS = 20
_RECORDS = 10
_LISTED = 30
_MARKS = re.compile(r"^\W|[\\`*_\[\]<>|~&$#@!^]")  # the first letter might begin a list
_LINKS = re.compile(r"@|#|:(?=//)|www(?=\.)|GH-", re.IGNORECASE)


def as_markdown(audit: Audit) -> str:
    """Return the verdict, findings as tables, and folded away what is needed to do it again."""
    text = _render(audit, views=_VIEWS)
    return text if len(text) <= _LARGEST else _render(audit, views=0)


def plain(text: str, longest: int = _LONGEST) -> str:
    """Return text that Markdown shows as it is: no markup, HTML or links, nobody mentioned."""
    return _MARKS.sub(_escape, _unlink(text, longest))


def _render(audit: Audit, *, views: int) -> str:
    """Return the audit with so many of its views one by one."""
    parts = [
        f"### {look_of(audit).emoji} {plain(headline(audit), _HEADLINE)}",
        f"Subject: {plain(audit.subject)}",
        *_bullets(words.run_notes(audit.provenance)),
        *_findings(audit),
        *_bullets(advice_of(audit)),
        *_records(audit),
        *_views(audit, views),
        _folded("What it means", _bullets(words.meaning(audit))),
        _folded("How to do it again", _provenance(audit.provenance)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _escape(mark: re.Match[str]) -> str:
    return f"\\{mark[0]}" if mark[0] in string.punctuation else mark[0]


def _unlink(text: str, longest: int = _LONGEST) -> str:
    """Return one line, with an invisible space wherever a site would link or call somebody."""
    return _LINKS.sub("\\g<0>\u200b", one_line(text, longest))


def _findings(audit: Audit) -> Iterator[str]:
    rules = [
        (
            f"{LOOKS[rule_tone(rule)].emoji} {outcome}",
            plain(rule.rule),
            plain(rule.finding),
            plain(sure),
        )
        for rule, outcome, sure in rule_rows(audit)
    ]
    if rules:
        yield _table(("outcome", "rule", "why", "how sure"), rules)
    views = words.own_views(audit)
    if len(views) == 1:
        yield _bounds(views[0])
    if facts := facts_of(audit):
        yield _table(("", ""), _plain_rows(facts))
    for table in tables_of(audit):
        if table.brief:
            yield from _listed(table, _VIEWS if len(views) > 1 else _LISTED)


def _listed(table: Table, most: int) -> Iterator[str]:
    yield _table(table.head, _plain_rows(table.rows[:most]))
    if len(table.rows) > most:
        yield f"And {len(table.rows) - most:,} more."


def _views(audit: Audit, most: int) -> Iterator[str]:
    """What each of several views proves, folded away."""
    views = words.own_views(audit)
    for view in views[:most] if len(views) > 1 else ():
        verdict = judge.judge_finding(audit.claim, view)
        alone = words.take_view(audit, view)
        parts = [
            f"{LOOKS[judge.tone(verdict)].emoji} **{plain(headline(alone), _HEADLINE)}**",
            *_bullets(words.run_notes(view)),
            _bounds(view),
            *_bullets(words.bound_meaning(view.bound)),
        ]
        yield _folded(view.subject, parts)


def _bounds(view: EpsilonFinding) -> str:
    rows = [
        (
            plain(bound.method) + ("" if i else " (decides)"),
            proved(bound),
            f"{bound.delta:g}",
            f"{bound.confidence:g}" if bound.valid else "none",
            _observations(bound),
        )
        for i, bound in enumerate((view.bound, *view.also))
    ]
    rows += [
        (
            f"{plain(estimate.method)} ({'estimate' if estimate.confidence < 1 else 'theory'})",
            plain(words.word_estimate(estimate)),
            f"{estimate.delta:g}",
            f"{estimate.confidence:g}",
            "–",
        )
        for estimate in view.estimates
    ]
    return _table(("method", "ε", "δ", "confidence", "observations"), rows[:_LISTED])


def _observations(bound: EpsilonLowerBound) -> str:
    return f"{bound.n_in:,} + {bound.n_out:,}"


def _records(audit: Audit) -> Iterator[str]:
    records = audit.find(RecordRisk)
    if records:
        table = records_table(riskiest(records, _RECORDS))
        title = f"The riskiest of {len(records):,} records"
        yield _folded(title, [_table(table.head, _plain_rows(table.rows))])


def _provenance(source: Provenance) -> list[str]:
    command = words.again_command(source)
    rows = words.settings_rows(source)[:_LISTED]
    if source.plan:
        rows.append(("plan", source.plan))
    rows.append(("units", f"{source.used:,} used of {source.units:,}, {source.failed:,} failed"))
    rows += [(f"shape of {name}", shape) for name, shape in source.shapes[:_LISTED]]
    rows += source.versions[:_LISTED]
    return [
        plain(words.again(source)),
        *([f"```text\n{command}\n```"] if command else []),
        _table(("setting", "value"), _plain_rows(rows)),
    ]


def _folded(title: str, parts: list[str]) -> str:
    inner = "\n\n".join(parts)
    return f"<details><summary>{html.escape(_unlink(title))}</summary>\n\n{inner}\n\n</details>"


def _bullets(lines: Iterable[str]) -> list[str]:
    listed = [f"- {plain(line)}" for line in lines]
    return ["\n".join(listed)] if listed else []


def _plain_rows(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [tuple(map(plain, row)) for row in rows]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
