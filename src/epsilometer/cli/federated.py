"""``epsilometer federated``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich import box
from rich.table import Table

from epsilometer._extras import needs
from epsilometer.audits.federated import FederatedJob, federated_job
from epsilometer.cli.printing import show
from epsilometer.cli.running import (
    Finish,
    call_again,
    in_directory,
    kept,
    refuted,
    running,
    unchanged,
)
from epsilometer.engine.plan import Plan
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.sklearn import digits
from epsilometer.report.words import number
from epsilometer.core.audit import AuditGroup, AuditResult

if TYPE_CHECKING:
    from epsilometer.training.tasks import FederatedTask

_FILES = {"mnist-writers": "mnist.npz", "shakespeare": "shakespeare_roles.json.gz"}
_VARIABLE = "EPSILOMETER_DATA"


@click.command()
@click.option(
    "--task",
    type=click.Choice(["digits", *_FILES]),
    default="digits",
    show_default=True,
    help="Handwritten digits split by chance, MNIST by writer (a CNN), Shakespeare by role "
    "(an LSTM for the next character).",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help=f"Folder of {' and '.join(_FILES.values())}; {_VARIABLE} by default.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--cohort", type=click.IntRange(min=1), help="Clients a round; by task.")
@click.option("--noise-multiplier", type=float, default=0.5, show_default=True)
@click.option(
    "--noise",
    type=click.Choice(["independent", "tree", "matrix"]),
    default="independent",
    show_default=True,
    help="From round to round: afresh, or correlated so that it cancels out later: by a binary "
    "tree (DP-FTRL), or by the square root of prefix sums.",
)
@click.option("--clip", type=float, help="Norm to which updates are clipped; by task.")
@click.option("--canaries", type=click.IntRange(min=2), default=1000, show_default=True)
@click.option(
    "--repetitions",
    default="1",
    show_default=True,
    help="Rounds of each canary, as 1,2,4,8: a training for each; 'clients': drawn like them.",
)
@click.option(
    "--family",
    type=click.Choice(["hadamard", "sphere"]),
    default="hadamard",
    show_default=True,
    help="Kind of canaries: quick, or the paper's.",
)
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option("--claim", type=float, help="Promised ε; by default what accounting says.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="One-sided.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@in_directory("epsilometer-federated")
@running
def federated(
    directory: Path,
    finish: Finish,
    **given: Any,
) -> None:
    """Train by DP-FedAvg once, with canaries among the clients, and say what it leaks of a client.

    Exit code 1 if a claim is refuted.

    Example: epsilometer federated --rounds 10 --canaries 300 --repetitions 1,2 --run federated-run
    """
    settings = {**given, "data": _folder(given["task"], given["data"])}
    result = finish(_job(settings), directory)
    assert isinstance(result, AuditGroup)  # as ``FederatedJob`` returns
    show(_table(result))
    if refuted(result):
        raise SystemExit(1)


def resumed(plan: Plan) -> FederatedJob:
    """The job of a plan, on the same records as before."""
    settings = kept(plan, "settings")
    job = _job(dict(settings))
    unchanged(job, plan, settings["data"])
    return job


def _job(settings: dict[str, Any]) -> FederatedJob:
    with needs("torch", extra="torch"):
        from epsilometer.training.clipping import FixedClip
        from epsilometer.training.federated import FederatedTraining
        from epsilometer.training.noise import IndependentNoise, MatrixNoise, Noise, TreeNoise
        from epsilometer.training.optimizers import SGD

    task = _task(settings["task"], settings["data"], settings["seed"])
    laws: dict[str, Noise] = {
        "independent": IndependentNoise(),
        "tree": TreeNoise(),
        "matrix": MatrixNoise(),
    }
    training = FederatedTraining(
        task.module,
        task.loss,
        clients=task.clients,
        rounds=settings["rounds"],
        cohort=settings["cohort"] or task.cohort,
        noise_multiplier=settings["noise_multiplier"],
        noise=laws[settings["noise"]],
        clip=FixedClip(task.clip if settings["clip"] is None else settings["clip"]),
        learning_rate=task.learning_rate,
        batch_size=task.batch_size,
        server_rate=task.server_rate,
        server_optimizer=SGD(momentum=task.momentum),
        device=settings["device"],
    )
    return federated_job(
        training,
        canaries=settings["canaries"],
        repetitions=_repetitions(settings["repetitions"]),
        delta=settings["delta"],
        claim=settings["claim"],
        family=settings["family"],
        test=task.test,
        confidence=settings["confidence"],
        seed=settings["seed"],
        subject=f"DP-FedAvg on {task.name}",
        name="federated",
        parameters={"settings": settings},
        command=call_again("federated", settings),
    )


def _task(name: str, folder: str | None, seed: int) -> "FederatedTask":
    from epsilometer.training import tasks

    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    if name == "digits":
        return tasks.digits_by_chance(*digits(), rng=rng)
    assert folder is not None  # or ``_folder`` would have said so
    make = tasks.digits_by_writer if name == "mnist-writers" else tasks.shakespeare_by_role
    return make(Path(folder) / _FILES[name], rng=rng)


def _folder(task: str, data: Path | None) -> str | None:
    if task == "digits":
        return None
    found = data or os.environ.get(_VARIABLE)
    if not found:
        raise InvalidArgument(
            f"Expected --data, the folder of {_FILES[task]}, or {_VARIABLE} in the environment, "
            "got neither."
        )
    return str(found)


def _repetitions(text: str) -> tuple[int, ...] | None:
    if text == "clients":
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidArgument(
            f"Expected --repetitions as 1,2,4,8 or 'clients', got {text!r}."
        ) from error


def _table(result: AuditGroup) -> Table:
    """Every audit in a row: what accounting says, what is estimated, what is proved."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("who sees what", "promised ε", "estimated ε", "95 % of it", "proved ε ≥"):
        table.add_column(column, justify="left" if column.startswith("who") else "right")
    for audit in result.results:
        table.add_row(*_row(audit))
    return table


def _row(audit: AuditResult) -> tuple[str, ...]:
    estimate = audit.estimates[0]
    return (
        audit.subject.partition(", ")[2],
        "–" if audit.claim is None else number(audit.claim.epsilon),
        number(estimate.epsilon),
        f"{number(estimate.low)} to {number(estimate.high)}",
        number(audit.bound.epsilon),
    )
