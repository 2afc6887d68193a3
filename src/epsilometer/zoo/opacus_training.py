"""Provide the small Opacus training run that programs change in one part.

255 records of 16 numbers in 4 classes, a network of 1,764 parameters, σ = 1, C = 1, Poisson
sampling at rate 1/11, 66 steps: everything that a program does not change.
"""

# mypy: allow-subclassing-any, allow-untyped-calls

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from opacus import PrivacyEngine  # type: ignore[import-untyped]
from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]
from opacus.utils.batch_memory_manager import (  # type: ignore[import-untyped]
    BatchMemoryManager,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer.zoo.program import Register

FEATURES, CLASSES = 16, 4
RECORDS = 255  # 254, 255 and 256 records give the same batches in an epoch and the same ⌊n·q⌋
BATCH_SIZE = 25
EPOCHS = 6
CHANGES = ("sigma", "change_noise", "factors")  # of an optimiser
PART = 8  # records in a physical batch, where batches are split

Loss: TypeAlias = Callable[[Any, Any, Any], Any]


@dataclass(kw_only=True)
class Training:
    """Hold private training that is ready to ``run``.

    Attributes:
        engine: The ``PrivacyEngine``.
        model: What ``make_private`` returned.
        optimizer: What ``make_private`` returned, changed where the program changes it.
        loader: What ``make_private`` returned.
        loss: Called as ``loss(model, features, labels)``.
        loop: What ``run`` calls, with the training.
        step: What the loop calls on every batch, with the training, features and labels.
        set_up: Sets the same training up on another dataset; returns what ``make_private`` does.
        epochs: How many times the loop goes through the loader.
        own_loss: The program's own loss; None for that of the criterion.
        before: The loader and the optimiser before ``make_private``.
    """

    engine: Any
    model: Any
    optimizer: Any
    loader: Any
    loss: Loss
    loop: Callable[["Training"], None]
    step: Callable[["Training", Any, Any], None]
    set_up: Callable[[Any], tuple[Any, ...]]
    epochs: int = EPOCHS
    own_loss: Loss | None = None
    before: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Train like the program."""
        self.loop(self)

    def take_batch(self, size: int = 24) -> tuple[Any, Any]:
        """Return the first records as a batch, for tools that replay a step."""
        features, labels = self.loader.dataset.tensors
        return features[:size], labels[:size]

    def compute_loss(self, model: Any, batch: Any) -> Any:
        """Return the loss of a batch; None where the program takes its step in parts itself."""
        if self.loop is not train_in_parts:
            return self.loss(model, *batch)
        split_by_hand(self, *batch)
        return None


def train(training: Training) -> None:
    """Train on every batch of the loader, as in any tutorial."""
    for _ in train_epochs(training):
        pass


def train_epochs(training: Training) -> Iterator[int]:
    """Train epoch by epoch; yield the number of each when it is over."""
    for epoch in range(training.epochs):
        for features, labels in training.loader:
            training.step(training, features, labels)
        yield epoch


def train_in_parts(training: Training) -> None:
    """Split batches into physical ones of 8 records."""
    with BatchMemoryManager(
        data_loader=training.loader,
        max_physical_batch_size=PART,
        optimizer=training.optimizer,
    ) as loader:
        for _ in range(training.epochs):
            for features, labels in loader:
                take_step(training, features, labels)


def split_by_hand(training: Training, features: Any, labels: Any) -> None:
    """Accumulate over parts of a batch, by the signals that BatchMemoryManager gives."""
    parts = list(zip(features.split(PART), labels.split(PART), strict=True))
    for number, (part, own) in enumerate(parts, 1):
        training.optimizer.signal_skip_step(do_skip=number < len(parts))
        take_step(training, part, own)


def take_step(training: Training, features: Any, labels: Any) -> None:
    """Take one step on one batch."""
    training.optimizer.zero_grad()
    training.loss(training.model, features, labels).backward()
    training.optimizer.step()


def make_data(seed: int, records: int) -> TensorDataset:
    """Return records of four classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (records,), generator=generator)
    return TensorDataset(
        centres[labels] + 2 * torch.randn(records, FEATURES, generator=generator), labels
    )


def make_network() -> nn.Module:
    """Return a network of 1,764 parameters in six tensors."""
    return nn.Sequential(
        nn.Linear(FEATURES, 40), nn.Tanh(), nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, CLASSES)
    )


def make_sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return plain SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


def measure_norms(rows: list[Any]) -> Any:
    """Return the norm of every record over all tensors."""
    return torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)


def find_factors(optimizer: Any, norms: Any) -> Any:
    """Return the factors that bring these norms down to C."""
    return (optimizer.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)


def change_optimizer(**changes: Callable[..., Any]) -> type:
    """Return an optimiser class with one part changed.

    Args:
        changes: ``sigma(optimizer, booked)`` returns the σ that is used. ``change_noise(optimizer,
            number, noise)`` returns what is added to a tensor. ``factors(optimizer, rows)`` returns
            the factors of all records by tensor, of the gradients of single records.
    """
    sigma, noise, factors = map(changes.get, CHANGES)

    class Changed(DPOptimizer):
        noise_multiplier: float

        def add_noise(self) -> None:
            booked = self.noise_multiplier
            self.noise_multiplier = sigma(self, booked) if sigma else booked
            super().add_noise()
            self.noise_multiplier = booked
            if noise is not None:
                for number, p in enumerate(self.params):
                    own = p.summed_grad.view_as(p)
                    p.grad = own + noise(self, number, p.grad - own)

        def clip_and_accumulate(self) -> None:
            if factors is None:
                super().clip_and_accumulate()
                return
            rows = list(self.grad_samples)
            for p, row, factor in zip(self.params, rows, factors(self, rows), strict=True):
                total = torch.einsum("i,i...", factor, row)
                p.summed_grad = total if p.summed_grad is None else p.summed_grad + total

    return Changed


def shuffle(data: TensorDataset, batch_size: int) -> DataLoader[Any]:
    """Return the loader of any tutorial."""
    return DataLoader(data, batch_size=batch_size, shuffle=True)


def make_training(
    seed: int,
    *,
    kind: type | None = None,
    loop: Callable[[Training], None] = train,
    step: Callable[[Training, Any, Any], None] = take_step,
    prepare: Callable[[Training], None] = lambda _: None,
    loss: Loss | None = None,
    network: Callable[[], nn.Module] = make_network,
    inner: Callable[[Any], torch.optim.Optimizer] = make_sgd,
    noise: float = 1.0,
    clip: Any = 1.0,
    records: int = RECORDS,
    epochs: int = EPOCHS,
    make_loader: Callable[[TensorDataset, int], DataLoader[Any]] = shuffle,
    engine: Any = None,
    **settings: Any,
) -> Training:
    """Return the right training with a program's changes.

    Args:
        seed: Seed of data, weights and batches.
        kind: Class of the optimiser, instead of the one that ``make_private`` chooses.
        loop: How it is trained.
        step: How a batch is.
        prepare: Changes the training after it was made private.
        loss: Called as ``loss(model, features, labels)``; cross-entropy by default.
        network: Makes the network.
        inner: Makes the optimiser that Opacus wraps.
        noise: σ.
        clip: C.
        records: Size of the dataset.
        epochs: How many.
        make_loader: Makes the loader before ``make_private`` from a dataset and a batch size.
        engine: Replaces a new ``PrivacyEngine``.
        settings: More of ``make_private``, or of :func:`change_optimizer`.
    """
    torch.manual_seed(seed)
    changes = {name: settings.pop(name) for name in CHANGES if name in settings}
    if changes:
        kind = change_optimizer(**changes)
    loss_reduction = settings.get("loss_reduction", "mean")

    def set_up(data: Any, before: dict[str, Any]) -> tuple[Any, ...]:
        model = network()
        before["optimizer"] = inner([p for p in model.parameters() if p.requires_grad])
        before["loader"] = make_loader(data, BATCH_SIZE)
        before["engine"] = engine or PrivacyEngine(accountant="rdp")  # the quickest
        made: tuple[Any, ...] = before["engine"].make_private(
            module=model,
            optimizer=before["optimizer"],
            data_loader=before["loader"],
            criterion=nn.CrossEntropyLoss(reduction=loss_reduction),
            noise_multiplier=noise,
            max_grad_norm=clip,
            **settings,
        )
        if kind is not None:
            made[1].__class__ = kind
        return made

    before: dict[str, Any] = {}
    model, optimizer, *criterion, loader = set_up(make_data(seed, records), before)
    # Ghost clipping has a criterion of its own.
    judge = criterion[0] if criterion else nn.CrossEntropyLoss(reduction=loss_reduction)
    training = Training(
        engine=before["engine"],
        model=model,
        optimizer=optimizer,
        loader=loader,
        loss=loss or (lambda model, features, labels: judge(model(features), labels)),
        loop=loop,
        step=step,
        set_up=lambda data: set_up(data, {}),
        epochs=epochs,
        own_loss=loss,
        before=before,
    )
    prepare(training)
    return training


program = Register("opacus", make_training)
