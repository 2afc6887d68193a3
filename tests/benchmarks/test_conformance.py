"""The benchmark of audited steps runs, and its page is what it writes."""

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="benchmark")
def _benchmark() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus, about itself
        yield importlib.import_module("conformance")


def test_a_tiny_page_is_measured(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--tiny"])
    page, *curves = capsys.readouterr().out.split(" records per batch: what is added grows as ")
    header, _, line = [row for row in page.splitlines() if row.startswith("|")]
    assert [curve.split()[0] for curve in curves] == ["parameters", "canaries"]
    cells = dict(zip(header.split(" | "), line.split(" | "), strict=True))
    assert float(cells["plain step, ms"]) > 0
    assert float(cells["audited step, ms"]) > 0
    assert cells["canaries"] == "10"


def test_memory_is_measured(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--memory", "2000", "10", "3", "8", "2", "1"])
    assert int(capsys.readouterr().out) > 10**6


def test_networks_are_as_large_as_they_say(benchmark: Any) -> None:
    for case in benchmark.CPU_CASES:
        count = sum(each.numel() for each in benchmark.build(case).parameters())
        assert count == pytest.approx(case.parameters, rel=0.05)


def test_the_written_page_has_every_case(benchmark: Any) -> None:
    page = (BENCHMARKS / "conformance.md").read_text("utf-8")
    plain, _, card = page.partition(benchmark._CARD)
    plain, _, growth = plain.partition(benchmark._GROWTH)
    assert not growth or growth.count("\n| ") == 2 + sum(map(len, benchmark.CURVES["cpu"]))
    assert plain.count("\n| ") == 1 + len(benchmark.CPU_CASES)
    assert not card or card.count("\n| ") == 1 + len(benchmark.CARD_CASES)
