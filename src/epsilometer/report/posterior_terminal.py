"""An audit of predictions with uncertainty on the terminal."""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from epsilometer.core.audit import PosteriorAudit
from epsilometer.report import posterior_words, words
from epsilometer.report.terminal import facts, table

_COLOURS = {"refuted": "red", "not refuted": "green", "no claim": "blue", "no verdict": "yellow"}


def posterior_summary(result: PosteriorAudit) -> RenderableType:
    """The verdict, every form with its bound and its worth, the plan, and what it means."""
    colour = _COLOURS[result.verdict]
    said = posterior_words.finding(result)
    if result.claim is not None:
        said = f"{result.verdict.upper()}: {said}"
    forms = [posterior_words.form_row(form) for form in result.forms]
    parts: list[RenderableType] = [
        Text(said, style=f"bold {colour}"),
        Text(),
        table(posterior_words.FORM_HEAD, forms),
    ]
    if result.tested:
        rows = [posterior_words.utility_row(form) for form in result.forms]
        parts.append(table(posterior_words.UTILITY_HEAD, rows))
    notes = [*words.run_notes(result.provenance), *result.plan.advice]
    parts += [facts(posterior_words.facts(result)), Text("\n".join(f"· {line}" for line in notes))]
    meaning = [line for line in posterior_words.meaning(result) if line not in notes]
    parts += [Text("\n".join(f"· {line}" for line in meaning), style="dim")]
    # Text, not markup: a file may be called "[red].csv".
    return Panel(Group(*parts), title=Text(result.subject), title_align="left", border_style=colour)
