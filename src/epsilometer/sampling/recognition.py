"""Recognise a sampler by the epochs it drew, and name the accountant that applies to it.

Facts come first: does every record come once per epoch, are batches of one size, do they repeat?
They leave a candidate or two, which are then tested. The batch of each record has an exact
distribution; joint behaviour of batches is compared with fresh epochs of the candidate. Every
test is exact or conservative given the candidate. Its buffer or rate is estimated from the same
epochs, which makes the tests slightly more lenient.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np

from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sampler,
    Sequential,
    Shuffle,
    WithoutReplacement,
    expected_rate,
    find_law,
)
from epsilometer.types import FloatArray, IntArray

_PLAIN = "the Gaussian mechanism once per epoch, without amplification"
_GROUP = 8  # epochs that are compared with each other
_CELLS = 2_000_000  # of the table of records and batches; more batches share columns
_Test: TypeAlias = tuple[float, str]  # a p-value, and what was checked


@dataclass(frozen=True, eq=False)
class Epoch:
    """One epoch as flat arrays: the i-th index, and its batch."""

    record: IntArray
    batch: IntArray
    sizes: IntArray


def flatten_epoch(batches: Iterable[IntArray]) -> Epoch:
    """Return the batches of an epoch as flat arrays."""
    every = list(batches)
    sizes = np.array([batch.size for batch in every], np.int64)
    record = np.concatenate(every) if every else np.zeros(0, np.int64)
    return Epoch(record.astype(np.int64), np.repeat(np.arange(sizes.size), sizes), sizes)


def sort_keys(epoch: Epoch, records: int) -> IntArray:
    """Return batch and record in one number, sorted; neighbours in a batch differ by one."""
    return np.sort(epoch.batch * (records + 1) + epoch.record)


def label_records(epoch: Epoch, records: int) -> IntArray:
    """Return the first batch that each record is in; one past the last if in none."""
    labels = np.full(records, epoch.sizes.size, np.int64)
    labels[epoch.record[::-1]] = epoch.batch[::-1]
    return labels


def find_batch_size(seen: list[Epoch]) -> int:
    """Return the size of full batches; the mean where sizes vary.

    The mean is rounded; up where all epochs are as long, since that cuts them into as many batches.
    """
    first = np.sort(seen[0].sizes)
    if (first[1:] == first[-1]).all() and all(
        np.array_equal(np.sort(epoch.sizes), first) for epoch in seen
    ):
        return int(first[-1])
    totals = [epoch.record.size for epoch in seen]
    mean = sum(totals) / sum(epoch.sizes.size for epoch in seen)
    return max(1, math.ceil(mean) if len(set(totals)) == 1 else round(mean))


def _write_call(sampler: Sampler) -> str:
    """Return the call that makes the sampler, without what is left at its default."""
    set_here = [
        f"{field.name}={getattr(sampler, field.name)!r}"
        for field in fields(sampler)  # type: ignore[arg-type]
        if getattr(sampler, field.name) != field.default
    ]
    return f"{type(sampler).__name__}({', '.join(set_here)})"


class Candidate(Sampler, Protocol):
    """A sampler that can be tested."""

    def log_likeliest(self, sizes: IntArray, records: int, batch_size: int) -> float:
        """Return ln of the chance of its likeliest epoch, at least.

        Args:
            sizes: Sizes of the batches of an epoch.
            records: Records of the training set.
            batch_size: Records per batch.
        """
        ...


_Tester: TypeAlias = Callable[[Candidate, list[Epoch], int], _Test]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The test results of a candidate; ``refuted`` is the reason, or None."""

    sampler: Sampler
    refuted: str | None
    said: str
    power: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """Tests of one candidate: a true one is refuted with probability at most ``error``."""

    error: float
    rng: np.random.Generator

    def of(
        self,
        sampler: Candidate,
        seen: list[Epoch],
        records: int,
        size: int,
        also: _Tester | None = None,
    ) -> Fit:
        """Test a sampler on the observed epochs, by the tests of all and one of its own."""
        from scipy.stats import ks_2samp

        enough = max(2 * len(seen), 200)  # few drawn epochs would refute nothing
        wanted = max(len(seen), min(enough, 1_000_000 // records))
        drawn = [flatten_epoch(sampler.batches(records, size, rng=self.rng)) for _ in range(wanted)]
        group = _GROUP if len(seen) >= 8 * _GROUP else 2
        watched, expected = (_measure_epochs(each, records, group) for each in (seen, drawn))
        testers = (_test_landings, _test_repeats, *([also] if also else []))
        tests = [test(sampler, seen, records) for test in testers]
        for name, values in watched.items():
            chance = float(ks_2samp(values, expected[name]).pvalue)
            means = f"{values.mean():.5g} seen, {expected[name].mean():.5g} expected"
            tests.append((chance, f"{name}: {means}"))
        least, reason = min(tests)
        chance = min(1.0, least * len(tests))
        nearest = f"{reason} (p = {chance:.1g})"
        refuted = chance < self.error
        tried = f"None of {len(tests)} tests objects, nearest: {nearest}"
        outcome = f"No, {nearest}" if refuted else tried
        return Fit(
            sampler=sampler,
            refuted=f"not {_write_call(sampler)}: {nearest}" if refuted else None,
            said=f"Is it {_write_call(sampler)}? {outcome}.",
            power=_describe_power(sampler, seen, records, self.error / len(tests), group, wanted),
        )


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """The recognised sampler, with fields of :class:`~epsilometer.sampling.loaders.LoaderReport`.

    Attributes:
        ragged: The sampler, had it left out the last stored records in every epoch.
    """

    sampler: Sampler | None
    name: str
    accountant: str
    ragged: Sampler | None = None
    evidence: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


def recognise(
    seen: list[Epoch], records: int, error: float, rng: np.random.Generator
) -> Recognised:
    """Check facts, then test the remaining candidates; the truth is refuted with chance ≤ error."""
    trial = Trial(error=error, rng=rng)
    if any((np.diff(sort_keys(epoch, records)) == 0).any() for epoch in seen):
        return _describe_replacement(seen, records, error)
    if len({epoch.sizes.size for epoch in seen}) > 1:
        steps = write_range(epoch.sizes.size for epoch in seen)
        return _describe_unknown(f"the number of batches changes from epoch to epoch ({steps})")
    if any(np.bincount(epoch.record).max() > 1 for epoch in seen):
        return _recognise_fresh(seen, records, trial)
    present = np.unique(np.concatenate([epoch.record for epoch in seen]))
    named = [replace(epoch, record=np.searchsorted(present, epoch.record)) for epoch in seen]
    verdict = _recognise_once(named, present.size, trial)
    absent = records - present.size
    if not absent:
        return verdict
    last_missing = present[-1] == present.size - 1
    if verdict.ragged and last_missing and absent == records % find_batch_size(seen):
        verdict = replace(verdict, sampler=verdict.ragged)
    note = f"{absent} of {records} records never came: the rest was checked as the training set."
    return replace(verdict, ragged=None, caveats=(note, *verdict.caveats))


def _describe_replacement(seen: list[Epoch], records: int, error: float) -> Recognised:
    from scipy.stats import binom

    counts = np.bincount(np.concatenate([epoch.record for epoch in seen]), minlength=records)
    law = binom(counts.sum(), 1 / records)
    chance = 2 * records * min(law.sf(counts.max() - 1), law.cdf(counts.min()))
    drawn = f"Records come {counts.min()} to {counts.max()} times, {counts.mean():.4g} on average"
    if chance < error:
        return _describe_unknown(
            f"records repeat inside a batch, and unevenly (p = {chance:.1g})", drawn + "."
        )
    return Recognised(
        sampler=None,
        name="with replacement",
        accountant="none: a record can be in a batch several times, which no known accountant "
        "covers; clipping bounds one copy only",
        evidence=("Some batches hold a record more than once.", drawn + ", as by even chances."),
    )


def _recognise_fresh(seen: list[Epoch], records: int, trial: Trial) -> Recognised:
    """Recognise batches in which records recur: Poisson, or subsets of fixed size."""
    sizes = np.concatenate([epoch.sizes for epoch in seen])
    steps = seen[0].sizes.size
    size = find_batch_size(seen)
    by_default = -(-records // size)
    number = None if steps == by_default else steps
    if sizes.min() == sizes.max():
        expected = sizes.size * size * (size - 1) / (2 * records)
        note = f"No record occurred twice in a batch; with replacement {expected:.3g} would have."
        return _conclude(
            [trial.of(WithoutReplacement(steps=number), seen, records, size)],
            "fixed-size sampling without replacement",
            "sampling without replacement (dp-accounting's SampledWithoutReplacementDpEvent, "
            "records replaced)",
            caveats=() if expected > 20 else (note + " The two cannot be told apart here.",),
        )
    rate = float(sizes.mean()) / records
    spread = math.sqrt(rate * (1 - rate) / (sizes.size * records))
    tried = []
    usual = -(-records // steps)  # the batch size of so many batches
    if -(-records // usual) == steps and abs(rate - 1 / steps) <= 4 * spread:
        fit = trial.of(Poisson(1 / steps, steps), seen, records, usual, _test_largest)
        tried.append(replace(fit, sampler=Poisson()))
    elif abs(rate - size / records) <= 4 * spread:
        tried.append(trial.of(Poisson(steps=number), seen, records, size, _test_largest))
    if not tried or tried[0].refuted:
        tried.append(trial.of(Poisson(rate, number), seen, records, size, _test_largest))
    verdict = _conclude(tried, "Poisson", "the Poisson accountant (privacy-loss distributions)")
    said = f"Batches of {sizes.min()} to {sizes.max()}: sampling rate {rate:.6g} ± {spread:.1g}."
    return replace(verdict, evidence=(said, *verdict.evidence))


def _recognise_once(seen: list[Epoch], records: int, trial: Trial) -> Recognised:
    steps, size = seen[0].sizes.size, find_batch_size(seen)
    labels = np.stack([label_records(epoch, records) for epoch in seen])
    sizes = np.stack([epoch.sizes for epoch in seen])
    slices = np.arange(records) // size
    if (labels == labels[0]).all():
        return _describe_fixed(labels[0], slices, sizes)
    mates = np.argsort(labels[0], kind="stable")  # by batch of the first epoch
    if size > 1 and all(_have_same_batches(labels[0], other) for other in labels[1:]):
        in_slices = all((row == row[slices * size]).all() for row in labels)
        if not in_slices:
            place = np.empty_like(mates)
            place[mates] = _move_slices_first(labels[0][mates], sizes[0], size)
            seen = [replace(epoch, record=place[epoch.record]) for epoch in seen]
        name = "batch-then-shuffle" if in_slices else "fixed batches in shuffled order"
        verdict = _conclude(
            [trial.of(BatchThenShuffle(), seen, records, size)],
            name,
            "the shuffle accountant for batch-then-shuffle; that of plain shuffling does not apply",
        )
        said = f"The same {steps} batches in every epoch, in another order."
        sampler = verdict.sampler if in_slices else None
        ragged = sampler and BatchThenShuffle(drop_last=True)
        return replace(verdict, sampler=sampler, ragged=ragged, evidence=(said, *verdict.evidence))
    even = (sizes[:, :-1] == size).all() and (sizes[:, -1] == sizes[0, -1]).all()
    if even and records - seen[0].record.size < size:
        return _recognise_order(seen, labels, records, trial)
    if even:
        return _describe_unknown(
            f"each epoch shows only {seen[0].record.size} of {records} records",
            "If this is one worker of several, watch the batches of all workers together.",
        )
    if all(epoch.record.size == records for epoch in seen):
        number = None if steps == -(-records // size) else steps
        said = f"Every record comes once per epoch, in batches of {sizes.min()} to {sizes.max()}."
        verdict = _conclude(
            [trial.of(BallsInBins(steps=number), seen, records, size)],
            "balls-in-bins",
            "the balls-in-bins accountant; neither the Poisson nor the shuffle one applies",
        )
        return replace(verdict, evidence=(said, *verdict.evidence))
    return _describe_unknown(
        "batches of uneven size leave out records that change from epoch to epoch"
    )


def _describe_fixed(labels: IntArray, slices: IntArray, sizes: IntArray) -> Recognised:
    if (labels == slices).all():
        return Recognised(
            sampler=Sequential(),
            ragged=Sequential(drop_last=True),
            name="sequential",
            accountant=_PLAIN,
            evidence=("Every epoch has the same batches: consecutive slices in stored order.",),
        )
    uneven = np.ptp(sizes[0, :-1]) if sizes.shape[1] > 1 else 0
    return Recognised(
        sampler=None,
        name="fixed bins" if uneven else "one fixed order",
        accountant=f"none that relies on randomness, as epochs are dependent: only {_PLAIN}",
        evidence=(f"Every one of {len(sizes)} epochs has the same batches, not in stored order.",),
        caveats=("The order was drawn once, or a seed is set again at every epoch.",),
    )


def _recognise_order(seen: list[Epoch], labels: IntArray, records: int, trial: Trial) -> Recognised:
    """Recognise how far an order was shuffled that was then cut into batches of one size."""
    size = find_batch_size(seen)
    drop = seen[0].record.size < records
    full = trial.of(Shuffle(drop_last=drop), seen, records, size, _test_reach)
    plain = f"an upper bound for any order is {_PLAIN}"
    if full.refuted is None:
        return _conclude(
            [full],
            "shuffle",
            "the shuffle accountant (epsilometer shuffle), the Poisson one does not apply; "
            + plain,
        )
    block, buffer = _find_block(labels, size), _measure_reach(labels, size) + 1
    if block < records:
        partial = PartialShuffle(block, drop_last=drop)
        name = f"partial shuffle in blocks of {block}"
        accountant = _account_blocks(block, size, records, plain)
    elif buffer > records - size:  # nothing like a buffer was seen
        return _conclude([full], "", "")
    else:
        partial = PartialShuffle(buffer, sliding=True, drop_last=drop)
        name = f"partial shuffle in a sliding buffer of {buffer}"
        accountant = f"none: a sliding buffer has no accountant; {plain}"
    verdict = _conclude([full, trial.of(partial, seen, records, size)], name, accountant)
    return replace(verdict, ragged=verdict.sampler and replace(partial, drop_last=True))


def _account_blocks(block: int, size: int, records: int, plain: str) -> str:
    starts = np.arange(0, records, block)
    ends = np.minimum(starts + block, records)
    fewest = int(((ends - 1) // size - starts // size).min()) + 1
    if fewest == 1:
        return f"{_PLAIN}: some records can land in one batch only"
    if block % size:
        return f"none: borders of blocks lie inside batches; {plain}"
    return f"the shuffle accountant with {fewest} batches, those of the shortest block; {plain}"


def _conclude(
    trials: list[Fit], name: str, accountant: str, *, caveats: tuple[str, ...] = ()
) -> Recognised:
    """Let the last trial decide; those before it were refuted on the way."""
    said = tuple(fit.said for fit in trials)
    if trials[-1].refuted is not None:
        return _describe_unknown(trials[-1].refuted, *said)
    return Recognised(
        sampler=trials[-1].sampler,
        name=name,
        accountant=accountant,
        evidence=(*said, trials[-1].power),
        caveats=caveats,
    )


def _describe_unknown(reason: str, *evidence: str) -> Recognised:
    return Recognised(
        sampler=None,
        name="none that is known",
        accountant=f"none: {reason}",
        evidence=evidence,
    )


def _find_block(labels: IntArray, size: int) -> int:
    """Return the smallest block whose borders no record ever crosses, as far as batches show it."""
    records = int(labels.shape[1])
    early, late = labels.min(axis=0), labels.max(axis=0)
    latest = np.maximum.accumulate(late)  # of records 0 … r
    earliest = np.minimum.accumulate(early[::-1])[::-1]  # of records r …
    border = np.arange(1, records)
    kept = (latest[:-1] <= (border - 1) // size) & (earliest[1:] >= border // size)
    sizes = (block for block in range(1, records) if kept[block - 1 :: block].all())
    return next(sizes, records)


def _have_same_batches(one: IntArray, other: IntArray) -> bool:
    """Tell whether two labellings cut the records into the same sets."""
    pairs = np.unique(one * (other.max() + 1) + other).size
    return bool(pairs == np.unique(one).size == np.unique(other).size)


def _move_slices_first(batch: IntArray, sizes: IntArray, size: int) -> IntArray:
    """Return new places of records listed by batch: full batches first, so that all are slices."""
    order = np.argsort(sizes[batch] < size, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return place


def write_range(numbers: Iterable[int]) -> str:
    """Return ``3``, or ``2 to 5``."""
    every = set(numbers)
    return str(min(every)) if len(every) == 1 else f"{min(every)} to {max(every)}"


def _measure_epochs(epochs: list[Epoch], records: int, group: int) -> dict[str, FloatArray]:
    """Measure single epochs and disjoint groups: rows are independent if epochs are.

    So each column is a sample from one distribution, and two such samples can be compared exactly.
    """
    keys = [sort_keys(epoch, records) for epoch in epochs]
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
        labels = [label_records(epoch, records) for epoch in epochs[start : start + group]]
        shared = 0
        for one, other in pairwise(labels):
            _, together = np.unique(one * (records + 1) + other, return_counts=True)
            shared += int((together**2).sum())
        found["same batch-mates in two epochs"].append(float(shared))
    return {name: np.array(values) for name, values in found.items()}


def _test_landings(sampler: Sampler, seen: list[Epoch], records: int) -> _Test:
    """Test how often each record landed in each batch, and in the first ones: binomial counts.

    The p-value is the smallest of their tails, times their number.
    """
    from scipy.stats import binom

    chance, trials, joined = _find_chances(sampler, seen, records)
    width = chance.shape[1]
    flat = np.concatenate([epoch.record * width + joined[epoch.batch] for epoch in seen])
    cells = np.bincount(flat, minlength=records * width).reshape(records, width)
    counts = np.hstack([cells, cells.cumsum(axis=1)])
    if _is_independent(sampler):  # each batch is a trial of its own
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
    came = f"record {record} came {k[least]} times in {where}, {n[least] * p[least]:.4g} expected"
    return min(1.0, float(tails[least]) * 2 * counts.size), came


def _find_chances(
    sampler: Sampler, seen: list[Epoch], records: int
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return chances per record (or of all alike) and column of batches; trials; columns."""
    steps, epochs = seen[0].sizes.size, float(len(seen))
    width = min(steps, max(2, _CELLS // records))
    joined = np.arange(steps) * width // steps
    share = np.bincount(joined) / steps
    if _is_independent(sampler):
        rate = expected_rate(sampler, records, find_batch_size(seen))
        return np.full((1, width), rate), epochs * share * steps, joined
    chance_after = getattr(sampler, "chance_after", None)
    if chance_after is None:  # all batches alike
        return share[None, :], np.full(width, epochs), joined
    edges = np.append(0, np.bincount(joined, seen[0].sizes)).cumsum()
    left = chance_after(edges, records)
    return left[:, :-1] - left[:, 1:], np.full(width, epochs), joined


def _is_independent(sampler: Sampler) -> bool:
    """Tell whether a batch says nothing about the other batches of its epoch."""
    try:
        return find_law(sampler, getattr(sampler, "steps", None) or 1, 1).rate is not None
    except InvalidArgument:  # unknown distribution: an order that is cut into batches
        return False


def _test_repeats(sampler: Candidate, seen: list[Epoch], records: int) -> _Test:
    """Test epochs that are alike in every batch: p ≤ pairs · the chance of the likeliest epoch."""
    different = len({sort_keys(epoch, records).tobytes() for epoch in seen})
    came = f"{different} of {len(seen)} epochs are different"
    if different == len(seen):
        return 1.0, came
    log = sampler.log_likeliest(seen[0].sizes, records, find_batch_size(seen))
    pairs = len(seen) * (len(seen) - 1) / 2
    return min(1.0, pairs * math.exp(min(0.0, log))), came


def _test_reach(sampler: Candidate, seen: list[Epoch], records: int) -> _Test:
    """Test how far ahead of its place a record comes, at most: exact under a full shuffle.

    Orders in which none comes more than ``reach`` early are counted place by place.
    """
    size = find_batch_size(seen)
    reach = _measure_reach(np.stack([label_records(epoch, records) for epoch in seen]), size)
    place = np.arange(seen[0].record.size)
    end = np.minimum((place // size + 1) * size, records)
    free = np.minimum(records, end + reach) - place
    with np.errstate(divide="ignore"):
        log = float(np.log(np.maximum(free, 0) / (records - place)).sum())
    return math.exp(len(seen) * min(0.0, log)), f"no record comes more than {reach} places early"


def _test_largest(sampler: Candidate, seen: list[Epoch], records: int) -> _Test:
    """Test the largest batch: if batches are truncated, it is too small."""
    from scipy.stats import binom

    sizes = np.concatenate([epoch.sizes for epoch in seen])
    law = binom(records, expected_rate(sampler, records, find_batch_size(seen)))
    most = int(sizes.max())
    below = math.exp(sizes.size * float(law.logcdf(most)))
    above = min(1.0, sizes.size * float(law.sf(most - 1)))
    found = f"the largest of {sizes.size} batches has {most} records"
    return min(1.0, 2 * min(below, above)), f"{found}, {law.mean():.4g} expected of each"


def _measure_reach(labels: IntArray, size: int) -> int:
    """Return how many places early a record ever came, at least, as far as batches show it."""
    records = labels.shape[1]
    end = np.minimum((labels.min(axis=0) + 1) * size, records) - 1
    return int(max(0, (np.arange(records) - end).max()))


def _describe_power(
    sampler: Sampler, seen: list[Epoch], records: int, error: float, group: int, drawn: int
) -> str:
    """Say which deviations would have been detected."""
    from scipy.stats import binom

    chance, trials, joined = _find_chances(sampler, seen, records)
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
        f"a feature of epochs whose distribution is {apart:.2g} away (Kolmogorov's distance)"
        if apart < 1
        else "no feature of epochs, there are too few",
        f"one of groups of {group} epochs if {grouped:.2g} away"
        if grouped < 1
        else f"none of groups of {group} epochs",
    ]
    return f"Would have been detected: {'; '.join(noticed)}."
