"""Shells complete commands, options, methods, files and runs: a real bash is asked, and zsh and
fish where they are installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from epsilometer.cli.main import COMMANDS, main
from epsilometer.stats.estimators import REGISTRY
from tests.conftest import run_often
from tests.test_imports import HEAVY, loaded_after

BIN = str(Path(sys.executable).parent)
SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    return done.stdout


def asked(shell: str, words: str, folder: Path) -> list[str]:
    """What click answers a shell, as its script would ask."""
    every = words.split(" ")
    environment = {
        "COMP_WORDS": " ".join(every[:-1]) if shell == "fish" else words,
        "COMP_CWORD": every[-1] if shell == "fish" else str(len(every) - 1),
        "_EPSILOMETER_COMPLETE": f"{shell}_complete",
    }
    done = subprocess.run(
        [f"{BIN}/epsilometer"],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def completed(words: str, folder: Path) -> list[str]:
    """What a bash that read our script offers for the last word."""
    every = words.split(" ")
    program = f"""
        eval "$SCRIPT"
        compopt() {{ echo "compopt $1 $2"; }}  # where a file is meant, bash itself completes
        COMP_WORDS=({" ".join(every[:-1])} "{every[-1]}") COMP_CWORD={len(every) - 1}
        _epsilometer_completion epsilometer
        printf '%s\\n' "${{COMPREPLY[@]}}"
        complete -p epsilometer
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "SCRIPT": script("bash")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    *offered, registered = done.stdout.splitlines()
    assert "-F _epsilometer_completion epsilometer" in registered
    return offered


@pytest.fixture
def with_runs(tmp_path: Path) -> Path:
    for name in ("demo-run", "deep/demo-deep"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "plan.json").touch()
    (tmp_path / "demo-notes").mkdir()
    return tmp_path


COMPLETED = [
    ("epsilometer ", list(COMMANDS)),
    ("epsilometer est", ["estimate"]),
    ("epsilometer --ver", ["--version"]),
    ("epsilometer estimate x.csv --method ", list(REGISTRY)),
    ("epsilometer estimate --rule ho", ["hold-out"]),
    ("epsilometer estimate sc", ["compopt -o default", ""]),
    ("epsilometer shuffle --sampler p", ["partial:"]),
    ("epsilometer dpsgd --optimizer ", ["sgd", "adam"]),
    ("epsilometer runs st", ["status"]),
    ("epsilometer runs status ", ["demo-run"]),
    ("epsilometer runs resume deep/d", ["deep/demo-deep"]),
    ("epsilometer runs status nothing", ["compopt -o dirnames", ""]),
    ("epsilometer runs status no/such/", ["compopt -o dirnames", ""]),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    run_often(COMPLETED, [COMPLETED[place] for place in (0, 3, 5, 9)]),
)
def test_bash_completes(words: str, offered: list[str], with_runs: Path) -> None:
    assert completed(words, with_runs) == offered


@pytest.mark.parametrize("shell", run_often(["zsh", "fish"], ["zsh"]))
def test_other_shells_are_answered_by_their_protocol(shell: str, with_runs: Path) -> None:
    assert "one_run_fdp" in "\n".join(asked(shell, "epsilometer estimate --method one", with_runs))
    assert "demo-run" in "\n".join(asked(shell, "epsilometer runs status ", with_runs))


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_its_shell_can_read(shell: str) -> None:
    assert f"_EPSILOMETER_COMPLETE={shell}_complete" in script(shell)
    program = shutil.which(shell)
    if program is not None:  # reads it and runs nothing
        subprocess.run([program, "-n"], input=script(shell), text=True, check=True)


def test_an_unknown_shell_is_told() -> None:
    done = CliRunner().invoke(main, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr


def test_commands_are_completed_without_statistics() -> None:
    program = """
import os
os.environ.update(COMP_WORDS="epsilometer ", COMP_CWORD="1", X="bash_complete")
from epsilometer.cli.main import main
try:
    main(prog_name="epsilometer", complete_var="X")
except SystemExit as stopped:
    assert stopped.code == 0
"""
    names = [*HEAVY, "scipy", "numpy", "rich"]
    assert loaded_after(program, names) & set(names) == set()
