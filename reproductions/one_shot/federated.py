"""Tables of the one-shot papers on real training: all iterates and the final model, by noise.

    python reproductions/one_shot/federated.py fashion --data FOLDER
    python reproductions/one_shot/federated.py mnist-writers --data FOLDER
    python reproductions/one_shot/federated.py shakespeare --data FOLDER

FOLDER has fashion_mnist.npz, mnist.npz and shakespeare_roles.json.gz. Prints a table, one row a
noise level: what accounting says, estimates and valid bounds of both adversaries, and accuracy with
canaries and without.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from epsilometer.audits.one_shot import audit_cosines
from epsilometer.canaries.hadamard import HadamardCanaries
from epsilometer.results import AuditResult
from epsilometer.training.clipping import AdaptiveClip, FixedClip
from epsilometer.training.ensemble import cross_entropy
from epsilometer.training.federated import FederatedTraining
from epsilometer.training.models import mlp
from epsilometer.training.optimizers import SGD
from epsilometer.training.tasks import (
    FederatedTask,
    accuracy,
    digits_by_writer,
    shakespeare_by_role,
)

HEADER = (
    "| noise | accounting ε | all: ε_est | all: valid bound | all: ε_lo, not valid | "
    "final: ε_est | final, tied | final: valid bound | accuracy | without canaries | CPU s |\n"
    + "|---" * 11
    + "|"
)


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("fashion", "mnist-writers", "shakespeare"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--noise", default="")
    parser.add_argument("--hidden", type=int, default=128, help="Of the net for fashion.")
    parser.add_argument("--adaptive", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(HEADER)
    make = _fashion if asked.task == "fashion" else _by_people
    for noise in [float(z) for z in (asked.noise or make(asked, None)).split(",")]:
        training, test, delta, repetitions = make(asked, noise)
        start = time.process_time()
        row = _row(training, test, delta, repetitions, asked)
        print(f"| {noise:g} | {row} | {time.process_time() - start:.0f} |", flush=True)


def _fashion(asked: argparse.Namespace, noise: float | None) -> Any:
    """Two layers, clip 1, batches of 128, one epoch: one example a client, canaries among them."""
    if noise is None:
        return "0.2"
    held = np.load(asked.data / "fashion_mnist.npz")
    x = held["x_train"].reshape(-1, 784).astype(np.float32) / 255
    y = held["y_train"].astype(np.int64)
    test = held["x_test"].reshape(-1, 784).astype(np.float32) / 255, held["y_test"].astype(np.int64)
    torch.manual_seed(asked.seed)
    training = FederatedTraining(
        mlp(784, 10, asked.hidden),
        cross_entropy,
        clients=[(x[i : i + 1], y[i : i + 1]) for i in range(len(y))],
        rounds=-(-(len(y) + asked.canaries) // 128),
        cohort=128,
        noise_multiplier=noise,
        learning_rate=1.0,
        batch_size=1,
        server_rate=0.5,
    )
    return training, test, 1 / 60_000, None


def _by_people(asked: argparse.Namespace, noise: float | None) -> Any:
    if noise is None:
        return "0,0.1,0.2,0.4"
    rng = np.random.default_rng(asked.seed)
    task: FederatedTask
    if asked.task == "mnist-writers":
        task = digits_by_writer(asked.data / "mnist.npz", rng=rng)
    else:
        task = shakespeare_by_role(asked.data / "shakespeare_roles.json.gz", rng=rng)
    clip = AdaptiveClip(initial=task.clip, count_noise=task.cohort / 10)
    training = FederatedTraining(
        task.module,
        task.loss,
        clients=task.clients,
        rounds=asked.rounds or 100,
        cohort=task.cohort,
        noise_multiplier=noise,
        clip=clip if asked.adaptive else FixedClip(task.clip),
        learning_rate=task.learning_rate,
        batch_size=task.batch_size,
        server_rate=task.server_rate,
        server_optimizer=SGD(momentum=task.momentum),
    )
    return training, task.test, len(task.clients) ** -1.1, 1


def _row(
    training: FederatedTraining, test: Any, delta: float, repetitions: int | None, asked: Any
) -> str:
    k = asked.canaries
    canaries = HadamardCanaries(count=2 * k, dimension=training.size, key=asked.seed)
    run = training.train(
        canaries=canaries,
        planted=k,
        repetitions=repetitions,
        rng=np.random.default_rng(asked.seed),
    )
    # What canaries cost: the same training and the same divisor, without them.
    divisor = training.cohort + k * (repetitions or 0) / training.rounds
    plain = replace(training, divisor=divisor).train(rng=np.random.default_rng(asked.seed))
    knobs: Any = {"dimension": training.size, "delta": delta}
    every = audit_cosines(run.observed, unobserved=run.unobserved, **knobs)
    final = audit_cosines(run.moved, **knobs)
    promised, _ = training.epsilon(delta, canaries=k, repetitions=repetitions)
    cells = [
        promised,
        every.estimates[0].epsilon,
        every.bound.epsilon,
        _not_valid(every),
        final.estimates[0].epsilon,
        final.estimates[1].epsilon,
        final.bound.epsilon,
    ]
    right = [f"{100 * accuracy(each.module, test):.1f} %" for each in (run, plain)]
    return " | ".join([*(f"{cell:.2f}" for cell in cells), *right])


def _not_valid(audit: AuditResult) -> float:
    return next(bound.epsilon for bound in audit.also if not bound.valid)


if __name__ == "__main__":
    main()
