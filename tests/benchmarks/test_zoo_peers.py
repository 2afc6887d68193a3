"""Other tools are put to the zoo by one function, and the page says what they found."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer.zoo.programs import list_programs
from epsilometer.zoo.runner import run_zoo

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = {program.title: program for program in list_programs("step")}


@pytest.fixture(name="modules")
def _modules() -> Any:
    import zoo_answers
    import zoo_peers
    import zoo_peers_page

    return {"peers": zoo_peers, "page": zoo_peers_page, "answers": zoo_answers}


def test_a_right_step_shifts_by_its_clipping_norm_at_most(modules: Any) -> None:
    inside, outside = modules["peers"].draw_view(PROGRAMS["plain DP-SGD"], runs=400)
    assert abs(inside.mean() - outside.mean()) < 1 + 4 * np.sqrt(2 / 400)
    assert inside.std() == pytest.approx(1, abs=0.2)


def test_a_step_that_does_not_clip_shifts_by_more(modules: Any) -> None:
    inside, outside = modules["peers"].draw_view(PROGRAMS["no clipping"], runs=50)
    assert inside.mean() - outside.mean() > 5


def test_a_tool_is_plugged_in_by_one_function(modules: Any) -> None:
    programs = [PROGRAMS["no clipping"], PROGRAMS["no noise"], PROGRAMS["plain DP-SGD"]]
    drawn = {each.id: modules["peers"].draw_view(each, runs=300) for each in programs}
    said = modules["peers"].ask("epsilometer", programs, drawn, python=None)
    tool = modules["peers"].plug_in(programs, said["answers"])
    assert [each.accused for each in run_zoo(programs, tool=tool)] == [True, True, False]


def test_pure_dp_is_asked_about_an_epsilon_that_follows_from_the_claim(modules: Any) -> None:
    limit = modules["answers"].pure_limit(1.0, 0.1, 0.05)
    assert np.exp(limit) * 0.05 == pytest.approx(np.exp(1.0) * 0.05 + 0.1)


def test_every_peer_has_a_script_and_pinned_versions(modules: Any) -> None:
    scripts = {path.stem.removeprefix("ask_") for path in (BENCHMARKS / "peers/zoo").glob("*.py")}
    asked = [peer for peer in modules["page"].TOOLS.values() if peer.script]
    assert scripts == {peer.script for peer in asked}
    for peer in asked:
        assert bool(peer.pinned) != bool(peer.commit)
        if peer.pinned and not peer.ours:
            lines = (BENCHMARKS / "peers" / f"{peer.pinned}.txt").read_text("utf-8").split()
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)


def test_the_page_counts_what_was_measured_on_this_zoo(modules: Any) -> None:
    page = modules["page"]
    raw = json.loads(page.RAW.read_text("utf-8"))
    assert set(raw["programs"]) == {program.id for program in list_programs("step")}
    wrong = [each for each, (_, breaks) in raw["programs"].items() if breaks]
    for name, said in raw["tools"].items():
        found = page.count(said, wrong)
        (line,) = [line for line in page.section().splitlines() if _title(page, name, said) in line]
        assert f"| {found} of {len(wrong)} |" in line


def _title(page: Any, name: str, said: dict[str, Any]) -> str:
    peer = page.TOOLS[name]
    return f"| {peer.title} {peer.commit or said['version']}".rstrip() + " |"
