"""Bound ε from scores: ``epsilometer estimate`` and ``epsilometer methods``."""

from pathlib import Path
from typing import Any

import click

from epsilometer.cli.audit import make_call, run_call
from epsilometer.cli.options import (
    RULE,
    Options,
    Suggested,
    audit_options,
    field_options,
)
from epsilometer.cli.output import end_audit, show
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.estimators import REGISTRY


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@field_options(
    Scores,
    {
        "method": "Bound by this method; see epsilometer methods.",
        "rule": "Choose thresholds by this rule.",
        "also": "Show the bounds of these methods beside it.",
        "title": "Name what was attacked.",
        "adversary": "Describe who sees what.",
    },
    into="settings",
    special={"rule": RULE, "method": Suggested(*REGISTRY)},
    defaults={"rule": "rank-grid"},
)
@audit_options(config=True)
def estimate(file: Path | None, settings: dict[str, Any], options: Options) -> None:
    """Bound ε from below, from the attack scores in FILE.

    FILE is .csv, .parquet or .npz with columns score and member (1 inside, 0 outside), or inside
    and outside. Higher scores must mean "was in".

    Exit code 1 if the claim is refuted, 4 if so few scores cannot judge it.

    Example: epsilometer estimate scores.csv --delta 1e-5 --claim 3
    """
    if (file is None) == (options.config is None):
        raise InvalidArgument("Expected FILE or --config FILE.toml, got neither or both.")
    if file is not None and options.delta is None:
        raise InvalidArgument("Expected --delta beside FILE, got none: 1e-5, say.")
    source = None if file is None else {"type": "score-file", "path": str(file)}
    call = make_call("Scores", settings, options, source=source)
    end_audit(run_call(call, options), options)


@click.command()
def methods() -> None:
    """List the methods: what each guarantees, assumes and cites.

    Example: epsilometer methods
    """
    from rich.table import Table
    from rich.text import Text

    for name, method in REGISTRY.items():
        table = Table.grid(padding=(0, 2))
        table.add_row("  guarantees", method.guarantees)
        table.add_row("  assumes", method.assumes)
        table.add_row("  rules", ", ".join(rule.__name__ for rule in method.rules))
        table.add_row("  cites", ", ".join(method.cites))
        validity = ("valid", "green") if method.exact else ("NOT VALID", "red")
        show(Text.assemble((name, "bold"), "  ", validity), table, "")
    show(Text("References", style="bold"))
    for key in sorted({key for method in REGISTRY.values() for key in method.cites}):
        show(Text.assemble("  ", (key, "bold"), "  ", BIBLIOGRAPHY[key]))
