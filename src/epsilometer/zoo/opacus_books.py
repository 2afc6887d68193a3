"""List training runs with Opacus whose batches or steps are not the ones on the books."""

# mypy: allow-subclassing-any, allow-untyped-calls

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import torch
from opacus.data_loader import DPDataLoader  # type: ignore[import-untyped]
from opacus.optimizers import (  # type: ignore[import-untyped]
    AdaClipDPOptimizer,
    DPOptimizer,
)
from torch.utils.data import DataLoader, Sampler, TensorDataset, WeightedRandomSampler

from epsilometer.zoo.opacus_training import (
    Training,
    make_training,
    program,
    take_step,
    train,
    train_epochs,
)

ADAPTIVE: dict[str, Any] = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 4.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 1.0,
}


def draw_rarely(data: TensorDataset, _: int) -> DataLoader[Any]:
    """Draw at rate 1/60, so that one batch in twelve is empty."""
    loader: DataLoader[Any] = DPDataLoader(data, sample_rate=1 / 60)
    return loader


RARELY: dict[str, Any] = {
    "make_loader": draw_rarely,
    "poisson_sampling": False,  # the loader draws so already
    "records": 150,  # 149, 150 and 151 give the same ⌊n·q⌋
    "epochs": 1,
}


def make_adam(parameters: Any) -> torch.optim.Optimizer:
    """Return Adam, whose state counts its steps."""
    return torch.optim.Adam(parameters, lr=0.01)


# Batches: how they are drawn.

program("EPS-0161", part="loop", poisson_sampling=False)(train)  # the accountant is not told


@program("EPS-0162", part="make_loader", poisson_sampling=False)
def _drop_last_batch(data: TensorDataset, size: int) -> DataLoader[Any]:
    return DataLoader(data, size, shuffle=True, drop_last=True)


@program("EPS-0163", part="make_loader", poisson_sampling=False)
def _keep_order(data: TensorDataset, size: int) -> DataLoader[Any]:
    return DataLoader(data, size)


class _FixedSize(Sampler[list[int]]):
    """Draws batches of a fixed size, each without replacement."""

    def __init__(self, data: TensorDataset, size: int) -> None:
        self.records, self.size = len(data), size

    def __len__(self) -> int:
        return math.ceil(self.records / self.size)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield self.draw().tolist()

    def draw(self) -> Any:
        """Draw one batch."""
        return torch.randperm(self.records)[: self.size]


@program("EPS-0164", part="make_loader", poisson_sampling=False)
def _draw_fixed_size(data: TensorDataset, size: int) -> DataLoader[Any]:
    """Draw every batch freshly, but with a fixed size."""
    return DataLoader(data, batch_sampler=_FixedSize(data, size))


@program("EPS-0165", part="make_loader", poisson_sampling=False)
def _weigh_records(data: TensorDataset, size: int) -> DataLoader[Any]:
    """Draw one class more often, by torch's own sampler."""
    weights = torch.where(data.tensors[1] == 0, 5.0, 1.0)
    return DataLoader(data, size, sampler=WeightedRandomSampler(weights.tolist(), len(data)))


class _TwoRates(_FixedSize):
    """Draws by Poisson sampling, the first half of the records at twice the rate of the others."""

    def draw(self) -> Any:
        rates = torch.full((self.records,), 1 / len(self) * 2 / 3)
        rates[: self.records // 2] *= 2
        return (torch.rand(self.records) < rates).nonzero().flatten()


@program("EPS-0166", part="make_loader", epochs=12, poisson_sampling=False)
def _draw_at_two_rates(data: TensorDataset, size: int) -> DataLoader[Any]:
    """Draw half of the records more often, at the same mean rate."""
    return DataLoader(data, batch_sampler=_TwoRates(data, size))


# Batches: what becomes of them.


@program("EPS-0167", part="loop")
def _use_old_loader(training: Training) -> None:
    for _ in range(training.epochs):
        for features, labels in training.before["loader"]:
            take_step(training, features, labels)


@program("EPS-0168", part="step", epochs=3)
def _use_batches_twice(training: Training, features: Any, labels: Any) -> None:
    """Take two steps on every batch, which the accountant counts as two draws."""
    take_step(training, features, labels)
    take_step(training, features, labels)


@program("EPS-0169", part="step", **RARELY)
def _skip_empty_batches(training: Training, features: Any, labels: Any) -> None:
    """Skip the step of an empty batch: the number of steps reveals which batches were empty."""
    if len(features):
        take_step(training, features, labels)


@program("EPS-0170", part="loop")
def _accumulate_two_draws(training: Training) -> None:
    """Accumulate two draws, booked as one at twice the rate: a record may be in both."""
    training.model.allow_grad_accumulation()
    for _ in range(training.epochs):
        for number, (features, labels) in enumerate(training.loader):
            training.loss(training.model, features, labels).backward()
            if number % 2:
                training.optimizer.step()
                training.optimizer.zero_grad()
        training.optimizer.zero_grad()


@program("EPS-0171", part="step")
def _cut_large_batches(training: Training, features: Any, labels: Any) -> None:
    """Truncate batches to 20 records: if a record is missing, another takes its place."""
    take_step(training, features[:20], labels[:20])


@program("EPS-0172", part="loop")
def _cycle_loader(training: Training) -> None:
    """Continue with ``itertools.cycle``, which repeats the batches of the first epoch."""
    batches = cycle(training.loader)
    for _ in range(training.epochs * len(training.loader)):
        training.step(training, *next(batches))


@program("EPS-0173", part="step")
def _leave_out_large_batches(training: Training, features: Any, labels: Any) -> None:
    """Skip batches that do not fit into memory: steps reveal how many records were drawn."""
    if len(features) <= 26:
        take_step(training, features, labels)


# Books.


@program("EPS-0181", part="prepare")
def _book_lower_rate(training: Training) -> None:
    hook = training.engine.accountant.get_optimizer_hook_fn(sample_rate=1 / 110)
    training.optimizer.attach_step_hook(hook)


@program("EPS-0182", part="loop")
def _replace_hook(training: Training) -> None:
    """Attach a hook that logs: there is only one, and it was the accountant's."""
    norms: list[float] = []
    training.optimizer.attach_step_hook(
        lambda optimizer: norms.append(float(optimizer.params[0].grad.norm()))
    )
    train(training)


@program("EPS-0183", part="loop")
def _detach_hook(training: Training) -> None:
    """Train one epoch, then remove the accountant's hook."""
    for _ in train_epochs(training):
        training.optimizer.step_hook = None


@program("EPS-0184", part="loop")
def _cut_history(training: Training) -> None:
    for epoch in train_epochs(training):
        if epoch == training.epochs - 2:
            training.engine.accountant.history = []


@program("EPS-0185", part="loop")
def _pop_history(training: Training) -> None:
    """Ask for ε after every epoch, when Opacus 1.3 removed the last entry of the history."""
    for epoch in train_epochs(training):
        if epoch < training.epochs - 1:
            training.engine.accountant.history.pop()


@program("EPS-0186", part="make")
def _forget_books(seed: int) -> Training:
    """Resume with the weights and the optimiser's state, but with a new accountant."""
    first = make_training(seed, inner=make_adam)
    train(first)
    second = make_training(seed, inner=make_adam, epochs=2)
    torch.manual_seed(seed + 1)  # or batches and noise would repeat
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    return second


class _BookEffectiveSigma(AdaClipDPOptimizer):
    """Adds noise of the booked σ, and also releases the count of unclipped records."""

    unclipped_num: Any

    def add_noise(self) -> None:
        DPOptimizer.add_noise(self)
        count = float(self.unclipped_num)
        self.unclipped_num = count + self.unclipped_num_std * torch.randn(())


@program("EPS-0187", part="prepare", kind=_BookEffectiveSigma, **ADAPTIVE)
def _book_effective_sigma(training: Training) -> None:
    """Book the larger σ of the gradients, as if releasing the count cost nothing."""
    asked, count = training.optimizer.noise_multiplier, training.optimizer.unclipped_num_std
    training.optimizer.noise_multiplier = (asked**-2 - (2 * count) ** -2) ** -0.5


# Updates.


@program("EPS-0191", part="loop")
def _warm_up(training: Training) -> None:
    """Train one epoch with the optimiser from before ``make_private``, then privately."""
    training.step = _take_plain_step
    for _ in train_epochs(training):
        training.step = take_step


@program("EPS-0192", part="loop")
def _leave_some_steps_plain(training: Training) -> None:
    """Take every tenth step with the optimiser from before ``make_private``."""
    for _ in range(training.epochs):
        for number, (features, labels) in enumerate(training.loader):
            (_take_plain_step if number == 9 else take_step)(training, features, labels)


@program("EPS-0193", part="step")
def _take_plain_step(training: Training, features: Any, labels: Any) -> None:
    """Take a step with the optimiser from before ``make_private``."""
    training.optimizer.zero_grad()
    training.loss(training.model, features, labels).backward()
    training.before["optimizer"].step()


@program("EPS-0194", part="loop")
def _tune_last_layer(training: Training) -> None:
    """Train the last layer by a second optimiser as well, without noise."""
    last = list(training.model.parameters())[-2:]
    second = torch.optim.SGD(last, lr=0.01)
    for _ in range(training.epochs):
        for features, labels in training.loader:
            training.optimizer.zero_grad()
            training.loss(training.model, features, labels).backward()
            second.step()
            training.optimizer.step()


@program("EPS-0195", part="loop")
def _keep_class_means(training: Training) -> None:
    """Set the last bias to the frequencies of classes after every epoch."""
    labels = training.loader.dataset.tensors[1]
    for _ in train_epochs(training):
        with torch.no_grad():
            shares = torch.bincount(labels, minlength=4) / len(labels)
            list(training.model.parameters())[-1].copy_(shares.log())


def step_by_closure(training: Training, features: Any, labels: Any) -> None:
    """Give the optimiser a closure, as Lightning does."""

    def closure() -> Any:
        training.optimizer.zero_grad()
        loss = training.loss(training.model, features, labels)
        loss.backward()
        return loss

    training.optimizer.step(closure)


@program("EPS-0196", part="kind", step=step_by_closure)
class _CallClosureAgain(DPOptimizer):
    """Passes the closure on, which computes the gradients again without noise."""

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        return self.original_optimizer.step(closure) if self.pre_step() else None
