"""Replay one step with the same randomness on neighbouring batches: noise cancels, records show.

The step is called with a generator in the same state on batches that differ in one record. Its
releases may then differ by at most 2C if the record was replaced, and by C if it was removed.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from epsilometer import _validate
from epsilometer.conformance.batches import count_records, find_labels, make_neighbour
from epsilometer.conformance.neighbours import (
    REMOVED,
    REPLACED,
    Distance,
    Neighbour,
    Replayed,
    compare_neighbours,
    conclude,
)
from epsilometer.core.findings import Check
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

StepFunction: TypeAlias = Callable[[Any, np.random.Generator], Any]
Seed: TypeAlias = np.random.SeedSequence
Released: TypeAlias = list[tuple[str, FloatArray]]
_LISTED = 4096  # values in which a lattice is searched
_PARTS = 100  # largest divisor of the smallest gap between values


def read_release(value: Any) -> Released:
    """Return the release of a step as named arrays: from one array, a list of them or a mapping.

    Example:
        >>> [(name, array.shape) for name, array in read_release([np.zeros((2, 3)), np.zeros(2)])]
        [('0', (2, 3)), ('1', (2,))]
    """
    if isinstance(value, dict):
        parts = [(str(name), part) for name, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(str(place), part) for place, part in enumerate(value)]
    else:
        parts = [("sum", value)]
    released: Released = [
        (name, np.atleast_1d(np.asarray(part, np.float64))) for name, part in parts
    ]
    if not released or any(array.size == 0 for _, array in released):
        raise InvalidArgument(
            "Expected the step to return the noisy sum as an array or a list of arrays, "
            f"got {_validate.short(value)}."
        )
    return released


def run_step(step: StepFunction, batch: Any, seed: Seed) -> Replayed:
    """Call the step with a generator in the state that the seed gives."""
    rng = np.random.default_rng(seed)
    try:
        with np.errstate(all="ignore"):  # huge records overflow; the result is checked
            released = read_release(copy_step(step)(copy.deepcopy(batch), rng))
    except InvalidArgument:
        raise
    except Exception as error:  # only its type is reported: its text may contain a record
        return Replayed(released=[], state="", error=type(error).__name__)
    return Replayed(released=released, state=repr(rng.bit_generator.state))


def copy_step(step: StepFunction) -> StepFunction:
    """Copy the step with its state, so that a call leaves the original unchanged.

    A plain function is its own copy: state that it keeps elsewhere cannot be restored.
    """
    if inspect.isfunction(step) or inspect.isbuiltin(step):
        return step
    try:
        return copy.deepcopy(step)
    except Exception:  # objects that cannot be copied are called directly
        return step


def find_lattice(released: Released) -> float:
    """Return the spacing of the lattice that contains all values; 0 if there is none.

    Example:
        >>> find_lattice([("sum", np.round(np.random.default_rng(0).normal(size=900), 2))])
        0.01
    """
    every = np.concatenate([array.ravel() for _, array in released])[:_LISTED]
    values = np.unique(every)
    gaps = np.diff(values)
    clear = values.size >= 8 or 3 <= values.size <= every.size / 2  # fewer lie on one by chance
    if not clear or not np.isfinite(gaps).all():
        return 0.0
    # The smallest gap is a multiple of the spacing, and so are all others.
    for parts in range(1, _PARTS + 1):
        spacing = float(gaps.min()) / parts
        if 1e-4 * spacing < np.spacing(np.abs(values).max()):
            break
        multiples = gaps / spacing
        if np.abs(multiples - np.round(multiples)).max() < 1e-3:
            return float(f"{spacing:.6g}")
    return 0.0


def measure_distance(first: Released, second: Released) -> float:
    """Return the Euclidean distance; infinite if either has a nan."""
    if [array.shape for _, array in first] != [array.shape for _, array in second]:
        return float("inf")
    total = sum(float(np.sum((a - b) ** 2)) for (_, a), (_, b) in zip(first, second, strict=True))
    return float(np.sqrt(total)) if np.isfinite(total) else float("inf")


def replay_step(
    step: StepFunction,
    batch: Any,
    *,
    clip_norm: float,
    records: int = 8,
    seed: Seed,
) -> tuple[Check, Check]:
    """Measure how much one record changes what a step releases, apart from noise.

    For some records, the step is called on batches that differ in this record only: unchanged,
    enlarged, enlarged with the opposite sign, replaced by another record, relabelled, removed. All
    but the last are neighbours of each other by replacement. The other records are unchanged, or
    all equal, to reveal effects between records. For three records, the size with the largest
    effect is searched, so that norms just above C are tried.

    Guarantee: a correct program is never violated; nothing is sampled. Batches after which the
        random stream differs (by dropout on a removed record, for example) are not compared.
    Assumption: the step draws all its randomness from the given generator.

    Args:
        step: Called as ``step(batch, rng)``; returns the noisy sum.
        batch: Tuple of arrays with records on axis 0, an array, or a list of records.
        clip_norm: C, to which every record's contribution is clipped.
        records: Number of records to try.
        seed: Seed of the generators.

    Returns:
        The checks of replaced and removed records.

    Example:
        >>> def step(batch, rng):  # forgets to clip
        ...     return batch.sum(axis=0) + rng.normal(size=3)
        >>> checks = replay_step(
        ...     step, np.ones((4, 3)), clip_norm=1.0, seed=np.random.SeedSequence(0))
        >>> [check.outcome for check in checks]
        ['violated', 'violated']
    """
    _validate.positive(clip_norm=clip_norm)
    _validate.whole(1, records=records)
    choice, runs = seed.spawn(2)
    found = compare_neighbours(
        _StepReplayer(step, batch, clip_norm=clip_norm, seed=runs),
        records=records,
        rng=np.random.default_rng(choice),
    )
    return conclude(REPLACED, found), conclude(REMOVED, found)


class _StepReplayer:
    """Replay a function of a batch and a generator."""

    def __init__(self, step: StepFunction, batch: Any, *, clip_norm: float, seed: Seed) -> None:
        self._step, self._batch, self._clip_norm, self._seed = step, batch, clip_norm, seed
        self._lattice: float | None = None
        self.count = count_records(batch)
        self.labelled = bool(find_labels(batch))

    def run(self, neighbour: Neighbour) -> Replayed:
        if neighbour.change == "removed" and self.count < 2:
            return Replayed(released=[], state="", refused="the batch has one record")
        key = (neighbour.place, int(neighbour.alike))
        own = Seed(self._seed.entropy, spawn_key=(*self._seed.spawn_key, *key))
        return run_step(self._step, make_neighbour(self._batch, neighbour), own)

    def measure(self, first: Replayed, second: Replayed) -> Distance:
        if self._lattice is None:  # a property of the program: determined once
            self._lattice = find_lattice(first.released)
        distance = measure_distance(first.released, second.released)
        slack = _rounding(first.released, lattice=self._lattice)
        return Distance(distance / self._clip_norm, slack / self._clip_norm)

    def find_obstacle(self, run: Replayed, base: Replayed) -> str:
        if run.error:
            return f"the step raised {run.error[:80]}"
        if run.state != base.state and not run.refused:
            return "the random stream depends on the records of the batch"
        return run.refused


def _rounding(released: Released, *, lattice: float) -> float:
    """Return the largest contribution of rounding to a distance of released values."""
    values = np.concatenate([array.ravel() for _, array in released])
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0
    # Values from float32 or bfloat16 have zeros in the last bits of float64.
    bits = np.frexp(finite)[0] * 2.0**53
    used = int(np.bitwise_or.reduce(np.abs(bits).astype(np.int64)))
    empty = 53 if used == 0 else (used & -used).bit_length() - 1
    relative = 2.0 ** (empty - 53)
    spread = 8 if empty < 45 else 1  # sums in float32 lose some more bits; coarser ones are final
    precision = spread * relative * float(np.abs(finite).max()) * np.sqrt(values.size)
    return float(max(lattice * np.sqrt(values.size), precision))
