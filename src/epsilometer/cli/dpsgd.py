"""``epsilometer dpsgd``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from epsilometer._extras import needs
from epsilometer.audits.dpsgd import dpsgd_job
from epsilometer.audits.runs import UntilRefuted
from epsilometer.cli.config import DIGITS, Config, Data, from_plain, read_config
from epsilometer.cli.described import at_once_in, described, in_place
from epsilometer.cli.running import Finish, call_again, kept, refuted, running, unchanged
from epsilometer.cli.samplers import parse_sampler
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Job
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.sklearn import digits
from epsilometer.records import read_records
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    from epsilometer.training.optimizers import Optimizer


@click.command()
@described(
    bundled="an MLP on handwritten digits, in shuffled batches",
    fewest=2,
    home="epsilometer-dpsgd",
)
@running
def dpsgd(
    file: Path | None,
    runs: int | None,
    seed: int | None,
    directory: Path,
    finish: Finish,
) -> None:
    """Train by DP-SGD thousands of times, with a canary and without it, and attack it.

    Exit code 1 if a claim is refuted.

    Example: epsilometer dpsgd --runs 100 --run dpsgd-run
    """
    config = read_config(file)
    job = dpsgd_job_of(
        replace(config, audit=in_place(config.audit, runs=runs, seed=seed)),
        command=call_again("dpsgd", {"config": file, "runs": runs, "seed": seed}),
        at_once=at_once_in(directory),
    )
    result = finish(job, directory)
    if refuted(result):
        raise SystemExit(1)


def resumed(plan: Plan) -> Job:
    """The job of a plan, on the same records as before."""
    config = from_plain(kept(plan, "config"))
    job = dpsgd_job_of(config, command=plan.command, at_once=plan.parameters.get("at_once"))
    unchanged(job, plan, config.data.file)
    return job


def dpsgd_job_of(config: Config, *, command: str, at_once: int | None = None) -> Job:
    """What a config asks for.

    Args:
        config: All that is to be known.
        command: The call that does it again.
        at_once: How many models are trained at once, where a run has begun so.
    """
    with needs("torch", extra="torch"):
        import torch

        from epsilometer.training.models import as_input, build

    features, labels = _records(config.data)
    model, training, audit = config.model, config.training, config.audit
    features = as_input(model.name, features)
    classes = int(labels.max()) + 1
    hidden = 32 if model.hidden is None else model.hidden
    with torch.random.fork_rng(devices=[]):  # runs draw their own, but the plan names these weights
        torch.manual_seed(0)
        module = build(model.name, features.shape[1:], classes, hidden=hidden)
    return dpsgd_job(
        module,
        (features, labels),
        runs=audit.runs,
        delta=audit.delta,
        claim=audit.claim,
        adversary=audit.adversary,
        adjacency=audit.adjacency,
        sampler=parse_sampler(training.sampler),
        noise_multiplier=training.noise_multiplier,
        clip_norm=training.clip_norm,
        learning_rate=training.learning_rate,
        optimizer=_optimizer(training.optimizer, training.momentum),
        batch_size=training.batch_size,
        epochs=training.epochs,
        views=audit.views,
        canaries=audit.canaries,
        device=training.device,
        at_once=at_once,
        confidence=audit.confidence,
        until=UntilRefuted() if audit.until_refuted else None,
        seed=audit.seed,
        subject=f"DP-SGD of {model.name} on {Path(config.data.file).name}",
        name="dpsgd",
        parameters={"config": config.plain()},
        command=command,
    )


def _records(data: Data) -> tuple[FloatArray, IntArray]:
    features, labels = every_record(data)
    wanted = len(labels) if data.records is None else data.records
    if not 1 <= wanted <= len(labels):
        raise InvalidArgument(
            f"Expected data.records from 1 to {len(labels)}, as many as there are in "
            f"{data.file!r}, got {wanted}."
        )
    return features[:wanted], labels[:wanted]


def every_record(data: Data) -> tuple[FloatArray, IntArray]:
    """All records of the section ``[data]``, also those that are not trained on."""
    if data.file == DIGITS:
        if data.label is not None or data.divide_by is not None:
            raise InvalidArgument(
                "Expected no data.label and no data.divide_by with the digits, got "
                f"{data.label!r} and {data.divide_by!r}: they are known, and scaled to [0, 1]."
            )
        pixels, labels = digits()
        features: FloatArray = pixels.reshape(-1, 8, 8) / 16.0
    else:
        features, labels = read_records(data.file, label=data.label)
        if data.divide_by is not None:
            features = features / features.dtype.type(data.divide_by)
    return features, labels


def _optimizer(name: str, momentum: float | None) -> "Optimizer":
    from epsilometer.training.optimizers import SGD, Adam

    return Adam() if name == "adam" else SGD(momentum=momentum or 0.0)
