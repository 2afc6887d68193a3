"""Replay one step with the same randomness on neighbouring batches: noise cancels, records show.

The step is called with a generator in the same state on batches that differ in one record. What it
releases may then differ by 2C at most where the record was replaced, and by C where it was removed.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from epsilometer import _validate
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

StepFunction: TypeAlias = Callable[[Any, np.random.Generator], Any]
Seed: TypeAlias = np.random.SeedSequence
Released: TypeAlias = list[tuple[str, FloatArray]]
REPLACED = "sensitivity to a replaced record"
REMOVED = "sensitivity to a removed record"
_TOLERANCE = 1e-3  # relative, for the program's own arithmetic
_HUGE = 1e3  # times the record
_LARGE = 10.0
_LISTED = 4096  # values that a lattice is looked for in
_PARTS = 100  # by which the smallest gap of values is divided at most


@dataclass(frozen=True, eq=False, kw_only=True)
class Replayed:
    """What a step released for a batch, and where it left its random stream.

    Attributes:
        what: What is special about the batch, in words.
        released: (name, array) pairs; empty where the step raised an error.
        state: Of the generator afterwards.
        error: Which exception the step raised; empty where none.
    """

    what: str
    released: Released
    state: str
    error: str = ""


def read_release(value: Any) -> Released:
    """Return what a step released as named arrays: one array, a list of them or a mapping.

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


def count_records(batch: Any) -> int:
    """Return how many records a batch has: a tuple of arrays, an array, or a list of records."""
    counts = {len(part) for part in batch} if isinstance(batch, tuple) else {len(batch)}
    if len(counts) != 1:
        raise InvalidArgument(f"Expected arrays of as many records each, got {sorted(counts)}.")
    return counts.pop()


def take_records(batch: Any, places: Sequence[int]) -> Any:
    """Return the batch of the records at some places, in their order; a place may come twice."""
    if isinstance(batch, tuple):
        return tuple(take_records(part, places) for part in batch)
    if isinstance(batch, np.ndarray):
        return batch[np.asarray(places, np.int64)]
    return [copy.deepcopy(batch[place]) for place in places]


def scale_record(batch: Any, place: int, factor: float) -> Any:
    """Return the batch with the numbers of one record multiplied; whole ones, as labels, stay."""
    if isinstance(batch, tuple):
        return tuple(scale_record(part, place, factor) for part in batch)
    if isinstance(batch, np.ndarray):
        changed = batch.copy()
        if batch.dtype.kind == "f":
            changed[place] = _scale(changed[place], factor)
        return changed
    return [_scale(record, factor) if at == place else record for at, record in enumerate(batch)]


def run_step(step: StepFunction, batch: Any, seed: Seed, *, what: str = "") -> Replayed:
    """Call the step with a generator in the state that the seed gives."""
    rng = np.random.default_rng(seed)
    try:
        with np.errstate(all="ignore"):  # huge records overflow; what comes of it is looked at
            released = read_release(fresh_copy(step)(copy.deepcopy(batch), rng))
    except InvalidArgument:
        raise
    except Exception as error:  # reported by its kind: its text may hold a record
        return Replayed(what=what, released=[], state="", error=type(error).__name__)
    return Replayed(what=what, released=released, state=repr(rng.bit_generator.state))


def fresh_copy(step: StepFunction) -> StepFunction:
    """Return the step with its state as it is now, so that a call leaves the original alone.

    A plain function is its own copy: what it keeps elsewhere cannot be restored.
    """
    if inspect.isfunction(step) or inspect.isbuiltin(step):
        return step
    try:
        return copy.deepcopy(step)
    except Exception:  # objects that cannot be copied are called as they are
        return step


def find_lattice(released: Released) -> float:
    """Return the spacing of the lattice that all values lie on; 0 where there is none.

    Example:
        >>> find_lattice([("sum", np.round(np.random.default_rng(0).normal(size=900), 2))])
        0.01
    """
    every = np.concatenate([array.ravel() for _, array in released])[:_LISTED]
    values = np.unique(every)
    gaps = np.diff(values)
    told = values.size >= 8 or 3 <= values.size <= every.size / 2  # fewer lie on one by chance
    if not told or not np.isfinite(gaps).all():
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
    """Return the Euclidean distance; infinite where either is not a number."""
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
    """Measure how much one record changes what a step releases, noise aside.

    For each of some records, the step is called on batches that differ in this record alone: as it
    is, enlarged, enlarged with the other sign, replaced by another record, removed. All but the
    last are each other's neighbours by replacement. The others of the batch are as they are, or
    all alike, so that what records do to each other shows.

    Guarantee: none of a right program is violated; nothing is sampled. Batches on which the step
        left its random stream elsewhere (dropout on a removed record, say) are not compared.
    Assumption: the step draws all its randomness from the generator that it is given.

    Args:
        step: Called as ``step(batch, rng)``; returns the noisy sum.
        batch: Tuple of arrays with records on axis 0, an array, or a list of records.
        clip_norm: C, to which every record's contribution is clipped.
        records: How many records are tried.
        seed: From which the generators come.

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
    count = count_records(batch)
    choice, *seeds = seed.spawn(1 + 2 * min(records, count))
    rng = np.random.default_rng(choice)
    places = rng.choice(count, min(records, count), replace=False)
    found: dict[str, list[tuple[float, float, str]]] = {REPLACED: [], REMOVED: []}
    skipped: list[str] = []
    for at, place in enumerate(places):
        other = int(rng.choice([each for each in range(count) if each != place] or [place]))
        alike = take_records(
            batch, [int(place) if each == place else other for each in range(count)]
        )
        for base, own, name in (
            (batch, seeds[2 * at], ""),
            (alike, seeds[2 * at + 1], ", others alike"),
        ):
            for check, distance, slack, what in _compare(
                step, base, int(place), other, own, skipped
            ):
                found[check].append((distance, slack, what + name))
    return (
        _conclude(REPLACED, found[REPLACED], skipped, clip_norm=clip_norm, limit=2.0),
        _conclude(REMOVED, found[REMOVED], skipped, clip_norm=clip_norm, limit=1.0),
    )


def _compare(
    step: StepFunction, batch: Any, place: int, other: int, seed: Seed, skipped: list[str]
) -> Iterator[tuple[str, float, float, str]]:
    """Yield distances of neighbours, with what rounding may add to them."""
    count = count_records(batch)
    swapped = [other if each == place else each for each in range(count)]
    variants = [
        ("as it is", batch),
        (f"{_HUGE:g} times", scale_record(batch, place, _HUGE)),
        (f"-{_HUGE:g} times", scale_record(batch, place, -_HUGE)),
        (f"{_LARGE:g} times", scale_record(batch, place, _LARGE)),
        (f"-{_LARGE:g} times", scale_record(batch, place, -_LARGE)),
        ("another record", take_records(batch, swapped)),
    ]
    runs = [run_step(step, each, seed, what=what) for what, each in variants]
    kept = [run for run in runs if _comparable(run, runs[0], skipped)]
    for first, second in combinations(kept, 2):
        distance = measure_distance(first.released, second.released)
        yield REPLACED, distance, _rounding(first.released), f"{first.what} and {second.what}"
    if count < 2:
        skipped.append("the batch has one record")
        return
    rest = take_records(batch, [each for each in range(count) if each != place])
    removed = run_step(step, rest, seed, what="removed")
    if _comparable(removed, runs[0], skipped):
        for run in kept:
            distance = measure_distance(run.released, removed.released)
            yield REMOVED, distance, _rounding(run.released), f"{run.what} and removed"


def _comparable(run: Replayed, first: Replayed, skipped: list[str]) -> bool:
    if run.error:
        skipped.append(f"the step raised {run.error}")
        return False
    if run.state != first.state and not first.error:
        skipped.append("the random stream depends on the records of the batch")
        return False
    return True


def _conclude(
    name: str,
    found: list[tuple[float, float, str]],
    skipped: list[str],
    *,
    clip_norm: float,
    limit: float,
) -> Check:
    expected = f"a change of {limit:g} clipping norms at most"
    # What rounding may add must be small beside the limit, or nothing can be told.
    clear = [part for part in found if part[1] <= limit * clip_norm / 2]
    if not clear:
        reasons = dict.fromkeys(skipped) if not found else {"released values are rounded": None}
        reason = "; ".join(list(reasons)[:2]) or "nothing to compare"
        return Check(
            name=name,
            outcome=judge.judge_limit(None, limit=limit),
            expected=expected,
            seen=reason,
        )
    distance, slack, what = max(clear, key=lambda part: part[0] - part[1])
    value = distance / clip_norm
    allowed = limit * (1 + _TOLERANCE) + slack / clip_norm
    return Check(
        name=name,
        outcome=judge.judge_limit(value, limit=allowed),
        expected=expected,
        seen=f"a change of {value:.4g} clipping norms",
        value=value,
        detail=f"record {what}; {len(clear):,} pairs of batches compared",
        steps=1,
    )


def _rounding(released: Released) -> float:
    """Return what rounding of released values may add to a distance, at most."""
    values = np.concatenate([array.ravel() for _, array in released])
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0
    lattice = find_lattice(released) * np.sqrt(values.size)
    # Values of float32 or bfloat16 leave the last bits of float64 empty.
    bits = np.frexp(finite)[0] * 2.0**53
    used = int(np.bitwise_or.reduce(np.abs(bits).astype(np.int64)))
    empty = 53 if used == 0 else (used & -used).bit_length() - 1
    relative = 2.0 ** (empty - 53)
    spread = 8 if empty < 45 else 1  # sums of float32 lose some bits more; coarser ones are final
    precision = spread * relative * float(np.abs(finite).max()) * np.sqrt(values.size)
    return float(max(lattice, precision))


def _scale(record: Any, factor: float) -> Any:
    if isinstance(record, tuple):
        return tuple(_scale(part, factor) for part in record)
    if isinstance(record, list):
        return [_scale(part, factor) for part in record]
    if isinstance(record, dict):
        return {name: _scale(part, factor) for name, part in record.items()}
    if isinstance(record, (float, np.floating)):
        return record * factor
    if isinstance(record, np.ndarray) and record.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return record * np.asarray(factor, record.dtype)
    return record
