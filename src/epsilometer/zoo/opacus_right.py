"""List trainings with Opacus that are right, and look unusual: none may be accused."""

# mypy: allow-subclassing-any, allow-untyped-calls

from io import BytesIO
from typing import Any

import torch
from torch import nn

from epsilometer._extras import needs
from epsilometer.zoo.opacus_books import ADAPTIVE, RARELY, make_adam, train_by_closure
from epsilometer.zoo.opacus_training import (
    CLASSES,
    FEATURES,
    PART,
    Training,
    describe_training,
    make_network,
    make_training,
    take_step,
    train,
    train_in_parts,
)

with needs("opacus", extra="opacus"):
    from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]
    from opacus.schedulers import (  # type: ignore[import-untyped]
        ExponentialGradClip,
        StepNoise,
    )


def split_by_hand(training: Training) -> None:
    """Accumulate over parts of a batch, by the signals that BatchMemoryManager gives."""
    for _ in range(training.epochs):
        for features, labels in training.loader:
            parts = list(zip(features.split(PART), labels.split(PART), strict=True))
            for number, (part, own) in enumerate(parts, 1):
                training.optimizer.signal_skip_step(do_skip=number < len(parts))
                take_step(training, part, own)


class _ClipAutomatically(DPOptimizer):
    """Normalises every record to C (Bu et al. 2023)."""

    def clip_and_accumulate(self) -> None:
        rows = list(self.grad_samples)
        norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)
        for p, row in zip(self.params, rows, strict=True):
            total = torch.einsum("i,i...", self.max_grad_norm / (norms + 0.01), row)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


class _AddMoreNoise(DPOptimizer):
    """Adds 20 % more noise than it books."""

    noise_multiplier: float

    def add_noise(self) -> None:
        booked = self.noise_multiplier
        self.noise_multiplier = 1.2 * booked
        super().add_noise()
        self.noise_multiplier = booked


class _StepTwice(DPOptimizer):
    """Applies every noisy gradient twice: that is post-processing."""

    def step(self, closure: Any = None) -> Any:
        if self.pre_step():
            self.original_optimizer.step()
            self.original_optimizer.step()


class _ClipAfterNoise(DPOptimizer):
    """Clips the noisy gradient before it is applied: that is post-processing."""

    def step(self, closure: Any = None) -> Any:
        if self.pre_step():
            nn.utils.clip_grad_norm_(self.params, 0.5)
            self.original_optimizer.step()


def schedule_noise(training: Training) -> None:
    """Let σ fall by Opacus' own scheduler, which the accountant follows."""
    schedule = StepNoise(training.optimizer, step_size=3, gamma=0.8)
    for _ in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features, labels)
        schedule.step()


def schedule_clip_norm(training: Training) -> None:
    """Let C fall by Opacus' own scheduler."""
    schedule = ExponentialGradClip(training.optimizer, gamma=0.8)
    for _ in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features, labels)
        schedule.step()


def draw_secure_noise(seed: int) -> Training:
    """Draw noise as secure mode does: four draws, halved, from a generator of its own."""
    training = make_training(seed)
    training.optimizer.secure_mode = True
    training.optimizer.generator = torch.Generator().manual_seed(seed + 1)
    return training


class _Half(nn.Module):
    """The network in bfloat16, for features in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_network().to(torch.bfloat16)

    def forward(self, features: Any) -> Any:
        return self.layers(features.to(torch.bfloat16)).float()


class _LowRank(nn.Module):
    """A frozen layer with two thin trainable ones beside it, as LoRA has, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(FEATURES, 40).requires_grad_(False)
        self.down = nn.Linear(FEATURES, 8, bias=False)
        self.up = nn.Linear(8, 40, bias=False)
        self.head = nn.Linear(40, CLASSES)

    def forward(self, features: Any) -> Any:
        return self.head(torch.tanh(self.frozen(features) + self.up(self.down(features))))


class _Tied(nn.Module):
    """A network that uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 24)
        self.shared = nn.Linear(24, 24)
        self.last = nn.Linear(24, CLASSES)

    def forward(self, features: Any) -> Any:
        hidden = torch.tanh(self.shared(torch.tanh(self.first(features))))
        return self.last(torch.tanh(self.shared(hidden)))


def make_with_dropout() -> nn.Module:
    """Return the network with dropout."""
    first, second, *rest = make_network().children()
    return nn.Sequential(first, second, nn.Dropout(0.2), *rest)


def make_with_layer_norm() -> nn.Module:
    """Return the network with LayerNorm, which does not mix records."""
    first, *rest = make_network().children()
    return nn.Sequential(first, nn.LayerNorm(40), *rest)


def make_with_momentum(parameters: Any) -> torch.optim.Optimizer:
    """Return SGD with momentum and weight decay."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def make_slow_sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return SGD for sums of losses, which are 25 times their means."""
    return torch.optim.SGD(parameters, lr=0.004)


def schedule_learning_rate(training: Training) -> None:
    """Let the learning rate fall."""
    rates = torch.optim.lr_scheduler.StepLR(training.before["optimizer"], step_size=1, gamma=0.8)
    for _ in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features, labels)
        rates.step()


def average_weights(training: Training) -> None:
    """Keep a moving average of the weights, and go on from it after every epoch."""
    weights = list(training.model.parameters())
    means = [p.detach().clone() for p in weights]
    for _ in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features, labels)
            for mean, p in zip(means, weights, strict=True):
                mean.lerp_(p.detach(), 0.1)
        with torch.no_grad():
            for mean, p in zip(means, weights, strict=True):
                p.copy_(mean)


def validate_every_epoch(training: Training) -> None:
    """Look at other records between epochs, without gradients."""
    others = torch.randn(50, FEATURES)
    for _ in range(training.epochs):
        training.model.train()
        for features, labels in training.loader:
            take_step(training, features, labels)
        training.model.eval()
        with torch.no_grad():
            training.model(others)
    training.model.train()


def average_augmentations(model: Any, features: Any, labels: Any) -> Any:
    """Average the losses of four views of a record: one gradient per record."""
    losses = [
        nn.functional.cross_entropy(model(features + 0.1 * turn), labels) for turn in range(4)
    ]
    return sum(losses) / 4


def resume(seed: int) -> Training:
    """Resume from Opacus' own checkpoint, books and all."""
    first = make_training(seed, inner=make_adam)
    train(first)
    file = BytesIO()
    first.engine.save_checkpoint(path=file, module=first.model, optimizer=first.optimizer)
    file.seek(0)
    second = make_training(seed, inner=make_adam, epochs=3)
    torch.manual_seed(seed + 1)  # or batches and noise would repeat
    second.engine.load_checkpoint(path=file, module=second.model, optimizer=second.optimizer)
    return second


RIGHT_TRAININGS = (
    describe_training("EPS-1101", "plain DP-SGD", train),
    describe_training("EPS-1102", "Adam", make_adam, inner=make_adam),
    describe_training("EPS-1103", "BatchMemoryManager", train_in_parts),
    describe_training("EPS-1104", "batches split by hand", split_by_hand),
    describe_training("EPS-1105", "functorch", train, grad_sample_mode="functorch"),
    describe_training("EPS-1106", "expanded weights", train, grad_sample_mode="ew"),
    describe_training("EPS-1107", "ghost clipping", train, grad_sample_mode="ghost"),
    describe_training(
        "EPS-1108",
        "ghost clipping with BatchMemoryManager",
        train_in_parts,
        grad_sample_mode="ghost",
    ),
    describe_training(
        "EPS-1109", "clipping by layers", train, clipping="per_layer", clip=[0.5, 0.1] * 3
    ),
    describe_training("EPS-1110", "adaptive clipping", train, **ADAPTIVE),
    describe_training("EPS-1111", "automatic clipping", _ClipAutomatically),
    describe_training("EPS-1112", "schedule of noise", schedule_noise),
    describe_training("EPS-1113", "schedule of C", schedule_clip_norm),
    describe_training(
        "EPS-1114", "noise as in secure mode", draw_secure_noise, make=draw_secure_noise
    ),
    describe_training("EPS-1115", "bfloat16", _Half, network=_Half),
    describe_training("EPS-1116", "empty batches", train, **RARELY),
    describe_training("EPS-1117", "LoRA beside a frozen layer", _LowRank, network=_LowRank),
    describe_training("EPS-1118", "one layer used twice", _Tied, network=_Tied),
    describe_training(
        "EPS-1119",
        "momentum, weight decay and a schedule of the learning rate",
        schedule_learning_rate,
        inner=make_with_momentum,
    ),
    describe_training("EPS-1120", "dropout", make_with_dropout, network=make_with_dropout),
    describe_training("EPS-1121", "LayerNorm", make_with_layer_norm, network=make_with_layer_norm),
    describe_training("EPS-1122", "every noisy gradient applied twice", _StepTwice),
    describe_training("EPS-1123", "noisy gradients clipped", _ClipAfterNoise),
    describe_training("EPS-1124", "moving average of the weights", average_weights),
    describe_training("EPS-1125", "resume with the books", resume, make=resume),
    describe_training(
        "EPS-1126", "sum of losses", make_slow_sgd, inner=make_slow_sgd, loss_reduction="sum"
    ),
    describe_training("EPS-1127", "closure", train_by_closure),
    describe_training("EPS-1128", "validation between epochs", validate_every_epoch),
    describe_training("EPS-1129", "20 % more noise", _AddMoreNoise),
    describe_training(
        "EPS-1130", "averaged augmentations", average_augmentations, loss=average_augmentations
    ),
)
