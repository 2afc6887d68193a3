"""Results in MLflow: real stores on this disk, no network, nobody told."""

import math
import os
import runpy
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Before MLflow is loaded: it reports who uses it, unless told not to.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # the only store that mlflow-skinny has by itself

from epsilometer import Audit
from epsilometer.core import judge
from epsilometer.core.serialisation import from_json
from epsilometer.integrations.mlflow import log_audit
from tests.examples import AUDITS, a_bound, a_release, a_series, a_shuffling, an_audit, an_estimate

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow and SQLAlchemy warn of each other


@pytest.fixture
def mlflow(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A new store; whoever calls somebody fails."""
    import mlflow

    def nobody(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"called {address}")

    monkeypatch.setattr(socket.socket, "connect", nobody)
    before = mlflow.get_tracking_uri()
    place = tmp_path / "store"
    database = getattr(request, "param", "file") == "database"
    mlflow.set_tracking_uri(f"sqlite:///{place}.db" if database else place.as_uri())
    mlflow.create_experiment("audits", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("audits")
    yield mlflow
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


def artifact(mlflow: Any, run_id: str, name: str, folder: Path) -> str:
    place = mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=name, dst_path=folder)
    return Path(place).read_text("utf-8")


def children(mlflow: Any, run_id: str) -> list[Any]:
    found = mlflow.search_runs(
        filter_string=f"tags.mlflow.parentRunId = '{run_id}'", output_format="list"
    )
    return sorted(found, key=lambda run: run.info.start_time)


@pytest.mark.parametrize("mlflow", ["file", "database"], indirect=True)
def test_an_audit_is_logged_with_all_that_makes_its_number(mlflow: Any, tmp_path: Path) -> None:
    result = an_audit(estimates=(an_estimate(3.0),))
    run_id = log_audit(result)
    assert mlflow.active_run() is None
    data = mlflow.get_run(run_id).data
    assert data.metrics["privacy.epsilon_bound"] == 2.0
    assert data.metrics["privacy.epsilon_estimate"] == 3.0
    assert data.metrics["privacy.claimed_epsilon"] == 1.0
    assert data.metrics["privacy.attack_auc"] == 0.875
    assert data.metrics["privacy.attack_advantage"] == pytest.approx(0.7)
    assert (data.metrics["privacy.reach"], data.metrics["privacy.power"]) == (5.0, 2.5)
    assert data.params["privacy.delta"] == "1e-05"
    assert data.params["privacy.confidence"] == "0.95"
    assert data.params["privacy.method"] == "clopper_pearson"
    assert data.params["privacy.threshold_rule"] == "RankGrid(ratio=4)"
    assert (data.params["privacy.seed"], data.params["privacy.adversary"]) == ("7", "unstated")
    assert data.params["privacy.audit"] == "Scores"
    assert data.tags["privacy.verdict"] == judge.REFUTED
    assert (data.tags["privacy.kind"], data.tags["privacy.version"]) == ("Scores", "1.0.0")
    assert data.tags["privacy.valid"] == "True"
    assert from_json(artifact(mlflow, run_id, "privacy.result.json", tmp_path)) == result
    assert "<!doctype html>" in artifact(mlflow, run_id, "privacy.report.html", tmp_path)


@pytest.mark.parametrize("name", AUDITS)
@pytest.mark.in_turn(3)
def test_every_kind_of_audit_is_logged_with_its_verdict(
    mlflow: Any, name: str, tmp_path: Path
) -> None:
    audit = AUDITS[name]
    run_id = log_audit(audit)
    assert from_json(artifact(mlflow, run_id, "privacy.result.json", tmp_path)) == audit
    runs = children(mlflow, run_id) if len(audit.views) > 1 else []
    assert len(runs) == (len(audit.views) if len(audit.views) > 1 else 0)
    for run in (*runs, mlflow.get_run(run_id)):
        assert run.data.tags["privacy.kind"] == audit.provenance.subject
        assert run.data.tags["privacy.verdict"] == audit.verdict
        assert run.info.status == "FINISHED"


def test_views_are_nested_runs_of_their_own(mlflow: Any) -> None:
    audit: Audit = a_series()
    run_id = log_audit(audit)
    parent = mlflow.get_run(run_id).data
    assert parent.tags["privacy.views"] == "6"
    assert parent.metrics["privacy.claimed_epsilon"] == 2.5
    found = {
        run.data.tags["privacy.subject"]: run.data.metrics["privacy.epsilon_bound"]
        for run in children(mlflow, run_id)
    }
    assert found == {view.subject: view.bound.epsilon for view in audit.views}


def test_a_classifier_is_logged_by_what_it_exposes(mlflow: Any) -> None:
    metrics = mlflow.get_run(log_audit(a_release())).data.metrics
    assert metrics["privacy.records_exposed"] == 3
    assert metrics["privacy.largest_pdtp"] > 1e308
    assert (metrics["privacy.accuracy"], metrics["privacy.attack_advantage"]) == (0.9, 0.2)
    assert not {name for name in metrics if "epsilon" in name}


def test_the_active_run_gets_it_and_stays_active(mlflow: Any) -> None:
    with mlflow.start_run() as run:
        mlflow.log_param("seed", 5)  # the training's own
        assert log_audit(an_audit()) == run.info.run_id
        assert mlflow.active_run().info.run_id == run.info.run_id
    data = mlflow.get_run(run.info.run_id).data
    assert (data.params["seed"], data.params["privacy.seed"]) == ("5", "7")


def test_what_is_no_bound_is_not_logged_as_one(mlflow: Any) -> None:
    data = mlflow.get_run(log_audit(an_audit(bound=a_bound(valid=False)))).data
    assert "privacy.epsilon_bound" not in data.metrics
    assert data.metrics["privacy.epsilon_no_bound"] == 2.0
    assert data.tags["privacy.valid"] == "False"
    shuffled = mlflow.get_run(log_audit(a_shuffling(bound=a_bound(valid=False)))).data
    assert "privacy.epsilon_bound" not in shuffled.metrics
    assert shuffled.metrics["privacy.epsilon_computed"] == 4.0625
    assert shuffled.tags["privacy.valid"] == "True"  # by computation


@pytest.mark.parametrize("mlflow", ["file", "database"], indirect=True)
def test_infinite_bounds_and_long_words_are_logged(mlflow: Any) -> None:
    run_id = log_audit(an_audit(subject="s" * 9_000, bound=a_bound(epsilon=math.inf)))
    data = mlflow.get_run(run_id).data
    assert data.metrics["privacy.epsilon_bound"] > 1e308  # a database writes its largest number
    assert len(data.tags["privacy.subject"]) == 500


def test_two_results_in_one_run_have_prefixes_of_their_own(mlflow: Any) -> None:
    with mlflow.start_run() as run:
        log_audit(an_audit(), prefix="before.")
        log_audit(an_audit(bound=a_bound(epsilon=0.5)), prefix="after.")
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    assert (metrics["before.epsilon_bound"], metrics["after.epsilon_bound"]) == (2.0, 0.5)


def test_the_example_logs_its_audit(mlflow: Any, tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "trackers" / "log_audit.py"
    example = runpy.run_path(str(path))
    audit = example["audit_scores"]()
    example["log"](audit, "mlflow", tmp_path)
    run = mlflow.last_active_run()
    assert run.data.tags["privacy.verdict"] == audit.verdict == judge.REFUTED
