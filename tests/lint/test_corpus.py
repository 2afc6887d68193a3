"""Programs of the zoo: nothing is found in right ones, every mistake in wrong ones."""

import re
from pathlib import Path

import pytest

from epsilometer.lint import RULES, lint
from epsilometer.lint.run import lint_sources
from epsilometer.lint.sources import Source
from epsilometer.zoo.linting import (
    SourceProgram,
    describe_score,
    list_sources,
    render_scores,
    score_sources,
)

ROOT = Path(__file__).parents[2]
TUNED = list_sources("tuned")
HELD_OUT = list_sources("held_out")


@pytest.mark.parametrize("program", TUNED, ids=lambda program: program.id)
def test_rules_find_what_they_were_made_for(program: SourceProgram) -> None:
    report = lint_sources(Source(path, text) for path, text in program.files)
    found = {(each.rule_id, each.path, each.line) for each in report.findings}
    assert found == program.expected
    assert report.problems == ()


def test_programs_that_were_held_out_are_judged_as_well() -> None:
    score = score_sources(HELD_OUT)
    assert score.recall >= 0.9, score.missed
    assert score.precision >= 0.95, score.invented
    assert "recall" in describe_score(HELD_OUT, score)
    assert render_scores()[0].count("precision") == 2


def test_the_corpus_is_large_enough_and_ids_are_unique() -> None:
    every = (*TUNED, *HELD_OUT)
    assert sum(not program.right for program in every) >= 60
    assert sum(program.right for program in every) >= 60
    assert len({program.id for program in every}) == len(every)
    assert all((program.id < "EPS-1000") != program.right for program in every)
    assert {rule for program in every for rule, _, _ in program.expected} == set(RULES)
    assert all(program.files for program in every)


def test_a_score_counts_what_is_missed_and_what_is_invented() -> None:
    wrong, right = "engine.make_private(poisson_sampling=False)\n", "x = 1\n"
    made = [
        SourceProgram("EPS-0001", "missed", (("a.py", f"{right}# expect: SHUF001\n"),), "tuned"),
        SourceProgram("EPS-1001", "invented", (("a.py", wrong),), "tuned"),
        SourceProgram(
            "EPS-0002", "found", (("a.py", wrong[:-1] + "  # expect: SHUF001"),), "tuned"
        ),
    ]
    score = score_sources(made)
    assert (len(score.found), len(score.missed), len(score.invented)) == (1, 1, 1)
    assert (score.recall, score.precision) == (0.5, 0.5)


@pytest.mark.slow
def test_this_project_is_clean() -> None:
    folders = [ROOT / name for name in ("src", "examples", "docs", "benchmarks", "reproductions")]
    report = lint(folders, exclude=("src/epsilometer/zoo",))
    assert report.findings == ()
    assert report.problems == ()
    assert report.files > 100


def test_right_programs_are_searched_in_earnest() -> None:
    """Each right program but the few without a library has what the checks react to."""
    words = re.compile(
        r"opacus|tensorflow_privacy|dp_accounting|jax_privacy|make_private|PrivacyEngine"
    )
    idle = [each for each in (*TUNED, *HELD_OUT) if each.right and not words.search(each.source)]
    assert len(idle) <= 8
