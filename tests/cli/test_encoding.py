"""What an encoding lacks is spelt, not lost."""

import os
import subprocess
import sys

import pytest

from epsilometer.cli.encoding import spell


def test_letters_of_the_field_are_spelt() -> None:
    assert spell("ε ≥ 3.30 at δ = 1e-05") == "eps >= 3.30 at delta = 1e-05"
    assert spell("μ ≤ ∞ – …") == "mu <= inf - ..."
    assert spell("日") == "?"


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-8"])
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
