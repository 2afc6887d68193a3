"""Recognise how batches are drawn: by JAX-Privacy strategies, Grain samplers, or any loader."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax_privacy import batch_selection

from epsilometer import _validate
from epsilometer.accounting.shuffle import shuffle_epsilon
from epsilometer.conformance.books import Booked
from epsilometer.conformance.sampling import SamplerCheck, compare_sampling
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.jax_privacy.books import (
    BookedSampling,
    read_books,
    read_sampling,
    report_epsilon,
)
from epsilometer.sampling.loaders import watch_loader
from epsilometer.sampling.samplers import (
    BallsInBins,
    BatchThenShuffle,
    Poisson,
    Sampler,
    Sequential,
    Shuffle,
    WithoutReplacement,
    is_poisson,
    label_sampler,
)


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """Describe how a program draws its batches.

    Attributes:
        sampler: The sampler; None if it is unknown.
        words: The same in words.
        batch_size: Records per batch; the expected number if it varies.
        rate: Probability that an eligible record is in a batch; None if batches are not random.
        cycle_length: Number of groups of records that take turns; 1 if all may always take part.
        eligible: Number of records from which a batch is drawn, if it is truncated.
        most: Size at which a batch is truncated; None if none is.
        stated: Whether this was read from settings, not observed.
    """

    sampler: Sampler | None
    words: str
    batch_size: int
    rate: float | None = None
    cycle_length: int = 1
    eligible: int = 0
    most: int | None = None
    stated: bool = False

    def is_booked(self, booked: BookedSampling) -> bool:
        """Tell whether batches are drawn in the booked way, at any rate."""
        if isinstance(self.sampler, WithoutReplacement):
            return booked.fixed
        if self.most is not None:  # the more often batches are truncated, the larger ε is
            cut = booked.most is not None and booked.most <= self.most
            return cut and booked.records >= self.eligible
        return self.sampler is not None and is_poisson(self.sampler)


def check(
    batches: Any,
    books: Any,
    *,
    records: int,
    delta: float,
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> SamplerCheck:
    """Compare how batches are drawn with what the books assume, and compute the ε of both.

    JAX-Privacy's accountants book Poisson sampling. A loop over a shuffled Grain loader, or over
    balls in bins, is another mechanism, whose ε is larger.

    Guarantee: nothing is trained. JAX-Privacy strategies and Grain samplers are recognised by their
        settings; other loaders are watched.
    Assumption: if batches are shuffled, every epoch uses the whole training set.

    Args:
        batches: A JAX-Privacy batch selection strategy, a Grain ``IndexSampler`` or ``MapDataset``,
            or any loader of record numbers.
        books: See :func:`read_books`.
        records: Records of the training set.
        delta: δ of both ε.
        steps: See :func:`read_books`.
        batch_size: Batch size, for a loader that does not state it.
        seed: Seed for watching unknown loaders.

    Example:
        >>> import dp_accounting
        >>> step = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
        >>> strategy = batch_selection.CyclicPoissonSampling(sampling_prob=0.05, iterations=100)
        >>> found = check(strategy, dp_accounting.SelfComposedDpEvent(step, 100),
        ...               records=1000, delta=1e-5)
        >>> found.verdict
        'conforms'
    """
    _validate.whole(1, records=records)
    _validate.open_unit(delta=delta)
    known = recognise(batches, records=records, batch_size=batch_size, seed=seed)
    history = read_books(books, steps=steps)
    iterations = getattr(batches, "iterations", None)
    booked = known.rate is not None and known.is_booked(read_sampling(books))
    found = compare_sampling(
        # Truncated batches are booked at a rate, and compared by it.
        Poisson(rate=known.rate) if booked else known.sampler,
        name=known.words,
        history=history,
        delta=delta,
        reported=report_epsilon(books, delta=delta, steps=steps),
        accountant="PLD",
        batch_size=known.batch_size,
        planned=True,
        # An event may be a cycle of steps
        taken=None if iterations is None else -(-iterations // known.cycle_length),
    )
    if isinstance(batches, batch_selection.BallsInBinsSampling):
        return replace(found, epsilon_real=_account_bins(batches, history, delta))
    return found


def _account_bins(strategy: Any, history: Sequence[Booked], delta: float) -> EpsilonEstimate | None:
    """Return the ε of bins that are kept for E epochs: that of one epoch with noise σ/√E.

    A record is in the same bin in every epoch, so the sum over epochs is sufficient: its mean is E,
    its variance E σ².
    """
    epochs = strategy.iterations // strategy.cycle_length
    noise = max(noise for noise, _, _ in history)
    if not epochs or not noise:
        return None
    try:
        return shuffle_epsilon(
            noise_multiplier=noise / math.sqrt(epochs),
            steps=strategy.cycle_length,
            epochs=1,
            delta=delta,
            sampler=BallsInBins(),
        )
    except InvalidArgument:  # too little noise for an accountant
        return None


def recognise(
    batches: Any, *, records: int, batch_size: int | None = None, seed: int = 0
) -> Recognised:
    """Recognise how batches are drawn, by the sampler's settings; unknown samplers are watched."""
    match batches:
        case batch_selection.CyclicPoissonSampling():
            return _read_cyclic(batches, records)
        case batch_selection.BallsInBinsSampling(cycle_length=cycle):
            return Recognised(
                sampler=None,
                words=f"balls in {cycle} bins that are drawn once and kept for all epochs",
                batch_size=max(1, records // cycle),
                stated=True,
            )
        case batch_selection.FixedBatchSampling(batch_size=size, replace=False):
            return Recognised(
                sampler=WithoutReplacement(),
                words=f"random subsets of {size} records",
                batch_size=size,
                rate=size / records,
                stated=True,
            )
        case batch_selection.BatchSelectionStrategy():
            return Recognised(sampler=None, words=type(batches).__name__, batch_size=1)
    if type(batches).__module__.partition(".")[0] == "grain":
        return _read_grain(batches, records, batch_size)
    report = watch_loader(
        batches, records=records, batch_size=batch_size, rng=np.random.default_rng(seed)
    )
    return Recognised(
        sampler=report.sampler, words=f"{report.name} (as watched)", batch_size=report.batch_size
    )


def _read_cyclic(strategy: Any, records: int) -> Recognised:
    rate, cycle = float(strategy.sampling_prob), int(strategy.cycle_length)
    most = strategy.truncated_batch_size
    eligible = records // cycle
    words = f"Poisson sampling at rate {rate:.4g}"
    if cycle > 1:
        words += f" from {cycle} groups that take turns"
    if most is not None:
        words += f", cut off at {most} records"
    return Recognised(
        # A dropped record leaves room for others: records are no longer independent.
        sampler=Poisson(rate=rate) if most is None else None,
        words=words,
        batch_size=max(1, round(rate * eligible)),
        rate=rate,
        cycle_length=cycle,
        eligible=eligible,
        most=most,
        stated=True,
    )


def _read_grain(loader: Any, records: int, batch_size: int | None) -> Recognised:
    """Recognise Grain's classes by their components, without loading a record."""
    sampler = getattr(loader, "_sampler", loader)  # of a DataLoader
    if hasattr(sampler, "_shuffle"):
        return _describe_order(batch_size, order=Shuffle() if sampler._shuffle else Sequential())
    stages = _list_stages(loader)
    names = [type(stage).__name__ for stage in stages]
    for name in names:
        if not name.startswith(_PLAIN):
            raise InvalidArgument(
                f"Expected stages of Grain that keep records apart and in order, got {name}. Give "
                "the record numbers of its batches as a list instead: they are watched."
            )
    sizes = [int(s._batch_size) for s in stages if type(s).__name__.startswith("Batch")]
    shuffles = [at for at, name in enumerate(names) if name.startswith("Shuffle")]
    batches = [at for at, name in enumerate(names) if name.startswith("Batch")]
    size = sizes[0] if sizes else batch_size
    if not shuffles:
        return _describe_order(size, order=Sequential())
    if any(getattr(stage, "_reseed_each_epoch", True) is False for stage in stages):
        return _describe_order(size, order=None, words="one shuffled order in every epoch (Grain)")
    if batches and max(batches) > min(shuffles):  # stages are listed from the last to the first
        return _describe_order(size, order=BatchThenShuffle())
    return _describe_order(size, order=Shuffle())


def _describe_order(size: int | None, *, order: Sampler | None, words: str = "") -> Recognised:
    if size is None:
        raise InvalidArgument("Expected batch_size= with a sampler of Grain that has none.")
    name = words or f"{getattr(order, 'words', label_sampler(order))} (Grain)"  # type: ignore[arg-type]
    return Recognised(sampler=order, words=name, batch_size=size, stated=True)


# Stages of a Grain pipeline that neither choose records nor put them into an unknown order.
_PLAIN = ("Source", "Range", "MapMap", "MapIter", "RandomMap", "Repeat", "Batch", "Shuffle", "Pref")


def _list_stages(dataset: Any) -> list[Any]:
    """List the stages of a Grain dataset, the last first."""
    stages, pending = [], [dataset]
    while pending:
        stages.append(pending.pop())
        pending.extend(getattr(stages[-1], "_parents", ()))
    return stages
