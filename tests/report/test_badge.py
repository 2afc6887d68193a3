"""The badge says the verdict and the proved ε, in the colour of the verdict, and nothing unsafe."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from epsilometer.core import judge
from epsilometer.report.badge import badge, word_badge
from epsilometer.report.tones import LOOKS
from tests.cli.calls import call
from tests.examples import AUDITS

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", AUDITS)
def test_it_is_svg_with_the_verdict_in_its_colour(name: str) -> None:
    audit = AUDITS[name]
    drawn = ElementTree.fromstring(badge(audit))
    said = [each.text for each in drawn.iter(f"{SVG}text")]
    assert said == ["privacy audit", word_badge(audit)]
    assert word_badge(audit).endswith(audit.verdict)
    assert drawn.attrib["aria-label"] == f"privacy audit: {word_badge(audit)}"
    (path,) = drawn.iter(f"{SVG}path")
    assert path.attrib["fill"] == LOOKS[judge.tone(audit.verdict)].day
    assert not list(drawn.iter(f"{SVG}script"))


def test_only_proof_and_release_are_green() -> None:
    green = LOOKS[judge.tone("proved")].day
    shown = {audit.verdict for audit in AUDITS.values() if green in badge(audit)}
    assert shown == {"proved", "release"}


def test_a_bound_is_named_only_where_something_is_proved() -> None:
    assert word_badge(AUDITS["refuted"]) == "ε ≥ 2.00 · refuted"
    assert word_badge(AUDITS["release"]) == "release"


def test_the_command_writes_it(tmp_path: Path) -> None:
    file, picture = tmp_path / "audit.json", tmp_path / "badge.svg"
    AUDITS["refuted"].save(file)
    done = call("report", file, "--badge", picture)
    assert done.exit_code == 0, done.output
    assert picture.read_text("utf-8") == badge(AUDITS["refuted"])
    AUDITS["refuted"].save(tmp_path / "saved.svg")
    assert (tmp_path / "saved.svg").read_bytes() == picture.read_bytes()
    lost = call("report", file, "--badge", tmp_path / "nowhere" / "badge.svg")
    assert lost.exit_code == 2
    assert "Error: Could not write" in lost.stderr
