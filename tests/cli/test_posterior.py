"""``epsilometer posterior``: real runs, their exit codes, going on, and files that are wrong."""

import shutil
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from epsilometer import PosteriorAudit, from_json
from epsilometer.cli.config import from_sections, read_sections
from epsilometer.cli.posterior import Config, posterior_job_of
from epsilometer.engine.store import Store
from epsilometer.mechanisms.samplers import Poisson
from tests.cli.calls import call
from tests.cli.described import audit_of, with_changes

pytestmark = pytest.mark.usefixtures("coarse")
DOCS = Path(__file__).parents[2] / "docs" / "posterior.md"
SMALL: dict[str, dict[str, Any]] = {
    "data": {"file": "digits", "records": 40, "test": 10, "shadow": 30},
    "model": {"name": "dropout_mlp", "hidden": 8, "dropout": 0.2},
    "training": {"batch_size": 10, "learning_rate": 0.5, "epochs": 2},
    "audit": {"delta": 1e-5, "runs": 12, "samples": 4, "forms": ["mean+std:0.01", "mean", "label"]},
}


audit = audit_of("posterior", SMALL)
changed = partial(with_changes, SMALL)


def result() -> PosteriorAudit:
    found = from_json(Path("run/result.json").read_text("utf-8"))
    assert isinstance(found, PosteriorAudit)
    return found


def test_a_run_is_told_written_and_resumed_to_the_same_bytes(audit: Callable[..., Result]) -> None:
    done = audit("--html", "out.html", audit={"claim": 5.0}, training={"noise_multiplier": 1.0})
    assert done.exit_code == 0, done.output
    found = result()
    assert found.verdict == "not refuted"
    assert [form.form for form in found.forms] == ["mean+std, to 0.01", "mean", "label"]
    assert [said.method for said in found.theory] == ["RDP", "PLD"]
    assert found.tested == 10 * 12
    assert found.provenance.command == "epsilometer posterior --config audit.toml"
    assert "NOT REFUTED" in done.stdout
    for page in ("out.html", "run/report.html"):
        assert "mean+std, to 0.01" in Path(page).read_text("utf-8")
    before = Path("run/result.json").read_bytes()
    Path("run/result.json").unlink()
    next(iter(sorted(Path("run/shards").iterdir()))).unlink()
    again = call("resume", "run", "--engine", "in-process", "--quiet")
    assert again.exit_code == 0, again.output
    assert Path("run/result.json").read_bytes() == before
    judged = call("check", "run", "--claim-epsilon", "5", "--delta", "1e-5")
    assert judged.exit_code == 0, judged.output
    told = call("report", "run", "--markdown")
    assert "| mean |" in told.stdout


def test_a_leak_of_plain_training_is_refuted_with_exit_code_1(
    audit: Callable[..., Result],
) -> None:
    done = audit(
        audit={"claim": 0.1, "runs": 60, "record": "mislabelled", "forms": ["mean"]},
        training={"epochs": 30},
        data={"test": None, "shadow": None},
    )
    assert done.exit_code == 1, done.output
    assert result().verdict == "refuted"
    assert "not measured" not in done.stdout
    assert any("utility" in said for said in result().caveats)


@pytest.mark.parametrize("way", ["random + adversarial", "high loss", "high loss + adversarial"])
def test_records_are_chosen_by_shadow_models(way: str) -> None:
    plain = changed(audit={"record": way, "shadows": 2})
    job = posterior_job_of(from_sections(Config, plain), command="again", at_once=12)
    assert len(job.trainings.labels) == 40  # type: ignore[attr-defined]
    drawn = posterior_job_of(from_sections(Config, changed()), command="again", at_once=12)
    if way == "random + adversarial":
        moved = np.abs(job.record.features - drawn.record.features).max()
        assert 0 < moved < 0.41  # forty steps of a hundredth
    assert job.subject.endswith(f"{way} record")


def test_what_is_bundled_is_a_network_with_dropout_and_what_is_documented() -> None:
    bundled = read_sections(Config, None, bundled="posterior.toml")
    assert bundled.model.name == "dropout_cnn"
    blocks = DOCS.read_text("utf-8").split("```toml\n")[1:]
    first, *others = [tomllib.loads(block.split("```")[0]) for block in blocks]
    assert from_sections(Config, first) == bundled
    for plain in others:
        from_sections(Config, plain)


def test_plain_training_has_no_clipping_and_noise_has() -> None:
    for noise, clip in ((0.0, 1e6), (0.5, 1.0)):
        plain = changed(training={"noise_multiplier": noise})
        job = posterior_job_of(from_sections(Config, plain), command="again", at_once=4)
        told = job.plan.parameters["training"]
        assert (told["clip_norm"], told["noise_multiplier"]) == (clip, noise)
        assert told["sampler"] == repr(Poisson(rate=0.25, steps=4))
        assert job.plan.parameters["at_once"] == 4


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"data": {"records": 1797}}, "to fit into the 1797 records"),
        ({"data": {"test": -1}}, "data.test"),
        ({"data": {"shadow": 5}, "audit": {"record": "high loss"}}, "data.shadow of a batch"),
        ({"model": {"name": "dropout_cnn"}}, "16x16 or more for dropout_cnn"),
        ({"model": {"name": "lenet5"}}, "one of dropout_cnn, dropout_mlp"),
        ({"model": {"dropout": 0.0}}, "dropout"),
        ({"audit": {"forms": ["mean:fine"]}}, "as 'mean+std' or 'mean+std:0.01'"),
        ({"audit": {"forms": ["mode"]}}, "got 'mode'"),
        ({"audit": {"record": "worst"}}, "audit.record to be one of random"),
        ({"audit": {"runs": 7}}, "runs"),
        ({"audit": {"delta": None}}, "audit.delta"),
        ({"audit": {"view": 1}}, "key of [audit]"),
        ({"training": {"sampler": "poison"}}, "sampler of"),
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
    data = {"file": "mine.npz", "records": None}
    assert audit(data=data).exit_code == 0
    shutil.copy("mine.npz", "before.npz")
    np.savez("mine.npz", x=rng.random((60, 3)), y=np.arange(60) % 2)
    Path("run/result.json").unlink()
    done = call("resume", "run", "--quiet")
    assert done.exit_code == 2
    assert "found others" in done.stderr
    assert Store.open(Path("run")).plan.audit == "posterior"


def test_the_example_of_the_help_runs_what_is_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("posterior", "--runs", 8, "--run", "posterior-run", "--engine", "in-process")
    assert done.exit_code == 0, done.output
    assert "dropout_cnn on digits, mislabelled record" in done.stdout
    assert (tmp_path / "posterior-run" / "report.html").exists()
