"""The tutorial is a story that runs: its files, its commands, its exit codes and its numbers."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import epsilometer as em
from epsilometer.cli.main import main
from epsilometer.core import words

TEXT = (Path(__file__).parents[1] / "docs/tutorial.md").read_text("utf-8")
COMMANDS = re.findall(r"^    epsilometer (.*?) +# exit code (\d)", TEXT, re.MULTILINE)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page."""
    files = re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', TEXT, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in files} == {"train.py", "audit.toml", "repaired.toml"}
    for name, text in files:
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(arguments: list[str], code: int) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, done.output
    return " ".join(re.sub(r"[│╭╮╰╯]", " ", done.stdout).split())


def quoted(beginning: str) -> str:
    """The quotation of the page that begins so, without its marks."""
    (found,) = re.findall(rf"^> ({beginning}.*?)\n\n", TEXT, re.MULTILINE | re.DOTALL)
    return " ".join(found.replace("\n>", " ").split())


def test_the_commands_are_all_known() -> None:
    assert len(COMMANDS) == 6
    for line, _ in COMMANDS:
        name, *arguments = shlex.split(line)
        command = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
        command.make_context(name, arguments)  # raises on options it does not have


def test_the_code_is_read(desk: Path) -> None:
    assert quoted("train.py:") in printed(*_numbered(0))


@pytest.mark.slow
def test_the_claim_is_computed(desk: Path) -> None:
    assert quoted("You report") in printed(*_numbered(1))


@pytest.mark.slow
def test_the_training_is_attacked_repaired_and_kept_so(desk: Path) -> None:
    trained = subprocess.run(
        [sys.executable, "-W", "ignore", "train.py"], capture_output=True, text=True, check=True
    )
    assert trained.stdout.strip() in TEXT  # ε = 0.88
    shuffled = printed(*_numbered(2))
    for bound in em.load("shuffled").bounds:
        assert f"| ε ≥ {words.number(bound.epsilon)} |" in TEXT
    proved = _proved("shuffled")
    assert f"REFUTED: ε = 1 was claimed, but the attack proves ε ≥ {proved}" in shuffled
    assert f"prove more than ε = {words.number(em.load('shuffled').reach)}" in TEXT
    assert quoted("NOT REFUTED:") in printed(*_numbered(3))
    assert f"proves ε ≥ {_proved('sampled')}, and the claim is *not refuted*" in TEXT
    printed(*_numbered(4))
    printed(*_numbered(5))


def _proved(run: str) -> str:
    return words.number(em.load(run).epsilon)


def _numbered(number: int) -> tuple[list[str], int]:
    line, code = COMMANDS[number]
    return [*shlex.split(line)], int(code)
