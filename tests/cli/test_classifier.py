"""``epsilometer classifier``: a table of people in, a verdict out, and nobody's features."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from epsilometer import from_json
from epsilometer.cli.main import main
from epsilometer.release import ReleaseAudit

pytest.importorskip("sklearn")
QUICK = ["--attacks", "none", "--engine", "in-process", "--quiet"]


def call(*arguments: object) -> Result:
    words = ["classifier", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(main, words)


def people(path: Path, n: int = 200, seed: int = 0) -> Path:
    """Ages, jobs with gaps, a name of each person, and what they earn."""
    rng = np.random.default_rng(seed)
    age, job = rng.integers(18, 80, n), rng.integers(4, size=n)
    rich = rng.random(n) < 0.2 + 0.15 * job
    jobs = ["", "baker", "clerk", "smith"]
    lines = ["id,age,job,income"]
    lines += [
        f"anna{i:04d},{age[i] if i % 9 else 'NA'},{jobs[job[i]]},{['low', 'high'][int(rich[i])]}"
        for i in range(n)
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return people(tmp_path / "people.csv")


def result_of(directory: Path) -> ReleaseAudit:
    found = from_json((directory / "result.json").read_text("utf-8"))
    assert isinstance(found, ReleaseAudit)
    return found


def test_a_verdict_a_report_and_a_page_are_written(csv: Path, tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "out.html"
    options = ["--label", "income", "--drop", "id", "--group", "job", "--group", "age"]
    options += ["--attacks", "loss", "--shadows", "6", "--engine", "in-process", "--quiet"]
    done = call(csv, *options, "--run", run, "--html", page)
    found = result_of(run)
    assert done.exit_code == (1 if found.verdict == "do not release" else 0), done.output
    assert found.verdict.upper() in done.stdout
    assert page.read_text("utf-8") == (run / "report.html").read_text("utf-8")
    assert {group.column for group in found.groups} == {"class", "job", "age"}
    assert found.leaving is not None
    assert found.leaving.path == "exact: categorical naive Bayes"
    assert found.records[0].record.startswith("row ")
    words = shlex.split(found.provenance.command)[2:]
    again = tmp_path / "again"
    call(*words, "--run", again, "--quiet", "--engine", "in-process")
    assert result_of(again) == found


def test_only_do_not_release_exits_with_1(csv: Path, tmp_path: Path) -> None:
    options = ["--label", "income", "--drop", "id", *QUICK]
    kept = call(csv, *options, "--run", tmp_path / "kept")
    assert kept.exit_code == 0, kept.output
    assert "RELEASE" in kept.stdout
    strict = call(csv, *options, "--pdtp-limit", "0.001", "--run", tmp_path / "strict")
    assert strict.exit_code == 1
    assert "DO NOT RELEASE" in strict.stdout
    allowed = ["--pdtp-limit", "0.001", "--share", "1", "--run", tmp_path / "allowed"]
    assert call(csv, *options, *allowed).exit_code == 0


def test_a_claim_that_cannot_be_judged_is_exit_code_2(csv: Path, tmp_path: Path) -> None:
    options = ["--label", "income", "--drop", "id", *QUICK, "--records", "sample:20"]
    assert call(csv, *options, "--run", tmp_path / "a").exit_code == 0
    claimed = call(csv, *options, "--run", tmp_path / "b", "--claim", "release")
    assert claimed.exit_code == 2
    assert "neither kept nor refuted" in claimed.stderr
    whole = options[:-2]
    assert call(csv, *whole, "--run", tmp_path / "c", "--claim", "release").exit_code == 0


@pytest.mark.parametrize("model", ["logistic", "knn", "random-forest"])
def test_other_models_are_refitted(model: str, csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--label", "income", "--drop", "id", "--model", model, *QUICK]
    done = call(csv, *options, "--records", "sample:5", "--run", run)
    assert done.exit_code in (0, 1), done.output
    found = result_of(run)
    assert found.leaving is not None
    assert (found.leaving.measured, found.leaving.of) == (5, 200)


def test_a_model_of_ones_own_is_imported_but_never_by_a_plan(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine_own.py").write_text(
        "from sklearn.neighbors import KNeighborsClassifier\n"
        "def make():\n    return KNeighborsClassifier(1)\n"
    )
    options = ["--label", "income", "--drop", "id", "--model", "mine_own:make", *QUICK]
    done = call(csv, *options, "--records", "sample:5", "--run", "run")
    assert done.exit_code in (0, 1), done.output
    Path("run/result.json").unlink()
    resumed = CliRunner().invoke(main, ["resume", "run"])
    assert resumed.exit_code == 2
    assert "Give the command again" in " ".join(resumed.stderr.split())
    for wrong in ("mine_own:nothing", "nobody:make", "mine_own:"):
        done = call(csv, "--label", "income", "--model", wrong, *QUICK, "--run", "other")
        assert done.exit_code == 2
        assert "module:factory" in done.stderr


def test_a_run_is_resumed_to_the_same_bytes(csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--label", "income", "--drop", "id", "--group", "job", *QUICK]
    assert call(csv, *options, "--run", run).exit_code == 0
    before = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    arguments = ["resume", str(run), "--engine", "in-process", "--quiet"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert (run / "result.json").read_bytes() == before
    status = CliRunner().invoke(main, ["status", str(run)])
    assert "release" in status.stdout
    people(csv, seed=1)
    (run / "result.json").unlink()
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "found others" in " ".join(done.stderr.split())


def test_features_are_shown_only_where_asked(csv: Path, tmp_path: Path) -> None:
    options = ["--label", "income", *QUICK, "--model", "knn"]
    hidden = call(csv, *options, "--records", "sample:40", "--run", tmp_path / "a")
    text = hidden.stdout + (tmp_path / "a/result.json").read_text("utf-8")
    assert "anna" not in text
    assert "smith" not in text
    shown = call(csv, *options, "--records", "sample:40", "--run", tmp_path / "b", "--show-records")
    text = (tmp_path / "b/result.json").read_text("utf-8")
    assert shown.exit_code in (0, 1)
    assert "id = anna" in text
    assert "job = " in text


@pytest.mark.parametrize(
    ("text", "options", "part"),
    [
        (None, ["--label", "wage"], "a column 'wage', found 'id', 'age'"),
        (None, ["--label", "income", "--drop", "wage"], "a column 'wage'"),
        (None, ["--label", "income", "--group", "wage"], "a column 'wage'"),
        (None, ["--label", "id"], "no more classes than"),
        (None, ["--label", "job"], "have none in 'job'"),
        (None, ["--label", "age"], "have none in 'age'"),
        (None, ["--label", "income", "--model", "oracle"], "a model among"),
        (None, ["--label", "income", "--attacks", "magic"], "attacks among"),
        (None, ["--label", "income", "--decimals", "few"], "whole number or 'all'"),
        (None, ["--label", "income", "--records", "half"], "sample:500"),
        (
            None,
            ["--label", "income", "--model", "random-forest", "--patience", "0.01"],
            "200 models without a record take about",
        ),
        ("a,y\n1,b\n2,b\n3,b\n", ["--label", "y"], "at least two classes"),
        ("y\na\nb\na\nb\n", ["--label", "y"], "beside the label"),
        ("a,b,y\n1,,x\n2,,z\n1,,x\n2,,z\n", ["--label", "y"], "'b' is empty"),
    ],
)
def test_bad_calls_are_told_and_exit_with_2(
    text: str | None, options: list[str], part: str, csv: Path, tmp_path: Path
) -> None:
    if text is not None:
        csv.write_text(text, "utf-8")
    quick = QUICK if "--attacks" not in options else QUICK[2:]
    done = call(csv, *options, *quick, "--run", tmp_path / "run")
    assert done.exit_code == 2, done.output
    assert part in " ".join(done.stderr.split())


def test_results_go_through_the_other_commands(csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(csv, "--label", "income", "--drop", "id", *QUICK, "--run", run).exit_code == 0
    told = CliRunner().invoke(main, ["report", str(run), "--markdown"])
    assert told.stdout.startswith("### ✅ naive-bayes on people")
    figures = tmp_path / "figures"
    drawn = CliRunner().invoke(main, ["report", str(run), "--figures", str(figures)])
    assert drawn.exit_code == 0, drawn.output
    assert (figures / "risk.svg").exists()
    assert (figures / "rounding.png").exists()
    checked = CliRunner().invoke(
        main, ["check", str(run), "--claim-epsilon", "1", "--delta", "1e-5"]
    )
    assert checked.exit_code == 2
    assert "verdict is its own" in " ".join(checked.stderr.split())
