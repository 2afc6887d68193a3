"""``epsilometer dpsgd``: real runs, their exit codes, crashes, and files that are wrong."""

import os
import re
import signal
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

from epsilometer import DPSGD, Audit, Claim, InProcess, load
from epsilometer._dispatch import Call, call_from_sections
from epsilometer.accounting import pld
from epsilometer.audits.dpsgd.source import ModelOnRecords
from epsilometer.core import judge
from epsilometer.engine.store import Store
from epsilometer.networks import ensemble
from epsilometer.networks.optimizers import SGD
from epsilometer.samplers import PartialShuffle
from tests.cli.calls import call, told
from tests.cli.described import audit_of, check_replay, with_changes
from tests.faults.processes import started, until

DOCS = Path(__file__).parents[2] / "docs" / "dpsgd.md"
SMALL: dict[str, dict[str, Any]] = {
    "subject": {
        "runs": 60,
        "batch_size": 10,
        "learning_rate": 0.1,
        "noise_multiplier": 0.3,
        "adversary": "worst_case",
        "views": ["updates"],
    },
    "source": {"type": "model-on-records", "file": "digits", "records": 40, "hidden": 4},
    "claim": {},
    "audit": {"delta": 1e-5},
}


audit = audit_of("dpsgd", SMALL)
changed = partial(with_changes, SMALL)


def result() -> Audit:
    return load("run")


def described(**parts: dict[str, Any]) -> Call:
    """What a file with these changes asks for."""
    plain = changed(**parts)
    asked = {name: plain[name] for name in ("claim", "audit") if plain[name]}
    return call_from_sections({"dpsgd": {**plain["subject"], "source": plain["source"]}, **asked})


def claimed(epsilon: float | None) -> dict[str, Any]:
    return {} if epsilon is None else {"epsilon": epsilon, "delta": 1e-5}


@pytest.mark.parametrize(
    ("claim", "code", "verdict"),
    [
        (0.1, 1, judge.REFUTED),
        (2.51, 0, judge.NOT_REFUTED),
        (60.0, 4, judge.CANNOT_JUDGE),
        (None, 0, judge.NO_CLAIM),
    ],
)
def test_the_verdict_decides_the_exit_code(
    audit: Callable[..., Result], claim: float | None, code: int, verdict: str
) -> None:
    done = audit(claim=claimed(claim), subject={"noise_multiplier": 0.6})
    assert done.exit_code == code, done.output
    assert result().verdict == verdict
    (bound,) = result().bounds
    assert bound.delta == 1e-5
    assert bound.n_in == bound.n_out == 60
    assert "DP-SGD of mlp on digits" in done.stdout
    assert Path("run/report.html").read_text("utf-8").lstrip().startswith("<!doctype html>")


def test_the_noise_is_what_the_claim_asks_for(audit: Callable[..., Result]) -> None:
    done = audit(subject={"noise_multiplier": None, "runs": 4}, claim=claimed(3.0))
    assert done.exit_code == 4, done.output  # four runs cannot judge it
    noise = Store.open(Path("run")).plan.parameters["follows"]["noise_multiplier"]
    found = pld.poisson_epsilon(
        noise_multiplier=noise, sampling_rate=1 / 4, steps=4, delta=1e-5, adjacency="zero_out"
    )
    assert found == pytest.approx(3.0, rel=1e-4)


def test_what_the_file_says_is_what_is_run() -> None:
    settings = {
        "runs": 12,
        "batch_size": 8,
        "learning_rate": 0.25,
        "epochs": 3,
        "clip_norm": 0.5,
        "noise_multiplier": 1.25,
        "adversary": "target_canary",
        "adjacency": "replace",
        "views": ["model", "loss"],
        "canaries": 30,
        "at_once": 4,
    }
    chosen = {
        "optimizer": {"type": "sgd", "momentum": 0.75},
        "sampler": "partial:16",
    }
    found = described(
        subject={**settings, **chosen},
        source={"hidden": 3},
        claim={"epsilon": 2.0, "delta": 1e-4, "accountant": "RDP"},
        audit={"delta": None, "confidence": 0.9, "seed": 5},
    )
    assert (found.seed, found.confidence, found.until) == (5, 0.9, None)
    assert found.claim == Claim(2.0, delta=1e-4, accountant="RDP")
    subject = found.subject
    for name, value in settings.items():
        assert getattr(subject, name) == (tuple(value) if isinstance(value, list) else value), name
    assert subject.sampler == PartialShuffle(16)
    assert subject.optimizer == SGD(momentum=0.75)
    assert subject.source == ModelOnRecords("digits", records=40, hidden=3)
    features, _ = subject.data
    assert features.shape == (40, 8, 8)
    assert (features.min(), features.max()) == (0.0, 1.0)
    assert [p.numel() for p in subject.module.parameters()] == [64 * 3, 3, 3 * 10, 10]


def test_options_say_the_same_as_a_file(audit: Callable[..., Result]) -> None:
    assert audit().exit_code == 0
    options = (
        *("--file", "digits", "--records", 40, "--hidden", 4, "--runs", 60, "--batch-size", 10),
        *("--learning-rate", 0.1, "--noise-multiplier", 0.3, "--adversary", "worst_case"),
        *("--views", "updates", "--delta", 1e-5, "--engine", "in-process", "--quiet"),
    )
    done = call("dpsgd", *options, "--out", "options")
    assert done.exit_code == 0, done.output
    assert Path("options/result.json").read_bytes() == Path("run/result.json").read_bytes()
    told_line = told(call("dpsgd", "--file", "digits", "--delta", 1e-5, "--quiet"))
    assert (
        "Expected DPSGD.runs, got none" in told_line
    )  # nothing of the bundled example is mixed in


def test_options_replace_what_the_file_says(audit: Callable[..., Result]) -> None:
    file = {"claim": claimed(0.1)}
    done = audit("--runs", 20, "--seed", 3, "--claim", 0.2, "--confidence", 0.9, **file)
    assert done.exit_code == 1, done.output
    found = result()
    assert found.bounds[0].n_in == 20
    assert (found.provenance.seed, found.confidence) == (3, 0.9)
    assert found.claim is not None
    assert (found.claim.epsilon, found.claim.delta) == (0.2, 1e-5)
    other = audit("--delta", 1e-6, "--out", "other", **file)
    assert other.exit_code == 1, other.output
    claim = load("other").claim
    assert claim is not None
    assert (claim.epsilon, claim.delta) == (0.1, 1e-6)


def test_threat_models_are_side_by_side(audit: Callable[..., Result]) -> None:
    views = ["updates", "model", "loss"]
    done = audit(subject={"views": views, "canaries": 20, "runs": 20})
    assert done.exit_code == 0, done.output
    assert len(result().views) == len(views) + 1  # and the one run with many canaries
    assert len({one.subject for one in result().views}) == len(views) + 1


def test_a_result_is_run_again_to_the_same_bytes(audit: Callable[..., Result]) -> None:
    file = {"subject": {"noise_multiplier": None}, "claim": claimed(3.195138)}
    audit("--runs", 20, "--seed", 3, **file)
    assert result().claim.epsilon == 3.195138  # type: ignore[union-attr]
    check_replay(Path("run/result.json"))
    audit("--runs", 20, "--seed", 4, "--out", "other", **file)
    assert Path("other/result.json").read_bytes() != Path("run/result.json").read_bytes()


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet5"])
def test_every_model_on_images_from_a_file(
    audit: Callable[..., Result], name: str, rng: np.random.Generator
) -> None:
    np.savez("images.npz", x=rng.random((12, 12, 12), np.float32), y=np.arange(12) % 2)
    done = audit(
        source={"file": "images.npz", "records": None, "model": name, "hidden": None},
        subject={"batch_size": 6, "runs": 4},
    )
    assert done.exit_code == 0, done.output
    assert f"DP-SGD of {name} on images.npz" in done.stdout


def test_bytes_of_images_become_numbers_up_to_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.chdir(tmp_path)
    images = rng.integers(256, size=(40, 5, 5)).astype(np.uint8)
    np.savez("images.npz", x=images, y=np.arange(40) % 2)
    subject = described(source={"file": "images.npz", "divide_by": 255}).subject
    features, _ = subject.data
    np.testing.assert_array_equal(features, images.astype(np.float32) / np.float32(255))
    assert features.dtype == np.float32


def test_a_table_is_read_and_its_labels_named(audit: Callable[..., Result]) -> None:
    rows = [f"{i % 7},{'yes' if i % 3 else 'no'},{i % 5}" for i in range(20)]
    Path("people.csv").write_text("\n".join(["age,sick,visits", *rows]), "utf-8")
    source = {"file": "people.csv", "label": "sick", "records": None}
    done = audit(source=source, subject={"batch_size": 5, "runs": 4})
    assert done.exit_code == 0, done.output
    assert "DP-SGD of mlp on people.csv" in done.stdout


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "adam"},
        {"optimizer": {"type": "SGD", "momentum": 0.9}, "epochs": 2},
        {"optimizer": "sgd:0.9"},
        {"sampler": "poisson"},
        {"sampler": "partial:20"},
        {"sampler": "balls-in-bins"},
        {"sampler": "without-replacement"},
        {"sampler": "batch-then-shuffle"},
    ],
    ids=str,
)
def test_every_way_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = described(subject={**training, "runs": 4})
    assert found.run(engine=InProcess()).verdict == judge.NO_CLAIM


def test_single_steps_of_poisson_batches_have_a_view_of_their_own(
    audit: Callable[..., Result],
) -> None:
    done = audit(
        subject={
            "sampler": "poisson",
            "adversary": "target_canary",
            "views": ["updates", "steps"],
            "runs": 40,
        },
    )
    assert done.exit_code == 0, done.output
    assert [one.subject.partition(", ")[2][:12] for one in result().views] == [
        "all updates ",
        "single steps",
    ]


def test_a_run_stops_when_the_claim_has_fallen(audit: Callable[..., Result]) -> None:
    done = audit(
        subject={"noise_multiplier": 0.2, "runs": 2000},
        claim=claimed(0.1),
        audit={"delta": None, "until": "refuted"},
    )
    assert done.exit_code == 1, done.output
    assert result().bounds[0].n_in < 2000


# Crashes


@pytest.mark.slow
def test_a_run_that_was_killed_is_resumed_to_the_same_bytes(
    audit: Callable[..., Result], tmp_path: Path
) -> None:
    parts = {  # some units of a third of a second each
        "subject": {"epochs": 10, "runs": 1500, "views": ["updates", "model"]},
        "claim": claimed(0.1),
    }
    assert audit(**parts).exit_code == 1
    expected = Path("run/result.json").read_bytes(), Path("run/report.html").read_bytes()
    program = (
        "import os, sys; os.chdir(sys.argv.pop(1)); from epsilometer.cli.main import main; main()"
    )
    options = ("--config", "audit.toml", "--out", "killed", "--engine", "in-process")
    with started("-c", program, tmp_path, "dpsgd", *options) as family:
        until(lambda: list(Path("killed").glob("shards/*.shard")), "a unit was finished")
        os.kill(family.process.pid, signal.SIGKILL)
        family.process.wait()
    assert not Path("killed/result.json").exists()
    Path("audit.toml").unlink()  # the plan holds what it said
    done = call("runs", "resume", "killed", "--engine", "threads", "--quiet")
    assert done.exit_code == 1, done.output
    got = Path("killed/result.json").read_bytes(), Path("killed/report.html").read_bytes()
    assert got == expected


def test_a_run_goes_on_although_memory_has_changed(
    audit: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many models are trained at once decides which draws they get."""
    assert audit(subject={"runs": 20}).exit_code == 0
    expected = Path("run/result.json").read_bytes()
    monkeypatch.setattr(ensemble, "choose_at_once", lambda *_: 7)
    for go_on in (
        lambda: call("runs", "resume", "run", "--quiet"),
        lambda: audit(subject={"runs": 20}),
    ):
        Path("run/result.json").unlink()
        assert go_on().exit_code == 0
        assert Path("run/result.json").read_bytes() == expected


def test_weights_of_the_module_are_no_part_of_chance(audit: Callable[..., Result]) -> None:
    """The plan names them, so they must be the same in every process."""
    before = torch.random.get_rng_state()
    for seed in (0, 1):  # with other weights, the second would be refused as another run
        torch.manual_seed(seed)
        done = audit("--out", "run", subject={"runs": 4})
        assert done.exit_code == 0, done.output
    torch.random.set_rng_state(before)


def test_a_run_is_not_continued_with_other_records(
    audit: Callable[..., Result], rng: np.random.Generator
) -> None:
    features = rng.random((20, 3))
    np.savez("records.npz", x=features, y=np.arange(20) % 2)
    source = {"file": "records.npz", "records": None}
    assert audit(source=source, subject={"runs": 4}).exit_code == 0
    Path("run/result.json").unlink()
    features[7, 1] += 1
    np.savez("records.npz", x=features, y=np.arange(20) % 2)
    line = told(call("runs", "resume", "run"))
    assert "Expected no other run in " in line
    assert "other data in records.npz" in line
    Path("records.npz").unlink()
    assert "records.npz" in told(call("runs", "resume", "run"))


def test_a_plan_without_its_settings_is_refused(audit: Callable[..., Result]) -> None:
    assert audit(subject={"runs": 4}).exit_code == 0
    plan = Store.open(Path("run")).plan
    whole = dict(plan.parameters)
    for parameters in (
        {},
        {**whole, "settings": 3},
        {**whole, "settings": {"os": {"system": "ls"}}},
        {**whole, "claim": 3},
        {**whole, "until": {"type": "os.system"}},
        {**whole, "settings": {**whole["settings"], "source": {"type": "os:system"}}},
    ):
        Path("run/plan.json").write_text(replace(plan, parameters=parameters).to_json(), "utf-8")
        assert "Expected" in told(call("runs", "resume", "run"))


# Bad input


WRONG: list[tuple[dict[str, dict[str, Any]], str]] = [
    ({"source": {"file": "nothing.npz"}}, "nothing.npz"),
    ({"source": {"file": "records.txt"}}, "records.txt"),
    ({"source": {"file": 3}}, "ModelOnRecords.file"),
    ({"source": {"fle": "x"}}, "among file, label, records, divide_by, model, hidden, got 'fle'"),
    ({"source": {"records": 0}}, "records from 1 to 1797"),
    ({"source": {"records": 1798}}, "records from 1 to 1797"),
    ({"source": {"records": "all"}}, "ModelOnRecords.records"),
    ({"source": {"label": "digit"}}, "no label"),
    ({"source": {"divide_by": 16}}, "no divide_by"),
    ({"source": {"divide_by": 0}}, "divide_by > 0"),
    ({"source": {"model": "lenet5", "hidden": None}}, "12x12 or more for lenet5, got 8x8"),
    ({"source": {"model": "cnn"}}, "no hidden with model='cnn'"),
    ({"source": {"model": "resnet"}}, "ModelOnRecords.model"),
    ({"source": {"hidden": 0}}, "hidden"),
    ({"source": {"hidden": 1.5}}, "hidden"),
    ({"source": {"type": "magic"}}, "type among"),
    ({"source": {"type": None}}, "source"),
    ({"subject": {"runs": None}}, "Expected DPSGD.runs, got none"),
    ({"subject": {"batch_size": None}}, "Expected DPSGD.batch_size, got none"),
    ({"subject": {"learning_rate": None}}, "Expected DPSGD.learning_rate, got none"),
    ({"subject": {"lr": 0.1}}, "got 'lr'"),
    ({"subject": {"batch_size": 0}}, "batch_size"),
    ({"subject": {"batch_size": 41}}, "41"),
    ({"subject": {"batch_size": "50"}}, "batch_size"),
    ({"subject": {"batch_size": 50.5}}, "batch_size"),
    ({"subject": {"batch_size": True}}, "batch_size"),
    ({"subject": {"epochs": 0}}, "epochs"),
    ({"subject": {"learning_rate": -1}}, "learning_rate"),
    ({"subject": {"learning_rate": "fast"}}, "learning_rate"),
    ({"subject": {"clip_norm": 0}}, "clip_norm"),
    ({"subject": {"optimizer": {"type": "sgd", "momentum": -0.5}}}, "momentum"),
    ({"subject": {"optimizer": {"type": "adam", "momentum": 0.5}}}, "got 'momentum'"),
    ({"subject": {"optimizer": "lion"}}, "lion"),
    ({"subject": {"noise_multiplier": -1}}, "noise_multiplier ≥ 0"),
    ({"subject": {"noise_multiplier": "auto"}}, "noise_multiplier"),
    ({"subject": {"sampler": "magic"}}, "'magic'"),
    ({"subject": {"sampler": 1}}, "sampler"),
    ({"subject": {"device": "abacus"}}, "abacus"),
    ({"claim": {"epsilon": -1, "delta": 1e-5}}, "epsilon"),
    ({"claim": {"epsilon": [1.0], "delta": 1e-5}}, "epsilon"),
    ({"claim": {"epsilon": 1.0, "delta": 1e-6}}, "Expected delta to be the claim's 1e-06"),
    ({"claim": {"eps": 1.0}}, "got 'eps'"),
    ({"audit": {"delta": 0}}, "delta"),
    ({"audit": {"delta": 1}}, "delta"),
    ({"audit": {"delta": 2}}, "delta"),
    ({"audit": {"delta": None}}, "delta"),
    ({"audit": {"epsilon": 1.0}}, "got 'epsilon'"),
    ({"audit": {"confidence": 1}}, "confidence"),
    ({"audit": {"seed": -1}}, "seed ≥ 0, got -1"),
    ({"audit": {"until": "bored"}}, "one of refuted, narrow"),
    ({"audit": {"until": "refuted"}}, "claim"),
    ({"training": {"runs": 5}}, "[training]"),
    ({"subject": {"runs": 0}}, "runs"),
    ({"subject": {"canaries": -1}}, "canaries"),
    ({"subject": {"views": ["steps"]}}, "target_canary"),
    ({"subject": {"views": ["steps"], "adversary": "target_canary"}}, "Poisson"),
    ({"subject": {"views": "updates"}}, "views"),
    ({"subject": {"views": ["updates", "mind"]}}, "views"),
    ({"subject": {"views": []}}, "views"),
    ({"subject": {"views": ["model", "model"]}}, "views"),
    ({"subject": {"adjacency": "unstated"}}, "adjacency"),
    (
        {
            "subject": {"canaries": 50},
            "claim": {"epsilon": 1.0, "delta": 1e-5},
            "audit": {"until": "refuted"},
        },
        "until",
    ),
    ({"subject": {"adversary": "magic"}}, "audit.toml: DPSGD.adversary"),
    ({"subject": {"noise_multiplier": None}}, "noise_multiplier"),
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
    assert said in told(audit(source={"file": "records.npz", "records": None}))


def test_a_device_that_is_not_there_is_told(audit: Callable[..., Result]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "cuda" in told(audit(subject={"device": "cuda"}))


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
    assert done.exit_code in (0, 1, 4), done.output


def test_every_key_is_documented() -> None:
    text = DOCS.read_text("utf-8")
    brought = {"module", "data", "canary", "source"}  # that are data, and no keys
    for part, left_out in ((DPSGD, brought), (ModelOnRecords, set())):
        for each in fields(part):
            if each.name not in left_out:
                assert re.search(rf"`{each.name}`", text), (part.__name__, each.name)


def test_the_bundled_audit_is_an_example_of_the_documentation() -> None:
    text = resources.files("epsilometer").joinpath("data/dpsgd.toml").read_text("utf-8")
    assert tomllib.loads(text) in [tomllib.loads(example) for example in examples()]


def test_windows_writes_a_mark_first(audit: Callable[..., Result]) -> None:
    audit("--runs", 1)
    text = Path("audit.toml").read_text("utf-8")
    Path("marked.toml").write_text(text, "utf-8-sig")
    assert "runs" in told(call("dpsgd", "--config", "marked.toml", "--runs", 1))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[dpsgd", "TOML"),
        (b"\xff", "Expected text"),
        (b"", "audit.toml: Expected DPSGD.module, got none"),
        (b"dpsgd = 3", "section [dpsgd]"),
        (b"audit = 3\n[dpsgd]\nruns = 4", "audit"),
        (b"[posterior]\nruns = 4", "[posterior]"),
    ],
)
def test_files_that_are_no_config_are_told(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_bytes(content)
    line = told(call("dpsgd", "--config", path))
    assert said in line
    assert "audit.toml" in line
    for missing in (tmp_path / "nothing.toml", tmp_path):
        assert str(missing) in told(call("dpsgd", "--config", missing))


def test_a_claim_may_be_a_number_beside_the_delta_of_the_audit(tmp_path: Path) -> None:
    sections = {"dpsgd": {**SMALL["subject"], "source": SMALL["source"]}}
    found = call_from_sections({**sections, "claim": 3, "audit": {"delta": 1e-5}})
    assert found.claim == Claim(3.0, delta=1e-5)
