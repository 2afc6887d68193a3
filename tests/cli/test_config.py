"""Files of settings: every field of every subject, and ``epsilometer audit``, which runs any."""

import dataclasses
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from epsilometer import DPSGD, Claim, UntilRefuted
from epsilometer._dispatch import call_from_sections
from epsilometer.audits.dpsgd.canaries import IN_WORDS
from epsilometer.core import judge
from epsilometer.core.serialisation import from_json
from epsilometer.core.settings import from_settings, to_settings
from tests.cli.calls import call, told
from tests.cli.described import in_toml

WHOLE = """
[dpsgd]
runs = 100
learning_rate = 1
batch_size = 50
noise_multiplier = 1.5
adversary = "worst_case"
adjacency = "add_remove"
sampler = "partial:100"
clip_norm = 0.5
precision = "float32"
optimizer = {type = "sgd", momentum = 0.9}
epochs = 2
direction = "dirac"
views = ["model", "updates"]
canaries = 200
initial = "given"
device = "cpu"
at_once = 10
title = "mine"
[dpsgd.source]
type = "model-on-records"
file = "records.npz"
label = "class"
records = 90
divide_by = 255
model = "mlp"
hidden = 16
[claim]
epsilon = 3
delta = 1e-6
adjacency = "add_remove"
unit = "record"
sampler = "Poisson"
accountant = "PLD"
[audit]
confidence = 0.99
until = "refuted"
seed = 7
"""


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("records.npz", x=rng.random((90, 4)), **{"class": np.arange(90) % 2})


@pytest.mark.usefixtures("records")
def test_every_key_can_be_given() -> None:
    plain = tomllib.loads(WHOLE)
    supplied = {"module", "data", "loss", "canary"}  # that a file cannot hold, but a source can
    given = {field.name for field in dataclasses.fields(DPSGD)} - supplied
    assert set(plain["dpsgd"]) == given
    found = call_from_sections(plain)
    assert found.claim == Claim(
        3.0, 1e-6, adjacency="add_remove", unit="record", sampler="Poisson", accountant="PLD"
    )
    assert (found.confidence, found.seed, found.until) == (0.99, 7, UntilRefuted())
    assert found.subject.views == ("model", "updates")
    assert found.subject.title == "mine"
    assert isinstance(found.claim.epsilon, float)
    assert isinstance(found.subject.learning_rate, float)


@pytest.mark.usefixtures("records")
def test_settings_give_the_same_subject_back() -> None:
    subject = call_from_sections(tomllib.loads(WHOLE)).subject
    written = json.loads(json.dumps(to_settings(subject)))
    assert to_settings(from_settings(DPSGD, written)) == written


@pytest.mark.usefixtures("records")
def test_one_and_one_point_nought_are_the_same_settings() -> None:
    """A plan is hashed by its text."""
    one, point = (
        json.dumps(to_settings(call_from_sections(tomllib.loads(text)).subject))
        for text in (WHOLE, WHOLE.replace("learning_rate = 1\n", "learning_rate = 1.0\n"))
    )
    assert one == point


@pytest.mark.parametrize("adversary", IN_WORDS)
@pytest.mark.usefixtures("records")
def test_every_adversary_can_be_asked_for(adversary: str) -> None:
    plain = tomllib.loads(WHOLE)
    plain["dpsgd"]["adversary"] = adversary
    assert call_from_sections(plain).subject.adversary == adversary


@pytest.mark.parametrize("name", ["dpsgd", "federated", "posterior"])
def test_what_is_bundled_is_on_data_that_are_here(name: str) -> None:
    text = resources.files("epsilometer").joinpath(f"data/{name}.toml").read_text("utf-8")
    found = call_from_sections(tomllib.loads(text))
    assert (found.delta if found.claim is None else found.claim.delta) == 1e-5
    assert found.subject.source.fingerprints() == ()


# ``epsilometer audit``


def write(folder: Path, **sections: Any) -> Path:
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {in_toml(each)}\n" for key, each in part.items())
        for name, part in sections.items()
    ]
    path = folder / "audit.toml"
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_any_subject_is_run_from_a_file(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        gaussian_mechanism={"sigma": 0.5, "dimension": 10_000, "canaries": 200},
        claim={"epsilon": 0.5, "delta": 1e-5},
    )
    done = call("audit", file, "--out", tmp_path / "run")
    assert done.exit_code == 1, done.output
    assert done.stdout.startswith("REFUTED: ")
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in done.stdout
    again = call("audit", tmp_path / "run" / "result.json", "--json", "--html", tmp_path / "p.html")
    assert again.stdout == (tmp_path / "run" / "result.json").read_text("utf-8")
    assert (tmp_path / "p.html").read_bytes() == (tmp_path / "run" / "report.html").read_bytes()
    assert call("audit", file, "--quiet").stdout == done.stdout.partition("\n")[0] + "\n"


def draw(runs: int, rng: Any) -> Any:
    from epsilometer import Scores

    return Scores(rng.normal(3, 1, runs), rng.normal(0, 1, runs))


def test_functions_are_imported_only_if_trusted(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        runs={"play": {"function": "tests.cli.test_config:draw"}, "runs": 100},
        audit={"delta": 1e-5},
    )
    assert "Expected --trust to import 'tests.cli.test_config:draw'" in told(call("audit", file))
    options = ("--engine", "in-process", "--json")
    done = call("audit", file, "--trust", *options)
    assert done.exit_code == 0, done.output
    assert from_json(done.stdout).verdict == judge.NO_CLAIM
    result = tmp_path / "audit.json"
    result.write_text(done.stdout, "utf-8")
    assert "--trust" in told(call("audit", result))
    assert call("audit", result, "--trust", *options).stdout == done.stdout


def test_trusted_modules_are_looked_for_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plays_here.py").write_text("from tests.cli.test_config import draw\n", "utf-8")
    file = write(
        tmp_path,
        runs={"play": {"function": "plays_here:draw"}, "runs": 100},
        audit={"delta": 1e-5},
    )
    assert call("audit", file, "--trust", "--engine", "in-process", "--quiet").exit_code == 0
    for wrong in ("nowhere:draw", "plays_here:nothing", "plays_here"):
        text = file.read_text("utf-8").replace("plays_here:draw", wrong)
        (tmp_path / "wrong.toml").write_text(text, "utf-8")
        assert "Runs.play as module:name" in told(call("audit", "wrong.toml", "--trust"))


def test_files_are_read_from_the_folder_that_is_named(tmp_path: Path) -> None:
    import numpy as np

    there = tmp_path / "there"
    there.mkdir()
    np.savez(there / "scores.npz", inside=np.full(90, 2.0), outside=np.zeros(90))
    done = call("estimate", there / "scores.npz", "--delta", 1e-5, "--claim", 1, "--json")
    assert str(tmp_path) not in done.stdout  # where it lay is nobody's business
    result = tmp_path / "audit.json"
    result.write_text(done.stdout, "utf-8")
    assert "scores.npz" in told(call("audit", result, "--json"))
    assert call("audit", result, "--json", "--data", there).stdout == done.stdout
    assert "nowhere" in told(call("audit", result, "--data", tmp_path / "nowhere"))


WRONG = [
    ({}, "Expected one section of [scores], "),
    ({"dpsgd": {}, "posterior": {}}, "got 'dpsgd', 'posterior'"),
    ({"shuffled_sgd": {"steps": 3}}, "Expected ShuffledSGD.noise_multiplier, got none"),
    ({"shuffled_sgd": {"steps": 3, "noise": 1}}, "got 'noise'"),
    ({"shuffled_sgd": {"steps": "3", "noise_multiplier": 1}}, "ShuffledSGD.steps"),
    (
        {"shuffled_sgd": {"steps": 3, "noise_multiplier": 1, "sampler": "poison"}},
        "ShuffledSGD.sampler",
    ),
    ({"shuffled_sgd": {"steps": 3, "noise_multiplier": 1}, "audit": {"sed": 1}}, "got 'sed'"),
    ({"shuffled_sgd": {"steps": 3, "noise_multiplier": 1}, "claim": {"epsilon": 1}}, "delta"),
    ({"scores": {"source": {"path": "x.csv"}}, "audit": {"delta": 0.1}}, "Scores.source"),
    (
        {"scores": {"source": {"type": "os:system", "command": "ls"}}, "audit": {"delta": 0.1}},
        "Expected --trust to import 'os:system'",
    ),
]


def test_a_missing_delta_is_told(tmp_path: Path) -> None:
    file = write(tmp_path, shuffled_sgd={"steps": 3, "noise_multiplier": 1})
    assert "Expected delta, got none" in told(call("audit", file))


@pytest.mark.parametrize(("sections", "said"), WRONG, ids=str)
def test_files_that_are_wrong_are_told(sections: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = write(tmp_path, **sections)
    line = told(call("audit", file))
    assert said in line
    assert "audit.toml" in line
