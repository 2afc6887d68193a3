"""Commands answer with 0 (ran), 1 (refuted) or 2 (bad call), and never with a traceback."""

import hashlib
import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import jsonschema
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from epsilometer import (
    AuditGroup,
    AuditResult,
    Best,
    Bonferroni,
    Fixed,
    HoldOut,
    RankGrid,
    Scores,
    from_json,
    json_schema,
    readers,
)
from epsilometer.accounting import pld
from epsilometer.audits.scores import audit_scores
from epsilometer.cli.main import main
from epsilometer.references import BIBLIOGRAPHY
from epsilometer.stats.estimators import REGISTRY
from tests import oracles
from tests.cli.calls import call, told
from tests.cli.test_classifier import people

SPREAD = oracles.even_normals(300)
SCORES = Scores(SPREAD + 3, SPREAD)  # proves an ε between 2 and 4
COMMANDS = [
    *(
        "check",
        "classifier",
        "completion",
        "demo",
        "doctor",
        "dpsgd",
        "estimate",
        "federated",
        "lint",
        "log",
        "methods",
        "posterior",
        "report",
        "reproduce",
        "resume",
        "selfcheck",
        "shuffle",
        "status",
    ),
]


def write_csv(path: Path) -> None:
    rows = [f"{score},1" for score in SCORES.inside] + [f"{score},0" for score in SCORES.outside]
    path.write_text("\n".join(["score,member", *rows]), "utf-8")


def write_parquet(path: Path) -> None:
    columns = {"inside": SCORES.inside, "outside": SCORES.outside}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write_npz(path: Path) -> None:
    np.savez(path, inside=SCORES.inside, outside=SCORES.outside)


@pytest.fixture
def scores_csv(tmp_path: Path) -> Path:
    write_csv(tmp_path / "scores.csv")
    return tmp_path / "scores.csv"


@pytest.mark.parametrize(
    ("kind", "write"), [("csv", write_csv), ("parquet", write_parquet), ("npz", write_npz)]
)
def test_estimate_on_a_file_is_the_audit_of_its_scores(
    kind: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / f"scores.{kind}"
    write(path)
    done = call("estimate", path, "--delta", "1e-5", "--json")
    assert done.exit_code == 0, done.output
    result = from_json(done.stdout)
    assert isinstance(result, AuditResult)
    said = result.provenance
    assert result == audit_scores(SCORES, delta=1e-5, subject=path.name, provenance=said)
    assert said.inputs == ((path.name, hashlib.sha256(path.read_bytes()).hexdigest()),)
    again = call(*shlex.split(said.command)[1:], "--json")
    assert again.stdout == done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "code", "verdict"),
    [
        ([], 0, "no claim"),
        (["--claim", "1"], 1, "refuted"),
        (["--claim", "0"], 1, "refuted"),
        (["--claim", "40"], 0, "not refuted"),
        (["--claim", "inf"], 0, "not refuted"),
        (["--claim", "1", "--rule", "best"], 0, "no verdict"),
        (["--claim", "1", "--method", "jeffreys"], 0, "no verdict"),
        (["--claim", "1", "--confidence", "0.99"], 1, "refuted"),
    ],
)
def test_only_a_refuted_claim_exits_with_1(
    options: list[str], code: int, verdict: str, scores_csv: Path
) -> None:
    arguments = ["estimate", scores_csv, "--delta", "1e-5", *options]
    as_json, as_text = call(*arguments, "--json"), call(*arguments)
    assert as_json.exit_code == as_text.exit_code == code
    plain = json.loads(as_json.stdout)
    jsonschema.validate(plain, json_schema())
    assert plain["verdict"] == verdict
    assert verdict == "no claim" or verdict.upper() in as_text.stdout


def test_estimate_for_people_fits_a_page_and_names_its_file(scores_csv: Path) -> None:
    done = call("estimate", scores_csv, "--delta", "1e-5")
    assert "scores.csv" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout  # no colours where no terminal is


@pytest.mark.parametrize("method", REGISTRY)
def test_every_method_can_be_asked_for(method: str, scores_csv: Path) -> None:
    done = call("estimate", scores_csv, "--delta", "1e-7", "--method", method, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bound"]["method"] == method


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("rank-grid", RankGrid()),
        ("rank-grid:2", RankGrid(2)),
        ("hold-out", HoldOut()),
        ("hold-out:0.5", HoldOut(0.5)),
        ("bonferroni", Bonferroni()),
        ("fixed:1.5", Fixed(1.5)),
        ("fixed:-2e-3", Fixed(-0.002)),
        ("best", Best()),
    ],
)
def test_every_rule_can_be_asked_for(text: str, rule: object, scores_csv: Path) -> None:
    done = call("estimate", scores_csv, "--delta", "1e-5", "--rule", text, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bound"]["threshold_rule"] == repr(rule)


def test_the_seed_of_a_split_is_taken(scores_csv: Path) -> None:
    texts = [
        call("estimate", scores_csv, "--delta", 1e-5, "--rule", "hold-out", "--seed", seed).stdout
        for seed in (0, 0, 1, 2, 3)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "found none"),
        ("score,member\n", "scores.csv"),
        ("score,member\nnan,1\n1,0\n", "±inf"),
        ("score,member\nhigh,1\n1,0\n", "'high'"),
        ("loss,label\n1,1\n1,0\n", "found 'loss', 'label'"),
        ("score,member\n1,1\n2,1\n", "only inside"),
        ("inside,outside\n1,\n2,\n", "outside"),
        ("score,member\n1,1\n2\n", "line 3"),
        ("score,member\n1,maybe\n2,0\n", "'maybe'"),
    ],
)
def test_bad_files_are_told_in_one_line(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text, "utf-8")
    line = told(call("estimate", path, "--delta", "1e-5"))
    assert part in line
    assert "scores.csv" in line


@pytest.mark.parametrize("name", ["nothing.csv", "nothing.npz", "folder.csv", "scores.txt"])
def test_files_that_are_not_there_are_told_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    assert name in told(call("estimate", tmp_path / name, "--delta", "1e-5"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b"\xff\xfescore"),
        ("x.parquet", b"PAR1 broken PAR1"),
        ("x.npz", b"PK broken"),
        ("x.npz", b""),
    ],
)
def test_damaged_files_are_told_in_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in told(call("estimate", tmp_path / name, "--delta", "1e-5"))


def test_mismatched_shapes_are_told_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", score=[1.0, 2.0], member=[1, 0, 1])
    assert "(2,) and (3,)" in told(call("estimate", tmp_path / "x.npz", "--delta", "1e-5"))


def test_a_huge_file_is_told_in_one_line(scores_csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LARGEST", 100)
    assert "ScoreCounts" in told(call("estimate", scores_csv, "--delta", "1e-5"))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--delta", "1.5"], "delta in [0, 1], got 1.5"),
        (["--delta", "-0.1"], "delta in [0, 1], got -0.1"),
        (["--delta", "nan"], "number for delta"),
        (["--delta", "small"], "--delta"),
        ([], "--delta"),
        (["--delta", "1e-5", "--confidence", "0"], "confidence in (0, 1)"),
        (["--delta", "1e-5", "--confidence", "1"], "confidence in (0, 1)"),
        (["--delta", "1e-5", "--confidence", "95"], "confidence in (0, 1), got 95.0"),
        (["--delta", "1e-5", "--claim", "-1"], "epsilon ≥ 0"),
        (["--delta", "1e-5", "--claim", "nan"], "number for epsilon"),
        (["--delta", "1e-5", "--method", "magic"], "clopper_pearson"),
        (["--delta", "0", "--method", "gdp"], "delta > 0"),
        (["--delta", "1e-5", "--method", "anytime", "--rule", "bonferroni"], "anytime"),
        (["--delta", "1e-5", "--seed", "-1"], "--seed"),
        (["--delta", "1e-5", "--seed", "x"], "--seed"),
        (["--delta", "1e-5", "--no-such-option"], "--no-such-option"),
    ],
)
def test_bad_options_are_told_in_one_line(options: list[str], part: str, scores_csv: Path) -> None:
    assert part in told(call("estimate", scores_csv, *options))


@pytest.mark.parametrize(
    "rule",
    [
        "magic",
        "",
        "rank-grid:1",
        "rank-grid:2.5",
        "rank-grid:two",
        "hold-out:0",
        "hold-out:1",
        "hold-out:nan",
        "fixed",
        "fixed:",
        "fixed:nan",
        "fixed:high",
        "best:1",
        "bonferroni:2",
        "RankGrid()",
    ],
)
def test_bad_rules_are_told_with_the_good_ones(rule: str, scores_csv: Path) -> None:
    line = told(call("estimate", scores_csv, "--delta", "1e-5", "--rule", rule))
    assert repr(rule) in line
    for name in ("rank-grid", "hold-out", "bonferroni", "fixed", "best"):
        assert name in line


def test_an_unknown_command_is_told_in_one_line() -> None:
    assert "magic" in told(call("magic"))


def test_methods_lists_every_method_and_what_it_cites() -> None:
    done = call("methods")
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    for name, method in REGISTRY.items():
        assert re.search(
            rf"^{name}\s+{'valid' if method.exact else 'NOT VALID'}$", done.stdout, re.M
        )
        assert method.guarantees in text
        assert method.assumes in text
        for key in method.cites:
            assert f"{key} {BIBLIOGRAPHY[key]}" in text


def test_selfcheck_is_right_and_says_so() -> None:
    done = call("selfcheck", "--runs", "50000")
    assert done.exit_code == 0, done.output
    assert "6 of 6 right." in done.stdout
    assert re.search(r"noise halved\s+broken.*\brefuted\s+right", done.stdout)
    assert re.search(r"Gaussian sum\s+sound.*not refuted\s+right", done.stdout)


def test_selfcheck_that_errs_exits_with_1() -> None:
    """Ten runs prove nothing, so the broken ones are spared."""
    done = call("selfcheck", "--runs", "10")
    assert done.exit_code == 1
    assert "WRONG" in done.stdout
    assert "3 of 6 right." in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["selfcheck", "--runs", "0"], ["demo", "--runs", "1"], ["demo", "--run", "/dev/null/x"]],
)
def test_bad_options_of_other_commands_are_told(arguments: list[str]) -> None:
    told(call(*arguments))


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(pld, "INTERVAL", 1e-3)  # calibrates the noise in a fifth of the time


@pytest.mark.usefixtures("small_demo")
def test_demo_writes_the_report_it_names(tmp_path: Path) -> None:
    directory = tmp_path / "demo run"
    done = call("demo", "--runs", "20", "--run", directory, "--engine", "in-process")
    assert done.exit_code == 0, done.output
    named = Path(done.stdout.splitlines()[-1].removeprefix("Report: "))
    assert named == directory / "report.html"
    assert named.read_text("utf-8").lstrip().startswith("<!doctype html>")
    text = (directory / "result.json").read_text("utf-8")
    jsonschema.validate(json.loads(text), json_schema())
    group = from_json(text)
    assert isinstance(group, AuditGroup)
    assert len(group.results) == 2
    for result in group.results:
        assert result.subject in done.stdout
        assert result.verdict.upper() in done.stdout


@pytest.mark.usefixtures("small_demo")
def test_demo_that_cannot_write_says_so() -> None:
    line = told(call("demo", "--runs", "2", "--run", "/dev/null/run", "--quiet"))
    assert "Expected to be able to write in '/dev/null/run'" in line


def test_the_examples_of_all_commands_run(
    tmp_path: Path, scores_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    estimated = call("estimate", scores_csv, "--delta", "1e-5", "--json")
    Path("audit.json").write_text(estimated.stdout, "utf-8")
    Path("train.py").touch()
    people(Path("people.csv"))
    written_first = ["demo", *(name for name in COMMANDS if name != "demo")]
    for name in written_first:
        done = call(*example(name))
        assert done.exit_code in (0, 1), done.output  # 1: refuted, as it should be
        assert done.stdout


def example(name: str) -> list[str]:
    """The arguments of the example in a command's help."""
    done = call(name, "--help")
    assert done.exit_code == 0
    (line,) = re.findall(r"^\s*Example: (.*)$", done.stdout, re.M)
    program, *arguments = shlex.split(line)
    assert program == "epsilometer"
    return arguments


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
    assert isinstance(found, click.Command)
    return found


def test_the_commands_are_these() -> None:
    assert main.list_commands(click.Context(main)) == COMMANDS  # type: ignore[attr-defined]
    listed = call("--help").stdout
    for name in COMMANDS:
        short = command(name).help.splitlines()[0]  # type: ignore[union-attr]
        assert re.search(rf"^  {name} ", listed, re.M)
        assert short in " ".join(listed.split())  # the list is not imported, so it could differ


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_that_parses(name: str) -> None:
    called, *arguments = example(name)
    assert called == name
    command(called).make_context(called, arguments)  # raises on options it does not have


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_the_exit_codes(option: str) -> None:
    assert "0 it ran, 1 a claim was refuted, 2 the call was wrong" in call(option).stdout


def test_the_version_is_that_of_the_package() -> None:
    assert importlib.metadata.version("epsilometer") in call("--version").stdout


def test_the_console_script_is_the_command() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="epsilometer")
    assert script.load() is main


@pytest.mark.parametrize(("claim", "code"), [("1", 1), ("40", 0), ("-1", 2)])
def test_the_installed_program_keeps_its_word(claim: str, code: int, scores_csv: Path) -> None:
    program = shutil.which("epsilometer", path=str(Path(sys.executable).parent))
    assert program
    call = [program, "estimate", scores_csv, "--delta", "1e-5", "--claim", claim, "--json"]
    done = subprocess.run(call, check=False, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 2:
        assert done.stderr.splitlines()[-1].startswith("Error: ")
    else:
        assert json.loads(done.stdout)["verdict"] == ("refuted" if code else "not refuted")
