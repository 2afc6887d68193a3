"""A comment that says it all, and that nobody can speak through."""

import math
import re
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from epsilometer import AuditGroup, RecordRisk
from epsilometer.report.markdown import markdown, plain
from tests.examples import a_bound, an_audit
from tests.report.hostile import PAYLOADS, full_audit, full_group, poisoned

RESULTS: dict[str, Any] = {
    "audit": full_audit(),
    "group": full_group(),
    "bound": full_audit().bound,
}


def tokens(text: str) -> list[Token]:
    blocks = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    return [part for block in blocks for part in (block, *(block.children or []))]


def skeleton(text: str) -> list[tuple[str, str]]:
    kept = [t for t in tokens(text) if t.type not in ("text", "text_special", "inline")]
    return [(t.type, re.sub(">[^<]*<", "><", t.content) if "html" in t.type else "") for t in kept]


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_a_user_wrote_is_text_and_nothing_else(kind: str, payload: str) -> None:
    harmless = markdown(poisoned(RESULTS[kind], "harmless"))
    hostile = markdown(poisoned(RESULTS[kind], payload))
    assert skeleton(hostile) == skeleton(harmless)
    for token in tokens(hostile):
        assert token.type not in ("link_open", "image", "html_inline")
    assert hostile.encode()  # no half letters


@pytest.mark.parametrize(
    "text",
    [
        "@octocat",
        "a@b.example",
        "https://evil.example/x",
        "www.evil.example",
        "owner/repo#12",
        "#12",
        "GH-12",
    ],
)
def test_nobody_is_called_and_nothing_linked(text: str) -> None:
    shown = plain(text).replace("\\", "")
    assert not re.search(r"@\w|#\d|://\w|www\.|GH-\d", shown)
    assert shown.replace("\u200b", "") == text  # but it reads the same


def test_a_cell_stays_one_cell() -> None:
    inside = [
        t for t in tokens(markdown(poisoned(full_audit(), "a | b \\| c"))) if t.type == "inline"
    ]
    shown = ["".join(part.content for part in t.children or []) for t in inside]
    at = shown.index("4.0000")  # the riskiest record, between its name and what was measured
    assert shown[at - 1] == shown[at + 1] == shown[at + 3] == "a | b \\| c"


def test_the_verdict_comes_first_and_all_bounds_are_listed() -> None:
    text = markdown(full_audit())
    lines = text.splitlines()
    assert lines[0] == "### ❌ scores.csv"
    assert lines[2].startswith("**REFUTED: ε = 1 was promised, the attack proves ε ≥ 2.00")
    assert "| clopper\\_pearson (decides) | ≥ 2.00 | 1e-05 | 0.95 | 1,234 + 567 |" in lines
    assert "| jeffreys | ≥ 2.50 (not a valid bound) | 1e-05 | none | 1,234 + 567 |" in lines
    assert "epsilometer estimate scores.csv --delta 1e-05" in lines
    assert "1 of 8 units failed" in text
    assert text.count("<details>") == text.count("</details>") == 3


def test_a_group_is_one_table() -> None:
    text = markdown(full_group())
    assert "| ❌ refuted | scores.csv | 1 | ≥ 2.00 |" in text
    assert "| ❓ no verdict | scores.csv | 9 | ≥ 2.00 |" in text
    assert "nothing is concluded from the largest" in text


@pytest.mark.parametrize(
    "result",
    [
        an_audit(claim=None),
        an_audit(bound=a_bound(epsilon=math.inf)),
        a_bound(valid=False),
        an_audit(records=(RecordRisk(record="", risk=math.inf, measure=""),)),
    ],
)
def test_odd_results_have_a_comment(result: Any) -> None:
    assert "≥" in markdown(result)


def test_a_comment_stays_within_what_a_site_takes() -> None:
    records = tuple(RecordRisk(record="r" * 999, risk=i, measure="m" * 999) for i in range(10**4))
    audit = poisoned(full_audit(records=records), "`x|" * 10**4)
    assert len(markdown(audit)) < 65_536
    assert "And 980 more audits." in markdown(
        AuditGroup(subject="s", results=(full_audit(),) * 1000)
    )


def test_fences_are_longer_than_what_they_hold() -> None:
    text = markdown(poisoned(full_audit(), "a ```` b\n```"))
    (fence,) = [t for t in tokens(text) if t.type == "fence"]
    assert fence.content == "a ```` b ```\n"
