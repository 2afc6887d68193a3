"""The page of a release audit in a real browser: drawn, quiet, and open to all."""

from collections.abc import Callable

import pytest

from tests.browser.conftest import Opened
from tests.browser.test_access import found
from tests.browser.test_page import cells, ink
from tests.conftest import run_often
from tests.examples import a_release, a_rule

Open = Callable[..., Opened]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("outcome", run_often(["pass", "fail", "unclear"], ["fail"]))
def test_axe_finds_nothing(scheme: str, outcome: str, open_page: Open) -> None:
    audit = a_release(rules=(a_rule(outcome=outcome),))
    assert found(open_page(audit, color_scheme=scheme).page) == []


def test_axe_finds_nothing_on_a_phone_which_scrolls_one_way(open_page: Open) -> None:
    page = open_page(a_release(), viewport={"width": 360, "height": 780}).page
    assert found(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360


def test_records_are_low_on_a_phone_and_their_notes_begin_on_the_screen(open_page: Open) -> None:
    """The measured finding: rows of 240 px, and the note beyond the right edge."""
    page = open_page(a_release(), viewport={"width": 390, "height": 844}).page
    page.locator("label[for=engineer]").click()
    rows = page.locator(".records tbody tr")
    boxes = [rows.nth(place).bounding_box() for place in range(5)]
    assert max(box["height"] for box in boxes) < 110
    note = rows.first.locator("td").last.bounding_box()
    assert note["x"] + 100 < 390


def test_everything_is_drawn_and_nothing_complains(open_page: Open) -> None:
    opened = open_page(a_release())
    opened.page.wait_for_timeout(100)
    assert opened.complaints == []
    assert len(opened.requests) == 1
    drawn = ink(opened.page)
    assert len(drawn) == 9
    assert all(count > 1500 for count, _ in drawn)


def test_verdict_and_reasons_stand_on_the_first_screen(open_page: Open) -> None:
    page = open_page(a_release()).page
    for selector in (".hero .badge", ".hero h1", ".hero .reasons"):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] + box["height"] < 800


def test_records_are_sorted_and_searched(open_page: Open) -> None:
    page = open_page(a_release()).page
    page.locator("label[for=engineer]").click()
    rows = page.locator(".records tbody tr")
    assert rows.count() == 30
    page.get_by_label("Search").fill("27")
    assert rows.count() == 1
    assert cells(page, 1) == ["27"]
