"""List trainings with Opacus whose batches or steps are not the ones on the books."""

# mypy: allow-subclassing-any, allow-untyped-calls

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from epsilometer._extras import needs
from epsilometer.zoo.opacus_training import (
    Training,
    describe_training,
    make_training,
    take_step,
    train,
)

with needs("opacus", extra="opacus"):
    from opacus.data_loader import DPDataLoader  # type: ignore[import-untyped]
    from opacus.optimizers import (  # type: ignore[import-untyped]
        AdaClipDPOptimizer,
        DPOptimizer,
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


# Batches.


def keep_shuffling(seed: int) -> Training:
    """Turn Poisson sampling off; the accountant is not told."""
    return make_training(seed, poisson_sampling=False)


def drop_last_batch(seed: int) -> Training:
    """Shuffle, and leave out the last batch, which is smaller."""
    return make_training(
        seed,
        poisson_sampling=False,
        make_loader=lambda data, size: DataLoader(data, size, shuffle=True, drop_last=True),
    )


def keep_order(seed: int) -> Training:
    """Go through the records in order."""
    return make_training(seed, poisson_sampling=False, make_loader=DataLoader)


class FixedSize(Sampler[list[int]]):
    """Draws batches of a fixed size, each without replacement."""

    def __init__(self, records: int, size: int) -> None:
        self.records, self.size = records, size

    def __len__(self) -> int:
        return math.ceil(self.records / self.size)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield torch.randperm(self.records)[: self.size].tolist()


def draw_fixed_size(seed: int) -> Training:
    """Draw every batch anew, but of a fixed size."""
    return make_training(
        seed,
        poisson_sampling=False,
        make_loader=lambda data, size: DataLoader(data, batch_sampler=FixedSize(len(data), size)),
    )


def weigh_records(seed: int) -> Training:
    """Draw one class more often, by torch's own sampler."""

    def make_loader(data: TensorDataset, size: int) -> DataLoader[Any]:
        weights = torch.where(data.tensors[1] == 0, 5.0, 1.0)
        return DataLoader(data, size, sampler=WeightedRandomSampler(weights.tolist(), len(data)))

    return make_training(seed, poisson_sampling=False, make_loader=make_loader)


class TwoRates(Sampler[list[int]]):
    """Draws by Poisson sampling, the first half of the records at twice the rate of the others."""

    def __init__(self, records: int, rate: float) -> None:
        self.rates = torch.full((records,), rate * 2 / 3)
        self.rates[: records // 2] *= 2
        self.steps = round(1 / rate)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            yield (torch.rand(len(self.rates)) < self.rates).nonzero().flatten().tolist()


def draw_at_two_rates(seed: int) -> Training:
    """Draw half of the records more often, at the same mean rate."""
    return make_training(
        seed,
        epochs=12,
        poisson_sampling=False,
        make_loader=lambda data, size: DataLoader(
            data, batch_sampler=TwoRates(len(data), 1 / math.ceil(len(data) / size))
        ),
    )


def use_old_loader(training: Training) -> None:
    """Train on the loader from before ``make_private``."""
    for _ in range(training.epochs):
        for features, labels in training.before["loader"]:
            take_step(training, features, labels)


def use_batches_twice(training: Training) -> None:
    """Take two steps on every batch, which the accountant takes for two draws."""
    for _ in range(training.epochs // 2):
        for features, labels in training.loader:
            take_step(training, features, labels)
            take_step(training, features, labels)


def skip_empty_batches(training: Training) -> None:
    """Take no step where nothing was drawn: who sees the steps sees which batches were empty."""
    for _ in range(training.epochs):
        for features, labels in training.loader:
            if len(features):
                take_step(training, features, labels)


def accumulate_two_draws(training: Training) -> None:
    """Add up two draws, booked as one of twice the rate: a record may be in both."""
    training.model.allow_grad_accumulation()
    for _ in range(training.epochs):
        for number, (features, labels) in enumerate(training.loader):
            training.loss(training.model, features, labels).backward()
            if number % 2:
                training.optimizer.step()
                training.optimizer.zero_grad()
        training.optimizer.zero_grad()


def cut_large_batches(training: Training) -> None:
    """Cut batches off at 20 records: without a record another one takes its place."""
    for _ in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features[:20], labels[:20])


# Books.


def book_lower_rate(seed: int) -> Training:
    """Book a tenth of the rate."""
    training = make_training(seed)
    hook = training.engine.accountant.get_optimizer_hook_fn(sample_rate=1 / 110)
    training.optimizer.attach_step_hook(hook)
    return training


def replace_hook(training: Training) -> None:
    """Attach a hook that logs: there is only one, and it was the accountant's."""
    norms: list[float] = []
    training.optimizer.attach_step_hook(
        lambda optimizer: norms.append(float(optimizer.params[0].grad.norm()))
    )
    train(training)


def detach_hook(training: Training) -> None:
    """Train one epoch, then take the accountant's hook off."""
    for epoch in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features, labels)
        if epoch == 0:
            training.optimizer.step_hook = None


def cut_history(training: Training) -> None:
    """Empty the books before the last epoch."""
    for epoch in range(training.epochs):
        if epoch == training.epochs - 1:
            training.engine.accountant.history = []
        for features, labels in training.loader:
            take_step(training, features, labels)


def pop_history(training: Training) -> None:
    """Ask for ε after every epoch as Opacus 1.3 answered: by taking the last entry off."""
    for epoch in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features, labels)
        if epoch < training.epochs - 1:
            training.engine.accountant.history.pop()


def forget_books(seed: int) -> Training:
    """Resume with the weights and the optimiser's state, but with a new accountant."""
    first = make_training(seed, inner=make_adam)
    train(first)
    second = make_training(seed, inner=make_adam, epochs=2)
    torch.manual_seed(seed + 1)  # or batches and noise would repeat
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    return second


class _BookEffectiveSigma(AdaClipDPOptimizer):
    """Adds noise of the σ that is on the books, and tells the count of unclipped records beside."""

    unclipped_num: Any

    def add_noise(self) -> None:
        DPOptimizer.add_noise(self)
        told = float(self.unclipped_num)
        self.unclipped_num = told + self.unclipped_num_std * torch.randn(())


def book_effective_sigma(seed: int) -> Training:
    """Book the σ of the gradients, larger than asked for, as if the count cost nothing."""
    training = make_training(seed, kind=_BookEffectiveSigma, **ADAPTIVE)
    asked, count = training.optimizer.noise_multiplier, training.optimizer.unclipped_num_std
    training.optimizer.noise_multiplier = (asked**-2 - (2 * count) ** -2) ** -0.5
    return training


# Updates.


def warm_up(training: Training) -> None:
    """Train one epoch with the optimiser from before ``make_private``, then privately."""
    for epoch in range(training.epochs):
        for features, labels in training.loader:
            if epoch == 0:
                _take_plain_step(training, features, labels)
            else:
                take_step(training, features, labels)


def leave_some_steps_plain(training: Training) -> None:
    """Take every tenth step with the optimiser from before ``make_private``."""
    for _ in range(training.epochs):
        for number, (features, labels) in enumerate(training.loader):
            if number == 9:
                _take_plain_step(training, features, labels)
            else:
                take_step(training, features, labels)


def never_train_privately(training: Training) -> None:
    """Train with the optimiser from before ``make_private`` only."""
    for _ in range(training.epochs):
        for features, labels in training.loader:
            _take_plain_step(training, features, labels)


def tune_last_layer(training: Training) -> None:
    """Train the last layer by a second optimiser as well, without noise."""
    last = list(training.model.parameters())[-2:]
    second = torch.optim.SGD(last, lr=0.01)
    for _ in range(training.epochs):
        for features, labels in training.loader:
            training.optimizer.zero_grad()
            training.loss(training.model, features, labels).backward()
            second.step()
            training.optimizer.step()


def keep_class_means(training: Training) -> None:
    """Set the last bias to the frequencies of classes after every epoch."""
    labels = training.loader.dataset.tensors[1]
    for _ in range(training.epochs):
        for features, own in training.loader:
            take_step(training, features, own)
        with torch.no_grad():
            shares = torch.bincount(labels, minlength=4) / len(labels)
            list(training.model.parameters())[-1].copy_(shares.log())


class _CallClosureAgain(DPOptimizer):
    """Hands the closure on, which computes the gradients anew: without noise."""

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        return self.original_optimizer.step(closure) if self.pre_step() else None


def train_by_closure(training: Training) -> None:
    """Give the optimiser a closure, as Lightning does."""
    for _ in range(training.epochs):
        for features, labels in training.loader:

            def closure(features: Any = features, labels: Any = labels) -> Any:
                training.optimizer.zero_grad()
                loss = training.loss(training.model, features, labels)
                loss.backward()
                return loss

            training.optimizer.step(closure)


def _take_plain_step(training: Training, features: Any, labels: Any) -> None:
    training.optimizer.zero_grad()
    training.loss(training.model, features, labels).backward()
    training.before["optimizer"].step()


SAMPLING = (
    describe_training(
        "EPS-0161",
        "shuffling accounted as Poisson sampling",
        keep_shuffling,
        make=keep_shuffling,
        breaks="sampling",
        seen="private-transformers (issue 7), Opacus' LoRA tutorial (pull request 830)",
    ),
    describe_training(
        "EPS-0162",
        "shuffling that drops the last batch",
        drop_last_batch,
        make=drop_last_batch,
        breaks="sampling",
    ),
    describe_training(
        "EPS-0163", "records in order", keep_order, make=keep_order, breaks="sampling"
    ),
    describe_training(
        "EPS-0164",
        "batches of a fixed size",
        draw_fixed_size,
        make=draw_fixed_size,
        breaks="sampling",
        seen="Opacus before 0.12 (issue 80, pull request 128)",
    ),
    describe_training(
        "EPS-0165",
        "a class drawn more often",
        weigh_records,
        make=weigh_records,
        breaks="sampling",
        seen="asked for in Opacus issue 600",
    ),
    describe_training(
        "EPS-0166",
        "records drawn at two rates",
        draw_at_two_rates,
        make=draw_at_two_rates,
        breaks="sampling",
    ),
    describe_training(
        "EPS-0167", "loader from before make_private", use_old_loader, breaks="sampling"
    ),
    describe_training("EPS-0168", "two steps on every batch", use_batches_twice, breaks="sampling"),
    describe_training(
        "EPS-0169",
        "no step where nothing was drawn",
        skip_empty_batches,
        breaks="sampling",
        seen="asked for in Opacus issue 161",
        **RARELY,
    ),
    describe_training(
        "EPS-0170",
        "two draws accumulated into one step",
        accumulate_two_draws,
        breaks="sampling",
        seen="asked for in Opacus issue 320",
    ),
    describe_training(
        "EPS-0171", "batches cut off at 20 records", cut_large_batches, breaks="sampling"
    ),
)
BOOKS = (
    describe_training(
        "EPS-0181",
        "a tenth of the rate on the books",
        book_lower_rate,
        make=book_lower_rate,
        breaks="books",
    ),
    describe_training("EPS-0182", "accountant's hook replaced", replace_hook, breaks="books"),
    describe_training("EPS-0183", "accountant's hook taken off", detach_hook, breaks="books"),
    describe_training(
        "EPS-0184", "books emptied before the last epoch", cut_history, breaks="books"
    ),
    describe_training(
        "EPS-0185",
        "books lost by asking for ε",
        pop_history,
        breaks="books",
        seen="Opacus 1.0 to 1.3 (issue 535)",
    ),
    describe_training(
        "EPS-0186", "books lost on resume", forget_books, make=forget_books, breaks="books"
    ),
    describe_training(
        "EPS-0187",
        "adaptive clipping whose count is not booked",
        book_effective_sigma,
        make=book_effective_sigma,
        breaks="books",
        seen="Opacus 1.1.3 to 1.5.4 (pull request 807)",
    ),
    describe_training("EPS-0191", "first epoch without privacy", warm_up, breaks="updates"),
    describe_training(
        "EPS-0192", "every tenth step without privacy", leave_some_steps_plain, breaks="updates"
    ),
    describe_training("EPS-0193", "no private step", never_train_privately, breaks="updates"),
    describe_training(
        "EPS-0194", "last layer trained by a second optimiser", tune_last_layer, breaks="updates"
    ),
    describe_training(
        "EPS-0195", "last bias set to class frequencies", keep_class_means, breaks="updates"
    ),
    describe_training(
        "EPS-0196",
        "gradients computed anew after noise",
        _CallClosureAgain,
        breaks="updates",
        seen="Opacus 1.0 and 1.0.1 (pull request 330, issue 313)",
        loop=train_by_closure,
    ),
)
