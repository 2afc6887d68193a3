"""``epsilometer methods``."""

import click
from rich.table import Table

from epsilometer.cli.output import show
from epsilometer.references import BIBLIOGRAPHY
from epsilometer.stats.estimators import REGISTRY


@click.command()
def methods() -> None:
    """List the methods: what each guarantees, assumes and cites.

    Example: epsilometer methods
    """
    for name, method in REGISTRY.items():
        table = Table.grid(padding=(0, 2))
        table.add_row("  guarantees", method.guarantees)
        table.add_row("  assumes", method.assumes)
        table.add_row("  rules", ", ".join(rule.__name__ for rule in method.rules))
        table.add_row("  cites", ", ".join(method.cites))
        said = "[green]valid[/green]" if method.exact else "[red]NOT VALID[/red]"
        show(f"[bold]{name}[/bold]  {said}", table, "")
    show("[bold]References[/bold]")
    for key in sorted({key for method in REGISTRY.values() for key in method.cites}):
        show(f"  [bold]{key}[/bold]  {BIBLIOGRAPHY[key]}")
