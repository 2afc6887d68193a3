"""Every benchmark runs at a tiny size, so that none rots."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# What only helps others, or asks tools in environments of their own: tests beside this one.
OTHERS = {"comparison", "conformance", "zoo_peers"}
SCRIPTS = sorted(
    path
    for path in BENCHMARKS.glob("*.py")
    if 'if __name__ == "__main__"' in path.read_text("utf-8") and path.stem not in OTHERS
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_runs_at_a_tiny_size(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = {page: page.read_bytes() for page in BENCHMARKS.glob("*.md")}
    monkeypatch.setattr(sys, "argv", [str(script), "--tiny"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of frameworks about themselves, and of tiny data
        runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert {page: page.read_bytes() for page in BENCHMARKS.glob("*.md")} == pages


def test_every_script_is_run() -> None:
    assert {path.stem for path in SCRIPTS} >= {"batched_gaussian", "engine", "training"}
    assert len(SCRIPTS) >= 12
