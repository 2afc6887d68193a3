"""Pictures are there, are the same every time, and take any name."""

import math
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from epsilometer.report.drawing import FORMATS, draw, save_figures
from epsilometer.report.figures import figures, group_figures
from epsilometer.results import Curve
from tests.examples import a_bound, a_series, an_audit, some_evidence
from tests.report.hostile import PAYLOADS, full_audit, full_group, poisoned

START = {"png": b"\x89PNG\r\n", "svg": b"<?xml"}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_figure_is_drawn_the_same_each_time(kind) -> None:
    for figure in figures(full_audit()):
        picture = draw(figure, kind)
        assert picture.startswith(START[kind])
        assert len(picture) > 5_000
        assert picture == draw(figure, kind)


def test_another_process_draws_the_same_bytes() -> None:
    program = """
import sys
from epsilometer.report.drawing import draw
from epsilometer.report.figures import figures, group_figures
from tests.report.hostile import full_audit
sys.stdout.buffer.write(draw(figures(full_audit())[0], "svg"))
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=root
    )
    assert done.stdout == draw(figures(full_audit())[0], "svg")


def test_audits_side_by_side_are_drawn_with_their_names() -> None:
    picture = draw(group_figures(a_series())[1], "svg")
    words = "".join(ET.fromstring(picture).itertext())
    for part in (
        "once",
        "4 times",
        "9 rounds: all rounds",
        "estimated ε",
        "proved ε",
        "promised ε",
    ):
        assert part in words
    assert picture == draw(group_figures(a_series())[1], "svg")


@pytest.mark.parametrize("name", [*PAYLOADS, "$\\frac{1$", "%", ""])
def test_audits_of_any_name_are_drawn_side_by_side(name: str) -> None:
    for figure in group_figures(poisoned(a_series(), name)):
        assert ET.fromstring(draw(figure, "svg")) is not None


def test_an_svg_names_its_curves_and_no_date() -> None:
    text = draw(figures(full_audit())[0], "svg").decode()
    words = "".join(ET.fromstring(text).itertext())
    for part in (
        "Trade-off curve",
        "the attack",
        "promised: ε = 1",
        "a law",
        "false positive rate",
    ):
        assert part in words
    assert "<dc:date>" not in text


@pytest.mark.parametrize("name", [*PAYLOADS, "_hidden", "$broken", "$\\frac{1$", "%", "", "λ🙂"])
def test_any_name_can_be_drawn(name: str) -> None:
    law = Curve(name=name, fpr=(0.0, 1.0), fnr=(1.0, 0.0))
    figure = figures(an_audit(evidence=some_evidence(curves=(law,))))[0]
    root = ET.fromstring(draw(figure, "svg"))
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        *("svg", "metadata", "RDF", "Work", "type", "format", "defs", "style", "g", "path"),
        *("use", "text", "tspan", "clipPath", "rect", "title"),
    }


def test_extreme_numbers_can_be_drawn() -> None:
    bound = a_bound(epsilon=math.inf, threshold=math.inf)
    evidence = some_evidence(growth=((10, 0.0), (20, math.inf), (40, 1e300)))
    for figure in figures(an_audit(bound=bound, evidence=evidence)):
        assert draw(figure, "svg")


def test_files_are_named_after_their_figures(tmp_path: Path) -> None:
    written = save_figures(full_audit(), tmp_path / "new", formats=("svg",))
    assert [p.name for p in written] == ["tradeoff.svg", "low_fpr.svg", "scores.svg", "growth.svg"]
    assert all(p.stat().st_size for p in written)
    side_by_side = save_figures(a_series(), tmp_path / "series", formats=("svg",))
    assert [p.name for p in side_by_side][:3] == ["audits-1.svg", "audits-2.svg", "1-tradeoff.svg"]
    of_group = save_figures(full_group(), tmp_path, formats=("svg",))
    assert {p.name[:2] for p in of_group} == {"1-", "2-"}
    assert len(of_group) == 8
