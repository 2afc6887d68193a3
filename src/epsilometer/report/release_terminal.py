"""A release audit on the terminal."""

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from epsilometer.core.audit import ReleaseAudit
from epsilometer.report import release_words, words
from epsilometer.report.terminal import facts, table

_COLOURS = {"do not release": "red", "release": "green", "cannot tell": "yellow"}
_RECORDS = 10


def release_summary(result: ReleaseAudit) -> RenderableType:
    """The verdict, its reasons, attacks, the riskiest records, and what to do."""
    colour = _COLOURS[result.verdict]
    parts: list[RenderableType] = [
        Text(f"{result.verdict.upper()}: {release_words.deciding(result)}", style=f"bold {colour}"),
        Text(),
        _reasons(result),
    ]
    if result.leaving is not None:
        parts.append(facts(release_words.leaving_rows(result.leaving)))
    if result.attacks:
        rows = [release_words.attack_row(attack) for attack in result.attacks]
        parts.append(table(("attack", "AUC", "TPR − FPR", "caught", "ε"), rows))
    if result.records:
        parts.append(_records(result))
    if len(result.groups) > 1:
        rows = [release_words.group_row(group) for group in result.groups]
        parts.append(table(("group", "records", "exposed", "median", "AUC"), rows))
    if result.rounding:
        rows = [release_words.rounding_row(step) for step in result.rounding]
        parts.append(table(("shown", "exposed", "largest", "accuracy", "TPR − FPR"), rows))
    notes = [*words.run_notes(result.provenance), *result.advice]
    parts += [Text(), Text("\n".join(f"· {line}" for line in notes))]
    caveats = release_words.meaning(result)
    parts += [Text("\n".join(f"· {line}" for line in caveats), style="dim")]
    # Text, not markup: a file may be called "[red].csv".
    return Panel(Group(*parts), title=Text(result.subject), title_align="left", border_style=colour)


def _reasons(result: ReleaseAudit) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("rule", "says", "why"):
        table.add_column(head)
    for reason in result.reasons:
        told = f"{reason.finding} ({release_words.reason_confidence(reason)})"
        decision = Text(reason.decision, style=_COLOURS[reason.decision])
        table.add_row(Text(reason.rule), decision, Text(told))
    return table


def _records(result: ReleaseAudit) -> RenderableType:
    rows = [
        (record.record, words.number(record.risk, 3), record.group, record.note)
        for record in result.records[:_RECORDS]
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("record", "risk", "class", "what makes it stand out"):
        table.add_column(head, justify="right" if head == "risk" else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
