"""The example and the notebook run as a reader would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat

from epsilometer.audits.text.canary_counts import load_counts
from tests.notebooks import executed, texts

ROOT = Path(__file__).parents[2]


def test_the_example_refutes_its_claim(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "huggingface" / "fine_tune.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-8:]
    assert re.search(r"^REFUTED: ε = 2 was claimed", done.stdout, re.MULTILINE)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"audit.json", "audit.html", "README.md"} <= names


def test_two_processes_write_one_audit(tmp_path: Path) -> None:
    script = ROOT / "examples" / "huggingface" / "fine_tune.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launcher, "--standalone", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert len(re.findall(r"^REFUTED", done.stdout, re.MULTILINE)) == 1
    assert (tmp_path / "model" / "audit.json").exists()
    counts = load_counts(tmp_path / "private")  # of both processes together
    assert counts is not None
    assert counts.rows >= 12 * counts.records


def test_the_notebook_shows_what_is_committed(tmp_path: Path) -> None:
    path = ROOT / "docs" / "notebooks" / "huggingface.ipynb"
    assert texts(executed(path, tmp_path)) == texts(nbformat.read(path, as_version=4))
