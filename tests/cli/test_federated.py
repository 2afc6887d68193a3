"""``epsilometer federated``: a table, a report, a run that can be finished."""

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from epsilometer import from_json
from epsilometer.cli.main import main
from epsilometer.results import AuditGroup

pytest.importorskip("sklearn")
SHORT = ["--rounds", "4", "--canaries", "300", "--engine", "in-process", "--quiet"]


def call(*arguments: object, **environment: str) -> Result:
    words = ["federated", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(main, words, env=environment)


def result_of(directory: Path) -> AuditGroup:
    group = from_json((directory / "result.json").read_text("utf-8"))
    assert isinstance(group, AuditGroup)
    return group


def test_a_table_a_report_and_a_page_are_written(tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "out.html"
    done = call(*SHORT, "--repetitions", "1,2", "--run", run, "--html", page)
    assert done.exit_code == 0, done.output
    assert page.read_text("utf-8") == (run / "report.html").read_text("utf-8")
    assert f"Also written: {page}\n" in done.stdout
    group = result_of(run)
    assert len(group.results) == 4
    rows = done.stdout.partition("who sees what")[2]
    for said in ("each canary once", "each canary 2 times", "final", "all rounds"):
        assert said in " ".join(rows.split())
    again = tmp_path / "again"
    words = shlex.split(group.results[0].provenance.command)[2:]
    done = call(*words, "--run", again, "--quiet", "--engine", "in-process")
    assert done.exit_code == 0, done.output
    assert result_of(again) == group


@pytest.mark.parametrize("noise", ["tree", "matrix"])
def test_correlated_noise_is_accounted_as_such(noise: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = call(*SHORT, "--noise", noise, "--repetitions", "2", "--run", run)
    assert done.exit_code == 0, done.output
    plain = call(*SHORT, "--repetitions", "2", "--run", tmp_path / "plain")
    assert plain.exit_code == 0, plain.output
    promised, alone = (
        result_of(where).results[0].claim.epsilon for where in (run, tmp_path / "plain")
    )
    assert promised > alone  # at the same noise multiplier: one round is in the noise of others


def test_a_run_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(*SHORT, "--run", run).exit_code == 0
    before = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    done = CliRunner().invoke(main, ["resume", str(run), "--engine", "in-process", "--quiet"])
    assert done.exit_code == 0, done.output
    assert (run / "result.json").read_bytes() == before


def test_a_claim_that_falls_exits_with_1(tmp_path: Path) -> None:
    options = ["--noise-multiplier", "0", "--claim", "0.1", "--run", tmp_path / "run"]
    done = call(*SHORT, *options)
    assert done.exit_code == 1, done.output
    assert "REFUTED" in done.stdout


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
    options = [*SHORT, "--task", task, "--rounds", "2", "--run", tmp_path / "run"]
    done = call(*options, EPSILOMETER_DATA=str(data))
    assert done.exit_code == 0, done.output
    assert f"DP-FedAvg on {task}" in done.stdout
    named = call(*options[:-1], tmp_path / "named", "--data", data)
    assert named.exit_code == 0, named.output
    assert result_of(tmp_path / "named") == result_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--task", "mnist-writers"], "EPSILOMETER_DATA"),
        (["--task", "shakespeare", "--data", "nowhere"], "shakespeare_roles.json.gz"),
        (["--task", "other"], "other"),
        (["--repetitions", "one"], "1,2,4,8"),
        (["--repetitions", "0"], "repetitions"),
        (["--repetitions", "5"], "at most 4 repetitions"),
        (["--canaries", "20000"], "trainable parameters"),
        (["--cohort", "2000"], "clients"),
        (["--noise-multiplier", "-1"], "noise_multiplier"),
        (["--clip", "0"], "norm"),
        (["--delta", "2"], "delta"),
    ],
)
def test_bad_calls_are_told_in_one_line(options: list[Any], part: str, tmp_path: Path) -> None:
    done = call(*SHORT, *options, "--run", tmp_path / "run", EPSILOMETER_DATA="")
    assert done.exit_code == 2, done.output
    assert part in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.output
