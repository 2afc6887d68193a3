"""One file, closed to the outside, in which nothing that a user wrote is more than text."""

import base64
import hashlib
import html
import json
import math
import re
from typing import Any

import numpy as np
import pytest

from epsilometer import ScoreCounts, Scores
from epsilometer._dispatch import audit as run_audit
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.findings import RecordRisk
from epsilometer.core.printing import printable
from epsilometer.core.serialisation import from_json, to_object
from epsilometer.errors import InvalidArgument
from epsilometer.report.page import LARGEST, page
from tests.examples import (
    AUDITS,
    a_bound,
    a_claim,
    a_posterior,
    a_provenance,
    a_record,
    a_release,
    an_audit,
    several_views,
    some_evidence,
)
from tests.report.hostile import PAYLOADS, full_audit, full_view, full_views, poisoned
from tests.report.skeleton import Skeleton

FULL: dict[str, Audit] = {
    "audit": full_audit(),
    "views": full_views(),
    "release": a_release(),
    "posterior": a_posterior(),
}
EVERY = {**FULL, **AUDITS}


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.in_turn(3)
def test_what_a_user_wrote_is_text_and_nothing_else(kind: str, payload: str) -> None:
    harmless = Skeleton(page(poisoned(FULL[kind], "harmless")))
    hostile = Skeleton(page(poisoned(FULL[kind], payload)))
    assert hostile.elements == harmless.elements
    assert [a for a in hostile.attributes if a[1] != "content"] == [
        a for a in harmless.attributes if a[1] != "content"
    ]
    assert hostile.scripts["script"] == harmless.scripts["script"]
    assert len(hostile.scripts["audit"]) == 1
    assert " ".join(printable(payload).split()) in hostile.text
    for text in (hostile.text, *hostile.scripts["audit"], *hostile.scripts["figures"]):
        assert printable(text) == text
    for name in ("audit", "figures"):
        for text in texts_of(json.loads(hostile.scripts[name][0])):
            assert printable(text) == text


def texts_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        value = [part for key, part in value.items() if key != "kind"]
    if isinstance(value, list):
        return set().union(*map(texts_of, value))
    return {value} if isinstance(value, str) else set()


def test_every_text_of_an_audit_is_attacked() -> None:
    """Only what is checked where it is made may keep its text."""
    checked = {"add_remove", "record", "clopper1934", "kairouz2015", "refuted", "both"}
    checked |= {"reference", "unstated", "inf"}
    assert texts_of(to_object(poisoned(full_audit(), "mark"))) == {"mark"} | checked


@pytest.mark.parametrize("kind", FULL)
def test_data_cannot_end_its_element(kind: str) -> None:
    for payload in PAYLOADS:
        scripts = Skeleton(page(poisoned(FULL[kind], payload))).scripts
        for name in ("audit", "figures"):
            (text,) = scripts[name]
            assert text.isascii()
            assert not set(text) & set("<>&")
            json.loads(text)


@pytest.mark.parametrize("kind", EVERY)
def test_the_page_holds_the_audit(kind: str) -> None:
    text = page(EVERY[kind])
    (held,) = Skeleton(text).scripts["audit"]
    assert json.loads(held) == json.loads(EVERY[kind].to_json())
    assert from_json(held) == EVERY[kind]
    assert "shortened to" not in text


@pytest.mark.parametrize("kind", EVERY)
def test_the_headline_is_the_verdict_in_its_tone(kind: str) -> None:
    audit, text = EVERY[kind], page(EVERY[kind])
    shown = re.search(r'<section class="hero tone-(\w+)" data-verdict="([^"]+)">', text)
    assert shown is not None
    assert shown.groups() == (judge.tone(audit.verdict), audit.verdict)
    title = re.search("<h1>(.*?)</h1>", text, re.DOTALL)
    assert title is not None
    assert f'class="badge tone-{judge.tone(audit.verdict)}"' in title[1]
    assert re.search(rf"</span> {audit.verdict}</span>", title[1])


def test_what_is_not_refuted_names_reach_and_power() -> None:
    text = Skeleton(page(AUDITS["not refuted"])).text.replace("\u00a0", " ")
    assert "This audit could refute claims up to ε = 5.00" in text
    assert "4 times in 5 at a true ε of 4.00" in text


def policy_of(text: str) -> dict[str, str]:
    (found,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = (rule.strip().partition(" ") for rule in html.unescape(found).split(";"))
    return {name: value for name, _, value in rules}


def sums(texts: list[str]) -> str:
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)


@pytest.mark.parametrize("kind", FULL)
def test_nothing_may_run_but_what_is_embedded(kind: str) -> None:
    text = page(FULL[kind])
    skeleton, policy = Skeleton(text), policy_of(text)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == sums(skeleton.scripts["script"])
    assert policy["style-src"] == sums(skeleton.scripts["style"])
    assert policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["img-src"] == "data: blob:"
    assert not any("unsafe" in rule for rule in policy.values())
    tags = [tag for tag, _ in skeleton.elements]
    assert tags.index("meta") < min(tags.index("script"), tags.index("style"))  # policy first


@pytest.mark.parametrize("kind", FULL)
def test_nothing_is_loaded_and_nothing_is_inline(kind: str) -> None:
    for tag, name, value in Skeleton(page(FULL[kind])).attributes:
        assert not name.startswith("on")
        assert name not in ("style", "src", "srcset", "action", "formaction", "xlink:href")
        assert (tag, value) == ("link", "data:,") or name != "href" or value.startswith("#")
    assert "@import" not in page(FULL[kind])
    assert "url(" not in "".join(Skeleton(page(FULL[kind])).scripts["style"])


@pytest.mark.parametrize("kind", FULL)
def test_same_audit_same_bytes(kind: str) -> None:
    assert page(FULL[kind]) == page(FULL[kind])


def test_ids_are_unique_and_references_to_them_resolve() -> None:
    attributes = Skeleton(page(full_views())).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for name in ("aria-labelledby", "aria-describedby", "for"):
        assert {value for _, n, value in attributes if n == name} <= set(ids)
    links = {value for _, name, value in attributes if name == "href" and value[:1] == "#"}
    assert {f"#{each}" for each in ("evidence", "threat", "method", "again", "derivation")} <= links
    assert {link[1:] for link in links} <= set(ids)
    charts = [value for _, name, value in attributes if name == "data-chart"]
    assert charts == [str(i) for i in range(5)]  # shared by both views, but for their scores


def test_the_first_screen_says_it_all() -> None:
    text = Skeleton(page(full_audit())).text.replace("\u00a0", " ")
    for part in (
        "refuted",
        "Claim false: it leaks ε ≥ 2.00; ε = 1 was claimed.",
        "True ε ≥ 2.00 at δ = 1e-05 with 0.95 confidence.",
        "What it means for one person",
        "ε = 1, as claimed at most 2.7% at most 73.1% ε ≥ 2.00, as proved at least 6.9%",
        "What to do next",
        "sees every gradient",
        "One contains the record, the other does not; everything else is the same.",
        "claimed ε = 1",
        "not a valid bound",
        "for one record added or removed, batches: Poisson, computed by PLD",
        "1 of 8 units failed",
        "The run stopped early: 6 of 8 units were used.",
    ):
        assert part in text


@pytest.mark.parametrize(
    "parts",
    [
        ("do not release", ("FAIL", "UNCLEAR", "PDTP at most 1", "Look at the records.")),
        ("release", ("PASS", "The one rule passes.")),
        ("computed", ("ε ≤ 6.50", "for reference, decides nothing", "noise needed")),
        ("posterior", ("Publish the label alone.", "What may be published")),
    ],
    ids=lambda parts: parts[0],
)
def test_what_is_shown_follows_from_what_was_found(parts: tuple[str, tuple[str, ...]]) -> None:
    text = Skeleton(page(AUDITS[parts[0]])).text.replace("\u00a0", " ")
    for part in parts[1]:
        assert part in text


def test_the_scale_says_what_is_ruled_out() -> None:
    text = Skeleton(page(an_audit())).text
    assert "ruled out" in text
    assert "true ε is here" not in text  # no room: the interval is short here
    assert "true ε is here" in Skeleton(page(an_audit(bound=a_bound(epsilon=0.4)))).text


def test_everything_needed_to_do_it_again_is_there() -> None:
    text = Skeleton(page(full_audit())).text
    source = full_audit().provenance
    for part in ("epsilometer audit audit.json", source.plan, "epsilometer 1.0.0"):
        assert part in text
    for part in (*source.shapes[0], "subject Scores", "rule null", "seed 7", "delta 1e-05"):
        assert part in text
    assert "Clopper, Pearson" in text  # what was used is cited
    assert "Kairouz" in text  # and what the curves rest on
    assert "Ville" not in text
    assert "Assumes" in text
    assert "Permission is hereby granted" in page(full_audit())  # the chart library's licence


def test_what_must_be_supplied_is_named_instead_of_a_command() -> None:
    text = Skeleton(page(AUDITS["supplied"])).text
    assert "epsilometer audit audit.json" not in text
    assert "It needs what was supplied then: inside." in text
    assert "inside supplied from Python (ndarray)" in text


def test_views_share_scale_figures_and_threat_model() -> None:
    text = page(full_views())
    shown = Skeleton(text).text
    assert "hold together with 0.95 confidence" in shown
    assert text.count('class="scale"') == 1
    for once in ('id="threat"', 'id="again"', "<bdi>Claim</bdi>"):
        assert text.count(once) == 1
    for tone, verdict in (("bad", "refuted"), ("unclear", "cannot judge")):
        assert re.search(rf'row-name">.*?tone-{tone}".*?{verdict}</span>', text, re.DOTALL)


def test_where_adversaries_differ_each_is_said_with_its_view() -> None:
    text = Skeleton(page(full_views())).text
    assert "Adversary (the model) sees the model" in text
    assert text.count("Observations") == 1


def test_a_method_without_a_word_has_no_card() -> None:
    """As those that read one run's updates, whose words are beside them."""
    view = full_view(bound=a_bound(method="cosines", design="unstated"), also=())
    assert "guarantees and assumes" not in page(several_views(view, view))


SENTENCES = {
    "refuted": "Claim false: it leaks ε ≥ 2.00; ε = 1 was claimed.",
    "not refuted": "Nothing found; this audit could have refuted claims up to ε = 5.00.",
    "beyond reach": "Cannot judge: ε = 9 was claimed. ε = 9 is beyond reach:",
    "proved": "Claim true: by computation, ε is at most",
    "violated": "The program did not do what was accounted for.",
    "release": "The one rule passes.",
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_the_headline_is_one_sentence_for_everybody(kind: str) -> None:
    title = re.search("<h1>(.*?)</h1>", page(AUDITS[kind]), re.DOTALL)
    assert title is not None
    assert SENTENCES[kind] in Skeleton(title[1]).text.replace("\u00a0", " ")


def test_nothing_long_is_printed_twice() -> None:
    """No sentence of the page proper; a formula names its own confidence."""
    for audit, most in ((full_audit(), 1), (full_views(), 2)):  # two views of the same scores
        words, _, _ = Skeleton(page(audit)).text.partition("Derivation: how")
        said = [part for part in re.split(r"(?<=[.:]) ", words) if len(part) > 60]
        assert [part for part in set(said) if said.count(part) > most] == []


def test_figures_are_described_in_words_too() -> None:
    text = Skeleton(page(full_audit())).text.replace("\u00a0", " ")
    assert "At false positive rates of 1% the attack catches 50% of those inside" in text


@pytest.mark.parametrize(
    "audit",
    [
        an_audit(claim=None),
        an_audit(bound=a_bound(epsilon=math.inf, threshold=math.inf)),
        an_audit(bound=a_bound(epsilon=0.0), claim=a_claim(0.0)),
        an_audit(bound=a_bound(valid=False, caveats=("chosen at no cost",))),
        an_audit(evidence=some_evidence(growth=(), curves=())),
        an_audit(more=(a_record(risk=math.inf),)),
        an_audit(bound=a_bound(method="a method nobody registered")),
        an_audit(provenance=a_provenance(units=3, used=2, failed=1), claim=None),
        run_audit(ScoreCounts([0.0], [10, 90], [80, 20]), delta=1e-5),
        several_views(a_record(), claim=None),
        several_views(a_record()),
    ],
    ids=lambda audit: "",
)
def test_odd_audits_have_a_page(audit: Audit) -> None:
    text = page(audit)
    assert from_json(Skeleton(text).scripts["audit"][0]) == audit
    assert "nan" not in re.findall(r'(?:x|x1|width)="([^"]*)"', text)
    assert 'width="-' not in text


def test_an_invalid_bound_is_marked_wherever_it_is() -> None:
    text = Skeleton(page(an_audit(bound=a_bound(valid=False)))).text
    assert "cannot judge" in text
    assert text.count("not a valid bound") >= 3  # the sentence, the scale, the method
    for strong in ("the attack proves", "one-sided", "of audits", "ruled out", "true ε is here"):
        assert strong not in text


def many_records(count: int, letters: int = 12) -> tuple[RecordRisk, ...]:
    few = [
        a_record(rank=count - i, risk=float(i), measure="PDTP", note="<&\u20ac" * letters)
        for i in range(1000)
    ]
    return tuple(few) * (count // 1000)


@pytest.mark.slow
def test_a_million_records_fit() -> None:
    audit = full_audit(more=many_records(10**6))
    text = page(audit)
    assert len(text.encode()) <= LARGEST
    kept = from_json(Skeleton(text).scripts["audit"][0])
    assert kept.find(RecordRisk)[0].risk == 999.0
    assert re.search(r"The [\d,]+ riskiest of 1,000,000 records", Skeleton(text).text)
    assert "shortened to the riskiest records" in Skeleton(text).text


def test_five_thousand_short_records_are_all_kept() -> None:
    records = tuple(a_record(rank=6000 - i, risk=i, note="") for i in range(6000))
    text = page(full_audit(more=records))
    kept = from_json(Skeleton(text).scripts["audit"][0]).find(RecordRisk)
    assert {r.rank for r in kept} == set(range(1, 5001))
    assert "the other 1,000 are only in the audit's JSON file" in Skeleton(text).text


def test_huge_texts_fit() -> None:
    audit = poisoned(full_audit(more=many_records(5000, letters=5000)), "<&" * 10**6)
    assert len(page(audit).encode()) <= LARGEST


def test_very_many_views_are_shown_without_figures_or_refused() -> None:
    rng = np.random.default_rng(0)
    scores = Scores(inside=rng.normal(1, 1, 2000), outside=rng.normal(0, 1, 2000))
    (view,) = run_audit(scores, delta=1e-5).views
    forty = page(several_views(*[view] * 40))
    assert len(forty.encode()) <= LARGEST
    assert "The figures are left out" in forty
    huge = a_provenance(shapes=(("scores.csv", "ab" * 32),) * 20_000)
    with pytest.raises(InvalidArgument, match="whose page fits"):
        page(an_audit(provenance=huge))
