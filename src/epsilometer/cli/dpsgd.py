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
        "label": "Read labels from this column.",
        "records": "Use only the first N records.",
        "divide_by": "Divide every feature by this number.",
        "model": "Train this model.",
        "hidden": "Set the number of hidden neurons of an MLP.",
    },
    into="source",
    defaults={"hidden": 32},
)
@field_options(
    DPSGD,
    {
        "runs": "Set the number of runs with the record, and as many without.",
        "batch_size": "Set the batch size, or its expectation if it varies.",
        "learning_rate": "Set the learning rate.",
        "noise_multiplier": "Set the noise multiplier; by default, derive it from the claim.",
        "clip_norm": "Clip gradients to this norm.",
        "epochs": "Set the number of epochs.",
        "sampler": "Draw batches by this sampler.",
        "optimizer": "Train with this optimizer.",
        "adversary": "Choose the adversary and its canary.",
        "adjacency": "Choose the neighbouring relation.",
        "views": "Judge these views of training, separated by commas.",
        "canaries": "Also audit a single run with N canaries.",
        "device": "Train on cpu or cuda.",
        "precision": "Multiply in this floating-point precision.",
    },
    into="settings",
    special={"sampler": SAMPLER, "optimizer": OPTIMIZER},
    defaults={"sampler": "shuffle", "optimizer": "sgd"},
)
@audit_options(config=True, until=True, units=True, home="epsilometer-dpsgd")
def dpsgd(source: dict[str, Any], settings: dict[str, Any], options: Options) -> None:
    """Attack thousands of DP-SGD runs, with and without a canary.

    Without --config and --file the bundled example is audited: an MLP on handwritten digits in
    shuffled batches, for which ε = 1 is claimed.

    Exit code 1 if the claim is refuted, 4 if there are too few runs to judge it.

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
