"""Times DP-SGD of many models at once.

    python benchmarks/training.py    # beside loops over Opacus; writes training.md

On a GPU: benchmarks/gpu.py.

A model-step is one step of one model on a batch of 100: forward, backward, per-example clipping,
noise, a canary, and the update.
"""

import copy
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import machine
from sizes import choose_size, write_page
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.audits.dpsgd.canaries import Adversary, TargetCanary, random_direction
from epsilometer.networks.devices import choose_at_once
from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.networks.models import cnn, lenet5, mlp
from epsilometer.networks.trainer import NoCanaries, Precision

_PAGE = Path(__file__).resolve().parent / "training.md"
BATCH = choose_size(100, 10)
_STEPS, _TAKES = choose_size((100, 3), (2, 1))
_INTRO = """# DP-SGD of many models at once

Written by `make speed`; do not edit. Model-steps a CPU-second, B = 100, one thread: the best of
three takes of each, in turns. Opacus trains one model after the other, with hooks (its default)
or with ghost clipping.

Measured on {machine}.

| model | ours | at once | Opacus, hooks | times | Opacus, ghost | times | target, beside both |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
_SCALING = """
From one core to two (target: at least {least} times): {times}.
Model-steps per CPU-second of two processes at
once, added, over those of one process alone: what shared caches and memory cost. Processes share
nothing else, and what is done before and after them is not counted.
"""
_LEAST = 1.8  # times, from one core to two
_Model = tuple[Callable[[], nn.Module], tuple[int, ...], int]
MODELS: dict[str, _Model] = {
    "MLP 600–32–100": (lambda: mlp(600, 100), (600,), 100),
    "LeNet-5, 28×28": (lambda: lenet5(classes=2), (1, 28, 28), 2),
    "CNN of Table II, 3×32×32": (lambda: cnn(classes=2), (3, 32, 32), 2),
}


def make_records(shape: tuple[int, ...], classes: int, count: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.random((count, *shape), np.float32), rng.integers(classes, size=count)


def make_ensemble(
    model: nn.Module,
    runs: int,
    device: str,
    path: Any = "auto",
    precision: Precision = "float32",
) -> EnsembleDPSGD:
    return EnsembleDPSGD(
        model,
        cross_entropy,
        runs=runs,
        noise_multiplier=1.0,
        learning_rate=0.1,
        batch_size=BATCH,
        device=device,
        path=path,
        precision=precision,
    )


def make_canary(
    training: EnsembleDPSGD, adversary: Adversary = "partially_informed"
) -> TargetCanary:
    return TargetCanary(
        adversary=adversary,
        direction=random_direction(training.size, rng=np.random.default_rng(0)),
        batch_size=BATCH,
    )


def main() -> None:
    """Measure and write the page."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Opacus warns of what it was asked for
    text, profiles, scaling = _INTRO.format(machine=machine()), [], []
    for (name, (build, shape, classes)), steps, target in zip(
        list(MODELS.items())[:2], (_STEPS, _STEPS), (12, 4), strict=True
    ):
        features, labels = make_records(shape, classes, steps * BATCH)
        training = make_ensemble(build(), 1, "cpu")
        together = choose_size(choose_at_once(training, features, labels), 2)
        takes: dict[str, Callable[[], float]] = {
            "ours": partial(_ours, make_ensemble(build(), together, "cpu"), features, labels),
            "hooks": partial(time_opacus, build(), features, labels, "hooks"),
            "ghost": partial(time_opacus, build(), features, labels, "ghost"),
        }
        best = dict.fromkeys(takes, 0.0)
        for _ in range(_TAKES):
            for key, take in takes.items():
                best[key] = max(best[key], take())
        text += (
            f"| {name} | {best['ours']:,.0f} | {together} | {best['hooks']:,.0f} | "
            f"{best['ours'] / best['hooks']:.1f} | {best['ghost']:,.0f} | "
            f"{best['ours'] / best['ghost']:.1f} | "
            f"≥ {target}, {_judge(best['ours'] / max(best['hooks'], best['ghost']), target)} |\n"
        )
        sys.stderr.write(text.splitlines()[-1] + "\n")
        profiles.append(f"- {name}: {profile(takes['ours'])}")
        more = _scale(name, together, steps)
        scaling.append(f"{name} {more:.2f}, {_judge(more, _LEAST)}")
    text += "\nWhere our time goes:\n\n" + "\n".join(profiles) + "\n"
    text += _SCALING.format(least=_LEAST, times="; ".join(scaling)) + _accuracy()
    write_page(_PAGE, text)


def _judge(reached: float, target: float) -> str:
    return "met" if reached >= target else "missed"


def profile(call: Callable[[], object]) -> str:
    """Return the operations of torch that take most of the time of a call, with their shares."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        call()
    parts = sorted(seen.key_averages(), key=lambda part: -part.self_cpu_time_total)
    total = sum(part.self_cpu_time_total for part in parts)
    return ", ".join(
        f"`{part.key.removeprefix('aten::')}` {part.self_cpu_time_total / total:.0%}"
        for part in parts[:6]
    )


def _ours(training: EnsembleDPSGD, features: Any, labels: Any) -> float:
    before = time.process_time()
    training.train(features, labels, rng=np.random.default_rng(0), canaries=make_canary(training))
    return training.runs * len(features) / BATCH / (time.process_time() - before)


def _scale(name: str, runs: int, steps: int) -> float:
    """Return how much more two processes do at once than one alone, the best of each in turns."""
    alone = both = 0.0
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for take in range(_TAKES + 1):
            one = pool.submit(_train_alone, name, runs, steps).result()
            two = [pool.submit(_train_alone, name, runs, steps) for _ in range(2)]
            if take or _TAKES == 1:  # the first take starts the processes
                alone, both = max(alone, one), max(both, sum(each.result() for each in two))
    return both / alone


def _train_alone(name: str, runs: int, steps: int) -> float:
    torch.set_num_threads(1)
    build, shape, classes = MODELS[name]
    features, labels = make_records(shape, classes, steps * BATCH)
    return _ours(make_ensemble(build(), runs, "cpu"), features, labels)


def time_opacus(model: nn.Module, features: Any, labels: Any, mode: str) -> float:
    from opacus import PrivacyEngine

    model = copy.deepcopy(model)  # it is changed for good
    loader = DataLoader(
        TensorDataset(torch.from_numpy(features), torch.from_numpy(labels)),
        batch_size=BATCH,
        shuffle=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss: Any = nn.CrossEntropyLoss()
    private = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        criterion=loss,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,  # epsilometer: ignore[SHUF001] - only timed
        grad_sample_mode=mode,
    )
    model, optimizer, *criterion, loader = private
    loss = criterion[0] if criterion else loss
    before = time.process_time()
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return len(loader) / (time.process_time() - before)


def _accuracy() -> str:
    """Of audited runs beside unaudited ones, on real data."""
    from epsilometer.files.digits import read_digits

    features, labels = read_digits()
    features = (features / 16).astype(np.float32)
    train, test = slice(0, 1400), slice(1400, None)
    runs = choose_size(256, 2)
    training = EnsembleDPSGD(
        mlp(64, 10),
        cross_entropy,
        runs=runs,
        noise_multiplier=1.0,
        learning_rate=1.0,
        batch_size=BATCH,
        epochs=choose_size(20, 1),
    )
    lines = []
    adversaries: tuple[Adversary, ...] = ("target_canary", "partially_informed", "worst_case")
    for name in ("none", *adversaries):
        canary: Any = NoCanaries() if name == "none" else make_canary(training, name)  # type: ignore[arg-type]
        trained = training.train(
            features[train], labels[train], rng=np.random.default_rng(1), canaries=canary
        )
        right = trained.accuracy(features[test], labels[test])
        lines.append(f"| {name} | {right.mean():.2%} | ± {right.std() / np.sqrt(runs):.2%} |")
    return (
        f"\n## Accuracy of audited runs\n\nMLP 64–32–10 on the digits of scikit-learn, σ = 1, "
        f"B = 100, 20 epochs of 14 steps, {runs} runs each: mean test accuracy and its standard "
        "error.\n\n| canary | accuracy | |\n| --- | --- | --- |\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    main()
