"""Take the user's Opacus step on a batch, and record what it passes to the inner optimiser."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from epsilometer import _validate
from epsilometer.conformance.batches import (
    count_records,
    find_labels,
    make_neighbour,
)
from epsilometer.conformance.neighbours import Distance, Neighbour, Replayed
from epsilometer.errors import EpsilometerError, InvalidArgument
from epsilometer.integrations.opacus.objects import find_precision, list_gradients
from epsilometer.integrations.opacus.rewinding import Rewinder

Loss: TypeAlias = Callable[..., Any]


@dataclass(eq=False)
class _Release:
    """Hold the release of one step.

    Attributes:
        clip_norm: C when noise was added.
        noisy: Gradients just after noise, for each time that noise was added.
        sums: Gradients just before noise, likewise; empty if the optimiser keeps none.
        final: Input of the inner optimiser, if it is recorded.
        scale: Divisor of a correct optimiser before that.
        reached: Whether any gradient reached the inner optimiser.
        coarsest: Relative precision of the coarsest arithmetic used.
        moved: Whether an accelerator drew random numbers before the noise.
        adjusted: σ that Opacus's adaptive ghost clipping sets for a batch; None otherwise.
    """

    clip_norm: float
    noisy: list[list[Any]] = field(default_factory=list)
    sums: list[list[Any]] = field(default_factory=list)
    final: list[Any] = field(default_factory=list)
    scale: float = 1.0
    reached: bool = False
    coarsest: float = 0.0
    moved: bool = False
    adjusted: float | None = None


class StepReplayer:
    """Take the user's step on neighbouring batches; see ``conformance.neighbours.Replayer``.

    It compares the gradient just after noise. What follows is post-processing if its result depends
    on the noisy gradient only, which ``noisy`` of a run tests.

    Args:
        rewinder: Restores training before every step.
        model: The module.
        optimizer: The ``DPOptimizer``.
        loss: See :func:`replay`.
        batch: See :func:`replay`.
        seed: Seed of the randomness of all steps.
    """

    def __init__(
        self, rewinder: Rewinder, model: Any, optimizer: Any, loss: Loss, batch: Any, *, seed: int
    ) -> None:
        self._rewinder, self._model, self._optimizer = rewinder, model, optimizer
        self._compute_loss = as_step(loss)
        self._batch = batch
        self._seeds = np.random.SeedSequence(seed)
        self._release: _Release | None = None
        self._given: Sequence[Sequence[Any]] = ()  # noisy gradients that replace those of the step
        self._keeps = False
        self.count = count_records(batch)
        self.labelled = bool(find_labels(batch))
        self.steps = 0
        self.coarsest = 0.0  # coarsest relative precision so far
        self.endless: list[str] = []  # changes that made gradients infinite, in words
        self.adjusted: set[float] = set()  # σ that Opacus set by the size of a batch
        self.jitter = 0.0  # difference of two equal steps, in clipping norms

    def run(
        self,
        neighbour: Neighbour,
        *,
        noisy: Sequence[Sequence[Any]] = (),
        keep: bool = False,
    ) -> Replayed:
        """Take the step on this batch, with the randomness of all batches of the same index.

        Args:
            neighbour: The batch.
            noisy: Gradients that replace those of the step just after noise.
            keep: Whether to record the input of the inner optimiser.
        """
        key = (*self._seeds.spawn_key, neighbour.place, int(neighbour.alike))
        entropy = np.random.SeedSequence(self._seeds.entropy, spawn_key=key)
        self._rewinder.begin(int(entropy.generate_state(1)[0]))
        if neighbour.weights != 1:
            for parameter in self._rewinder.parameters:
                if parameter.requires_grad:
                    parameter.data.mul_(neighbour.weights)
        self.steps += 1
        self._given, self._keeps = noisy, keep
        self._release = _Release(float(self._optimizer.max_grad_norm))
        try:
            self._take_step(make_neighbour(self._batch, neighbour))
        except EpsilometerError as error:
            return Replayed(released=None, state="", error=error.shareable)
        except Exception as error:  # only its type is reported: its text may contain a record
            return Replayed(released=None, state="", error=type(error).__name__)
        return self._conclude(neighbour, self._release)

    def measure(self, first: Replayed, second: Replayed) -> Distance:
        """Measure the distance of two releases; of sums before noise if noise hides them."""
        one, two = first.released, second.released
        if not (one.noisy and two.noisy):  # noise that is added elsewhere
            scaled = [[[each * release.scale for each in release.final]] for release in (one, two)]
            return self._measure(one, two, *scaled)
        found = self._measure(one, two, one.noisy, two.noisy)
        if found.slack > 0.5 and one.sums and two.sums:
            return self._measure(one, two, one.sums, two.sums)
        return found

    def measure_final(self, first: Replayed, second: Replayed) -> float:
        """Measure the distance of the applied gradients, relative to their norm."""
        distance, size, _ = _measure_distance(first.released.final, second.released.final)
        return distance / size if size else distance

    def find_obstacle(self, run: Replayed, base: Replayed) -> str:
        """Say why a run cannot be compared with that of the original batch; empty if it can."""
        if run.error:
            return f"the step raised {run.error[:80]}"
        if run.refused:
            return run.refused
        if not math.isclose(run.released.clip_norm, base.released.clip_norm, rel_tol=1e-9):
            return "the clipping norm of the step depends on the records of the batch"
        if run.released.adjusted != base.released.adjusted:
            return "the noise multiplier of the step depends on the records of the batch"
        if run.state != base.state:
            return "the random stream depends on the records of the batch"
        return ""

    def _take_step(self, batch: Any) -> None:
        optimizer = self._optimizer
        own_noise = optimizer.add_noise
        accelerators = self._rewinder.streams.read_accelerators()

        def add_noise(*args: Any, **kwargs: Any) -> Any:
            self._look_before_noise(accelerators)
            done = own_noise(*args, **kwargs)
            self._look_after_noise()
            return done

        # Instance attributes, which the rewinder removes again.
        optimizer.add_noise = add_noise
        optimizer.original_optimizer.step = self._look_at_release
        hook = self._model.register_forward_pre_hook(self._look_at_precision)
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
                optimizer.zero_grad()
                value = self._compute_loss(self._model, batch)
                if value is not None:
                    value.backward()
                if not self._taken.reached:
                    optimizer.step()
        finally:
            hook.remove()

    @property
    def _taken(self) -> _Release:
        assert self._release is not None  # set before every step
        return self._release

    def _look_at_precision(self, module: Any, args: Any) -> None:
        release = self._taken
        for parameter in self._rewinder.parameters:
            device, kind = parameter.device.type, parameter.dtype
            if torch.is_autocast_enabled(device):
                kind = torch.get_autocast_dtype(device)
            elif device == "cuda" and (
                torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
            ):
                release.coarsest = max(release.coarsest, 2.0**-10)  # TF32 has 10 bits
            # Small gradients in float16 lose far more bits than large ones.
            precision = 2.0**-6 if kind == torch.float16 else torch.finfo(kind).eps
            release.coarsest = max(release.coarsest, precision)

    def _look_before_noise(self, accelerators: str) -> None:
        optimizer, release = self._optimizer, self._taken
        release.clip_norm = float(optimizer.max_grad_norm)
        release.adjusted = getattr(optimizer, "_adjusted_noise_multiplier", None)
        if release.adjusted is not None:
            self.adjusted.add(float(release.adjusted))
        release.moved = accelerators != self._rewinder.streams.read_accelerators()
        rows = [row for each in optimizer.params for row in list_gradients(each)]
        release.coarsest = max(release.coarsest, find_precision(rows))  # autocast rounds them
        sums = [getattr(each, "summed_grad", None) for each in optimizer.params]
        if all(each is not None for each in sums):
            release.sums.append(sums)

    def _look_after_noise(self) -> None:
        """Record the noisy gradients, or replace them with the given ones."""
        parameters, release = list(self._optimizer.params), self._taken
        turn = len(release.noisy)
        if turn < len(self._given):
            for parameter, gradient in zip(parameters, self._given[turn], strict=True):
                parameter.grad = gradient.clone().view_as(parameter)
        gradients = [each.grad for each in parameters if each.grad is not None]
        # Later code may change them in place.
        release.noisy.append([each.detach().clone() for each in gradients])
        if release.sums and self._is_precise(release.noisy[-1], release.clip_norm):
            release.sums.clear()  # memory: noise hides nothing

    @staticmethod
    def _is_precise(gradients: list[Any], clip_norm: float) -> bool:
        size = math.sqrt(sum(float(each.float().norm()) ** 2 for each in gradients))
        return 2 * find_precision(gradients) * size <= 0.25 * clip_norm

    def _look_at_release(self, *args: Any, **kwargs: Any) -> None:
        """Replace the step of the inner optimiser: record its input."""
        optimizer, release = self._optimizer, self._taken
        gradients = [
            parameter.grad.detach()
            for group in optimizer.original_optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        release.reached |= bool(gradients)
        release.coarsest = max(release.coarsest, find_precision(gradients))
        if self._keeps or not release.noisy:
            release.scale = read_scale(optimizer)
            release.final += [each.clone() for each in gradients]

    def _conclude(self, neighbour: Neighbour, release: _Release) -> Replayed:
        self.coarsest = max(self.coarsest, release.coarsest)
        state = self._rewinder.streams.read()
        if neighbour.change == "removed" and release.moved:
            # An accelerator gives numbers by place: a record less shifts those of others, and the
            # stream may end at the same place all the same.
            state = "moved"
        refused = "" if release.reached else "no gradient reached the optimiser inside"
        released = [*(each for part in release.noisy for each in part), *release.final]
        if neighbour.change == "scaled" and not all(bool(x.isfinite().all()) for x in released):
            self.endless.append(str(neighbour))
            refused = f"gradients are infinite where a record is {neighbour}"
        return Replayed(released=release, state=state, refused=refused)

    def _measure(
        self, one: _Release, two: _Release, first: list[list[Any]], second: list[list[Any]]
    ) -> Distance:
        """Measure the largest distance over all times that noise was added."""
        if len(first) != len(second):
            return Distance(math.inf, 0.0)
        clip_norm = one.clip_norm
        # Rounding of the gradients of all other records in both runs, and of what is released.
        others = max(one.coarsest, two.coarsest) * self.count + 2 * self.jitter
        measured = (_measure_distance(*pair) for pair in zip(first, second, strict=True))
        return max(
            Distance(distance / clip_norm, 2 * precision * size / clip_norm + others)
            for distance, size, precision in measured
        )


def as_step(loss: Loss) -> Callable[[Any, Any], Any]:
    """Return the user's loss as a function of a model and a batch."""
    kinds = {kind.__name__ for kind in type(loss).__mro__}
    origin = str(getattr(loss, "__module__", "") or "")
    ready = isinstance(loss, torch.nn.Module) or "DPLossFastGradientClipping" in kinds
    if not ready and not (origin == "torch" or origin.startswith("torch.")):
        return loss

    def compute(model: Any, batch: Any) -> Any:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InvalidArgument(
                "Expected a batch (inputs, targets) with a criterion, got "
                f"{_validate.short(type(batch))}. Give a function loss(model, batch) for others."
            )
        inputs, targets = batch
        if isinstance(inputs, dict):
            return loss(model(**inputs), targets)
        return loss(model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs), targets)

    return compute


def read_scale(optimizer: Any) -> float:
    """Return the divisor by which a correct optimiser divides the noisy sum."""
    if optimizer.loss_reduction != "mean":
        return 1.0
    try:
        batches = int(optimizer.accumulated_iterations)
    except (AttributeError, IndexError, ValueError):  # no gradients of single records
        batches = 1
    return float(optimizer.expected_batch_size) * batches


def _measure_distance(first: list[Any], second: list[Any]) -> tuple[float, float, float]:
    """Return the distance, the norm of the larger, and the relative precision of the values."""
    if [each.shape for each in first] != [each.shape for each in second]:
        return math.inf, 0.0, 0.0
    total = sizes = 0.0
    for tensor, its in zip(first, second, strict=True):
        kind = torch.promote_types(tensor.dtype, torch.float32)
        one, two = tensor.to_dense().to(kind), its.to_dense().to(kind)
        total += float(torch.linalg.vector_norm(one - two)) ** 2
        sizes += float(torch.linalg.vector_norm(torch.maximum(one.abs(), two.abs()))) ** 2
    distance = math.sqrt(total) if math.isfinite(total) else math.inf
    size = math.sqrt(sizes) if math.isfinite(sizes) else 0.0
    return distance, size, find_precision(first)
