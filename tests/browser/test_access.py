"""Nobody is kept out: axe finds nothing, and the keyboard reaches everything."""

from collections.abc import Callable
from typing import get_args

import pytest

from epsilometer import AuditGroup, AuditResult, PrivacyClaim
from epsilometer.results import Verdict
from tests.browser.conftest import Opened
from tests.examples import a_bound, a_provenance, a_series, an_audit

Open = Callable[..., Opened]


def found(page) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    answer = Axe().run(page).response
    assert len(answer["passes"]) > 15  # it did look
    return [
        f"{found['impact']}: {found['id']} at {found['nodes'][0]['target']}"
        for found in answer["violations"]
    ]


@pytest.fixture(scope="module")
def every_verdict(group: AuditGroup) -> AuditGroup:
    failed = an_audit(
        claim=PrivacyClaim(epsilon=9.0, delta=1e-5),
        provenance=a_provenance(units=9, used=6, failed=2),
    )
    others = (failed, an_audit(bound=a_bound(valid=False)), an_audit(claim=None))
    every = AuditGroup(subject="all", results=(*group.results, *others))
    assert {audit.verdict for audit in every.results} == set(get_args(Verdict))
    return every


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, open_page: Open, every_verdict: AuditGroup) -> None:
    assert found(open_page(every_verdict, color_scheme=scheme).page) == []


def test_axe_finds_nothing_with_a_lone_bound(open_page: Open) -> None:
    assert found(open_page(a_bound()).page) == []


def test_axe_finds_nothing_with_audits_side_by_side(open_page: Open) -> None:
    assert found(open_page(a_series()).page) == []


def test_axe_finds_nothing_on_a_phone(open_page: Open, refuted: AuditResult) -> None:
    assert found(open_page(refuted, viewport={"width": 360, "height": 780}).page) == []


def test_every_chart_has_a_name_and_a_text(open_page: Open, refuted: AuditResult) -> None:
    page = open_page(refuted).page
    for chart in page.locator(".chart").all():
        assert chart.get_attribute("role") == "img"
        for attribute in ("aria-labelledby", "aria-describedby"):
            told = page.locator(f"#{chart.get_attribute(attribute)}")
            assert len(told.text_content()) > 5


def test_the_keyboard_sorts_the_table(open_page: Open, refuted: AuditResult) -> None:
    page = open_page(refuted).page
    button = page.locator("th", has_text="Group").get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator("th", has_text="Group").get_attribute("aria-sort") == "ascending"
    assert button.evaluate("button => document.activeElement === button")
