"""The page of predictions with uncertainty in a real browser: drawn, quiet, and open to all."""

from collections.abc import Callable

import pytest

from tests.browser.conftest import Opened
from tests.browser.test_access import found
from tests.browser.test_page import ink
from tests.examples import a_form, a_posterior

Open = Callable[..., Opened]
SEVEN = ("samples", "quantiles", "mean+std", "mean+std, to 0.01", "mean", "vector", "label")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, open_page: Open) -> None:
    assert found(open_page(a_posterior(), color_scheme=scheme).page) == []


def test_axe_finds_nothing_on_a_phone_which_scrolls_one_way(open_page: Open) -> None:
    page = open_page(a_posterior(), viewport={"width": 360, "height": 780}).page
    assert found(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360


def test_everything_is_drawn_and_nothing_complains(open_page: Open) -> None:
    opened = open_page(a_posterior(forms=tuple(map(a_form, SEVEN))))
    opened.page.wait_for_timeout(100)
    assert opened.complaints == []
    assert len(opened.requests) == 1
    drawn = ink(opened.page)
    assert len(drawn) == 6
    assert all(count > 1000 for count, _ in drawn)
