"""``epsilometer lint``: exit codes and the forms of its report."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from epsilometer import __version__
from epsilometer.cli.main import main
from epsilometer.lint import RULES
from epsilometer.zoo.linting import list_sources

MISTAKE = "from opacus import PrivacyEngine\nPrivacyEngine().make_private(poisson_sampling=False)\n"


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(main, ["lint", *map(str, arguments)])
    assert "Traceback" not in done.output
    return done


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a train.py").write_text(MISTAKE, "utf-8")
    Path("fine.py").write_text("x = 1\n", "utf-8")
    Path("broken.py").write_text("x = = 1\n", "utf-8")
    return tmp_path


@pytest.mark.parametrize("form", ["text", "json", "github", "junit", "sarif"])
@pytest.mark.usefixtures("folder")
def test_exit_codes_tell_found_from_fine_from_unread(form: str) -> None:
    assert run("a train.py", "--format", form).exit_code == 1
    assert run("fine.py", "--format", form).exit_code == 0
    assert run(".", "--format", form).exit_code == 1
    unread = run("broken.py", "fine.py", "--format", form)
    assert unread.exit_code == 2
    assert "broken.py" in unread.stdout
    assert unread.stderr.splitlines()[-1] == "Error: Could not check 'broken.py'."
    assert run(".", "--exclude", "a train.py", "--exclude", "broken.py").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "PATH"),
        (["nothing.py"], "'nothing.py', found none"),
        (["empty"], "Expected Python files in 'empty'"),
        ([".", "--format", "html"], "html"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_calls_are_told_in_one_line(arguments: list[str], part: str) -> None:
    Path("empty").mkdir()
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert part in done.stderr.splitlines()[-1]


@pytest.mark.usefixtures("folder")
def test_text_has_a_line_for_editors_and_the_command_in_one_piece() -> None:
    lines = run(".").stdout.splitlines()
    assert lines[0].startswith("a train.py:2:47: SHUF001 warning: poisson_sampling=False")
    assert [line[:8].strip() for line in lines[1:]] != []
    labels = re.findall(r"^  (\w+):", "\n".join(lines), re.M)
    assert labels == ["seen", "why", "do", "run", "more"]
    (command,) = [line for line in lines if line.startswith("  run:")]
    assert command.split()[1:3] == ["epsilometer", "shuffle"]
    assert command.endswith("--delta DELTA")
    assert "broken.py:1: not checked: Not Python" in lines[-4]
    assert lines[-3:] == [
        "understood:",
        "  a train.py: library opacus; sampler make_private: keeps the loader (line 2)",
        "3 files, 0 errors, 1 warning, 1 not checked.",
    ]


@pytest.mark.usefixtures("folder")
def test_json_has_the_documented_fields() -> None:
    plain = json.loads(run(".", "--format", "json").stdout)
    assert list(plain) == [
        *("format", "version", "files", "findings", "problems", "understood", "blind"),
    ]
    assert (plain["format"], plain["version"], plain["files"]) == ("epsilometer-lint", 1, 3)
    (finding,) = plain["findings"]
    page = (Path(__file__).parents[2] / "docs" / "lint.md").read_text("utf-8")
    named = {
        kind: re.findall(r"`(\w+)`", fields)
        for kind, fields in re.findall(r"^- (\w+)[,:] (.*)$", page, re.M)
    }
    assert list(finding) == named["findings"]
    (problem,) = plain["problems"]
    assert sorted(problem) == sorted(named["problems"])
    (understood,) = plain["understood"]
    assert list(understood) == named["understood"]
    assert finding["path"] == "a train.py"
    assert finding["run"].startswith("epsilometer shuffle --noise-multiplier SIGMA")
    assert finding["unknown"] == ["SIGMA", "N", "B", "EPOCHS", "DELTA"]


SARIF = {  # the parts of the schema of SARIF 2.1.0 that we use
    "log": {"$schema", "version", "runs"},
    "run": {"tool", "columnKind", "invocations", "results"},
    "driver": {"name", "version", "rules"},
    "rule": {
        *("id", "name", "shortDescription", "fullDescription", "help", "defaultConfiguration"),
    },
    "result": {"ruleId", "ruleIndex", "level", "message", "locations"},
    "location": {"physicalLocation", "logicalLocations"},
}


@pytest.mark.usefixtures("folder")
def test_sarif_has_the_structure_of_the_standard() -> None:
    for program in list_sources():
        for path, text in program.files:
            file = Path(program.id, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
    log = json.loads(run(".", "--format", "sarif").stdout)
    assert set(log) == SARIF["log"]
    assert log["version"] == "2.1.0"
    (ran,) = log["runs"]
    assert set(ran) == SARIF["run"]
    driver = ran["tool"]["driver"]
    assert set(driver) == SARIF["driver"]
    assert driver["version"] == __version__
    assert [rule["id"] for rule in driver["rules"]] == list(RULES)
    for rule in driver["rules"]:
        assert set(rule) == SARIF["rule"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning")
        assert all(rule[part]["text"] for part in ("shortDescription", "fullDescription", "help"))
    assert len(ran["results"]) > 20
    for result in ran["results"]:
        check_result(result, driver["rules"])
    (invocation,) = ran["invocations"]
    assert invocation["executionSuccessful"] is False
    notification, note = invocation["toolExecutionNotifications"]
    assert notification["level"] == "warning"
    assert (note["level"], note["message"]["text"][:25]) == ("note", "no sampler understood in ")
    assert (
        notification["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "broken.py"
    )


def check_result(result: dict, rules: list[dict]) -> None:  # type: ignore[type-arg]
    assert set(result) == SARIF["result"]
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["level"] in ("error", "warning")
    assert "epsilometer shuffle" in result["message"]["text"]
    (location,) = result["locations"]
    assert set(location) <= SARIF["location"]
    physical = location["physicalLocation"]
    assert " " not in physical["artifactLocation"]["uri"]
    assert physical["region"]["startLine"] >= 1
    assert physical["region"]["startColumn"] >= 1


def test_sarif_names_the_cell_of_a_notebook(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": MISTAKE}]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}), "utf-8")
    log = json.loads(run(tmp_path, "--format", "sarif").stdout)
    (location,) = log["runs"][0]["results"][0]["locations"]
    assert location["logicalLocations"] == [{"name": "cell 1, line 2"}]
    assert "region" not in location["physicalLocation"]
    assert "n.ipynb:cell 1:2:47: SHUF001" in run(tmp_path).stdout


@pytest.mark.usefixtures("folder")
def test_github_annotates_the_line() -> None:
    lines = run(".", "--format", "github").stdout.splitlines()
    assert lines[0].startswith("::warning file=a train.py,line=2,col=47,title=SHUF001::")
    assert "Run: epsilometer shuffle" in lines[0]
    assert lines[1].startswith("::warning file=broken.py::Not checked: Not Python")
    assert lines[-1] == "3 files, 0 errors, 1 warning, 1 not checked."
    assert run("fine.py", "--format", "github").stdout == (
        "1 file, 0 errors, 0 warnings. No known DP library: nothing checked.\n"
    )


@pytest.mark.usefixtures("folder")
def test_junit_has_a_failure_per_finding_and_an_error_per_file_unread() -> None:
    suite = ElementTree.fromstring(run(".", "--format", "junit").stdout)
    assert [suite.attrib[name] for name in ("tests", "failures", "errors")] == ["2", "1", "1"]
    found, unread = suite
    assert found.attrib["name"] == "SHUF001 a train.py:2:47"
    assert found.attrib["file"] == "a train.py"
    assert "epsilometer shuffle" in found[0].attrib["message"]
    assert (unread[0].tag, unread.attrib["file"]) == ("error", "broken.py")
    (fine,) = ElementTree.fromstring(run("fine.py", "--format", "junit").stdout)
    assert fine[0].tag == "skipped"


def test_github_names_the_cell_of_a_notebook(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": MISTAKE}]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}), "utf-8")
    line = run(tmp_path, "--format", "github").stdout.splitlines()[0]
    assert "line=" not in line  # those of a cell are not those of the file
    assert "::Cell 1, line 2: " in line


def test_names_in_no_encoding_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t\udcff.py"
    path.write_text(MISTAKE, "utf-8")
    for form in ("text", "json", "github", "junit", "sarif"):
        assert run(tmp_path, "--format", form).exit_code == 1


def test_the_help_names_the_exit_codes() -> None:
    text = " ".join(run("--help").stdout.split())
    assert "Exit code 1 if something is found" in text
    assert "the exit code is then 2, never 0" in text


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("form", ["text", "json", "github", "junit", "sarif"])
def test_it_is_never_silent_about_what_it_does_not_know(form: str) -> None:
    Path("other.py").write_text("import unheard_of_dp\nunheard_of_dp.train()\n", "utf-8")
    Path("blind.py").write_text("import opacus\nopacus.accountants.RDPAccountant()\n", "utf-8")
    for name, part in (("other.py", "known DP library: nothing checked"), ("blind.py", "sampler")):
        plain, strict = run(name, "--format", form), run(name, "--strict", "--format", form)
        assert (plain.exit_code, strict.exit_code) == (0, 4)
        assert part in plain.stdout
    assert run("a train.py", "--strict", "--format", form).exit_code == 1


def test_a_clean_project_passes_a_strict_check(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RULES["SHUF008"].right, "utf-8")
    assert run(tmp_path, "--strict").exit_code == 0
    assert run(tmp_path, "--strict", "--no-cache").exit_code == 0
