"""``epsilometer status``."""

import json
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from epsilometer.cli.completing import run_directory
from epsilometer.cli.printing import show
from epsilometer.engine.run import finished_result
from epsilometer.engine.store import Store, busy


@click.command()
@click.argument(
    "directory", metavar="RUN", type=click.Path(path_type=Path), shell_complete=run_directory
)
@click.option("--json", "as_json", is_flag=True, help="Print the status as one JSON object.")
def status(directory: Path, as_json: bool) -> None:
    """Say how far the run in directory RUN is. Changes nothing there.

    Example: epsilometer status demo-run
    """
    store = Store.open(directory)
    damaged, failures = store.look(), store.failures()
    result = finished_result(store)
    running = busy(directory)
    state = "running" if running else "finished" if result is not None else "stopped"
    verdicts = [] if result is None else [audit.verdict for audit in result.audits]
    if as_json:
        plain = {
            "state": state,
            "audit": store.plan.audit,
            "plan": store.plan.hash,
            "units": store.plan.units,
            "finished": len(store.finished),
            "failed": sorted(failures),
            "damaged": damaged,
            "verdicts": verdicts,
        }
        click.echo(json.dumps(plain, indent=2))
        return
    table = Table.grid(padding=(0, 2))
    table.add_row("state", state)
    table.add_row("audit", Text(store.plan.command))
    table.add_row("plan", store.plan.hash)
    table.add_row("units", f"{len(store.finished):,} of {store.plan.units:,} finished")
    for unit, error in failures.items():
        table.add_row("failed", Text(f"unit {unit}: {_last_line(error)}"))
    for name, reason in damaged.items():
        table.add_row("damaged", Text(f"shards/{name}: {reason}; will be computed again"))
    for verdict in verdicts:
        table.add_row("verdict", verdict)
    show(table)
    if state == "stopped":
        click.echo(f"Go on with: epsilometer resume {directory}")


def _last_line(error: str) -> str:
    *_, last = error.strip().splitlines() or ["nothing is known of why"]
    return last
