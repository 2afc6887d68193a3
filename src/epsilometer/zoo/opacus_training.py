"""Give the small training with Opacus that programs of the zoo are made from.

255 records of 16 numbers in 4 classes, a network of 1,764 parameters, σ = 1, C = 1, Poisson
sampling at rate 1/11, 66 steps: everything that a program does not change.
"""

# mypy: allow-subclassing-any, allow-untyped-calls

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from epsilometer._extras import needs
from epsilometer.zoo.program import Program

with needs("opacus", extra="opacus"):
    from opacus import PrivacyEngine  # type: ignore[import-untyped]
    from opacus.utils.batch_memory_manager import (  # type: ignore[import-untyped]
        BatchMemoryManager,
    )

FEATURES, CLASSES = 16, 4
RECORDS = 255  # 254, 255 and 256 records give the same batches in an epoch and the same ⌊n·q⌋
BATCH_SIZE = 25
EPOCHS = 6
PART = 8  # records in a physical batch, where batches are split

Loss: TypeAlias = Callable[[Any, Any, Any], Any]


@dataclass(kw_only=True)
class Training:
    """A training that was made private and waits for its ``run``.

    Attributes:
        engine: The ``PrivacyEngine``.
        model: What ``make_private`` returned.
        optimizer: What ``make_private`` returned, changed where the program changes it.
        loader: What ``make_private`` returned.
        loss: Called as ``loss(model, features, labels)``.
        loop: What ``run`` calls, with the training.
        set_up: Sets the same training up on another data set; returns what ``make_private`` does.
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
    set_up: Callable[[Any], tuple[Any, ...]]
    epochs: int = EPOCHS
    own_loss: Loss | None = None
    before: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Train, as the program does it."""
        self.loop(self)

    def take_batch(self, size: int = 24) -> tuple[Any, Any]:
        """Return the first records as a batch, for tools that replay a step."""
        features, labels = self.loader.dataset.tensors
        return features[:size], labels[:size]

    def compute_loss(self, model: Any, batch: Any) -> Any:
        """Return the loss of a batch; None where the program takes its step in parts itself."""
        features, labels = batch
        if self.loop is not train_in_parts:
            return self.loss(model, features, labels)
        parts = list(zip(features.split(PART), labels.split(PART), strict=True))
        for number, (part, own) in enumerate(parts, 1):
            self.optimizer.signal_skip_step(do_skip=number < len(parts))
            take_step(self, part, own)
        return None


def train(training: Training) -> None:
    """Go through the loader as anybody's tutorial does."""
    for _ in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features, labels)


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


def take_step(training: Training, features: Any, labels: Any) -> None:
    """Take one step on one batch."""
    training.optimizer.zero_grad()
    training.loss(training.model, features, labels).backward()
    training.optimizer.step()


def make_data(seed: int, records: int = RECORDS, features: int = FEATURES) -> TensorDataset:
    """Return records of four classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, features, generator=generator)
    labels = torch.randint(CLASSES, (records,), generator=generator)
    return TensorDataset(
        centres[labels] + 2 * torch.randn(records, features, generator=generator), labels
    )


def make_network() -> nn.Module:
    """Return a network of 1,764 parameters in six tensors."""
    return nn.Sequential(
        nn.Linear(FEATURES, 40), nn.Tanh(), nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, CLASSES)
    )


def make_sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return plain SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


def make_training(
    seed: int,
    *,
    kind: type | None = None,
    loop: Callable[[Training], None] = train,
    loss: Loss | None = None,
    network: Callable[[], nn.Module] = make_network,
    inner: Callable[[Any], torch.optim.Optimizer] = make_sgd,
    noise: float = 1.0,
    clip: Any = 1.0,
    records: int = RECORDS,
    batch_size: int = BATCH_SIZE,
    epochs: int = EPOCHS,
    accountant: str = "rdp",  # the quickest
    make_loader: Callable[[TensorDataset, int], DataLoader[Any]] | None = None,
    engine: Any = None,
    **settings: Any,
) -> Training:
    """Return the training that is right, with what a program changes.

    Args:
        seed: Of data, weights and batches.
        kind: Class of the optimiser, in place of the one that ``make_private`` chooses.
        loop: How it is trained.
        loss: Called as ``loss(model, features, labels)``; cross-entropy by default.
        network: Makes the network.
        inner: Makes the optimiser that Opacus wraps.
        noise: σ.
        clip: C.
        records: Size of the data set.
        batch_size: That of the loader before ``make_private``.
        epochs: How many.
        accountant: As of ``PrivacyEngine``.
        make_loader: Makes the loader before ``make_private`` from a data set and a batch size.
        engine: In place of a new ``PrivacyEngine``.
        settings: More of ``make_private``.
    """
    torch.manual_seed(seed)
    loss_reduction = settings.get("loss_reduction", "mean")

    def set_up(data: Any, before: dict[str, Any]) -> tuple[Any, ...]:
        model = network()
        before["optimizer"] = inner([p for p in model.parameters() if p.requires_grad])
        before["loader"] = (make_loader or _shuffle)(data, batch_size)
        before["engine"] = engine or PrivacyEngine(accountant=accountant)
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
    return Training(
        engine=before["engine"],
        model=model,
        optimizer=optimizer,
        loader=loader,
        loss=loss or (lambda model, features, labels: judge(model(features), labels)),
        loop=loop,
        set_up=lambda data: set_up(data, {}),
        epochs=epochs,
        own_loss=loss,
        before=before,
    )


def describe_training(
    id: str,  # noqa: A002 - the field's name
    title: str,
    code: Any,
    *,
    breaks: str = "",
    seen: str = "",
    make: Callable[..., Training] = make_training,
    **changes: Any,
) -> Program:
    """Return the program of a training.

    Args:
        id: As of :class:`Program`.
        title: As of :class:`Program`.
        code: What differs from the training that is right: the class of the optimiser, or a
            function. Functions that are no ``make`` are the loop, unless ``changes`` name them.
        breaks: As of :class:`Program`.
        seen: As of :class:`Program`.
        make: Makes the training from a seed.
        changes: What is given to ``make`` beside the seed.
    """
    if isinstance(code, type) and issubclass(code, torch.optim.Optimizer):
        changes["kind"] = code
    elif code is not make and not any(code is value for value in changes.values()):
        changes["loop"] = code
    named = {name: value for name, value in changes.items() if not callable(value)}
    return Program(
        id=id,
        title=title,
        kind="opacus",
        make=lambda seed: make(seed, **changes),
        code=code,
        settings=", ".join(f"{name}={value!r}" for name, value in named.items()),
        breaks=breaks,
        seen=seen,
    )


def _shuffle(data: TensorDataset, batch_size: int) -> DataLoader[Any]:
    return DataLoader(data, batch_size=batch_size, shuffle=True)
