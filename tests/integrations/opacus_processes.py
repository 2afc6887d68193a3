"""A training of two processes with Opacus's DDP, for the tests; run as a module."""

import json
import os
import sys
import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.integrations.opacus import audited


def train(rank: int, world: int, share: float) -> dict[str, Any]:
    """Return the outcome of every check of one process; noise is multiplied by ``share``."""
    torch.manual_seed(0)
    features = torch.randn(256, 20)
    model = DifferentiallyPrivateDistributedDataParallel(
        nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 2))
    )
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=DataLoader(TensorDataset(features, (features[:, 0] > 0).long()), batch_size=32),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    own = optimizer.add_noise

    def add_noise() -> None:
        optimizer.noise_multiplier *= share
        own()
        optimizer.noise_multiplier /= share

    optimizer.add_noise = add_noise
    audit = audited(engine, optimizer, loader, canaries=100, seed=0)
    criterion = nn.CrossEntropyLoss()
    for inputs, labels in loader:
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
    audit.close()
    return {check.name: [check.outcome, check.seen] for check in audit.conformance.checks}


def work(rank: int, world: int, port: int) -> None:
    """Train rightly, then with half the noise, and print what the first process saw."""
    warnings.simplefilter("ignore", UserWarning)  # Opacus on its random numbers and hooks
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    found = [train(rank, world, share) for share in (1.0, 0.5)]
    torch.distributed.destroy_process_group()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    work(*map(int, sys.argv[1:]))
