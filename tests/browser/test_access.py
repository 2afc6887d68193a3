"""Nobody is kept out: axe finds nothing, and the keyboard reaches everything."""

from collections.abc import Callable

import pytest

from epsilometer.core.audit import Audit
from tests.browser.conftest import Opened
from tests.conftest import run_often
from tests.examples import AUDITS, a_series
from tests.report.hostile import full_views

Open = Callable[..., Opened]


def found(page) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    answer = Axe().run(page).response
    assert len(answer["passes"]) > 15  # it did look
    return [
        f"{found['impact']}: {found['id']} at {found['nodes'][0]['target']}"
        for found in answer["violations"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, open_page: Open, views: Audit) -> None:
    assert found(open_page(views, color_scheme=scheme).page) == []


@pytest.mark.parametrize("scheme", run_often(["light", "dark"], ["light"]))
@pytest.mark.parametrize("name", run_often(AUDITS, [*AUDITS][::4]))
def test_axe_finds_nothing_in_any_kind(scheme: str, name: str, open_page: Open) -> None:
    assert found(open_page(AUDITS[name], color_scheme=scheme).page) == []


def test_axe_finds_nothing_with_views_side_by_side_and_failed_units(open_page: Open) -> None:
    assert found(open_page(a_series()).page) == []
    assert found(open_page(full_views()).page) == []


def test_axe_finds_nothing_on_a_phone(open_page: Open, refuted: Audit) -> None:
    assert found(open_page(refuted, viewport={"width": 360, "height": 780}).page) == []


def test_every_chart_has_a_name_and_a_text(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    for chart in page.locator(".chart").all():
        assert chart.get_attribute("role") == "img"
        for attribute in ("aria-labelledby", "aria-describedby"):
            told = page.locator(f"#{chart.get_attribute(attribute)}")
            assert len(told.text_content()) > 5


def test_the_keyboard_sorts_the_table(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    button = page.locator("th", has_text="Measured as").get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator("th", has_text="Measured as").get_attribute("aria-sort") == "ascending"
    assert button.evaluate("button => document.activeElement === button")
