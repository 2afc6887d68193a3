"""Audit one step of DP-SGD as a function: its noise, and what one record can change."""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.conformance.batches import count_records
from epsilometer.conformance.evidence import COARSEST
from epsilometer.conformance.neighbours import LIMITS, Comparisons, Replayed, conclude
from epsilometer.conformance.replay import (
    Released,
    StepFunction,
    copy_step,
    find_lattice,
    measure_distance,
    read_release,
    replay_step,
    run_step,
)
from epsilometer.conformance.summary import choose_sketch
from epsilometer.conformance.watch import StepWatch
from epsilometer.core.audit import Audit
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.core.settings import DATA
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray


@dataclass(frozen=True, eq=False)
class Step:
    """Audit one step of a DP-SGD program, given as a function of a batch.

    The step is called many times on the same batch to measure its noise. It is called with the same
    randomness on neighbouring batches to measure what one record can change.

    Guarantee: at most 1 correct program in 1,000 is found violated.
    Assumption: ``step(batch, rng)`` returns the noisy *sum* of clipped contributions, before any
        division; it draws all randomness from ``rng``; noise has the same scale in every call.

    Attributes:
        step: Called as ``step(batch, rng)`` with a NumPy generator; returns an array, a list or a
            dictionary of arrays. An object with state is copied before it is replayed.
        batch: Tuple of arrays with records on axis 0, an array, or a list of records.
        clip_norm: C, the norm to which each record's contribution is clipped.
        noise_multiplier: σ, the standard deviation of the noise in units of C.
        steps: Calls with fresh randomness.
        records: Records that are replaced and removed.
        steady: Whether the sum before noise is the same in every call on the same batch. None
            detects whether the step keeps state; if it does, only the scale of its noise is tested.
        title: Name of the step, in words.

    Example:
        >>> import numpy as np
        >>> import epsilometer as em
        >>> def step(batch, rng):  # clips, but adds half the noise
        ...     norms = np.linalg.norm(batch, axis=1, keepdims=True)
        ...     total = (batch / np.maximum(1, norms)).sum(axis=0)
        ...     return total + 0.5 * rng.normal(size=total.shape)
        >>> batch = np.random.default_rng(0).normal(size=(16, 50))
        >>> audit = em.audit(em.Step(step, batch, clip_norm=1.0, noise_multiplier=1.0))
        >>> audit.verdict, [check.name for check in audit.conformance.find("violated")][0]
        ('violated', 'noise scale')
    """

    step: StepFunction
    batch: Any = field(metadata=DATA)
    _: KW_ONLY
    clip_norm: float
    noise_multiplier: float
    steps: int = 64
    records: int = 8
    steady: bool | None = None
    title: str = ""

    def __post_init__(self) -> None:
        _validate.positive(clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier)
        _validate.whole(2, steps=self.steps)
        _validate.whole(1, records=self.records)
        if not callable(self.step):
            raise InvalidArgument(
                f"Expected step to be a function of a batch, got {_validate.short(self.step)}."
            )
        if count_records(self.batch) < 1:
            raise InvalidArgument("Expected a batch with one record or more, got none.")


SUBJECTS = (Step,)


def run_audit(subject: Step, request: Request) -> Audit:
    """Check the noise of a step, and replay it on neighbouring batches."""
    name = getattr(subject.step, "__name__", type(subject.step).__name__)
    title = subject.title or (
        f"one step of {name} with σ = {subject.noise_multiplier:g}, C = {subject.clip_norm:g}"
    )
    return Audit(
        subject=title,
        claim=request.claim,
        findings=(check_step(subject, seed=request.seed),),
        caveats=("One step on one batch was checked; sampling and accounting were not.",),
        cites=("ville1939",),
        provenance=request.make_provenance(subject),
    )


def check_step(subject: Step, *, seed: int) -> ConformanceFinding:
    """Check that a step does what is accounted for. Same seed, same finding."""
    probe, noise, replays = np.random.SeedSequence(seed).spawn(3)
    first = run_step(subject.step, subject.batch, probe)
    if first.error:
        raise InvalidArgument(f"Expected step(batch, rng) to return the noisy sum: {first.error}.")
    again = run_step(subject.step, subject.batch, probe)
    repeats = _is_same(first, again, subject)
    watch, after = _watch_noise(subject, noise, probe, lattice=find_lattice(first.released))
    if subject.steady is None and not (repeats and _is_same(first, after, subject)):
        watch.distrust(
            "the step keeps state or draws other randomness, so its sum before noise may change; "
            "give steady=True if it does not"
        )
    if not repeats:
        return watch.finding(*_skip_replays())
    return watch.finding(
        *replay_step(
            subject.step,
            subject.batch,
            clip_norm=subject.clip_norm,
            records=subject.records,
            seed=replays,
        )
    )


def _watch_noise(
    subject: Step, noise: np.random.SeedSequence, probe: np.random.SeedSequence, *, lattice: float
) -> tuple[StepWatch, Replayed]:
    """Test calls with fresh randomness; also return what the probe releases after them.

    The sum before noise is unknown, but the same: the residual of call t is its distance from the
    mean of those before it, times √(t/(t+1)). These are independent, and have the noise's scale
    (Helmert's contrasts).
    """
    step = copy_step(subject.step)
    accounted = subject.noise_multiplier * subject.clip_norm
    # Rounding to a lattice of spacing h and the dither that undoes it each add h²/12 of variance.
    unit = math.sqrt(accounted**2 + lattice**2 / 6)
    *seeds, dither = noise.spawn(subject.steps + 1)
    smooth = np.random.default_rng(dither)
    watch = StepWatch(steady=subject.steady is not False)
    if lattice > accounted:  # differences below the lattice spacing are invisible
        watch.distrust(f"released values are rounded to {lattice:.3g}, coarser than σC")
        return watch, run_step(step, subject.batch, probe)
    mean: list[FloatArray] = []
    before: FloatArray | None = None
    for number, own in enumerate(seeds):
        released = _call(step, subject, own)
        sketch = _sketch(released)
        ties = (0, 0)
        # Rounding the release is harmless; with few values it could not be detected.
        if before is not None and lattice == 0 and sketch.size >= 8:
            ties = int(np.count_nonzero(sketch == before)), sketch.size
        before = sketch if before is None else None  # pairs that share no call
        if lattice:  # Noise that was rounded becomes continuous, and no smaller
            released = [(n, a + lattice * (smooth.random(a.shape) - 0.5)) for n, a in released]
        arrays = [array for _, array in released]
        if number:
            factor = math.sqrt(number / (number + 1)) / unit
            watch.see(
                [
                    (name, (array - centre) * factor)
                    for (name, array), centre in zip(released, mean, strict=True)
                ],
                ties=ties,
            )
            mean = [m + (a - m) / (number + 1) for m, a in zip(mean, arrays, strict=True)]
        else:
            mean = arrays
    if lattice > COARSEST * accounted:
        watch.distrust(f"released values are rounded to {lattice:.3g}, coarser than 1/16 of σC")
    return watch, run_step(step, subject.batch, probe)


def _call(step: StepFunction, subject: Step, seed: np.random.SeedSequence) -> Released:
    released = read_release(step(subject.batch, np.random.default_rng(seed)))
    for name, array in released:
        if not np.isfinite(array).all():
            raise InvalidArgument(f"Expected finite numbers from the step, got others in {name}.")
    return released


def _sketch(released: Released) -> FloatArray:
    places = choose_sketch([array.size for _, array in released])
    parts = [array.ravel()[at] for (_, array), at in zip(released, places, strict=True)]
    return np.concatenate(parts)


def _is_same(first: Replayed, second: Replayed, subject: Step) -> bool:
    if second.error:
        return False
    unit = subject.noise_multiplier * subject.clip_norm
    size = sum(array.size for _, array in first.released)
    distance = measure_distance(first.released, second.released)
    return distance <= 1e-4 * unit * math.sqrt(size)


def _skip_replays() -> tuple[Check, ...]:
    reason = "two calls with the same batch and generator differ, so noise would not cancel"
    return tuple(conclude(name, Comparisons(skipped=[reason])) for name in LIMITS)
