"""The documentation keeps up with the code."""

import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path
from typing import get_args

import click
import pytest

from epsilometer._dispatch import call_from_sections
from epsilometer.cli.main import COMMANDS, main
from epsilometer.core import judge
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.errors import UnreadableFile
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.thresholds import ThresholdRule

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("tests/*/[a-z]*.md"),
        *ROOT.glob("reproductions/*/README.md"),
    ]
)
PAPERS = {  # those the audits grew out of, and the keys they are cited by
    "andrew2023": "andrew2024",  # two versions of one paper
    "andrew2024": "andrew2024",
    "annamalai2025": "annamalai2025",
    "shibahara2021": "shibahara2021",
    "long2017": "long2017",
}
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)


# Reproductions: published numbers, papers, and defects of released software (reproductions/found).
REPRODUCTIONS = re.compile(r"docs/(reproductions\.|found\.|papers/)")


def test_documentation_is_short_enough_to_be_read() -> None:
    """Count as ``wc -w`` does, tables and code too, everything under docs/ but reproductions."""
    pages = {page.relative_to(ROOT).as_posix(): page for page in ROOT.glob("docs/**/*.md")}
    read = [page for name, page in pages.items() if not REPRODUCTIONS.match(name)]
    assert 40 < len(read) < len(pages)
    assert sum(len(page.read_text("utf-8").split()) for page in read) <= 35_000


def test_the_count_of_mutants_is_that_of_the_table() -> None:
    table = (ROOT / "tests/stats/mutants.md").read_text("utf-8")
    ((mutants, survived, rate),) = re.findall(
        r"^\| all \| (\d+) \| \d+ \| \d+ \| (\d+) \| \d+ \| (\S+) \|$", table, re.M
    )
    page = (ROOT / "docs/mutation.md").read_text("utf-8")
    assert f"**{rate} of {mutants} mutants were killed**, {survived} survived" in page
    kinds = map(int, re.findall(r" \| (\d+) \|$", page, re.M))
    assert sum(kinds) == int(survived)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            if "://" not in target:
                _check_link(page, target)


def _check_link(page: Path, target: str) -> None:
    name, _, anchor = target.partition("#")
    linked = page.parent / name if name else page
    assert linked.exists(), f"{page}: {target}"
    if anchor:
        headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}
        assert anchor in slugs, f"{page}: {target}"


def test_every_command_and_method_is_documented() -> None:
    assert [command for command in COMMANDS if f"epsilometer {command}" not in TEXT] == []
    assert [method for method in REGISTRY if f"`{method}`" not in TEXT] == []


def test_commands_have_the_options_they_are_shown_with() -> None:
    """Blocks and single words of code; what a page leaves out (…) may be missing."""
    # CHANGELOG.md tells of what is no more.
    text = "\n".join(page.read_text("utf-8") for page in PAGES if page.name != "CHANGELOG.md")
    called = re.findall(r"^    epsilometer (\S.*)$", text, re.MULTILINE)
    called += re.findall(r"(?<!`)`epsilometer ([^`]+)`", text)
    top = click.Context(main)
    for line in called:
        words = shlex.split(re.split(r" [#>|]|…", line)[0], comments=True)
        if not words or words[0].startswith("-") or not words[0].islower():
            continue
        command = main.get_command(top, words[0])  # type: ignore[attr-defined]
        assert command is not None, line
        while isinstance(command, click.Group) and words[1:]:  # as "runs list"
            words = words[1:]
            command = command.get_command(click.Context(command), words[0])
            assert command is not None, line
        try:
            command.make_context(words[0], words[1:])
        except (click.BadParameter, click.exceptions.Exit):
            pass  # files that are not here, arguments that the page does not repeat; help
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_every_extra_is_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for extra in project["optional-dependencies"]:
        assert f"`{extra}`" in TEXT, extra


def test_every_reference_is_cited_by_somebody() -> None:
    sources = "\n".join(
        path.read_text("utf-8")
        for folder in ("src", "reproductions")  # which have methods to compare with
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "references.py"
    )
    assert [key for key in BIBLIOGRAPHY if f'"{key}"' not in sources] == []


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", TEXT, re.MULTILINE))
    assert named
    assert named <= targets


def test_every_paper_has_a_page() -> None:
    pages = {page.stem for page in ROOT.glob("docs/papers/*.md")} - {"index"}
    assert pages == set(PAPERS)
    assert set(PAPERS.values()) <= set(BIBLIOGRAPHY)


@pytest.mark.parametrize("key", sorted(PAPERS))
def test_a_paper_names_what_is_there(key: str) -> None:
    """Whoever moves a function moves it on the page too."""
    packages = "|".join(path.parent.name for path in ROOT.glob("src/epsilometer/*/__init__.py"))
    text = (ROOT / f"docs/papers/{key}.md").read_text("utf-8")
    named = re.findall(rf"`((?:{packages})\.\w+(?:\.\w+)*)`", text)
    assert named
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(f"epsilometer.{module}"), attribute), name


def test_every_name_of_the_design_is_in_the_glossary() -> None:
    names = (ROOT / "docs/design.md").read_text("utf-8").partition("## Names")[2].partition("##")[0]
    rows = re.findall(r"^\| (`.*?) \|", names, re.MULTILINE)
    words = {word for row in rows for word in re.findall(r"`([^`]*)`", row)}
    assert {"scores", "claim", "subject", "finding", "bound", "canary", "unit"} <= words
    words |= {rule.__name__ for rule in get_args(ThresholdRule)}
    words |= set(judge.GRAVEST_FIRST)
    glossary = (ROOT / "docs/glossary.md").read_text("utf-8")
    assert [word for word in words if word not in glossary] == []


def test_toml_of_the_pages_describes_an_audit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Settings that a page shows are known to their subject; files they name may be missing."""
    monkeypatch.chdir(tmp_path)
    pages = "\n".join(page.read_text("utf-8") for page in PAGES)
    for text in re.findall(r"^```toml[^\n]*\n(.*?)^```", pages, re.M | re.S):
        sections = tomllib.loads(text)
        if {"tool", "project", "audits"} & sections.keys():
            continue  # of a pyproject.toml, or a policy
        try:
            call_from_sections(sections)
        except UnreadableFile as error:
            assert "found none" in str(error)  # noqa: PT017 - only some of the files are there


def test_every_verdict_and_exit_code_is_in_the_design() -> None:
    text = (ROOT / "docs/design.md").read_text("utf-8").partition("### The judge")[2]
    for verdict in judge.GRAVEST_FIRST:
        (code,) = re.findall(rf"^\| {verdict} \|.*\| (\d) \|$", text, re.MULTILINE)
        assert int(code) == judge.exit_code(verdict)
