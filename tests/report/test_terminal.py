"""What is shown on a terminal is what was found, and an invalid bound never passes for a valid."""

import io
import re
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.segment import Segment

from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.words import headline
from epsilometer.report.terminal import brief, summary
from epsilometer.report.texts import word_bound_meaning
from epsilometer.report.tones import LOOKS
from tests.examples import AUDITS, a_claim, a_provenance, a_view, an_audit, several_views
from tests.examples import a_bound as bound


def result(claimed: float | None = 1.0, **changed: Any) -> Audit:
    return an_audit(claim=None if claimed is None else a_claim(claimed), **changed)


def shown(audit: Audit) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(summary(audit))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("name", AUDITS)
def test_the_first_line_is_the_verdict_in_its_colour(name: str) -> None:
    audit = AUDITS[name]
    first, second, *_ = Segment.split_lines(Console(width=400).render(summary(audit)))
    assert headline(audit) in "".join(segment.text for segment in first)
    assert audit.subject in "".join(segment.text for segment in second)
    styles = [segment.style for segment in first if segment.style]
    assert {style.color.name for style in styles if style.color} == {
        LOOKS[judge.tone(audit.verdict)].terminal
    }


def test_every_tone_has_a_colour_of_its_own() -> None:
    assert len({look.terminal for look in LOOKS.values()}) == len(LOOKS)


def bars(audit: Audit) -> dict[str, int]:
    console = Console(width=100, file=io.StringIO())
    console.print(summary(audit))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    with_bars = [line.strip("│ ") for line in lines if "█" in line or "▏" in line]
    return {line.split()[0]: line.count("█") for line in with_bars}


def test_every_number_of_the_audit_is_shown() -> None:
    text = shown(result())
    for part in (
        "scores.csv",
        "REFUTED",
        "ε = 1 was claimed",
        "clopper_pearson ≥ 2.0000 1e-05 0.95 one-sided 1,234 + 567 RankGrid(ratio=4)",
        "1,234 with the record, 567 without",
        "AUC 0.875",
        "caught at 1% false positives 50.0%",
        "A lower bound never proves privacy.",
    ):
        assert part in text


@pytest.mark.parametrize(("claimed", "measured"), [(1.0, 2.0), (4.0, 1.0), (3.0, 3.0), (0.0, 1.0)])
def test_bars_are_as_long_as_their_numbers(claimed: float, measured: float) -> None:
    drawn = bars(result(claimed, bound=bound(epsilon=measured)))
    full = max(drawn.values())
    scale = full / max(claimed, measured)
    assert full > 30
    assert drawn["claimed"] == pytest.approx(claimed * scale, abs=0.5)  # whole characters
    assert drawn["clopper_pearson"] == pytest.approx(measured * scale, abs=0.5)


@pytest.mark.parametrize(
    ("claimed", "changed"),
    [
        (1.0, {"epsilon": float("inf")}),
        (0.0, {"epsilon": 0.0}),
        (None, {"epsilon": 0.0}),
        (1e-300, {"epsilon": 1e300}),
        (1.0, {"n_out": 0, "delta": 1e-5}),
    ],
)
def test_extreme_numbers_can_be_shown(claimed: float | None, changed: dict) -> None:
    assert "scores.csv" in shown(result(claimed, bound=bound(**changed)))


def test_an_invalid_bound_is_shown_as_such_everywhere() -> None:
    invalid = bound(valid=False, caveats=("Not a valid bound: chosen at no cost.",))
    text = shown(result(bound=invalid))
    assert "CANNOT JUDGE" in text
    assert "clopper_pearson – not a valid bound ε ≥ 2.00" in text
    assert "none: not a valid bound" in text
    assert "chosen at no cost" in text
    for strong in ("proves", "one-sided", "REFUTED", "of audits"):
        assert strong not in text


def test_an_invalid_bound_beside_a_valid_one_is_marked() -> None:
    beside = bound(method="jeffreys", valid=False, epsilon=5.0)
    text = shown(result(also=(beside,)))
    assert "jeffreys – for comparison, not a valid bound ε ≥ 5.00" in text
    assert "clopper_pearson – not" not in text
    assert "proves ε ≥ 2.00" in text


@pytest.mark.parametrize(
    ("confidence", "fraction"),
    [(0.95, "0.05"), (0.9, "0.1"), (0.999, "0.001"), (0.5, "0.5"), (1 - 1e-10, "1e-10")],
)
def test_the_chance_of_being_wrong_is_said(confidence: float, fraction: str) -> None:
    first, *_ = word_bound_meaning(bound(confidence=confidence))
    assert re.search(rf"at most (a fraction )?{fraction} of audits", first)


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    audit = result(bound=bound(adversary="sees [/all] of [bold]it :smile:"))
    text = shown(replace(audit, subject="scores[red]:x:.csv"))
    assert "sees [/all] of [bold]it :smile:" in text
    assert "scores[red]:x:.csv" in text


def test_a_bound_of_zero_is_not_sold_as_privacy() -> None:
    text = " ".join(word_bound_meaning(bound(epsilon=0.0)))
    assert "Nothing was proved" in text
    assert "never proves privacy" in text


def test_what_is_unstated_is_not_shown() -> None:
    assert "unstated" not in shown(result())
    stated = bound(adversary="sees every gradient", adjacency="add_remove")
    text = shown(result(bound=stated))
    assert "sees every gradient" in text
    assert "added or removed" in text


def test_failed_units_are_shown() -> None:
    text = shown(result(3.0, provenance=a_provenance(units=9, used=5, failed=2)))
    assert "CANNOT JUDGE: ε = 3 was claimed. 2 units failed" in text
    assert "counted against a refutation" in text
    assert "The run stopped early: 5 of 9 units were used." in text
    assert "failed" not in shown(result())


def test_several_views_are_bars_and_rows() -> None:
    text = shown(
        several_views(a_view(subject="updates"), a_view(subject="model", bound=bound(epsilon=0.5)))
    )
    assert "updates ε ≥ 2.00" in text
    assert "model ε ≥ 0.50" in text
    assert "model not refuted ≥ 0.50" in text


def test_no_escape_sequence_gets_through() -> None:
    audit = result(bound=bound(adversary="a\x1b[31mb", caveats=("\x1b]0;x\x07",)))
    text = shown(replace(audit, subject="s\x1b[2J", advice=("\x1b[5m",)))
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_bars_fit_any_width(width: int) -> None:
    """The shorter of two is never cut to the length of the longer."""
    console = Console(width=width, file=io.StringIO())
    console.print(summary(result(3.0, bound=bound(epsilon=3.3))))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    short, long = (line.count("█") for line in lines if "█" in line)
    assert 0 < short < long
    assert "…" not in "".join(line for line in lines if "█" in line)


@pytest.mark.parametrize("name", AUDITS)
def test_three_lines_say_it(name: str) -> None:
    console = Console(width=400, file=io.StringIO())
    console.print(brief(AUDITS[name]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert 2 <= len(lines) <= 3
    assert lines[0] == headline(AUDITS[name])
