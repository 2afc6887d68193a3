"""One run beside a peer: in every setting ours is no worse, and still what was measured."""

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="one_run")
def _one_run() -> Any:
    import one_run

    return one_run


def test_ours_is_never_below_the_peer(one_run: Any) -> None:
    rows = one_run.read_rows()
    asked = {
        (method, law, canaries)
        for method, laws in one_run.METHODS.items()
        for law in laws
        for canaries in (100, 1_000, 10_000)
    }
    assert {(method, law, canaries) for method, law, canaries, *_ in rows} == asked
    for *setting, audits, ours, theirs in rows:
        assert audits >= 30
        assert ours >= theirs, setting


def test_page_is_what_was_measured(one_run: Any) -> None:
    assert one_run.PAGE.read_text("utf-8") == one_run.page(one_run.read_rows())


@pytest.mark.parametrize(
    ("method", "law"),
    [
        ("one_run", "Gaussian μ = 3"),
        ("one_run", "randomised response ε = 1"),
        ("one_run_fdp", "Gaussian μ = 3"),
    ],
)
def test_ours_is_still_what_is_kept(one_run: Any, method: str, law: str) -> None:
    kept = {row[:3]: row[4] for row in one_run.read_rows()}
    found = one_run.measure_ours(law, 1_000, method)
    assert found == pytest.approx(kept[method, law, 1_000], rel=1e-4)
