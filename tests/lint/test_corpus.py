"""Two heaps of training code: nothing is found in the one, every mistake in the other."""

import re
from pathlib import Path

import pytest

from epsilometer.lint import RULES, lint

HERE = Path(__file__).parent
CLEAN = sorted((HERE / "clean").glob("*.py"))
GUILTY = sorted((HERE / "guilty").glob("*.py"))
ROOT = HERE.parents[1]


def expected(path: Path) -> list[tuple[str, int]]:
    lines = path.read_text("utf-8").splitlines()
    found = [(number, re.findall(r"# expect: (\S+)", line)) for number, line in enumerate(lines, 1)]
    return [(rule, number) for number, rules in found for rule in rules]


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_nothing_is_found_in_sound_code(path: Path) -> None:
    report = lint([path])
    assert report.findings == ()
    assert report.problems == ()


@pytest.mark.parametrize("path", GUILTY, ids=lambda path: path.stem)
def test_every_mistake_is_found_on_its_line(path: Path) -> None:
    report = lint([path])
    assert [(found.rule_id, found.line) for found in report.findings] == expected(path)
    assert report.problems == ()


def test_the_heaps_are_large_enough() -> None:
    assert len(CLEAN) >= 30
    assert len(GUILTY) >= 20
    rules = {rule for path in GUILTY for rule, _ in expected(path)}
    assert rules == set(RULES)


def test_this_project_is_clean() -> None:
    report = lint([ROOT], exclude=("tests/lint/guilty",))
    assert report.findings == ()
    assert report.problems == ()
    assert report.files > 100


def test_sound_code_is_searched_in_earnest() -> None:
    """Each clean file but the few without a library has what the checks react to."""
    words = re.compile(r"opacus|tensorflow_privacy|dp_accounting|jax_privacy|make_private")
    idle = [path.stem for path in CLEAN if not words.search(path.read_text("utf-8"))]
    assert set(idle) <= {"nonprivate_tf", "nonprivate_torch"}
