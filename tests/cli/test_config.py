"""The file of ``epsilometer dpsgd``: what it may say, and how it is told what it may not."""

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from epsilometer.canaries.gradient import IN_WORDS
from epsilometer.cli.config import Audit, Config, Data, Model, Training, from_plain, read_config
from epsilometer.errors import InvalidArgument, UnreadableFile

WHOLE = """
[data]
file = "records.npz"
label = "class"
records = 500
divide_by = 255
[model]
name = "mlp"
hidden = 16
[training]
batch_size = 50
epochs = 2
learning_rate = 1
momentum = 0.9
optimizer = "sgd"
clip_norm = 0.5
noise_multiplier = 1.5
sampler = "partial:100"
device = "cpu"
[audit]
adversary = "worst_case"
adjacency = "add_remove"
claim = 3
delta = 1e-6
runs = 100
views = ["model", "loss"]
canaries = 200
confidence = 0.99
until_refuted = true
seed = 7
"""
LEAST = """
data.file = "records.csv"
training = {batch_size = 50, learning_rate = 0.1}
audit = {delta = 1e-5, runs = 100, claim = 1.0}
"""


def test_every_key_can_be_given() -> None:
    plain = tomllib.loads(WHOLE)
    for name, kind in (("data", Data), ("model", Model), ("training", Training), ("audit", Audit)):
        assert set(plain[name]) == {part.name for part in fields(kind)}
    config = from_plain(plain)
    assert config.training == Training(
        batch_size=50,
        epochs=2,
        learning_rate=1.0,
        momentum=0.9,
        clip_norm=0.5,
        noise_multiplier=1.5,
        sampler="partial:100",
    )
    assert config.audit.views == ("model", "loss")
    assert config.data == Data(file="records.npz", label="class", records=500, divide_by=255.0)
    assert isinstance(config.audit.claim, float)


@pytest.mark.parametrize("text", [WHOLE, LEAST])
def test_a_plan_gives_the_same_config_back(text: str) -> None:
    config = from_plain(tomllib.loads(text))
    assert from_plain(json.loads(json.dumps(config.plain()))) == config


def test_one_and_one_point_nought_are_the_same_plan() -> None:
    """A plan is hashed by its text."""
    whole, point = (
        json.dumps(from_plain(tomllib.loads(WHOLE.replace("= 3\n", text))).plain())
        for text in ("= 3\n", "= 3.0\n")
    )
    assert whole == point


def test_what_is_bundled_is_read_without_a_file() -> None:
    config = read_config(None)
    assert isinstance(config, Config)
    assert config.data.file == "digits"


@pytest.mark.parametrize("adversary", IN_WORDS)
def test_every_adversary_can_be_asked_for(adversary: str) -> None:
    plain = tomllib.loads(LEAST)
    plain["audit"]["adversary"] = adversary
    assert from_plain(plain).audit.adversary == adversary


WRONG = [
    # section, key, value (None: not given), what is said
    ("data", "file", None, "Expected data.file, text, got none."),
    ("training", "batch_size", None, "Expected training.batch_size, a whole number, got none."),
    ("training", "learning_rate", None, "Expected training.learning_rate, a number, got none."),
    ("audit", "delta", None, "Expected audit.delta, a number, got none."),
    ("audit", "runs", None, "Expected audit.runs, a whole number, got none."),
    ("data", "fle", "x", "Expected a key of [data] of file, label, records, divide_by, got 'fle'."),
    ("training", "lr", 0.1, "got 'lr'"),
    ("audit", "epsilon", 1.0, "got 'epsilon'"),
    ("data", "file", 3, "Expected data.file to be text, got 3."),
    ("data", "label", 3, "Expected data.label to be text, got 3."),
    ("data", "records", "all", "Expected data.records to be a whole number, got 'all'."),
    ("data", "divide_by", 0, "Expected data.divide_by > 0 and finite, got 0.0."),
    ("model", "name", "resnet", "Expected model.name to be one of mlp, lenet5, cnn, got 'resnet'."),
    ("model", "hidden", 1.5, "Expected model.hidden to be a whole number, got 1.5."),
    ("training", "batch_size", "50", "training.batch_size to be a whole number, got '50'."),
    ("training", "batch_size", 50.0, "training.batch_size to be a whole number, got 50.0."),
    ("training", "batch_size", True, "training.batch_size to be a whole number, got True."),
    ("training", "learning_rate", "fast", "training.learning_rate to be a number, got 'fast'."),
    ("training", "learning_rate", True, "training.learning_rate to be a number, got True."),
    ("training", "optimizer", "lion", "training.optimizer to be one of sgd, adam, got 'lion'."),
    ("training", "noise_multiplier", "auto", "to be a number, got 'auto'."),
    ("training", "sampler", 1, "training.sampler to be text, got 1."),
    ("audit", "adversary", "omniscient", "one of target_canary, partially_informed, worst_case"),
    ("audit", "adjacency", "unstated", "one of zero_out, add_remove, replace, got 'unstated'."),
    (
        "audit",
        "views",
        "updates",
        "a list, each one of updates, model, loss, steps, got 'updates'.",
    ),
    ("audit", "views", ["updates", "mind"], "got ['updates', 'mind']."),
    ("audit", "views", [["updates"]], "got [['updates']]."),
    ("audit", "views", [], "one or more of updates, model, loss"),
    ("audit", "views", ["model", "model"], "each once, got ['model', 'model']."),
    ("audit", "until_refuted", 1, "audit.until_refuted to be true or false, got 1."),
    ("audit", "claim", [1.0], "audit.claim to be a number, got [1.0]."),
    ("audit", "claim", None, "Expected audit.claim or training.noise_multiplier, got neither"),
]


@pytest.mark.parametrize(("section", "key", "value", "said"), WRONG)
def test_wrong_keys_are_told_by_name(section: str, key: str, value: object, said: str) -> None:
    plain = tomllib.loads(LEAST)
    part = plain.setdefault(section, {})
    part.pop(key, None)
    if value is not None:
        part[key] = value
    with pytest.raises(InvalidArgument) as told:
        from_plain(plain)
    assert said in str(told.value)


def test_keys_that_do_not_go_together_are_told() -> None:
    for changed, said in [
        ({"model": {"name": "cnn", "hidden": 8}}, "no model.hidden with model.name = 'cnn'"),
        (
            {"training": {"batch_size": 5, "learning_rate": 1, "optimizer": "adam", "momentum": 0}},
            "no training.momentum with training.optimizer = 'adam'",
        ),
        (
            {
                "training": {"batch_size": 5, "learning_rate": 1, "noise_multiplier": 1},
                "audit": {"delta": 0.1, "runs": 9, "until_refuted": True},
            },
            "Expected audit.claim with audit.until_refuted",
        ),
    ]:
        with pytest.raises(InvalidArgument, match=said):
            from_plain({**tomllib.loads(LEAST), **changed})


def test_sections_are_told_by_name() -> None:
    with pytest.raises(InvalidArgument, match="of data, model, training, audit, got 'trainnig'"):
        from_plain({"trainnig": {}})
    with pytest.raises(InvalidArgument, match=r"Expected a section \[data\], got data = 'x.csv'"):
        from_plain({"data": "x.csv"})


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"[data", "TOML"), (b"\xff", "Could not read"), (b"", "audit.toml: Expected data.file")],
)
def test_files_that_are_no_config_are_told(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_bytes(content)
    with pytest.raises((UnreadableFile, InvalidArgument), match=said) as told:
        read_config(path)
    assert "audit.toml" in str(told.value)
    with pytest.raises(UnreadableFile, match="nothing"):
        read_config(tmp_path / "nothing.toml")
    with pytest.raises(UnreadableFile, match=str(tmp_path.name)):
        read_config(tmp_path)


def test_windows_writes_a_mark_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(LEAST, "utf-8-sig")
    assert read_config(path) == from_plain(tomllib.loads(LEAST))
