"""DP-SGD of many independent runs in one batch dimension."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from epsilometer import _validate
from epsilometer.canaries.gradient import Canaries, NoCanaries
from epsilometer.errors import InvalidArgument, OutOfMemory
from epsilometer.mechanisms.samplers import Sampler, Shuffle
from epsilometer.training.many import Initial, Loss, ManyModels, per_example
from epsilometer.training.optimizers import SGD, Optimizer
from epsilometer.training.schedule import schedule
from epsilometer.types import BoolArray, FloatArray

Path: TypeAlias = Literal["auto", "general"]
_SHUFFLE = Shuffle()
_SGD = SGD()
_NO_CANARIES = NoCanaries()
_TRIED = 2  # examples on which the fast path is compared with the module itself


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The usual loss of classes, of every example."""
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """What many runs ended with.

    Attributes:
        observations: Noisy sums along the canaries in clipping norms, not divided by the batch
            size, ``(runs, epochs, steps, canaries)``; nan from where a run diverged.
        moved: How far each run went along the canaries against its gradients, −⟨θ_T − θ_0, ĝ⟩,
            ``(runs, canaries)``.
        drawn: Whether the canaries' records were in the batches, of the same shape.
        diverged: Runs whose parameters are no longer finite, ``(runs,)``.
        models: The models themselves.
    """

    observations: FloatArray
    moved: FloatArray
    drawn: BoolArray
    diverged: BoolArray
    models: ManyModels

    def losses(self, features: ArrayLike, labels: ArrayLike, *, loss: Any) -> FloatArray:
        """Loss of every run's final model on the same records, ``(runs, records)``; no dropout."""
        outputs, y = self._outputs(features, labels)
        each = per_example(loss)(outputs.flatten(0, 1), y.flatten())
        return _on_cpu(each.view(self.models.runs, -1).double())

    def accuracy(self, features: ArrayLike, labels: ArrayLike) -> FloatArray:
        """Share of records that each run's final model classifies rightly, ``(runs,)``."""
        outputs, y = self._outputs(features, labels)
        return _on_cpu((outputs.argmax(-1) == y).double().mean(1))

    def _outputs(self, features: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
        models = self.models
        x = as_tensor(features, models.device)
        y = as_tensor(labels, models.device).expand(models.runs, -1)
        with torch.no_grad(), models.settled():
            return models(x.expand(models.runs, *x.shape)), y


@dataclass(frozen=True, eq=False)
class EnsembleDPSGD:
    """R independent runs of DP-SGD, each with its own first weights, batches and noise.

    Guarantees: every step of every run clips each example's gradient to ``clip_norm``, sums, adds
        N(0, (noise_multiplier · clip_norm)²) to each coordinate, and divides by ``batch_size``. The
        noise along a single canary is drawn in double precision and right to eight standard
        deviations and beyond, whatever the device's own generator does in its tails.
    Assumes: the module treats the examples of a batch one by one.

    Attributes:
        module: The architecture; it is copied.
        loss: ``loss(outputs, labels)``; one number an example, or a loss of torch that can be told
            not to average.
        runs: R.
        sampler: How batches are drawn.
        noise_multiplier: σ, in clipping norms.
        clip_norm: C.
        learning_rate: Of the mean gradient.
        optimizer: ``SGD()`` or ``Adam()`` of :mod:`~epsilometer.training.optimizers`.
        batch_size: B; the expected one where it varies.
        epochs: Passes of the sampler.
        initial: ``"fresh"``: each run draws its own first weights, as ``reset_parameters`` would;
            ``"given"``: all begin with the module's.
        device: ``"cpu"`` or ``"cuda"``.
        path: ``"general"`` takes ``torch.func`` for everything, to compare.
    """

    module: nn.Module
    loss: Any
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
    path: Path = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        _validate.whole(1, runs=self.runs, batch_size=self.batch_size, epochs=self.epochs)
        _validate.at_least(0, noise_multiplier=self.noise_multiplier)
        _validate.positive(clip_norm=self.clip_norm, learning_rate=self.learning_rate)
        if self.initial not in ("fresh", "given"):
            raise InvalidArgument(f"Expected initial 'fresh' or 'given', got {self.initial!r}.")
        if self.path not in ("auto", "general"):
            raise InvalidArgument(f"Expected path 'auto' or 'general', got {self.path!r}.")
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
        """Trains all runs; same ``rng``, same result on the same device.

        Args:
            features: Records, ``(n, …)``.
            labels: Their classes 0, 1, … or values, ``(n, …)``.
            rng: Where all randomness comes from.
            canaries: Gradients that take part.
            left_out: How many of the first records are not there: 1 for training without record 0
                under add/remove adjacency.
        """
        x, y = self._records(features, labels)
        models = self._models(x, y)
        generator = torch.Generator(self.device).manual_seed(int(rng.integers(2**63)))
        models.reset(self.initial, generator)
        records = x.shape[0] + canaries.records
        drawn = schedule(
            self.sampler,
            records - left_out,
            self.batch_size,
            runs=self.runs,
            epochs=self.epochs,
            rng=rng,
        )
        run = _Run(self, models, canaries, generator)
        with told(self.device), torch.no_grad(), _one_thread(self.device):
            for epoch in drawn:
                batches = torch.from_numpy(epoch).to(self.device).transpose(0, 1)
                batches = torch.where(batches >= 0, batches + left_out, -1) if left_out else batches
                exact = torch.from_numpy(rng.standard_normal((len(batches), self.runs)))
                for batch, noise in zip(batches, exact.to(self.device), strict=True):
                    run.step(x, y, batch.long(), noise)
            return run.trained()

    def check(self, features: ArrayLike, labels: ArrayLike) -> None:
        """Refuses records or a module that :meth:`train` would refuse."""
        replace(self, runs=1)._models(*self._records(features, labels))

    @property
    def size(self) -> int:
        """Trainable parameters of one model."""
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
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InvalidArgument("Expected finite features, found nan or inf among them.")
        return x, y

    def _models(self, x: Tensor, y: Tensor) -> ManyModels:
        """On the fast path where it computes what the module does."""
        tried = x[:_TRIED]
        models = ManyModels(
            self.module, self.runs, device=self.device, whole=self.path == "general"
        )
        if not models.general and not models.agree(tried):
            models = ManyModels(self.module, self.runs, device=self.device, whole=True)
        if models.general:
            models.try_out(tried)
        outputs = models.plain(tried)
        if not y.is_floating_point() and outputs.ndim == 2:
            most, least = int(y.max()), int(y.min())
            if least < 0 or most >= outputs.shape[1]:
                raise InvalidArgument(
                    f"Expected labels from 0 to {outputs.shape[1] - 1}, as many classes as the "
                    f"module has outputs, got labels from {least} to {most}."
                )
        return models


class _Run:
    """Training under way."""

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
        self.drawn: list[Tensor] = []
        self.directions = self._laid_out(canaries.directions)
        self.start = models.parameters @ self.directions.T

    def step(self, x: Tensor, y: Tensor, batch: Tensor, exact: Tensor) -> None:
        """One step of all runs; ``exact`` is their noise along a single canary."""
        how, models, canaries = self.how, self.models, self.canaries
        keep, amounts, drawn = canaries.insert(batch)
        self.drawn.append(drawn)
        amounts = amounts.to(models.parameters.dtype) * how.clip_norm
        if keep is None:
            sums = models.sums.zero_()
        else:
            # What keeps no gradient of its own still needs a place; any record will do.
            own = torch.where(keep, batch, 0)
            sums = models.clipped_sums(
                x[own], y[own], loss=self.loss, clip=how.clip_norm, keep=keep
            )
        if self.directions.shape[0] == 1:
            self._add_exact(sums, amounts, exact)
        else:
            sums.addmm_(amounts, self.directions)
            sums.add_(self._noise())
            self.seen.append(sums @ self.directions.T / how.clip_norm)
        sums.div_(how.batch_size)
        how.optimizer.step(models.parameters, sums, self.state, rate=how.learning_rate)

    def _add_exact(self, sums: Tensor, amounts: Tensor, exact: Tensor) -> None:
        """Adds the canary and the noise; along the canary, exactly the noise that was drawn.

        A device's generator may cut off the tails of its normals. Along the one direction that is
        watched its noise is taken out and replaced.
        """
        direction = self.directions[0]
        observed = (sums @ direction).double() + amounts[:, 0] + self.scale * exact
        sums.add_(self._noise())
        sums.addr_((observed - (sums @ direction)).to(sums.dtype), direction)
        self.seen.append((observed / self.how.clip_norm)[:, None])

    def trained(self) -> Trained:
        """What all runs ended with."""
        models, epochs = self.models, self.how.epochs
        shape = (models.runs, epochs, len(self.seen) // epochs, len(self.directions))
        return Trained(
            observations=_on_cpu(torch.stack(self.seen, 1).double()).reshape(shape),
            moved=_on_cpu((self.start - models.parameters @ self.directions.T).double()),
            drawn=torch.stack(self.drawn, 1).cpu().numpy().reshape(shape),
            diverged=~torch.isfinite(models.parameters).all(1).cpu().numpy(),
            models=models,
        )

    def _noise(self) -> Tensor:
        return self.noise.normal_(0, self.scale, generator=self.generator)

    def _laid_out(self, directions: FloatArray) -> Tensor:
        """Directions over the columns of the flat parameters."""
        models = self.models
        if len(directions) and directions.shape[1] != models.size:
            raise InvalidArgument(
                f"Expected canaries over {models.size} parameters, got {directions.shape[1]}."
            )
        laid = torch.zeros(len(directions), models.parameters.shape[1], device=models.device)
        if len(directions):
            laid[:, models.used] = as_tensor(directions, models.device).to(laid.dtype)
        return laid


@contextmanager
def told(device: str) -> Iterator[None]:
    """Turns a device that is full into a sentence that says what to do."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(
            f"Expected the runs to fit into the memory of {device}, they do not. "
            "Train fewer at once: give a smaller at_once (or runs), or a smaller batch_size."
        ) from error


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """On the CPU one thread: work is shared among processes, and sums have one order."""
    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_tensor(values: ArrayLike, device: str) -> Tensor:
    """Numbers on a device: floats in single precision, all others as 64-bit integers."""
    if isinstance(values, Tensor):
        tensor = values.to(device)
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise InvalidArgument(f"Expected numbers, got an array of {array.dtype}.")
        wide = np.float32 if array.dtype.kind == "f" else np.int64
        tensor = torch.from_numpy(array.astype(wide)).to(device)  # a copy, which may be written to
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def _on_cpu(tensor: Tensor) -> FloatArray:
    return np.asarray(tensor.cpu().numpy())
