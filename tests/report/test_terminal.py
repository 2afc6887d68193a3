"""What is shown on a terminal is what was found, and an invalid bound never passes for a valid."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from epsilometer import AuditResult, PrivacyClaim
from epsilometer.report import words
from epsilometer.report.terminal import summary
from tests.examples import a_bound as bound
from tests.examples import a_provenance, an_audit


def result(claimed: float | None = 1.0, **changed: Any) -> AuditResult:
    claim = None if claimed is None else PrivacyClaim(epsilon=claimed, delta=1e-5)
    return an_audit(claim=claim, **changed)


def shown(audit: AuditResult) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(summary(audit))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return " ".join(text.replace("│", " ").split())


def bars(audit: AuditResult) -> dict[str, int]:
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
        "ε = 1 was promised",
        "ε ≥ 2.0000 at δ = 1e-05",
        "0.95 one-sided",
        "clopper_pearson, thresholds by RankGrid(ratio=4)",
        "1,234 with the record, 567 without",
        "AUC 0.875",
        "50.0% caught at 1.0% false alarms",
        "A lower bound never proves privacy.",
    ):
        assert part in text


@pytest.mark.parametrize(("claimed", "measured"), [(1.0, 2.0), (4.0, 1.0), (3.0, 3.0), (0.0, 1.0)])
def test_bars_are_as_long_as_their_numbers(claimed: float, measured: float) -> None:
    drawn = bars(result(claimed, bound=bound(epsilon=measured)))
    full = max(drawn.values())
    scale = full / max(claimed, measured)
    assert full > 30
    assert drawn["promised"] == pytest.approx(claimed * scale, abs=0.5)  # whole characters
    assert drawn["clopper_pearson"] == pytest.approx(measured * scale, abs=0.5)


@pytest.mark.parametrize(
    ("claimed", "changed"),
    [
        (1.0, {"epsilon": float("inf")}),
        (float("inf"), {"epsilon": float("inf")}),
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
    assert "NO VERDICT" in text
    assert "clopper_pearson (not valid)" in text
    assert "none: not valid" in text
    assert "chosen at no cost" in text
    for promise in ("proves", "one-sided", "REFUTED", "of audits"):
        assert promise not in text


def test_an_invalid_bound_beside_a_valid_one_is_marked() -> None:
    beside = bound(method="jeffreys", valid=False, epsilon=5.0)
    text = shown(result(also=(beside,)))
    assert "jeffreys (not valid)" in text
    assert "clopper_pearson (not valid)" not in text
    assert "proves ε ≥ 2.00" in text


@pytest.mark.parametrize(
    ("claimed", "valid", "start"),
    [
        (1.0, True, "REFUTED: ε = 1 was promised, the attack proves ε ≥ 2.00"),
        (3.0, True, "NOT REFUTED: ε = 3 was promised, the attack proves only ε ≥ 2.00"),
        (None, True, "The attack proves ε ≥ 2.00"),
        (1.0, False, "NO VERDICT: ε ≥ 2.00 at δ = 1e-05 is not a valid bound."),
        (None, False, "Not a valid bound: ε ≥ 2.00"),
    ],
)
def test_verdicts_in_words(claimed: float | None, valid: bool, start: str) -> None:
    assert words.verdict(result(claimed, bound=bound(valid=valid))).startswith(start)


@pytest.mark.parametrize(
    ("confidence", "fraction"),
    [(0.95, "0.05"), (0.9, "0.1"), (0.999, "0.001"), (0.5, "0.5"), (1 - 1e-10, "1e-10")],
)
def test_the_chance_of_being_wrong_is_told(confidence: float, fraction: str) -> None:
    first, *_ = words.meaning(bound(confidence=confidence))
    assert re.search(rf"at most (a fraction )?{fraction} of audits", first)


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    audit = result(bound=bound(adversary="sees [/all] of [bold]it :smile:"))
    text = shown(replace(audit, subject="scores[red]:x:.csv"))
    assert "sees [/all] of [bold]it :smile:" in text
    assert "scores[red]:x:.csv" in text


def test_a_bound_of_zero_is_not_sold_as_privacy() -> None:
    text = " ".join(words.meaning(bound(epsilon=0.0)))
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
    assert "NO VERDICT: 2 of 9 units failed" in text
    assert "counted against a refutation" in text
    assert "The run stopped early: 5 of 9 units were used." in text
    assert "failed" not in shown(result())
