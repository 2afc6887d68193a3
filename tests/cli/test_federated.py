"""``epsilometer federated``: a table, a report, a run that can be finished."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from epsilometer import Audit, load
from epsilometer.audits.federated.source import FederatedTask
from epsilometer.cli.main import main
from epsilometer.core import judge
from epsilometer.engine.store import Store
from tests.cli.calls import call as call_main
from tests.cli.described import check_replay

pytest.importorskip("sklearn")
SHORT = ["--rounds", "4", "--canaries", "300", "--engine", "in-process"]


def call(*arguments: object, **environment: str) -> Result:
    words = ["federated", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(main, words, env=environment)


def result_of(directory: Path) -> Audit:
    return load(directory)


def accounted(audit: Audit) -> float:
    """What accounting says of the first view."""
    (found,) = [e.epsilon for e in audit.views[0].estimates if e.method == "accounting"]
    return found


def test_a_table_a_report_and_a_page_are_written(tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "out.html"
    done = call(*SHORT, "--repetitions", "1,2", "--out", run, "--html", page, "-v")
    assert done.exit_code == 0, done.output
    assert page.read_text("utf-8") == (run / "report.html").read_text("utf-8")
    assert f"Also written: {page}\n" in done.stdout
    found = result_of(run)
    assert found.verdict == judge.NO_CLAIM  # nothing is judged that nobody claimed
    assert len(found.views) == 4
    rows = done.stdout.partition("who sees what")[2]
    for said in ("each canary once", "each canary 2 times", "final", "all rounds"):
        assert said in " ".join(rows.split())
    assert f"{accounted(found):.2f}"[:-1] in rows  # what accounting says stands beside it
    check_replay(run / "result.json")


@pytest.mark.parametrize("noise", ["tree", "matrix"])
def test_correlated_noise_is_accounted_as_such(noise: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = call(*SHORT, "--noise", noise, "--repetitions", "2", "--out", run, "--quiet")
    assert done.exit_code == 0, done.output
    plain = call(*SHORT, "--repetitions", "2", "--out", tmp_path / "plain", "--quiet")
    assert plain.exit_code == 0, plain.output
    claimed, alone = (accounted(result_of(where)) for where in (run, tmp_path / "plain"))
    assert claimed > alone  # at the same noise multiplier: one round is in the noise of others
    check_replay(run / "result.json")


def test_a_run_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(*SHORT, "--out", run, "--quiet").exit_code == 0
    before = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    done = call_main("runs", "resume", run, "--engine", "in-process", "--quiet")
    assert done.exit_code == 0, done.output
    assert (run / "result.json").read_bytes() == before


def test_a_claim_that_falls_exits_with_1(tmp_path: Path) -> None:
    options = ["--noise-multiplier", "0", "--claim", "0.1", "--out", tmp_path / "run"]
    done = call(*SHORT, *options)
    assert done.exit_code == 1, done.output
    assert done.stdout.startswith("REFUTED: ")
    assert result_of(tmp_path / "run").claim.unit == "client"  # type: ignore[union-attr]
    check_replay(tmp_path / "run" / "result.json")


def test_options_are_settings(tmp_path: Path) -> None:
    options = ["--repetitions", "clients", "--clip", "0.3", "--cohort", "7", "--seed", "3"]
    done = call(*SHORT, *options, "--out", tmp_path / "run", "--quiet")
    assert done.exit_code == 0, done.output
    found = result_of(tmp_path / "run").provenance
    assert found.settings["repetitions"] is None
    assert found.settings["clip"] == {"type": "FixedClip", "norm": 0.3}
    assert found.settings["cohort"] == 7
    assert (found.seed, found.settings["source"]["seed"]) == (3, 3)
    file = tmp_path / "audit.toml"
    file.write_text(
        "[federated]\nrounds = 4\ncanaries = 300\nnoise_multiplier = 0.5\ncohort = 7\n"
        'clip = "fixed-clip:0.3"\n[federated.source]\ntype = "federated-task"\nseed = 3\n'
        "[audit]\ndelta = 1e-5\nseed = 3\n",
        "utf-8",
    )
    again = ["--config", file, "--repetitions", "clients", "--engine", "in-process", "--json"]
    text = (tmp_path / "run" / "result.json").read_text("utf-8")
    assert call(*again, "--out", tmp_path / "again").stdout == text


def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(40, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x=x, y=np.arange(40) % 10, writer=np.arange(40) % 4)
    lines = ["To be, or not to be, that is the question: whether 'tis nobler in the mind"] * 12
    with gzip.open(tmp_path / "shakespeare_roles.json.gz", "wt", encoding="utf-8") as file:
        json.dump({"HAMLET": lines, "GHOST": lines}, file)
    return tmp_path


@pytest.mark.parametrize("task", ["mnist-writers", "shakespeare"])
def test_other_tasks_come_from_a_folder(task: str, tmp_path: Path) -> None:
    data = folder(tmp_path)
    options = [*SHORT, "--task", task, "--rounds", "2", "--out", tmp_path / "run"]
    done = call(*options, EPSILOMETER_DATA=str(data))
    assert done.exit_code == 0, done.output
    assert f"DP-FedAvg on {task}" in done.stdout
    named = call(*options[:-1], tmp_path / "named", "--data", data)
    assert named.exit_code == 0, named.output
    one, other = result_of(tmp_path / "named"), result_of(tmp_path / "run")
    assert one.findings == other.findings
    ((file, digest),) = FederatedTask(task, data).fingerprints()  # type: ignore[arg-type]
    assert file in Store.open(tmp_path / "named").plan.inputs
    assert digest not in one.to_json()
    again = CliRunner().invoke(
        main,
        ["audit", str(tmp_path / "named" / "result.json"), "--engine", "in-process", "--json"],
        env={"EPSILOMETER_DATA": str(data)},  # it was named from elsewhere
    )
    assert again.stdout == (tmp_path / "named" / "result.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--task", "mnist-writers"], "EPSILOMETER_DATA"),
        (["--task", "shakespeare", "--data", "nowhere"], "nowhere"),
        (["--task", "shakespeare", "--data", "."], "shakespeare_roles.json.gz"),
        (["--task", "other"], "other"),
        (["--repetitions", "one"], "1,2,4,8"),
        (["--repetitions", "0"], "repetitions"),
        (["--repetitions", "5"], "at most 4 repetitions"),
        (["--canaries", "20000"], "trainable parameters"),
        (["--cohort", "2000"], "clients"),
        (["--noise-multiplier", "-1"], "noise_multiplier"),
        (["--clip", "0"], "norm"),
        (["--delta", "2"], "delta"),
        (["--noise", "loud"], "independent, tree, matrix"),
    ],
)
def test_bad_calls_are_told_in_one_line(options: list[Any], part: str, tmp_path: Path) -> None:
    done = call(*SHORT, *options, "--out", tmp_path / "run", EPSILOMETER_DATA="")
    assert done.exit_code == 2, done.output
    assert part in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.output
