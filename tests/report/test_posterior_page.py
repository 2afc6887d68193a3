"""Forms of publishing for people: page, Markdown, terminal, figures."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from epsilometer.core.audit import Audit
from epsilometer.core.findings import FormFinding
from epsilometer.core.words import announce, headline, word_evidence
from epsilometer.report.build import build
from epsilometer.report.drawing import save_figures
from epsilometer.report.finding_figures import draw_findings
from epsilometer.report.markdown import as_markdown
from epsilometer.report.page import LARGEST, page
from epsilometer.report.terminal import summary
from epsilometer.report.texts import list_tables
from tests.examples import (
    FORMS,
    SWEEPS,
    a_bound,
    a_form,
    a_plan,
    a_posterior,
    a_provenance,
    a_view,
    posterior_runs,
)
from tests.report.skeleton import Skeleton, meaning_of


def terminal(audit: Audit) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(summary(audit))
    return console.export_text()


SPARED = a_form("label", view=a_view(bound=a_bound(epsilon=0.5)))
FAILED = a_form("label", view=replace(SPARED.view, units=3, used=2, failed=1))
LOST = a_provenance(units=3, used=2, failed=1)


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "refuted"),
        ({"forms": (SPARED,)}, "not refuted"),
        ({"claim": None, "forms": (SPARED,)}, "no claim"),
        ({"forms": (FAILED,), "provenance": LOST}, "cannot judge"),
    ],
)
def test_every_verdict_is_said_everywhere(changed: dict[str, Any], verdict: str) -> None:
    audit = a_posterior(**changed)
    assert audit.verdict == verdict
    words = Skeleton(page(audit)).text.replace("\u00a0", " ")
    assert verdict in words
    said = headline(audit).split(": ", 1)[1].split(". ")[0]
    assert announce(audit).split(". ")[0] in words
    assert said in re.sub(r"\\", "", as_markdown(audit))
    assert said in " ".join(terminal(audit).replace("│", " ").split())
    for line in ("Publish the label alone.", *audit.caveats):
        assert line in words
        assert line in " ".join(as_markdown(audit).replace("\\", "").split())


@pytest.mark.parametrize("chosen", ["label", None])
def test_without_a_claim_the_plan_is_the_headline(chosen: str | None) -> None:
    audit = a_posterior(claim=None, plan=a_plan(chosen=chosen))
    said = headline(audit)
    assert said.startswith("NO CLAIM: ")
    assert ("Publish class labels only" in said) == (chosen is not None)
    assert ("Publish nothing: no output is known" in said) == (chosen is None)


def test_with_a_claim_the_plan_follows_the_headline() -> None:
    audit = a_posterior(plan=a_plan(chosen="label"))
    assert audit.verdict == "refuted"
    assert "Publish class labels only; " in word_evidence(audit)
    assert "Publish class labels only; " in Skeleton(page(audit)).text.replace("\u00a0", " ")


def test_forms_are_shown_finest_first_whatever_they_prove() -> None:
    refuted = a_form("label")
    audit = a_posterior(forms=(a_form("samples", view=SPARED.view), refuted))
    assert [form.form for form in audit.find(FormFinding)] == ["label", "samples"]  # gravest first
    table = next(table for table in list_tables(audit) if table.title.startswith("Output formats"))
    assert [row[0] for row in table.rows] == ["samples", "label"]
    assert next(draw_findings(audit)).x.names == ("samples", "label")


def test_the_page_names_forms_bounds_worth_theory_and_differences() -> None:
    words = Skeleton(page(a_posterior())).text
    for part in (
        "mean+std, to 0.01",
        "0.40 (0.10 to 0.70)",
        "above",
        "2.50",
        "theory, RDP",
        "25.63",
        "1 with the record, 2 without it",
        "samples than label",
        "+0.200 to +0.600",
        "not a bound",
    ):
        assert part in words, part
    assert len(page(a_posterior()).encode()) < LARGEST


def test_nothing_is_said_of_utility_that_was_not_measured() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("accuracy", "ties", "calibration_error", "log_loss"))
    forms = tuple(a_form(name, **nothing) for name in ("samples", "label"))
    points = tuple(replace(point, accuracy=None, ties=None) for point in SWEEPS)
    audit = a_posterior(
        forms=forms, sweeps=points, runs=posterior_runs(tested=0), plan=a_plan(forms, pareto=())
    )
    assert "Utility of each format" not in Skeleton(page(audit)).text
    keys = {figure.key for figure in draw_findings(audit)}
    assert keys == {"forms", "advantage", "samples", "units"}
    assert "log loss" not in terminal(audit)


def test_figures_say_their_numbers(tmp_path: Path) -> None:
    audit = a_posterior()
    figures = {figure.key: figure for figure in draw_findings(audit)}
    assert set(figures) == {
        "forms",
        "advantage",
        "samples",
        "units",
        "rounding-utility",
        "pareto",
    }
    assert "proved 2.00, paper's estimate 2.50" in figures["forms"].alt
    assert figures["units"].x.names == ("as it is", "0.1")
    assert figures["pareto"].marks[0].x == 0.46
    written = save_figures(build(audit), tmp_path, formats=("svg",))
    assert {path.name for path in written} >= {f"{key}.svg" for key in figures}


def test_infinite_estimates_are_drawn_within_their_frame() -> None:
    endless: FormFinding = a_form("label", raw=float("inf"))
    (first, *_) = draw_findings(a_posterior(forms=(endless,), differences=()))
    assert all(0 <= y <= first.y.high for series in first.series for y in series.y)


def test_what_it_means_is_said_of_paper_and_plan() -> None:
    said = " ".join(meaning_of(a_posterior()))
    assert "not a bound" in said
    assert "not proved private" in said


def test_forms_without_a_plan_are_shown_too() -> None:
    findings = tuple(form for form in a_posterior().findings if isinstance(form, FormFinding))
    audit = replace(a_posterior(), findings=findings)
    assert [figure.key for figure in draw_findings(audit)] == ["forms", "advantage"]
    assert FORMS[0].form in Skeleton(page(audit)).text
