"""What a run holds in memory is bounded, whatever waits for whom and however large units are."""

import subprocess
import sys

import pytest

from epsilometer.engine.shards import MEMORY
from tests.engine.jobs import ROOT


def growth(units: int, megabytes: int, *engine: str) -> float:
    """How much memory a run took, in MB."""
    call = [sys.executable, "-m", "tests.faults.memory", str(units), str(megabytes), *engine]
    said = subprocess.run(call, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    peak, before = map(int, said.split())
    return peak - before


@pytest.mark.parametrize(
    ("units", "megabytes"), [(400, 1), pytest.param(2000, 1, marks=pytest.mark.slow)]
)
def test_what_waits_for_a_slow_unit_goes_to_the_disk(units: int, megabytes: int) -> None:
    """2,000 units of 1 MB behind a slow unit 0 took 2.3 GB."""
    assert growth(units, megabytes) < MEMORY / 2**20 + 40  # modules that the run imports


@pytest.mark.parametrize("engine", ["threads", pytest.param("dask", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_units_that_are_computed_faster_than_they_are_written_are_few(engine: str) -> None:
    """As many were in one lease as take 0.1 s, hundreds of them, and 400 MB."""
    assert growth(800, 1, engine) < MEMORY / 2**20 + 40


@pytest.mark.slow
def test_a_large_unit_is_never_there_more_than_twice() -> None:
    """Two units of 200 MB took 1 GB."""
    assert growth(3, 200) < MEMORY / 2**20 + 2 * 200 + 40
