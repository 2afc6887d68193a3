"""Files that other services read: they parse, and say what the project says."""

import re
import tomllib
from pathlib import Path

import pytest

from epsilometer import __version__

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FILES = [
    *ROOT.glob(".github/**/*.yml"),
    *(ROOT / name for name in ("action.yml", "CITATION.cff", "conda/recipe.yaml")),
    ROOT / ".pre-commit-config.yaml",
]


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_yaml(path: Path) -> None:
    assert isinstance(read(path), dict)


def test_workflows_call_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for path in ROOT.glob(".github/workflows/*.yml"):
        for call in re.findall(r"run: make (.*)", path.read_text("utf-8")):
            assert set(call.split()) <= targets, (path.name, call)


def test_every_framework_is_tested_by_a_workflow() -> None:
    own = set(re.findall(r"(?m)^(test-[\w-]+):", (ROOT / "Makefile").read_text("utf-8")))
    steps = read(ROOT / ".github/workflows/tests.yml")["jobs"]["frameworks"]["steps"]
    assert {f"make {target}" for target in own} <= {step.get("run") for step in steps}
    for target in own:
        assert (ROOT / f"constraints-{target.removeprefix('test-')}.txt").exists()


def _name(words: str) -> str:
    return re.sub(r"[ _-]+", "-", words.strip().lower())


def _read_pins(environment: str) -> dict[str, str]:
    text = (ROOT / environment).read_text("utf-8")
    return {_name(name): pin for name, pin in re.findall(r"(?m)^([\w.-]+)==([\w.]+)", text)}


def test_versions_of_frameworks_are_those_that_are_tested() -> None:
    """What the table calls tested is pinned, and what it allows is what the extra allows."""
    table = (ROOT / "docs/integrations.md").read_text("utf-8")
    rows = [line.split("|")[2:6] for line in table.splitlines() if "`make test" in line]
    extras = PROJECT["project"]["optional-dependencies"]
    assert len(rows) > 7
    for extra, tested, allowed, targets in rows:
        pins: dict[str, str] = {}
        for target in re.findall(r"make test([\w-]*)", targets):
            pins |= _read_pins(f"constraints{target}.txt")
        found = re.findall(r"([A-Za-z][\w -]*?) (\d[\w.]*)", tested)
        named = {_name(name): version for name, version in found if name.strip() != "Python"}
        assert named, tested
        assert named == {name: pins[name] for name in named}
        (own, *_) = re.findall(r"`([a-z]+)`", extra) or [""]
        lower = {
            _name(name): bound
            for each in extras.get(own, [])
            for name, bound in re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)", each)
        }
        for name, bound in re.findall(r"([A-Za-z][\w -]*?) ≥ ([\d.]+)", allowed):
            assert lower.get(_name(name), bound) == bound, (own, name)


def test_every_supported_python_is_tested() -> None:
    named = set(re.findall(r":: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text("utf-8")))
    matrix = read(ROOT / ".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert set(matrix["python"]) == named == {"3.11", "3.12", "3.13", "3.14"}


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    recipe = read(ROOT / "conda/recipe.yaml")
    needed = {re.sub(r"[<>=].*", "", line) for line in PROJECT["project"]["dependencies"]}
    run = {line.split()[0] for line in recipe["requirements"]["run"]}
    assert run == needed | {"python"}
    assert recipe["context"]["version"] == __version__


def test_nobody_is_asked_for_root() -> None:
    assert "sudo" not in (ROOT / "Makefile").read_text("utf-8")
    assert "apt-get" not in (ROOT / "Makefile").read_text("utf-8")


def test_extras_are_what_all_has() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (every,) = extras["all"]
    own = set(re.findall(r"(?m)^test-([\w-]+):", (ROOT / "Makefile").read_text("utf-8")))
    # In environments of their own: `make test-jax` and so on.
    assert own >= {"huggingface", "jax", "lightning"}
    assert set(re.findall(r"[\w-]+", every)[1:]) == set(extras) - {"all"} - own
    assert "dev" not in extras
    assert set(PROJECT["dependency-groups"]) >= {"dev", "test", "lint", "docs"}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 120
