"""List trainings with Opacus whose noise is wrong."""

# mypy: allow-subclassing-any, allow-untyped-calls

import math
from typing import Any

import torch

from epsilometer._extras import needs
from epsilometer.zoo.opacus_training import (
    Training,
    describe_training,
    take_step,
    train_in_parts,
)

with needs("opacus", extra="opacus"):
    from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]


class _ChangeSigma(DPOptimizer):
    """Draws noise of another σ than it books."""

    noise_multiplier: float

    def change(self, sigma: float) -> float:
        """Return the σ that is used; the accountant hears of the other."""
        return sigma

    def add_noise(self) -> None:
        booked = self.noise_multiplier
        self.noise_multiplier = self.change(booked)
        super().add_noise()
        self.noise_multiplier = booked


class _DivideByBatchSize(_ChangeSigma):
    """Adds noise of the mean's sensitivity to the sum."""

    def change(self, sigma: float) -> float:
        return sigma / float(self.expected_batch_size)


class _Halve(_ChangeSigma):
    """Adds half the noise."""

    def change(self, sigma: float) -> float:
        return sigma / 2


class _TakeTenPercentOff(_ChangeSigma):
    """Adds 10 % too little."""

    def change(self, sigma: float) -> float:
        return 0.9 * sigma


class _TakeRoot(_ChangeSigma):
    """Takes σ for a variance."""

    def change(self, sigma: float) -> float:
        return math.sqrt(sigma)


class _TakeSquare(_ChangeSigma):
    """Scales noise by its variance in place of its root."""

    def change(self, sigma: float) -> float:
        return sigma**2


class _ForgetClipNorm(_ChangeSigma):
    """Adds noise of σ, not of σC."""

    def change(self, sigma: float) -> float:
        return sigma / float(self.max_grad_norm)


class _Decay(_ChangeSigma):
    """Lets noise fall by 2 % a step behind the accountant's back."""

    factor = 1.0

    def change(self, sigma: float) -> float:
        self.factor *= 0.98
        return sigma * self.factor


class _SkipEverySecond(_ChangeSigma):
    """Adds noise in every second step only."""

    steps = 0

    def change(self, sigma: float) -> float:
        self.steps += 1
        return sigma if self.steps % 2 else 0.0


class _SkipSplitBatches(_ChangeSigma):
    """Adds no noise to batches that were split into physical ones."""

    def change(self, sigma: float) -> float:
        return 0.0 if self._is_last_step_skipped else sigma


class _ChangeNoise(DPOptimizer):
    """Changes the noise after it was drawn, tensor by tensor."""

    def change(self, number: int, noise: Any) -> Any:
        """Return the noise of a tensor that is added in place of the noise drawn."""
        return noise

    def add_noise(self) -> None:
        super().add_noise()
        for number, p in enumerate(self.params):
            own = p.summed_grad.view_as(p)
            p.grad = own + self.change(number, p.grad - own)

    @property
    def scale(self) -> float:
        """σC, the standard deviation of the noise."""
        return float(self.noise_multiplier * self.max_grad_norm)


class _SpareBiases(_ChangeNoise):
    """Adds no noise to biases."""

    def change(self, number: int, noise: Any) -> Any:
        return noise if noise.ndim > 1 else 0 * noise


class _SpareFirstLayer(_ChangeNoise):
    """Adds no noise to the first layer, as one does who takes it for frozen."""

    def change(self, number: int, noise: Any) -> Any:
        return noise if number >= 2 else 0 * noise


class _SpareOneRow(_ChangeNoise):
    """Adds no noise to one row of a matrix, as to a padding token."""

    def change(self, number: int, noise: Any) -> Any:
        if number == 2:
            noise[0] = 0
        return noise


class _ShareRows(_ChangeNoise):
    """Broadcasts one row of noise over all rows."""

    def change(self, number: int, noise: Any) -> Any:
        return noise[:1].expand_as(noise)


class _DrawUniform(_ChangeNoise):
    """Draws uniform noise of the same variance."""

    def change(self, number: int, noise: Any) -> Any:
        return (2 * torch.rand_like(noise) - 1) * math.sqrt(3) * self.scale


class _Clamp(_ChangeNoise):
    """Cuts noise off at 2σC, so that training stays stable."""

    def change(self, number: int, noise: Any) -> Any:
        return noise.clamp(-2 * self.scale, 2 * self.scale)


class _Cancel(_ChangeNoise):
    """Takes off the noise of the step before: all noise cancels in the sum of steps."""

    def change(self, number: int, noise: Any) -> Any:
        last = self.__dict__.setdefault("last", {})
        now, last[number] = noise - last.get(number, 0), noise
        return now


class _SeedEveryStep(DPOptimizer):
    """Seeds its generator in every step, for reproducible runs."""

    def add_noise(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        super().add_noise()


class _SeedEveryTensor(_ChangeNoise):
    """Uses one seed for all tensors of a step."""

    steps = 0

    def change(self, number: int, noise: Any) -> Any:
        self.steps += number == 0
        generator = torch.Generator().manual_seed(self.steps)
        return self.scale * torch.randn(noise.shape, generator=generator)


class _DrawFromFewSeeds(DPOptimizer):
    """Draws the seed of every step from a hundred."""

    def add_noise(self) -> None:
        self.generator = torch.Generator().manual_seed(int(torch.randint(100, ())))
        super().add_noise()


class _AddMomentumBeforeNoise(DPOptimizer):
    """Adds up sums of earlier steps before noise: a record is in all later steps too."""

    def add_noise(self) -> None:
        for p in self.params:
            p.velocity = 0.9 * getattr(p, "velocity", 0.0) + p.summed_grad
            p.summed_grad = p.velocity.clone()
        super().add_noise()


def seed_every_epoch(training: Training) -> None:
    """Seed torch at the start of every epoch: batches and noise repeat."""
    for _ in range(training.epochs):
        torch.manual_seed(0)
        for features, labels in training.loader:
            take_step(training, features, labels)


def reset_generator_every_epoch(training: Training) -> None:
    """Give the optimiser a new generator of the same seed in every epoch."""
    for _ in range(training.epochs):
        training.optimizer.generator = torch.Generator().manual_seed(1)
        for features, labels in training.loader:
            take_step(training, features, labels)


NOISE = (
    describe_training(
        "EPS-0101",
        "noise divided by the batch size",
        _DivideByBatchSize,
        breaks="noise",
        seen="Backpropagation Clipping (Tramèr et al. 2022)",
    ),
    describe_training("EPS-0102", "half the noise", _Halve, breaks="noise"),
    describe_training("EPS-0103", "10 % too little noise", _TakeTenPercentOff, breaks="noise"),
    describe_training("EPS-0104", "√σ in place of σ = 2", _TakeRoot, breaks="noise", noise=2.0),
    describe_training(
        "EPS-0105",
        "σ² in place of σ = 0.7",
        _TakeSquare,
        breaks="noise",
        seen="Optax issue 281",
        noise=0.7,
    ),
    describe_training(
        "EPS-0106", "noise not multiplied by C = 4", _ForgetClipNorm, breaks="noise", clip=4.0
    ),
    describe_training("EPS-0107", "no noise on biases", _SpareBiases, breaks="noise of tensors"),
    describe_training(
        "EPS-0108", "no noise on the first layer", _SpareFirstLayer, breaks="noise of tensors"
    ),
    describe_training(
        "EPS-0109", "one row of a matrix without noise", _SpareOneRow, breaks="noise of rows"
    ),
    describe_training(
        "EPS-0110", "noise that decays and is not booked", _Decay, breaks="noise of steps"
    ),
    describe_training(
        "EPS-0111", "every second step without noise", _SkipEverySecond, breaks="noise of steps"
    ),
    describe_training(
        "EPS-0112",
        "no noise in batches that are split",
        _SkipSplitBatches,
        breaks="noise of steps",
        loop=train_in_parts,
    ),
    describe_training("EPS-0113", "uniform noise", _DrawUniform, breaks="shape of noise"),
    describe_training("EPS-0114", "noise cut off at 2σ", _Clamp, breaks="shape of noise"),
    describe_training(
        "EPS-0115", "generator seeded in every step", _SeedEveryStep, breaks="independence"
    ),
    describe_training(
        "EPS-0116",
        "torch seeded at the start of every epoch",
        seed_every_epoch,
        breaks="independence",
    ),
    describe_training(
        "EPS-0117",
        "generator of the noise reset every epoch",
        reset_generator_every_epoch,
        breaks="independence",
    ),
    describe_training(
        "EPS-0118", "noise of one of 100 seeds", _DrawFromFewSeeds, breaks="independence"
    ),
    describe_training(
        "EPS-0119",
        "one seed for all tensors of a step",
        _SeedEveryTensor,
        breaks="independence",
        seen="JAX's example of DP-SGD (jax pull request 3646)",
    ),
    describe_training("EPS-0120", "noise broadcast over rows", _ShareRows, breaks="independence"),
    describe_training(
        "EPS-0121", "noise that cancels from step to step", _Cancel, breaks="independence"
    ),
    describe_training(
        "EPS-0122", "momentum before noise", _AddMomentumBeforeNoise, breaks="sensitivity"
    ),
)
