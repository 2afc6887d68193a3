"""The doctor says what works, and survives whatever is broken."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import distributed
import pytest
from click.testing import CliRunner, Result

from epsilometer.cli import doctor
from epsilometer.cli.doctor import (
    USES,
    WITHOUT,
    Check,
    examine,
    list_requirements,
    list_workable,
)
from epsilometer.cli.main import COMMANDS, main
from tests.engine.test_dask import cluster
from tests.test_imports import HEAVY, loaded_after

ROOT = Path(__file__).parents[2]
# What a package can do to whoever imports it.
BREAKAGES = {
    "raises": "raise RuntimeError('wrong CUDA')",
    "half_there": "from half_there import nothing",
    "misses_another": "import no_such_module_of_theirs",
    "no_python": "def",
    "gives_up": "import sys; sys.exit(0)",
    "ends": "import os; os._exit(0)",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "interrupts": "raise KeyboardInterrupt",
    "escapes": r"raise RuntimeError('\x1b[31mred\x07')",
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def package(folder: Path, name: str, code: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code, "utf-8")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which interpreters import before all others."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two quick packages in place of all: the others are checked by the example of the help."""
    monkeypatch.setattr(doctor, "list_requirements", lambda: (("click",), {"numba": ("filelock",)}))
    monkeypatch.setattr(doctor, "_check_gpu", list)


def of(checks: list[Check], name: str) -> Check:
    (found,) = (check for check in checks if check.name == name)
    return found


@pytest.mark.parametrize("how", BREAKAGES)
def test_a_broken_package_is_a_line(how: str, path: Path) -> None:
    package(path, how, BREAKAGES[how])
    (check,) = doctor._check_package("extra torch", how, extra="torch")
    assert check.state == "broken"
    assert check.says.startswith("installed, but cannot be imported: ")
    assert check.says.isprintable()
    assert check.advice


def test_a_package_that_takes_too_long_is_not_called_broken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE", 2.0)
    package(path, "hangs", "import time; time.sleep(600)")
    (check,) = doctor._check_package("extra torch", "hangs", extra="torch")
    assert check.state == "slow"
    assert check.says == (
        "installed; its import took longer than 2 s: the machine is busy, or it hangs"
    )
    assert "install" not in check.advice
    assert len(list_workable([check])) == 1  # nothing is said to be missing


def test_a_package_that_is_not_there_is_missing_and_its_extra_named() -> None:
    (check,) = doctor._check_package("extra torch", "no-such-package", extra="torch")
    assert (check.state, check.says) == ("missing", "not installed")
    assert check.advice == "pip install 'epsilometer[torch]'"
    assert "The extra torch is missing. It is needed for dpsgd" in list_workable([check])[1]


def test_what_lies_in_this_folder_is_not_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filelock.py").write_text("raise RuntimeError('mine')", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert doctor._check_package("core", "filelock", vital=True)[0].state == "works"


@pytest.mark.usefixtures("few")
def test_it_says_all_of_it_and_succeeds(path: Path) -> None:
    done = run("--json")
    assert done.exit_code == 0, done.output
    plain = json.loads(done.stdout)
    assert plain["works"] is True
    checks = [Check(**check) for check in plain["checks"]]
    assert [check.name for check in checks if check.state == "broken"] == []
    assert of(checks, "a bound").says.startswith("ε ≥ 4.18")
    assert of(checks, "local").says == "2 units ran, in 2 processes"
    assert re.match(r"\d+ cores", of(checks, "CPU").says)
    assert "GiB" in of(checks, "memory").says
    shown = run()
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 100
    for check in checks:
        assert check.name in shown.stdout


def test_where_the_core_is_broken_it_still_answers_with_3(path: Path) -> None:
    """The program itself, in an environment whose numpy and rich raise on import."""
    package(path, "numpy", "raise ImportError('libopenblas.so.0: cannot open shared object')")
    package(path, "rich", "raise RuntimeError('half removed')")
    package(path, "torch", "raise OSError('libcudart.so.12')")
    done = subprocess.run(
        [f"{Path(sys.executable).parent}/epsilometer", "doctor"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "epsilometer does not work here" in done.stderr
    for part in ("libopenblas.so.0", "half removed", "libcudart.so.12"):
        assert part in done.stdout


def test_it_imports_nothing_that_may_be_broken() -> None:
    program = "import epsilometer.cli.doctor"
    assert loaded_after(program, [*HEAVY, "numpy", "scipy", "rich", "joblib"]) == set()


@pytest.mark.usefixtures("few")
def test_an_address_where_nobody_is_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = doctor._ADDRESS
    monkeypatch.setattr(doctor, "_ADDRESS", patient.replace("patience=10.0", "patience=0.5"))
    assert patient != doctor._ADDRESS
    done = run("--address", "tcp://127.0.0.1:9")
    assert done.exit_code == 2
    assert "Dask at tcp://127.0.0.1:9" in done.stdout
    assert "Expected a Dask scheduler" in done.stderr


def test_an_address_where_a_cluster_is_is_reached(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1) as real, distributed.Client(real.address) as client:
        client.wait_for_workers(1, timeout=60)  # a cluster is there before its workers are
        (check,) = doctor._check_cluster(real.address)
    assert (check.state, check.says) == ("works", "1 at a time")


def test_folders_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    assert doctor._check_writable("temporary files", gone, "Do.").state == "broken"
    assert doctor._check_writable("temporary files", tmp_path, "Do.").state == "works"
    monkeypatch.setenv("EPSILOMETER_DATA", str(tmp_path))
    assert doctor._check_data().state == "broken"
    (tmp_path / "mnist.npz").touch()
    assert doctor._check_data() == Check(
        part="folders", name="EPSILOMETER_DATA", state="works", says=f"{tmp_path}: mnist.npz"
    )
    monkeypatch.delenv("EPSILOMETER_DATA")
    assert doctor._check_data().state == "note"


def test_a_driver_that_fails_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor._check_driver()
    assert (check.state, check.says) == ("broken", "NVIDIA-SMI has failed")


def test_every_extra_is_known_and_every_package_of_it_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    core, extras = list_requirements()
    asked = {re.match(r"[\w.-]+", line)[0] for line in project["dependencies"]}  # type: ignore[index]
    assert set(core) == asked
    for extra in set(project["optional-dependencies"]) - {"all", "dev"}:
        assert extra in USES
        assert extra in extras
    assert set(WITHOUT) <= set(COMMANDS)


def test_every_core_package_that_fails_is_vital(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_run_program", lambda *_: ("broken", "no"))
    monkeypatch.setattr(
        doctor, "_check_driver", lambda: Check(part="", name="", state="note", says="")
    )
    vital = {check.name for check in examine() if check.vital}
    assert vital == {*list_requirements()[0], "a bound"}
