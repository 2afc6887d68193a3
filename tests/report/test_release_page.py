"""Rules about publishing for people: page, Markdown, terminal, figures."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from epsilometer.core.words import headline
from epsilometer.report.build import build
from epsilometer.report.drawing import save_figures
from epsilometer.report.finding_figures import draw_findings
from epsilometer.report.markdown import as_markdown
from epsilometer.report.page import LARGEST, page
from epsilometer.report.terminal import summary
from tests.examples import RELEASE_FINDINGS, a_provenance, a_record, a_release, a_rule
from tests.report.skeleton import Skeleton, meaning_of


@pytest.mark.parametrize(
    ("outcome", "verdict", "colour"),
    [
        ("pass", "release", "32"),
        ("fail", "do not release", "31"),
        ("unclear", "cannot tell", "33"),
    ],
)
def test_every_verdict_is_said_everywhere(outcome: str, verdict: str, colour: str) -> None:
    audit = a_release(rules=(a_rule(outcome=outcome),))
    assert audit.verdict == verdict
    words = Skeleton(page(audit)).text
    assert verdict in words
    assert outcome.upper() in words
    assert meaning_of(audit)[0].split(".")[0] in words
    assert headline(audit) in as_markdown(audit).replace("\\", "")
    for line in (*audit.advice, *audit.caveats):
        assert line in words
    console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(summary(audit))
    first, *rest = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert verdict.upper() in first
    assert f";{colour}m" in first
    assert any(outcome.upper() in line for line in rest)


def test_the_page_names_rules_attacks_records_groups_and_plans() -> None:
    words = Skeleton(page(a_release())).text
    for part in (
        "PDTP at most 1",
        "LiRA, online",
        "0.200 (0.100–0.300)",
        "its class has fewer than 10 records",
        "sex: a",
        "class alone",
        "Dropping 2 brings 3",
        "initialisation",
        "Towards Measuring Membership Privacy",
    ):
        assert part in words, part


def test_failed_work_never_releases() -> None:
    audit = a_release(
        rules=(a_rule(outcome="pass"),),
        provenance=a_provenance(units=3, used=2, failed=1),
    )
    text = Skeleton(page(audit)).text
    assert "cannot tell" in text
    assert "1 unit failed." in text
    assert "1 of 3 units failed" in text


def test_the_same_audit_gives_the_same_bytes_and_fits() -> None:
    assert page(a_release()) == page(a_release())
    records = (a_record(note="x" * 5000),) * 1000
    text = page(a_release(findings=(*RELEASE_FINDINGS, *records)))
    assert len(text.encode()) <= LARGEST
    assert "shortened to the riskiest records" in text


def test_empty_parts_leave_no_trace() -> None:
    bare = a_release(findings=())
    words = Skeleton(page(bare)).text
    for title in ("Attacks", "Records at risk", "Classes and groups", "What fewer decimals"):
        assert f"{title} " not in words
    assert as_markdown(bare)


def test_figures_show_what_was_found(tmp_path: Path) -> None:
    figures = {figure.key: figure for figure in draw_findings(a_release())}
    assert list(figures) == [
        "risk",
        "attacks",
        "rounding",
        "removal",
        "saw-tooth",
        "groups-1",
        "groups-2",
        "groups-3",
        "variation",
    ]
    assert figures["risk"].marks[0].x == 1.0
    assert figures["removal"].series[0].y == (3.0, 2.0, 1.0, 2.0)
    assert figures["saw-tooth"].series[1].x == (1.0, 2.0, 3.0)  # the infinite one is not drawn
    assert figures["rounding"].x.names == ("all", "2", "1", "class")
    for figure in figures.values():
        assert figure.alt
        assert all(len(series.x) >= len(series.y) for series in figure.series)
    pytest.importorskip("matplotlib")
    written = save_figures(build(a_release()), tmp_path, formats=("svg",))
    assert len(written) == len(figures)
