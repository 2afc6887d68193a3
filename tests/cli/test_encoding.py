"""What an encoding lacks is spelt, not lost."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import epsilometer as em
from epsilometer.cli.encoding import spell


def test_letters_of_the_field_are_spelt() -> None:
    assert spell("ε ≥ 3.30 at δ = 1e-05") == "eps >= 3.30 at delta = 1e-05"
    assert spell("μ ≤ ∞ – …") == "mu <= inf - ..."
    assert spell("日") == "?"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_every_encoding_shows_the_start_screen(encoding: str) -> None:
    code = "from epsilometer.cli.main import main; main(['--help'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    text = done.stdout.decode(encoding)
    assert ("ε" if encoding == "utf-8" else "eps") in text
    assert "?" not in text


def test_columns_stay_straight_where_letters_are_spelt(tmp_path: Path) -> None:
    """ε takes three letters as eps: columns and bars are measured as they are shown."""
    scores = em.Scores(np.linspace(1, 2, 400), np.linspace(0, 1.01, 400))
    saved = tmp_path / "audit.json"
    em.audit(scores, em.Claim(3.0, delta=1e-5)).save(saved)
    page = f"from epsilometer.cli.main import main; main(['report', {str(saved)!r}, '-v'])"
    done = subprocess.run(
        [sys.executable, "-c", page],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    bars = [line.index("#") for line in lines if "#" in line]
    assert len(bars) > 1
    assert len(set(bars)) == 1, done.stdout
    tables = [
        [line.index("|") for line in block.splitlines() if "|" in line]
        for block in done.stdout.split("\n\n")
    ]
    assert all(len(set(places)) < 2 for places in tables), done.stdout
