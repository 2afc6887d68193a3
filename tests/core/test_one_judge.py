"""Only the judge decides: no other module has a verdict to give."""

import ast
from pathlib import Path
from typing import get_args

import pytest

import epsilometer
from epsilometer.core import judge

SOURCE = Path(epsilometer.__file__).parent
JUDGE = "core/judge.py"
WORDS = {*judge.GRAVEST_FIRST, *get_args(judge.Conformance)}
# Words that name something else, with what that is.
NO_VERDICTS = {
    ("core/settings.py", "refuted"): "short name of UntilRefuted in settings and flags",
    ("_dispatch.py", "refuted"): "the same, where a file is read",
    ("core/bound.py", "violated"): "the type of a check's outcome, which the judge gives",
    ("core/bound.py", "conforms"): "the same",
    ("core/bound.py", "not tested"): "the same",
}


def find_verdict_words(source: str) -> list[tuple[int, str]]:
    """Return lines and words: string constants that are a verdict, but for docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.strip().lower() in WORDS
        and id(node) not in docstrings
    ]


def test_no_verdict_is_given_outside_the_judge() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {word!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) != JUDGE
        for line, word in find_verdict_words(path.read_text("utf-8"))
        if (name, word) not in NO_VERDICTS
    ]
    assert not found, "\n".join(found)


def test_the_judge_has_all_of_them() -> None:
    found = {word for _, word in find_verdict_words((SOURCE / JUDGE).read_text("utf-8"))}
    assert found == WORDS


@pytest.mark.parametrize(("name", "word"), NO_VERDICTS)
def test_every_exception_is_still_there(name: str, word: str) -> None:
    assert word in {word for _, word in find_verdict_words((SOURCE / name).read_text("utf-8"))}


@pytest.mark.parametrize(
    "planted",
    [
        # As check had it in 1.0.0rc1: a second verdict, from the bound alone.
        'def verdict(bound):\n    return "refuted" if bound.refutes(3.0) else "not refuted"',
        'VERDICTS = {True: "release", False: "do not release"}',
        'match audit.verdict:\n    case "cannot judge":\n        pass',
        'print("REFUTED")',
        'assert f(x) == "proved"',
        'outcome = "conforms" if e < 9000 else "violated"',
    ],
)
def test_a_second_verdict_would_be_found(planted: str) -> None:
    assert find_verdict_words(planted)


@pytest.mark.parametrize(
    "harmless",
    [
        '"""refuted"""',
        'def f():\n    """refuted"""',
        "from epsilometer.core import judge\njudge.REFUTED",
        'f"{count} refuted or not to be released"',
        '"ε ≥ 2 is proved"',
    ],
)
def test_words_about_verdicts_are_left_alone(harmless: str) -> None:
    assert not find_verdict_words(harmless)
