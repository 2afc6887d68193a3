"""A policy passes what is there, new, of this code and not refuted, and nothing else."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.naive_bayes import GaussianNB

import epsilometer as em
from epsilometer.cli.main import main
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.policy import check_policy, read_policy
from epsilometer.files.stamps import find_stamp, make_stamp, read_stamp, write_stamp

POLICY = """
max_age_days = 30

[[audits]]
name = "training"
file = "audits/training.json"
kind = "Scores"
claim = { epsilon = 3.0, delta = 1e-5 }
code = ["train.py"]
"""
SPARED = em.Scores([float(i % 7) for i in range(900)], [float(i % 7) for i in range(900)])
CAUGHT = em.Scores([2.0] * 900, [0.0] * 900)


def git(folder: Path, *call: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *named, *call], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a policy, and an audit of its code that spares the claim."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "privacy-policy.toml").write_text(POLICY, "utf-8")
    (tmp_path / "train.py").write_text("noise = 1.0\n", "utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "Train")
    keep(tmp_path, SPARED)
    return tmp_path


def keep(project: Path, scores: em.Scores, **how: float) -> None:
    file = project / "audits" / "training.json"
    file.parent.mkdir(exist_ok=True)
    em.audit(scores, 3.0, delta=1e-5, **how).save(file)
    find_stamp(file).unlink(missing_ok=True)
    write_stamp(file)


def checked(project: Path, **how: datetime) -> tuple[str, int]:
    (found,) = check_policy(read_policy(project / "privacy-policy.toml"), project, **how)
    return found.reason, found.exit_code


def test_what_is_as_it_should_be_passes(project: Path) -> None:
    assert checked(project) == ("verdict", 0)


def test_a_missing_audit_fails(project: Path) -> None:
    (project / "audits" / "training.json").unlink()
    assert checked(project) == ("missing", 4)


def test_a_refuted_claim_fails_whatever_its_age(project: Path) -> None:
    keep(project, CAUGHT)
    assert checked(project) == ("verdict", 1)
    assert checked(project, now=datetime.now(UTC) + timedelta(days=99)) == ("verdict", 1)


def test_an_old_audit_fails(project: Path) -> None:
    assert checked(project, now=datetime.now(UTC) + timedelta(days=29)) == ("verdict", 0)
    assert checked(project, now=datetime.now(UTC) + timedelta(days=31)) == ("age", 4)
    assert checked(project, now=datetime.now(UTC) - timedelta(days=31)) == ("age", 4)  # the future


def test_an_audit_of_other_code_fails(project: Path) -> None:
    (project / "notes.txt").write_text("nothing that runs", "utf-8")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Note")
    assert checked(project) == ("verdict", 0)
    (project / "train.py").write_text("noise = 0.1\n", "utf-8")
    assert checked(project) == ("code", 4)  # committed or not
    git(project, "commit", "-q", "-a", "-m", "Change")
    assert checked(project) == ("code", 4)
    keep(project, SPARED)
    assert checked(project) == ("verdict", 0)


def test_code_that_was_in_no_commit_fails(project: Path) -> None:
    (project / "train.py").write_text("noise = 0.1\n", "utf-8")
    keep(project, SPARED)
    git(project, "checkout", "-q", "train.py")
    assert checked(project) == ("code", 4)


def test_an_unknown_commit_fails(project: Path) -> None:
    path = find_stamp(project / "audits" / "training.json")
    path.write_text(path.read_text("utf-8").replace('"commit": "', '"commit": "0'), "utf-8")
    assert checked(project) == ("code", 4)


def test_without_a_stamp_it_fails(project: Path) -> None:
    find_stamp(project / "audits" / "training.json").unlink()
    assert checked(project) == ("age", 4)


def test_less_confidence_or_another_kind_fails(project: Path) -> None:
    keep(project, SPARED, confidence=0.9)
    assert checked(project) == ("confidence", 4)
    keep(project, SPARED)
    text = POLICY.replace('kind = "Scores"', 'kind = "DPSGD"')
    (project / "privacy-policy.toml").write_text(text, "utf-8")
    assert checked(project) == ("kind", 4)


def test_a_claim_beyond_reach_or_none_fails(project: Path) -> None:
    keep(project, em.Scores([1.0] * 5, [1.0] * 5))
    assert checked(project) == ("verdict", 4)
    em.audit(SPARED, delta=1e-5).save(project / "audits" / "training.json")
    write_stamp(project / "audits" / "training.json")
    (project / "privacy-policy.toml").write_text(
        "\n".join(line for line in POLICY.splitlines() if "claim" not in line), "utf-8"
    )
    assert checked(project) == ("verdict", 4)


def test_a_claim_of_the_audit_itself_is_not_what_a_policy_asks(project: Path) -> None:
    file = project / "audits" / "training.json"
    em.audit(SPARED, em.Claim(50.0, delta=1e-5)).save(file)
    write_stamp(file)
    text = "\n".join(line for line in POLICY.splitlines() if "claim" not in line)
    (project / "privacy-policy.toml").write_text(text, "utf-8")
    assert checked(project) == ("limit", 4)
    em.audit(CAUGHT, em.Claim(1.0, delta=1e-5)).save(file)
    assert checked(project) == ("verdict", 1)  # what is refuted is so by any policy


def test_a_claim_about_clients_is_not_judged_by_an_audit_of_records(project: Path) -> None:
    file = project / "audits" / "training.json"
    em.audit(SPARED, em.Claim(3.0, delta=1e-5, unit="record")).save(file)
    write_stamp(file)
    assert checked(project) == ("verdict", 0)
    text = POLICY.replace("1e-5 }", '1e-5, unit = "client" }')
    (project / "privacy-policy.toml").write_text(text, "utf-8")
    assert checked(project) == ("unreadable", 4)


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ("pdtp_limit = 20.0", ("verdict", 0)),
        ("pdtp_limit = 1.0", ("limit", 4)),
        ("advantage_limit = 0.1", ("limit", 4)),  # no rule was about attacks
    ],
)
def test_a_release_by_laxer_limits_than_the_policy_has_does_not_count(
    limits: str, outcome: tuple[str, int], project: Path
) -> None:
    labels = np.arange(60) % 2
    subject = em.Classifier(
        GaussianNB(),
        np.random.default_rng(0).normal(labels[:, None], 1.0, (60, 2)),
        labels,
        attacks=(),
        rules=em.rules.PdtpAtMost(10.0),
    )
    file = project / "audits" / "training.json"
    em.audit(subject, engine=em.InProcess()).save(file)
    write_stamp(file)
    text = "\n".join(line for line in POLICY.splitlines() if "claim" not in line)
    text = text.replace("Scores", "Classifier") + f"\n[classifier]\n{limits}\n"
    (project / "privacy-policy.toml").write_text(text, "utf-8")
    assert checked(project) == outcome


def test_a_damaged_audit_fails(project: Path) -> None:
    (project / "audits" / "training.json").write_text("{}", "utf-8")
    assert checked(project) == ("unreadable", 4)


@pytest.mark.parametrize(
    "text",
    ["max_age = 3", "confidence = 2", "max_age_days = 0", "[classifier]\npdtp = 1", "audits = 3"],
)
def test_a_policy_that_would_limit_nothing_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidArgument):
        read_policy(path)
    path.write_text("", "utf-8")
    with pytest.raises(InvalidArgument, match="nothing to check"):
        check_policy(read_policy(path), tmp_path)


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="found no file"):
        read_policy(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 3", "utf-8")
    with pytest.raises(UnreadableFile, match="Expected TOML"):
        read_policy(tmp_path / "bad.toml")


@pytest.mark.parametrize("form", ["text", "json", "github", "junit"])
def test_the_command_says_and_fails(form: str, project: Path) -> None:
    call = ["check", "--policy", "privacy-policy.toml", "--format", form]
    done = CliRunner().invoke(main, call)
    assert done.exit_code == 0, done.output
    assert "training" in done.stdout
    keep(project, CAUGHT)
    done = CliRunner().invoke(main, call)
    assert done.exit_code == 1
    assert "REFUTED" in done.stdout
    if form == "json":
        assert json.loads(done.stdout)["audits"][0]["reason"] == "verdict"


def test_check_takes_a_result_or_a_policy(project: Path) -> None:
    for call in (["check"], ["check", "a.json", "--policy", "p.toml"]):
        assert CliRunner().invoke(main, call).exit_code == 2
    call = ["check", "--policy", "privacy-policy.toml", "--claim", "3"]
    assert CliRunner().invoke(main, call).exit_code == 2


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("classifier people.csv --label y --published-as api --advantage-limit 0.5", "0.1"),
        ("posterior --advantage 0.5", "0.1"),
        ("classifier people.csv --label y --published-as api --confidence 0.9", "0.95"),
    ],
)
def test_limits_of_a_policy_cannot_be_loosened(command: str, limit: str, project: Path) -> None:
    limits = "[classifier]\nadvantage_limit = 0.1\n[posterior]\nadvantage = 0.1\n"
    (project / "limits.toml").write_text(limits, "utf-8")
    done = CliRunner().invoke(main, [*command.split(), "--policy", "limits.toml"])
    assert done.exit_code == 2
    assert f"{limit}" in done.stderr
    assert "as the policy asks" in done.stderr


def test_a_stamp_keeps_its_first_time_and_names_nobody(project: Path) -> None:
    file = project / "audits" / "training.json"
    stamp = read_stamp(file)
    assert stamp is not None
    assert write_stamp(file) == stamp
    assert (len(stamp.commit), stamp.modified, stamp.who) == (40, False, "")
    assert "run by" not in dict(stamp.describe())


def test_a_stamp_is_of_its_result_alone(project: Path) -> None:
    """A result that was put in the place of another is not covered by its stamp; a new one is."""
    file = project / "audits" / "training.json"
    first = read_stamp(file)
    em.audit(SPARED, 3.0, delta=1e-5, seed=1).save(file)
    assert read_stamp(file) is None
    assert checked(project) == ("age", 4)
    again = write_stamp(str(file))
    assert first is not None
    assert again.result != first.result
    assert checked(project) == ("verdict", 0)
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))  # as git does on Windows
    assert checked(project) == ("verdict", 0)


def test_code_that_git_does_not_know_is_not_the_same_code(project: Path) -> None:
    """A misspelt file in a policy would have compared nothing, and passed."""
    policy = project / "privacy-policy.toml"
    policy.write_text(POLICY.replace('["train.py"]', '["train.py", "trian.py"]'), "utf-8")
    assert checked(project) == ("code", 4)


def test_who_ran_it_is_named_on_request(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPSILOMETER_WHO", "the privacy team")
    keep(project, SPARED)
    stamp = read_stamp(project / "audits" / "training.json")
    assert stamp is not None
    assert dict(stamp.describe())["run by"] == "the privacy team"
    assert msgspec.structs.asdict(stamp)["who"] == "the privacy team"


@pytest.mark.parametrize(
    ("file", "text", "modified"),
    [
        ("train.py", "noise = 2.0\n", True),
        ("settings.json", '{"noise": 2.0}', True),  # a training may read it
        ("settings.json", '{"format": 2, "noise": 2.0}', True),
        ("settings.json", "{", True),
        ("README.md", "another text", False),
        ("report.html", "<p>another page", False),
        ("audits/training.json", None, False),  # what an audit writes is no change of the code
    ],
)
def test_what_counts_as_a_change_of_the_code(
    file: str, text: str | None, modified: bool, project: Path
) -> None:
    for name in ("settings.json", "README.md", "report.html"):
        (project / name).write_text("{}", "utf-8")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Keep results")
    assert not make_stamp().modified
    if text is None:
        keep(project, CAUGHT)
    else:
        (project / file).write_text(text, "utf-8")
    assert make_stamp().modified is modified


def test_code_that_is_gone_is_a_change(project: Path) -> None:
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Keep results")
    (project / "audits" / "training.json").unlink()  # a result that is made again, say
    assert not make_stamp().modified
    (project / "train.py").unlink()
    assert make_stamp().modified
