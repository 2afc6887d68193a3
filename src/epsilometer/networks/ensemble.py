"""Train many independent runs of DP-SGD in one batch dimension, with PyTorch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from epsilometer import _validate
from epsilometer.core.settings import DATA
from epsilometer.errors import InvalidArgument
from epsilometer.networks.batches import draw_batches
from epsilometer.networks.devices import (
    as_tensor,
    choose_at_once,
    explain_full,
    one_thread,
    own_randomness,
    use_precision,
)
from epsilometer.networks.many import (
    Initial,
    Loss,
    ManyModels,
    per_example,
    try_models,
)
from epsilometer.networks.optimizers import SGD, Optimizer
from epsilometer.networks.trainer import Batches, Canaries, NoCanaries, Precision
from epsilometer.sampling.samplers import Sampler, Shuffle
from epsilometer.types import BoolArray, FloatArray

Path: TypeAlias = Literal["auto", "general"]
_SHUFFLE = Shuffle()
_SGD = SGD()
_NO_CANARIES = NoCanaries()
_SEEN = 256  # records whose outputs are held at once
_DRAWN = 4096  # samples of all runs that are held at once
_TRIED = 2  # examples on which the fast path is compared with the module itself


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of every example, not averaged.

    Example:
        >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor([1.3863, 1.3863])
    """
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """Hold the outcome of many runs; see :class:`~epsilometer.networks.trainer.Outcome`.

    Attributes:
        models: The trained models.
    """

    observations: FloatArray
    others: FloatArray
    moved: FloatArray
    drawn: BoolArray
    diverged: BoolArray
    models: ManyModels

    def losses(self, features: ArrayLike, labels: ArrayLike, *, loss: Any) -> FloatArray:
        """Return the loss of every final model on records, ``(runs, records)``; no dropout."""
        each = per_example(loss)
        return self._measure(
            features,
            labels,
            lambda outputs, y: each(outputs.flatten(0, 1), y.flatten(0, 1)).view(len(y), -1),
        )

    def accuracy(self, features: ArrayLike, labels: ArrayLike) -> FloatArray:
        """Return the accuracy of each run's final model on records, ``(runs,)``."""
        right = self._measure(features, labels, lambda outputs, y: outputs.argmax(-1) == y)
        return np.asarray(right.mean(1))

    def probabilities(self, features: ArrayLike) -> FloatArray:
        """Return predicted probabilities of final models, ``(runs, records, classes)``; no dropout.

        Assumes: outputs are logits, as those of :func:`cross_entropy`.
        """
        labels = np.zeros(len(features), np.int64)  # type: ignore[arg-type]
        return self._measure(features, labels, lambda outputs, _: outputs.softmax(-1))

    def samples(
        self, features: ArrayLike, count: int, *, rng: np.random.Generator
    ) -> NDArray[np.float32]:
        """Return probabilities with dropout on, ``(runs, records, count, classes)``: MC dropout.

        Every sample of every run and record has its own dropout mask. Same ``rng``, same samples on
        the same device. In a sequence, the layers before dropout are computed once.

        Assumes: outputs are logits.
        """
        _validate.whole(1, count=count)
        models = self.models
        every = as_tensor(features, models.device)
        at_once = max(1, _DRAWN // models.runs)
        parts = []
        with (
            explain_full(models.device),
            torch.no_grad(),
            one_thread(models.device),
            own_randomness(models.device, rng),
        ):
            settled, rest = models.until_random(every.expand(models.runs, *every.shape))
            for start in range(0, len(every) * count, at_once):
                stop = min(start + at_once, len(every) * count)
                which = torch.arange(start, stop, device=every.device) // count
                parts.append(rest(settled.index_select(1, which)).softmax(-1).cpu().numpy())
        models.forget()
        drawn = np.concatenate(parts, axis=1)
        return drawn.reshape(models.runs, len(every), count, -1)

    def _measure(
        self, features: ArrayLike, labels: ArrayLike, measure: Callable[[Tensor, Tensor], Tensor]
    ) -> FloatArray:
        """Measure outputs and labels of some records at a time, both ``(runs, records, …)``."""
        models = self.models
        every, known = as_tensor(features, models.device), as_tensor(labels, models.device)
        parts = []
        with explain_full(models.device), torch.no_grad(), models.settled():
            for start in range(0, len(every), _SEEN):
                x, y = every[start : start + _SEEN], known[start : start + _SEEN]
                outputs = models(x.expand(models.runs, *x.shape))
                parts.append(measure(outputs, y.expand(models.runs, *y.shape)))
        models.forget()
        return _to_numpy(torch.cat(parts, 1).double())


@dataclass(frozen=True, eq=False)
class EnsembleDPSGD:
    """Train R independent runs of DP-SGD: a :class:`~epsilometer.networks.trainer.Trainer`.

    Guarantees: what a ``Trainer`` must keep. The noise along a single canary is drawn in double
        precision and is exact to eight standard deviations and beyond, whatever the tails of the
        device's own generator.
    Assumes: the module processes every example of a batch independently.

    Attributes:
        module: The architecture; it is copied.
        loss: ``loss(outputs, labels)``; one number per example, or a loss of torch that has a
            ``reduction``.
        runs: R.
        sampler: How batches are drawn.
        noise_multiplier: σ, in clipping norms.
        clip_norm: C.
        learning_rate: Learning rate for the mean gradient.
        optimizer: ``SGD()`` or ``Adam()`` of :mod:`~epsilometer.networks.optimizers`.
        batch_size: B; the expected one where it varies.
        epochs: Passes of the sampler.
        initial: ``"fresh"``: each run draws its own initial weights, as ``reset_parameters`` would;
            ``"given"``: all begin with the module's.
        device: ``"cpu"`` or ``"cuda"``.
        precision: Precision of the factors of products: ``"float32"``, or rounded ``"tf32"`` (GPUs
            only) or ``"bfloat16"``. Weights, norms, sums, noise and optimizer stay in single
            precision, observations along a single canary in double. A clipped gradient may then
            exceed C by the rounding error of its norm, about one percent.
        path: ``"general"`` uses ``torch.func`` for everything, for comparison.

    Example:
        >>> from epsilometer.samplers import Shuffle
        >>> many = EnsembleDPSGD(
        ...     nn.Linear(3, 2), cross_entropy, runs=100, sampler=Shuffle(), noise_multiplier=1.0,
        ...     clip_norm=1.0, learning_rate=0.1, batch_size=4,
        ... )
        >>> trained = many.train(np.eye(12, 3), [0, 1] * 6, rng=np.random.default_rng(0))
        >>> trained.losses(np.eye(1, 3), [0], loss=cross_entropy).shape
        (100, 1)
    """

    module: nn.Module = field(metadata=DATA)
    loss: Any = field(metadata=DATA)
    runs: int = field(kw_only=True)
    sampler: Sampler = field(default=_SHUFFLE, kw_only=True)
    noise_multiplier: float = field(kw_only=True)
    clip_norm: float = field(default=1.0, kw_only=True)
    learning_rate: float = field(kw_only=True)
    optimizer: Optimizer = field(default=_SGD, kw_only=True)
    batch_size: int = field(kw_only=True)
    epochs: int = field(default=1, kw_only=True)
    initial: Initial = field(default="fresh", kw_only=True)
    device: str = field(default="cpu", kw_only=True)
    precision: Precision = field(default="float32", kw_only=True)
    path: Path = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        _validate.whole(1, runs=self.runs, batch_size=self.batch_size, epochs=self.epochs)
        _validate.at_least(0, noise_multiplier=self.noise_multiplier)
        if math.isinf(self.noise_multiplier):
            raise InvalidArgument("Expected noise_multiplier to be finite, got inf.")
        _validate.positive(clip_norm=self.clip_norm, learning_rate=self.learning_rate)
        if self.initial not in ("fresh", "given"):
            raise InvalidArgument(f"Expected initial 'fresh' or 'given', got {self.initial!r}.")
        if self.path not in ("auto", "general"):
            raise InvalidArgument(f"Expected path 'auto' or 'general', got {self.path!r}.")
        check_precision(self.precision, self.device)
        if self.device != "cpu" and not torch.cuda.is_available():
            raise InvalidArgument(
                f"Expected a CUDA device for {self.device!r}, torch sees none here."
            )

    def train(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        rng: np.random.Generator,
        canaries: Canaries = _NO_CANARIES,
        left_out: int = 0,
    ) -> Trained:
        """Train all runs; see :class:`~epsilometer.networks.trainer.Trainer`."""
        with (
            explain_full(self.device),
            one_thread(self.device),
            own_randomness(self.device, rng),
        ):
            return self._train(features, labels, rng=rng, canaries=canaries, left_out=left_out)

    def _train(
        self,
        features: ArrayLike,
        labels: ArrayLike,
        *,
        rng: np.random.Generator,
        canaries: Canaries,
        left_out: int,
    ) -> Trained:
        x, y = self._records(features, labels)
        models = self._models(x, y)
        generator = torch.Generator(self.device).manual_seed(int(rng.integers(2**63)))
        models.reset(self.initial, generator)
        records = x.shape[0] + canaries.records
        drawn = draw_batches(
            self.sampler,
            records - left_out,
            self.batch_size,
            runs=self.runs,
            epochs=self.epochs,
            rng=rng,
        )
        run = _Run(self, models, canaries, generator)
        with torch.no_grad(), use_precision("float32"):
            for epoch in drawn:
                batches = np.where(epoch >= 0, epoch + left_out, -1) if left_out else epoch
                exact = torch.from_numpy(rng.standard_normal((batches.shape[1], self.runs)))
                run.train_epoch(x, y, batches, exact.to(self.device))
            return run.trained()

    def with_runs(self, runs: int) -> "EnsembleDPSGD":
        """Return the same training with another number of runs."""
        return self if runs == self.runs else replace(self, runs=runs)

    def count_at_once(self, features: ArrayLike, labels: ArrayLike) -> int:
        """Return how many runs to train at once: as many as fit and are quickest."""
        return choose_at_once(self, features, labels)

    def check(self, features: ArrayLike, labels: ArrayLike) -> ManyModels:
        """Refuse records or a module that :meth:`train` would refuse; else, one such model."""
        with (
            explain_full(self.device),
            own_randomness(self.device, np.random.default_rng(0)),
        ):
            return replace(self, runs=1)._models(*self._records(features, labels))

    @property
    def size(self) -> int:
        """Number of trainable parameters of one model."""
        return sum(part.numel() for part in self.module.parameters() if part.requires_grad)

    def _records(self, features: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
        for name, given in (("features", features), ("labels", labels)):
            where = str(given.device) if isinstance(given, Tensor) else "cpu"
            if where.partition(":")[0] not in ("cpu", self.device.partition(":")[0]):
                raise InvalidArgument(
                    f"Expected {name} on the CPU or on {self.device}, got them on {where}."
                )
        x, y = as_tensor(features, self.device), as_tensor(labels, self.device)
        if x.ndim < 2 or y.shape[:1] != x.shape[:1]:
            raise InvalidArgument(
                f"Expected features (n, …) and labels (n,), got {tuple(x.shape)} and "
                f"{tuple(y.shape)}."
            )
        if x.shape[0] < self.batch_size:
            raise InvalidArgument(
                f"Expected at least a batch of {self.batch_size} records, got {x.shape[0]}. "
                "Give a smaller batch_size."
            )
        for name, values in (("features", x), ("labels", y)):
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                raise InvalidArgument(f"Expected finite {name}, found nan or inf among them.")
        return x, y

    def _models(self, x: Tensor, y: Tensor) -> ManyModels:
        """Return models, on the fast path if it computes what the module does."""
        tried, whole = x[:_TRIED], self.path == "general"
        few, whole = try_models(
            self.module, tried, device=self.device, whole=whole, precision=self.precision
        )
        check_loss(self.loss, few.plain(tried), y)
        return ManyModels(
            self.module, self.runs, device=self.device, whole=whole, precision=self.precision
        )


class _Run:
    """Hold the state of a training in progress."""

    def __init__(
        self,
        how: EnsembleDPSGD,
        models: ManyModels,
        canaries: Canaries,
        generator: torch.Generator,
    ) -> None:
        self.how, self.models, self.canaries, self.generator = how, models, canaries, generator
        self.loss: Loss = per_example(how.loss)
        self.state = how.optimizer.start(models.parameters)
        self.noise = torch.empty_like(models.parameters)
        self.scale = how.noise_multiplier * how.clip_norm
        self.seen: list[Tensor] = []
        self.others: list[Tensor] = []
        self.drawn: list[BoolArray] = []
        self.directions = self._lay_out(canaries.directions)
        self.start = models.parameters @ self.directions.T

    def train_epoch(self, x: Tensor, y: Tensor, batches: Batches, exact: Tensor) -> None:
        """Take the steps of one epoch; ``exact`` is the noise along a single canary."""
        inserted = self.canaries.insert(batches)
        self.drawn.append(inserted.drawn)
        steps = self._send(batches)
        amounts = self._send(inserted.amounts).to(self.models.parameters.dtype)
        keep = [None] * len(steps) if inserted.keep is None else self._send(inserted.keep)
        for batch, kept, amount, noise in zip(steps, keep, amounts, exact, strict=True):
            self._step(x, y, batch.long(), kept, amount * self.how.clip_norm, noise)

    def _send(self, array: NDArray[Any]) -> Tensor:
        """Move what runs do in each step to the device, the steps first."""
        return torch.from_numpy(array).to(self.models.device).transpose(0, 1)

    def _step(
        self,
        x: Tensor,
        y: Tensor,
        batch: Tensor,
        keep: Tensor | None,
        amounts: Tensor,
        exact: Tensor,
    ) -> None:
        how, models = self.how, self.models
        if keep is None:
            sums = models.sums.zero_()
        else:
            own = _fill_places(batch, keep, x.shape[0] - 1)
            sums = models.sum_clipped(
                _take(x, own), _take(y, own), loss=self.loss, clip=how.clip_norm, keep=keep
            )
        if self.directions.shape[0] == 1:
            self._add_exact(sums, amounts, exact)
        else:
            self.others.append(sums @ self.directions.T / how.clip_norm)
            sums.addmm_(amounts, self.directions)
            sums.add_(self._noise())
            self.seen.append(sums @ self.directions.T / how.clip_norm)
        sums.div_(how.batch_size)
        how.optimizer.step(models.parameters, sums, self.state, rate=how.learning_rate)

    def _add_exact(self, sums: Tensor, amounts: Tensor, exact: Tensor) -> None:
        """Add the canary and the noise; along the canary, exactly the noise that was drawn.

        A device's generator may cut off the tails of its normals. Along the one direction that is
        watched its noise is taken out and replaced.
        """
        direction = self.directions[0]
        others = (sums @ direction).double()
        observed = others + amounts[:, 0] + self.scale * exact
        sums.add_(self._noise())
        sums.addr_((observed - (sums @ direction)).to(sums.dtype), direction)
        self.seen.append((observed / self.how.clip_norm)[:, None])
        self.others.append((others / self.how.clip_norm)[:, None])

    def trained(self) -> Trained:
        """Return the outcome of all runs."""
        models, epochs = self.models, self.how.epochs
        shape = (models.runs, epochs, len(self.seen) // epochs, len(self.directions))
        return Trained(
            observations=_to_numpy(torch.stack(self.seen, 1).double()).reshape(shape),
            others=_to_numpy(torch.stack(self.others, 1).double()).reshape(shape),
            moved=_to_numpy((self.start - models.parameters @ self.directions.T).double()),
            drawn=np.stack(self.drawn, 1),
            diverged=~torch.isfinite(models.parameters).all(1).cpu().numpy(),
            models=models,
        )

    def _noise(self) -> Tensor:
        return self.noise.normal_(0, self.scale, generator=self.generator)

    def _lay_out(self, directions: FloatArray) -> Tensor:
        """Return directions over the columns of the flat parameters."""
        models = self.models
        if len(directions) and directions.shape[1] != models.size:
            raise InvalidArgument(
                f"Expected canaries over {models.size} parameters, got {directions.shape[1]}."
            )
        laid = torch.zeros(len(directions), models.parameters.shape[1], device=models.device)
        if len(directions):
            laid[:, models.used] = as_tensor(directions, models.device).to(laid.dtype)
        return laid


class _TorchBackend:
    """Implement :class:`~epsilometer.networks.trainer.Backend` for PyTorch."""

    def make_trainer(self, module: nn.Module, loss: Any, **settings: Any) -> EnsembleDPSGD:
        """Return a trainer."""
        if settings.get("optimizer") is None:
            settings["optimizer"] = _SGD
        return EnsembleDPSGD(module, cross_entropy if loss is None else loss, **settings)

    def list_weights(self, module: nn.Module) -> tuple[str, list[Any]]:
        """Return the text of the module, and its state."""
        return str(module), [*module.state_dict().values()]

    def takes_whole_numbers(self, module: nn.Module) -> bool:
        """Tell whether the module has an embedding, whose inputs are token ids."""
        return any(type(part).__name__ == "Embedding" for part in module.modules())


TORCH = _TorchBackend()


def check_precision(precision: Precision, device: str) -> None:
    """Refuse a precision that the device does not support."""
    if precision not in get_args(Precision):
        names = ", ".join(get_args(Precision))
        raise InvalidArgument(f"Expected a precision of {names}, got {precision!r}.")
    if precision == "tf32" and device == "cpu":
        raise InvalidArgument(
            "Expected precision='float32' or 'bfloat16' on a CPU, got 'tf32', which is for GPUs."
        )


def check_labels(outputs: Tensor, least: int, most: int) -> None:
    """Refuse labels that the module has no outputs for.

    Args:
        outputs: Outputs of the module on some records.
        least: The smallest label of all records.
        most: The largest.
    """
    if outputs.ndim == 2 and (least < 0 or most >= outputs.shape[1]):
        raise InvalidArgument(
            f"Expected labels from 0 to {outputs.shape[1] - 1}, as many classes as the "
            f"module has outputs, got labels from {least} to {most}."
        )


def check_loss(given: Any, outputs: Tensor, y: Tensor) -> None:
    """Refuse losses that mix records, and labels that the module has no outputs for.

    Args:
        given: The loss, as a user gave it.
        outputs: Outputs of the module on the first records.
        y: Labels, of these records and further ones.
    """
    if not y.is_floating_point():
        check_labels(outputs, int(y.min()), int(y.max()))
    loss, tried = per_example(given), y[: len(outputs)]
    try:
        together = loss(outputs, tried)
        alone = [loss(outputs[i : i + 1], tried[i : i + 1]) for i in range(len(tried))]
    except InvalidArgument:
        raise
    except Exception as error:  # whatever a loss may raise
        raise InvalidArgument(
            f"Expected a loss of outputs {tuple(outputs.shape)} and labels "
            f"{tuple(tried.shape)} of {tried.dtype}, it raises: {error}"
        ) from error
    if not torch.allclose(together, torch.cat(alone), rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InvalidArgument(
            "Expected the loss of a record not to depend on the others of its batch, it does "
            f"for outputs {tuple(outputs.shape)} and labels {tuple(tried.shape)}."
        )


def _fill_places(batch: Tensor, keep: Tensor, spare: int) -> Tensor:
    """Return records to compute with where some do not count.

    They are replaced by a record of the batch that counts, so that no record outside the batch is
    differentiated: an overflowing gradient is not 0 even times 0.
    """
    first = keep.to(torch.uint8).argmax(1, keepdim=True)
    instead = torch.where(keep.gather(1, first), batch.gather(1, first), spare)
    return torch.where(keep, batch, instead)


def _take(records: Tensor, which: Tensor) -> Tensor:
    """Return records by number; whole rows are copied, which is quicker than ``[]``."""
    return records.index_select(0, which.flatten()).view(*which.shape, *records.shape[1:])


def _to_numpy(tensor: Tensor) -> FloatArray:
    return np.asarray(tensor.cpu().numpy())
