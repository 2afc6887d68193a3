"""What is said of rules: the example is found, the fix is not, and the command gives its ε."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from epsilometer.cli.main import main
from epsilometer.lint import RULES, Rule, lint_source

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_is_explained_with_its_example_and_its_fix(rule: Rule) -> None:
    done = CliRunner().invoke(main, ["lint", "--explain", rule.id.lower()])
    assert done.exit_code == 0
    assert done.stdout.startswith(f"# {rule.id}: {rule.name}\n")
    for part in (rule.wrong, rule.right, rule.why, rule.remedy, rule.answer):
        assert part.strip() in done.stdout
    assert re.search(rf"^train\.py:\d+:\d+: {rule.id} (error|warning): ", done.stdout, re.M)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_the_example_is_found_and_the_fix_is_not(rule: Rule) -> None:
    wrong, right = lint_source(rule.wrong), lint_source(rule.right)
    assert [finding.rule_id for finding in wrong.findings] == [rule.id]
    assert right.findings == ()
    assert right.blind == ""  # it was understood, and nothing found


def test_an_unknown_rule_is_refused() -> None:
    done = CliRunner().invoke(main, ["lint", "--explain", "SHUF999"])
    assert done.exit_code == 2
    assert "SHUF999" in done.stderr


def test_every_rule_has_its_page_on_the_site() -> None:
    named = re.findall(r": (lint/.+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert named == [rule.page for rule in RULES.values()]


@pytest.mark.slow
@pytest.mark.parametrize("rule_id", ["SHUF001", "SHUF004", "SHUF005", "SHUF009"])
def test_the_command_gives_the_epsilon_of_the_page(rule_id: str) -> None:
    (finding,) = lint_source(RULES[rule_id].wrong).findings
    words = shlex.split(finding.command)[1:]
    done = CliRunner().invoke(main, [*words, "--json"])
    said = json.loads(done.stdout)
    least, reported = re.findall(r"\d\.\d+", RULES[rule_id].answer)
    assert done.exit_code == 1
    assert float(least) <= said["epsilon"] < float(least) + 0.02
    assert float(reported) == pytest.approx(said["claim"]["epsilon"], abs=0.005)


def test_the_hook_names_a_command_that_exists() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    (entry,) = re.findall(r"^  entry: (.+)$", text, re.M)
    assert entry == "epsilometer lint"
    assert "pass_filenames: false" in text
    assert CliRunner().invoke(main, ["lint", "--help"]).exit_code == 0
