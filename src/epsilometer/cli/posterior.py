"""``epsilometer posterior``."""

from pathlib import Path
from typing import Any

import click

from epsilometer.audits.posterior.subject import Posterior
from epsilometer.cli.audit import end_audit, make_call, run_call
from epsilometer.cli.options import (
    SAMPLER,
    Listed,
    Options,
    audit_options,
    field_options,
    policy_option,
)
from epsilometer.cli.policy import apply_policy
from epsilometer.cli.sources import DropoutOnRecords


@click.command()
@field_options(
    DropoutOnRecords,
    {
        "file": "Read records from .csv, .parquet or .npz; or digits.",
        "label": "Read labels from this column.",
        "records": "Use only the first N records.",
        "divide_by": "Divide every feature by this number.",
        "test": "Measure utility on the next N records.",
        "shadow": "Train shadow models on the next N records.",
        "model": "Train this network.",
        "dropout": "Drop this fraction of neurons.",
        "hidden": "Set the number of neurons of the dense layer.",
        "batch_size": "Set the batch size, or its expectation if it varies.",
        "learning_rate": "Set the learning rate.",
        "epochs": "Set the number of epochs.",
        "noise_multiplier": "Set the noise multiplier; 0 means plain SGD.",
        "clip_norm": "Clip gradients to this norm.",
        "sampler": "Draw batches by this sampler.",
        "record": "Choose the audited record this way.",
        "device": "Train on cpu or cuda.",
    },
    into="source",
    special={"sampler": SAMPLER},
    defaults={"sampler": "poisson"},
)
@field_options(
    Posterior,
    {
        "runs": "Set the number of runs with the record, and as many without.",
        "samples": "Set the number of predictions per model.",
        "forms": "Judge these output formats, most detailed first.",
        "line": "Set the largest ε that may be proved for a format.",
        "advantage": "Set the largest TPR − FPR allowed for attacks.",
    },
    into="settings",
    special={"forms": Listed(click.STRING)},
)
@policy_option
@audit_options(config=True, units=True, home="epsilometer-posterior")
def posterior(
    source: dict[str, Any], settings: dict[str, Any], options: Options, policy: Path | None
) -> None:
    """Choose the format in which uncertain predictions may be published.

    Trains networks with dropout many times, with a record and without it, and asks each for many
    predictions of that record. Without --config and --file the bundled example is audited: a CNN on
    handwritten digits.

    Exit code 1 if the claim is refuted, 4 if there are too few runs to judge it.

    Example: epsilometer posterior --runs 8 --out posterior-run
    """
    settings, options = apply_policy(policy, "posterior", settings, options)
    if source and options.config is None:
        source = {"type": "dropout-on-records", **source}
    call = make_call(
        "Posterior",
        settings,
        options,
        source=source,
        bundled=None if "file" in source else "posterior.toml",
        seeded=True,
    )
    end_audit(run_call(call, options), options)
