"""The page of peers is what was measured, peers are pinned, and our own rows still run."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import run_often

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PEERS = sorted(path.stem for path in (BENCHMARKS / "peers").glob("*.txt"))


@pytest.fixture(name="modules")
def _modules() -> Any:
    """Modules of ``benchmarks``, as its scripts import them."""
    import comparison
    import comparison_page
    import measurement
    import questions

    return {
        "comparison": comparison,
        "page": comparison_page,
        "measurement": measurement,
        "questions": questions,
    }


def _raw() -> Any:
    return json.loads((BENCHMARKS / "comparison.json").read_text("utf-8"))


def test_page_is_what_was_measured(modules: Any) -> None:
    assert modules["page"].PAGE.read_text("utf-8") == modules["page"].page(_raw())
    assert modules["page"].FULL.read_text("utf-8") == modules["page"].full_page(_raw())
    assert modules["page"].CHART.stat().st_size < 150_000


def test_every_tool_is_in_the_page(modules: Any) -> None:
    asked = {line.asked.tool for line in modules["page"].counted(_raw())}
    assert asked == set(modules["questions"].TOOLS) == {"epsilometer", *PEERS}


@pytest.mark.parametrize("peer", PEERS)
def test_peers_are_pinned(peer: str) -> None:
    lines = (BENCHMARKS / "peers" / f"{peer}.txt").read_text("utf-8").split()
    assert lines
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert (BENCHMARKS / "peers" / f"ask_{peer}.py").exists()


def test_every_call_has_a_script_that_knows_it(modules: Any) -> None:
    for question in modules["questions"].QUESTIONS:
        for asked in question.asked:
            script = (BENCHMARKS / "peers" / f"ask_{asked.tool}.py").read_text("utf-8")
            assert f'"{asked.name}"' in script
            assert all(f'"{key}"' in script for key in asked.rows if key != "bound")


@pytest.mark.parametrize(
    "name", run_often(["scores_default", "scores_one_run", "scores_gdp"], ["scores_gdp"])
)
def test_our_scores_run(modules: Any, tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    member = rng.random((2, 400)) < 0.5
    np.savez(tmp_path / "some.npz", scores=rng.normal(2.0 * member, 1), member=member)
    said = modules["measurement"].ask("epsilometer", name, f"{tmp_path / 'some.npz'}:2")
    assert all(value > 0.5 for one in said["answers"] for value in one.values())
    assert said["cpu_seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["training", "federated"])
def test_our_trainings_run(modules: Any, name: str) -> None:
    told = modules["measurement"].watch("epsilometer", name, "known:0")
    assert modules["comparison"]._bound(told) > 0
    assert told["peak_bytes"] > 10**6


def test_counts_and_limits(modules: Any) -> None:
    page = modules["page"]
    line = page.counted(_raw())[0]
    assert line.alarms[0] == sum(value > 0 for value in line.raw["null"])
    assert page.limits(0, 10) == pytest.approx((0.0, 1 - 0.025 ** (1 / 10)))


def test_answers_above_the_truth_are_counted(modules: Any) -> None:
    lines = modules["page"].counted(_raw())
    told = modules["page"]._beyond(lines)
    for line in lines:
        more = [
            value for value in line.raw["known"] if value > (line.question.truth or float("inf"))
        ]
        assert line.beyond == len(more)
        assert (f"{modules['page']._label(line)}: " in told) == bool(more)


def test_the_page_says_what_was_not_measured_together(modules: Any) -> None:
    whole = {"asked": [], "minutes": 50.4}
    assert "Afterwards" not in modules["page"]._runs([whole])
    again = modules["page"]._runs([whole, {"asked": ["opake"], "minutes": 3.0}])
    assert again.endswith("Afterwards once more, for 3 minutes: opake-auditing.")
