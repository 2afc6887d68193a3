"""The site is whole: every public name and every command has its entry, and nothing is fetched."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocstrings import Inventory

import epsilometer
from epsilometer.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from site_pages import GROUPS, public_modules, public_names, write_pages  # noqa: E402

PACKAGES = sorted(path.parent.name for path in ROOT.glob("src/epsilometer/*/__init__.py"))


def build(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """As the Makefile does it."""
    (flags,) = set(re.findall(r"zensical build (.*)", (ROOT / "Makefile").read_text("utf-8")))
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", *flags.split(), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site() -> Path:
    write_pages(ROOT / "build" / "pages")
    done = build()
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "site"


@pytest.fixture(scope="module")
def entries(site: Path) -> set[str]:
    with (site / "objects.inv").open("rb") as inventory:
        return set(Inventory.parse_sphinx(inventory))


def test_every_package_but_the_command_line_has_a_page() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs/reference").rglob("*.md"))
    questions = [path.parent.name for path in ROOT.glob("src/epsilometer/audits/*/__init__.py")]
    assert len(questions) > 5
    shown = set(PACKAGES) - {"cli", "audits"} | {f"audits.{question}" for question in questions}
    for package in shown:
        assert f"<!-- modules of epsilometer.{package} -->" in pages, package


def test_every_public_name_is_in_one_group() -> None:
    grouped = [name for group in GROUPS.values() for name in group]
    assert sorted(grouped) == sorted(set(epsilometer.__all__) - {"__version__"})


@pytest.mark.slow  # of a whole build, which `make check` has too
def test_the_reference_lists_the_groups(site: Path) -> None:
    page = (site / "reference/python.html").read_text("utf-8")
    for task, names in GROUPS.items():
        _, heading, rest = page.partition(f">{task}<a")
        assert heading, task
        group = rest.partition("<h2")[0]
        assert [name for name in names if f">{name}</code>" not in group] == []


@pytest.mark.slow
def test_every_public_name_has_its_entry(entries: set[str]) -> None:
    names = {f"epsilometer.{home}.{name}" for name, home in epsilometer._MODULE.items()}
    shown = [f"epsilometer.{package}" for package in PACKAGES if package != "cli"]
    for package in ["epsilometer", *shown]:
        for module in public_modules(package):
            path = ROOT / "src" / module.replace(".", "/")
            source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            names |= {f"{module}.{name}" for name in public_names(source)}
    assert len(names) > 500  # they were found at all
    assert names - entries == set()


@pytest.mark.slow
def test_every_command_has_its_entry_with_an_example(site: Path) -> None:
    listing = (site / "reference/cli.html").read_text("utf-8")
    for command in COMMANDS:
        assert f'href="commands/{command}.html"' in listing
        page = (site / f"reference/commands/{command}.html").read_text("utf-8")
        _, heading, rest = page.partition(f'<h1 id="epsilometer-{command}">')
        assert heading, command
        assert f"epsilometer {command}" in rest.partition("Example: ")[2]


@pytest.mark.slow
def test_what_is_guaranteed_stands_in_the_reference(site: Path) -> None:
    page = (site / "reference/modules/stats.estimators.html").read_text("utf-8")
    _, heading, entry = page.partition('id="epsilometer.stats.estimators.epsilon_lower_bound"')
    assert heading
    entry = entry.partition("doc-section-title")[0]  # before its parameters
    assert "<p><strong>Guarantee:</strong> with the default method" in entry
    assert "<p><strong>Assumption:</strong> the scores were drawn as their design says" in entry
    assert "<strong>Guarantee:</strong> all deciding bounds" in (
        site / "reference/values.html"
    ).read_text("utf-8")


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=\"?(?:https?:)?//")
    pages = [*site.rglob("*.html")]
    assert len(pages) > 50
    assert [page.name for page in pages if loaded.search(page.read_text("utf-8"))] == []
    styles = [sheet for sheet in site.rglob("*.css") if "url(http" in sheet.read_text("utf-8")]
    assert styles == []


@pytest.mark.parametrize(
    ("link", "code"),
    [
        ("index.md#a-page", 0),
        ("index.md#nowhere", 1),
        ("nowhere.md", 1),
        ("/index.md", 1),
    ],
)
def test_a_link_that_leads_nowhere_fails(link: str, code: int, tmp_path: Path) -> None:
    settings = "site_name: a site\nuse_directory_urls: false\nnav: [index.md]\n"
    (tmp_path / "mkdocs.yml").write_text(settings, "utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(f"# A page\n\n[a link]({link})\n", "utf-8")
    assert build("--config-file", tmp_path / "mkdocs.yml").returncode == code
