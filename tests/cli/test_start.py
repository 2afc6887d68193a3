"""``epsilometer`` alone says where to begin, on one screen."""

import io
import os
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from epsilometer import __version__
from epsilometer.cli.main import FIRST, STARTS, main, show_start


def test_it_says_what_to_type_and_succeeds() -> None:
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 0, done.output
    assert __version__ in done.stdout
    for had, typed in STARTS:
        assert had in done.stdout
        assert typed in done.stdout
    for part in (FIRST, "epsilometer doctor", "epsilometer --help", "--explain"):
        assert part in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_one_screen_of_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=width)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    show_start()
    assert "\x1b[" in screen.getvalue()
    assert len(screen.getvalue().splitlines()) <= 24


@pytest.mark.parametrize("typed", [*(typed for _, typed in STARTS), FIRST])
def test_what_it_says_to_type_can_be_typed(typed: str) -> None:
    program, name, *arguments = shlex.split(typed)
    assert program == "epsilometer"
    command = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
    command.make_context(name, arguments)


def test_help_stays_help() -> None:
    done = CliRunner().invoke(main, ["--help"])
    assert done.stdout.startswith("Usage:")
    assert "Judge and report:" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such pipes")
@pytest.mark.parametrize("call", ["['methods']", "['--help']", "['lint', '--help']"])
def test_a_reader_who_leaves_early_is_no_fault_and_no_verdict(call: str) -> None:
    """As in `epsilometer methods | head -1`."""
    code = f"from epsilometer.cli.main import main; main({call})"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_it_runs_as_a_module() -> None:
    """Where the folder of scripts is not on the path, as often on Windows."""
    done = subprocess.run(
        [sys.executable, "-m", "epsilometer", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert __version__ in done.stdout
