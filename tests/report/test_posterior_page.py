"""An audit of predictions for people: page, Markdown, terminal, figures. Words stay words."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from epsilometer.posterior import FormFinding, PosteriorAudit
from epsilometer.report.drawing import save_figures
from epsilometer.report.markdown import markdown
from epsilometer.report.page import LARGEST, page
from epsilometer.report.posterior_figures import posterior_figures
from epsilometer.report.posterior_terminal import posterior_summary
from epsilometer.report.posterior_words import finding, meaning
from tests.examples import a_bound, a_form, a_posterior, a_provenance, an_audit
from tests.report.hostile import PAYLOADS, poisoned
from tests.report.skeleton import Skeleton


def terminal(result: PosteriorAudit) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(posterior_summary(result))
    return console.export_text()


def hostile(result: PosteriorAudit, text: str) -> PosteriorAudit:
    """But for what is checked where it is read: standings, kinds and the plan's choice."""
    changed = poisoned(result, text)
    forms = tuple(
        replace(form, standing=own.standing, shows=own.shows, form=f"{text} {i}")
        for i, (form, own) in enumerate(zip(changed.forms, result.forms, strict=True))
    )
    sweeps = tuple(
        replace(point, swept=own.swept, shows=own.shows)
        for point, own in zip(changed.sweeps, result.sweeps, strict=True)
    )
    return replace(changed, forms=forms, sweeps=sweeps)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_a_user_wrote_is_text_and_nothing_else(payload: str) -> None:
    result = a_posterior(plan=replace(a_posterior().plan, chosen=None))
    harmless = Skeleton(page(hostile(result, "harmless")))
    poisonous = Skeleton(page(hostile(result, payload)))
    assert poisonous.elements == harmless.elements
    assert "__xss" not in "".join(poisonous.scripts["script"])


SPARED = an_audit(bound=a_bound(epsilon=0.5))
FAILED = replace(SPARED, provenance=a_provenance(units=3, used=2, failed=1))


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "refuted"),
        ({"forms": (a_form("label", audit=SPARED),)}, "not refuted"),
        ({"claim": None, "forms": (a_form("label", audit=an_audit(claim=None)),)}, "no claim"),
        (
            {"forms": (a_form("label", audit=FAILED),), "provenance": FAILED.provenance},
            "no verdict",
        ),
    ],
)
def test_every_verdict_is_told_everywhere(changed: dict[str, Any], verdict: str) -> None:
    result = a_posterior(**changed)
    assert result.verdict == verdict
    words = Skeleton(page(result)).text
    assert verdict in words
    assert finding(result).split(";")[0].split("(")[0] in words.replace("\u00a0", " ")
    for line in (*result.plan.advice, *result.caveats):
        assert line in words
        assert line in " ".join(markdown(result).replace("\\", "").split())
    assert finding(result).split(";")[0] in " ".join(terminal(result).replace("│", " ").split())


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
        "no bound",
    ):
        assert part in words, part
    assert len(page(a_posterior()).encode()) < LARGEST


def test_nothing_is_said_of_utility_that_was_not_measured() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("accuracy", "ties", "calibration_error", "log_loss"))
    forms = tuple(a_form(name, **nothing) for name in ("samples", "label"))
    points = tuple(replace(p, accuracy=None, ties=None) for p in a_posterior().sweeps)
    plan = replace(a_posterior().plan, pareto=())
    result = a_posterior(forms=forms, sweeps=points, tested=0, plan=plan)
    assert "What each form is worth" not in Skeleton(page(result)).text
    keys = {figure.key for figure in posterior_figures(result)}
    assert keys == {"forms", "advantage", "samples", "units"}
    assert "log loss" not in terminal(result)


def test_figures_tell_their_numbers(tmp_path: Path) -> None:
    result = a_posterior()
    figures = {figure.key: figure for figure in posterior_figures(result)}
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
    written = save_figures(result, tmp_path, formats=("svg",))
    assert {path.name for path in written} >= {f"{key}.svg" for key in figures}


def test_infinite_estimates_are_drawn_within_their_frame() -> None:
    endless: FormFinding = a_form("label", raw=float("inf"))
    (first, *_) = posterior_figures(a_posterior(forms=(endless,), differences=()))
    assert all(0 <= y <= first.y.high for series in first.series for y in series.y)


def test_what_it_means_is_said_of_paper_and_plan() -> None:
    said = " ".join(meaning(a_posterior()))
    assert "no bound" in said
    assert "no proof of privacy" in said
