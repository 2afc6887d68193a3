"""An audit loop by hand over Opacus: ``stopwatch.answer``."""

from typing import Any

import repeated
import stopwatch
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def training(given: str) -> dict[str, Any]:
    """The audit ``SITUATION:SEED``: one model after the other, with the record and without it."""
    situation, _, seed = given.partition(":")
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    noise = repeated.NOISE[situation]
    return {
        side: [_score(side == "inside", noise) for _ in range(repeated.RUNS)]
        for side in ("inside", "outside")
    }


def _score(present: bool, noise: float) -> float:
    """Minus the loss of the record, of one model."""
    x, y = (torch.from_numpy(part) for part in repeated.records())
    mine = TensorDataset(x, y) if present else TensorDataset(x[1:], y[1:])
    model: Any = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=repeated.RATE),
        data_loader=DataLoader(mine, batch_size=repeated.BATCH),
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    optimizer.expected_batch_size = repeated.BATCH  # the same in both worlds
    for _ in range(repeated.EPOCHS):
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
    with torch.no_grad():
        return -float(nn.functional.cross_entropy(model(x[:1]), y[:1]))


if __name__ == "__main__":
    stopwatch.answer({"training": training}, tool="opacus")
