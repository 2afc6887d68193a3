"""``epsilometer runs``: what lies in folders of runs, how far a run is, and how it goes on."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from epsilometer.cli import history_words
from epsilometer.cli.audit import end_audit, run_file
from epsilometer.cli.check import verify
from epsilometer.cli.options import (
    Options,
    audit_options,
    data_option,
    html_option,
    json_option,
    run_argument,
    trust_option,
)
from epsilometer.cli.output import make_table, say, show, show_line, write_text
from epsilometer.cli.runs_words import to_plain
from epsilometer.core import judge, words
from epsilometer.core.chain import describe_break
from epsilometer.core.printing import one_line, to_json_text
from epsilometer.engine.heartbeat import Heartbeat, read_heartbeat
from epsilometer.engine.run import read_finished_result
from epsilometer.engine.store import Store, group_causes, is_busy
from epsilometer.errors import InvalidArgument
from epsilometer.files.history.comparison import Compared
from epsilometer.files.history.comparison import compare as compare_results
from epsilometer.files.history.entries import Entry
from epsilometer.files.history.index import History
from epsilometer.files.history.trend import By, Trend, trends
from epsilometer.report.tones import LOOKS


def _read_moment(ctx: click.Context, param: click.Parameter, text: str | None) -> float:
    if text is None:
        return -float("inf")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument(f"Expected a date as 2026-01-31, got {text!r}.") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_NAMED = 5  # units that a line names

_folder_argument = click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), required=False
)
_rebuild_option = click.option("--rebuild", is_flag=True, help="Read all files again.")
_subject_option = click.option(
    "--subject", default="", help="Select results whose subject or path contains this text."
)
_kind_option = click.option("--kind", default="", help="Select by kind, such as Scores or DPSGD.")


class _Commands(click.Group):
    """List commands by whole sentences, on as many lines as they take."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl([(n, self.commands[n].get_short_help_str(200)) for n in names])


@click.group(cls=_Commands)
def runs() -> None:
    """List, resume, verify and compare runs and their results."""


runs.add_command(verify)


@runs.command(name="list")
@_folder_argument
@_kind_option
@_subject_option
@click.option(
    "--refuted", is_flag=True, help="Select refuted claims and models that must not be released."
)
@click.option(
    "--since", callback=_read_moment, metavar="DATE", help="Select results since this date (UTC)."
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    help="Show the last N; 0 shows all.",
)
@json_option
@html_option
@_rebuild_option
def list_(
    folder: Path,
    kind: str,
    subject: str,
    refuted: bool,
    since: float,
    last: int,
    as_json: bool,
    html: Path | None,
    rebuild: bool,
) -> None:
    """List the results in FOLDER and below it, oldest first.

    Dates are those of the files. Only new and changed files are read; an index in your cache
    folder, which may be deleted, holds the others.

    Example: epsilometer runs list . --subject digits --since 2026-01-01
    """
    history = History(folder, rebuild=rebuild)
    entries = history.select(kind=kind, subject=subject, refuted=refuted, since=since)
    if html is not None:
        from epsilometer.cli.index_page import index_page

        write_text(index_page(history, entries, html), html)
        say(f"Report: {one_line(str(html))}", err=True)
    if as_json:
        plain = {
            "entries": [entry.to_dict() for entry in entries],
            "unreadable": dict(history.unreadable),
            "unfinished": list(history.unfinished),
        }
        say(to_json_text(plain))
        return
    shown = entries[-last:] if last else entries
    if shown:
        show(_make_list(shown))
    more = f" of {len(entries):,}; all of them with --last 0" if len(entries) > len(shown) else ""
    say(f"{_count_results(len(shown))}{more}.")
    _warn(history)


@runs.command()
@run_argument
@click.option("--watch", is_flag=True, help="Update every second until the run ends.")
@json_option
def status(directory: Path, watch: bool, as_json: bool) -> None:
    """Show the progress of the run in directory RUN.

    Lists units that are late, and why others failed. Changes nothing.

    Example: epsilometer runs status demo-run
    """
    if watch:
        from epsilometer.cli.watching import watch_run

        if as_json:
            raise InvalidArgument("Expected --watch or --json, got both.")
        watch_run(directory)
        return
    store = Store.open(directory)
    damaged, failures = store.look(), store.failures()
    result, broken = read_finished_result(store), describe_break(directory)
    running = is_busy(directory)
    beat = read_heartbeat(directory) if running else None
    state = "running" if running else "finished" if result is not None else "stopped"
    if as_json:
        plain = {
            "state": state,
            "audit": store.plan.audit,
            "plan": store.plan.public_hash,
            "units": store.plan.units,
            "finished": len(store.finished),
            "failed": sorted(failures),
            "causes": {cause: len(units) for cause, units in group_causes(failures).items()},
            "heartbeat": None if beat is None else msgspec.to_builtins(beat),
            "damaged": damaged,
            "changed": broken,
            "verdict": None if result is None else result.verdict,
        }
        say(to_json_text(plain))
        return
    table = Table.grid(padding=(0, 2))
    table.add_row("state", state)
    table.add_row("audit", one_line(store.plan.audit))
    table.add_row("plan", Text(store.plan.public_hash, overflow="fold"))
    table.add_row("units", f"{len(store.finished):,} of {store.plan.units:,} finished")
    if beat is not None:
        for name, line in _describe_heartbeat(beat):
            table.add_row(name, one_line(line))
    for cause, units in group_causes(failures).items():
        table.add_row("failed", one_line(f"{_list_units(units)}: {cause}"))
    for name, reason in damaged.items():
        table.add_row("damaged", one_line(f"shards/{name}: {reason}; will be computed again"))
    if broken:
        table.add_row("changed", one_line(f"{broken}; the result will be made again"))
    if failures:
        table.add_row("", one_line(f"their error messages are in {directory / 'failures'}"))
    if result is not None:
        table.add_row("verdict", words.headline(result))
    show(table)
    if state == "stopped":
        say(f"Resume with: epsilometer runs resume {one_line(str(directory))}")


def _describe_heartbeat(beat: Heartbeat) -> list[tuple[str, str]]:
    """Return which units are under way and which are late, as rows."""
    usual = "" if beat.usual is None else f", where {beat.usual:.3g} s is usual"
    rows = [
        ("late", f"unit {each.unit} at {each.worker} for {each.seconds:,.0f} s{usual}")
        for each in beat.under_way
        if each.late
    ]
    on_time = [each for each in beat.under_way if not each.late]
    if on_time:
        oldest = f", the oldest for {on_time[0].seconds:,.0f} s"
        rows.append(("under way", _list_units([each.unit for each in on_time]) + oldest))
    if beat.silence:
        said = f"process {beat.process} on {beat.host} gave no sign for {beat.silence:,.0f} s"
        rows.append(("silent", said))
    return rows


def _list_units(units: Sequence[int]) -> str:
    shown = ", ".join(map(str, units[:_NAMED])) + (", …" if len(units) > _NAMED else "")
    return f"unit {shown}" if len(units) == 1 else f"{len(units):,} units ({shown})"


@runs.command()
@run_argument
@trust_option
@data_option()
@audit_options(asks=False, units=True, out=False)
def resume(directory: Path, data: Path | None, options: Options) -> None:
    """Resume the interrupted run in directory RUN.

    The result is byte-identical to that of an uninterrupted run. Failed units are tried again. The
    engine and the number of workers may differ. A run whose data were supplied from Python is
    resumed by the same call in Python.

    Exit code 1 if it refutes the claim, 4 if it cannot judge it.

    Example: epsilometer runs resume demo-run
    """
    Store.open(directory)  # what is not a run is told before anything is read for it
    options = replace(options, out=directory)
    end_audit(run_file(directory, options, data), options)


@runs.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@json_option
@html_option
def compare(first: Path, second: Path, as_json: bool, html: Path | None) -> None:
    """Compare the results A and B: settings, bounds, and what differs.

    A and B are JSON files or run directories. Reports whether differences exceed random variation.

    Example: epsilometer runs compare runs/v1 runs/v2
    """
    found = compare_results(first, second)
    if html is not None:
        from epsilometer.cli.compare_page import compare_page

        title = f"{first.name} and {second.name}"
        write_text(compare_page(found, title=one_line(title)), html)
    if as_json:
        say(to_json_text(to_plain(found)))
        return
    if found.settings:
        rows = ((Text(one_line(cell)) for cell in row) for row in found.settings)
        show(make_table(("setting", "A", "B"), rows, pad_edge=False))
    else:
        say("All settings are the same.")
    for audit in found.audits:
        show(*_show_pair(audit))
    for which, subjects in (("A", found.only_first), ("B", found.only_second)):
        for subject in subjects:
            say(f"Only in {which}: {one_line(subject)}")


@runs.command()
@_folder_argument
@_subject_option
@_kind_option
@click.option(
    "--by",
    type=click.Choice(["date", "name"]),
    default="date",
    show_default=True,
    help="Order by date or by the names of runs.",
)
@json_option
@html_option
@_rebuild_option
def trend(
    folder: Path,
    subject: str,
    kind: str,
    by: By,
    as_json: bool,
    html: Path | None,
    rebuild: bool,
) -> None:
    """Show how results of the same subject change over time.

    If a copy lost the dates, --by name orders results by the names of their runs.

    Example: epsilometer runs trend . --subject digits --html trend.html
    """
    history = History(folder, rebuild=rebuild)
    followed = trends(history.select(subject=subject, kind=kind), by=by)
    if as_json:
        plain = [
            {"subject": t.subject, "entries": [entry.to_dict() for entry in t.entries]}
            for t in followed
        ]
        say(to_json_text(plain))
    else:
        for each in followed:
            show(*_show_trend(each))
        show_line(history_words.CAUTION if followed else "No results.")
        _warn(history)
    if html is not None:
        from epsilometer.cli.trend_page import trend_page

        write_text(trend_page(followed, title=f"Results in {folder.resolve().name}"), html)
        say(f"Report: {one_line(str(html))}", err=as_json)


def _make_list(entries: Sequence[Entry]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("written (UTC)", "run", "audit", "subject", "claim", "found", "verdict", "seed"):
        table.add_column(name, no_wrap=name == "found")
    for entry in entries:
        cells = (
            history_words.date(entry),
            history_words.run(entry),
            one_line(entry.kind),
            one_line(entry.subject),
            history_words.claimed(entry),
            history_words.found(entry),
        )
        table.add_row(*map(Text, cells), _show_verdict(entry), Text(str(entry.seed)))
    return table


def _show_trend(trend: Trend) -> list[RenderableType]:
    rows = (
        (*map(Text, row[:4]), _show_verdict(entry), Text(row[5]))
        for entry, row in zip(trend.entries, history_words.trend_rows(trend), strict=True)
    )
    table = make_table(history_words.TREND_HEAD, rows, pad_edge=False)
    line = history_words.sparkline(trend.values)
    return [
        Text(f"Subject: {history_words.trend_title(trend)}", style="bold"),
        Text(f"{trend.measure} {line}", style="cyan"),
        table,
    ]


def _show_pair(audit: Compared) -> list[RenderableType]:
    both = (audit.first, audit.second)
    rows = (
        ("found", *(Text(history_words.found(entry)) for entry in both)),
        ("claimed ε", *(Text(history_words.claimed(entry)) for entry in both)),
        ("verdict", *(_show_verdict(entry) for entry in both)),
    )
    table = make_table(("", "A", "B"), rows, pad_edge=False)
    change = "" if audit.difference is None else f"B − A: {audit.difference:+.3g}. "
    return [
        Text(f"Subject: {one_line(audit.first.subject)}", style="bold"),
        table,
        Text(one_line(change + audit.meaning)),
    ]


def _show_verdict(entry: Entry) -> Text:
    return Text(entry.view_verdict, style=LOOKS[judge.tone(entry.view_verdict)].terminal)


def _warn(history: History) -> None:
    """Say what is missing in what was shown, on standard error."""
    for path, reason in history.unreadable:
        say(f"Skipped {one_line(path)}: {one_line(reason)}", err=True)
    if history.unfinished:
        many, first = len(history.unfinished), history.folder / history.unfinished[0]
        say(
            f"{many:,} run{'' if many == 1 else 's'} without a result yet: "
            f"epsilometer runs status {one_line(str(first))}",
            err=True,
        )


def _count_results(number: int) -> str:
    return "1 result" if number == 1 else f"{number:,} results" if number else "No results"
