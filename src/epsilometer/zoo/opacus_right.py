"""List right training runs with Opacus that look unusual: none may be flagged."""

# mypy: allow-subclassing-any, allow-untyped-calls

from io import BytesIO
from typing import Any

import torch
from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]
from opacus.schedulers import (  # type: ignore[import-untyped]
    ExponentialGradClip,
    StepNoise,
)
from torch import nn

from epsilometer.zoo.opacus_books import ADAPTIVE, RARELY, make_adam, step_by_closure
from epsilometer.zoo.opacus_training import (
    CLASSES,
    FEATURES,
    Training,
    make_network,
    make_training,
    measure_norms,
    program,
    split_by_hand,
    train,
    train_epochs,
    train_in_parts,
)

# What Opacus itself offers.

program("EPS-1101", part="loop")(train)
program("EPS-1102", part="inner")(make_adam)
program("EPS-1103", part="loop")(train_in_parts)
program("EPS-1104", part="step")(split_by_hand)
program("EPS-1105", part="loop", grad_sample_mode="functorch")(train)
program("EPS-1106", part="loop", grad_sample_mode="ew")(train)
program("EPS-1107", part="loop", grad_sample_mode="ghost")(train)
program("EPS-1108", part="loop", grad_sample_mode="ghost")(train_in_parts)
program("EPS-1109", part="loop", clipping="per_layer", clip=[0.5, 0.1] * 3)(train)
program("EPS-1110", part="loop", **ADAPTIVE)(train)
program("EPS-1116", part="loop", **RARELY)(train)
program("EPS-1127", part="step")(step_by_closure)


@program("EPS-1112", part="loop")
def _schedule_noise(training: Training) -> None:
    """Let σ fall by Opacus' own scheduler, which the accountant follows."""
    schedule = StepNoise(training.optimizer, step_size=3, gamma=0.8)
    for _ in train_epochs(training):
        schedule.step()


@program("EPS-1113", part="loop")
def _schedule_clip_norm(training: Training) -> None:
    """Let C fall by Opacus' own scheduler."""
    schedule = ExponentialGradClip(training.optimizer, gamma=0.8)
    for _ in train_epochs(training):
        schedule.step()


@program("EPS-1132", part="loop")
def _cycle_clip_norm(training: Training) -> None:
    """Let C fall and rise by the number of the epoch."""
    for epoch in train_epochs(training):
        training.optimizer.max_grad_norm = (0.8, 0.6, 0.8, 1.0)[epoch % 4]


@program("EPS-1114", part="make")
def _draw_secure_noise(seed: int) -> Training:
    """Draw noise as secure mode does: four draws, halved, from its own generator."""
    training = make_training(seed)
    training.optimizer.secure_mode = True
    training.optimizer.generator = torch.Generator().manual_seed(seed + 1)
    return training


@program("EPS-1125", part="make")
def _resume(seed: int) -> Training:
    """Resume from Opacus' own checkpoint, including the accountant."""
    first = make_training(seed, inner=make_adam)
    train(first)
    file = BytesIO()
    first.engine.save_checkpoint(path=file, module=first.model, optimizer=first.optimizer)
    file.seek(0)
    second = make_training(seed, inner=make_adam, epochs=3)
    torch.manual_seed(seed + 1)  # or batches and noise would repeat
    second.engine.load_checkpoint(path=file, module=second.model, optimizer=second.optimizer)
    return second


# Other optimisers.


@program("EPS-1111", part="factors")
def _clip_automatically(optimizer: Any, rows: list[Any]) -> list[Any]:
    """Normalise every record to C (Bu et al. 2023)."""
    return [optimizer.max_grad_norm / (measure_norms(rows) + 0.01)] * len(rows)


@program("EPS-1122", part="kind")
class _StepTwice(DPOptimizer):
    """Applies every noisy gradient twice: that is post-processing."""

    def step(self, closure: Any = None) -> Any:
        if self.pre_step():
            self.original_optimizer.step()
            self.original_optimizer.step()


@program("EPS-1123", part="kind")
class _ClipAfterNoise(DPOptimizer):
    """Clips the noisy gradient before it is applied: that is post-processing."""

    def step(self, closure: Any = None) -> Any:
        if self.pre_step():
            nn.utils.clip_grad_norm_(self.params, 0.5)
            self.original_optimizer.step()


@program("EPS-1126", part="inner", loss_reduction="sum")
def _make_slow_sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return SGD for sums of losses, which are 25 times their means."""
    return torch.optim.SGD(parameters, lr=0.004)


program("EPS-1129", part="sigma")(lambda _, sigma: 1.2 * sigma)

# Other networks.


@program("EPS-1115", part="network")
class _Half(nn.Module):
    """The network in bfloat16, for features in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_network().to(torch.bfloat16)

    def forward(self, features: Any) -> Any:
        return self.layers(features.to(torch.bfloat16)).float()


@program("EPS-1117", part="network")
class _LowRank(nn.Module):
    """A frozen layer with two parallel low-rank trainable ones, as in LoRA, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(FEATURES, 40).requires_grad_(False)
        self.down = nn.Linear(FEATURES, 8, bias=False)
        self.up = nn.Linear(8, 40, bias=False)
        self.head = nn.Linear(40, CLASSES)

    def forward(self, features: Any) -> Any:
        return self.head(torch.tanh(self.frozen(features) + self.up(self.down(features))))


@program("EPS-1118", part="network")
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


@program("EPS-1120", part="network")
def _make_with_dropout() -> nn.Module:
    first, second, *rest = make_network().children()
    return nn.Sequential(first, second, nn.Dropout(0.2), *rest)


@program("EPS-1121", part="network")
def _make_with_layer_norm() -> nn.Module:
    """Return the network with LayerNorm, which does not mix records."""
    first, *rest = make_network().children()
    return nn.Sequential(first, nn.LayerNorm(40), *rest)


# Other loops and losses.


@program(
    "EPS-1119",
    part="loop",
    inner=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
)
def _schedule_learning_rate(training: Training) -> None:
    """Let the learning rate fall."""
    rates = torch.optim.lr_scheduler.StepLR(training.before["optimizer"], step_size=1, gamma=0.8)
    for _ in train_epochs(training):
        rates.step()


@program("EPS-1124", part="loop")
def _average_weights(training: Training) -> None:
    """Keep a moving average of the weights, and continue from it after every epoch."""
    weights = list(training.model.parameters())
    means = [p.detach().clone() for p in weights]
    take_plain_step = training.step

    def step(training: Training, features: Any, labels: Any) -> None:
        take_plain_step(training, features, labels)
        for mean, p in zip(means, weights, strict=True):
            mean.lerp_(p.detach(), 0.1)

    training.step = step
    for _ in train_epochs(training):
        with torch.no_grad():
            for mean, p in zip(means, weights, strict=True):
                p.copy_(mean)


@program("EPS-1128", part="loop")
def _validate_every_epoch(training: Training) -> None:
    """Evaluate other records between epochs, without gradients."""
    others = torch.randn(50, FEATURES)
    for _ in train_epochs(training):
        training.model.eval()
        with torch.no_grad():
            training.model(others)
        training.model.train()


@program("EPS-1130", part="loss")
def _average_augmentations(model: Any, features: Any, labels: Any) -> Any:
    """Average the losses of four views of a record: one gradient per record."""
    losses = [
        nn.functional.cross_entropy(model(features + 0.1 * turn), labels) for turn in range(4)
    ]
    return sum(losses) / 4


@program("EPS-1131", part="step")
def _compute_in_bfloat16(training: Training, features: Any, labels: Any) -> None:
    """Let torch compute the forward pass in bfloat16, of a model in float32."""
    training.optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = training.loss(training.model, features, labels)
    loss.backward()
    training.optimizer.step()
