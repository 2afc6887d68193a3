"""The page of the GPU says what was measured, and computes its labels."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="page")
def _page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "argv", ["gpu_page.py"])
    import gpu_page

    return gpu_page


def read_kept() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((BENCHMARKS / "gpu.json").read_text("utf-8"))
    return kept


def test_the_page_is_that_of_the_lines(page: Any) -> None:
    kept = read_kept()
    made = page.make_page(kept["lines"], notes=kept["notes"])
    assert made == (BENCHMARKS / "gpu.md").read_text("utf-8")


def test_labels_follow_from_what_was_measured(page: Any) -> None:
    kept = read_kept()
    for line in kept["lines"]:
        if line["what"] == "mlp" and line["precision"] == "bfloat16":
            line["per_second"] = 900_001
        if line["what"] == "transformer" and line["precision"] == "tf32":
            line["per_second"] = 8.1 * 30.3
        if line["what"] == "lenet":
            line["error"] = "it hung"
    made = page.make_page(kept["lines"], notes=kept["notes"])
    assert "900,000, met | 15,800 | 57 |" in made
    assert "Target: 8 times, met with the set-up." in made
    assert "120,000, missed" in made  # nothing was measured
    assert "2,500, missed" in made
