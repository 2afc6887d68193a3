"""A lint library from outside the package: one entry point, and ``epsilometer lint`` knows it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from epsilometer.lint import DpCall, Library, Loader

MYDP = Library(
    package="mydp",
    calls=(
        DpCall(names=("spent_epsilon",), unless_argument="uniform"),
        DpCall(names=("PrivateTrainer",), kind="training"),
    ),
    samplers=("CoinBatches",),
    loaders={"Batches": Loader(argument="order", default=True)},
    signatures={"spent_epsilon": ("noise_multiplier", "steps", "delta")},
)
"""
MAIN = "from epsilometer.cli.main import main; main()"
SHUFFLED = (
    "import mydp\ndata = mydp.Batches(records)\nprint(mydp.spent_epsilon(1.5, 300, 1e-6{}))\n"
)


def lint(tmp_path: Path, text: str, *, plugin: str = PLUGIN) -> tuple[int, str]:
    """Lint a file in a process that has a package with one entry point installed."""
    site = tmp_path / "site"
    info = site / "mydp_lint-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mydp-lint\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[epsilometer.lint]\nmydp = mydp_lint:MYDP\n")
    (site / "mydp_lint.py").write_text(plugin)
    source = tmp_path / "train.py"
    source.write_text(text)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "lint", str(source), "--format", "json"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_its_loader_beside_its_accountant_is_found(tmp_path: Path) -> None:
    code, said = lint(tmp_path, SHUFFLED.format(""))
    (finding,) = json.loads(said)["findings"]
    assert (code, finding["rule"], finding["severity"]) == (1, "SHUF002", "error")
    assert finding["seen"] == "spent_epsilon (line 3) assumes Poisson sampling."
    assert "--noise-multiplier 1.5" in finding["run"]
    assert "--steps 300 --delta 1e-6" in finding["run"]


@pytest.mark.parametrize(
    "text",
    [
        SHUFFLED.format(", uniform=True"),  # it accounts for what is done
        SHUFFLED.format("") + "mydp.CoinBatches(records)\n",
        SHUFFLED.format("").replace("(records)", "(records, order=False)"),
    ],
    ids=["excused", "sampler", "not shuffled"],
)
def test_what_its_library_excuses_is_left_alone(tmp_path: Path, text: str) -> None:
    code, said = lint(tmp_path, text)
    assert (code, json.loads(said)["findings"]) == (0, [])


def test_something_else_in_the_entry_point_is_refused(tmp_path: Path) -> None:
    code, said = lint(tmp_path, SHUFFLED.format(""), plugin="MYDP = {'package': 'mydp'}\n")
    assert code == 2
    assert "Expected a Library of epsilometer.lint in 'mydp_lint:MYDP'" in said
    assert "got dict" in said
