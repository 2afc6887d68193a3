"""Times rounds of simulated federated training, and what canaries add to them.

    python benchmarks/federated.py    # writes federated.md

CPU seconds of one thread: the best of three takes of ours, in turns, and one take of Flower.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from federation import records
from measurement import watch
from results import machine
from sizes import TINY, choose_size, write_page
from torch import nn

from epsilometer.audits.federated.directions import HadamardCanaries, SphereCanaries
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.networks.ensemble import cross_entropy
from epsilometer.networks.models import mlp

_HERE = Path(__file__).resolve().parent
_PAGE = _HERE / "federated.md"
_CANARIES = choose_size(1000, 10)
_TAKES = choose_size(3, 1)
_MORE = choose_size(20, 1)  # rounds that are timed of a small model
_ROUNDS = 6  # of Flower
_INTRO = """# Simulated federated training

Written by `python benchmarks/federated.py`; do not edit. CPU seconds of one round, one thread: the
best of three takes of ours, in turns, and one take of Flower.

Measured on {machine}.

"""


def main() -> None:
    """Measures and writes the page."""
    text = _INTRO.format(machine=machine()) + _small() + "\n" + _large()
    write_page(_PAGE, text)


def _clients(count: int, shape: tuple[int, ...], examples: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(examples // 2, 3 * examples // 2, size=count)
    return [(rng.normal(size=(n, *shape)), rng.integers(10, size=n)) for n in sizes]


def _training(module: nn.Module, clients: Any, rounds: int, at_once: int) -> FederatedTraining:
    return FederatedTraining(
        module,
        cross_entropy,
        clients=clients,
        rounds=rounds,
        cohort=len(clients),
        noise_multiplier=0.5,
        learning_rate=0.05,
        batch_size=20,
        at_once=at_once,
    )


def _seconds(training: FederatedTraining, **options: Any) -> float:
    """CPU of a whole training."""
    start = time.process_time()
    training.train(rng=np.random.default_rng(0), **options)
    return time.process_time() - start


def _small() -> str:
    """64 clients of an MLP of 5,000 parameters: together, one by one, and by Flower on Ray."""
    clients, found = records(choose_size(64, 2)), {}
    for name, at_once in (("ours, 32 clients at once", 32), ("ours, one at a time", 1)):
        short, long = (
            _training(mlp(64, 10, 66), clients, rounds, at_once) for rounds in (1, 1 + _MORE)
        )
        found[name] = min(_seconds(long) - _seconds(short) for _ in range(_TAKES)) / _MORE
    if not TINY:
        took = (_by_flower(_ROUNDS) - _by_flower(1)) / (_ROUNDS - 1)
        found["Flower on Ray, with its own server-side DP"] = took
    ours = next(iter(found.values()))
    rows = "\n".join(
        f"| {name} | {1000 * took:.1f} ms | {took / ours:.1f} |" for name, took in found.items()
    )
    size = _training(mlp(64, 10, 66), clients, 1, 1).size
    return (
        f"64 clients with 20 to 60 records each, batches of 20, an MLP of {size:,} parameters. "
        "What more rounds take more, so that no start counts; of Flower, the CPU of all its "
        f"processes:\n\n| who | a round | times |\n| --- | --- | --- |\n{rows}\n"
    )


def _by_flower(rounds: int) -> float:
    """CPU seconds of a simulation and of all that it started."""
    return float(watch("flower", "rounds", f"{rounds} rounds")["cpu_seconds"])


def _large() -> str:
    """What canaries add to a round of a CNN of a million parameters."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    training = _training(
        module, _clients(choose_size(20, 2), (1, 28, 28), choose_size(100, 4)), 1, 10
    )
    families = {"Hadamard": HadamardCanaries, "sphere": SphereCanaries}
    settings: dict[str, dict[str, Any]] = {"none": {"iterates": "none"}}
    for name, family in families.items():
        kept: Any = family(count=_CANARIES, dimension=training.size, key=1)
        both: Any = family(count=2 * _CANARIES, dimension=training.size, key=1)
        planted = {"planted": _CANARIES, "repetitions": 1}
        settings[f"{name}, final model"] = {"canaries": kept, "iterates": "none", **planted}
        if name == "Hadamard":
            settings[f"{name}, all iterates"] = {"canaries": both, **planted}
    takes: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(_TAKES):
        for name, options in settings.items():
            takes[name].append(_seconds(training, **options))
    found = {name: min(times) for name, times in takes.items()}
    rows = "\n".join(
        f"| {name} | {took:.2f} s | {100 * (took / found['none'] - 1):.1f} % |"
        for name, took in found.items()
    )
    return (
        f"A whole training of one round, 20 clients with 50 to 150 images each, batches of 20, a "
        f"CNN of {training.size:,} parameters, {_CANARIES:,} canaries (as many more unobserved for "
        "all iterates). A training looks at its final model once, so that one round is the worst "
        f"case:\n\n| canaries | a round | more |\n| --- | --- | --- |\n{rows}\n"
    )


if __name__ == "__main__":
    main()
