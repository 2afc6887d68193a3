"""A release audit for people: page, Markdown, terminal, figures. What a user wrote is text."""

from dataclasses import replace

import pytest

from epsilometer.release import ReleaseAudit
from epsilometer.report.drawing import save_figures
from epsilometer.report.markdown import markdown
from epsilometer.report.page import LARGEST, page
from epsilometer.report.release_figures import release_figures
from epsilometer.report.release_words import finding, meaning
from tests.examples import a_provenance, a_reason, a_release
from tests.report.hostile import PAYLOADS, poisoned
from tests.report.skeleton import Skeleton


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_a_user_wrote_is_text_and_nothing_else(payload: str) -> None:
    kept = {"decision": "release"}
    result = a_release(reasons=(a_reason(**kept),))
    harmless = Skeleton(page(_poisoned(result, "harmless")))
    hostile = Skeleton(page(_poisoned(result, payload)))
    assert hostile.elements == harmless.elements
    assert "__xss" not in "".join(hostile.scripts["script"])


def _poisoned(result: ReleaseAudit, text: str) -> ReleaseAudit:
    """But for decisions, which are checked where they are read, and columns that group figures."""
    changed = poisoned(result, text)
    return replace(
        changed,
        reasons=tuple(
            replace(reason, decision=own.decision)
            for reason, own in zip(changed.reasons, result.reasons, strict=True)
        ),
        groups=tuple(
            replace(group, column=own.column, name=f"{text} {i}")
            for i, (group, own) in enumerate(zip(changed.groups, result.groups, strict=True))
        ),
    )


@pytest.mark.parametrize("decision", ["release", "do not release", "cannot tell"])
def test_every_verdict_is_told_everywhere(decision: str) -> None:
    result = a_release(reasons=(a_reason(decision=decision),))
    assert result.verdict == decision
    words = Skeleton(page(result)).text
    assert decision in words
    assert finding(result).split(":")[0] in words
    assert meaning(result)[0].split(".")[0] in words
    assert finding(result).split(":")[0] in markdown(result)
    for line in (*result.advice, *result.caveats):
        assert line in words


def test_the_page_names_reasons_attacks_records_groups_and_plans() -> None:
    words = Skeleton(page(a_release())).text
    for part in (
        "PDTP at most 1",
        "LiRA, online",
        "0.200 (0.100–0.300)",
        "row 0",
        "one of 3 records of its class",
        "sex: a",
        "class alone",
        "Dropping 2 brings 3",
        "initialisation",
        "Towards Measuring Membership Privacy",
    ):
        assert part in words, part


def test_failed_work_is_told() -> None:
    result = a_release(
        reasons=(a_reason(decision="release"),),
        provenance=a_provenance(units=3, used=2, failed=1),
    )
    assert "1 units of the work failed" in Skeleton(page(result)).text


def test_the_same_audit_gives_the_same_bytes_and_fits() -> None:
    assert page(a_release()) == page(a_release())
    records = a_release().records[1:2] * 1000
    long = tuple(replace(record, note="x" * 5000) for record in records)
    text = page(a_release(records=long))
    assert len(text.encode()) <= LARGEST
    assert "cut to what a page can hold" in text


def test_empty_parts_leave_no_trace() -> None:
    bare = a_release(
        leaving=None, attacks=(), groups=(), records=(), removal=None, rounding=(), variation=()
    )
    words = Skeleton(page(bare)).text
    for title in ("Attacks", "Records at risk", "Classes and groups", "What would help"):
        assert f"{title} " not in words
    assert markdown(bare)


def test_figures_show_what_was_found(tmp_path) -> None:
    figures = {figure.key: figure for figure in release_figures(a_release())}
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
    assert figures["rounding"].x.names == ("all digits", "2 decimals", "1 decimal", "class alone")
    for figure in figures.values():
        assert figure.alt
        assert all(len(series.x) >= len(series.y) for series in figure.series)
    pytest.importorskip("matplotlib")
    written = save_figures(a_release(), tmp_path, formats=("svg",))
    assert len(written) == len(figures)
