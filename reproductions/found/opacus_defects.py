"""Measure defects of released versions of Opacus: five that were fixed, and one that was not.

    pip install --no-deps --target OLD opacus==1.5.2
    PYTHONPATH=OLD python reproductions/found/opacus_defects.py

Each is one step of a small network with the installed Opacus. Nothing of epsilometer is used:
`replay` needs Opacus 1.6. What a version does not have is left out.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLIP, RECORDS = 0.5, 16


class SequenceNet(nn.Module):
    """A linear layer over the ten positions of a record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scores of each record, averaged over its positions."""
        scores: torch.Tensor = self.layer(inputs).mean(dim=1)
        return scores


def set_up(*, noise: float = 0.0, **given: Any) -> tuple[Any, ...]:
    """Return the engine and what ``make_private`` returned, for 16 records in one batch."""
    torch.manual_seed(0)
    model = SequenceNet()
    records = TensorDataset(torch.randn(RECORDS, 10, 3), torch.randint(2, (RECORDS,)))
    if given.get("grad_sample_mode") == "ghost":
        if hasattr(PrivacyEngine, "_prepare_criterion"):
            given["criterion"] = nn.CrossEntropyLoss()
        else:  # up to Opacus 1.5.2
            given["clipping"] = "ghost"
    engine = PrivacyEngine(accountant="rdp")
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(records, batch_size=RECORDS),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
        poisson_sampling=False,  # epsilometer: ignore[SHUF001] one step of all records
        **given,
    )
    return engine, *made


def go_back(made: tuple[Any, ...], inputs: Any, labels: Any) -> None:
    """Clip and sum gradients by ghost clipping, as the installed version does it."""
    _, model, optimizer, *criterion, _ = made
    if criterion:
        criterion[0](model(inputs), labels).backward()
    else:  # up to Opacus 1.5.2
        from opacus.utils.fast_gradient_clipping_utils import double_backward

        losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
        double_backward(model, optimizer, losses)


def release_sum(made: tuple[Any, ...], parts: list[tuple[Any, Any]]) -> Any:
    """Take one step on physical batches, without noise; return the sum of clipped gradients."""
    _, model, optimizer, *_ = made
    before = [weight.detach().clone() for weight in model.parameters()]
    for number, (inputs, labels) in enumerate(parts, 1):
        optimizer.signal_skip_step(do_skip=number < len(parts))
        optimizer.zero_grad()
        go_back(made, inputs, labels)
        optimizer.step()
    moved = zip(before, model.parameters(), strict=True)
    change = torch.cat([(old - new).detach().flatten() for old, new in moved])
    return change * optimizer.expected_batch_size


def make_loud(model: Any, records: int) -> tuple[Any, Any]:
    """Return records whose gradients are far larger than C: large, and labelled wrongly."""
    inputs = 100 * torch.randn(records, 10, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = model(inputs).argmin(dim=1)
    return inputs, labels


def measure_ghost() -> float:
    """Ghost clipping as ``make_private`` sets it up: what a record adds, in C."""
    made = set_up(grad_sample_mode="ghost")
    return float(release_sum(made, [make_loud(made[1], 1)]).norm() / CLIP)


def set_up_ghost() -> tuple[Any, ...]:
    """Set ghost clipping up, with the norm that 1.5.2 does not hand to the module."""
    made = set_up(grad_sample_mode="ghost")
    made[1].max_grad_norm = CLIP
    return made


def measure_schedule() -> float:
    """Ghost clipping after one step of ``ExponentialGradClip``: what a record adds, in C."""
    from opacus.schedulers import ExponentialGradClip

    made = set_up_ghost()
    ExponentialGradClip(made[2], gamma=0.7).step()
    return float(release_sum(made, [make_loud(made[1], 1)]).norm() / made[2].max_grad_norm)


def measure_parts() -> float:
    """Ghost clipping in two physical batches: what a record of the last adds, in C."""
    sums = []
    for end in (8, 7):
        made = set_up_ghost()
        inputs, labels = make_loud(made[1], 8)
        parts = [(inputs[:4], labels[:4]), (inputs[4:end], labels[4:end])]
        sums.append(release_sum(made, parts))
    return float((sums[0] - sums[1]).norm() / CLIP)


def measure_bias_norms() -> float:
    """Ghost clipping of a record that only the bias sees: what it adds, in C."""
    batch = (torch.zeros(1, 10, 3), torch.tensor([0]))
    made = set_up_ghost()
    return float(release_sum(made, [batch]).norm() / CLIP)


def measure_closure() -> float:
    """``step(closure)`` with gradients of 0: standard deviation of the update, in σC."""
    _, model, optimizer, loader = set_up(noise=1.0)
    inputs, labels = next(iter(loader))

    def read_weights() -> Any:
        return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])

    def closure() -> Any:
        optimizer.zero_grad()
        loss = 0 * nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    steps = [read_weights()]
    for _ in range(500):
        closure()
        optimizer.step(closure)
        steps.append(read_weights())
    return float(torch.stack(steps).diff(dim=0).std() * optimizer.expected_batch_size / CLIP)


def measure_adaptive_books() -> float:
    """Adaptive clipping: σ in the books, over the σ that was asked for."""
    engine, model, optimizer, loader = set_up(
        noise=1.0,
        clipping="adaptive",
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.01,
        unclipped_num_std=RECORDS / 20,  # as the paper of adaptive clipping advises
    )
    inputs, labels = next(iter(loader))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    booked, _, _ = engine.accountant.history[-1]
    return float(booked)


MEASURES: dict[str, Callable[[], float]] = {
    "ghost clipping: a record adds, in C": measure_ghost,
    "ghost clipping with a schedule of C: a record adds, in C": measure_schedule,
    "ghost clipping in physical batches: a record adds, in C": measure_parts,
    "ghost clipping of biases of sequences: a record adds, in C": measure_bias_norms,
    "noise left by a closure, in σC": measure_closure,
    "σ in the books of adaptive clipping, in σ": measure_adaptive_books,
}


def measure_all() -> dict[str, float | str]:
    """Measure each; right is 1, and for ghost clipping at most 1. A version may lack some."""
    found: dict[str, float | str] = {}
    for name, measure in MEASURES.items():
        with warnings.catch_warnings(action="ignore"):
            try:
                found[name] = measure()
            except Exception as error:  # releases before a feature fail each in its own way
                found[name] = f"cannot be run: {type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    import opacus

    print(f"Opacus {opacus.__version__}, torch {torch.__version__}")
    for name, value in measure_all().items():
        print(f"{name}: {value if isinstance(value, str) else format(value, '.3f')}")
