"""``epsilometer dpsgd``: real runs, their exit codes, crashes, and files that are wrong."""

import json
import os
import re
import shlex
import signal
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

from epsilometer import AuditGroup, AuditResult, from_json
from epsilometer.accounting import pld
from epsilometer.cli.config import from_plain, read_config
from epsilometer.cli.dpsgd import dpsgd_job_of
from epsilometer.engine.store import Store
from epsilometer.mechanisms.samplers import PartialShuffle
from epsilometer.training import memory
from epsilometer.training.optimizers import SGD
from tests.cli.calls import call, told
from tests.cli.described import audit_of, with_changes
from tests.faults.processes import started, until

pytestmark = pytest.mark.usefixtures("coarse")
DOCS = Path(__file__).parents[2] / "docs" / "dpsgd.md"
SMALL: dict[str, dict[str, Any]] = {
    "data": {"file": "digits", "records": 40},
    "model": {"name": "mlp", "hidden": 4},
    "training": {"batch_size": 10, "learning_rate": 0.1, "noise_multiplier": 0.3},
    "audit": {"delta": 1e-5, "runs": 60, "adversary": "worst_case", "views": ["updates"]},
}


audit = audit_of("dpsgd", SMALL)
changed = partial(with_changes, SMALL)


def result() -> AuditResult | AuditGroup:
    found = from_json(Path("run/result.json").read_text("utf-8"))
    assert isinstance(found, (AuditResult, AuditGroup))
    return found


@pytest.mark.parametrize(
    ("claim", "code", "verdict"),
    [(0.1, 1, "refuted"), (60.0, 0, "not refuted"), (None, 0, "no claim")],
)
def test_only_a_refuted_claim_exits_with_1(
    audit: Callable[..., Result], claim: float | None, code: int, verdict: str
) -> None:
    done = audit(audit={"claim": claim})
    assert done.exit_code == code, done.output
    (only,) = result().audits
    assert only.verdict == verdict
    assert only.bound.delta == 1e-5
    assert only.bound.n_in == only.bound.n_out == 60
    assert "DP-SGD of mlp on digits" in done.stdout
    assert Path("run/report.html").read_text("utf-8").lstrip().startswith("<!doctype html>")


def test_the_noise_is_what_the_claim_asks_for(audit: Callable[..., Result]) -> None:
    done = audit(training={"noise_multiplier": None}, audit={"claim": 3.0, "runs": 4})
    assert done.exit_code == 0, done.output
    noise = Store.open(Path("run")).plan.parameters["training"]["noise_multiplier"]
    found = pld.poisson_epsilon(
        noise_multiplier=noise, sampling_rate=1 / 4, steps=4, delta=1e-5, adjacency="zero_out"
    )
    assert found == pytest.approx(3.0, rel=1e-2)  # accountants are coarse here


def test_what_the_file_says_is_what_is_run() -> None:
    training = {
        "batch_size": 8,
        "learning_rate": 0.25,
        "epochs": 3,
        "momentum": 0.75,
        "clip_norm": 0.5,
        "noise_multiplier": 1.25,
        "sampler": "partial:16",
    }
    audit = {
        "runs": 12,
        "delta": 1e-4,
        "claim": 2.0,
        "adversary": "target_canary",
        "adjacency": "replace",
        "views": ["model", "loss"],
        "canaries": 30,
        "confidence": 0.9,
        "seed": 5,
    }
    config = from_plain(changed(training=training, audit=audit, model={"hidden": 3}))
    job = dpsgd_job_of(config, command="again", at_once=4)
    plan, trained = job.plan, job.plan.parameters["training"]
    assert (plan.audit, plan.command, plan.seed) == ("dpsgd", "again", 5)
    assert plan.parameters["at_once"] == 4
    assert plan.parameters["config"] == json.loads(json.dumps(config.plain()))
    for name in set(audit) - {"claim", "seed"}:
        assert plan.parameters[name] == audit[name], name
    assert plan.parameters["claim"]["epsilon"] == 2.0
    for name in set(training) - {"momentum", "sampler"}:
        assert trained[name] == training[name], name
    assert trained["sampler"] == repr(PartialShuffle(16))
    assert trained["optimizer"] == repr(SGD(momentum=0.75))
    game = job.runs.programs[0].play.__self__  # type: ignore[attr-defined]
    assert game.features.shape == (40, 8, 8)
    assert (game.features.min(), game.features.max()) == (0.0, 1.0)
    assert [p.numel() for p in game.training.module.parameters()] == [64 * 3, 3, 3 * 10, 10]


def test_threat_models_are_side_by_side(audit: Callable[..., Result]) -> None:
    views = ["updates", "model", "loss"]
    done = audit(audit={"claim": 50, "views": views, "canaries": 20, "runs": 20})
    assert done.exit_code == 0, done.output
    assert len(result().audits) == len(views) + 1  # and the one run with many canaries
    assert len({one.subject for one in result().audits}) == len(views) + 1


def test_the_command_that_is_named_does_it_again(audit: Callable[..., Result]) -> None:
    assert audit("--runs", 20, "--seed", 3).exit_code == 0
    first = Path("run/result.json").read_bytes()
    (only,) = result().audits
    words = shlex.split(only.provenance.command)
    assert words == [
        "epsilometer",
        "dpsgd",
        "--config",
        "audit.toml",
        "--runs",
        "20",
        "--seed",
        "3",
    ]
    assert only.bound.n_in == 20
    assert call(*words[1:], "--run", "again", "--engine", "threads", "--quiet").exit_code == 0
    assert Path("again/result.json").read_bytes() == first
    assert call(*words[1:-1], 4, "--run", "other", "--engine", "threads", "--quiet").exit_code == 0
    assert Path("other/result.json").read_bytes() != first


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet5"])
def test_every_model_on_images_from_a_file(
    audit: Callable[..., Result], name: str, rng: np.random.Generator
) -> None:
    np.savez("images.npz", x=rng.random((12, 12, 12), np.float32), y=np.arange(12) % 2)
    done = audit(
        data={"file": "images.npz", "records": None},
        model={"name": name, "hidden": None},
        training={"batch_size": 6},
        audit={"runs": 4},
    )
    assert done.exit_code == 0, done.output
    assert f"DP-SGD of {name} on images.npz" in done.stdout


def test_bytes_of_images_become_numbers_up_to_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.chdir(tmp_path)
    images = rng.integers(256, size=(40, 5, 5)).astype(np.uint8)
    np.savez("images.npz", x=images, y=np.arange(40) % 2)
    plain = changed(data={"file": "images.npz", "divide_by": 255})
    job = dpsgd_job_of(from_plain(plain), command="again")
    features = job.runs.programs[0].play.__self__.features  # type: ignore[attr-defined]
    np.testing.assert_array_equal(features, images.astype(np.float32) / np.float32(255))
    assert features.dtype == np.float32


def test_a_table_is_read_and_its_labels_named(audit: Callable[..., Result]) -> None:
    rows = [f"{i % 7},{'yes' if i % 3 else 'no'},{i % 5}" for i in range(20)]
    Path("people.csv").write_text("\n".join(["age,sick,visits", *rows]), "utf-8")
    parts = {"training": {"batch_size": 5}, "audit": {"runs": 4}}
    done = audit(data={"file": "people.csv", "label": "sick", "records": None}, **parts)
    assert done.exit_code == 0, done.output
    assert "DP-SGD of mlp on people.csv" in done.stdout


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "adam"},
        {"momentum": 0.9, "epochs": 2},
        {"sampler": "poisson"},
        {"sampler": "partial:20"},
        {"sampler": "balls-in-bins"},
        {"sampler": "without-replacement"},
        {"sampler": "batch-then-shuffle"},
    ],
    ids=str,
)
def test_every_way_of_training(audit: Callable[..., Result], training: dict[str, Any]) -> None:
    done = audit(training=training, audit={"runs": 4})
    assert done.exit_code == 0, done.output


def test_single_steps_of_poisson_batches_have_a_view_of_their_own(
    audit: Callable[..., Result],
) -> None:
    done = audit(
        training={"sampler": "poisson"},
        audit={"adversary": "target_canary", "views": ["updates", "steps"], "runs": 40},
    )
    assert done.exit_code == 0, done.output
    assert [one.subject.partition(", ")[2][:12] for one in result().audits] == [
        "all updates ",
        "single steps",
    ]


def test_a_run_stops_when_the_claim_has_fallen(audit: Callable[..., Result]) -> None:
    done = audit(
        training={"noise_multiplier": 0.2},
        audit={"claim": 0.1, "until_refuted": True, "runs": 2000},
    )
    assert done.exit_code == 1, done.output
    (only,) = result().audits
    assert only.bound.n_in < 2000


# Crashes


def test_a_run_that_was_killed_is_resumed_to_the_same_bytes(
    audit: Callable[..., Result], tmp_path: Path
) -> None:
    parts = {  # some units of a third of a second each
        "training": {"epochs": 10},
        "audit": {"claim": 0.1, "runs": 1500, "views": ["updates", "model"]},
    }
    assert audit(**parts).exit_code == 1
    expected = Path("run/result.json").read_bytes(), Path("run/report.html").read_bytes()
    program = (
        "import os, sys; os.chdir(sys.argv.pop(1)); from epsilometer.cli.main import main; main()"
    )
    options = ("--config", "audit.toml", "--run", "killed", "--engine", "in-process")
    with started("-c", program, tmp_path, "dpsgd", *options) as family:
        until(lambda: list(Path("killed").glob("shards/*.shard")), "a unit was finished")
        os.kill(family.process.pid, signal.SIGKILL)
        family.process.wait()
    assert not Path("killed/result.json").exists()
    Path("audit.toml").unlink()  # the plan holds what it said
    done = call("resume", "killed", "--engine", "threads", "--quiet")
    assert done.exit_code == 1, done.output
    got = Path("killed/result.json").read_bytes(), Path("killed/report.html").read_bytes()
    assert got == expected


def test_a_run_goes_on_although_memory_has_changed(
    audit: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many models are trained at once decides which draws they get."""
    assert audit(audit={"runs": 20}).exit_code == 0
    expected = Path("run/result.json").read_bytes()
    monkeypatch.setattr(memory, "at_once", lambda *_: 7)
    for go_on in (lambda: call("resume", "run", "--quiet"), lambda: audit(audit={"runs": 20})):
        Path("run/result.json").unlink()
        assert go_on().exit_code == 0
        assert Path("run/result.json").read_bytes() == expected


def test_weights_of_the_module_are_no_part_of_chance(audit: Callable[..., Result]) -> None:
    """The plan names them, so they must be the same in every process."""
    before = torch.random.get_rng_state()
    hashes = set()
    for run in ("run", "again"):
        torch.manual_seed(len(hashes))
        assert audit("--run", run, audit={"runs": 4}).exit_code == 0
        hashes.add(Store.open(Path(run)).plan.hash)
    assert len(hashes) == 1
    torch.random.set_rng_state(before)


def test_a_run_is_not_continued_with_other_records(
    audit: Callable[..., Result], rng: np.random.Generator
) -> None:
    features = rng.random((20, 3))
    np.savez("records.npz", x=features, y=np.arange(20) % 2)
    assert audit(data={"file": "records.npz", "records": None}, audit={"runs": 4}).exit_code == 0
    Path("run/result.json").unlink()
    features[7, 1] += 1
    np.savez("records.npz", x=features, y=np.arange(20) % 2)
    assert "with which the run began in 'records.npz', found others" in told(call("resume", "run"))
    Path("records.npz").unlink()
    assert "records.npz" in told(call("resume", "run"))


def test_a_plan_without_its_config_is_refused(audit: Callable[..., Result]) -> None:
    assert audit(audit={"runs": 4}).exit_code == 0
    plan = Store.open(Path("run")).plan
    for parameters in ({}, {"config": 3}, {"config": {"os": {"system": "ls"}}}):
        Path("run/plan.json").write_text(replace(plan, parameters=parameters).to_json(), "utf-8")
        assert "Expected" in told(call("resume", "run"))


# Bad input


WRONG: list[tuple[dict[str, dict[str, Any]], str]] = [
    ({"data": {"file": "nothing.npz"}}, "nothing.npz"),
    ({"data": {"file": "records.txt"}}, "records.txt"),
    ({"data": {"records": 0}}, "data.records from 1 to 1797"),
    ({"data": {"records": 1798}}, "data.records from 1 to 1797"),
    ({"data": {"label": "digit"}}, "data.label"),
    ({"data": {"divide_by": 16}}, "data.divide_by"),
    ({"model": {"name": "lenet5", "hidden": None}}, "12x12 or more for lenet5, got 8x8"),
    ({"model": {"hidden": 0}}, "hidden"),
    ({"training": {"batch_size": 0}}, "batch_size"),
    ({"training": {"batch_size": 41}}, "41"),
    ({"training": {"epochs": 0}}, "epochs"),
    ({"training": {"learning_rate": -1}}, "learning_rate"),
    ({"training": {"clip_norm": 0}}, "clip_norm"),
    ({"training": {"momentum": -0.5}}, "momentum"),
    ({"training": {"noise_multiplier": -1}}, "training.noise_multiplier > 0"),
    ({"training": {"noise_multiplier": 0}}, "training.noise_multiplier > 0"),
    ({"training": {"sampler": "magic"}}, "got 'magic'"),
    ({"training": {"device": "abacus"}}, "abacus"),
    ({"audit": {"claim": -1}}, "epsilon"),
    ({"audit": {"delta": 0}}, "delta"),
    ({"audit": {"delta": 2}}, "delta"),
    ({"audit": {"runs": 0}}, "runs"),
    ({"audit": {"canaries": -1}}, "canaries"),
    ({"audit": {"confidence": 1}}, "confidence"),
    ({"audit": {"seed": -1}}, "audit.seed ≥ 0, got -1"),
    ({"audit": {"views": ["steps"]}}, "target_canary"),
    ({"audit": {"views": ["steps"], "adversary": "target_canary"}}, "Poisson"),
    ({"audit": {"until_refuted": True, "claim": 1, "canaries": 50}}, "until"),
    ({"audit": {"adversary": "magic"}}, "audit.toml: Expected audit.adversary"),
    ({"training": {"noise_multiplier": None}}, "audit.claim or training.noise_multiplier"),
]


@pytest.mark.parametrize(("parts", "said"), WRONG, ids=str)
def test_bad_configs_are_told_in_one_line(
    audit: Callable[..., Result], parts: dict[str, dict[str, Any]], said: str
) -> None:
    line = told(audit(**parts))
    assert said in line
    assert not Path("run").exists()  # told before anything is begun


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.zeros((20, 3)), np.zeros(19), "(20, 3) and (19,)"),
        (np.full((20, 3), np.nan), np.zeros(20), "finite"),
        (np.zeros((5, 3)), np.zeros(5), "10"),
    ],
    ids=["shapes", "nan", "few"],
)
def test_bad_records_are_told_in_one_line(
    audit: Callable[..., Result], x: Any, y: Any, said: str
) -> None:
    np.savez("records.npz", x=x, y=y)
    assert said in told(audit(data={"file": "records.npz", "records": None}))


def test_a_device_that_is_not_there_is_told(audit: Callable[..., Result]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "cuda" in told(audit(training={"device": "cuda"}))


@pytest.mark.parametrize(
    "options", [["--runs", "1"], ["--seed", "-1"], ["--config", "nothing.toml"]]
)
def test_bad_options_are_told_in_one_line(audit: Callable[..., Result], options: list[str]) -> None:
    told(audit(*options))


# Documentation


def examples() -> list[str]:
    return re.findall(r"```toml\n(.*?)```", DOCS.read_text("utf-8"), re.S)


@pytest.mark.parametrize("text", examples())
def test_the_examples_of_the_documentation_run(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("records.npz", x=rng.random((120, 28, 28), np.float32), y=np.arange(120) % 2)
    Path("audit.toml").write_text(text, "utf-8")
    options = ("--runs", 4, "--engine", "in-process", "--quiet")
    done = call("dpsgd", "--config", "audit.toml", *options)
    assert done.exit_code in (0, 1), done.output


def test_every_key_is_documented() -> None:
    text = DOCS.read_text("utf-8")
    for name, part in read_config(None).plain().items():
        for key in part:
            assert re.search(rf"`{name}\.{key}`", text), (name, key)


def test_the_bundled_audit_is_an_example_of_the_documentation() -> None:
    assert read_config(None) in [from_plain(tomllib.loads(text)) for text in examples()]
