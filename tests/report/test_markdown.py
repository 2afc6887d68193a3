"""A comment that says it all, and that nobody can speak through."""

import math
import re

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.report.markdown import as_markdown, plain
from epsilometer.report.tones import LOOKS
from tests.examples import (
    AUDITS,
    a_bound,
    a_claim,
    a_posterior,
    a_provenance,
    a_record,
    a_release,
    a_rule,
    a_view,
    an_audit,
    several_views,
)
from tests.report.hostile import PAYLOADS, full_audit, full_views, poisoned

FULL: dict[str, Audit] = {
    "audit": full_audit(),
    "views": full_views(),
    "release": a_release(),
    "posterior": a_posterior(),
}


def tokens(text: str) -> list[Token]:
    blocks = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    return [part for block in blocks for part in (block, *(block.children or []))]


def skeleton(text: str) -> list[tuple[str, str]]:
    kept = [t for t in tokens(text) if t.type not in ("text", "text_special", "inline")]
    return [(t.type, re.sub(">[^<]*<", "><", t.content) if "html" in t.type else "") for t in kept]


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_a_user_wrote_is_text_and_nothing_else(kind: str, payload: str) -> None:
    harmless = as_markdown(poisoned(FULL[kind], "harmless"))
    hostile = as_markdown(poisoned(FULL[kind], payload))
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
        t for t in tokens(as_markdown(poisoned(full_audit(), "a | b \\| c"))) if t.type == "inline"
    ]
    shown = ["".join(part.content for part in t.children or []) for t in inside]
    at = shown.index("4.0000")  # of the riskiest record; behind it, how it was measured and why
    assert shown[at - 1] == "1"
    assert shown[at + 1] == shown[at + 2] == "a | b \\| c"


@pytest.mark.parametrize("name", AUDITS)
def test_the_verdict_comes_first(name: str) -> None:
    audit = AUDITS[name]
    first, _, subject, *_ = as_markdown(audit).splitlines()
    assert first.startswith(
        f"### {LOOKS[judge.tone(audit.verdict)].emoji} {audit.verdict.upper()}: "
    )
    assert subject == f"Subject: {plain(audit.subject)}"


def test_what_is_not_refuted_is_grey_and_names_reach_and_power() -> None:
    first = as_markdown(AUDITS["not refuted"]).splitlines()[0]
    assert first.startswith("### ⚪ NOT REFUTED")
    assert "could refute claims up to ε = 5.00" in first
    assert "4 times in 5 at a true ε of 4.00" in first
    assert as_markdown(AUDITS["no claim"]).startswith("### ⚪ NO CLAIM")
    assert as_markdown(AUDITS["beyond reach"]).startswith("### ❓ CANNOT JUDGE")
    assert as_markdown(AUDITS["proved"]).startswith("### ✅ PROVED")


def test_all_bounds_are_listed() -> None:
    text = as_markdown(full_audit())
    lines = text.splitlines()
    assert lines[0] == (
        "### ❌ REFUTED: ε = 1 was claimed, but the attack proves ε ≥ 2.00 at δ = 1e-05."
    )
    by = "1,234 + 567 | RankGrid(ratio=4) |"
    assert f"| clopper\\_pearson | ≥ 2.0000 | 1e-05 | 0.95 one-sided | {by}" in lines
    assert f"| jeffreys | ≥ 2.5000 | 1e-05 | none: not a valid bound | {by}" in lines
    assert "The first bound of each view decides; the others are for comparison." in lines
    assert "1 of 8 units failed" in text
    assert text.count("<details>") == text.count("</details>") == 5


def test_views_are_one_table() -> None:
    text = as_markdown(full_views())
    assert "| scores.csv | refuted | ≥ 2.00 | 5.00 |" in text
    assert "| the model | cannot judge | ≥ 0.50 | 5.00 |" in text  # units failed
    assert "hold together with 0.95 confidence" in text


@pytest.mark.parametrize("outcome", ["pass", "fail", "unclear"])
def test_rules_say_whether_they_pass(outcome: str) -> None:
    text = as_markdown(a_release(rules=(a_rule(outcome=outcome),)))
    icon = {"pass": "✅", "fail": "❌", "unclear": "❓"}[outcome]
    assert f"| {icon} {outcome.upper()} | PDTP at most 1 |" in text


@pytest.mark.parametrize(
    "audit",
    [
        an_audit(claim=None),
        an_audit(bound=a_bound(epsilon=math.inf)),
        an_audit(bound=a_bound(valid=False)),
        an_audit(more=(a_record(rank=0, risk=math.inf, measure=""),)),
        several_views(a_record(), claim=None),
    ],
)
def test_odd_audits_have_a_comment(audit: Audit) -> None:
    text = as_markdown(audit)
    assert audit.verdict.upper() in text
    assert "≥" in text or not audit.views


def test_a_comment_stays_within_what_a_site_takes() -> None:
    records = tuple(a_record(rank=i, risk=i, measure="m" * 999) for i in range(10**4))
    audit = poisoned(full_audit(more=records), "`x|" * 10**4)
    assert len(as_markdown(audit)) < 65_536
    views = as_markdown(several_views(*[a_view()] * 1000))
    assert "And 980 more." in views
    assert len(views) < 65_536
    several = several_views(*[full_audit().views[0]] * 50)
    assert len(as_markdown(poisoned(several, "`x|" * 10**4))) < 65_536


def test_how_to_do_it_again_is_the_settings_and_a_command() -> None:
    text = as_markdown(full_audit())
    (fence,) = [t for t in tokens(text) if t.type == "fence"]
    assert fence.content == "epsilometer audit audit.json\n"
    assert "| seed | 7 |" in text
    assert "| rule | null |" in text
    assert "| shape of inside | 1234" in text


def test_what_must_be_supplied_is_named_instead_of_a_command() -> None:
    text = as_markdown(AUDITS["supplied"])
    assert not [t for t in tokens(text) if t.type == "fence"]
    assert "It needs what was supplied then: inside." in text
    assert "| inside | supplied from Python (ndarray) |" in text


def test_settings_are_written_exactly() -> None:
    source = a_provenance(settings={"noise": 0.1 + 0.2, "claim": 3.195138}, delta=1 / 3)
    text = as_markdown(an_audit(provenance=source, claim=a_claim()))
    for value in (0.1 + 0.2, 3.195138, 1 / 3):
        assert f"| {value!r} |" in text
