"""The page of a trend: everything shown, nothing trusted, the same bytes."""

import json
import re
from pathlib import Path

import pytest

from epsilometer.cli.history_words import found, sparkline
from epsilometer.cli.trend_page import trend_page
from epsilometer.core.audit import Audit
from epsilometer.errors import InvalidArgument
from epsilometer.files.history.entries import list_entries
from epsilometer.files.history.trend import Trend, trends
from epsilometer.report.page import LARGEST
from tests.examples import RULES, a_bound, a_release, a_series, an_audit, computed

NOON = 1_750_000_000


def digits(epsilon: float) -> Audit:
    return an_audit(subject="digits", bound=a_bound(epsilon=epsilon))


def followed(*audits: Audit) -> tuple[Trend, ...]:
    entries = [
        entry
        for at, audit in enumerate(audits, start=1)
        for entry in list_entries(audit, path=f"v{at}/result.json", written=NOON + at)
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
    assert figures[0]["series"][1]["y"] == [1.0, 1.0]  # as claimed


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
        Trend(subject=f"s{n}", adversary="", delta=1e-5, entries=trend.entries * 300)
        for n in range(60)
    ]
    page = trend_page(many, title="many")
    assert len(page.encode()) <= LARGEST
    assert "shortened to the riskiest records" in page


def test_nothing_to_follow_is_refused() -> None:
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
    ("audit", "said"),
    [
        (an_audit(), "ε ≥ 2.00"),
        (an_audit(bound=a_bound(valid=False)), "ε ≥ 2.00, not valid"),
        (an_audit(estimates=(computed(4.0),)), "ε ≥ 4.00"),
        (a_release(), "TPR − FPR 0.20"),
        (a_release(findings=()), "–"),
    ],
)
def test_what_was_found_in_words(audit: Audit, said: str) -> None:
    (entry,) = list_entries(audit)
    assert found(entry) == said


def test_views_of_one_audit_are_followed_one_by_one() -> None:
    page = trend_page(followed(a_series(("once",)), a_series(("once",))), title="series")
    assert "2 audits followed over 4 results" in page
    assert page.count("<bdi>v1 #2</bdi>") == 1


def test_verdicts_are_those_of_the_audits() -> None:
    page = trend_page(followed(a_release(rules=RULES[1:]), digits(0.5)), title="runs")
    assert "cannot tell" in page
    assert "not refuted" in page
    assert "0 refuted or not to be released." in page


def test_the_template_is_packaged() -> None:
    import epsilometer.report

    assert (Path(epsilometer.report.__file__).parent / "templates" / "page.html").is_file()
