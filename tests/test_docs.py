"""The documentation keeps up with the code."""

import re
from pathlib import Path

import pytest

from epsilometer.cli.main import _COMMANDS
from epsilometer.references import BIBLIOGRAPHY
from epsilometer.stats.estimators import REGISTRY

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}
            assert anchor in slugs, target


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    assert f"epsilometer {command}" in TEXT


@pytest.mark.parametrize("method", REGISTRY)
def test_every_method_is_documented(method: str) -> None:
    assert f"`{method}`" in TEXT


def test_every_extra_is_documented() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for extra in project["optional-dependencies"]:
        assert f"`{extra}`" in TEXT, extra


def test_every_reference_is_cited_by_somebody() -> None:
    sources = "\n".join(
        path.read_text("utf-8")
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "references.py"
    )
    assert [key for key in BIBLIOGRAPHY if f'"{key}"' not in sources] == []


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^    )make ([a-z]+)", TEXT, re.MULTILINE))
    assert named
    assert named <= targets
