"""Watch an Opacus training run step by step: noise, clipping, updates and books.

Three methods of this optimiser object are wrapped: the one that clips and sums, the one that adds
noise, and the one that does both before a step. Their results are unchanged.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from epsilometer.conformance.books import Books
from epsilometer.conformance.carryover import CarryoverCheck
from epsilometer.conformance.clipping import ClippingWatch
from epsilometer.conformance.clipping_norms import ClippingNormWatch
from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.conformance.guesses import check_seed
from epsilometer.conformance.loader_watch import LoaderWatch
from epsilometer.conformance.noise_checks import LEVEL
from epsilometer.conformance.participation import ParticipationWatch
from epsilometer.conformance.run_epsilon import NoiseGroup, bound_epsilon_of_run
from epsilometer.conformance.summary import StepSummary
from epsilometer.conformance.tensors import TensorSummariser
from epsilometer.conformance.watch import StepWatch
from epsilometer.core import judge
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.canaries import PlantedCanaries
from epsilometer.integrations.opacus.loud_rows import LoudRows
from epsilometer.integrations.opacus.modules import ModuleWatch
from epsilometer.integrations.opacus.objects import (
    count_taken,
    find_logical_sampler,
    find_noise,
    find_seed,
    is_ghost,
    list_gradients,
    measure_rows,
)
from epsilometer.integrations.opacus.updates import UpdateWatch
from epsilometer.sampling.samplers import Poisson, Shuffle
from epsilometer.types import FloatArray

_GHOST = "ghost clipping holds no gradients of single records: replay tests it"
SHARE = LEVEL / 8  # of the level, for what is not noise: clipping, earlier records, batches, ε


class RunWatch:
    """Watch a run, starting with its next step.

    Args:
        engine: Its ``PrivacyEngine``.
        optimizer: Its ``DPOptimizer``.
        loader: Its loader.
        canaries: Canaries to add to it.
        seed: Seed of loud records.
        noise: Declared correlated noise, a ``conformance.whitening.Whitening``.

    Attributes:
        steps: Number of private steps taken.
        lost: Number of steps whose gradients were not finite.
        ghost: Whether the optimiser clips without per-example gradients.
    """

    def __init__(
        self,
        engine: Any,
        optimizer: Any,
        loader: Any,
        *,
        canaries: PlantedCanaries,
        seed: int,
        noise: Any = None,
    ) -> None:
        self._engine, self._optimizer, self._canaries = engine, optimizer, canaries
        self._params = list(optimizer.params)
        self.steps, self.lost, self.ghost = 0, 0, is_ghost(optimizer)
        self._modules = ModuleWatch(self._params)
        self._updates = UpdateWatch(
            self._params, optimizer.original_optimizer, due=self._see_reduced
        )
        self._noise = StepWatch(level=LEVEL / 2, noise=noise)
        self._summariser: TensorSummariser | None = None
        self._silent: dict[float, NoiseGroup] = {}  # steps without noise, by their rate
        self._carryover = CarryoverCheck(level=SHARE)
        self._clipping = ClippingWatch(level=SHARE, missing=_GHOST if self.ghost else "no batch")
        self._norms = ClippingNormWatch(private=hasattr(optimizer, "unclipped_num_std"))
        self._seed: int | None = None  # of the generator of the noise
        self._loud = LoudRows(optimizer, self._modules.names, self._clipping, seed)
        self._loader = LoaderWatch(loader, find_logical_sampler(loader))
        self._participation = ParticipationWatch(len(loader.dataset), canaries.rate, level=SHARE)
        self._books = Books()
        self._history = list(engine.accountant.history)
        self._taken = count_taken(optimizer)
        self._rows = 0
        self._in_place = False  # whether the optimiser changes its sum while it adds noise
        self._rank = int(getattr(optimizer, "rank", 0))
        self._world = int(getattr(optimizer, "world_size", 1))
        self._pending: tuple[_Step, list[Any]] | None = None
        self._own: dict[str, tuple[Any, Any]] = {}
        self._wrap("accumulate" if self.ghost else "clip_and_accumulate", self._clip)
        self._wrap("add_noise", self._add_noise)
        self._wrap("pre_step", self._pre_step)

    def close(self) -> None:
        """Restore the optimiser and the loader."""
        for name, (wrapper, before) in self._own.items():
            if self._optimizer.__dict__.get(name) is wrapper:
                del self._optimizer.__dict__[name]
                if before is not None:
                    self._optimizer.__dict__[name] = before
        self._modules.close()
        self._updates.close()
        self._loader.close()

    def finding(
        self, *, bound: EpsilonLowerBound | None = None, sampler: str = "Poisson"
    ) -> ConformanceFinding:
        """Return whether the observed run did what was accounted for.

        Args:
            bound: The ε of what ran, from :meth:`bound_epsilon`.
            sampler: Sampler that the claim assumes.
        """
        found = self._noise.finding(
            self._clipping.check(),
            self._norms.check(),
            check_seed(self._seed, steps=self.steps),
            self._carryover.check(),
            self._modules.check(),
            self._updates.check(),
            self._loader.check(self.steps),
            *self._check_participation(sampler),
            *self._books.check(
                self._engine.accountant.history, before=self._history, taken_before=self._taken
            ),
            bound=bound,
        )
        return replace(found, steps=self.steps, level=LEVEL)

    def bound_epsilon(self, *, delta: float, alpha: float) -> EpsilonLowerBound | None:
        """Return the ε of the measured noise and sensitivity; None if it is unknown.

        Args:
            delta: δ.
            alpha: Error probability.
        """
        noise, sampler = (
            [*self._noise.group_noise(), *self._silent.values()],
            self._canaries.sampler,
        )
        known = isinstance(sampler, (Poisson, Shuffle)) and not self._canaries.strange
        if not noise or not known or len({group.rate for group in noise}) > 1:
            return None
        # Ignore what rounding adds.
        clipped = self._clipping.check().outcome != judge.VIOLATED
        return bound_epsilon_of_run(
            noise,
            sensitivity=1.0 if clipped else max(1.0, self._clipping.sensitivity),
            delta=delta,
            confidence=1 - alpha,
            sampling="poisson" if isinstance(sampler, Poisson) else "shuffle",
        )

    @property
    def seen(self) -> bool:
        """Whether anything moved the parameters, privately or not."""
        return self.steps > 0 or self._updates.bare > 0

    def _check_participation(self, sampler: str) -> tuple[Check, ...]:
        if self._world > 1:
            reason = f"each of {self._world} processes draws from its own share of the records"
        elif sampler.lower() not in ("poisson", "unstated"):
            reason = f"the claim is not for Poisson sampling: {sampler}"
        else:
            return self._participation.checks()
        expected = "records enter batches independently, at the booked rate"
        return (leave_untested("participation", expected, reason),)

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        own = getattr(self._optimizer, name)

        @functools.wraps(own)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(functools.partial(own, *args, **kwargs))

        wrapper.audit = self  # type: ignore[attr-defined]
        self._own[name] = wrapper, self._optimizer.__dict__.get(name)
        self._optimizer.__dict__[name] = wrapper

    def _clip(self, own: Callable[[], Any]) -> Any:
        """Clip and sum one physical batch with the optimiser's own method."""
        if self.ghost:
            return own()
        self._rows += sum(len(part) for part in list_gradients(self._params[0]))
        return self._loud.clip(own)

    def _pre_step(self, own: Callable[[], Any]) -> Any:
        """Run the optimiser's pre-step, after which its books are updated."""
        self._updates.look_for_moves()
        batches = int(self._optimizer.accumulated_iterations)
        noise = float(self._optimizer.noise_multiplier)
        done = own()
        if done:
            self.steps += 1
            self._modules.close()
            self._books.take_step(noise_multiplier=noise, rate=self._rate(batches))
            drawn = self._loader.take()
            self._loader.feed(self._participation)
            if drawn is not None and batches > 1:
                self._participation.see_joined(drawn)
            if not self.ghost:
                self._participation.see_rows(
                    0 if drawn is None else len(drawn), self._rows, rate=self._rate(batches)
                )
            self._rows = 0
        return done

    def _add_noise(self, own: Callable[[], Any]) -> Any:
        """Add noise with the optimiser's own method, to a sum that includes canaries."""
        params, optimizer = self._params, self._optimizer
        if any(p.summed_grad is None for p in params):
            return own()  # an optimiser that keeps its sum elsewhere: nothing can be observed
        for p in params:
            p.summed_grad = p.summed_grad.contiguous()
        sums = [p.summed_grad for p in params]
        batches = int(optimizer.accumulated_iterations)
        step = _Step(
            added=self._canaries.draw(batches),
            rate=self._rate(batches),
            clip=float(optimizer.max_grad_norm),
            sigma=find_noise(optimizer),
        )
        self._norms.see(step.clip, functools.partial(measure_rows, params))
        self._seed = find_seed(optimizer)
        if self._rank == 0:
            self._canaries.add(sums, step.clip * step.added)
        kept = [part.clone() for part in sums] if self._in_place or self._world > 1 else sums
        versions = [part._version for part in sums]
        done = own()
        if self._world > 1:
            self._pending = step, kept  # judged once gradients of all processes are summed
            self._updates.expect()
            return done
        self._updates.release()
        changed = any(
            p.summed_grad is not part or part._version != version
            for p, part, version in zip(params, sums, versions, strict=True)
        )
        if changed and not self._in_place:
            self._in_place = True  # what was added to is gone in this step, but not in the next
        else:
            self._see(step, [p.grad for p in params], kept)
        return done

    def _see_reduced(self) -> None:
        """Check the gradient that all processes share, just before it is applied."""
        if self._pending is None:
            return
        (step, kept), self._pending = self._pending, None
        optimizer = self._optimizer
        factor = 1.0
        if optimizer.loss_reduction == "mean":
            batches = int(optimizer.accumulated_iterations)
            factor = float(optimizer.expected_batch_size) * batches * self._world
        for part in kept:
            torch.distributed.all_reduce(part)
        self._see(step, [p.grad * factor for p in self._params], kept)

    def _see(self, step: "_Step", released: Sequence[Any], sums: Sequence[Any]) -> None:
        """Compare the release of one step with the sum before noise."""
        noise = self._canaries.measure(released, sums) / step.clip
        try:
            if step.sigma:
                self._noise.see_summary(
                    self._summarise(step, released, sums),
                    noise_multiplier=step.sigma,
                    rate=step.rate,
                )
            elif not np.isfinite(noise).all():
                raise InvalidArgument("Expected finite gradients, got others.")
        except InvalidArgument:
            self.lost += 1
            self._canaries.see(None, noise_multiplier=step.sigma)
            return
        self._canaries.see(noise, noise_multiplier=step.sigma)
        if not step.sigma:  # there is no unit for its noise
            self._silent[step.rate] = NoiseGroup(
                noise_multiplier=1.0, rate=step.rate, steps=1, tensors=(("all parameters", 1, 0.0),)
            )
        else:
            self._carryover.see(noise / step.sigma, step.added / step.sigma)

    def _summarise(
        self, step: "_Step", released: Sequence[Any], sums: Sequence[Any]
    ) -> StepSummary:
        if self._summariser is None:
            shapes = [tuple(p.shape) for p in self._params]
            named = list(zip(self._modules.names(), shapes, strict=True))
            self._summariser = TensorSummariser(named, self._params[0].device)
        pairs = zip(released, sums, strict=True)
        return self._summariser.summarise(pairs, unit=step.sigma * step.clip)

    def _rate(self, batches: int) -> float:
        """Return the rate at which records enter a step of this many batches."""
        return min(1.0, self._canaries.rate * batches)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Step:
    """Hold one step: which canaries were added, as 0 or 1, its rate, clipping norm and noise."""

    added: FloatArray
    rate: float
    clip: float
    sigma: float
