"""List trainings with Opacus in which one record can change too much."""

# mypy: allow-subclassing-any, allow-untyped-calls

from typing import Any

import torch
from torch import nn

from epsilometer._extras import needs
from epsilometer.zoo.opacus_training import (
    CLASSES,
    FEATURES,
    Training,
    describe_training,
    make_network,
    make_training,
    take_step,
    train,
    train_in_parts,
)

with needs("opacus", extra="opacus"):
    from opacus import PrivacyEngine  # type: ignore[import-untyped]
    from opacus.grad_sample import GradSampleModule  # type: ignore[import-untyped]
    from opacus.optimizers import (  # type: ignore[import-untyped]
        DPOptimizer,
        DPOptimizerFastGradientClipping,
    )
    from opacus.schedulers import ExponentialGradClip  # type: ignore[import-untyped]


class _ChangeClipping(DPOptimizer):
    """Multiplies every record's gradient by other factors than the right ones."""

    def compute_factors(self, rows: list[Any]) -> list[Any]:
        """Return a factor for each record, tensor by tensor."""
        factor = self.clip(measure_norms(rows))
        return [factor] * len(rows)

    def clip(self, norms: Any) -> Any:
        """Return the factors that bring these norms down to C."""
        return (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)

    def clip_and_accumulate(self) -> None:
        rows = list(self.grad_samples)
        for p, row, factor in zip(self.params, rows, self.compute_factors(rows), strict=True):
            total = torch.einsum("i,i...", factor, row)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


def measure_norms(rows: list[Any]) -> Any:
    """Return the norm of every record over all tensors."""
    return torch.stack([row.flatten(1).norm(dim=1) for row in rows]).norm(dim=0)


class _DoNotClip(_ChangeClipping):
    """Does not clip."""

    def clip(self, norms: Any) -> Any:
        return torch.ones_like(norms)


class _ClipBatchMean(_ChangeClipping):
    """Clips the mean of the batch, as ``torch.nn.utils.clip_grad_norm_`` does."""

    def compute_factors(self, rows: list[Any]) -> list[Any]:
        mean = measure_norms([row.mean(dim=0, keepdim=True) for row in rows])
        return [self.clip(mean).expand(len(rows[0]))] * len(rows)


class _ClipEachTensor(_ChangeClipping):
    """Clips each tensor to C, so that a record may have C times the root of their number."""

    def compute_factors(self, rows: list[Any]) -> list[Any]:
        return [self.clip(measure_norms([row])) for row in rows]


class _ClipAllButFirst(_ChangeClipping):
    """Leaves the first layer out, as one does whose embedding has no norms."""

    def compute_factors(self, rows: list[Any]) -> list[Any]:
        factor = self.clip(measure_norms(rows[2:]))
        return [torch.ones_like(factor)] * 2 + [factor] * (len(rows) - 2)


class _ForgetBiases(_ChangeClipping):
    """Leaves biases out of the norm, but not out of the sum."""

    def compute_factors(self, rows: list[Any]) -> list[Any]:
        factor = self.clip(measure_norms([row for row in rows if row.ndim > 2]))
        return [factor] * len(rows)


class _ClipLargestEntry(_ChangeClipping):
    """Clips the largest entry in place of the norm."""

    def compute_factors(self, rows: list[Any]) -> list[Any]:
        largest = torch.stack([row.flatten(1).abs().amax(dim=1) for row in rows]).amax(dim=0)
        return [self.clip(largest)] * len(rows)


class _ClipLastPart(_ChangeClipping):
    """Clips only in the physical batch that ends a step."""

    def clip(self, norms: Any) -> Any:
        skipped = self._check_skip_next_step(pop_next=False)
        return torch.ones_like(norms) if skipped else super().clip(norms)


class _StopClipping(_ChangeClipping):
    """Clips for 20 steps, until training is stable."""

    steps = 0

    def clip(self, norms: Any) -> Any:
        self.steps += 1
        return super().clip(norms) if self.steps <= 20 else torch.ones_like(norms)


class _ClipPairs(DPOptimizer):
    """Clips sums of two records, as microbatches do, beside the accountant of single records."""

    def clip_and_accumulate(self) -> None:
        for p in self.params:
            rows = self._get_flat_grad_sample(p)
            pairs = torch.cat([rows, torch.zeros_like(rows[: len(rows) % 2])])
            p.grad_sample = pairs.unflatten(0, (-1, 2)).sum(dim=1) if len(rows) else rows
        super().clip_and_accumulate()


class _DivideByDrawn(DPOptimizer):
    """Divides by the number of records drawn in place of the expected one."""

    def scale_grad(self) -> None:
        for p in self.params:
            p.grad /= max(1, len(self._get_flat_grad_sample(p)))


class _AddRawGradient(DPOptimizer):
    """Adds a little of the gradient without noise after the noise, to learn faster."""

    def scale_grad(self) -> None:
        super().scale_grad()
        for p in self.params:
            p.grad += 0.01 * self._get_flat_grad_sample(p).mean(dim=0)


class _SumAliasedGradients(DPOptimizerFastGradientClipping):
    """Keeps a reference to ``p.grad`` for the sum: the last physical batch counts twice."""

    def accumulate(self) -> None:
        for p in self.params:
            if p.summed_grad is not None:
                p.summed_grad += p.grad
            else:
                p.summed_grad = p.grad


def forget_ghost_clip_norm(seed: int) -> Training:
    """Leave the clipping norm of the module at 1, whatever C is."""
    training = make_training(seed, clip=0.5, grad_sample_mode="ghost")
    training.model.max_grad_norm = 1.0
    return training


def schedule_ghost_clip_norm(training: Training) -> None:
    """Lower C by Opacus' own scheduler: noise follows it, ghost clipping does not."""
    schedule = ExponentialGradClip(training.optimizer, gamma=0.7)
    for _ in range(training.epochs):
        for features, labels in training.loader:
            take_step(training, features, labels)
        schedule.step()


class _OverTime(nn.Module):
    """The network with features as a sequence of four: its layers see three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES // 4, 120)
        self.last = nn.Linear(120, CLASSES)

    def forward(self, features: Any) -> Any:
        return self.last(torch.tanh(self.first(features.unflatten(1, (4, -1))))).mean(dim=1)


def misjudge_bias_norms(seed: int) -> Training:
    """Compute norms of biases of sequences as Opacus 1.5.3 did: sums of g gᵀ squared."""
    training = make_training(seed, network=_OverTime, clip=0.1, grad_sample_mode="ghost")
    right = training.model.NORM_SAMPLERS[nn.Linear]

    def compute_norms(layer: Any, activations: Any, backprops: Any) -> Any:
        norms = right(layer, activations, backprops)
        products = torch.einsum("nik,njk->nij", backprops, backprops)
        norms[layer.bias] = torch.einsum("n...i,n...i->n", products, products).sqrt()
        return norms

    training.model.NORM_SAMPLERS = {nn.Linear: compute_norms}
    return training


def use_batch_norm(seed: int) -> Training:
    """Switch Opacus' validation off, and keep BatchNorm."""

    def make() -> nn.Module:
        first, *rest = make_network().children()
        mixed = nn.Sequential(first, nn.BatchNorm1d(40, affine=False), *rest)
        wrapped: nn.Module = GradSampleModule(mixed, strict=False)
        return wrapped

    engine = PrivacyEngine(accountant="rdp")
    engine.validate = lambda **_: None
    return make_training(seed, network=make, engine=engine)


def clip_augmentations(model: Any, features: Any, labels: Any) -> Any:
    """Take each of eight views of a record for a record."""
    views = torch.cat([features + 0.1 * turn for turn in range(8)])
    return nn.functional.cross_entropy(model(views), labels.repeat(8))


def contrast_records(model: Any, features: Any, labels: Any) -> Any:
    """Compare each record with all others of the batch, as CLIP and SimCLR do."""
    first, second = model(torch.cat([features, features + 0.1])).chunk(2)
    return nn.functional.cross_entropy(first @ second.T, torch.arange(len(features)))


def standardise_batch(model: Any, features: Any, labels: Any) -> Any:
    """Standardise features by the batch."""
    if len(features) > 1:
        features = (features - features.mean(dim=0)) / (features.std(dim=0) + 1e-3)
    return nn.functional.cross_entropy(model(features), labels)


def balance_classes(model: Any, features: Any, labels: Any) -> Any:
    """Weigh classes by their counts in the batch."""
    counts = torch.bincount(labels, minlength=CLASSES).clamp(min=1)
    weights = len(labels) / (CLASSES * counts)
    losses = nn.functional.cross_entropy(model(features), labels, reduction="none")
    return (losses * weights[labels]).mean()


CLIPPING = (
    describe_training("EPS-0131", "no clipping", _DoNotClip, breaks="clipping"),
    describe_training(
        "EPS-0132",
        "clipping of the batch mean",
        _ClipBatchMean,
        breaks="clipping",
        seen="APPFL issue 349",
    ),
    describe_training(
        "EPS-0133",
        "clipping of each tensor to C",
        _ClipEachTensor,
        breaks="clipping",
        seen="Fed-BioMed issue 1443",
    ),
    describe_training("EPS-0134", "first layer not clipped", _ClipAllButFirst, breaks="clipping"),
    describe_training("EPS-0135", "norms without biases", _ForgetBiases, breaks="clipping"),
    describe_training(
        "EPS-0136",
        "clipping of the largest entry in place of the norm",
        _ClipLargestEntry,
        breaks="clipping",
    ),
    describe_training(
        "EPS-0137",
        "clipping only in the last physical batch",
        _ClipLastPart,
        breaks="clipping",
        loop=train_in_parts,
    ),
    describe_training("EPS-0138", "no clipping after 20 steps", _StopClipping, breaks="clipping"),
    describe_training(
        "EPS-0139",
        "clipping of sums of two records",
        _ClipPairs,
        breaks="clipping",
        seen="TensorFlow Privacy issue 81",
    ),
    describe_training(
        "EPS-0140",
        "ghost clipping to 1 whatever C is",
        forget_ghost_clip_norm,
        make=forget_ghost_clip_norm,
        breaks="clipping",
        seen="Opacus 1.5.2 (pull request 664)",
    ),
    describe_training(
        "EPS-0141",
        "ghost clipping whose last physical batch counts twice",
        _SumAliasedGradients,
        breaks="clipping",
        seen="Opacus 1.5 to 1.5.2 (pull request 707)",
        loop=train_in_parts,
        grad_sample_mode="ghost",
    ),
    describe_training(
        "EPS-0142",
        "ghost clipping by wrong norms of biases",
        misjudge_bias_norms,
        make=misjudge_bias_norms,
        breaks="clipping",
        seen="Opacus 1.5 to 1.5.3 (pull request 751)",
    ),
    describe_training(
        "EPS-0143",
        "ghost clipping with a schedule of C",
        schedule_ghost_clip_norm,
        breaks="clipping",
        seen="Opacus 1.5.2 to 1.6.0",
        grad_sample_mode="ghost",
    ),
    describe_training(
        "EPS-0151", "BatchNorm", use_batch_norm, make=use_batch_norm, breaks="sensitivity"
    ),
    describe_training(
        "EPS-0152",
        "eight augmentations clipped as records",
        clip_augmentations,
        loss=clip_augmentations,
        breaks="sensitivity",
    ),
    describe_training(
        "EPS-0153",
        "contrastive loss",
        contrast_records,
        loss=contrast_records,
        breaks="sensitivity",
        seen="asked for in Opacus issue 672",
    ),
    describe_training(
        "EPS-0154",
        "features standardised by the batch",
        standardise_batch,
        loss=standardise_batch,
        breaks="sensitivity",
    ),
    describe_training(
        "EPS-0155",
        "classes weighed by their counts in the batch",
        balance_classes,
        loss=balance_classes,
        breaks="sensitivity",
        clip=4.0,  # so that not all gradients are clipped
    ),
    describe_training(
        "EPS-0156",
        "division by the number of records drawn",
        _DivideByDrawn,
        breaks="sensitivity",
        seen="asked for in Opacus issue 420",
    ),
    describe_training(
        "EPS-0157",
        "gradient without noise added after the noise",
        _AddRawGradient,
        breaks="sensitivity",
    ),
    describe_training(
        "EPS-0158",
        "division by ⌊n·q⌋ of the data set",
        train,
        breaks="sensitivity",
        seen="Opacus 1.0 to 1.6 (issues 571 and 819)",
        records=250,  # one record less, and the divisor is 24 in place of 25
    ),
)
