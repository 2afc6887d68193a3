"""``epsilometer methods``."""

import click
from rich.table import Table
from rich.text import Text

from epsilometer.cli.output import show
from epsilometer.core.references import BIBLIOGRAPHY
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
        said = ("valid", "green") if method.exact else ("NOT VALID", "red")
        show(Text.assemble((name, "bold"), "  ", said), table, "")
    show(Text("References", style="bold"))
    for key in sorted({key for method in REGISTRY.values() for key in method.cites}):
        show(Text.assemble("  ", (key, "bold"), "  ", BIBLIOGRAPHY[key]))
