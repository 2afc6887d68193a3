"""How the batches of an epoch are drawn: what an accountant assumes, and what loaders really do.

Which batch a record lands in is secret randomness that hides it; an accountant counts on a certain
law of it. DP-SGD that draws by another law has another ε, often a much larger one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import IntArray


class Sampler(Protocol):
    """Draws the batches of one epoch.

    Must keep: epochs are independent given ``rng``, all randomness comes from it, and no batch
    holds a record twice. Records are 0, 1, …, in the order in which they are stored.

    A sampler that cuts an order into batches has ⌈records / batch_size⌉ of them; if the last is
    ragged it is shorter, or left out with ``drop_last``. The others have that many ``steps`` unless
    told another number, and none is ragged.
    """

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Returns one epoch: arrays of record indices, the first batch first.

        Args:
            records: Size of the training set, 1 or more.
            batch_size: Records in a batch (the expected number, where it varies), at most
                ``records``.
            rng: Where all randomness comes from.
        """
        ...


@dataclass(frozen=True)
class Sequential:
    """Consecutive slices in the stored order, the same in every epoch. No randomness.

    Accountant: the Gaussian mechanism once an epoch, without amplification.
    Who: ``DataLoader(shuffle=False)``; a ``tf.data`` pipeline without ``shuffle``.

    Attributes:
        drop_last: Leave a ragged last batch out.
    """

    drop_last: bool = False

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """One epoch, as of :class:`Sampler`; ``rng`` is not used."""
        _check(records, batch_size)
        return _cut(np.arange(records), batch_size, self.drop_last)


@dataclass(frozen=True)
class Shuffle:
    """A fresh uniform permutation every epoch, cut into batches.

    Accountant: the shuffle accountant (``epsilometer shuffle``). The Poisson one does not apply,
    its ε is too small.
    Who: ``DataLoader(shuffle=True)``, Keras, nearly everybody; Opacus with
    ``poisson_sampling=False``.

    Attributes:
        drop_last: Leave a ragged last batch out; other records are left out every epoch.
    """

    drop_last: bool = False

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """One epoch, as of :class:`Sampler`."""
        _check(records, batch_size)
        return _cut(rng.permutation(records), batch_size, self.drop_last)


@dataclass(frozen=True)
class PartialShuffle:
    """Shuffles within a buffer only, afresh every epoch, and cuts into batches.

    By blocks (Annamalai et al. 2025, Algorithm 3): records 0 … buffer−1 are permuted among
    themselves, then the next ``buffer``, and so on; the last block may be shorter. A record can
    only land in the batches that its block touches.

    Sliding: the buffer holds the next ``buffer`` records; a uniform one of them is taken and the
    next record steps in. Every order with position ≥ record − buffer + 1 is then equally likely,
    so a record may come late, but never early.

    A buffer of all records, or more, is :class:`Shuffle`.

    Accountant: by blocks, that of shuffling with the batches of one block only; sliding: none.
    Who: ``tf.data.Dataset.shuffle(buffer)`` and WebDataset slide; shuffling shard by shard is by
    blocks.

    Attributes:
        buffer: Records in the buffer, 1 or more.
        sliding: Slide instead of working block by block.
        drop_last: Leave a ragged last batch out.
    """

    buffer: int
    sliding: bool = False
    drop_last: bool = False

    def __post_init__(self) -> None:
        _validate.whole(1, buffer=self.buffer)

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """One epoch, as of :class:`Sampler`."""
        _check(records, batch_size)
        order = _slid if self.sliding else _blocked
        return _cut(order(records, min(self.buffer, records), rng), batch_size, self.drop_last)


@dataclass(frozen=True)
class BatchThenShuffle:
    """Consecutive slices that never change, in a fresh uniform order every epoch.

    A ragged last slice is shuffled among the others.

    Accountant: the shuffle accountant for batch-then-shuffle. The batch-mates of a record are
    always the same, so its batch can be made to stand out: ε is larger than of :class:`Shuffle`.
    Who: ``dataset.batch(…).shuffle(…)`` in ``tf.data``; batches made in advance.

    Attributes:
        drop_last: Leave a ragged last slice out.
    """

    drop_last: bool = False

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """One epoch, as of :class:`Sampler`."""
        _check(records, batch_size)
        slices = list(_cut(np.arange(records), batch_size, self.drop_last))
        return (slices[place] for place in rng.permutation(len(slices)))


@dataclass(frozen=True)
class BallsInBins:
    """Every record picks one batch of the epoch, uniformly and independently of all others.

    Every record comes exactly once an epoch; batch sizes vary, and a batch may be empty.

    Accountant: that of balls-in-bins (Chua et al. 2025); the Poisson one does not apply.
    Who: few. JAX Privacy's ``BallsInBinsSampling`` draws the bins once and keeps them for all
    epochs, which is another law: one fixed order.

    Attributes:
        steps: Batches of an epoch; ⌈records / batch_size⌉ if not given.
    """

    steps: int | None = None

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """One epoch, as of :class:`Sampler`."""
        _check(records, batch_size)
        steps = self.steps or -(-records // batch_size)
        picked = rng.integers(steps, size=records)
        ends = np.cumsum(np.bincount(picked, minlength=steps))
        return iter(np.split(np.argsort(picked, kind="stable"), ends[:-1]))


@dataclass(frozen=True)
class Poisson:
    """Every batch takes every record with the same chance, independently of everything else.

    Batch sizes vary, a batch may be empty, and a record may come several times in an epoch, or not
    at all.

    Accountant: the Poisson one, by privacy-loss distributions (``accounting.pld``).
    Who: Opacus's ``DPDataLoader`` (``poisson_sampling=True``); nearly nobody else.

    Attributes:
        rate: The chance, in (0, 1]; batch_size / records if not given.
        steps: Batches of an epoch; ⌈records / batch_size⌉ if not given.
    """

    rate: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        if self.rate is not None:
            _validate.positive(rate=self.rate)
            _validate.probability(rate=self.rate)

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """One epoch, as of :class:`Sampler`; batches are sorted."""
        _check(records, batch_size)
        rate = batch_size / records if self.rate is None else self.rate
        sizes = rng.binomial(records, rate, size=self.steps or -(-records // batch_size))
        return (_subset(records, size, rng) for size in sizes.tolist())


@dataclass(frozen=True)
class WithoutReplacement:
    """Every batch is a fresh uniform subset of ``batch_size`` records, independent of the others.

    A record may come several times in an epoch, or not at all; all batches are full.

    Accountant: that of fixed-size sampling without replacement, with records replaced, not added
    (dp-accounting's ``SampledWithoutReplacementDpEvent``).
    Who: code that calls ``rng.choice(n, batch_size, replace=False)`` at every step.

    Attributes:
        steps: Batches of an epoch; ⌈records / batch_size⌉ if not given.
    """

    steps: int | None = None

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """One epoch, as of :class:`Sampler`; batches are sorted."""
        _check(records, batch_size)
        steps = self.steps or -(-records // batch_size)
        return (_subset(records, batch_size, rng) for _ in range(steps))


def _check(records: int, batch_size: int) -> None:
    _validate.whole(1, records=records, batch_size=batch_size)
    if batch_size > records:
        raise InvalidArgument(f"Expected batch_size ≤ records = {records}, got {batch_size}.")


def _check_steps(steps: int | None) -> None:
    if steps is not None:
        _validate.whole(1, steps=steps)


def _cut(order: IntArray, batch_size: int, drop_last: bool) -> Iterator[IntArray]:
    end = order.size // batch_size * batch_size if drop_last else order.size
    return (order[start : start + batch_size] for start in range(0, end, batch_size))


def _subset(records: int, size: int, rng: np.random.Generator) -> IntArray:
    picked = rng.choice(records, size, replace=False, shuffle=False)
    picked.sort()
    return picked


def _blocked(records: int, buffer: int, rng: np.random.Generator) -> IntArray:
    whole = records // buffer * buffer
    blocks = rng.permuted(np.arange(whole).reshape(-1, buffer), axis=1)
    return np.concatenate([blocks.ravel(), whole + rng.permutation(records - whole)])


def _slid(records: int, buffer: int, rng: np.random.Generator) -> IntArray:
    waiting = list(range(buffer))
    taken = []
    for coming, pick in enumerate(rng.integers(buffer, size=records - buffer).tolist(), buffer):
        taken.append(waiting[pick])
        waiting[pick] = coming
    return np.concatenate([np.asarray(taken, np.int64), rng.permutation(waiting)])


def check_same_steps(sampler: Sampler, *, batch_size: int, records: int) -> None:
    """Refuse add/remove neighbours where the number of batches alone gives the target away."""
    rng = np.random.default_rng(0)
    with_it, without = (
        sum(1 for _ in sampler.batches(size, batch_size, rng=rng))
        for size in (records, records - 1)
    )
    if with_it != without:
        raise InvalidArgument(
            f"Expected as many batches without the target as with it, got {with_it} with and "
            f"{without} without: their number alone gives it away. Take another batch_size, "
            "or adjacency='zero_out'."
        )
