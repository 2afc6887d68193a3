"""``epsilometer log``."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from epsilometer.cli.printing import show
from epsilometer.cli.writing import html_option, write_text
from epsilometer.errors import InvalidArgument
from epsilometer.history.comparison import Compared, Comparison
from epsilometer.history.comparison import compare as compared
from epsilometer.history.entries import Entry
from epsilometer.history.index import History
from epsilometer.history.trend import By, Trend, trends
from epsilometer.report import history_words, words

_COLOURS = {
    "refuted": "red",
    "do not release": "red",
    "not refuted": "green",
    "release": "green",
    "no claim": "blue",
}
_FOLDER = click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), required=False
)
_REBUILD = click.option("--rebuild", is_flag=True, help="Read all files again.")


class _Log(click.Group):
    """Lists where no other command is named: ``epsilometer log runs`` is ``log list runs``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def _moment(ctx: click.Context, param: click.Parameter, text: str | None) -> float:
    if text is None:
        return -float("inf")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument(f"Expected a date as 2026-01-31, got {text!r}.") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@click.group(cls=_Log)
def log() -> None:
    """List the results in FOLDER and below it; compare two, or follow one over releases.

    Without another command the results are listed: epsilometer log FOLDER. Only new and changed
    files are read; the others are known by an index in the folder, which may be deleted.

    Example: epsilometer log demo-run --refuted
    """


@log.command(name="list")
@_FOLDER
@click.option("--kind", default="", help="Only of this kind, as AuditResult or dpsgd.")
@click.option("--subject", default="", help="Only where the subject or path has this text.")
@click.option("--refuted", is_flag=True, help="Only claims that fell, classifiers to hold back.")
@click.option("--since", callback=_moment, metavar="DATE", help="Only from a date on (UTC).")
@click.option("--last", type=click.IntRange(min=0), default=30, show_default=True, help="0: all.")
@click.option("--json", "as_json", is_flag=True, help="Print all as one JSON object.")
@_REBUILD
def list_(
    folder: Path,
    kind: str,
    subject: str,
    refuted: bool,
    since: float,
    last: int,
    as_json: bool,
    rebuild: bool,
) -> None:
    """List the results in FOLDER and below it, oldest first. Dates are when files were written.

    Example: epsilometer log list runs --kind dpsgd --since 2026-01-01
    """
    history = History(folder, rebuild=rebuild)
    entries = history.select(kind=kind, subject=subject, refuted=refuted, since=since)
    if as_json:
        plain = {
            "entries": [entry.to_dict() for entry in entries],
            "unreadable": dict(history.unreadable),
            "unfinished": list(history.unfinished),
        }
        click.echo(json.dumps(plain, indent=2, allow_nan=False))
        return
    shown = entries[-last:] if last else entries
    if shown:
        show(_listed(shown))
    left = len(entries) - len(shown)
    click.echo(
        f"{_results(len(shown))}"
        + (f" of {len(entries):,}; all of them with --last 0" if left else "")
        + "."
    )
    _tell(history)


@log.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare results A and B: settings and bounds that differ, and whether that means anything.

    A and B are JSON files or directories of runs.

    Example: epsilometer log compare runs/v1 runs/v2
    """
    found = compared(first, second)
    if as_json:
        click.echo(json.dumps(_plain(found), indent=2, allow_nan=False))
        return
    if found.settings:
        table = Table("setting", "A", "B", box=box.SIMPLE_HEAD, pad_edge=False)
        for row in found.settings:
            table.add_row(*(Text(words.one_line(cell)) for cell in row))
        show(table)
    else:
        click.echo("All settings are the same.")
    for audit in found.audits:
        show(*_side_by_side(audit))
    for which, subjects in (("A", found.only_first), ("B", found.only_second)):
        for subject in subjects:
            click.echo(f"Only in {which}: {words.one_line(subject)}")


@log.command()
@_FOLDER
@click.option("--subject", default="", help="Only where the subject or path has this text.")
@click.option("--kind", default="", help="Only of this kind, as AuditResult or dpsgd.")
@click.option(
    "--by", type=click.Choice(["date", "name"]), default="date", show_default=True, help="Order."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
@html_option
@_REBUILD
def trend(
    folder: Path,
    subject: str,
    kind: str,
    by: By,
    as_json: bool,
    html: Path | None,
    rebuild: bool,
) -> None:
    """Follow what was audited again and again: ε by result, one table a subject.

    Where dates were lost, as in a copy, --by name takes the order of the runs' names.

    Example: epsilometer log trend runs --subject digits --html trend.html
    """
    history = History(folder, rebuild=rebuild)
    followed = trends(history.select(subject=subject, kind=kind), by=by)
    if as_json:
        plain = [
            {"subject": t.subject, "entries": [entry.to_dict() for entry in t.entries]}
            for t in followed
        ]
        click.echo(json.dumps(plain, indent=2, allow_nan=False))
    else:
        for each in followed:
            show(*_followed(each))
        click.echo(history_words.CAUTION if followed else "No results.")
        _tell(history)
    if html is not None:
        from epsilometer.report.trend_page import trend_page

        write_text(trend_page(followed, title=f"Results in {folder.resolve().name}"), html)
        click.echo(f"Report: {html}", err=as_json)


def _listed(entries: Sequence[Entry]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("written (UTC)", no_wrap=True)
    for name, share in (("run", 3), ("audit", 2), ("subject", 4)):
        table.add_column(name, overflow="fold", ratio=share)
    for name in ("claim", "found", "verdict", "seed"):
        table.add_column(name, no_wrap=True)
    for entry in entries:
        cells = (
            history_words.date(entry),
            history_words.run(entry),
            entry.audit or entry.kind,
            words.one_line(entry.subject),
            history_words.claimed(entry),
            history_words.found(entry),
        )
        seed = "–" if entry.seed is None else str(entry.seed)
        table.add_row(*map(Text, cells), _verdict(entry), Text(seed))
    return table


def _followed(trend: Trend) -> list[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in history_words.TREND_HEAD:
        table.add_column(name, overflow="fold")
    for entry, row in zip(trend.entries, history_words.trend_rows(trend), strict=True):
        table.add_row(*map(Text, row[:4]), _verdict(entry), Text(row[5]))
    line = history_words.sparkline(trend.values)
    return [
        Text(history_words.trend_title(trend), style="bold"),
        Text(f"{trend.measure} {line}", style="cyan"),
        table,
    ]


def _side_by_side(audit: Compared) -> list[RenderableType]:
    table = Table("", "A", "B", box=box.SIMPLE_HEAD, pad_edge=False)
    both = (audit.first, audit.second)
    table.add_row("found", *(Text(history_words.found(entry)) for entry in both))
    table.add_row("promised ε", *(Text(history_words.claimed(entry)) for entry in both))
    table.add_row("verdict", *(_verdict(entry) for entry in both))
    change = "" if audit.difference is None else f"B less A: {audit.difference:+.3g}. "
    return [
        Text(words.one_line(audit.first.subject), style="bold"),
        table,
        Text(change + audit.meaning),
    ]


def _verdict(entry: Entry) -> Text:
    return Text(entry.verdict, style=_COLOURS.get(entry.verdict, "yellow"))


def _plain(found: Comparison) -> dict[str, Any]:
    return {
        "settings": [
            dict(zip(("name", "first", "second"), row, strict=True)) for row in found.settings
        ],
        "audits": [
            {**asdict(audit), "first": audit.first.to_dict(), "second": audit.second.to_dict()}
            for audit in found.audits
        ],
        "only_first": list(found.only_first),
        "only_second": list(found.only_second),
    }


def _tell(history: History) -> None:
    """What is missing in what was shown, on standard error."""
    for path, reason in history.unreadable:
        click.echo(f"Skipped {words.one_line(path)}: {words.one_line(reason)}", err=True)
    if history.unfinished:
        many, first = len(history.unfinished), history.folder / history.unfinished[0]
        click.echo(
            f"{many:,} run{'' if many == 1 else 's'} without a result yet: "
            f"epsilometer status {words.one_line(str(first))}",
            err=True,
        )


def _results(number: int) -> str:
    return "1 result" if number == 1 else f"{number:,} results" if number else "No results"
