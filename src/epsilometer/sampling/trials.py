"""Tries a sampler on epochs that were watched: could they be its own?

The law of where each record lands is known exactly; what batches do together is compared with that
of epochs drawn afresh from the sampler. Every test is exact or conservative, given the sampler: its
buffer or rate was read off the same epochs, which makes tests a little kinder to it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sampler,
    Shuffle,
    WithoutReplacement,
)
from epsilometer.types import FloatArray, IntArray

_GROUP = 8  # epochs that are compared with each other
_CELLS = 2_000_000  # of the table of records and batches; more batches share columns


@dataclass(frozen=True, eq=False)
class Epoch:
    """One epoch laid flat: the i-th index that came, and the batch it came in."""

    record: IntArray
    batch: IntArray
    sizes: IntArray


def flat(batches: Iterable[IntArray]) -> Epoch:
    """The batches of an epoch laid flat."""
    every = list(batches)
    sizes = np.array([batch.size for batch in every], np.int64)
    record = np.concatenate(every) if every else np.zeros(0, np.int64)
    return Epoch(record.astype(np.int64), np.repeat(np.arange(sizes.size), sizes), sizes)


def keys_of(epoch: Epoch, records: int) -> IntArray:
    """Batch and record in one number, sorted; neighbours in a batch differ by one."""
    return np.sort(epoch.batch * (records + 1) + epoch.record)


def labels_of(epoch: Epoch, records: int) -> IntArray:
    """The first batch that each record is in; one past the last batch if in none."""
    labels = np.full(records, epoch.sizes.size, np.int64)
    labels[epoch.record[::-1]] = epoch.batch[::-1]
    return labels


def usual_size(seen: list[Epoch]) -> int:
    """The size of full batches; the mean if sizes vary: rounded, or up if all epochs are as long.

    Rounded up it is what cuts an epoch into as many batches.
    """
    first = np.sort(seen[0].sizes)
    if (first[1:] == first[-1]).all() and all(
        np.array_equal(np.sort(epoch.sizes), first) for epoch in seen
    ):
        return int(first[-1])
    totals = [epoch.record.size for epoch in seen]
    mean = sum(totals) / sum(epoch.sizes.size for epoch in seen)
    return max(1, math.ceil(mean) if len(set(totals)) == 1 else round(mean))


def called(sampler: Sampler) -> str:
    """The call that makes the sampler, without what is left at its default."""
    said = [
        f"{field.name}={getattr(sampler, field.name)!r}"
        for field in fields(sampler)  # type: ignore[arg-type]
        if getattr(sampler, field.name) != field.default
    ]
    return f"{type(sampler).__name__}({', '.join(said)})"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a candidate stood its trial; ``refuted`` is the reason, or None."""

    sampler: Sampler
    refuted: str | None
    said: str
    power: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """Tests of one candidate: a true one is refuted with probability at most ``error``."""

    error: float
    rng: np.random.Generator

    def of(self, sampler: Sampler, seen: list[Epoch], records: int, size: int) -> Fit:
        """Tries a sampler on what was seen."""
        from scipy.stats import ks_2samp

        enough = max(2 * len(seen), 200)  # few drawn epochs would refute nothing
        wanted = max(len(seen), min(enough, 1_000_000 // records))
        drawn = [flat(sampler.batches(records, size, rng=self.rng)) for _ in range(wanted)]
        group = _GROUP if len(seen) >= 8 * _GROUP else 2
        watched, expected = _features(seen, records, group), _features(drawn, records, group)
        tests = [_landings(sampler, seen, records), _repeats(sampler, seen, records)]
        if isinstance(sampler, Shuffle):
            tests.append(_reaches(seen, records, size))
        if isinstance(sampler, Poisson):
            tests.append(_largest(sampler, seen, records))
        for name, values in watched.items():
            chance = float(ks_2samp(values, expected[name]).pvalue)
            means = f"{values.mean():.5g} seen, {expected[name].mean():.5g} expected"
            tests.append((chance, f"{name}: {means}"))
        least, reason = min(tests)
        chance = min(1.0, least * len(tests))
        told = f"{reason} (p = {chance:.1g})"
        refuted = chance < self.error
        outcome = (
            f"No, {told}" if refuted else f"None of {len(tests)} tests objects, nearest: {told}"
        )
        return Fit(
            sampler=sampler,
            refuted=f"not {called(sampler)}: {told}" if refuted else None,
            said=f"Is it {called(sampler)}? {outcome}.",
            power=_power(sampler, seen, records, self.error / len(tests), group, wanted),
        )


def _features(epochs: list[Epoch], records: int, group: int) -> dict[str, FloatArray]:
    """Numbers of single epochs, and of disjoint groups: independent from row to row if epochs are.

    So each column is a sample from one law, and two such samples can be compared exactly.
    """
    keys = [keys_of(epoch, records) for epoch in epochs]
    found: dict[str, list[float]] = {
        "neighbours in one batch": [float((np.diff(key) == 1).sum()) for key in keys],
        "order of records along the epoch": [
            float(epoch.batch.astype(np.float64) @ epoch.record) for epoch in epochs
        ],
        "squared batch sizes": [float((epoch.sizes**2).sum()) for epoch in epochs],
        "squared visits of records": [
            float((np.bincount(epoch.record) ** 2).sum()) for epoch in epochs
        ],
        "same batch in two epochs": [],
        "same batch-mates in two epochs": [],
    }
    for start in range(0, len(epochs) - group + 1, group):
        _, often = np.unique(np.concatenate(keys[start : start + group]), return_counts=True)
        found["same batch in two epochs"].append(float((often * (often - 1) // 2).sum()))
        labels = [labels_of(epoch, records) for epoch in epochs[start : start + group]]
        shared = 0
        for one, other in pairwise(labels):
            _, together = np.unique(one * (records + 1) + other, return_counts=True)
            shared += int((together**2).sum())
        found["same batch-mates in two epochs"].append(float(shared))
    return {name: np.array(values) for name, values in found.items()}


_Test: TypeAlias = tuple[float, str]  # a p-value, and what was looked at


def _landings(sampler: Sampler, seen: list[Epoch], records: int) -> _Test:
    """How often each record landed in each batch, and in the first batches: binomial counts.

    The smallest of their tails, times their number.
    """
    from scipy.stats import binom

    chance, trials, joined = _chances(sampler, seen, records)
    width = chance.shape[1]
    flat = np.concatenate([epoch.record * width + joined[epoch.batch] for epoch in seen])
    cells = np.bincount(flat, minlength=records * width).reshape(records, width)
    counts = np.hstack([cells, cells.cumsum(axis=1)])
    if isinstance(sampler, (Poisson, WithoutReplacement)):  # each batch is a trial of its own
        chance = np.hstack([chance, chance])
        trials = np.hstack([trials, trials.cumsum()])
    else:
        chance = np.hstack([chance, chance.cumsum(axis=1)])
        trials = np.hstack([trials, trials])
    chance = np.broadcast_to(np.clip(chance, 0.0, 1.0), counts.shape)
    mean = trials * chance
    apart = np.abs(counts - mean) / np.sqrt(mean * (1 - chance) + 1e-9)
    worst = np.argsort(apart, axis=None)[-1000:]  # the smallest tail is among the farthest
    k, p = counts.ravel()[worst], chance.ravel()[worst]
    n = np.broadcast_to(trials, counts.shape).ravel()[worst]
    tails = np.minimum(binom.sf(k - 1, n, p), binom.cdf(k, n, p))
    least = int(np.argmin(tails))
    record, column = divmod(int(worst[least]), counts.shape[1])
    where = f"batch {np.flatnonzero(joined == column % width)[0]}"
    if column >= width or (joined == column).sum() > 1:
        first = 0 if column >= width else np.flatnonzero(joined == column)[0]
        where = f"batches {first} to {np.flatnonzero(joined == column % width)[-1]}"
    told = f"record {record} came {k[least]} times in {where}, {n[least] * p[least]:.4g} expected"
    return min(1.0, float(tails[least]) * 2 * counts.size), told


def _chances(
    sampler: Sampler, seen: list[Epoch], records: int
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Chance of each record (or of all alike) in each column of batches; trials; columns."""
    steps, epochs = seen[0].sizes.size, float(len(seen))
    width = min(steps, max(2, _CELLS // records))
    joined = np.arange(steps) * width // steps
    share = np.bincount(joined) / steps
    size = usual_size(seen)
    match sampler:
        case Poisson(rate=rate):
            return np.full((1, width), rate or size / records), epochs * share * steps, joined
        case WithoutReplacement():
            return np.full((1, width), size / records), epochs * share * steps, joined
        case Shuffle() | PartialShuffle():
            edges = np.append(0, np.bincount(joined, seen[0].sizes)).cumsum()
            left = _still_to_come(sampler, records, edges)
            return left[:, :-1] - left[:, 1:], np.full(width, epochs), joined
        case _:
            return share[None, :], np.full(width, epochs), joined


def _still_to_come(
    sampler: Shuffle | PartialShuffle, records: int, position: FloatArray
) -> FloatArray:
    """P(a record's place in the order ≥ position), a row for each record, or one for all."""
    if isinstance(sampler, Shuffle):
        return (records - position)[None, :] / records
    record, buffer = np.arange(records)[:, None], min(sampler.buffer, records)
    if not sampler.sliding:
        start = record // buffer * buffer
        end = np.minimum(start + buffer, records)
        return np.asarray(np.clip((end - position) / (end - start), 0.0, 1.0))
    arrival = np.maximum(0, record - buffer + 1)
    last = records - buffer + 1  # from here on the buffer only empties
    waited = np.maximum(0, np.minimum(position, last) - arrival)
    left = (1 - 1 / buffer) ** waited
    emptying = np.clip((records - position) / max(1, buffer - 1), 0.0, 1.0)
    return np.asarray(np.where(position > last, left * emptying, left))


def _repeats(sampler: Sampler, seen: list[Epoch], records: int) -> _Test:
    """Epochs that are alike in every batch: p ≤ pairs · the chance of the likeliest epoch."""
    different = len({keys_of(epoch, records).tobytes() for epoch in seen})
    told = f"{different} of {len(seen)} epochs are different"
    if different == len(seen):
        return 1.0, told
    sizes = seen[0].sizes
    steps, size = sizes.size, usual_size(seen)
    inside = sum(math.lgamma(batch + 1) for batch in sizes.tolist())
    match sampler:
        case Shuffle():
            log = inside - math.lgamma(records + 1)
        case PartialShuffle(buffer=buffer, sliding=False):
            log = inside - records // buffer * math.lgamma(buffer + 1)
            log -= math.lgamma(records % buffer + 1)
        case PartialShuffle(buffer=buffer):
            log = inside - (records - buffer) * math.log(buffer) - math.lgamma(buffer + 1)
        case BatchThenShuffle():
            log = -math.lgamma(steps + 1)
        case BallsInBins():
            log = -records * math.log(steps)
        case Poisson(rate=rate):
            q = rate or size / records
            log = records * steps * math.log(max(q, 1 - q))
        case _:
            log = -steps * (
                math.lgamma(records + 1) - math.lgamma(size + 1) - math.lgamma(records - size + 1)
            )
    pairs = len(seen) * (len(seen) - 1) / 2
    return min(1.0, pairs * math.exp(min(0.0, log))), told


def _reaches(seen: list[Epoch], records: int, size: int) -> _Test:
    """How far ahead of its place a record comes, at most: exact under a full shuffle.

    Orders in which none comes more than ``reach`` early are counted place by place.
    """
    reach = reach_of(np.stack([labels_of(epoch, records) for epoch in seen]), size)
    place = np.arange(seen[0].record.size)
    end = np.minimum((place // size + 1) * size, records)
    free = np.minimum(records, end + reach) - place
    with np.errstate(divide="ignore"):
        log = float(np.log(np.maximum(free, 0) / (records - place)).sum())
    told = f"no record comes more than {reach} places early"
    return math.exp(len(seen) * min(0.0, log)), told


def _largest(sampler: Poisson, seen: list[Epoch], records: int) -> _Test:
    """The largest batch: where batches are cut at a limit it is too small."""
    from scipy.stats import binom

    sizes = np.concatenate([epoch.sizes for epoch in seen])
    law = binom(records, sampler.rate or usual_size(seen) / records)
    most = int(sizes.max())
    below = math.exp(sizes.size * float(law.logcdf(most)))
    above = min(1.0, sizes.size * float(law.sf(most - 1)))
    told = (
        f"the largest of {sizes.size} batches has {most} records, {law.mean():.4g} expected of each"
    )
    return min(1.0, 2 * min(below, above)), told


def reach_of(labels: IntArray, size: int) -> int:
    """How many places early a record ever came, at least, as far as batches show it."""
    records = labels.shape[1]
    end = np.minimum((labels.min(axis=0) + 1) * size, records) - 1
    return int(max(0, (np.arange(records) - end).max()))


def _power(
    sampler: Sampler, seen: list[Epoch], records: int, error: float, group: int, drawn: int
) -> str:
    """What would have been noticed."""
    from scipy.stats import binom

    chance, trials, joined = _chances(sampler, seen, records)
    level = error / (4 * records * chance.shape[1])
    least, usual = binom.isf(level, trials[0], chance[0, 0]), trials[0] * chance[0, 0]
    often = int(least) + 1 if math.isfinite(least) else trials[0] + 1  # a place that never was
    first = int((joined == 0).sum())
    where = "the first batch" if first == 1 else f"one of the first {first} batches"
    single = f"record 0 in {where} {often} times ({usual:.4g} expected), and others likewise"
    apart = math.sqrt(math.log(2 / error) / 2 * (1 / len(seen) + 1 / drawn))
    grouped = apart * math.sqrt(group)
    noticed = [
        single if often <= trials[0] else "no place of a single record, there are too few epochs",
        f"a feature of epochs whose law is {apart:.2g} away (Kolmogorov's distance)"
        if apart < 1
        else "no feature of epochs, there are too few",
        f"one of groups of {group} epochs if {grouped:.2g} away"
        if grouped < 1
        else f"none of groups of {group} epochs",
    ]
    return f"Would have been noticed: {'; '.join(noticed)}."
