"""Compare samplers of DP-SGD: ε at the same noise, noise at the same ε, and speed.

    python benchmarks/samplers.py

Trains a small net with Opacus on the CPU. ε of shuffling is given by both ends; all others are
proved upper bounds. Poisson sampling by Opacus books what its own accountant says.
"""

import argparse
import time
import warnings
from typing import Any

import torch
from opacus import PrivacyEngine  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer import shuffle_epsilon, shuffle_noise, shuffle_upper, sufficient_noise
from epsilometer.integrations.opacus import make_private
from epsilometer.sampling import BallsInBins, FixedSize, Poisson, Shuffle

DELTA = 1e-5


def count_records(name: str, *, records: int, batch: int, epochs: int, noise: float) -> float:
    """Return how many records are trained per second of CPU time, in the quickest epoch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 10))
    data = TensorDataset(torch.randn(records, 100), torch.arange(records) % 10)
    loader = DataLoader(data, batch_size=batch, shuffle=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = PrivacyEngine()
        settings: dict[str, Any] = {
            "module": module,
            "optimizer": optimizer,
            "data_loader": loader,
            "noise_multiplier": noise,
            "max_grad_norm": 1.0,
        }
        if name in ("shuffle", "poisson of Opacus"):
            made = engine.make_private(**settings, poisson_sampling=name != "shuffle")
        else:
            size = None
            if name.endswith("fixed"):
                size = FixedSize.fit(
                    BallsInBins(), records=records, batch_size=batch, delta=DELTA
                ).size
            sampler = name.removesuffix(", fixed")
            made = make_private(engine, **settings, sampler=sampler, physical_size=size)
        module, optimizer, loader = made
        best = 0.0
        for _ in range(epochs):
            start, seen = time.process_time(), 0
            for features, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(features), labels).backward()
                optimizer.step()
                seen += len(labels)
            best = max(best, seen / (time.process_time() - start))
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--claim", type=float, default=1.0)
    parser.add_argument("--tiny", action="store_true", help="Run in a second or two.")
    given = parser.parse_args()
    if given.tiny:
        given.records, given.batch, given.epochs = 200, 20, 1
    steps = given.records // given.batch
    shared: dict[str, Any] = {"steps": steps, "epochs": given.epochs, "delta": DELTA}
    fixed = FixedSize.fit(
        BallsInBins(), records=given.records, batch_size=given.batch, delta=DELTA
    ).size
    samplers = {
        "shuffle": Shuffle(),
        "poisson of Opacus": Poisson(),
        "poisson": Poisson(),
        "poisson, fixed": FixedSize(Poisson(), fixed),
        "balls-in-bins": BallsInBins(),
        "balls-in-bins, fixed": FixedSize(BallsInBins(), fixed),
    }
    print(f"largest batch where it is fixed: {fixed}")
    print("| sampler | ε at this noise | noise for the claim | records per second of CPU |")
    print("|---|---|---|---|")
    for name, sampler in samplers.items():
        named: dict[str, Any] = {**shared, "sampler": sampler, "batch_size": given.batch}
        upper = shuffle_upper(noise_multiplier=given.noise, **named).high
        enough = sufficient_noise(epsilon=given.claim, **named, near=given.noise)
        epsilon, noise = f"≤ {upper:.3f}", f"{enough:.3f}"
        if name == "shuffle":
            lower = shuffle_epsilon(noise_multiplier=given.noise, **shared).low
            needed = shuffle_noise(epsilon=given.claim, **shared)
            epsilon, noise = f"[{lower:.3f}, {upper:.3f}]", f"[{needed:.3f}, {enough:.3f}]"
        speed = count_records(
            name,
            records=given.records,
            batch=given.batch,
            epochs=given.epochs,
            noise=given.noise,
        )
        print(f"| {name} | {epsilon} | {noise} | {round(speed, -2):,.0f} |", flush=True)


if __name__ == "__main__":
    main()
