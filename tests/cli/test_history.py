"""``epsilometer runs``: what lies in a folder, two results compared, one followed."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from epsilometer.cli.main import main
from epsilometer.core import judge
from tests.examples import a_posterior, a_release, a_series
from tests.files.history.folders import NOON, digits, put


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, epsilon in enumerate([0.5, 0.75, 2.0], start=1):
        put(tmp_path / f"v{number}" / "result.json", digits(epsilon), written=NOON + number)
    return tmp_path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["runs", *map(str, arguments)])


def test_results_are_listed(folder: Path) -> None:
    done = call("list", folder)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines if "digits" in line] == ["v1", "v2", "v3"]
    assert "2025-06-15 15:06" in done.stdout
    assert re.search(r"digits +1 +ε ≥ 2\.00 +refuted +7", done.stdout)
    assert lines[-1] == "3 results."
    assert call("list", folder).stdout == done.stdout  # and by the index


def test_the_folder_is_this_one_by_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert call("list").stdout == call("list", folder).stdout
    assert call("list", "--refuted").stdout.splitlines()[-1] == "1 result."


def test_every_kind_is_listed_with_its_verdict(tmp_path: Path) -> None:
    made = (a_series(), a_release(), a_posterior())
    for number, result in enumerate(made):
        put(tmp_path / f"{number}.json", result)
    plain = json.loads(call("list", tmp_path, "--json").stdout)
    listed = {entry["path"]: entry["verdict"] for entry in plain["entries"]}
    assert listed == {f"{number}.json": audit.verdict for number, audit in enumerate(made)}
    assert set(listed.values()) & set(judge.BAD)
    assert "TPR − FPR 0.20" in " ".join(call("list", tmp_path).stdout.split())


def test_filters(folder: Path) -> None:
    put(folder / "other.json", a_release(), written=NOON + 10**6)
    kind = a_release().provenance.subject
    assert call("list", folder, "--kind", kind).stdout.splitlines()[-1] == "1 result."
    assert call("list", folder, "--subject", "v2").stdout.splitlines()[-1] == "1 result."
    assert call("list", folder, "--since", "2025-06-20").stdout.splitlines()[-1] == "1 result."
    assert call("list", folder, "--refuted", "--subject", "digits").stdout.count("refuted") == 1
    few = call("list", folder, "--last", "2").stdout
    assert few.splitlines()[-1] == "2 results of 4; all of them with --last 0."
    assert call("list", folder, "--last", "0").stdout.splitlines()[-1] == "4 results."
    assert call("list", folder, "--kind", "cake").stdout == "No results.\n"


def test_what_is_missing_is_told_on_standard_error(folder: Path) -> None:
    put(folder / "torn" / "result.json", "{")
    put(folder / "begun" / "plan.json", "{}")
    done = call("list", folder)
    assert done.exit_code == 0
    assert "Skipped torn/result.json: Expected an audit" in done.stderr
    assert f"1 run without a result yet: epsilometer runs status {folder / 'begun'}" in done.stderr
    plain = json.loads(call("list", folder, "--json").stdout)
    assert list(plain["unreadable"]) == ["torn/result.json"]
    assert plain["unfinished"] == ["begun"]


def test_hostile_words_do_no_harm(tmp_path: Path) -> None:
    (view,) = digits(1.0).findings
    words = "[red]\x1b[2J\nover"
    hostile = msgspec.structs.replace(view, subject=words)
    put(tmp_path / "a.json", msgspec.structs.replace(digits(1.0), findings=(hostile,)))
    done = call("list", tmp_path)
    assert "\x1b" not in done.stdout
    assert "[red]" in done.stdout


def test_two_results_are_compared(folder: Path) -> None:
    done = call("compare", folder / "v1", folder / "v3" / "result.json")
    assert done.exit_code == 0
    assert done.stdout.startswith("All settings are the same.")
    assert "B − A: +1.5. Both are lower bounds" in done.stdout
    put(folder / "v4" / "result.json", digits(0.5, n_in=99))
    assert re.search(r"n_in +1,?234 +99", call("compare", folder / "v1", folder / "v4").stdout)
    plain = json.loads(call("compare", folder / "v1", folder / "v4", "--json").stdout)
    assert plain["settings"] == [{"name": "n_in", "first": "1234", "second": "99"}]
    assert plain["audits"][0]["told_apart"] is False


def test_one_subject_is_followed(folder: Path) -> None:
    done = call("trend", folder, "--html", folder / "trend.html")
    assert done.exit_code == 0
    assert "ε ▃▄█" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if "2025-" in line] == [
        "v1",
        "v2",
        "v3",
    ]
    assert "a falling bound never proves more privacy" in done.stdout
    page = (folder / "trend.html").read_text("utf-8")
    assert "1 audit followed over 3 results: 1 refuted or not to be released." in page
    plain = json.loads(call("trend", folder, "--json", "--by", "name").stdout)
    assert [entry["epsilon"] for entry in plain[0]["entries"]] == [0.5, 0.75, 2.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "nowhere"], "Expected a folder of results"),
        (["compare", "nowhere", "nowhere"], "Expected an audit in 'nowhere', found none"),
        (["list", ".", "--since", "yesterday"], "Expected a date as 2026-01-31"),
        (["trend", ".", "--html", "t.html"], "at least one result to follow"),
    ],
)
def test_wrong_calls_are_told(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_help_names_the_other_commands() -> None:
    done = call("--help")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in ("list", "status", "resume", "compare", "trend"))
