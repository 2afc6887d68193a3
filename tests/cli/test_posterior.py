"""``epsilometer posterior``: real runs, their exit codes, going on, and files that are wrong."""

import shutil
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from epsilometer import Audit, Posterior, load
from epsilometer._dispatch import call_from_sections
from epsilometer.cli.sources import DropoutOnRecords
from epsilometer.core import judge
from epsilometer.engine.store import Store
from epsilometer.findings import FormFinding, FormPlan, PosteriorRuns, TheoryEpsilon
from epsilometer.samplers import Poisson, Shuffle
from tests.cli.calls import call
from tests.cli.described import audit_of, check_replay, with_changes

DOCS = Path(__file__).parents[2] / "docs" / "posterior.md"
SMALL: dict[str, dict[str, Any]] = {
    "subject": {"runs": 12, "samples": 4, "forms": ["mean+std:0.01", "mean", "label"]},
    "source": {
        "type": "dropout-on-records",
        "file": "digits",
        "records": 40,
        "test": 10,
        "shadow": 30,
        "model": "dropout_mlp",
        "hidden": 8,
        "dropout": 0.2,
        "batch_size": 10,
        "learning_rate": 0.5,
        "epochs": 2,
    },
    "claim": {},
    "audit": {"delta": 1e-5},
}


audit = audit_of("posterior", SMALL)
changed = partial(with_changes, SMALL)


def result() -> Audit:
    return load("run")


def described(**parts: dict[str, Any]) -> Posterior:
    """The subject of a file with these changes."""
    plain = changed(**parts)
    section = {**plain["subject"], "source": plain["source"]}
    subject: Posterior = call_from_sections({"posterior": section}).subject
    return subject


def bundled() -> dict[str, Any]:
    text = resources.files("epsilometer").joinpath("data/posterior.toml").read_text("utf-8")
    return tomllib.loads(text)


def test_a_run_is_told_written_and_resumed_to_the_same_bytes(audit: Callable[..., Result]) -> None:
    claim = {"epsilon": 0.3, "delta": 1e-5}
    done = audit("--html", "out.html", claim=claim, source={"noise_multiplier": 1.0})
    assert done.exit_code == 0, done.output
    found = result()
    assert found.verdict == judge.NOT_REFUTED
    plan = found.one(FormPlan)
    assert plan is not None
    assert plan.forms == ("mean+std, to 0.01", "mean", "label")
    assert {form.form for form in found.find(FormFinding)} == set(plan.forms)
    assert [said.method for said in found.find(TheoryEpsilon)] == ["RDP", "PLD"]
    runs = found.one(PosteriorRuns)
    assert runs is not None
    assert runs.tested == 10 * 12
    assert "NOT REFUTED" in done.stdout
    for page in ("out.html", "run/report.html"):
        assert "mean+std, to 0.01" in Path(page).read_text("utf-8")
    before = Path("run/result.json").read_bytes()
    Path("run/result.json").unlink()
    next(iter(sorted(Path("run/shards").iterdir()))).unlink()
    again = call("runs", "resume", "run", "--engine", "in-process", "--quiet")
    assert again.exit_code == 0, again.output
    assert Path("run/result.json").read_bytes() == before
    for claimed in ([], ["--claim", "0.3", "--delta", "1e-5"]):
        assert call("check", "run", *claimed).exit_code == 0
    assert call("check", "run", "--claim", "5", "--delta", "1e-5").exit_code == 4
    told = call("report", "run", "--markdown")
    assert "| mean |" in told.stdout
    check_replay(Path("run/result.json"))


def test_a_leak_of_plain_training_is_refuted_with_exit_code_1(
    audit: Callable[..., Result],
) -> None:
    done = audit(
        claim={"epsilon": 0.1, "delta": 1e-5},
        subject={"runs": 60, "forms": ["mean"]},
        source={"epochs": 30, "test": None, "shadow": None, "record": "mislabelled"},
    )
    assert done.exit_code == 1, done.output
    assert result().verdict == judge.REFUTED
    assert "not measured" not in done.stdout
    assert any("utility" in said for said in result().caveats)


@pytest.mark.parametrize("way", ["random + adversarial", "high loss", "high loss + adversarial"])
def test_records_are_chosen_by_shadow_models(way: str) -> None:
    subject = described(source={"record": way, "shadows": 2})
    assert len(subject.data[1]) == 39  # the fortieth is the record
    drawn = described()
    if way == "random + adversarial":
        moved = np.abs(subject.record.features - drawn.record.features).max()  # type: ignore[union-attr]
        assert 0 < moved < 0.41  # forty steps of a hundredth
    assert subject.title.endswith(f"{way} record")


def test_the_seed_of_an_option_chooses_the_record_too(audit: Callable[..., Result]) -> None:
    assert audit("--seed", 5, "--runs", 8).exit_code == 0
    found = result().provenance
    assert (found.seed, found.settings["source"]["seed"]) == (5, 5)


def test_what_is_bundled_is_a_network_with_dropout_and_what_is_documented() -> None:
    assert bundled()["posterior"]["source"]["model"] == "dropout_cnn"
    blocks = DOCS.read_text("utf-8").split("```toml\n")[1:]
    first, *others = [tomllib.loads(block.split("```")[0]) for block in blocks]
    assert first == bundled()
    for plain in others:
        assert set(plain) <= {"posterior", "claim", "audit"}


def test_plain_training_has_no_clipping_and_noise_has() -> None:
    for noise, clip in ((0.0, 1e6), (0.5, 1.0)):
        training = described(source={"noise_multiplier": noise}).factory
        assert (training.clip_norm, training.noise_multiplier) == (clip, noise)
        assert training.sampler == Poisson()
    assert described(source={"sampler": "shuffle"}).factory.sampler == Shuffle()
    assert described(source={"clip_norm": 0.5}).factory.clip_norm == 0.5


def test_options_say_the_same_as_a_file(audit: Callable[..., Result]) -> None:
    assert audit().exit_code == 0
    source = {name: value for name, value in SMALL["source"].items() if name != "type"}
    given = [word for name, value in source.items() for word in (f"--{name}", value)]
    done = call(
        "posterior",
        *(str(word).replace("_", "-") if str(word).startswith("--") else word for word in given),
        *("--runs", 12, "--samples", 4, "--forms", "mean+std:0.01,mean,label"),
        *("--delta", 1e-5, "--out", "options", "--engine", "in-process", "--quiet"),
    )
    assert done.exit_code == 0, done.output
    assert Path("options/result.json").read_bytes() == Path("run/result.json").read_bytes()


def test_a_source_names_its_fields() -> None:
    source = DropoutOnRecords("digits", records=40, model="dropout_mlp", seed=3)
    assert source.fingerprints() == ()
    assert (
        source.load()["record"].label
        != DropoutOnRecords("digits", records=40, model="dropout_mlp", seed=3, record="mislabelled")
        .load()["record"]
        .label
    )


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"source": {"records": 1797}}, "to fit into the 1797 records"),
        ({"source": {"test": -1}}, "test ≥ 0"),
        ({"source": {"shadow": 5, "record": "high loss"}}, "shadow of a batch"),
        ({"source": {"model": "dropout_cnn"}}, "16x16 or more for dropout_cnn"),
        ({"source": {"model": "lenet5"}}, "DropoutOnRecords.model"),
        ({"source": {"dropout": 0.0}}, "dropout"),
        ({"source": {"record": "worst"}}, "DropoutOnRecords.record"),
        ({"source": {"sampler": "poison"}}, "DropoutOnRecords.sampler"),
        ({"source": {"view": 1}}, "got 'view'"),
        ({"subject": {"forms": ["mean:fine"]}}, "as 'mean+std' or 'mean+std:0.01'"),
        ({"subject": {"forms": ["mode"]}}, "got 'mode'"),
        ({"subject": {"runs": 7}}, "runs"),
        ({"subject": {"view": 1}}, "got 'view'"),
        ({"audit": {"delta": None}}, "delta"),
        ({"audit": {"until": "refuted"}}, "until"),
    ],
)
def test_files_that_are_wrong_are_told(
    audit: Callable[..., Result], parts: dict[str, Any], told: str
) -> None:
    done = audit(**parts)
    assert done.exit_code == 2, done.output
    assert told in " ".join(done.stderr.split())
    assert not Path("run").exists()


def test_other_records_are_not_gone_on_with(audit: Callable[..., Result]) -> None:
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.random((60, 3)), y=np.arange(60) % 2)
    source = {"file": "mine.npz", "records": None}
    assert audit(source=source).exit_code == 0
    shutil.copy("mine.npz", "before.npz")
    np.savez("mine.npz", x=rng.random((60, 3)), y=np.arange(60) % 2)
    Path("run/result.json").unlink()
    done = call("runs", "resume", "run", "--quiet")
    assert done.exit_code == 2
    assert "Expected no other run" in done.stderr
    assert "other data in mine.npz" in done.stderr
    assert Store.open(Path("run")).plan.audit == "Posterior"
    assert dict(Store.open(Path("run")).plan.inputs)["mine.npz"]


@pytest.mark.slow
def test_the_example_of_the_help_runs_what_is_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("posterior", "--runs", 8, "--out", "posterior-run", "--engine", "in-process")
    assert done.exit_code == 0, done.output
    assert "dropout_cnn on digits, mislabelled record" in done.stdout
    assert (tmp_path / "posterior-run" / "report.html").exists()
