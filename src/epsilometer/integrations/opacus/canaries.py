"""Plant canaries in the sums of a run, and measure the releases in their directions.

Canaries have disjoint sets of coordinates: adding and scoring all of them takes one pass each.
Coordinate j of all concatenated parameters belongs to canary j mod P, where P is the first prime
that is at least the number of canaries. So each canary has its share of every tensor, and does not
fall on one row or column of a matrix. Within its coordinates, a canary is a vector of random signs
with norm 1. Canaries share no coordinate, so none affects another's direction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.audits.dpsgd.canary_run import CanarySteps
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.opacus.objects import count_logical_batches, find_sampler
from epsilometer.sampling.samplers import Poisson, Sampler, Sequential, Shuffle
from epsilometer.types import FloatArray

_CHUNK = 2**22  # values processed at a time: 16 MiB of float32


@dataclass(eq=False, kw_only=True)
class Schedule:
    """Draw which canaries take part in the next step, planted or not.

    Guarantees: every canary's steps are distributed like a record's under ``sampler``,
        independently of the other canaries and of whether it is planted.
    Assumes: every epoch reads the whole loader.

    Attributes:
        count: Number of canaries.
        batches: Number of batches per epoch.
        sampler: ``Poisson`` (its rate, or 1/batches), ``Shuffle`` or ``Sequential``.
        rng: Random generator.

    Example:
        >>> schedule = Schedule(count=4, batches=2, sampler=Shuffle(), rng=np.random.default_rng(0))
        >>> first, second = schedule.step(), schedule.step()
        >>> bool(np.all(first ^ second))  # once per epoch, each
        True
    """

    count: int
    batches: int
    sampler: Sampler
    rng: np.random.Generator
    _slots: NDArray[np.int64] = field(init=False, repr=False)
    _position: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        _validate.whole(1, count=self.count, batches=self.batches)
        if not isinstance(self.sampler, (Poisson, Shuffle, Sequential)):
            raise InvalidArgument(
                f"Expected Poisson, Shuffle or Sequential for canaries, got {self.sampler!r}."
            )
        self._slots = self._draw_slots()

    def step(self, batches: int = 1) -> NDArray[np.bool_]:
        """Draw who takes part in the next step, which uses this many batches; shape
        ``(count,)``."""
        _validate.whole(1, batches=batches)
        if isinstance(self.sampler, Poisson):
            return np.asarray(self.rng.random(self.count) < self.chance(batches))
        took = np.zeros(self.count, np.bool_)
        for _ in range(batches):
            took |= self._slots == self._position % self.batches
            self._position += 1
            if self._position % self.batches == 0 and isinstance(self.sampler, Shuffle):
                self._slots = self._draw_slots()
        return took

    def chance(self, batches: int = 1) -> float:
        """Return the probability of taking part in a step of this many batches."""
        rate = self.sampler.rate if isinstance(self.sampler, Poisson) else None
        return min(1.0, batches * (rate or 1 / self.batches))

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self._position // self.batches

    def _draw_slots(self) -> NDArray[np.int64]:
        return self.rng.integers(self.batches, size=self.count)


class StridedCanaries:
    """Make directions in the space of some tensors, each on its own coordinates.

    Guarantee: orthonormal up to float32 rounding; independent of everything but ``key``.
        Independent noise of scale σ in every coordinate has independent components of scale σ in
        their directions.
    Assumption: at most as many canaries as coordinates.

    Args:
        count: Number of canaries.
        sizes: Coordinates of each tensor.
        key: Key that determines the signs.
        device: Device of the tensors; it stores one byte per coordinate.

    Example:
        >>> import torch
        >>> canaries = StridedCanaries(count=3, sizes=[40, 60], key=7)
        >>> tensors = [torch.zeros(8, 5), torch.zeros(60)]
        >>> canaries.add(tensors, np.array([5.0, 0.0, -2.0]))
        >>> canaries.dots(tensors).round(4) + 0.0
        array([ 5.,  0., -2.])
    """

    def __init__(self, *, count: int, sizes: Sequence[int], key: int, device: Any = "cpu") -> None:
        _validate.whole(1, count=count)
        _validate.whole(0, key=key)
        total = sum(sizes)
        if count > total:
            raise InvalidArgument(
                f"Expected at most one canary per parameter, got {count:,} for {total:,} trainable "
                "parameters. Ask for fewer canaries."
            )
        self.count, self.dimension = count, total
        self.period = find_prime(count)
        self._length = max(1, _CHUNK // self.period) * self.period
        self._groups = _group_tensors(sizes, self._length)
        bits = np.unpackbits(np.frombuffer(np.random.default_rng(key).bytes(-(-total // 8)), "u1"))
        self._signs = torch.from_numpy(bits[:total].astype(np.int8) * 2 - 1).to(device)
        owners = np.arange(self.period)
        self._norms = np.sqrt((total - owners + self.period - 1) // self.period)

    def add(self, tensors: Sequence[torch.Tensor], amplitudes: FloatArray) -> None:
        """Add every canary with its amplitude, in place."""
        wave = np.zeros(self.period, np.float32)
        wave[: self.count] = amplitudes / self._norms[: self.count]
        if not wave.any():
            return
        for places, start, end in self._groups:
            flats = [tensors[place].view(-1) for place in places]
            turned = torch.from_numpy(np.roll(wave, -(start % self.period))).to(flats[0])
            for begin in range(start, end, self._length):
                signs = self._signs[begin : min(begin + self._length, end)]
                whole = signs.numel() // self.period * self.period
                added = torch.empty(signs.numel(), dtype=turned.dtype, device=turned.device)
                rows = signs[:whole].view(-1, self.period)
                torch.mul(rows, turned, out=added[:whole].view(-1, self.period))
                torch.mul(signs[whole:], turned[: signs.numel() - whole], out=added[whole:])
                if len(flats) == 1:
                    flats[0][begin - start : begin - start + signs.numel()].add_(added)
                else:
                    ends = np.cumsum([flat.numel() for flat in flats[:-1]]).tolist()
                    torch._foreach_add_(flats, added.tensor_split(ends))

    def dots(
        self,
        tensors: Sequence[torch.Tensor],
        less: Sequence[torch.Tensor] | None = None,
    ) -> FloatArray:
        """Return the inner product of every canary with ``tensors``, or with ``tensors − less``."""
        parts = []
        for places, start, end in self._groups:
            first = _Flat([tensors[place] for place in places])
            second = None if less is None else _Flat([less[place] for place in places])
            total = torch.zeros(self.period, dtype=torch.float64, device=self._signs.device)
            for begin in range(start, end, self._length):
                stop = min(begin + self._length, end)
                values = first.piece(begin - start, stop - start)
                if second is not None:
                    values = values - second.piece(begin - start, stop - start)
                values = values * self._signs[begin:stop]
                whole = values.numel() // self.period * self.period
                total += values[:whole].view(-1, self.period).sum(0)
                total[: values.numel() - whole] += values[whole:]
            parts.append(torch.roll(total, start % self.period))
        found = torch.stack(parts).sum(0).cpu().numpy()
        return np.asarray((found / self._norms)[: self.count], np.float64)


class _Flat:
    """Treat several tensors as one float32 vector, without copying large ones as a whole."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        flats = [tensor.reshape(-1) for tensor in tensors]
        self._flat = flats[0] if len(flats) == 1 else torch.cat([flat.float() for flat in flats])

    def piece(self, begin: int, end: int) -> torch.Tensor:
        return self._flat[begin:end].float()


def _group_tensors(sizes: Sequence[int], most: int) -> list[tuple[list[int], int, int]]:
    """Return groups of tensors to process together, with their first and last coordinates."""
    groups: list[tuple[list[int], int, int]] = []
    end = 0
    for place, size in enumerate(sizes):
        start, end = end, end + size
        if groups and end - groups[-1][1] <= most:
            groups[-1] = [*groups[-1][0], place], groups[-1][1], end
        else:
            groups.append(([place], start, end))
    return groups


def find_prime(least: int) -> int:
    """Return the smallest prime that is at least this number.

    Example:
        >>> find_prime(500), find_prime(2)
        (503, 2)
    """
    number = max(2, least)
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number


class PlantedCanaries:
    """Manage the canaries of one run: which are included, in which steps, with which observations.

    A canary is a record whose clipped gradient has exactly the clipping norm. It is added to the
    optimiser's own sum, in the steps in which the loader would have drawn it.

    Args:
        parameters: Trainable parameters.
        loader: Loader whose sampling decides when canaries take part.
        count: Number of canaries; each is included by its own fair coin.
        seed: Seed of coins, steps and directions.

    Attributes:
        included: Which are included, shape ``(m,)``.
        sampler: How they take part.
        strange: Whether the loader's sampler is unknown, and Poisson sampling is used instead.
    """

    def __init__(self, parameters: Sequence[Any], loader: Any, *, count: int, seed: int) -> None:
        coins, batches, keys = np.random.default_rng(seed).spawn(3)
        self._parameters = list(parameters)
        self.included: NDArray[np.bool_] = coins.random(count) < 0.5
        known = find_sampler(loader)
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
        """Probability that a record is in a batch."""
        return self._schedule.chance()

    @property
    def steps(self) -> int:
        """Number of steps in which they were observed."""
        return len(self._seen)

    @property
    def noise_share(self) -> float:
        """The norm of the added canaries relative to that of the noise, mean of all steps."""
        return float(np.mean([share for *_, share in self._rest])) if self._rest else 0.0

    def draw(self, batches: int) -> FloatArray:
        """Return which are added in the next step of this many batches, as 0 or 1."""
        epoch, chance = self._schedule.epoch, self._schedule.chance(batches)
        took = self._schedule.step(batches)
        self._now = took, chance, epoch
        return np.asarray(took & self.included, np.float64)

    def add(self, sums: Sequence[Any], amplitudes: FloatArray) -> None:
        """Add each canary with its amplitude to the sums of a step, in place."""
        self._directions.add(sums, amplitudes)

    def measure(self, released: Sequence[Any], sums: Sequence[Any]) -> FloatArray:
        """Return the noise in each canary's direction."""
        return self._directions.dots(released, less=sums)

    def see(self, noise: FloatArray | None, *, noise_multiplier: float) -> None:
        """Add the drawn step's release in their directions, minus other records.

        Args:
            noise: Noise in each direction, in clipping norms; None if it could not be observed.
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

    def collect_steps(self) -> CanarySteps:
        """Return the observations of all steps."""
        noise, chance, epoch, _ = zip(*self._rest, strict=True)
        return CanarySteps(
            seen=np.stack(self._seen),
            took=np.stack(self._took),
            noise=np.array(noise),
            chance=np.array(chance),
            blur=np.zeros(len(noise)),
            epoch=np.array(epoch) if isinstance(self.sampler, Shuffle) else None,
        )

    def measure_weights(self) -> FloatArray:
        """Return how far the parameters moved against each canary's direction."""
        now = self._directions.dots([each.detach() for each in self._parameters])
        return np.nan_to_num(self._start - now, posinf=0.0, neginf=0.0)

    @property
    def public_order(self) -> bool:
        """Whether everyone knows which records are in a batch."""
        return isinstance(self.sampler, Sequential)
