"""The grid of power: in every setting ours is no worse than what a peer proves, and still so."""

import math
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="power")
def _power() -> Any:
    import power

    return power


def test_ours_is_no_worse_than_any_valid_call(power: Any) -> None:
    rows = power.read_rows()
    assert len(rows) >= 60
    assert set(rows) == set(power.SETTINGS)
    assert len({(setting.law, setting.n_in, setting.delta) for setting in rows}) >= 60
    for setting, row in rows.items():
        assert row["audits"] >= 30
        assert power.compute_ratio(row) >= 0.99, setting


def test_perfect_separation_proves_nearly_all_there_is(power: Any) -> None:
    found = {s.n_in: row["ours"] for s, row in power.read_rows().items() if s.delta == 0}
    assert set(found) == set(power.MOST)
    for n, most in power.MOST.items():
        assert 0.97 * most < found[n] <= most


def test_page_is_what_was_measured(power: Any) -> None:
    assert power.PAGE.read_text("utf-8") == power.page(power.read_rows())


@pytest.mark.parametrize("number", [6, 12, 40, 96, 102])
def test_ours_is_still_what_is_kept(power: Any, number: int) -> None:
    setting = power.SETTINGS[number]
    assert math.isclose(setting.measure_ours(), power.read_rows()[setting]["ours"], rel_tol=1e-5)
