"""Audits stay readable: few modules are entered, and the design page says how many."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journey import AIMS, BEGIN, CALLS, END, LIMITS

ROOT = Path(__file__).parents[1]


LONG = {"shuffle", "dpsgd", "classifier", "federated"}  # a profiler slows training down


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in CALLS]
)
def test_few_modules_are_entered(name: str) -> None:
    """Counted in a process of its own: what is remembered from other audits is not entered."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.journey", name],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = re.match(rf"{name}: (\d+) modules entered", done.stdout)
    assert found
    assert int(found[1]) <= LIMITS[name], done.stdout
    page = (ROOT / "docs/design.md").read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    assert f"| `epsilometer {name}` | {found[1]} | {AIMS[name]} |" in page, (
        "python -m tests.journey write"
    )
