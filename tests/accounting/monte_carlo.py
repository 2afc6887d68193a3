"""The Monte-Carlo accountant: ε from sampled privacy losses, for any sampler whose ratio is known.

δ(ε) = E[(1 − e^{ε − L})₊] needs no error counting. Losses of one unit (an epoch, or a step where
steps are independent) are drawn from a *defensive mixture*: the law itself, and laws under which
large losses are common (the target's batch shifted, another batch shifted; for losses of the other
direction, which no single batch makes, all batches tilted a little). Weights are taken against the
whole mixture and so are bounded. Units are then composed on a grid. How far the result can be off
follows from how much each draw moved it (its influence).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.accounting.epochs import check_direction
from epsilometer.accounting.loss_distribution import LossDistribution, compose
from epsilometer.accounting.shuffle import CITES, law_of, setting_in_words
from epsilometer.core.bound import Direction, EpsilonEstimate
from epsilometer.errors import EpsilometerError
from epsilometer.sampling.samplers import Sampler, Shuffle
from epsilometer.stats import search
from epsilometer.types import FloatArray, IntArray

_SHUFFLE = Shuffle()
_NORMALS = 2e8  # drawn for one direction by default
_AT_ONCE = 2_000_000  # of them in memory
_PILOT = 0.05  # of the draws place the rest
_SHIFTS = np.array([1.0, 2.0, 3.0, 4.5])  # of one batch, in units of the noise
_TILTED_TO = (-4.0, -8.0, -12.0)  # logarithms of the chance of what a tilt makes typical
_TABLE = np.linspace(-9.0, 9.0, 1801)
_WIDTH = float(_TABLE[1] - _TABLE[0])
_DEFENCE = 0.2  # share of the mixture that stays with the law itself, so that weights are below 5
_FEWEST = 400  # effective draws
_CELLS = 2**13  # of the law of a unit


class TooFewDraws(EpsilometerError):
    """The draws that decide are too few for an interval that means something."""


class Unit(Protocol):
    """A piece of the mechanism that is repeated independently, and can be drawn from.

    Must keep: ``draw`` returns losses under the world that is asked for, with importance weights
    whose mean is 1.
    """

    @property
    def size(self) -> int:
        """Normal numbers that one draw takes."""
        ...

    def components(self, *, present: bool) -> int:
        """Of the mixture; the first is the law itself."""
        ...

    def draw(
        self, count: int, shares: FloatArray, *, present: bool, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Losses, weights, and the chance of each component given the draw, (count, components)."""
        ...


@dataclass(frozen=True, kw_only=True)
class OneBatch:
    """An epoch in which the target is in exactly one of ``steps`` batches; see ``epochs.Epoch``."""

    steps: int
    noise: float
    absent: int

    @property
    def size(self) -> int:
        """One for each batch."""
        return self.steps

    def components(self, *, present: bool) -> int:
        """The law; the target or another batch shifted, or all batches tilted."""
        return 1 + (2 * _SHIFTS.size if present else len(self._tilts))

    def draw(
        self, count: int, shares: FloatArray, *, present: bool, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The target is in batch 0: batches are alike, so nothing is lost by that."""
        z = rng.standard_normal((count, self.steps))
        chosen = rng.choice(shares.size, size=count, p=shares)
        if present:
            self._shift(z, chosen, rng)
            logs = self._shifted(z)
        else:
            for i, tilt in enumerate(self._tilts, start=1):
                z[chosen == i] = tilt.drawn(int(np.sum(chosen == i)), self.steps, rng)
            logs = np.stack([tilt.log_ratio(z) for tilt in self._tilts], axis=1)
        mixed = np.concatenate([np.ones((count, 1)), np.exp(logs)], axis=1) * shares
        total = mixed.sum(axis=1)
        z[:, 0] += (self.absent + present) / self.noise
        loss = self._loss(z)
        return (loss if present else -loss), 1 / total, mixed / total[:, None]

    def _shift(self, z: FloatArray, chosen: IntArray, rng: np.random.Generator) -> None:
        moved = np.concatenate([[0.0], _SHIFTS, _SHIFTS])[chosen]
        others = (chosen > _SHIFTS.size) & (self.steps > 1)
        at = np.where(others, rng.integers(1, max(self.steps, 2), chosen.size), 0)
        z[np.arange(chosen.size), at] += moved

    def _shifted(self, z: FloatArray) -> FloatArray:
        """Logarithm of each shifted law's density against the law itself."""
        own = _SHIFTS * z[:, :1] - _SHIFTS**2 / 2
        if self.steps == 1:
            return np.concatenate([own, own], axis=1)
        other = [np.log(np.exp(s * z[:, 1:] - s**2 / 2).mean(axis=1)) for s in _SHIFTS]
        return np.concatenate([own, np.stack(other, axis=1)], axis=1)

    @cached_property
    def _tilts(self) -> "tuple[_Tilt, ...]":
        return tuple(_tilt(self, log_chance) for log_chance in _TILTED_TO)

    def _loss(self, z: FloatArray) -> FloatArray:
        x = z / self.noise  # batch value over σ²
        a = self.absent
        upper = scipy.special.logsumexp((a + 1) * x, axis=1)
        lower = scipy.special.logsumexp(a * x, axis=1) if a else math.log(self.steps)
        return np.asarray(upper - lower - (2 * a + 1) / (2 * self.noise**2))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Tilt:
    """All batches drawn from tilted laws, piecewise uniform on the cells of ``_TABLE``.

    Attributes:
        target: Chance of each cell for the target's noise.
        other: The same for any other batch.
    """

    target: FloatArray
    other: FloatArray

    def drawn(self, count: int, steps: int, rng: np.random.Generator) -> FloatArray:
        """Noise of ``count`` epochs."""
        cells = np.empty((count, steps), np.int64)
        cells[:, 0] = np.searchsorted(np.cumsum(self.target), rng.random(count))
        cells[:, 1:] = np.searchsorted(np.cumsum(self.other), rng.random((count, steps - 1)))
        cells = np.minimum(cells, self.other.size - 1)
        return np.asarray(_TABLE[0] + _WIDTH * (cells + rng.random(cells.shape)))

    def log_ratio(self, z: FloatArray) -> FloatArray:
        """Logarithm of the density against standard normal noise."""
        cells = np.clip(((z - _TABLE[0]) / _WIDTH).astype(np.int64), 0, self.other.size - 1)
        with np.errstate(divide="ignore"):
            logs = np.log(self.other / _WIDTH)[cells]
            logs[:, 0] = np.log(self.target / _WIDTH)[cells[:, 0]]
        logs += z**2 / 2 + math.log(2 * math.pi) / 2
        logs[np.abs(z) >= _TABLE[-1]] = -np.inf  # no tilted law goes there
        return np.asarray(logs.sum(axis=1))


def _tilt(unit: OneBatch, log_chance: float) -> _Tilt:
    """The tilt under which the epochs are typical whose loss is as low as that chance without it.

    L ≤ τ says that Σ_t g(v_t/K) ≤ 0 (see ``epochs``), so laws are tilted by e^{−θ g}, with θ such
    that the mean of the sum is 0; τ follows from the chance by large deviations.
    """
    middle = (_TABLE[1:] + _TABLE[:-1]) / 2
    base = np.diff(scipy.special.ndtr(-np.abs(_TABLE))) * np.where(middle < 0, 1, -1)

    def laws(tau: float, theta: float) -> tuple[FloatArray, FloatArray, float, float]:
        log_k = tau + (2 * unit.absent + 1) / (2 * unit.noise**2)
        parts, sums, log_total = [], 0.0, 0.0
        for mean, times in ((unit.absent / unit.noise, 1), (0.0, unit.steps - 1)):
            log_r = np.minimum((middle + mean) / unit.noise - log_k, 300.0 / (unit.absent + 1))
            g = np.exp(unit.absent * log_r) * np.expm1(log_r)
            peak = float((-theta * g).max())
            weights = base * np.exp(-theta * g - peak)
            parts.append(weights / weights.sum())
            sums += times * float(parts[-1] @ g)
            log_total += times * (peak + math.log(weights.sum()))
        return parts[0], parts[1], sums, log_total

    def theta_of(tau: float) -> float:
        def centred(theta: FloatArray) -> NDArray[np.bool_]:
            return np.asarray(laws(tau, float(theta))[2] > 0)

        end = search.grow(centred, 1e-6, limit=1e9)
        return float(search.bisect(centred, 0.0, end, relative=1e-4)[0])

    def rarer(depth: FloatArray) -> NDArray[np.bool_]:
        tau = -float(depth)
        return np.asarray(laws(tau, theta_of(tau))[3] > log_chance)

    end = search.grow(rarer, 0.05, limit=1e3)
    depth = float(search.bisect(rarer, 0.0, end, relative=1e-3)[0])
    target, other, _, _ = laws(-depth, theta_of(-depth))
    return _Tilt(target=target, other=other)


@dataclass(frozen=True, kw_only=True)
class OneStep:
    """A step that takes the target with probability ``rate``, independently of all others."""

    rate: float
    noise: float
    absent: int

    @property
    def size(self) -> int:
        """One."""
        return 1

    def components(self, *, present: bool) -> int:
        """The law; the step shifted; the target taken, and shifted."""
        return 1 + 2 * _SHIFTS.size

    def draw(
        self, count: int, shares: FloatArray, *, present: bool, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Whether the target is taken is integrated out of the weights."""
        shifts = _SHIFTS if present else -_SHIFTS
        chosen = rng.choice(shares.size, size=count, p=shares)
        moved = np.concatenate([[0.0], shifts, shifts])[chosen]
        mean = (self.absent + present) / self.noise
        # Components beyond the first half have the target in: rare, and decisive.
        inside = np.where(chosen > shifts.size, True, rng.random(count) < self.rate)
        y = rng.standard_normal(count) + moved + mean * inside
        law = self._log_density(y, mean)
        out_of = np.stack([self._log_density(y - s, mean) for s in (0.0, *shifts)], axis=1)
        with_it = np.stack([-((y - s - mean) ** 2) / 2 for s in shifts], axis=1)
        mixed = np.exp(np.concatenate([out_of, with_it], axis=1) - law[:, None]) * shares
        total = mixed.sum(axis=1)
        loss = self._log_density(y, (self.absent + 1) / self.noise) - self._log_density(
            y, self.absent / self.noise
        )
        return (loss if present else -loss), 1 / total, mixed / total[:, None]

    def _log_density(self, y: FloatArray, mean: float) -> FloatArray:
        taken = math.log(self.rate) - (y - mean) ** 2 / 2
        if self.rate == 1:
            return np.asarray(taken)
        return np.asarray(np.logaddexp(math.log1p(-self.rate) - y**2 / 2, taken))


def monte_carlo_epsilon(
    *,
    noise_multiplier: float,
    steps: int,
    epochs: int = 1,
    delta: float,
    sampler: Sampler = _SHUFFLE,
    batch_size: int | None = None,
    direction: Direction = "both",
    confidence: float = 0.95,
    draws: int | None = None,
    rng: np.random.Generator,
) -> EpsilonEstimate:
    """ε by sampling privacy losses; an estimate with an interval, not a bound.

    Guarantees: the interval holds the pair's ε with ``confidence`` as draws grow (it rests on the
        normal limit of the estimate, not on an exact law).
    Assumes: as ``shuffle_epsilon``; of ``Poisson`` and ``WithoutReplacement``, independent steps.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the clipping norm.
        steps: Batches an epoch.
        epochs: Epochs.
        delta: δ.
        sampler: Any with a known likelihood ratio.
        batch_size: Needed for ``PartialShuffle`` and ``BatchThenShuffle``.
        direction: Both by default, and the larger is returned.
        confidence: Of the interval, two-sided.
        draws: Units drawn for a direction; by default what some seconds allow.
        rng: All randomness.

    Raises:
        TooFewDraws: Where the interval would mean nothing.
    """
    _validate.open_unit(delta=delta, confidence=confidence)
    _validate.whole(1, epochs=epochs)
    check_direction(direction)
    unit, times = _unit_of(sampler, noise_multiplier, steps, batch_size)
    if draws is None:
        draws = int(np.clip(_NORMALS / unit.size, 20_000, 3_000_000))
    _validate.whole(1_000, draws=draws)
    worlds: tuple[Direction, ...] = (
        ("present→absent", "absent→present") if direction == "both" else (direction,)
    )
    found = []
    for world in worlds:
        epsilon, error = _estimate(
            unit,
            times * epochs,
            delta=delta,
            draws=draws,
            present=world == "present→absent",
            rng=rng,
        )
        found.append((epsilon, error, world))
    epsilon, error, world = max(found)
    width = float(scipy.special.ndtri(0.5 + confidence / 2)) * error
    return EpsilonEstimate(
        epsilon=epsilon,
        low=max(0.0, epsilon - width),
        high=epsilon + width,
        delta=delta,
        confidence=confidence,
        method="monte_carlo",
        direction=world,
        subject=setting_in_words(sampler, noise_multiplier, steps, epochs),
        adjacency="zero_out",
        cites=CITES,
        caveats=(
            "An estimate for one pair of datasets, with an interval that holds in the limit.",
        ),
        basis=(
            ("noise multiplier", noise_multiplier),
            ("steps", steps),
            ("epochs", epochs),
            ("draws", draws),
            ("standard error", error),
        ),
    )


def _unit_of(
    sampler: Sampler, noise: float, steps: int, batch_size: int | None
) -> tuple[Unit, int]:
    """What is repeated, and how often in an epoch."""
    law = law_of(sampler, noise, steps, batch_size)
    if law.rate is not None:
        return OneStep(rate=law.rate, noise=noise, absent=law.absent), law.steps
    return OneBatch(steps=law.steps, noise=noise, absent=law.absent), 1


def _estimate(
    unit: Unit, times: int, *, delta: float, draws: int, present: bool, rng: np.random.Generator
) -> tuple[float, float]:
    """ε and its standard error."""
    parts = unit.components(present=present) - 1
    shares = np.concatenate([[_DEFENCE], np.full(parts, (1 - _DEFENCE) / parts)])
    pilot = _Sample(unit, shares, max(1_000, int(_PILOT * draws)), present, rng)
    moves = pilot.influence(times, delta)[1]
    # More of what moved the answer: one step of the cross-entropy method, kept defensive.
    useful = (pilot.chances * (moves**2 * pilot.weights**2)[:, None]).sum(axis=0)
    useful = np.maximum(useful / useful.sum(), 0.02)
    useful[0] = max(useful[0], _DEFENCE)
    sample = _Sample(unit, useful / useful.sum(), draws, present, rng)
    epsilon, moves, slope = sample.influence(times, delta)
    moved = sample.weights * moves
    effective = moved.sum() ** 2 / max(float((moved**2).sum()), 1e-300)
    if effective < _FEWEST:
        raise TooFewDraws(
            f"Expected at least {_FEWEST} effective draws at δ = {delta:g}, got {effective:.0f} of "
            f"{draws}. Ask for more draws, or use the exact accountant."
        )
    # Weights are scaled to a sum of 1, so a draw moves δ only as far as it differs from the mean.
    centred = moved - sample.weights * moved.mean() / sample.weights.mean()
    error = times * float(np.std(centred)) / math.sqrt(draws)
    return epsilon, error / slope


class _Sample:
    """Weighted losses of units."""

    def __init__(
        self,
        unit: Unit,
        shares: FloatArray,
        draws: int,
        present: bool,
        rng: np.random.Generator,
    ) -> None:
        blocks = [
            unit.draw(count, shares, present=present, rng=rng)
            for count in _blocks(draws, max(1, _AT_ONCE // unit.size))
        ]
        self.losses, self.weights, self.chances = (
            np.concatenate([block[i] for block in blocks]) for i in range(3)
        )

    def influence(self, times: int, delta: float) -> tuple[float, FloatArray, float]:
        """ε, how much mass at each draw's loss moves δ(ε), and how fast δ falls with ε there."""
        law = self._law()
        composed = compose([(law, times)], rounding="nearest")
        epsilon = composed.epsilon(delta)
        if times == 1:
            moves = -np.expm1(np.minimum(epsilon - self.losses, 0.0))
        else:
            moves = compose([(law, times - 1)], rounding="nearest").delta(epsilon - self.losses)
        gap = 1e-3 * max(epsilon, 0.1)
        near = composed.delta([max(epsilon - gap, 0.0), epsilon + gap])
        slope = (float(near[0]) - float(near[1])) / (2 * gap)
        return epsilon, np.asarray(moves), max(slope, 1e-300)

    def _law(self) -> LossDistribution:
        """The losses on a grid, each split between its neighbours so that its mean is kept."""
        low, high = float(self.losses.min()), float(self.losses.max())
        step = max((high - low) / _CELLS, 1e-12)
        place = (self.losses - low) / step
        cell = np.minimum(place.astype(np.int64), _CELLS - 1)
        part = place - cell
        weights = self.weights / self.losses.size
        masses = np.bincount(cell, weights * (1 - part), _CELLS + 1)
        masses += np.bincount(cell + 1, weights * part, _CELLS + 1)
        return LossDistribution(start=low, step=step, masses=masses / masses.sum())


def _blocks(draws: int, at_once: int) -> Iterator[int]:
    for start in range(0, draws, at_once):
        yield min(at_once, draws - start)
