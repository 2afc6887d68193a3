"""What a reader sees, clicks and prints."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from epsilometer.core.audit import Audit
from epsilometer.core.findings import RecordRisk
from epsilometer.core.serialisation import from_json
from epsilometer.report.tones import COLOURS
from tests.browser.conftest import Opened
from tests.conftest import run_often
from tests.examples import AUDITS, a_series
from tests.report.hostile import PAYLOADS, full_views, poisoned

Open = Callable[..., Opened]

# Counts pixels that are not transparent, and their colours.
INK = """canvas => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] > 200) {
    count += 1;
    colours.add(`${pixels[i] >> 4},${pixels[i + 1] >> 4},${pixels[i + 2] >> 4}`);
  }
  return [count, colours.size];
}"""


# Whether a colour is there, to within rounding.
HAS = """(canvas, [red, green, blue]) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const far = (i) => Math.abs(pixels[i] - red) + Math.abs(pixels[i + 1] - green)
    + Math.abs(pixels[i + 2] - blue) + 255 - pixels[i + 3];
  for (let i = 0; i < pixels.length; i += 4) if (far(i) < 6) return true;
  return false;
}"""


# How high a column of the canvas has something bluish in it, as a share of top to bottom.
HEIGHT = """(canvas, [x, top, bottom]) => {
  const [left, first, rows] = [x, top, bottom - top].map((at) => at * devicePixelRatio);
  const pixels = canvas.getContext("2d").getImageData(left, first, 1, rows).data;
  const bluish = (i) => pixels[i + 3] > 60 && pixels[i + 2] > pixels[i + 1] + 20;
  for (let i = 0; i < pixels.length; i += 4) if (bluish(i)) return 1 - i / pixels.length;
  return 0;
}"""


def has_colour(page: Any, colour: str) -> bool:
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return page.locator(".chart canvas").first.evaluate(HAS, parts)


def ink(page: Any) -> list[list[int]]:
    return [canvas.evaluate(INK) for canvas in page.locator(".chart canvas").all()]


def cells(page: Any, column: int) -> list[str]:
    return page.locator(f".records tbody tr td:nth-child({column})").all_text_contents()


@pytest.mark.parametrize("kind", ["audit", "views", "computed"])
def test_nothing_complains_and_nothing_is_fetched(
    kind: str, open_page: Open, refuted: Audit, views: Audit
) -> None:
    opened = open_page({"audit": refuted, "views": views, "computed": AUDITS["computed"]}[kind])
    opened.page.wait_for_timeout(100)
    assert opened.complaints == []
    assert len(opened.requests) == 1
    assert opened.requests[0].startswith("file://")
    charts = {"audit": 4, "views": 5, "computed": 4}[kind]
    drawn = ink(opened.page)
    assert len(drawn) == charts
    assert all(count > 1500 and colours > 5 for count, colours in drawn)


def test_the_first_screen_has_verdict_scale_and_odds(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    for selector in (".hero .badge", ".hero h1", ".hero .scale", ".hero table"):
        box = page.locator(selector).first.bounding_box()
        assert box["y"] + box["height"] < 800


@pytest.mark.parametrize("name", ["refuted", "not refuted", "beyond reach", "computed", "series"])
def test_details_begin_within_two_screens(name: str, open_page: Open) -> None:
    page = open_page(AUDITS[name], reduced_motion="reduce").page
    assert page.locator("nav.contents").bounding_box()["y"] < 2 * 800
    page.get_by_role("link", name="Method", exact=True).click()
    assert page.url.endswith("#method")
    assert 0 <= page.locator("#method").bounding_box()["y"] < 200  # below the list of sections


def test_the_command_is_copied_at_a_click(open_page: Open) -> None:
    audit = AUDITS["refuted"]
    page = open_page(audit, permissions=["clipboard-read", "clipboard-write"]).page
    page.locator("#again .copy").click()
    assert page.evaluate("() => navigator.clipboard.readText()") == "epsilometer audit audit.json"
    assert page.locator("#again .copy").text_content() == "Copied"


def test_paper_takes_four_pages_at_most_with_the_derivation_open(
    open_page: Open, views: Audit
) -> None:
    page = open_page(views).page
    assert not page.get_by_text("Why the confidence holds").first.is_visible()
    page.emulate_media(media="print")
    assert page.get_by_text("Why the confidence holds").first.is_visible()
    pages = re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))
    assert len(pages) <= 4


def test_pointing_at_a_chart_shows_values(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    chart, legend = page.locator(".chart").first, page.locator(".legend").first
    assert legend.locator(".value").first.text_content() == ""
    chart.scroll_into_view_if_needed()
    chart.locator(".u-over").hover(position={"x": 200, "y": 60})
    values = legend.locator(".value").all_text_contents()
    assert all(re.search(r"\d", value) for value in values)
    assert " … " in values[0]  # the band has two


def test_views_side_by_side_are_bars_that_can_be_read(open_page: Open) -> None:
    opened = open_page(a_series())
    page = opened.page
    part = page.locator("section", has=page.get_by_role("heading", name="Side by side")).last
    assert part.locator(".chart").count() == 2
    for chart in part.locator(".chart").all():
        count, colours = chart.locator("canvas").evaluate(INK)
        assert count > 1500
        assert colours > 5
    # Where the middle of three stands, both sides of it say its values.
    chart, legend = part.locator(".chart").first, part.locator(".legend").first
    chart.scroll_into_view_if_needed()
    width = chart.locator(".u-over").bounding_box()["width"]
    for place in (0.42, 0.58):
        chart.locator(".u-over").hover(position={"x": place * width, "y": 60})
        assert legend.locator(".value").all_text_contents() == ["5", "2", "2.5"]
    with page.expect_download() as download:
        part.locator("button.png").last.click()
    assert download.value.suggested_filename == "views-views-2.png"
    # Figures of single views are still their own.
    page.locator("#view-scores-1").scroll_into_view_if_needed()
    names = page.locator("#view-scores-1 .legend-name").all_text_contents()
    assert names == ["without the record", "with the record"]
    assert opened.complaints == []


@pytest.mark.parametrize("width", [360, 1280])
def test_bars_stand_on_either_side_of_their_name(width: int, open_page: Open) -> None:
    """Read off the canvas: left of the middle of three the estimate, right of it the bound."""
    page = open_page(a_series(), viewport={"width": width, "height": 800}).page
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    chart = page.locator("#views-views-1 .chart")
    box = chart.locator(".u-over").bounding_box()
    outer = chart.locator("canvas").bounding_box()
    top = box["y"] - outer["y"]
    left, right = (
        chart.locator("canvas").evaluate(
            HEIGHT, [box["x"] - outer["x"] + place * box["width"], top, top + box["height"]]
        )
        for place in (0.43, 0.57)
    )
    scale = 1.08 * 8  # of the axis
    assert left * scale == pytest.approx(5, abs=0.2)
    assert right * scale == pytest.approx(2, abs=0.2)


def test_dragging_zooms_and_double_clicking_resets(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    chart = page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    before, reset = ink(page)[0], page.locator(".reset").first
    assert reset.is_hidden()
    box = chart.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 120, steps=4)
    page.mouse.up()
    assert reset.is_visible()
    assert ink(page)[0] != before
    chart.locator(".u-over").dblclick(position={"x": 50, "y": 50})
    assert reset.is_hidden()
    page.mouse.move(0, 0)
    assert ink(page)[0] == before


def test_a_curve_can_be_hidden(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    before = ink(page)[0][0]
    button = page.locator(".legend button", has_text="PLD").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert ink(page)[0][0] < before
    button.click()
    assert ink(page)[0][0] == before


def test_a_chart_is_saved_as_a_picture(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    with page.expect_download() as download:
        page.locator("button.png").first.click()
    assert download.value.suggested_filename == "view-tradeoff.png"
    with open(download.value.path(), "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_the_table_sorts(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    risk, rank = (page.locator("th", has_text=name) for name in ("Risk", "Rank"))
    assert rank.get_attribute("aria-sort") == "ascending"
    assert cells(page, 1) == sorted(cells(page, 1), key=int)
    every = sorted((r.risk for r in refuted.find(RecordRisk)), reverse=True)
    risk.get_by_role("button").click()
    shown = [float(text.replace("∞", "inf")) for text in cells(page, 3)]
    assert shown == every[:100]  # the infinite one first
    assert risk.get_attribute("aria-sort") == "descending"
    risk.get_by_role("button").click()
    assert [float(text.replace("∞", "inf")) for text in cells(page, 3)] == every[::-1][:100]
    assert risk.get_attribute("aria-sort") == "ascending"
    page.locator("th", has_text="Row").get_by_role("button").click()
    assert cells(page, 2) == [f"{i}" for i in range(100)]  # 2 before 10
    assert risk.get_attribute("aria-sort") is None


def test_the_table_filters_and_shows_more(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    status, more = page.locator(".status"), page.locator(".more")
    assert status.text_content() == "100 of 250 shown"
    more.click()
    more.click()
    assert status.text_content() == "250 of 250 shown"
    assert more.is_hidden()
    page.get_by_label("Search").fill("RARE")
    assert sorted(cells(page, 2)) == sorted(f"{i}" for i in range(0, 250, 50))
    page.get_by_label("Search").fill("nobody")
    assert cells(page, 1) == []
    assert status.text_content() == "0 of 0 shown"


def test_the_audit_can_be_downloaded(open_page: Open, views: Audit) -> None:
    page = open_page(views).page
    with page.expect_download() as download:
        page.locator("#download").click()
    assert download.value.suggested_filename == "audit.json"
    with open(download.value.path(), encoding="utf-8") as file:
        assert from_json(file.read()) == views


GROUND = "() => getComputedStyle(document.body).backgroundColor"


def test_dark_mode_follows_the_system_and_the_button(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted, color_scheme="dark").page
    dark, drawn_dark = page.evaluate(GROUND), page.locator(".chart canvas").first.screenshot()
    assert page.locator("#theme").text_content() == "Light"  # what it would do
    page.locator("#theme").click()
    assert page.locator("#theme").text_content() == "Dark"
    light = page.evaluate(GROUND)
    assert (dark, light) == ("rgb(15, 18, 22)", "rgb(246, 247, 249)")
    assert page.locator(".chart canvas").first.screenshot() != drawn_dark
    page.locator("#theme").click()
    assert page.evaluate(GROUND) == dark
    assert page.locator(".chart canvas").first.screenshot() == drawn_dark


def test_paper_is_light_and_has_no_buttons(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted, color_scheme="dark").page
    day, night = COLOURS["claim"]
    assert (has_colour(page, day), has_colour(page, night)) == (False, True)
    page.emulate_media(media="print")
    assert page.evaluate(GROUND) == "rgb(255, 255, 255)"
    for selector in ("#theme", "#download", "button.png", "input", ".more"):
        assert page.locator(selector).first.is_hidden()
    assert page.locator(".chart canvas").first.is_visible()
    assert (has_colour(page, day), has_colour(page, night)) == (True, False)
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 30_000


@pytest.mark.parametrize("width", [360, 820])
def test_a_small_screen_needs_no_sideways_scrolling(
    width: int, open_page: Open, views: Audit
) -> None:
    page = open_page(views, viewport={"width": width, "height": 780}).page
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    long = open_page(poisoned(full_views(), "x" * 500), viewport={"width": width, "height": 780})
    assert long.page.evaluate("() => document.documentElement.scrollWidth") == width


# Which tables are wider than their place, and which short cells take more than one line.
CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth).length"""
BROKEN = """() => [...document.querySelectorAll("td")]
  .filter((cell) => cell.innerText.length < 9 && !cell.innerText.includes(" "))
  .filter((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1;
  }).map((cell) => cell.innerText)"""


def test_tables_of_views_fit_a_desktop_and_numbers_stay_whole(
    open_page: Open, views: Audit
) -> None:
    assert open_page(views, viewport={"width": 1280, "height": 900}).page.evaluate(CUT) == 0
    phone = open_page(views, viewport={"width": 390, "height": 844}).page
    assert phone.evaluate(BROKEN) == []


def test_charts_follow_the_width(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted).page
    page.set_viewport_size({"width": 400, "height": 800})
    width = "() => document.querySelector('.uplot').offsetWidth"
    for _ in range(100):  # the policy forbids what wait_for_function does from its second look on
        if page.evaluate(width) < 400:
            break
        page.wait_for_timeout(50)
    assert page.evaluate(width) < 400
    assert page.evaluate("() => document.documentElement.scrollWidth") == 400


@pytest.mark.parametrize("payload", run_often(PAYLOADS, [*PAYLOADS][::3]))
def test_no_text_of_a_user_runs(payload: str, open_page: Open) -> None:
    opened = open_page(poisoned(full_views(), payload))
    opened.page.get_by_label("Search").first.fill(payload[:1])
    assert opened.page.locator(".records tbody td").first.text_content()  # the table shows it
    assert opened.page.evaluate("() => window.__xss") is None
    assert opened.complaints == []
    assert len(opened.requests) == 1
    assert opened.page.locator("iframe, main img, main script, [onerror], [onload]").count() == 0


def test_the_policy_stops_what_is_not_ours(open_page: Open, refuted: Audit) -> None:
    opened = open_page(refuted)
    opened.page.evaluate(
        """() => {
          const image = document.createElement("img");
          image.src = "https://outside.example/pixel.png";
          document.body.append(image);
          document.body.setAttribute("style", "outline: 9px solid red");
          fetch("https://outside.example/").catch(() => {});
        }"""
    )
    opened.page.wait_for_timeout(200)
    refused = [line for line in opened.complaints if "Content Security Policy" in line]
    assert len(refused) >= 3


def test_without_javascript_everything_is_said(open_page: Open, refuted: Audit) -> None:
    page = open_page(refuted, java_script_enabled=False).page
    assert page.locator(".hero .badge").first.is_visible()
    assert "Claim false: it leaks" in page.locator("h1").text_content()
    assert page.locator(".scale").first.is_visible()
    assert page.locator(".alt").count() == 4
    assert all(alt.is_visible() for alt in page.locator(".alt").all())
    assert page.locator(".chart").first.is_hidden()
    assert page.locator("#download").is_hidden()
    assert cells(page, 2)[0] == "77"  # the infinite risk first
    assert len(cells(page, 1)) == 20


TONES = {
    "refuted": "rgb(179, 38, 30)",
    "do not release": "rgb(179, 38, 30)",
    "beyond reach": "rgb(135, 82, 0)",
    "cannot tell": "rgb(135, 82, 0)",
    "not refuted": "rgb(84, 93, 105)",
    "no claim": "rgb(84, 93, 105)",
    "proved": "rgb(30, 107, 60)",
    "release": "rgb(30, 107, 60)",
}


@pytest.mark.parametrize("name", TONES)
def test_the_verdict_is_shown_in_its_tone(name: str, open_page: Open) -> None:
    page = open_page(AUDITS[name], color_scheme="light").page
    badge = page.locator("h1 .badge")
    assert badge.evaluate("badge => getComputedStyle(badge).color") == TONES[name]
    assert AUDITS[name].verdict in badge.text_content()
    assert page.locator("[data-verdict]").get_attribute("data-verdict") == AUDITS[name].verdict
