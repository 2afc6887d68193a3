"""``epsilometer methods``."""

import click
from rich import box
from rich.table import Table

from epsilometer.cli.printing import show
from epsilometer.references import BIBLIOGRAPHY
from epsilometer.stats.estimators import REGISTRY


@click.command()
def methods() -> None:
    """List the methods: what each guarantees, assumes and cites.

    Example: epsilometer methods
    """
    table = Table(box=box.SIMPLE_HEAD, show_lines=True)
    for column in ("method", "valid", "guarantees", "assumes", "rules", "cites"):
        table.add_column(column, overflow="fold")
    for name, method in REGISTRY.items():
        rules = ", ".join(rule.__name__ for rule in method.rules)
        table.add_row(
            name,
            "yes" if method.exact else "NO",
            method.guarantees,
            method.assumes,
            rules,
            ", ".join(method.cites),
        )
    show(table, "[bold]References[/bold]")
    cited = sorted({key for method in REGISTRY.values() for key in method.cites})
    for key in cited:
        click.echo(f"  {key}: {BIBLIOGRAPHY[key]}")
