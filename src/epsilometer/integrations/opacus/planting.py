"""Put canaries into the sums of a run, and see what is released in their directions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.dpsgd.canary_run import CanarySteps
from epsilometer.integrations.opacus.objects import count_logical_batches, sampler_of
from epsilometer.integrations.opacus.schedule import Schedule
from epsilometer.integrations.opacus.strided import StridedCanaries
from epsilometer.sampling.samplers import Poisson, Sampler, has_known_order, is_poisson
from epsilometer.types import FloatArray


class PlantedCanaries:
    """Canaries of one run: who is in, in which steps, and what was seen of each.

    A canary is a record whose clipped gradient has exactly the clipping norm. It is added to the
    optimiser's own sum, in the steps in which the loader would have drawn it.

    Args:
        parameters: Which are trained.
        loader: Whose sampling decides when canaries take part.
        count: How many canaries; each is in by its own fair coin.
        seed: Of coins, steps and directions.

    Attributes:
        included: Which are in, shape ``(m,)``.
        sampler: How they take part.
        strange: Whether the loader's sampler is unknown, and Poisson sampling taken in its place.
    """

    def __init__(self, parameters: Sequence[Any], loader: Any, *, count: int, seed: int) -> None:
        coins, batches, keys = np.random.default_rng(seed).spawn(3)
        self._parameters = list(parameters)
        self.included: NDArray[np.bool_] = coins.random(count) < 0.5
        known = sampler_of(loader)
        self.strange = known is None
        per_epoch = count_logical_batches(loader)
        self.sampler: Sampler = known or Poisson(rate=1 / per_epoch)
        self._schedule = Schedule(count=count, batches=per_epoch, sampler=self.sampler, rng=batches)
        self._directions = StridedCanaries(
            count=count,
            sizes=[each.numel() for each in parameters],
            key=int(keys.integers(2**63)),
            device=self._parameters[0].device,
        )
        self._start = self._directions.dots([each.detach() for each in self._parameters])
        self._now: tuple[NDArray[np.bool_], float, int] | None = None
        self._seen: list[FloatArray] = []
        self._took: list[NDArray[np.bool_]] = []
        self._rest: list[tuple[float, float, int, float]] = []  # noise, chance, epoch, share

    @property
    def rate(self) -> float:
        """Chance of a record to be in a batch."""
        return self._schedule.chance()

    @property
    def steps(self) -> int:
        """Steps in which they were seen."""
        return len(self._seen)

    @property
    def noise_share(self) -> float:
        """The norm of what is added over that of the noise, mean of all steps."""
        return float(np.mean([share for *_, share in self._rest])) if self._rest else 0.0

    def draw(self, batches: int) -> FloatArray:
        """Return who is added in the next step, which takes so many batches, as 0 or 1."""
        epoch, chance = self._schedule.epoch, self._schedule.chance(batches)
        took = self._schedule.step(batches)
        self._now = took, chance, epoch
        return np.asarray(took & self.included, np.float64)

    def add(self, sums: Sequence[Any], amplitudes: FloatArray) -> None:
        """Add each with its amplitude to the sums of a step, in place."""
        self._directions.add(sums, amplitudes)

    def measure(self, released: Sequence[Any], sums: Sequence[Any]) -> FloatArray:
        """Return the noise in each canary's direction."""
        return self._directions.dots(released, less=sums)

    def see(self, noise: FloatArray | None, *, noise_multiplier: float) -> None:
        """Take what the step that was drawn released in their directions, less other records.

        Args:
            noise: In each direction, in clipping norms; None where nothing could be seen.
            noise_multiplier: σ of the step.
        """
        assert self._now is not None  # the step was drawn
        took, chance, epoch = self._now
        added = took & self.included
        loudness = noise_multiplier * np.sqrt(self._directions.dimension)
        share = float(np.sqrt(added.sum()) / loudness) if loudness else np.inf
        self._seen.append(np.zeros(added.size) if noise is None else noise + added)
        self._took.append(took)
        self._rest.append((noise_multiplier, chance, epoch, share))

    def steps_seen(self) -> CanarySteps:
        """Return what all steps showed."""
        noise, chance, epoch, _ = zip(*self._rest, strict=True)
        once = not is_poisson(self.sampler) and not self.public_order  # per epoch, who knows where
        return CanarySteps(
            seen=np.stack(self._seen),
            took=np.stack(self._took),
            noise=np.array(noise),
            chance=np.array(chance),
            blur=np.zeros(len(noise)),
            epoch=np.array(epoch) if once else None,
        )

    def weights_seen(self) -> FloatArray:
        """Return how far the parameters moved against each canary's direction."""
        now = self._directions.dots([each.detach() for each in self._parameters])
        return np.nan_to_num(self._start - now, posinf=0.0, neginf=0.0)

    @property
    def public_order(self) -> bool:
        """Whether everybody knows which records are in a batch."""
        return has_known_order(self.sampler)
