"""Measure what an audited Opacus run costs: accuracy and time, on the digits of scikit-learn.

    python benchmarks/audited_opacus.py [seeds]
    python benchmarks/audited_opacus.py --known [seeds]

Prints a Markdown table; times are of CPU. Audited and plain runs of a seed share their initial
weights, batches and noise, so that their accuracies differ by the canaries alone. With ``--known``
it prints what whoever knows the batches proves of right DP-SGD, of 1,000 canaries, noise 1, rate
0.01 and 100 steps.
"""

import sys
import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from opacus import PrivacyEngine
from sizes import choose_size
from threadpoolctl import threadpool_limits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.files.digits import read_digits
from epsilometer.integrations.opacus import audited

EPOCHS = choose_size(20, 1)
DELTA = 1e-5
HELD_OUT = 360


@dataclass(frozen=True)
class Trained:
    """One run: accuracy on held-out digits, seconds, the canaries' share of the noise, bounds.

    Proved is what the canaries prove; ran is the ε of the noise and sensitivity that were measured.
    """

    accuracy: float
    seconds: float
    share: float = 0.0
    claimed: float = 0.0
    proved: float = 0.0
    ran: float = 0.0
    step_claimed: float = 0.0
    step_proved: float = 0.0


def trained(canaries: int, noise: float, seed: int) -> Trained:
    torch.manual_seed(seed)
    pixels, classes = read_digits()
    order = np.random.default_rng(seed).permutation(len(classes))
    x = torch.tensor(pixels[order] / 16, dtype=torch.float32)
    y = torch.tensor(classes[order])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5),
        data_loader=DataLoader(TensorDataset(x[HELD_OUT:], y[HELD_OUT:]), batch_size=128),
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    audit = audited(engine, optimizer, loader, canaries=canaries, seed=seed) if canaries else None
    start = time.process_time()
    for _ in range(EPOCHS):
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
    seconds = time.process_time() - start
    with torch.no_grad():
        right = (model(x[:HELD_OUT]).argmax(1) == y[:HELD_OUT]).float().mean()
    if audit is None:
        return Trained(float(right), seconds)
    seen, steps = audit.result(delta=DELTA), audit.step_result(delta=DELTA)
    assert seen.claim is not None
    assert steps.claim is not None
    assert seen.conformance is not None
    assert seen.conformance.bound is not None
    return Trained(
        accuracy=float(right),
        seconds=seconds,
        share=audit.noise_share,
        claimed=seen.claim.epsilon,
        proved=seen.views[0].epsilon,
        ran=seen.conformance.bound.epsilon,
        step_claimed=steps.claim.epsilon,
        step_proved=steps.views[0].epsilon,
    )


def know_batches(seeds: range) -> None:
    """Print what is claimed of right DP-SGD, and what whoever knows the batches proves of it."""
    for seed in seeds:
        torch.manual_seed(seed)
        features = torch.randn(2000, 20)
        model = nn.Sequential(nn.Linear(20, 1090), nn.ReLU(), nn.Linear(1090, 2))
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            data_loader=DataLoader(
                TensorDataset(features, (features[:, 0] > 0).long()), batch_size=20
            ),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        with audited(engine, optimizer, loader, canaries=1000, seed=seed) as audit:
            for inputs, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
        steps = audit.step_result(delta=DELTA)
        assert steps.claim is not None
        print(
            f"seed {seed}: ε = {engine.get_epsilon(DELTA):.2f} is claimed, who knows the batches "
            f"proves {steps.views[0].epsilon:.2f}, of {steps.claim.epsilon:.2f} without "
            f"amplification: {steps.verdict}",
            flush=True,
        )


def main() -> None:
    warnings.simplefilter("ignore")  # of Opacus and torch, about themselves
    torch.set_num_threads(1)
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    seeds = range(numbers[0] if numbers else choose_size(10, 2))
    if "--known" in sys.argv:
        know_batches(seeds)
        return
    print(
        "| noise | canaries | accuracy | less than unaudited | added, of the noise's norm | time | "
        "ε claimed | by canaries | of what ran | batches known: claimed, by canaries |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    for noise in (1.0, 2.0):
        plain = [trained(0, noise, seed) for seed in seeds]
        accuracy = np.mean([run.accuracy for run in plain])
        print(f"| {noise:g} | none | {accuracy:.2%} | | | 1 | | | | |", flush=True)
        for canaries in choose_size((100, 500, 1000), (50,)):
            runs = [trained(canaries, noise, seed) for seed in seeds]
            lost = np.array([p.accuracy - r.accuracy for p, r in zip(plain, runs, strict=True)])
            error = lost.std(ddof=1) / np.sqrt(lost.size)
            slower = np.median([r.seconds for r in runs]) / np.median([p.seconds for p in plain])
            mean = {name: np.mean([getattr(r, name) for r in runs]) for name in vars(runs[0])}
            print(
                f"| {noise:g} | {canaries} | {mean['accuracy']:.2%} | {lost.mean():.2%} ± "
                f"{error:.2%} | {mean['share']:.1%} | {slower:.2f} | {mean['claimed']:.2f} | "
                f"{mean['proved']:.2f} | {mean['ran']:.2f} | "
                f"{mean['step_claimed']:.2f}, {mean['step_proved']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    with threadpool_limits(1):  # so that CPU time is that of one core
        main()
