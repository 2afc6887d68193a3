"""Commands answer with the code of their verdict, or 2 (bad call), never with a traceback."""

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
from typing import get_args

import click
import jsonschema
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from epsilometer import Claim, Scores, audit, json_schema, load
from epsilometer.cli.main import COMMANDS, HEADINGS, main
from epsilometer.cli.options import RULE
from epsilometer.core import judge
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.core.serialisation import from_json
from epsilometer.core.settings import CHOICES
from epsilometer.files import score_files
from epsilometer.rules import (
    AllRanks,
    Best,
    Bonferroni,
    Fixed,
    HoldOut,
    Published,
    RankGrid,
    RankSum,
)
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.thresholds import ThresholdRule
from tests import oracles
from tests.cli.calls import call, told
from tests.cli.described import check_replay
from tests.cli.test_classifier import people
from tests.conftest import run_often

SPREAD = oracles.even_normals(300)
# Proves an ε between 2 and 4. In no order: pairs whose scores are sorted are no pairs.
SCORES = Scores(*(np.random.default_rng(0).permutation(SPREAD + shift) for shift in (3, 0)))
RUNS = ("list", "status", "resume", "verify", "compare", "trend")


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
    found = from_json(done.stdout)
    said = found.provenance
    assert found.findings == audit(score_files.read_scores(path), delta=1e-5).findings
    assert found.views[0].bound == audit(SCORES, delta=1e-5).bounds[0]
    assert found.subject == path.name
    assert said.shapes == (("inside", "300"), ("outside", "300"))
    assert hashlib.sha256(path.read_bytes()).hexdigest() not in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "code", "verdict"),
    [
        ([], 0, judge.NO_CLAIM),
        (["--claim", "1"], 1, judge.REFUTED),
        (["--claim", "0"], 1, judge.REFUTED),
        (["--claim", "4"], 0, judge.NOT_REFUTED),
        (["--claim", "40"], 4, judge.CANNOT_JUDGE),
        (["--claim", "1", "--rule", "best"], 4, judge.CANNOT_JUDGE),
        (["--claim", "1", "--method", "jeffreys"], 4, judge.CANNOT_JUDGE),
        (["--claim", "1", "--confidence", "0.99"], 1, judge.REFUTED),
    ],
)
def test_the_verdict_decides_the_exit_code(
    options: list[str], code: int, verdict: str, scores_csv: Path
) -> None:
    arguments = ["estimate", scores_csv, "--delta", "1e-5", *options]
    as_json, as_text, quiet = (call(*arguments, *form) for form in (["--json"], [], ["--quiet"]))
    assert as_json.exit_code == as_text.exit_code == quiet.exit_code == code
    plain = json.loads(as_json.stdout)
    jsonschema.validate(plain, json_schema())
    assert plain["verdict"] == verdict
    assert as_text.stdout.startswith(f"{verdict.upper()}: ")
    assert quiet.stdout.startswith(f"{verdict.upper()}: ")
    assert len(quiet.stdout.splitlines()) == 1
    assert as_text.stdout.startswith(quiet.stdout)  # not wrapped where nothing is as wide as it
    assert quiet.stderr == ""


def test_a_claim_is_kept_to_its_last_digit(scores_csv: Path, tmp_path: Path) -> None:
    """Stored as it is shown, with ``:g``, it could get another verdict when it is run again."""
    proved = audit(SCORES, delta=1e-5).epsilon
    for claim, verdict in ((proved - 1e-9, judge.REFUTED), (proved, judge.NOT_REFUTED)):
        assert f"{claim:g}" == f"{proved:g}"
        done = call("estimate", scores_csv, "--delta", "1e-5", "--claim", repr(claim), "--json")
        found = from_json(done.stdout)
        assert found.claim is not None
        assert (found.claim.epsilon, found.verdict) == (claim, verdict)
        file = tmp_path / "audit.json"
        file.write_text(done.stdout, "utf-8")
        check_replay(file, "--data", scores_csv.parent)


def test_a_file_may_hold_all_settings(scores_csv: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(
        f'claim = 3.195138\n[scores]\nmethod = "joint_beta"\ntitle = "mine"\n'
        f'source = {{type = "score-file", path = "{scores_csv}"}}\n[audit]\ndelta = 1e-5\n',
        "utf-8",
    )
    done = call("estimate", "--config", file, "--json")
    found = from_json(done.stdout)
    assert (found.subject, found.bounds[0].method) == ("mine", "joint_beta")
    assert found.claim == Claim(3.195138, delta=1e-5)
    assert call("audit", file, "--json").stdout == done.stdout
    for arguments in ([], [scores_csv, "--config", file]):
        assert "Expected FILE or --config" in told(call("estimate", *arguments))


def test_a_fault_of_ours_is_exit_code_3(scores_csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("epsilometer.cli.audit.run_call", fail)
    done = call("estimate", scores_csv, "--delta", "1e-5")
    assert done.exit_code == 3
    assert "ZeroDivisionError" in done.stderr


def test_explain_says_how_the_number_came_about(scores_csv: Path) -> None:
    plain = call("estimate", scores_csv, "--delta", "1e-5", "--explain")
    assert "Kairouz" in plain.stdout
    aside = call("estimate", scores_csv, "--delta", "1e-5", "--explain", "--json")
    json.loads(aside.stdout)
    assert "Kairouz" in aside.stderr


def test_out_keeps_the_result_and_its_report(scores_csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = call("estimate", scores_csv, "--delta", "1e-5", "--out", run, "--json")
    assert (run / "result.json").read_text("utf-8") == done.stdout
    assert (run / "report.html").read_text("utf-8").lstrip().startswith("<!doctype html>")


def test_estimate_for_people_fits_a_page_and_names_its_file(scores_csv: Path) -> None:
    brief = call("estimate", scores_csv, "--delta", "1e-5").stdout
    assert len(brief.splitlines()) <= 4  # the last one may be folded
    assert brief.splitlines()[0].startswith("NO CLAIM: ")
    done = call("estimate", scores_csv, "--delta", "1e-5", "-v")
    assert "scores.csv" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout  # no colours where no terminal is


def test_a_design_is_stated_by_an_option_or_by_the_file(scores_csv: Path, tmp_path: Path) -> None:
    said = "Design: canaries of one run, each included by its own fair coin toss."
    by_option = call("estimate", scores_csv, "--delta", "1e-5", "--design", "coins", "--quiet")
    lines = scores_csv.read_text("utf-8").splitlines()
    stated = tmp_path / "stated.csv"
    head, *rows = lines
    stated.write_text("\n".join([f"{head},design", *(f"{row},coins" for row in rows)]), "utf-8")
    by_file = call("estimate", stated, "--delta", "1e-5", "--quiet")
    assert by_file.output == by_option.output
    assert said in by_file.output
    plain = call("estimate", scores_csv, "--delta", "1e-5", "--quiet")
    assert "Design: independent runs, one score each." in plain.output
    against = call("estimate", stated, "--delta", "1e-5", "--design", "runs")
    assert against.exit_code == 2
    assert "design as the file states it, 'coins', got 'runs'" in against.output
    config = tmp_path / "scores.toml"
    config.write_text(
        f'[scores]\ndesign = "coins"\ninclusion = 0.1\nsource = {{type = "score-file", '
        f"path = '{scores_csv}'}}\n[audit]\ndelta = 1e-5\n",
        "utf-8",
    )
    unfair = call("audit", config)
    assert unfair.exit_code == 2
    assert "Expected about 60 of 600 canaries inside" in unfair.output


@pytest.mark.parametrize("method", REGISTRY)
def test_every_method_can_be_asked_for(method: str, scores_csv: Path) -> None:
    asked = "--method", method, "--design", REGISTRY[method].designs[0]
    done = call("estimate", scores_csv, "--delta", "1e-7", *asked, "--json")
    assert done.exit_code == 0, done.output
    assert from_json(done.stdout).bounds[0].method == method


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
        ("all-ranks", AllRanks()),
        ("rank-sum", RankSum()),
        ("published", Published()),
    ],
)
def test_every_rule_can_be_asked_for(text: str, rule: object, scores_csv: Path) -> None:
    method = ["--method", "gdp"] if isinstance(rule, RankSum) else []
    done = call("estimate", scores_csv, "--delta", "1e-5", "--rule", text, *method, "--json")
    assert done.exit_code == 0, done.output
    found = from_json(done.stdout)
    assert found.bounds[0].threshold_rule == repr(rule)
    assert found.provenance.settings["rule"]["type"] == type(rule).__name__


def test_no_rule_is_missing_from_the_option() -> None:
    names = {kind: name for name, kind in CHOICES.items() if kind in get_args(ThresholdRule)}
    assert set(names) == set(get_args(ThresholdRule))
    assert {shown.partition("[")[0].partition(":")[0] for shown in RULE.shown} == set(
        names.values()
    )


def test_help_names_no_rule_that_is_not_the_default() -> None:
    text = " ".join(call("estimate", "--help").stdout.split())
    assert "Choose thresholds by this rule. [default: the method's own]" in text


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
        ("score,member\nhigh,1\n1,0\n", "row 1 has something else"),
        ("loss,label\n1,1\n1,0\n", "found 'loss', 'label'"),
        ("score,member\n1,1\n2,1\n", "only inside"),
        ("inside,outside\n1,\n2,\n", "outside"),
        ("score,member\n1,1\n2\n", "line 3"),
        ("score,member\n1,maybe\n2,0\n", "row 1 of the data has another value"),
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
    monkeypatch.setattr("epsilometer.files.readers.LARGEST", 100)
    assert "ScoreCounts" in told(call("estimate", scores_csv, "--delta", "1e-5"))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--delta", "1.5"], "delta in [0, 1], got 1.5"),
        (["--delta", "-0.1"], "delta in [0, 1], got -0.1"),
        (["--delta", "nan"], "number for delta"),
        (["--delta", "1"], "delta below 1"),
        (["--delta", "small"], "--delta"),
        ([], "--delta"),
        (["--delta", "1e-5", "--confidence", "0"], "confidence in (0, 1)"),
        (["--delta", "1e-5", "--confidence", "1"], "confidence in (0, 1)"),
        (["--delta", "1e-5", "--confidence", "95"], "confidence in (0, 1), got 95.0"),
        (["--delta", "1e-5", "--claim", "-1"], "epsilon ≥ 0"),
        (["--delta", "1e-5", "--claim", "nan"], "number for epsilon"),
        (["--delta", "1e-5", "--claim", "inf"], "finite epsilon"),
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


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("estimte", "'estimate'"),
        ("classifer", "'classifier'"),
        ("resume", "'runs resume'"),
        ("lst", "'runs list'"),
        ("run", "'runs'"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(typed: str, meant: str) -> None:
    assert told(call(typed)) == f"Error: No such command {typed!r}. Did you mean {meant}?"


def test_an_unknown_command_is_told_where_all_are_listed() -> None:
    assert told(call("qqq")) == "Error: No such command 'qqq'. See: epsilometer --help"


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
    rows = json.loads(call("selfcheck", "--runs", "50000", "--json").stdout)
    assert [row["right"] for row in rows] == [True] * 6
    assert {row["sound"] for row in rows if row["verdict"] == judge.REFUTED} == {False}


def test_selfcheck_that_errs_exits_with_1() -> None:
    """Ten runs prove nothing, so the broken ones are spared."""
    done = call("selfcheck", "--runs", "10")
    assert done.exit_code == 1
    assert "WRONG" in done.stdout
    assert "3 of 6 right." in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["selfcheck", "--runs", "0"], ["demo", "--runs", "1"], ["demo", "--out", "/dev/null/x"]],
)
def test_bad_options_of_other_commands_are_told(arguments: list[str]) -> None:
    told(call(*arguments))


@pytest.fixture
def small_demo() -> None:
    pytest.importorskip("sklearn")


@pytest.mark.usefixtures("small_demo")
def test_demo_writes_the_report_it_names(tmp_path: Path) -> None:
    directory = tmp_path / "demo run"
    done = call("demo", "--runs", "20", "--out", directory, "--engine", "in-process", "-v")
    assert done.exit_code == 0, done.output
    named = Path(done.stdout.splitlines()[-1].removeprefix("Report: "))
    assert named == directory / "report.html"
    assert named.read_text("utf-8").lstrip().startswith("<!doctype html>")
    text = (directory / "result.json").read_text("utf-8")
    jsonschema.validate(json.loads(text), json_schema())
    found = load(directory)
    assert len(found.views) == 2
    for program in ("as claimed", "with √σ"):
        assert program in done.stdout
    assert done.stdout.startswith(found.verdict.upper())


@pytest.mark.usefixtures("small_demo")
def test_demo_exits_with_0_although_its_claim_is_refuted(tmp_path: Path) -> None:
    options = ("--runs", "1000", "--out", tmp_path / "run", "--engine", "in-process", "--quiet")
    done = call("demo", *options)
    assert done.stdout.startswith("REFUTED: ε = 3 was claimed")
    assert done.exit_code == 0
    assert load(tmp_path / "run").exit_code == 1
    assert call("runs", "resume", tmp_path / "run", "--quiet").exit_code == 1


@pytest.mark.usefixtures("small_demo")
def test_demo_that_cannot_write_says_so() -> None:
    line = told(call("demo", "--runs", "2", "--out", "/dev/null/run", "--quiet"))
    assert "Expected to be able to write in '/dev/null/run'" in line


# Examples of several seconds, of commands that have tests of their own.
LONG = ("shuffle", "dpsgd", "federated", "posterior", "doctor", "zoo", "ui")


def test_the_examples_of_all_commands_run(
    tmp_path: Path, scores_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    estimated = call("estimate", scores_csv, "--delta", "1e-5", "--json")
    Path("audit.json").write_text(estimated.stdout, "utf-8")
    Path("train.py").touch()
    people(Path("people.csv"))
    sizes = np.random.default_rng(0).integers(40, 200, size=80)
    rows = [f"{size},{1 + size // 40},{2500 * size}" for size in sizes]
    Path("homes.csv").write_text("\n".join(["size,rooms,price", *rows]) + "\n", "utf-8")
    for name in ["demo", *(name for name in COMMANDS if name not in ("demo", "runs", *LONG))]:
        done = call(*example(name))
        assert done.exit_code in (0, 1, 4), done.output  # verdicts, as they should be
        assert done.stdout
    for name in RUNS:
        if name != "compare":  # of two runs that are not there
            assert call(*example("runs", name)).exit_code in (0, 1), name


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_long_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*example(name))
    assert done.exit_code in (0, 1), done.output
    assert done.stdout


def example(*names: str) -> list[str]:
    """The arguments of the example in a command's help."""
    done = call(*names, "--help")
    assert done.exit_code == 0
    (line,) = re.findall(r"^\s*Example: (.*)$", done.stdout, re.M)
    program, *arguments = shlex.split(line)
    assert program == "epsilometer"
    return arguments


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
    assert isinstance(found, click.Command)
    return found


def every_command() -> list[tuple[str, click.Command]]:
    group = command("runs")
    assert isinstance(group, click.Group)
    plain = [(name, command(name)) for name in COMMANDS]
    return [*plain, *((f"runs {name}", each) for name, each in group.commands.items())]


def test_the_commands_are_listed_under_headings() -> None:
    assert main.list_commands(click.Context(main)) == list(COMMANDS)  # type: ignore[attr-defined]
    assert list(HEADINGS) == ["Audit", "Judge and report", "Runs", "Other"]
    listed = call("--help").stdout
    places = [listed.index(f"\n{heading}:\n") for heading in HEADINGS]
    assert places == sorted(places)
    for heading, commands in HEADINGS.items():
        part = listed[listed.index(f"\n{heading}:\n") :]
        for name in commands:
            short = command(name).help.splitlines()[0]  # type: ignore[union-attr]
            assert re.search(rf"^  {name} ", part, re.M)
            assert short in " ".join(part.split())  # the list is not imported, so it could differ
    group = command("runs")
    assert isinstance(group, click.Group)
    assert set(group.commands) == set(RUNS)


def test_help_is_short_sentences() -> None:
    for name, found in every_command():
        options = [each for each in found.params if isinstance(each, click.Option)]
        for text in (found.help.splitlines()[0], *(option.help for option in options)):  # type: ignore[union-attr]
            assert text, name
            assert len(text.split()) <= 12, text
            assert text[0].isupper(), text
            assert text.endswith("."), text


def test_shared_options_are_spelled_and_explained_alike() -> None:
    said: dict[str, set[str]] = {}
    for name, found in every_command():
        for parameter in found.params:
            if isinstance(parameter, click.Option):
                for spelling in parameter.opts:
                    if (name, spelling) == ("lint", "--explain"):
                        continue  # of linters: it takes a rule
                    said.setdefault(spelling, set()).add(parameter.help or "")
    for shared in (
        *("--claim", "--delta", "--confidence", "--seed", "--out", "--json", "--html", "--quiet"),
        *("--explain", "--engine", "--workers", "--address", "--log-json", "--until"),
        *("--config", "--trust", "--accept-changes"),
    ):
        assert len(said[shared]) == 1, said[shared]
    assert not {"--run", "--claim-epsilon", "--until-refuted"} & set(said)


@pytest.mark.parametrize(
    "names", [*((name,) for name in COMMANDS if name != "runs"), *(("runs", n) for n in RUNS)]
)
def test_the_help_of_a_command_has_an_example_that_parses(names: tuple[str, ...]) -> None:
    arguments = example(*names)
    assert tuple(arguments[: len(names)]) == names
    found = command(names[0])
    if isinstance(found, click.Group):
        found = found.commands[names[1]]
    found.make_context(names[-1], arguments[len(names) :])  # raises on options it does not have


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_the_exit_codes(option: str) -> None:
    text = call(option).stdout
    for code, verdicts in (
        (0, (judge.NOT_REFUTED, judge.PROVED, judge.RELEASE, judge.NO_CLAIM)),
        (1, (judge.REFUTED, judge.VIOLATED, judge.DO_NOT_RELEASE)),
        (4, (judge.CANNOT_JUDGE, judge.CANNOT_TELL)),
    ):
        (line,) = re.findall(rf"^ *{code}  (.*)$", text, re.M)
        for verdict in verdicts:
            assert verdict in line
            assert judge.exit_code(verdict) == code
    assert "2  the call was wrong" in text


def test_the_version_is_that_of_the_package() -> None:
    assert importlib.metadata.version("epsilometer") in call("--version").stdout


def test_the_console_script_is_the_command() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="epsilometer")
    assert script.load() is main


@pytest.mark.parametrize(
    ("claim", "code"), run_often([("1", 1), ("4", 0), ("40", 4), ("-1", 2)], [("1", 1), ("-1", 2)])
)
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
        verdicts = {0: judge.NOT_REFUTED, 1: judge.REFUTED, 4: judge.CANNOT_JUDGE}
        assert json.loads(done.stdout)["verdict"] == verdicts[code]
