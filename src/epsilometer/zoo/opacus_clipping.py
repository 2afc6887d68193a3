"""List training runs with Opacus in which one record can change too much."""

# mypy: allow-subclassing-any, allow-untyped-calls

from typing import Any

import torch
from opacus import PrivacyEngine  # type: ignore[import-untyped]
from opacus.grad_sample import GradSampleModule  # type: ignore[import-untyped]
from opacus.optimizers import (  # type: ignore[import-untyped]
    DPOptimizer,
    DPOptimizerFastGradientClipping,
)
from opacus.schedulers import ExponentialGradClip  # type: ignore[import-untyped]
from torch import nn

from epsilometer.zoo.opacus_training import (
    CLASSES,
    FEATURES,
    Training,
    find_factors,
    make_network,
    make_training,
    measure_norms,
    program,
    train,
    train_epochs,
    train_in_parts,
)

# The factors of all records, tensor by tensor.


@program("EPS-0131", part="factors")
def _do_not_clip(optimizer: Any, rows: list[Any]) -> list[Any]:
    return [torch.ones(len(row)) for row in rows]


@program("EPS-0132", part="factors")
def _clip_batch_mean(optimizer: Any, rows: list[Any]) -> list[Any]:
    """Clip the mean of the batch, as ``torch.nn.utils.clip_grad_norm_`` does."""
    mean = measure_norms([row.mean(dim=0, keepdim=True) for row in rows])
    return [find_factors(optimizer, mean).expand(len(row)) for row in rows]


@program("EPS-0133", part="factors")
def _clip_each_tensor(optimizer: Any, rows: list[Any]) -> list[Any]:
    """Clip each tensor to C, so that a record may have C times the root of their number."""
    return [find_factors(optimizer, measure_norms([row])) for row in rows]


@program("EPS-0134", part="factors")
def _clip_all_but_first(optimizer: Any, rows: list[Any]) -> list[Any]:
    """Leave the first layer out, as for an embedding without per-example norms."""
    factor = find_factors(optimizer, measure_norms(rows[2:]))
    return [torch.ones_like(factor)] * 2 + [factor] * (len(rows) - 2)


@program("EPS-0135", part="factors")
def _forget_biases(optimizer: Any, rows: list[Any]) -> list[Any]:
    """Leave biases out of the norm, but not out of the sum."""
    norms = measure_norms([row for row in rows if row.ndim > 2])
    return [find_factors(optimizer, norms)] * len(rows)


@program("EPS-0136", part="factors")
def _clip_largest_entry(optimizer: Any, rows: list[Any]) -> list[Any]:
    largest = torch.stack([row.flatten(1).abs().amax(dim=1) for row in rows]).amax(dim=0)
    return [find_factors(optimizer, largest)] * len(rows)


@program("EPS-0137", part="factors", loop=train_in_parts)
def _clip_last_part(optimizer: Any, rows: list[Any]) -> list[Any]:
    """Clip only in the physical batch that ends a step."""
    norms = measure_norms(rows)
    skipped = optimizer._check_skip_next_step(pop_next=False)
    factor = torch.ones_like(norms) if skipped else find_factors(optimizer, norms)
    return [factor] * len(rows)


@program("EPS-0138", part="factors")
def _stop_clipping(optimizer: Any, rows: list[Any]) -> list[Any]:
    """Clip for 20 steps, until training is stable."""
    norms = measure_norms(rows)
    optimizer.steps = getattr(optimizer, "steps", 0) + 1
    factor = find_factors(optimizer, norms) if optimizer.steps <= 20 else torch.ones_like(norms)
    return [factor] * len(rows)


# Other parts of an optimiser, and of ghost clipping.


@program("EPS-0139", part="kind")
class _ClipPairs(DPOptimizer):
    """Clips sums of two records, as microbatches do, with the accountant of single records."""

    def clip_and_accumulate(self) -> None:
        for p in self.params:
            rows = self._get_flat_grad_sample(p)
            pairs = torch.cat([rows, torch.zeros_like(rows[: len(rows) % 2])])
            p.grad_sample = pairs.unflatten(0, (-1, 2)).sum(dim=1) if len(rows) else rows
        super().clip_and_accumulate()


@program("EPS-0140", part="prepare", clip=0.5, grad_sample_mode="ghost")
def _forget_ghost_clip_norm(training: Training) -> None:
    """Leave the clipping norm of the module at 1, whatever C is."""
    training.model.max_grad_norm = 1.0


@program("EPS-0141", part="kind", loop=train_in_parts, grad_sample_mode="ghost")
class _SumAliasedGradients(DPOptimizerFastGradientClipping):
    """Keeps a reference to ``p.grad`` for the sum: the last physical batch counts twice."""

    def accumulate(self) -> None:
        for p in self.params:
            if p.summed_grad is not None:
                p.summed_grad += p.grad
            else:
                p.summed_grad = p.grad


class _OverTime(nn.Module):
    """The network with features as a sequence of four: its layers see three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES // 4, 120)
        self.last = nn.Linear(120, CLASSES)

    def forward(self, features: Any) -> Any:
        return self.last(torch.tanh(self.first(features.unflatten(1, (4, -1))))).mean(dim=1)


@program("EPS-0142", part="prepare", network=_OverTime, clip=0.1, grad_sample_mode="ghost")
def _misjudge_bias_norms(training: Training) -> None:
    """Compute norms of biases of sequences as Opacus 1.5.3 did: sums of g gᵀ squared."""
    right = training.model.NORM_SAMPLERS[nn.Linear]

    def compute_norms(layer: Any, activations: Any, backprops: Any) -> Any:
        norms = right(layer, activations, backprops)
        products = torch.einsum("nik,njk->nij", backprops, backprops)
        norms[layer.bias] = torch.einsum("n...i,n...i->n", products, products).sqrt()
        return norms

    training.model.NORM_SAMPLERS = {nn.Linear: compute_norms}


@program("EPS-0143", part="loop", grad_sample_mode="ghost")
def _schedule_ghost_clip_norm(training: Training) -> None:
    """Lower C by Opacus' own scheduler: noise follows it, ghost clipping does not."""
    schedule = ExponentialGradClip(training.optimizer, gamma=0.7)
    for _ in train_epochs(training):
        schedule.step()


@program("EPS-0144", part="kind")
class _ClipToMedian(DPOptimizer):
    """Set C to the median norm of the batch, to avoid choosing it."""

    def step(self, closure: Any = None) -> Any:
        if len(self.grad_samples[0]):
            self.max_grad_norm = float(measure_norms(self.grad_samples).median())
        return super().step(closure)


# Sensitivity: what records do to each other.


@program("EPS-0151", part="make")
def _use_batch_norm(seed: int) -> Training:
    """Disable Opacus' validation, and keep BatchNorm."""

    def make() -> nn.Module:
        first, *rest = make_network().children()
        mixed = nn.Sequential(first, nn.BatchNorm1d(40, affine=False), *rest)
        wrapped: nn.Module = GradSampleModule(mixed, strict=False)
        return wrapped

    engine = PrivacyEngine(accountant="rdp")
    engine.validate = lambda **_: None
    return make_training(seed, network=make, engine=engine)


@program("EPS-0152", part="loss")
def _clip_augmentations(model: Any, features: Any, labels: Any) -> Any:
    """Treat each of eight views of a record as a record."""
    views = torch.cat([features + 0.1 * turn for turn in range(8)])
    return nn.functional.cross_entropy(model(views), labels.repeat(8))


@program("EPS-0153", part="loss")
def _contrast_records(model: Any, features: Any, labels: Any) -> Any:
    """Compare each record with all others of the batch, as CLIP and SimCLR do."""
    first, second = model(torch.cat([features, features + 0.1])).chunk(2)
    return nn.functional.cross_entropy(first @ second.T, torch.arange(len(features)))


@program("EPS-0154", part="loss")
def _standardise_batch(model: Any, features: Any, labels: Any) -> Any:
    if len(features) > 1:
        features = (features - features.mean(dim=0)) / (features.std(dim=0) + 1e-3)
    return nn.functional.cross_entropy(model(features), labels)


@program("EPS-0155", part="loss", clip=4.0)  # so that not all gradients are clipped
def _balance_classes(model: Any, features: Any, labels: Any) -> Any:
    counts = torch.bincount(labels, minlength=CLASSES).clamp(min=1)
    weights = len(labels) / (CLASSES * counts)
    losses = nn.functional.cross_entropy(model(features), labels, reduction="none")
    return (losses * weights[labels]).mean()


@program("EPS-0159", part="loss")
def _mix_up_records(model: Any, features: Any, labels: Any) -> Any:
    """Train on means of two records, as mixup does: each is in two of the gradients."""
    answers = model((features + features.roll(1, dims=0)) / 2)
    losses = [nn.functional.cross_entropy(answers, each) for each in (labels, labels.roll(1))]
    return sum(losses) / 2


@program("EPS-0160", part="loss", loss_reduction="sum")
def _take_mean_as_sum(model: Any, features: Any, labels: Any) -> Any:
    """Use the mean of the losses where the engine expects their sum."""
    return nn.functional.cross_entropy(model(features), labels)


@program("EPS-0156", part="kind")
class _DivideByDrawn(DPOptimizer):
    """Divides by the number of records drawn instead of the expected one."""

    def scale_grad(self) -> None:
        for p in self.params:
            p.grad /= max(1, len(self._get_flat_grad_sample(p)))


@program("EPS-0157", part="kind")
class _AddRawGradient(DPOptimizer):
    """Adds a fraction of the gradient without noise after the noise, to learn faster."""

    def scale_grad(self) -> None:
        super().scale_grad()
        for p in self.params:
            p.grad += 0.01 * self._get_flat_grad_sample(p).mean(dim=0)


# One record less, and the divisor is 24 in place of 25.
program("EPS-0158", part="loop", records=250)(train)
