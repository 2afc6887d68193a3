"""The page of a trend: everything shown, nothing trusted, the same bytes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from epsilometer.errors import InvalidArgument
from epsilometer.history.entries import entries_of, plain_result
from epsilometer.history.trend import trends
from epsilometer.report.frame import LARGEST
from epsilometer.report.history_words import found, sparkline
from epsilometer.report.trend_page import trend_page
from epsilometer.results import to_json
from tests.examples import a_bound, a_release, an_audit, an_estimate
from tests.history.folders import NOON, digits


def followed(*results: Any) -> Any:
    entries = [
        entry
        for at, result in enumerate(results, start=1)
        for entry in entries_of(
            plain_result(to_json(result)), path=f"v{at}/result.json", written=NOON + at
        )
    ]
    return trends(entries)


def test_the_page_shows_every_result_and_loads_nothing() -> None:
    results = (an_audit(), digits(0.5), digits(2.0), a_release(), a_release())
    page = trend_page(followed(*results), title="runs")
    assert "3 audits followed over 5 results: 4 refuted or not to be released." in page
    assert page.count("<tr>") == 3 + 5  # with heads
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    figures = json.loads(page.partition('id="figures">')[2].partition("</script>")[0])
    assert [figure["key"] for figure in figures] == ["trend-2", "trend-3"]  # one point is no trend
    assert re.findall(r'data-chart="(\d)"', page) == ["0", "1"]
    assert figures[0]["title"] == "ε by result"
    assert figures[0]["series"][0]["y"] == [0.5, 2.0]
    assert figures[0]["series"][1]["y"] == [1.0, 1.0]  # as promised


def test_the_same_results_give_the_same_bytes() -> None:
    assert trend_page(followed(digits(0.5)), title="a") == trend_page(
        followed(digits(0.5)), title="a"
    )


def test_hostile_names_stay_text() -> None:
    hostile = "<script>alert(1)</script>"
    page = trend_page(followed(an_audit(subject=hostile)), title=hostile)
    assert hostile not in page


def test_infinite_bounds_are_drawn_at_the_top() -> None:
    page = trend_page(followed(digits(1.0), digits(float("inf"))), title="a")
    figures = json.loads(page.partition('id="figures">')[2].partition("</script>")[0])
    assert figures[0]["series"][0]["y"][1] == figures[0]["y"]["high"]


def test_very_many_are_cut_to_what_a_page_holds() -> None:
    (trend,) = followed(digits(0.5))
    many = [
        type(trend)(subject=f"s{n}", adversary="", delta=1e-5, entries=trend.entries * 300)
        for n in range(60)
    ]
    page = trend_page(many, title="many")
    assert len(page.encode()) <= LARGEST
    assert "cut to what a page can hold" in page


def test_nothing_to_follow_is_told() -> None:
    with pytest.raises(InvalidArgument, match="at least one result"):
        trend_page((), title="none")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([0.0, 0.0], "▁▁"),
        ([0.0, 1.0, 2.0], "▁▅█"),
        ([None, float("inf"), 1.0], " ∞█"),
        ([-0.5, 1.0], "▁█"),
    ],
)
def test_sparklines(values: list[float | None], line: str) -> None:
    assert sparkline(values) == line


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (a_bound(), "ε ≥ 2.00"),
        (a_bound(valid=False), "ε ≥ 2.00, not valid"),
        (an_estimate(1.5), "ε = 1.50"),
        (a_release(), "TPR − FPR 0.20"),
        (a_release(attacks=()), "–"),
    ],
)
def test_what_was_found_in_words(result: Any, said: str) -> None:
    (entry,) = entries_of(plain_result(to_json(result)))
    assert found(entry) == said


def test_the_template_is_packaged() -> None:
    import epsilometer.report

    assert (Path(epsilometer.report.__file__).parent / "templates" / "trend.html").is_file()
