"""Pictures are there, are the same every time, and take any name."""

import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from epsilometer.core.findings import Curve
from epsilometer.report.build import build
from epsilometer.report.drawing import FORMATS, draw, save_figures
from epsilometer.report.figures import compare_views, draw_views
from tests.conftest import run_often
from tests.examples import AUDITS, a_bound, a_claim, a_series, a_view, some_evidence
from tests.report.hostile import PAYLOADS, full_audit, full_view, full_views, poisoned

START = {"png": b"\x89PNG\r\n", "svg": b"<?xml"}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_figure_is_drawn_the_same_each_time(kind) -> None:
    for figure in draw_views([full_view()], a_claim()):
        picture = draw(figure, kind)
        assert picture.startswith(START[kind])
        assert len(picture) > 5_000
        assert picture == draw(figure, kind)


def test_another_process_draws_the_same_bytes() -> None:
    program = """
import sys
from epsilometer.report.drawing import draw
from epsilometer.report.figures import draw_views
from tests.examples import a_claim
from tests.report.hostile import full_view
sys.stdout.buffer.write(draw(draw_views([full_view()], a_claim())[0], "svg"))
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=root
    )
    assert done.stdout == draw(draw_views([full_view()], a_claim())[0], "svg")


def test_views_side_by_side_are_drawn_with_their_names() -> None:
    picture = draw(compare_views(a_series())[1], "svg")
    words = "".join(ET.fromstring(picture).itertext())
    for part in (
        "once",
        "4 times",
        "9 rounds: all rounds",
        "estimated ε",
        "proved ε",
        "claimed ε",
    ):
        assert part in words
    assert picture == draw(compare_views(a_series())[1], "svg")


@pytest.mark.parametrize("name", [*PAYLOADS, "$\\frac{1$", "%", ""])
@pytest.mark.in_turn(3)
def test_views_of_any_name_are_drawn_side_by_side(name: str) -> None:
    for figure in compare_views(poisoned(a_series(), name)):
        assert ET.fromstring(draw(figure, "svg")) is not None


def test_an_svg_names_its_curves_and_no_date() -> None:
    text = draw(draw_views([full_view()], a_claim())[0], "svg").decode()
    words = "".join(ET.fromstring(text).itertext())
    for part in (
        "Trade-off curve",
        "the attack",
        "claimed: ε = 1",
        "a law",
        "false positive rate",
    ):
        assert part in words
    assert "<dc:date>" not in text


@pytest.mark.parametrize("name", [*PAYLOADS, "_hidden", "$broken", "$\\frac{1$", "%", "", "λ🙂"])
@pytest.mark.in_turn(3)
def test_any_name_can_be_drawn(name: str) -> None:
    law = Curve(name=name, fpr=(0.0, 1.0), fnr=(1.0, 0.0))
    figure = draw_views([a_view(evidence=some_evidence(curves=(law,)))], a_claim())[0]
    root = ET.fromstring(draw(figure, "svg"))
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        *("svg", "metadata", "RDF", "Work", "type", "format", "defs", "style", "g", "path"),
        *("use", "text", "tspan", "clipPath", "rect", "title"),
    }


def test_extreme_numbers_can_be_drawn() -> None:
    bound = a_bound(epsilon=math.inf, threshold=math.inf)
    evidence = some_evidence(growth=((10, 0.0), (20, math.inf), (40, 1e300)))
    for figure in draw_views([a_view(bound=bound, evidence=evidence)], a_claim()):
        assert draw(figure, "svg")


def test_files_are_named_after_their_figures(tmp_path: Path) -> None:
    written = save_figures(build(full_audit()), tmp_path / "new", formats=("svg",))
    assert [p.name for p in written] == ["tradeoff.svg", "low_fpr.svg", "scores.svg", "growth.svg"]
    assert all(p.stat().st_size for p in written)
    side_by_side = save_figures(build(a_series()), tmp_path / "series", formats=("svg",))
    assert [p.name for p in side_by_side][:3] == ["views-1.svg", "views-2.svg", "tradeoff-1.svg"]
    of_pair = save_figures(build(full_views()), tmp_path, formats=("svg",))
    assert [p.stem for p in of_pair] == ["tradeoff", "low_fpr", "scores-1", "scores-2", "growth"]


@pytest.mark.parametrize(
    "name", run_often(["computed", "do not release", "posterior"], ["computed", "do not release"])
)
def test_figures_of_every_kind_are_written(name: str, tmp_path: Path) -> None:
    written = save_figures(build(AUDITS[name]), tmp_path, formats=("svg",))
    assert bool(written) != ("alone" in name)  # checks of conformance are a table, not a figure
    assert len({p.name for p in written}) == len(written)
