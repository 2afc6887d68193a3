"""Audits in W&B and TensorBoard: real runs and event files on this disk, nothing sent."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}

from epsilometer.core import judge
from epsilometer.core.serialisation import from_json
from epsilometer.errors import InvalidArgument
from epsilometer.integrations import tensorboard, wandb
from tests.examples import AUDITS, a_bound, a_series, an_audit, an_estimate

EXAMPLE = Path(__file__).parents[3] / "examples" / "trackers" / "log_audit.py"
pytestmark = pytest.mark.filterwarnings("ignore")  # both warn of their own dependencies


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    import wandb as theirs

    with theirs.init(project="audits", mode="offline", dir=tmp_path) as run:
        yield run


def scalars(folder: Path) -> dict[str, float]:
    return {name: each.value for name, each in _read(folder, "scalars").items()}


def words(folder: Path) -> dict[str, str]:
    found = _read(folder, "tensors")
    return {
        name.removesuffix("/text_summary"): each.tensor_proto.string_val[0].decode()
        for name, each in found.items()
    }


def _read(folder: Path, kind: str) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    read = {"scalars": events.Scalars, "tensors": events.Tensors}[kind]
    return {name: read(name)[0] for name in events.Tags()[kind]}


def write(folder: Path, audit: Any, **asked: Any) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        tensorboard.log_audit(audit, writer, **asked)
    return folder


def test_a_run_of_wandb_gets_the_names_of_mlflow(run: Any) -> None:
    wandb.log_audit(an_audit(estimates=(an_estimate(3.0),)), run=run)
    found = dict(run.summary)
    assert found["privacy.epsilon_bound"] == 2.0
    assert found["privacy.epsilon_estimate"] == 3.0
    assert (found["privacy.reach"], found["privacy.power"]) == (5.0, 2.5)
    assert found["privacy.verdict"] == judge.REFUTED
    asked = dict(run.config)
    assert (asked["privacy.delta"], asked["privacy.seed"]) == ("1e-05", "7")


def test_the_active_run_of_wandb_is_found_and_kept_apart(run: Any) -> None:
    run.config.update({"seed": 5})
    wandb.log_audit(an_audit())
    wandb.log_audit(an_audit(bound=a_bound(epsilon=0.5)), prefix="after.")
    assert (run.config["seed"], run.config["privacy.seed"]) == (5, "7")
    assert run.summary["privacy.epsilon_bound"] == 2.0
    assert run.summary["after.epsilon_bound"] == 0.5


def test_wandb_without_a_run_is_said() -> None:
    with pytest.raises(InvalidArgument, match=r"wandb\.init"):
        wandb.log_audit(an_audit())


def test_the_artifact_of_wandb_holds_the_whole_audit(run: Any, monkeypatch: Any) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(run, "log_artifact", kept.append)
    wandb.log_audit(an_audit(), run=run)
    (artifact,) = kept
    paths = {n: Path(e.local_path) for n, e in artifact.manifest.entries.items()}
    assert from_json(paths["privacy.result.json"].read_text("utf-8")) == an_audit()
    assert "<!doctype html>" in paths["privacy.report.html"].read_text("utf-8")
    assert artifact.type == "privacy-audit"


@pytest.mark.parametrize("name", AUDITS)
def test_every_kind_of_audit_is_logged_with_its_verdict(
    run: Any, tmp_path: Path, name: str
) -> None:
    audit = AUDITS[name]
    wandb.log_audit(audit, run=run)
    assert run.summary["privacy.verdict"] == audit.verdict
    folder = write(tmp_path / "board", audit)
    assert words(folder)["privacy.verdict"] == audit.verdict
    assert from_json((folder / "privacy.result.json").read_text("utf-8")) == audit


def test_views_are_found_one_by_one(run: Any, tmp_path: Path) -> None:
    audit = a_series()
    wandb.log_audit(audit, run=run)
    folder = write(tmp_path / "board", audit)
    found, numbers = dict(run.summary), scalars(folder)
    for number, view in enumerate(audit.views, start=1):
        assert found[f"privacy.view-{number}.epsilon_bound"] == view.bound.epsilon
        assert found[f"privacy.view-{number}.subject"] == view.subject
        logged = numbers[f"view-{number}/privacy.epsilon_bound"]
        assert logged == pytest.approx(view.bound.epsilon, rel=1e-6)


def test_what_is_no_bound_is_not_logged_as_one(run: Any, tmp_path: Path) -> None:
    audit = an_audit(bound=a_bound(valid=False))
    wandb.log_audit(audit, run=run)
    for names in (dict(run.summary), scalars(write(tmp_path / "board", audit))):
        assert "privacy.epsilon_bound" not in names
        assert names["privacy.epsilon_no_bound"] == 2.0


def test_an_infinite_bound_stays_infinite(tmp_path: Path, run: Any) -> None:
    audit = an_audit(bound=a_bound(epsilon=math.inf))
    wandb.log_audit(audit, run=run)
    assert float(run.summary["privacy.epsilon_bound"]) == math.inf
    assert scalars(write(tmp_path / "board", audit, step=7))["privacy.epsilon_bound"] == math.inf


def test_the_example_logs_to_both(tmp_path: Path) -> None:
    """Each in a process of its own: W&B writes to the folder in which it was first used."""
    for tracker in ("wandb", "tensorboard"):
        asked = [sys.executable, str(EXAMPLE), tracker, "--folder", "board"]
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr  # the claim is refuted
    (logged,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(logged.glob("*.wandb"))
    assert scalars(tmp_path / "board")["privacy.epsilon_bound"] > 1
