"""One file, closed to the outside, in which nothing that a user wrote is more than text."""

import base64
import hashlib
import html
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from epsilometer import (
    AuditGroup,
    PrivacyClaim,
    RecordRisk,
    ScoreCounts,
    audit_scores,
    from_json,
)
from epsilometer.errors import InvalidArgument
from epsilometer.report.page import LARGEST, page
from epsilometer.results import Result
from tests.examples import a_bound, a_provenance, an_audit, some_evidence
from tests.report.hostile import PAYLOADS, full_audit, full_group, poisoned
from tests.report.skeleton import Skeleton

RESULTS: dict[str, Any] = {
    "audit": full_audit(),
    "group": full_group(),
    "bound": full_audit().bound,
}


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_a_user_wrote_is_text_and_nothing_else(kind: str, payload: str) -> None:
    harmless = Skeleton(page(poisoned(RESULTS[kind], "harmless")))
    hostile = Skeleton(page(poisoned(RESULTS[kind], payload)))
    assert hostile.elements == harmless.elements
    assert [a for a in hostile.attributes if a[1] != "content"] == [
        a for a in harmless.attributes if a[1] != "content"
    ]
    assert hostile.scripts["script"] == harmless.scripts["script"]
    assert len(hostile.scripts["result"]) == 1
    shown = re.sub("[\x00-\x08\x0b-\x1f\ud800]", "\ufffd", payload)
    assert " ".join(shown.split()) in hostile.text


def texts_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        value = [part for key, part in value.items() if key != "kind"]
    if isinstance(value, list):
        return set().union(*map(texts_of, value))
    return {value} if isinstance(value, str) else set()


def test_every_text_of_a_result_is_attacked() -> None:
    """Only what is checked where it is made may keep its text."""
    checked = {"add_remove", "clopper1934", "kairouz2015", "refuted"}
    assert texts_of(poisoned(full_audit(), "mark").to_dict()) == {"mark"} | checked


@pytest.mark.parametrize("kind", RESULTS)
def test_data_cannot_end_its_element(kind: str) -> None:
    for payload in PAYLOADS:
        scripts = Skeleton(page(poisoned(RESULTS[kind], payload))).scripts
        for name in ("result", "figures"):
            (text,) = scripts[name]
            assert text.isascii()
            assert not set(text) & set("<>&")
            json.loads(text)


@pytest.mark.parametrize("kind", RESULTS)
def test_the_page_holds_the_result(kind: str) -> None:
    (text,) = Skeleton(page(RESULTS[kind])).scripts["result"]
    assert from_json(text) == RESULTS[kind]
    assert "cut to what" not in page(RESULTS[kind])


def policy_of(text: str) -> dict[str, str]:
    (found,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = (rule.strip().partition(" ") for rule in html.unescape(found).split(";"))
    return {name: value for name, _, value in rules}


def sums(texts: list[str]) -> str:
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)


@pytest.mark.parametrize("kind", RESULTS)
def test_nothing_may_run_but_what_is_embedded(kind: str) -> None:
    text = page(RESULTS[kind])
    skeleton, policy = Skeleton(text), policy_of(text)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == sums(skeleton.scripts["script"])
    assert policy["style-src"] == sums(skeleton.scripts["style"])
    assert policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["img-src"] == "data: blob:"
    assert not any("unsafe" in rule for rule in policy.values())
    tags = [tag for tag, _ in skeleton.elements]
    assert tags.index("meta") < min(tags.index("script"), tags.index("style"))  # policy first


@pytest.mark.parametrize("kind", RESULTS)
def test_nothing_is_loaded_and_nothing_is_inline(kind: str) -> None:
    for tag, name, value in Skeleton(page(RESULTS[kind])).attributes:
        assert not name.startswith("on")
        assert name not in ("style", "src", "srcset", "action", "formaction", "xlink:href")
        assert (tag, value) == ("link", "data:,") or name != "href"
    assert "@import" not in page(RESULTS[kind])
    assert "url(" not in "".join(Skeleton(page(RESULTS[kind])).scripts["style"])


@pytest.mark.parametrize("kind", RESULTS)
def test_same_result_same_bytes(kind: str) -> None:
    assert page(RESULTS[kind]) == page(RESULTS[kind])


def test_ids_are_unique_and_references_to_them_resolve() -> None:
    attributes = Skeleton(page(full_group())).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for name in ("aria-labelledby", "aria-describedby", "for"):
        assert {value for _, n, value in attributes if n == name} <= set(ids)
    charts = [value for _, name, value in attributes if name == "data-chart"]
    assert charts == [str(i) for i in range(8)]  # every figure of every audit, in order


def test_the_first_screen_says_it_all() -> None:
    text = Skeleton(page(full_audit())).text.replace("\u00a0", " ")
    for part in (
        "refuted",
        "ε = 1 was promised, the attack proves ε ≥ 2.00 at δ = 1e-05.",
        "sees every gradient",
        "One has the record, the other does not; all else is the same.",
        "promised ε = 1",
        "not a valid bound",
        "for one record added or removed, batches: Poisson, computed by PLD",
        "1 of 8 units failed",
        "The run stopped early: 6 of 8 units were used.",
    ):
        assert part in text


def test_the_scale_says_what_is_ruled_out() -> None:
    text = Skeleton(page(an_audit())).text
    assert "ruled out" in text
    assert "true ε in here" not in text  # no room: the interval is short here
    assert "true ε in here" in Skeleton(page(an_audit(bound=a_bound(epsilon=0.4)))).text


def test_everything_needed_to_do_it_again_is_there() -> None:
    text = Skeleton(page(full_audit())).text
    source = full_audit().provenance
    for part in (source.command, source.plan, "epsilometer 0.1.0", *source.inputs[0]):
        assert part in text
    assert "Clopper, Pearson" in text  # what was used is cited
    assert "Dong, Roth, Su" in text  # and what the curves rest on
    assert "Ville" not in text
    assert "Assumes" in text
    assert "Permission is hereby granted" in page(full_audit())  # the chart library's licence


def test_a_group_is_compared_on_one_scale() -> None:
    text = Skeleton(page(full_group())).text
    assert "2 audits: 1 refuted, 1 no verdict." in text
    assert "nothing is concluded from the largest" in text
    assert "what each promised" in text


def test_figures_are_told_in_words_too() -> None:
    text = Skeleton(page(full_audit())).text.replace("\u00a0", " ")
    assert "At false positive rates of 1% the attack catches 50% of those inside" in text


@pytest.mark.parametrize(
    "result",
    [
        an_audit(claim=None),
        an_audit(claim=PrivacyClaim(epsilon=math.inf, delta=1e-5)),
        an_audit(bound=a_bound(epsilon=math.inf, threshold=math.inf)),
        an_audit(bound=a_bound(epsilon=0.0), claim=PrivacyClaim(epsilon=0.0, delta=1e-5)),
        an_audit(bound=a_bound(valid=False, caveats=("chosen at no cost",))),
        an_audit(evidence=some_evidence(growth=(), curves=())),
        an_audit(records=(RecordRisk(record="r", risk=math.inf, measure="m"),)),
        an_audit(bound=a_bound(method="a method nobody registered")),
        an_audit(provenance=a_provenance(units=3, used=2, failed=1), claim=None),
        audit_scores(ScoreCounts([0.0], [10, 90], [80, 20]), delta=1e-5),
        a_bound(epsilon=math.inf),
        a_bound(valid=False),
    ],
    ids=lambda result: "",
)
def test_odd_results_have_a_page(result: Result) -> None:
    text = page(result)
    assert from_json(Skeleton(text).scripts["result"][0]) == result
    assert "nan" not in re.findall(r'(?:x|x1|width)="([^"]*)"', text)
    assert 'width="-' not in text


def test_an_invalid_bound_is_marked_wherever_it_is() -> None:
    text = Skeleton(page(an_audit(bound=a_bound(valid=False)))).text
    assert "no verdict" in text
    assert text.count("not a valid bound") >= 3  # the sentence, the scale, the method
    for promise in ("the attack proves", "one-sided", "of audits", "ruled out", "true ε in here"):
        assert promise not in text


def many_records(count: int, letters: int = 12) -> tuple[RecordRisk, ...]:
    few = [
        RecordRisk(
            record=f"{i}<&\u20ac" * letters, risk=float(i), measure="PDTP", note="<" * letters
        )
        for i in range(1000)
    ]
    return tuple(few) * (count // 1000)


def test_a_million_records_fit() -> None:
    result = full_audit(records=many_records(10**6))
    text = page(result)
    assert len(text.encode()) <= LARGEST
    kept = from_json(Skeleton(text).scripts["result"][0])
    assert kept.records[0].risk == 999.0  # type: ignore[union-attr]
    assert re.search(r"The [\d,]+ riskiest of 1,000,000 records", Skeleton(text).text)
    assert "cut to what a page can hold" in Skeleton(text).text


def test_five_thousand_short_records_are_all_kept() -> None:
    records = tuple(RecordRisk(record=f"r{i}", risk=i, measure="m") for i in range(6000))
    text = page(full_audit(records=records))
    kept = from_json(Skeleton(text).scripts["result"][0]).records  # type: ignore[union-attr]
    assert {r.record for r in kept} == {f"r{i}" for i in range(1000, 6000)}
    assert "the other 1,000 stand in result.json alone" in Skeleton(text).text


def test_huge_texts_fit() -> None:
    result = poisoned(full_audit(records=many_records(5000, letters=5000)), "<&" * 10**6)
    assert len(page(result).encode()) <= LARGEST


def test_a_large_group_is_shown_without_figures_or_refused() -> None:
    audit = audit_scores(_scores(), delta=1e-5)
    forty = page(AuditGroup(subject="many", results=(audit,) * 40))
    assert len(forty.encode()) <= LARGEST
    assert "The figures are left out" in forty
    huge = replace(audit, provenance=a_provenance(inputs=(("scores.csv", "ab" * 32),) * 10_000))
    with pytest.raises(InvalidArgument, match="page of each audit"):
        page(AuditGroup(subject="many", results=(huge,) * 2))


def _scores() -> Any:
    import numpy as np

    from epsilometer import Scores

    rng = np.random.default_rng(0)
    return Scores(inside=rng.normal(1, 1, 2000), outside=rng.normal(0, 1, 2000))
