"""The page of speeds is what was measured, and a job that became slower is marked."""

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="performance")
def _performance(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "argv", ["performance.py"])
    return importlib.import_module("performance")


def test_the_page_is_what_was_measured(performance: Any) -> None:
    lines = performance.read_history()
    page = BENCHMARKS.parent / "docs" / "performance.md"
    assert page.read_text("utf-8") == performance.make_page(lines)
    details = BENCHMARKS / "performance.md"
    assert details.read_text("utf-8") == performance.make_details(lines)
    assert {line.job for line in lines} == {job.name for job in performance.JOBS}


def test_every_job_has_four_sizes(performance: Any) -> None:
    assert all(len(job.sizes) >= 4 for job in performance.JOBS)


def make_line(performance: Any, **changed: Any) -> Any:
    given = {
        "date": "2026-01-01",
        "machine": "a machine",
        "job": "bound",
        "size": 10**6,
        "ours": 1.0,
        "peer": 10.0,
        "limit": 0.5,
        "yardstick": 0.1,
    }
    return performance.Line(**(given | changed))


@pytest.mark.parametrize(
    ("changed", "marked"),
    [
        ({"ours": 1.1}, False),
        ({"ours": 1.3}, True),
        ({"ours": 1.3, "yardstick": 0.05}, False),  # sorts twice as fast: not the same machine
        ({"ours": 1.3, "machine": "another"}, False),
    ],
)
def test_a_ratio_that_is_worse_by_a_fifth_is_marked(
    performance: Any, changed: dict[str, Any], marked: bool
) -> None:
    small = make_line(performance, size=1000, ours=0.01)
    before = [small, make_line(performance)]
    now = [small, make_line(performance, **changed)]
    row = next(
        line
        for line in performance.make_details([*before, *now]).splitlines()
        if "default bound" in line
    )
    page = " ".join(performance.make_page([*before, *now]).split())
    assert f"on the same machine: {'bound' if marked else 'none'}." in page
    assert ("**slower**" in row) == marked
    assert ("another machine" in row) == (len(changed) == 2)


def test_a_slower_machine_changes_no_ratio(performance: Any) -> None:
    line = make_line(performance)
    slow = replace(line, ours=2.0, peer=20.0, limit=1.0)
    assert slow.ratio == line.ratio
    assert make_line(performance, peer=math.nan).ratio == 2
    assert make_line(performance, peer=math.nan, limit=math.nan).ratio == 10


def test_what_was_not_measured_is_not_called_missed(performance: Any) -> None:
    line = make_line(performance, peer=math.nan)
    row = next(
        each
        for each in performance.make_page([replace(line, size=10), line]).splitlines()
        if "default bound" in each
    )
    assert "not measured" in row
