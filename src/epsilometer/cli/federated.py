"""``epsilometer federated``."""

from pathlib import Path
from typing import Any

import click

from epsilometer.audits.federated.source import FederatedTask
from epsilometer.audits.federated.subject import Federated
from epsilometer.cli.audit import end_audit, make_call, run_call
from epsilometer.cli.options import (
    NOISE,
    Options,
    audit_options,
    data_option,
    field_options,
)
from epsilometer.cli.output import make_table
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.words import number, number_up
from epsilometer.errors import InvalidArgument

_NONE = "–"


@click.command()
@field_options(FederatedTask, {"task": "Train on this task's clients."}, into="source")
@data_option()
@field_options(
    Federated,
    {
        "rounds": "Set the number of rounds.",
        "cohort": "Set the number of clients per round.",
        "noise_multiplier": "Set the noise multiplier: noise over clipping norm.",
        "noise": "Choose independent, tree or matrix noise.",
        "clip": "Clip updates to this norm.",
        "canaries": "Set the number of canaries.",
        "repetitions": "Set how many rounds each canary joins: 1,2,4 or clients.",
        "family": "Choose fast canaries, or random ones as in the paper.",
        "device": "Train on cpu or cuda.",
    },
    into="settings",
    special={"noise": NOISE, "clip": click.FLOAT, "repetitions": click.STRING},
    defaults={
        "rounds": 50,
        "noise_multiplier": 0.5,
        "noise": "independent",
        "cohort": "by task",
        "clip": "by task",
    },
)
@audit_options(config=True, delta=1e-5, units=True, home="epsilometer-federated")
def federated(
    source: dict[str, Any],
    data: Path | None,
    settings: dict[str, Any],
    options: Options,
) -> None:
    """Attack one DP-FedAvg run with canaries among its clients.

    Tasks are handwritten digits split at random, MNIST by writer (a CNN), and Shakespeare by role
    (an LSTM for the next character). The last two are read from --data, the folder of mnist.npz
    and shakespeare_roles.json.gz, or from the folder that EPSILOMETER_DATA names.

    Without --claim nothing is judged; the accounted ε is shown with the measured one. Exit
    code 1 if the claim is refuted, 4 if it cannot be judged.

    Example: epsilometer federated --rounds 10 --canaries 300 --repetitions 1,2 --out federated-run
    """
    if data is not None:
        source["folder"] = str(data)
    if "clip" in settings:
        settings["clip"] = {"type": "fixed-clip", "norm": settings["clip"]}
    if "repetitions" in settings:
        settings["repetitions"] = _read_repetitions(settings["repetitions"])
    call = make_call(
        "Federated",
        settings,
        options,
        source=source,
        bundled="federated.toml",
        delta=1e-5,
        seeded=True,
    )
    audit = run_call(call, options)
    head = ("who sees what", "accounted ε", "estimated ε", "interval", "proved ε ≥")
    views = make_table(head, map(_make_row, audit.views), right=True)
    end_audit(audit, options, further=(views,))


def _read_repetitions(text: str) -> tuple[int, ...] | None:
    if text == "clients":
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidArgument(
            f"Expected --repetitions as 1,2,4,8 or 'clients', got {text!r}."
        ) from error


def _make_row(view: EpsilonFinding) -> tuple[str, ...]:
    accounted = [e.epsilon for e in view.estimates if e.role == "reference" and e.confidence == 1]
    measured = [e for e in view.estimates if e.confidence < 1]
    ends = [f"{number(e.low)} to {number_up(e.high)}" for e in measured]
    return (
        view.subject.partition(", ")[2],
        number_up(accounted[0]) if accounted else _NONE,
        number(measured[0].epsilon) if measured else _NONE,
        ends[0] if ends else _NONE,
        number(view.bound.epsilon),
    )
