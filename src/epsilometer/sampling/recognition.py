"""Says which sampler watched epochs come from, and which accountant applies to it.

Facts come first: does every record come once an epoch, are batches of one size, do they repeat?
They leave a candidate or two, and those are tried.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    PartialShuffle,
    Poisson,
    Sampler,
    Sequential,
    Shuffle,
    WithoutReplacement,
)
from epsilometer.sampling.trials import Epoch, Fit, Trial, keys_of, labels_of, reach_of, usual_size
from epsilometer.types import IntArray

_PLAIN = "the Gaussian mechanism once an epoch, without amplification"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was recognised; fields as of :class:`~epsilometer.sampling.loaders.LoaderReport`."""

    sampler: Sampler | None
    name: str
    accountant: str
    evidence: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


def recognise(seen: list[Epoch], records: int, error: float, rng: np.random.Generator) -> Verdict:
    """Facts first, then trials of what is left; the truth is refuted with chance ≤ ``error``."""
    trial = Trial(error=error, rng=rng)
    if any((np.diff(keys_of(epoch, records)) == 0).any() for epoch in seen):
        return _with_replacement(seen, records, error)
    if len({epoch.sizes.size for epoch in seen}) > 1:
        steps = number_range(epoch.sizes.size for epoch in seen)
        return _odd(f"the number of batches changes from epoch to epoch ({steps})")
    if any(np.bincount(epoch.record).max() > 1 for epoch in seen):
        return _fresh_batches(seen, records, trial)
    present = np.unique(np.concatenate([epoch.record for epoch in seen]))
    named = [replace(epoch, record=np.searchsorted(present, epoch.record)) for epoch in seen]
    verdict = _once_an_epoch(named, present.size, trial)
    absent = records - present.size
    if absent == records % usual_size(seen) and present[-1] == present.size - 1:
        match verdict.sampler:  # the ragged slice at the end
            case Sequential() | BatchThenShuffle() | PartialShuffle() as cut if absent:
                verdict = replace(verdict, sampler=replace(cut, drop_last=True))
    if not absent:
        return verdict
    note = f"{absent} of {records} records never came: the rest was looked at as the training set."
    return replace(verdict, caveats=(note, *verdict.caveats))


def _with_replacement(seen: list[Epoch], records: int, error: float) -> Verdict:
    from scipy.stats import binom

    counts = np.bincount(np.concatenate([epoch.record for epoch in seen]), minlength=records)
    law = binom(counts.sum(), 1 / records)
    chance = 2 * records * min(law.sf(counts.max() - 1), law.cdf(counts.min()))
    drawn = f"Records come {counts.min()} to {counts.max()} times, {counts.mean():.4g} on average"
    if chance < error:
        return _odd(f"records repeat inside a batch, and unevenly (p = {chance:.1g})", drawn + ".")
    return Verdict(
        sampler=None,
        name="with replacement",
        accountant="none: a record can be in a batch several times, which no accountant at hand "
        "covers; clipping bounds one copy only",
        evidence=("Some batches hold a record more than once.", drawn + ", as by even chances."),
    )


def _fresh_batches(seen: list[Epoch], records: int, trial: Trial) -> Verdict:
    """Records may come again within the epoch: Poisson, or subsets of fixed size."""
    sizes = np.concatenate([epoch.sizes for epoch in seen])
    steps = seen[0].sizes.size
    size = usual_size(seen)
    by_default = -(-records // size)
    number = None if steps == by_default else steps
    if sizes.min() == sizes.max():
        expected = sizes.size * size * (size - 1) / (2 * records)
        note = f"No record came twice in a batch; with replacement {expected:.3g} would have."
        fits = trial.of(WithoutReplacement(steps=number), seen, records, size)
        return _judged(
            [fits],
            "fixed-size sampling without replacement",
            "sampling without replacement (dp-accounting's SampledWithoutReplacementDpEvent, "
            "records replaced)",
            caveats=() if expected > 20 else (note + " The two cannot be told apart here.",),
        )
    rate = float(sizes.mean()) / records
    spread = math.sqrt(rate * (1 - rate) / (sizes.size * records))
    tried = []
    if abs(rate - size / records) <= 4 * spread:  # the rate may be the plain one
        tried.append(trial.of(Poisson(steps=number), seen, records, size))
    if not tried or tried[0].refuted:
        tried.append(trial.of(Poisson(rate=rate, steps=number), seen, records, size))
    verdict = _judged(tried, "Poisson", "the Poisson accountant (privacy-loss distributions)")
    said = f"Batches of {sizes.min()} to {sizes.max()}: sampling rate {rate:.6g} ± {spread:.1g}."
    return replace(verdict, evidence=(said, *verdict.evidence))


def _once_an_epoch(seen: list[Epoch], records: int, trial: Trial) -> Verdict:
    steps, size = seen[0].sizes.size, usual_size(seen)
    labels = np.stack([labels_of(epoch, records) for epoch in seen])
    sizes = np.stack([epoch.sizes for epoch in seen])
    slices = np.arange(records) // size
    if (labels == labels[0]).all():
        return _never_changes(labels[0], slices, sizes)
    mates = np.argsort(labels[0], kind="stable")  # by batch of the first epoch
    if size > 1 and all(_same_batches(labels[0], other) for other in labels[1:]):
        in_slices = all((row == row[slices * size]).all() for row in labels)
        if not in_slices:
            place = np.empty_like(mates)
            place[mates] = _slices_first(labels[0][mates], sizes[0], size)
            seen = [replace(epoch, record=place[epoch.record]) for epoch in seen]
        name = "batch-then-shuffle" if in_slices else "fixed batches in shuffled order"
        verdict = _judged(
            [trial.of(BatchThenShuffle(), seen, records, size)],
            name,
            "the shuffle accountant for batch-then-shuffle; that of plain shuffling does not apply",
        )
        said = f"The same {steps} batches in every epoch, in another order."
        kept = verdict.sampler if in_slices else None
        return replace(verdict, sampler=kept, evidence=(said, *verdict.evidence))
    even = (sizes[:, :-1] == size).all() and (sizes[:, -1] == sizes[0, -1]).all()
    if even and records - seen[0].record.size < size:
        return _ordered(seen, labels, records, trial)
    if even:
        return _odd(
            f"each epoch shows only {seen[0].record.size} of {records} records",
            "If this is one worker of several, watch the batches of all workers together.",
        )
    if all(epoch.record.size == records for epoch in seen):
        number = None if steps == -(-records // size) else steps
        said = f"Every record comes once an epoch, in batches of {sizes.min()} to {sizes.max()}."
        verdict = _judged(
            [trial.of(BallsInBins(steps=number), seen, records, size)],
            "balls-in-bins",
            "the balls-in-bins accountant; neither the Poisson nor the shuffle one applies",
        )
        return replace(verdict, evidence=(said, *verdict.evidence))
    return _odd("batches of uneven size leave out records that change from epoch to epoch")


def _never_changes(labels: IntArray, slices: IntArray, sizes: IntArray) -> Verdict:
    if (labels == slices).all():
        return Verdict(
            sampler=Sequential(),
            name="sequential",
            accountant=_PLAIN,
            evidence=("Every epoch has the same batches: consecutive slices in stored order.",),
        )
    uneven = np.ptp(sizes[0, :-1]) if sizes.shape[1] > 1 else 0
    return Verdict(
        sampler=None,
        name="fixed bins" if uneven else "one fixed order",
        accountant=f"none that counts on chance, for epochs are not independent: only {_PLAIN}",
        evidence=(f"Every one of {len(sizes)} epochs has the same batches, not in stored order.",),
        caveats=("The order was drawn once, or a seed is set again at every epoch.",),
    )


def _ordered(seen: list[Epoch], labels: IntArray, records: int, trial: Trial) -> Verdict:
    """Every record once, batches of one size: an order that is cut. How far was it shuffled?"""
    size = usual_size(seen)
    drop = seen[0].record.size < records
    full = trial.of(Shuffle(drop_last=drop), seen, records, size)
    plain = f"an upper bound for any order is {_PLAIN}"
    if full.refuted is None:
        return _judged(
            [full],
            "shuffle",
            "the shuffle accountant (epsilometer shuffle), the Poisson one does not apply; "
            + plain,
        )
    block, buffer = _block(labels, size), reach_of(labels, size) + 1
    if block < records:
        blocks = trial.of(PartialShuffle(block, drop_last=drop), seen, records, size)
        name = f"partial shuffle in blocks of {block}"
        return _judged([full, blocks], name, _of_blocks(block, size, records, plain))
    if buffer > records - size:  # nothing like a buffer was seen
        return _judged([full], "", "")
    slide = trial.of(PartialShuffle(buffer, sliding=True, drop_last=drop), seen, records, size)
    return _judged(
        [full, slide],
        f"partial shuffle in a sliding buffer of {buffer}",
        f"none: a sliding buffer has no accountant; {plain}",
    )


def _of_blocks(block: int, size: int, records: int, plain: str) -> str:
    starts = np.arange(0, records, block)
    ends = np.minimum(starts + block, records)
    fewest = int(((ends - 1) // size - starts // size).min()) + 1
    if fewest == 1:
        return f"{_PLAIN}: some records can land in one batch only"
    if block % size:
        return f"none: borders of blocks lie inside batches; {plain}"
    return f"the shuffle accountant with {fewest} batches, those of the shortest block; {plain}"


def _judged(
    trials: list[Fit], name: str, accountant: str, *, caveats: tuple[str, ...] = ()
) -> Verdict:
    """The last trial decides; those before it were refuted on the way."""
    said = tuple(fit.said for fit in trials)
    if trials[-1].refuted is not None:
        verdict = _odd(trials[-1].refuted)
        return replace(verdict, evidence=said)
    return Verdict(
        sampler=trials[-1].sampler,
        name=name,
        accountant=accountant,
        evidence=(*said, trials[-1].power),
        caveats=caveats,
    )


def _odd(reason: str, *evidence: str) -> Verdict:
    return Verdict(
        sampler=None,
        name="none that we know",
        accountant=f"none: {reason}",
        evidence=evidence,
    )


def _block(labels: IntArray, size: int) -> int:
    """Smallest block whose borders no record ever crosses, as far as batches show it."""
    records = int(labels.shape[1])
    early, late = labels.min(axis=0), labels.max(axis=0)
    latest = np.maximum.accumulate(late)  # of records 0 … r
    earliest = np.minimum.accumulate(early[::-1])[::-1]  # of records r …
    border = np.arange(1, records)
    kept = (latest[:-1] <= (border - 1) // size) & (earliest[1:] >= border // size)
    sizes = (block for block in range(1, records) if kept[block - 1 :: block].all())
    return next(sizes, records)


def _same_batches(one: IntArray, other: IntArray) -> bool:
    """Whether two labellings cut the records into the same sets."""
    pairs = np.unique(one * (other.max() + 1) + other).size
    return bool(pairs == np.unique(one).size == np.unique(other).size)


def _slices_first(batch: IntArray, sizes: IntArray, size: int) -> IntArray:
    """New places of records listed by batch: full batches first, so that batches are slices."""
    order = np.argsort(sizes[batch] < size, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return place


def number_range(numbers: Iterable[int]) -> str:
    """``3``, or ``2 to 5``."""
    every = set(numbers)
    return str(min(every)) if len(every) == 1 else f"{min(every)} to {max(every)}"
