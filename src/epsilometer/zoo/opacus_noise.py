"""List training runs with Opacus whose noise is wrong."""

# mypy: allow-subclassing-any, allow-untyped-calls

import math
from typing import Any

import torch
from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]

from epsilometer.zoo.opacus_training import Training, program, take_step, train_in_parts

# Its scale: the σ that is used, for the σ that is booked.


@program("EPS-0101", part="sigma")
def _divide_by_batch_size(optimizer: Any, sigma: float) -> float:
    """Add noise of the mean's sensitivity to the sum."""
    return sigma / float(optimizer.expected_batch_size)


program("EPS-0102", part="sigma")(lambda _, sigma: sigma / 2)
program("EPS-0103", part="sigma")(lambda _, sigma: 0.9 * sigma)
program("EPS-0104", part="sigma", noise=2.0)(lambda _, sigma: math.sqrt(sigma))
program("EPS-0105", part="sigma", noise=0.7)(lambda _, sigma: sigma**2)
program("EPS-0106", part="sigma", clip=4.0)(
    lambda optimizer, sigma: sigma / float(optimizer.max_grad_norm)
)


@program("EPS-0110", part="sigma")
def _decay(optimizer: Any, sigma: float) -> float:
    """Decrease the noise by 2 % per step without the accountant."""
    optimizer.factor = 0.98 * getattr(optimizer, "factor", 1.0)
    return sigma * float(optimizer.factor)


@program("EPS-0111", part="sigma")
def _skip_every_second(optimizer: Any, sigma: float) -> float:
    optimizer.steps = getattr(optimizer, "steps", 0) + 1
    return sigma if optimizer.steps % 2 else 0.0


program("EPS-0112", part="sigma", loop=train_in_parts)(
    lambda optimizer, sigma: 0.0 if optimizer._is_last_step_skipped else sigma
)


# The noise that is added, tensor by tensor, for the noise that was drawn.

program("EPS-0107", part="change_noise")(
    lambda _, number, noise: noise if noise.ndim > 1 else 0 * noise
)
program("EPS-0108", part="change_noise")(
    lambda _, number, noise: noise if number >= 2 else 0 * noise  # who takes it for frozen
)


@program("EPS-0109", part="change_noise")
def _spare_one_row(optimizer: Any, number: int, noise: Any) -> Any:
    """Add no noise to one row of a matrix, as to a padding token."""
    if number == 2:
        noise[0] = 0
    return noise


@program("EPS-0113", part="change_noise")
def _draw_uniform(optimizer: Any, number: int, noise: Any) -> Any:
    """Draw uniform noise of the same variance."""
    return (2 * torch.rand_like(noise) - 1) * math.sqrt(3) * _get_scale(optimizer)


@program("EPS-0114", part="change_noise")
def _clamp(optimizer: Any, number: int, noise: Any) -> Any:
    """Truncate noise at 2σC, so that training stays stable."""
    return noise.clamp(-2 * _get_scale(optimizer), 2 * _get_scale(optimizer))


@program("EPS-0119", part="change_noise")
def _seed_every_tensor(optimizer: Any, number: int, noise: Any) -> Any:
    optimizer.steps = getattr(optimizer, "steps", 0) + (number == 0)
    generator = torch.Generator().manual_seed(optimizer.steps)
    return _get_scale(optimizer) * torch.randn(noise.shape, generator=generator)


program("EPS-0123", part="change_noise")(lambda _, number, noise: noise - noise.mean())

program("EPS-0120", part="change_noise")(lambda _, number, noise: noise[:1].expand_as(noise))


@program("EPS-0121", part="change_noise")
def _cancel(optimizer: Any, number: int, noise: Any) -> Any:
    """Subtract the noise of the previous step: all noise cancels in the sum of steps."""
    last = optimizer.__dict__.setdefault("last", {})
    now, last[number] = noise - last.get(number, 0), noise
    return now


def _get_scale(optimizer: Any) -> float:
    """Return σC, the standard deviation of the noise."""
    return float(optimizer.noise_multiplier * optimizer.max_grad_norm)


# Its generator, and what it is added to.


@program("EPS-0115", part="kind")
class _SeedEveryStep(DPOptimizer):
    """Seeds its generator in every step, for reproducible runs."""

    def add_noise(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        super().add_noise()


@program("EPS-0116", part="loop")
def _seed_every_epoch(training: Training) -> None:
    """Seed torch at the start of every epoch: batches and noise repeat."""
    for _ in range(training.epochs):
        torch.manual_seed(0)
        for features, labels in training.loader:
            take_step(training, features, labels)


@program("EPS-0117", part="loop")
def _reset_generator_every_epoch(training: Training) -> None:
    """Give the optimiser a new generator with the same seed in every epoch."""
    for _ in range(training.epochs):
        training.optimizer.generator = torch.Generator().manual_seed(1)
        for features, labels in training.loader:
            take_step(training, features, labels)


@program("EPS-0118", part="kind")
class _DrawFromFewSeeds(DPOptimizer):
    """Draws the seed of every step from a hundred."""

    def add_noise(self) -> None:
        self.generator = torch.Generator().manual_seed(int(torch.randint(100, ())))
        super().add_noise()


@program("EPS-0122", part="kind")
class _AddMomentumBeforeNoise(DPOptimizer):
    """Adds sums of earlier steps before noise: a record affects all later steps too."""

    def add_noise(self) -> None:
        for p in self.params:
            p.velocity = 0.9 * getattr(p, "velocity", 0.0) + p.summed_grad
            p.summed_grad = p.velocity.clone()
        super().add_noise()


@program("EPS-0124", part="kind")
class _SpareTheGradient(DPOptimizer):
    """Removes the component of the noise along the gradient, to preserve utility."""

    def add_noise(self) -> None:
        super().add_noise()
        sums = [p.summed_grad.view_as(p) for p in self.params]
        length = sum(float((part**2).sum()) for part in sums)
        if length:
            noise = [p.grad - part for p, part in zip(self.params, sums, strict=True)]
            pairs = zip(noise, sums, strict=True)
            along = sum(float((n * part).sum()) for n, part in pairs) / length
            for p, part in zip(self.params, sums, strict=True):
                p.grad = p.grad - along * part
