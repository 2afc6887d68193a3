"""Runs from the command line: begun, looked at, finished, judged, reported."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from epsilometer import AuditGroup, EpsilonLowerBound, from_json, to_json
from epsilometer.accounting import pld
from epsilometer.audits.runs import audit_runs
from epsilometer.cli.main import main
from epsilometer.engine.engines import InProcess
from epsilometer.engine.events import EVENTS
from epsilometer.engine.store import Store
from epsilometer.observations import Scores
from epsilometer.results import AuditResult
from tests.examples import a_bound, a_provenance, an_audit


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def demo_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(pld, "INTERVAL", 1e-3)  # calibrates the noise in a fifth of the time
    directory = tmp_path / "demo-run"
    done = call("demo", "--runs", 260, "--run", directory, "--engine", "in-process", "--quiet")
    assert done.exit_code == 0, done.output
    return directory


def test_a_run_that_lost_its_shards_is_resumed_to_the_same_bytes(demo_run: Path) -> None:
    before = (demo_run / "result.json").read_bytes(), (demo_run / "report.html").read_bytes()
    (demo_run / "result.json").unlink()
    lost = sorted((demo_run / "shards").iterdir())[0]
    lost.write_bytes(lost.read_bytes()[:-1])
    status = json.loads(call("status", demo_run, "--json").stdout)
    assert status["state"] == "stopped"
    assert list(status["damaged"]) == [lost.name]
    assert status["finished"] < status["units"]
    assert "resume" in call("status", demo_run).stdout
    done = call("resume", demo_run, "--engine", "threads", "--log-json")
    assert done.exit_code in (0, 1), done.output
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert {event["event"] for event in events} <= set(EVENTS)
    assert [event["file"] for event in events if event["event"] == "damaged"] == [
        f"shards/{lost.name}"
    ]
    after = (demo_run / "result.json").read_bytes(), (demo_run / "report.html").read_bytes()
    assert after == before
    assert json.loads(call("status", demo_run, "--json").stdout)["state"] == "finished"


def test_resume_answers_with_the_verdict(demo_run: Path) -> None:
    group = from_json((demo_run / "result.json").read_text("utf-8"))
    assert isinstance(group, AuditGroup)
    refuted = any(audit.verdict == "refuted" for audit in group.audits)
    assert call("resume", demo_run, "--quiet").exit_code == int(refuted)


def test_another_run_in_the_same_directory_is_refused(demo_run: Path) -> None:
    done = call("demo", "--runs", 300, "--run", demo_run)
    assert done.exit_code == 2
    assert '"runs": 260' in done.stderr
    assert '"runs": 300' in done.stderr


def play(runs: int, rng: object) -> Scores:
    return Scores([1.0] * runs, [0.0] * runs)


def test_a_run_from_python_says_how_it_goes_on(tmp_path: Path) -> None:
    audit_runs(play, runs=100, delta=1e-5, directory=tmp_path, engine=InProcess())
    done = call("resume", tmp_path)
    assert done.exit_code == 2
    assert "make the same call again" in done.stderr
    assert "audit_runs(tests.cli.test_runs.play, runs=100" in done.stderr


def test_a_plan_cannot_name_what_is_called(demo_run: Path) -> None:
    """Only the commands we know are resumed, whatever a plan from elsewhere says."""
    plan = Store.open(demo_run).plan
    (demo_run / "plan.json").write_text(replace(plan, audit="os.system").to_json(), "utf-8")
    done = call("resume", demo_run)
    assert done.exit_code == 2
    assert "Expected a run of classifier, demo, dpsgd, " in done.stderr
    assert "got one of 'os.system'" in done.stderr


def write(result: AuditResult | AuditGroup | EpsilonLowerBound, path: Path) -> Path:
    path.write_text(to_json(result), "utf-8")
    return path


CHECKED = [
    # bound ε and δ, valid, failed units, promised ε and δ, exit code
    (2.0, 1e-5, True, 0, 1.0, 1e-5, 1),
    (2.0, 1e-5, True, 0, 2.0, 1e-5, 0),
    (2.0, 1e-5, True, 0, 3.0, 1e-5, 0),
    (2.0, 1e-5, True, 0, 1.0, 1e-6, 1),  # a stronger promise falls with the weaker
    (2.0, 1e-5, True, 0, 3.0, 1e-6, 0),
    (2.0, 1e-5, True, 0, 1.0, 1e-4, 2),  # says nothing about a weaker one
    (2.0, 1e-5, False, 0, 1.0, 1e-5, 2),
    (2.0, 1e-5, True, 1, 1.0, 1e-5, 1),
    (2.0, 1e-5, True, 1, 3.0, 1e-5, 2),
]


@pytest.mark.parametrize(("found", "at", "valid", "failed", "epsilon", "delta", "code"), CHECKED)
def test_check_passes_only_what_was_judged(
    found: float,
    at: float,
    valid: bool,
    failed: int,
    epsilon: float,
    delta: float,
    code: int,
    tmp_path: Path,
) -> None:
    audit = an_audit(
        claim=None,
        bound=a_bound(epsilon=found, delta=at, valid=valid),
        provenance=a_provenance(units=10, used=9, failed=failed),
    )
    file = write(audit, tmp_path / "audit.json")
    done = call("check", file, "--claim-epsilon", epsilon, "--delta", delta)
    assert done.exit_code == code, done.output
    if code < 2:
        assert ("NOT REFUTED" in done.stdout) == (code == 0)


def test_check_fails_a_group_if_any_of_it_fell(tmp_path: Path) -> None:
    sound, broken = an_audit(bound=a_bound(epsilon=0.5)), an_audit()
    file = write(AuditGroup(subject="two", results=(sound, broken)), tmp_path / "two.json")
    assert call("check", file, "--claim-epsilon", 1, "--delta", 1e-5).exit_code == 1
    assert call("check", file, "--claim-epsilon", 2, "--delta", 1e-5).exit_code == 0


def test_check_takes_a_lone_bound(tmp_path: Path) -> None:
    file = write(a_bound(), tmp_path / "bound.json")
    assert call("check", file, "--claim-epsilon", 1, "--delta", 1e-5).exit_code == 1


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\x80"])
def test_what_is_no_result_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text, "latin-1")
    for arguments in (["check", "--claim-epsilon", 1, "--delta", 0], ["report"]):
        done = call(arguments[0], tmp_path / "x.json", *arguments[1:])
        assert done.exit_code == 2
        assert "x.json" in done.stderr


def test_an_unfinished_run_has_no_report_yet(demo_run: Path) -> None:
    (demo_run / "result.json").unlink()
    done = call("report", demo_run)
    assert done.exit_code == 2
    assert f"epsilometer resume {demo_run}" in done.stderr


def test_report_has_every_form(tmp_path: Path) -> None:
    file = write(an_audit(), tmp_path / "audit.json")
    assert "REFUTED" in call("report", file).stdout
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
