"""Runs from the command line: begun, looked at, finished, judged, reported."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from epsilometer import Audit, Claim, InProcess, Runs, Scores, audit, load
from epsilometer.core import judge
from epsilometer.core.serialisation import from_json
from epsilometer.engine.events import EVENTS
from epsilometer.engine.store import Store
from tests.cli.calls import call, told
from tests.examples import (
    a_bound,
    a_claim,
    a_provenance,
    a_release,
    a_view,
    an_audit,
    several_views,
)


@pytest.fixture
def demo_run(tmp_path: Path) -> Path:
    pytest.importorskip("sklearn")
    directory = tmp_path / "demo-run"
    done = call("demo", "--runs", 260, "--out", directory, "--engine", "in-process", "--quiet")
    assert done.exit_code == 0, done.output
    return directory


def test_a_run_that_lost_its_shards_is_resumed_to_the_same_bytes(demo_run: Path) -> None:
    before = (demo_run / "result.json").read_bytes(), (demo_run / "report.html").read_bytes()
    (demo_run / "result.json").unlink()
    lost = sorted((demo_run / "shards").iterdir())[0]
    lost.write_bytes(lost.read_bytes()[:-1])
    status = json.loads(call("runs", "status", demo_run, "--json").stdout)
    assert status["state"] == "stopped"
    assert list(status["damaged"]) == [lost.name]
    assert status["finished"] < status["units"]
    assert f"epsilometer runs resume {demo_run}" in call("runs", "status", demo_run).stdout
    done = call("runs", "resume", demo_run, "--engine", "threads", "--log-json")
    assert done.exit_code in (0, 1, 4), done.output
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert {event["event"] for event in events} <= set(EVENTS)
    assert [event["file"] for event in events if event["event"] == "damaged"] == [
        f"shards/{lost.name}"
    ]
    after = (demo_run / "result.json").read_bytes(), (demo_run / "report.html").read_bytes()
    assert after == before
    status = json.loads(call("runs", "status", demo_run, "--json").stdout)
    assert (status["state"], status["audit"]) == ("finished", "Demo")
    assert status["verdict"] == load(demo_run).verdict


def test_resume_answers_with_the_verdict(demo_run: Path) -> None:
    done = call("runs", "resume", demo_run, "--quiet")
    assert done.exit_code == load(demo_run).exit_code
    assert done.stdout.startswith(load(demo_run).verdict.upper())


def test_another_run_in_the_same_directory_is_refused(demo_run: Path) -> None:
    done = call("demo", "--runs", 300, "--out", demo_run)
    assert done.exit_code == 2
    assert "settings.runs 260 there, 300 here" in done.stderr


def play(runs: int, rng: object) -> Scores:
    return Scores([1.0] * runs, [0.0] * runs)


def test_a_run_from_python_is_resumed_if_its_function_is_trusted(tmp_path: Path) -> None:
    expected = audit(Runs(play, runs=100), delta=1e-5, out=tmp_path, engine=InProcess())
    (tmp_path / "result.json").unlink()
    line = told(call("runs", "resume", tmp_path))
    assert "Expected --trust to import 'tests.cli.test_runs:play' for Runs.play" in line
    done = call("runs", "resume", tmp_path, "--trust", "--engine", "in-process", "--quiet")
    assert done.exit_code == 0, done.output
    assert load(tmp_path) == expected


def test_a_run_from_python_says_what_must_be_supplied(tmp_path: Path) -> None:
    made = Runs(functools.partial(play), runs=100)  # which has no name of its own
    audit(made, delta=1e-5, out=tmp_path, engine=InProcess())
    for command in (["runs", "resume", tmp_path], ["audit", tmp_path / "result.json"]):
        line = told(call(*command, "--trust"))
        assert "Expected play of Runs: supplied from Python when it was audited" in line
        assert line.endswith("Make the same call again from Python.")


def test_a_plan_cannot_name_what_is_called(demo_run: Path) -> None:
    """Only the subjects we know are resumed, whatever a plan from elsewhere says."""
    plan = Store.open(demo_run).plan
    (demo_run / "plan.json").write_text(replace(plan, audit="os.system").to_json(), "utf-8")
    line = told(call("runs", "resume", demo_run))
    assert "one of Scores, " in line
    assert "got 'os.system'" in line


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    for command in ("status", "resume"):
        assert "found no plan.json" in told(call("runs", command, tmp_path))


def write(result: Audit, path: Path) -> Path:
    return result.save(path)


CHECKED = [
    # bound ε and δ, valid, failed units, claimed ε and δ, verdict; its reach is 5
    (2.0, 1e-5, True, 0, 1.0, 1e-5, judge.REFUTED),
    (2.0, 1e-5, True, 0, 2.0, 1e-5, judge.NOT_REFUTED),
    (2.0, 1e-5, True, 0, 3.0, 1e-5, judge.NOT_REFUTED),
    (2.0, 1e-5, True, 0, 1.0, 1e-6, judge.REFUTED),  # a stronger claim falls with the weaker
    (2.0, 1e-5, True, 0, 3.0, 1e-6, judge.NOT_REFUTED),
    (2.0, 1e-5, True, 0, 1.0, 1e-4, judge.CANNOT_JUDGE),  # says nothing about a weaker one
    (2.0, 1e-5, False, 0, 1.0, 1e-5, judge.CANNOT_JUDGE),
    (2.0, 1e-5, True, 1, 1.0, 1e-5, judge.REFUTED),
    (2.0, 1e-5, True, 1, 3.0, 1e-5, judge.CANNOT_JUDGE),
    (2.0, 1e-5, True, 0, 7.0, 1e-5, judge.CANNOT_JUDGE),  # beyond reach
]


@pytest.mark.parametrize(("found", "at", "valid", "failed", "epsilon", "delta", "verdict"), CHECKED)
def test_check_passes_only_what_was_judged(
    found: float,
    at: float,
    valid: bool,
    failed: int,
    epsilon: float,
    delta: float,
    verdict: judge.Verdict,
    tmp_path: Path,
) -> None:
    parts = {
        "bound": a_bound(epsilon=found, delta=at, valid=valid),
        "provenance": a_provenance(units=10, used=9, failed=failed),
    }
    file = write(an_audit(claim=None, **parts), tmp_path / "audit.json")
    done = call("check", file, "--claim", epsilon, "--delta", delta)
    assert done.exit_code == judge.exit_code(verdict), done.output
    assert done.stdout.startswith(f"{verdict.upper()}: ")
    claimed = Claim(epsilon, delta=delta)
    own = write(an_audit(claim=claimed, **parts), tmp_path / "own.json")
    assert call("check", own).exit_code == done.exit_code
    assert call("check", own).stdout.startswith(f"{verdict.upper()}: ")


def test_check_fails_an_audit_if_any_view_refutes_its_claim(tmp_path: Path) -> None:
    views = a_view(subject="sound", bound=a_bound(epsilon=0.5)), a_view(subject="broken")
    file = write(several_views(*views), tmp_path / "two.json")
    assert call("check", file).exit_code == 1
    assert call("check", file, "--claim", 2, "--delta", 1e-5).exit_code == 0


def test_check_says_that_nothing_was_claimed(tmp_path: Path) -> None:
    file = write(an_audit(claim=None), tmp_path / "audit.json")
    done = call("check", file)
    assert done.exit_code == 0
    assert done.stdout.startswith("NO CLAIM: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--claim", 3], "Expected delta with claim=3.0"),
        (["--delta", 1e-5], "Expected --claim with --delta"),
        (["--claim", 3, "--delta", 1], "delta below 1"),
        (["--claim", "nan", "--delta", 1e-5], "number for epsilon"),
        (["--claim", "inf", "--delta", 1e-5], "finite epsilon"),
        (["--claim", -1, "--delta", 1e-5], "epsilon ≥ 0"),
        (["--format", "html"], "html"),
    ],
)
def test_bad_claims_are_told(options: list[object], said: str, tmp_path: Path) -> None:
    file = write(an_audit(), tmp_path / "audit.json")
    assert said in told(call("check", file, *options))


def test_check_has_no_claim_beside_rules(tmp_path: Path) -> None:
    release = a_release()
    file = write(release, tmp_path / "audit.json")
    assert call("check", file).exit_code == release.exit_code
    line = told(call("check", file, "--claim", 3, "--delta", 1e-5))
    assert f"Its verdict is its own: {release.verdict}" in line


JUDGED = {  # by exit code
    0: an_audit(claim=a_claim(3.0), subject='a "b" <c>\n%'),
    1: an_audit(subject='a "b" <c>\n%'),
    4: an_audit(claim=a_claim(9.0), subject='a "b" <c>\n%'),
}


@pytest.mark.parametrize(("code", "made"), JUDGED.items())
def test_check_has_a_form_for_programs(code: int, made: Audit, tmp_path: Path) -> None:
    file = write(made, tmp_path / "audit.json")
    headline = call("check", file).stdout.rstrip("\n")
    done = call("check", file, "--format", "json")
    assert done.exit_code == code
    plain = json.loads(done.stdout)
    assert list(plain) == [
        *("verdict", "exit_code", "headline", "claim", "epsilon", "reach", "power")
    ]
    assert (plain["verdict"], plain["exit_code"]) == (made.verdict, code)
    assert plain["headline"] == headline
    assert plain["claim"]["epsilon"] == made.claim.epsilon  # type: ignore[union-attr]
    assert (plain["epsilon"], plain["reach"], plain["power"]) == (2.0, 5.0, 2.5)
    other = json.loads(
        call("check", file, "--format", "json", "--claim", 3.195138, "--delta", 1e-5).stdout
    )
    assert other["claim"]["epsilon"] == 3.195138
    assert other["power"] > 3.195138  # of the other claim, computed for it


@pytest.mark.parametrize(("code", "made"), JUDGED.items())
def test_check_has_a_form_for_github(code: int, made: Audit, tmp_path: Path) -> None:
    done = call("check", write(made, tmp_path / "audit.json"), "--format", "github")
    assert done.exit_code == code
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"::{'error' if code else 'notice'} title=epsilometer::")
    assert line.partition("::")[2].partition("::")[2].startswith(made.verdict.upper())


@pytest.mark.parametrize(("code", "made"), JUDGED.items())
def test_check_has_a_form_for_junit(code: int, made: Audit, tmp_path: Path) -> None:
    done = call("check", write(made, tmp_path / "audit.json"), "--format", "junit")
    assert done.exit_code == code
    suite = ElementTree.fromstring(done.stdout)
    assert suite.attrib["tests"] == "1"
    assert (suite.attrib["failures"], suite.attrib["errors"]) == (
        str(int(code == 1)),
        str(int(code == 4)),
    )
    (case,) = suite
    assert case.attrib["name"] == 'a "b" <c> %'
    (inside,) = case
    assert inside.tag == {0: "system-out", 1: "failure", 4: "error"}[code]
    assert (inside.text or "").startswith(made.verdict.upper())


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\x80"])
def test_what_is_no_result_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text, "latin-1")
    for command in ("check", "report", "audit"):
        assert "x.json" in told(call(command, tmp_path / "x.json"))
    assert "y.json" in told(call("audit", tmp_path / "y.json"))


def test_an_unfinished_run_has_no_report_yet(demo_run: Path) -> None:
    (demo_run / "result.json").unlink()
    for command in ("report", "check"):
        assert f"epsilometer runs resume {demo_run}" in told(call(command, demo_run))


def test_report_has_every_form(tmp_path: Path) -> None:
    file = write(an_audit(), tmp_path / "audit.json")
    assert call("report", file).stdout.startswith("REFUTED: ")
    assert call("report", file).exit_code == 0
    assert (tmp_path / "audit.html").read_text("utf-8").lstrip().startswith("<!doctype html>")
    assert "REFUTED" in call("report", file, "--markdown").stdout
    assert from_json(call("report", file, "--json").stdout) == an_audit()
    page = tmp_path / "page.html"
    assert call("report", file, "--html", page).exit_code == 0
    assert page.read_bytes() == (tmp_path / "audit.html").read_bytes()
    pytest.importorskip("matplotlib")
    assert call("report", file, "--figures", tmp_path / "figures").exit_code == 0
    kinds = {path.suffix for path in (tmp_path / "figures").iterdir()}
    assert kinds == {".png", ".svg"}


def test_estimate_writes_the_page(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{int(i > 50)}" for i in range(100))
    (tmp_path / "scores.csv").write_text(f"score,member\n{rows}\n", "utf-8")
    page = tmp_path / "page.html"
    done = call("estimate", tmp_path / "scores.csv", "--delta", "1e-5", "--html", page)
    assert done.exit_code == 0, done.output
    assert "scores.csv" in page.read_text("utf-8")
