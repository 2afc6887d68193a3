"""Render a document as Markdown, for a comment on a pull request."""

import html
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import replace

from epsilometer.core.audit import Audit
from epsilometer.core.document import Badge, Block, Document, Facts, Notes, Section, Table
from epsilometer.core.printing import one_line
from epsilometer.report.build import build
from epsilometer.report.tones import LOOKS

_LONGEST = 300  # letters of a text
_LARGEST = 65_536  # letters of a comment
_HEADLINE = 1_000
_MARKS = re.compile(r"^\W|[\\`*_\[\]<>|~&$#@!^]")  # the first letter might begin a list
_LINKS = re.compile(r"@|#|:(?=//)|www(?=\.)|GH-", re.IGNORECASE)


def as_markdown(audit: Audit) -> str:
    """Return an audit as a comment: the verdict, tables, and folded away what may be long."""
    document = build(audit, brief=True)
    text = render_markdown(document)
    return text if len(text) <= _LARGEST else render_markdown(replace(document, blocks=()))


def plain(text: str, longest: int = _LONGEST) -> str:
    """Return text that Markdown shows as it is: no markup, HTML or links, no one mentioned."""
    return _MARKS.sub(_escape, _unlink(text, longest))


def render_markdown(document: Document) -> str:
    """Return a document as a comment."""
    parts = [
        *_render_verdict(document, "### {} {}"),
        f"Subject: {plain(document.title)}",
        *_bullet(document.notes),
        *(part for block in document.parts for part in _render(block)),
    ]
    return "\n\n".join(parts) + "\n"


def _render(block: Block) -> Iterator[str]:
    """Return what a comment shows of a block: nothing of figures, scales and details."""
    match block:
        case Section(folded=False):
            inner = [part for each in block.parts for part in _render(each)]
            if inner:
                inner = [*_render_verdict(block, "{} **{}**"), *_bullet(block.notes), *inner]
                yield _fold(block.title, inner)
        case Facts(brief=True, rows=rows):
            badged = [(*_show_badge(row.badge), plain(row.name), plain(row.value)) for row in rows]
            yield _tabulate(("",) * len(badged[0]), badged)
        case Notes(brief=True, style="list"):
            yield from _bullet(block.lines)
        case Notes(brief=True, style="code"):  # ours alone: a user's lines might end it
            yield "```text\n{}\n```".format("\n".join(block.lines))
        case Notes(brief=True):
            yield from map(plain, block.lines)
        case Table(brief=True):
            cells = (tuple(map(plain, row)) for row in block.rows[: block.most])
            yield _tabulate(block.head, cells)
            if block.more:
                yield f"And {block.more:,} more."
            yield from filter(None, [plain(block.note)])


def _render_verdict(section: Section, form: str) -> Iterator[str]:
    if section.verdict is not None:
        icon = LOOKS[section.verdict.tone].emoji
        yield form.format(icon, plain(section.verdict.headline, _HEADLINE))


def _show_badge(badge: Badge | None) -> tuple[str, ...]:
    return () if badge is None else (f"{LOOKS[badge.tone].emoji} {badge.word}",)


def _escape(mark: re.Match[str]) -> str:
    return f"\\{mark[0]}" if mark[0] in string.punctuation else mark[0]


def _unlink(text: str, longest: int = _LONGEST) -> str:
    """Return one line, with an invisible space wherever a site would link or call someone."""
    return _LINKS.sub("\\g<0>\u200b", one_line(text, longest))


def _fold(title: str, parts: list[str]) -> str:
    inner = "\n\n".join(parts)
    return f"<details><summary>{html.escape(_unlink(title))}</summary>\n\n{inner}\n\n</details>"


def _bullet(lines: Iterable[str]) -> list[str]:
    listed = [f"- {plain(line)}" for line in lines]
    return ["\n".join(listed)] if listed else []


def _tabulate(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
