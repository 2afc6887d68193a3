"""``epsilometer estimate``."""

from pathlib import Path
from typing import Any

import click

from epsilometer.cli.calls import make_call, run_call
from epsilometer.cli.options import (
    RULE,
    Options,
    Suggested,
    audit_options,
    config_options,
    field_options,
)
from epsilometer.cli.output import end_audit
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
@config_options
@audit_options()
def estimate(
    file: Path | None,
    settings: dict[str, Any],
    config: Path | None,
    trust: bool,
    options: Options,
) -> None:
    """Bound ε from below, from the attack scores in FILE.

    FILE is .csv, .parquet or .npz with columns score and member (1 inside, 0 outside), or inside
    and outside. Higher scores must mean "was in".

    Exit code 1 if the claim is refuted, 4 if so few scores cannot judge it.

    Example: epsilometer estimate scores.csv --delta 1e-5 --claim 3
    """
    if (file is None) == (config is None):
        raise InvalidArgument("Expected FILE or --config FILE.toml, got neither or both.")
    if file is not None:
        settings["source"] = {"type": "score-file", "path": str(file)}
        if options.delta is None:
            raise InvalidArgument("Expected --delta beside FILE, got none: 1e-5, say.")
    call = make_call("Scores", settings, options, config=config, trust=trust)
    end_audit(run_call(call, options), options)
