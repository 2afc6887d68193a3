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
        "label": "Take labels from this column.",
        "records": "Train on the first records only, so many.",
        "divide_by": "Divide every feature by this number.",
        "test": "Measure utility on the next records, so many.",
        "shadow": "Train shadow models on the next records, so many.",
        "model": "Train this network.",
        "dropout": "Drop this fraction of neurons.",
        "hidden": "Give the dense layer so many neurons.",
        "batch_size": "Put so many records into a batch.",
        "learning_rate": "Move by this times the mean gradient.",
        "epochs": "Pass over the records so often.",
        "noise_multiplier": "Set noise over clipping norm; 0 is plain SGD.",
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
        "runs": "Train so often with the record, and without it.",
        "samples": "Ask every model for so many predictions.",
        "forms": "Judge these forms of publishing, finest first.",
        "line": "Allow no form to be proved above this ε.",
        "advantage": "Allow an attack this TPR − FPR.",
    },
    into="settings",
    special={"forms": Listed(click.STRING)},
)
@policy_option
@audit_options(config=True, units=True, home="epsilometer-posterior")
def posterior(
    source: dict[str, Any], settings: dict[str, Any], options: Options, policy: Path | None
) -> None:
    """Choose the form in which uncertain predictions may be published.

    Networks with dropout are trained again and again, with a record and without it, and asked for
    many predictions of it. Without --config and --file the bundled example is audited: a CNN on
    handwritten digits.

    Exit code 1 if the claim is refuted, 4 if so few runs cannot judge it.

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
