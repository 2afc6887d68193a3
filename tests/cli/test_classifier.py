"""``epsilometer classifier``: a table of people in, a verdict out, and nobody's features."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from epsilometer import Audit, load
from epsilometer.cli.main import main
from epsilometer.core import judge
from epsilometer.findings import GroupRisk, LeaveOneOut, RecordRisk, RemedyFinding, RuleFinding
from tests.cli.calls import call as call_main
from tests.cli.described import check_replay
from tests.conftest import run_often

pytest.importorskip("sklearn")
QUICK = ["--attacks", "none", "--engine", "in-process", "--quiet"]


def call(*arguments: object, published_as: str = "api") -> Result:
    words = ["classifier", *(str(argument) for argument in arguments)]
    if "--config" not in words:
        words += ["--published-as", published_as]
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


def result_of(directory: Path) -> Audit:
    return load(directory)


def test_a_verdict_a_report_and_a_page_are_written(csv: Path, tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "out.html"
    options = ["--label", "income", "--drop", "id", "--group", "job", "--group", "age"]
    options += ["--attacks", "loss", "--shadows", "6", "--engine", "in-process"]
    done = call(csv, *options, "--out", run, "--html", page)
    found = result_of(run)
    assert done.exit_code == found.exit_code, done.output
    assert done.stdout.startswith(found.verdict.upper())
    assert page.read_text("utf-8") == (run / "report.html").read_text("utf-8")
    assert {group.column for group in found.find(GroupRisk)} == {"class", "job", "age"}
    left = found.one(LeaveOneOut)
    assert left is not None
    assert left.path == "exact: categorical naive Bayes"
    assert found.find(RecordRisk)[0].rank == 1
    assert found.provenance.settings["source"] == {
        "type": "TableModel",
        "file": "people.csv",  # where it lay is nobody's business
        "label": "income",
        "model": "naive-bayes",
        "drop": ["id"],
        "group": ["job", "age"],
        "encoding": None,
        "delimiter": None,
        "decimal": None,
        "query": None,
        "rows": None,
        "seed": 0,
    }
    check_replay(run / "result.json", "--data", csv.parent)


def test_the_verdict_decides_the_exit_code(csv: Path, tmp_path: Path) -> None:
    options = ["--label", "income", "--drop", "id", *QUICK]
    kept = call(csv, *options, "--out", tmp_path / "kept")
    assert kept.exit_code == 0, kept.output
    assert kept.stdout.startswith("RELEASE: ")
    strict = call(csv, *options, "--pdtp-limit", "0.001", "--out", tmp_path / "strict")
    assert strict.exit_code == 1
    assert strict.stdout.startswith("DO NOT RELEASE: ")
    allowed = ["--pdtp-limit", "0.001", "--share", "1", "--out", tmp_path / "allowed"]
    assert call(csv, *options, *allowed).exit_code == 0
    few = call(csv, *options, "--records", "sample:20", "--out", tmp_path / "few")
    assert few.exit_code == 4
    assert few.stdout.startswith("CANNOT TELL: ")


def test_limits_become_rules(csv: Path, tmp_path: Path) -> None:
    options = ["--label", "income", "--drop", "id", "--attacks", "loss", "--shadows", "4"]
    limits = ["--advantage-limit", "0.9", "--caught-limit", "0.8", "--share", "0.5"]
    call(csv, *options, *QUICK[2:], *limits, "--out", tmp_path / "run")
    rules = result_of(tmp_path / "run").provenance.settings["rules"]
    assert rules == [
        {"type": "NoRecordInAnswers"},
        {"type": "PdtpAtMost", "limit": 1.0, "share": 0.5},
        {"type": "AdvantageAtMost", "limit": 0.9},
        {"type": "CaughtAtMost", "limit": 0.8, "fpr": 0.01},
    ]


def test_a_limit_leaves_the_rule_on_threats_in_force(csv: Path, tmp_path: Path) -> None:
    options = ["--label", "income", "--drop", "id", "--threats", "structure", *QUICK]
    call(csv, *options, "--share", "0.5", "--out", tmp_path / "run", published_as="labels")
    rules = result_of(tmp_path / "run").provenance.settings["rules"]
    assert [rule["type"] for rule in rules] == ["NoRecordInAnswers", "PdtpAtMost", "GainAtMost"]


def test_a_file_may_hold_all_settings(csv: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.toml"
    file.write_text(
        '[classifier]\nattacks = []\nrules = ["pdtp-at-most:0.001"]\n'
        f'[classifier.source]\ntype = "table-model"\nfile = "{csv}"\n'
        'label = "income"\ndrop = ["id"]\n[audit]\nseed = 3\n',
        "utf-8",
    )
    done = call("--config", file, "--engine", "in-process", "--quiet", "--out", tmp_path / "run")
    assert done.exit_code == 1, done.output
    assert result_of(tmp_path / "run").provenance.seed == 3
    again = call_main("audit", file, "--engine", "in-process", "--json")
    assert again.stdout == (tmp_path / "run" / "result.json").read_text("utf-8")
    for arguments in ([], [csv, "--config", file]):
        assert "TABLE or --config" in call(*arguments).stderr


@pytest.mark.parametrize(
    "model", run_often(["logistic", "knn", "random-forest"], ["logistic", "knn"])
)
def test_other_models_are_refitted(model: str, csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--label", "income", "--drop", "id", "--model", model, *QUICK]
    done = call(csv, *options, "--records", "sample:5", "--out", run)
    assert done.exit_code in (1, 4), done.output
    found = result_of(run)
    left = found.one(LeaveOneOut)
    assert left is not None
    assert (left.measured, left.of) == (5, 200)


def test_a_model_of_ones_own_is_imported_but_never_by_a_plan(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine_own.py").write_text(
        "from sklearn.neighbors import KNeighborsClassifier\n"
        "def make():\n    return KNeighborsClassifier(1)\n"
    )
    options = ["--label", "income", "--drop", "id", "--model", "mine_own:make", *QUICK]
    done = call(csv, *options, "--records", "sample:5", "--out", "run")
    assert done.exit_code in (1, 4), done.output
    before = Path("run/result.json").read_bytes()
    Path("run/result.json").unlink()
    resumed = CliRunner().invoke(main, ["runs", "resume", "run"])
    assert resumed.exit_code == 2
    assert "Expected --trust to import 'mine_own:make'" in " ".join(resumed.stderr.split())
    trusted = call_main("runs", "resume", "run", "--trust", "--engine", "in-process", "--quiet")
    assert trusted.exit_code == done.exit_code, trusted.output
    assert Path("run/result.json").read_bytes() == before
    for wrong in ("mine_own:nothing", "nobody:make", "mine_own:"):
        done = call(csv, "--label", "income", "--model", wrong, *QUICK, "--out", "other")
        assert done.exit_code == 2
        assert "module:factory" in done.stderr


def test_a_run_is_resumed_to_the_same_bytes(csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--label", "income", "--drop", "id", "--group", "job", *QUICK]
    assert call(csv, *options, "--out", run).exit_code == 0
    before = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    arguments = ["runs", "resume", str(run), "--engine", "in-process", "--quiet"]
    arguments += ["--data", str(csv.parent)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert (run / "result.json").read_bytes() == before
    status = CliRunner().invoke(main, ["runs", "status", str(run)])
    assert "RELEASE: " in status.stdout
    people(csv, seed=1)
    (run / "result.json").unlink()
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "Expected no other run" in " ".join(done.stderr.split())
    assert "other data in people.csv" in done.stderr


def test_rows_are_shown_only_where_asked_and_features_never(csv: Path, tmp_path: Path) -> None:
    options = ["--label", "income", *QUICK, "--model", "knn"]
    hidden = call(csv, *options, "--records", "sample:40", "--out", tmp_path / "a")
    text = hidden.stdout + (tmp_path / "a/result.json").read_text("utf-8")
    assert "anna" not in text
    assert "smith" not in text
    assert {record.row for record in result_of(tmp_path / "a").find(RecordRisk)} == {None}
    shown = call(csv, *options, "--records", "sample:40", "--out", tmp_path / "b", "--show-records")
    text = shown.stdout + (tmp_path / "b/result.json").read_text("utf-8")
    assert shown.exit_code in (1, 4)
    assert "anna" not in text
    rows = {record.row for record in result_of(tmp_path / "b").find(RecordRisk)}
    assert len(rows) == 40
    assert min(rows) >= 1  # as people count


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
        (None, ["--label", "income", "--decimals", "few"], "'few' is not a valid integer"),
        (None, ["--drop", "id"], "Expected --label"),
        (None, ["--label", "income", "--records", "half"], "sample:500"),
        (
            None,
            ["--label", "income", "--model", "random-forest", "--patience", "0.01"],
            "200 models without a record take about",
        ),
        ("a,y\n1,b\n2,b\n3,b\n", ["--label", "y"], "at least two classes"),
        ("y\na\nb\na\nb\n", ["--label", "y"], "besides the label"),
        ("a,b,y\n1,,x\n2,,z\n1,,x\n2,,z\n", ["--label", "y"], "'b' is empty"),
        ("a,y\n1,x\n2,?\n1,x\n2,z\n", ["--label", "y"], "1 have none in 'y'"),
        ("a,b;y\n1,2;x\n2,1;z\n", ["--label", "y"], "commas and semicolons both"),
        (None, ["--label", "income", "--encoding", "klingon"], "an encoding such as utf-8"),
        (None, ["--label", "income", "--delimiter", "::"], "one character as delimiter"),
        (
            "day,y\n01/02/2001,a\n03/04/2001,b\n01/02/2001,a\n03/04/2001,b\n",
            ["--label", "y"],
            "in column 'day' whose days and months can be distinguished",
        ),
        (
            "a,y\n" + "".join(f"note{i},{'xz'[i % 2]}\n" for i in range(1001)),
            ["--label", "y"],
            "column 'a', found one in every row. If it names records, drop it: --drop a",
        ),
    ],
)
def test_bad_calls_are_told_and_exit_with_2(
    text: str | None, options: list[str], part: str, csv: Path, tmp_path: Path
) -> None:
    if text is not None:
        csv.write_text(text, "utf-8")
    quick = QUICK if "--attacks" not in options else QUICK[2:]
    done = call(csv, *options, *quick, "--out", tmp_path / "run")
    assert done.exit_code == 2, done.output
    assert part in " ".join(done.stderr.split())


def test_results_go_through_the_other_commands(csv: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(csv, "--label", "income", "--drop", "id", *QUICK, "--out", run).exit_code == 0
    told = CliRunner().invoke(main, ["report", str(run), "--markdown"])
    assert told.stdout.startswith("### ✅ RELEASE: ")
    assert "naive-bayes on people" in told.stdout
    figures = tmp_path / "figures"
    drawn = CliRunner().invoke(main, ["report", str(run), "--figures", str(figures)])
    assert drawn.exit_code == 0, drawn.output
    assert (figures / "risk.svg").exists()
    assert (figures / "rounding.png").exists()
    assert call_main("check", run).exit_code == 0
    checked = call_main("check", run, "--claim", "1", "--delta", "1e-5")
    assert checked.exit_code == 2
    assert f"verdict is its own: {judge.RELEASE}" in " ".join(checked.stderr.split())


def test_what_others_are_given_must_be_said(csv: Path, tmp_path: Path) -> None:
    options = ["classifier", str(csv), "--label", "income", *QUICK]
    silent = CliRunner().invoke(main, options)
    assert silent.exit_code == 2
    assert "Expected --published-as file, api or labels" in " ".join(silent.stderr.split())
    knn = ["--label", "income", "--drop", "id", "--model", "knn", *QUICK]
    few = ["--records", "sample:5", "--share", "1"]
    found = {}
    for each in ("file", "api", "labels"):
        done = call(csv, *knn, *few, "--out", tmp_path / each, published_as=each)
        found[each] = done.exit_code
    assert found == {"file": 1, "api": 0, "labels": 0}
    first = result_of(tmp_path / "file").find(RuleFinding)[0]
    assert "KNeighborsClassifier._fit_X holds 200 of 200 transformed" in first.finding


SECRETS = ("Zebulon", "31.12.1951", "9,876", "Wombatville")


def write_odd(path: Path, delimiter: str = ";", encoding: str = "cp1252") -> Path:
    """As a spreadsheet saves it: numbers of persons, dates, and thousands with commas."""
    rng = np.random.default_rng(0)
    lines = [delimiter.join(("patient_id", "born", "amount", "näme", "town", "status"))]
    for i in range(120):
        born = f"{rng.integers(1, 28):02d}.{rng.integers(1, 13):02d}.{rng.integers(1940, 2000)}"
        row = [f"{7919 * i % 100_000 + 100_000}", born, f"{rng.integers(1000, 9999):,}"]
        row += [f"Zebulon{i}", ["Wombatville", "Köln"][i % 2], ["ill", "well"][rng.integers(2)]]
        lines.append(delimiter.join(row))
    lines[1] = delimiter.join(("1", "31.12.1951", "9,876", "Zebulon", "Köln", "ill"))
    path.write_bytes("\n".join(lines).encode(encoding))
    return path


@pytest.mark.parametrize(
    ("delimiter", "encoding"), [(";", "cp1252"), ("\t", "utf-16"), ("|", "utf-8-sig")]
)
def test_what_is_odd_in_a_table_is_named_and_nothing_of_it_is_shown(
    delimiter: str, encoding: str, tmp_path: Path
) -> None:
    """The measured finding: unique numbers, dates and 1,169 became words, and nobody said so."""
    file = write_odd(tmp_path / "people.csv", delimiter, encoding)
    options = ["--label", "status", *QUICK[:-1], "--explain", "--out", tmp_path / "run"]
    done = call(file, *options, "--html", tmp_path / "page.html")
    assert done.exit_code in (0, 1), done.output
    caveats = result_of(tmp_path / "run").caveats
    for name in ("patient_id", "näme"):
        said = f"'{name}' is different in every row: drop it with --drop {name}, if it identifies"
        assert any(caveat.startswith(said) for caveat in caveats)
    assert "Dates of 'born' were read as days." in caveats
    assert "Numbers of 'amount' were read without separators of thousands." in caveats
    assert ("people.csv is not UTF-8, and was read as cp1252." in caveats) == (encoding == "cp1252")
    page = (tmp_path / "page.html").read_text("utf-8")
    result = (tmp_path / "run/result.json").read_text("utf-8")
    for text in (done.output, page, result):
        assert not any(secret in text for secret in SECRETS)
    dropped = ["--drop", "patient_id", "--drop", "näme", "--out", tmp_path / "dropped"]
    assert call(file, *options[:-2], *dropped).exit_code in (0, 1)
    said = result_of(tmp_path / "dropped").caveats
    assert not any("patient_id" in caveat or "näme" in caveat for caveat in said)


def test_what_is_refused_in_a_table_tells_of_nobody(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    born = [f"{i % 12 + 1:02d}/{(5 * i) % 12 + 1:02d}/1951" for i in range(60)]
    rows = [f"Zebulon{i},{day},{['ill', 'NA'][i % 2]}" for i, day in enumerate(born)]
    file.write_text("\n".join(["name,born,status", *rows]), "utf-8")
    for options in (["--label", "status"], ["--label", "name"]):
        done = call(file, *options, *QUICK, "--out", tmp_path / "run")
        assert done.exit_code == 2
        assert not any(secret in done.output for secret in ("Zebulon", "1951"))


def write_names(path: Path, n: int = 950) -> Path:
    """Names, and little that tells who has the label: whatever is learned of it is by name."""
    rng = np.random.default_rng(3)
    sex, degree = rng.integers(2, size=(2, n))
    age, town = rng.integers(18, 70, n), rng.choice(5, n, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    again = rng.random(n) < 0.35 + 0.1 * sex + 0.1 * degree + 0.1 * (age < 30)
    rows = [
        f"Person{i:04d},{age[i]},{'mf'[sex[i]]},{'abcde'[town[i]]},{'FM'[degree[i]]},"
        f"{['no', 'yes'][int(again[i])]}"
        for i in range(n)
    ]
    path.write_text("\n".join(["name,age,sex,town,degree,again", *rows]), "utf-8")
    return path


def test_of_950_people_with_their_names_the_column_of_names_is_to_be_dropped(
    tmp_path: Path,
) -> None:
    """The measured finding: 72 % caught, and rounding or dropping records were the advice."""
    file = write_names(tmp_path / "people.csv")
    options = ["--label", "again", "--attacks", "lira", "--remedies", "2", *QUICK[2:]]
    assert call(file, *options, "--out", tmp_path / "run").exit_code == 1
    found = result_of(tmp_path / "run")
    base, first, *others = found.find(RemedyFinding)
    assert (base.action, first.action) == ("", "Drop the column 'name'.")
    assert base.caught > 0.6
    assert first.caught < 0.03
    assert all(other.caught > 0.1 for other in others)
    assert found.advice[0].startswith("Drop the column 'name'. Of 100 people in the data")
    assert not any("decimal" in text or "riskiest records." in text for text in found.advice[:2])
