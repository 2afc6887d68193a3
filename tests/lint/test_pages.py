"""Pages of rules: the example is found, the fix is not, and the command gives the ε it says."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from epsilometer.cli.main import main
from epsilometer.lint import RULES, Rule, lint_source
from tests.lint.pages import FOLDER, render_page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_page_is_made_of_its_rule(rule: Rule) -> None:
    assert (FOLDER / f"{rule.id}.md").read_text("utf-8") == render_page(rule)
    assert rule.page == f"docs/lint/{rule.id}.md"


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_the_example_is_found_and_the_fix_is_not(rule: Rule) -> None:
    wrong, right = lint_source(rule.wrong), lint_source(rule.right)
    assert [finding.rule_id for finding in wrong.findings] == [rule.id]
    assert right.findings == ()
    assert right.blind == ""  # it was understood, and nothing found


def test_there_is_a_page_per_rule_and_none_beside() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == sorted(RULES)


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
