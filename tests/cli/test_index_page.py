"""``runs list --html``: one file with every result, its verdict, its trend, and links."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.cli.calls import call
from tests.examples import a_release
from tests.files.history.folders import NOON, digits, put


class Reader(HTMLParser):
    """Collects the addresses of a page, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "a" and named.get("href"):
            self.links.append(named["href"] or "")
        if tag in ("script", "img", "link", "iframe"):
            self.loaded += [value for key in ("src", "href") if (value := named.get(key))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, epsilon in enumerate([0.5, 0.75, 2.0], start=1):
        put(tmp_path / f"v{number}" / "result.json", digits(epsilon), written=NOON + number)
        (tmp_path / f"v{number}" / "report.html").write_text("<p>a report", "utf-8")
    put(tmp_path / "release.json", a_release(), written=NOON + 10)
    return tmp_path


def make(folder: Path, *options: str) -> str:
    done = call("runs", "list", folder, "--html", folder / "index.html", *options)
    assert done.exit_code == 0, done.output
    return (folder / "index.html").read_text("utf-8")


def test_every_result_is_there_newest_first_and_linked(folder: Path) -> None:
    page = make(folder)
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    places = [text.index(f">{name}<") for name in ("release", "v3", "v2", "v1")]
    assert places == sorted(places)
    for verdict in ("refuted", "not refuted", "do not release"):
        assert verdict in text.lower()
    links = [link.removeprefix("./") for link in Reader(page).links if not link.startswith("#")]
    assert {"v1/report.html", "v2/report.html", "v3/report.html", "release.json"} <= set(links)
    assert all((folder / link).exists() for link in links)
    assert "4 audits: 2 refuted or not to be released, 0 cannot be judged." in text


def test_the_page_loads_nothing_and_stays_the_same(folder: Path) -> None:
    page = make(folder)
    assert [each for each in Reader(page).loaded if not each.startswith("data:")] == []
    assert make(folder) == page


def test_what_was_audited_again_has_a_trend(folder: Path) -> None:
    assert 'id="trends"' in make(folder)
    assert 'id="trends"' not in make(folder, "--subject", "nothing like it")


def test_what_has_no_result_is_named(folder: Path) -> None:
    put(folder / "torn" / "result.json", "{")
    put(folder / "begun" / "plan.json", "{}")
    page = make(folder)
    assert "Skipped torn/result.json" in page
    assert "Not finished: begun" in page


def test_hostile_names_are_text(folder: Path) -> None:
    put(folder / "<img src=x onerror=alert(1)>.json", digits(1.0))
    page = make(folder)
    assert "<img src=x" not in page
