"""What is built is what users install: whole, typed, and of use without any extra.

The quick tests unpack the wheel and forbid it every optional package. The slow one installs it into
an environment of its own, from a package index.
"""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

pytest.importorskip("build")
pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OPTIONAL = (
    *("torch", "opacus", "flwr", "sklearn", "dask", "distributed", "numba", "pyarrow"),
    *("matplotlib", "mlflow", "pandas", "pytest"),
)
# Commands, and what they may end with: 0 and 1 are answers.
WORK = """
estimate scores.csv --delta 1e-5 --explain
check result.json --claim 1 --delta 1e-5
report result.json --html report.html
shuffle --noise-multiplier 1 --steps 10 --observations 2000
lint train.py
methods
selfcheck --runs 200
demo --runs 50
completion bash
--help
"""
# Commands, and the extra that they say is missing.
MISS = """
sklearn: classifier people.csv --label income --published-as file
torch: dpsgd --runs 4
torch: federated --rounds 1
torch: posterior --runs 8
parquet: estimate scores.parquet --delta 1e-5
figures: report result.json --figures drawn
"""
PROGRAM = """
import sys, pathlib
from click.testing import CliRunner
import epsilometer as em
from epsilometer.cli.main import main

assert "_unpacked" in em.__file__ or "site-packages" in em.__file__, em.__file__
pathlib.Path("train.py").touch()
pathlib.Path("scores.parquet").write_bytes(b"PAR1")
pathlib.Path("people.csv").write_text("age,income\\n" + "".join(
    f"{20 + i},{'high' if i % 3 else 'low'}\\n" for i in range(30)))
pathlib.Path("scores.csv").write_text("inside,outside\\n" + "".join(
    f"{3 + i / 100},{i / 100}\\n" for i in range(100)))
done = CliRunner().invoke(main, ["estimate", "scores.csv", "--delta", "1e-5", "--json"])
assert done.exit_code == 0, done.output
pathlib.Path("result.json").write_text(done.stdout)
for line in sys.argv[1].strip().splitlines():
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code in (0, 1), (line, done.output)
    assert done.stdout, line
for line in sys.argv[2].strip().splitlines():
    extra, _, call = line.partition(": ")
    done = CliRunner().invoke(main, call.split())
    assert done.exit_code == 2, (line, done.output)
    assert f"pip install 'epsilometer[{extra}]'" in done.stderr, (line, done.output)
    assert "Traceback" not in done.output, (line, done.output)
"""
FORBIDDING = """
import sys

class _Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {optional!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, _Nothing())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, made of the sdist as installers make it, and the sdist."""
    folder = tmp_path_factory.mktemp("built")
    call = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def unpacked(built: tuple[Path, Path]) -> Path:
    folder = built[0].parent / "_unpacked"
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(folder)
    return folder


def _metadata(unpacked: Path) -> Message:
    (file,) = unpacked.glob("*.dist-info/METADATA")
    return email.message_from_string(file.read_text("utf-8"))


def test_the_wheel_has_every_file_of_the_package(unpacked: Path) -> None:
    package = ROOT / "src" / "epsilometer"
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert (unpacked / "epsilometer" / path.relative_to(package)).is_file(), path
    for name in ("py.typed", "data/dpsgd.toml", "data/digits.npz", "report/vendor/uplot/LICENSE"):
        assert (unpacked / "epsilometer" / name).is_file()
    assert {path.name for path in unpacked.iterdir() if "dist-info" not in path.name} == {
        "epsilometer"
    }


def test_the_wheel_has_the_reproductions(unpacked: Path) -> None:
    for folder in (ROOT / "reproductions").iterdir():
        if (folder / "paper.toml").is_file():
            assert (unpacked / "epsilometer" / "_reproductions" / folder.name).is_dir()


def test_the_sdist_has_what_the_tests_need_and_no_more(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for path in (ROOT / "tests").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names, path
    for needed in ("pyproject.toml", "Makefile", "constraints.txt", "CONTRIBUTING.md", "LICENSE"):
        assert needed in names
    top = {name.partition("/")[0] for name in names}
    known = {"src", "tests", "docs", "examples", "reproductions", "benchmarks", "mkdocs.yml"}
    known |= {"pyproject.toml", "Makefile", "constraints.txt", "README.md", "CHANGELOG.md"}
    known |= {"SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "action.yml", "Dockerfile"}
    known |= {"conda", ".github", ".devcontainer", ".pre-commit-config.yaml", "hatch_build.py"}
    known |= {".pre-commit-hooks.yaml", *(path.name for path in ROOT.glob("constraints-*.txt"))}
    assert top <= known | {"CONTRIBUTING.md", "LICENSE", "PKG-INFO", ".gitignore", ""}


def test_what_it_says_of_itself(unpacked: Path) -> None:
    from epsilometer import __version__

    said = _metadata(unpacked)
    assert said["Version"] == __version__
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Author"] == "The epsilometer authors"
    assert {line.partition(",")[0] for line in said.get_all("Project-URL", [])} >= {"Source"}
    assert {f"Programming Language :: Python :: 3.{n}" for n in range(11, 15)} <= {
        *said.get_all("Classifier", [])
    }
    readme = said.get_payload()
    assert "pip install epsilometer" in readme
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", readme) == []  # there are no other files there
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    assert said["Requires-Python"] == PROJECT["requires-python"]
    always = [line for line in said.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(re.match(r"[\w-]+", line)[0] for line in always) == sorted(  # type: ignore[index]
        re.match(r"[\w-]+", line)[0]  # type: ignore[index]
        for line in PROJECT["dependencies"]
    )
    assert set(said.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    (scripts,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "epsilometer = epsilometer.cli.main:main" in scripts.read_text("utf-8")


def test_versions_are_semantic_and_the_changes_tell_of_this_one() -> None:
    from epsilometer import __version__

    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", __version__)
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## {re.escape(__version__)}\b", changes, re.MULTILINE)


def test_without_any_extra_it_works_or_says_which_is_missing(
    unpacked: Path, tmp_path: Path
) -> None:
    """The unpacked wheel, in an interpreter that finds none of the optional packages."""
    (tmp_path / "sitecustomize.py").write_text(FORBIDDING.format(optional=OPTIONAL), "utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{unpacked}"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, WORK, MISS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


USE = """
import numpy as np
import epsilometer as em

audit = em.audit(em.Scores(np.ones(9), np.zeros(9)), em.Claim(1.0, delta=1e-5))
right: float = audit.epsilon
"""


@pytest.mark.slow
def test_it_installs_into_an_environment_of_its_own(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """As a user does: the wheel and what it depends on, from an index; then commands, and types."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "own")], check=True)
    python = tmp_path / "own" / "bin" / "python"
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", built[0]],
        check=True,
        env=outside,
    )
    done = subprocess.run(
        [python, "-P", "-c", PROGRAM, WORK, MISS],
        cwd=tmp_path,
        env=outside,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    doctor = subprocess.run(
        [python.with_name("epsilometer"), "doctor"],
        cwd=tmp_path,
        env=outside,
        capture_output=True,
        text=True,
        check=False,
    )
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "Without torch (missing)" in doctor.stdout
    _types_are_seen(python, tmp_path)


def _types_are_seen(python: Path, folder: Path) -> None:
    """Checked by mypy of here against what is installed there: right use passes, wrong does not."""
    pytest.importorskip("mypy")
    (folder / "right.py").write_text(USE, "utf-8")
    (folder / "wrong.py").write_text(USE + "wrong: str = audit.epsilon\n", "utf-8")
    said = {}
    for name in ("right", "wrong"):
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, f"{name}.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        said[name] = done.stdout
    assert said["right"].startswith("Success"), said["right"]
    assert 'expression has type "float", variable has type "str"' in said["wrong"]
    assert "py.typed" not in said["wrong"]
