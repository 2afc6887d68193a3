"""The site opens from a folder, without a server: its search finds pages, notebooks are shown."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from site_notebooks import as_markdown  # noqa: E402

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
SETTINGS = """site_name: a site
use_directory_urls: false
plugins: [search, offline]
extra: {polyfills: [javascripts/iframe-worker.js]}
theme: {font: false}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small site with two pages and all notebooks."""
    root = tmp_path_factory.mktemp("site")
    pages = root / "docs"
    (pages / "javascripts").mkdir(parents=True)
    (root / "mkdocs.yml").write_text(SETTINGS, "utf-8")
    (pages / "index.md").write_text("# Start\n\nNothing to see.\n", "utf-8")
    (pages / "other.md").write_text("# Elsewhere\n\nAbout **zebras** and records.\n", "utf-8")
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text("utf-8"))
        (pages / f"{path.stem}.md").write_text(as_markdown(notebook, name=path.name), "utf-8")
    script = ROOT / "docs/javascripts/iframe-worker.js"
    (pages / "javascripts/iframe-worker.js").write_bytes(script.read_bytes())
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "-f", root / "mkdocs.yml"], check=True
    )
    return root / "site"


def test_search_works_from_a_folder(browser: Any, folder: Path) -> None:
    page = browser.new_page()
    page.goto((folder / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("zebras")
    page.get_by_text("1 result").wait_for()
    page.get_by_text("Elsewhere").last.click()
    page.wait_for_url("**/other.html**")
    page.close()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_its_code_and_what_it_printed(
    path: Path, browser: Any, folder: Path
) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    title = "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")
    complaints: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((folder / f"{path.stem}.html").as_uri())
    assert page.locator("h1").first.inner_text().rstrip("¶") == title
    code = sum(cell["cell_type"] == "code" for cell in cells)
    assert code <= page.locator("pre").count() <= 2 * code + 5  # and what they printed
    assert page.locator(".output").count() > 0
    assert complaints == []
    page.close()
