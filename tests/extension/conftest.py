"""Packages of others: a module, and one line of metadata that registers what it has."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

Call: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(name="call_with")
def _call_with(tmp_path: Path) -> Call:
    """Call a command in a process that has such a package installed."""

    def call(source: str, entry: str, *words: str) -> subprocess.CompletedProcess[str]:
        kind, _, line = entry.partition(": ")
        site = tmp_path / "site"
        info = site / "theirs-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[epsilometer.{kind}]\n{line}\n")
        (site / "theirs.py").write_text(source, "utf-8")
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        return subprocess.run(
            [sys.executable, "-c", "from epsilometer.cli.main import main; main()", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *inherited])},
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    return call
