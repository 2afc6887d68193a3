"""Small trainings with the real Opacus, and optimisers that are broken on purpose."""

import warnings
from typing import Any, NamedTuple

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.integrations.opacus import Audited, audited


class Run(NamedTuple):
    engine: Any
    model: Any
    optimizer: Any
    loader: Any
    criterion: Any


def prepared(
    *,
    noise: float = 1.0,
    batch: int = 64,
    records: int = 64,
    hidden: int = 200,
    poisson: bool = True,
    shuffle: bool = True,
    inner: Any = torch.optim.SGD,
    mode: str = "hooks",
    accountant: str = "prv",
    clip: Any = 1.0,
    seed: int = 0,
    **more: Any,
) -> Run:
    """A model of 23 · hidden + 2 parameters, made private as users do it."""
    torch.manual_seed(seed)
    features = torch.randn(records, 20)
    dataset = TensorDataset(features, (features[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # secure random numbers, GDP
        engine = PrivacyEngine(accountant=accountant)
    made = engine.make_private(
        module=model,
        optimizer=inner(model.parameters(), lr=0.05),
        data_loader=DataLoader(dataset, batch_size=batch, shuffle=shuffle),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=noise,
        max_grad_norm=clip,
        poisson_sampling=poisson,
        grad_sample_mode=mode,
        **more,
    )
    if mode == "ghost":
        return Run(engine, made[0], made[1], made[3], made[2])
    return Run(engine, made[0], made[1], made[2], nn.CrossEntropyLoss())


def train(run: Run, *, epochs: int = 1, loader: Any = None) -> None:
    """The loop of anybody's tutorial."""
    for _ in range(epochs):
        for features, labels in run.loader if loader is None else loader:
            run.optimizer.zero_grad()
            backward(run, features, labels)
            run.optimizer.step()


def backward(run: Run, features: Any, labels: Any) -> None:
    """Gradients of a batch; what torch says about the hooks of Opacus is not our business."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
        run.criterion(run.model(features), labels).backward()


def audited_run(
    kind: type[DPOptimizer], *, canaries: int, epochs: int = 1, seed: int = 0, **settings: Any
) -> Audited:
    """A training with an optimiser of this kind, audited."""
    run = prepared(seed=seed, **settings)
    run.optimizer.__class__ = kind
    with audited(run.engine, run.optimizer, run.loader, canaries=canaries, seed=seed) as audit:
        train(run, epochs=epochs)
    return audit


class HalfNoise(DPOptimizer):
    def add_noise(self) -> None:
        said, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / 2
        super().add_noise()
        self.noise_multiplier = said


class NoClipping(DPOptimizer):
    def clip_and_accumulate(self) -> None:
        said, self.max_grad_norm = self.max_grad_norm, 1e9
        super().clip_and_accumulate()
        self.max_grad_norm = said


class NoiseOfTheMean(DPOptimizer):
    """Noise for the sensitivity of the mean, added to the sum."""

    def add_noise(self) -> None:
        said = self.noise_multiplier
        self.noise_multiplier = said / self.expected_batch_size
        super().add_noise()
        self.noise_multiplier = said


class MomentumBeforeNoise(DPOptimizer):
    """A record takes part in every later step too, and noise is for one."""

    def add_noise(self) -> None:
        for p in self.params:
            p.velocity = 0.9 * getattr(p, "velocity", 0.0) + p.summed_grad
            p.summed_grad = p.velocity.clone()
        super().add_noise()


class SameNoiseEveryStep(DPOptimizer):
    def add_noise(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        super().add_noise()
