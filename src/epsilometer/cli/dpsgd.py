"""``epsilometer dpsgd``."""

from typing import Any

import click

from epsilometer.audits.dpsgd.source import ModelOnRecords
from epsilometer.audits.dpsgd.subject import DPSGD
from epsilometer.cli.audit import end_audit, make_call, run_call
from epsilometer.cli.options import (
    OPTIMIZER,
    SAMPLER,
    Options,
    audit_options,
    field_options,
)


@click.command()
@field_options(
    ModelOnRecords,
    {
        "file": "Read records from .csv, .parquet or .npz; or digits.",
        "label": "Take labels from this column.",
        "records": "Train on the first records only, so many.",
        "divide_by": "Divide every feature by this number.",
        "model": "Train this model.",
        "hidden": "Give an MLP so many hidden neurons.",
    },
    into="source",
    defaults={"hidden": 32},
)
@field_options(
    DPSGD,
    {
        "runs": "Train so often with the record, and without it.",
        "batch_size": "Put so many records into a batch.",
        "learning_rate": "Move by this times the mean gradient.",
        "noise_multiplier": "Set noise over clipping norm; the claim's by default.",
        "clip_norm": "Clip gradients to this norm.",
        "epochs": "Pass over the records so often.",
        "sampler": "Draw batches by this sampler.",
        "optimizer": "Train with this optimizer.",
        "adversary": "Let the adversary choose this much.",
        "adjacency": "Compare with this neighbour.",
        "views": "Judge these views of training, separated by commas.",
        "canaries": "Audit one further run with so many canaries.",
        "device": "Train on cpu or cuda.",
    },
    into="settings",
    special={"sampler": SAMPLER, "optimizer": OPTIMIZER},
    defaults={"sampler": "shuffle", "optimizer": "sgd"},
)
@audit_options(config=True, until=True, units=True, home="epsilometer-dpsgd")
def dpsgd(source: dict[str, Any], settings: dict[str, Any], options: Options) -> None:
    """Attack DP-SGD trained thousands of times, with a canary and without.

    Without --config and --file the bundled example is audited: an MLP on handwritten digits in
    shuffled batches, for which ε = 1 is claimed.

    Exit code 1 if the claim is refuted, 4 if so few runs cannot judge it.

    Example: epsilometer dpsgd --runs 100 --out dpsgd-run
    """
    if source and options.config is None:
        source = {"type": "model-on-records", **source}
    call = make_call(
        "DPSGD",
        settings,
        options,
        source=source,
        bundled=None if "file" in source else "dpsgd.toml",
    )
    end_audit(run_call(call, options), options)
