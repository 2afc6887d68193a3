"""The command that most people try first: an answer in words, and a refusal in one line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from epsilometer.cli.main import main

pytestmark = pytest.mark.usefixtures("coarse")
SMALL = ["--noise-multiplier", "1", "--delta", "1e-5", "--observations", "2000"]


def shuffle(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["shuffle", *(str(argument) for argument in arguments)])


def test_the_answer_is_in_words(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = shuffle(*SMALL, "--dataset-size", 1050, "--batch-size", 50, "--html", page)
    assert done.exit_code == 1, done.output
    text = " ".join(done.stdout.split())
    for part in (
        "You report ε = ",
        "the mechanism's ε is at least",
        "certified by 2,000 plays of the game",
        "you need noise ≥",
        "balls in bins",
        "Without any shuffling ε would be",
        "Published lower bound",
    ):
        assert part in text
    assert "21 steps" in text
    assert "at least" in page.read_text("utf-8")


def test_a_generous_claim_is_exit_code_0() -> None:
    done = shuffle(*SMALL, "--steps", 10, "--claim", 60, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"] == "not refuted"


@pytest.mark.parametrize(
    "sampler", ["partial:30", "batch-then-shuffle", "balls-in-bins", "sequential"]
)
def test_every_sampler_has_an_answer(sampler: str) -> None:
    done = shuffle(*SMALL, "--steps", 10, "--batch-size", 10, "--sampler", sampler, "--claim", 99)
    assert done.exit_code == 0, done.output
    assert f"With {sampler} the mechanism" in done.stdout


def test_a_sweep_makes_a_table(tmp_path: Path) -> None:
    settings, out = tmp_path / "settings.csv", tmp_path / "table.csv"
    settings.write_text("name,noise_multiplier,steps,epochs,delta\nmine,1.0,10,2,1e-5\n", "utf-8")
    done = shuffle("--sweep", settings, "--out", out)
    assert done.exit_code == 0, done.output
    header, row = out.read_text("utf-8").splitlines()
    assert header.startswith("name,noise,steps")
    assert row.startswith("mine,1,10,2,")


@pytest.mark.slow
def test_the_settings_of_the_paper_are_bundled() -> None:
    done = shuffle("--sweep", "paper")
    assert done.exit_code == 0, done.output
    for name in ("SST-2", "QNLI", "MNLI", "Persona-Chat", "CIFAR-10", "Places-365"):
        assert name in done.stdout
    assert "35.30" in done.stdout or "35.31" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--noise-multiplier", 1],
        ["--noise-multiplier", 0, "--steps", 10],
        ["--noise-multiplier", "nan", "--steps", 10],
        ["--noise-multiplier", 1, "--steps", 0],
        ["--noise-multiplier", 1, "--steps", 10, "--epochs", 0],
        ["--noise-multiplier", 1, "--steps", 10, "--delta", 0],
        ["--noise-multiplier", 1, "--steps", 10, "--delta", 1],
        ["--noise-multiplier", 1, "--steps", 10, "--dataset-size", 100],
        ["--noise-multiplier", 1, "--dataset-size", 100],
        ["--noise-multiplier", 1, "--dataset-size", 100, "--batch-size", 200],
        ["--noise-multiplier", 1, "--steps", 10, "--sampler", "magic"],
        ["--noise-multiplier", 1, "--steps", 10, "--sampler", "partial"],
        ["--noise-multiplier", 1, "--steps", 10, "--sampler", "partial:10"],
        ["--noise-multiplier", 1, "--steps", 10, "--observations", "nan"],
        ["--noise-multiplier", 1, "--steps", 10, "--observations", 1.5],
        ["--noise-multiplier", 1, "--steps", 10, "--observations", -4],
        ["--noise-multiplier", 1, "--steps", 10, "--observations", 1e18],
        ["--noise-multiplier", 1, "--steps", 10, "--device", "magic"],
        ["--noise-multiplier", 1, "--steps", 10, "--claim", -1],
        ["--sweep", "nowhere.csv"],
    ],
    ids=str,
)
def test_bad_calls_are_told_in_one_line(wrong: list[object]) -> None:
    done = shuffle(*wrong)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert done.stderr.strip().splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize(
    "text", ["", "name,steps\nx,1\n", "name,noise_multiplier,steps,epochs,delta\na,b,c,d,e\n"]
)
def test_bad_settings_are_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "settings.csv").write_text(text, "utf-8")
    done = shuffle("--sweep", tmp_path / "settings.csv")
    assert done.exit_code == 2, done.output
    assert "Expected" in done.stderr
