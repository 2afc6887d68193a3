"""Draw the batches of an epoch: what an accountant assumes, and what loaders really do.

The batch of a record is secret randomness that hides it; an accountant assumes its distribution.
DP-SGD that draws batches by another distribution has another ε, often a much larger one.

Everything about a sampler is in its class. To add one, write a class with ``batches`` and the
optional members of :class:`Sampler` that are known. Register it in
``epsilometer.core.settings.CHOICES``, or from your own package by an entry point of the group
``epsilometer.samplers``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Secrecy: TypeAlias = Literal["", "allocation", "permutation"]


@dataclass(frozen=True, kw_only=True)
class Law:
    """The distribution of one record's effect on the noisy sums of an epoch.

    All other records are −1. After a shift that takes batches without the record to mean 0, its
    batch has mean ``present`` with it and ``absent`` with it zeroed out, in clipping norms. This
    determines the likelihood ratio (:mod:`epsilometer.stats.likelihood_ratio`), and so ε.

    Attributes:
        steps: Batches that the record may be in; the others reveal nothing about it.
        absent: 0 if the record joins the others; 1 if it takes the place of another; 2B − 1 if it
            always has the same B − 1 companions, which may all be +1.
        rate: Chance that a batch has the record, independently of other batches; None where
            exactly one batch has it, each equally likely.
        secrecy: Why no one knows the record's batch, where an upper bound may rely on it.
            ``"allocation"``: it picks a batch uniformly, whatever the other records do.
            ``"permutation"``: it is permuted uniformly with others, one of each batch. Empty if
            neither is known; then batches count as public.
        left_out: Largest chance that an epoch leaves the record out; only without a ``rate``.

    Example:
        >>> Law(steps=10, absent=1).present
        2
    """

    steps: int
    absent: int
    rate: float | None = None
    secrecy: Secrecy = field(default="", repr=False, compare=False)
    left_out: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        _validate.whole(1, steps=self.steps)
        _validate.whole(0, absent=self.absent)
        _check_rate(self.rate)
        if self.left_out:
            _validate.open_unit(left_out=self.left_out)

    @property
    def present(self) -> int:
        """Mean of the batch with the record: its gradient adds one clipping norm."""
        return self.absent + 1

    @property
    def is_poisson(self) -> bool:
        """Whether each batch includes the record by a coin toss, in addition to the others."""
        return self.rate is not None and self.absent == 0


class Sampler(Protocol):
    """Draw the batches of one epoch.

    Required: epochs are independent given ``rng``, all randomness comes from it, and no batch
    holds a record twice. Records are 0, 1, …, in the order in which they are stored.

    A sampler that cuts an order into batches has ⌈records / batch_size⌉ of them; an incomplete
    last one is shorter, or left out with ``drop_last``. The others have that many ``steps`` unless
    another number is set, and all are complete.

    Optional members, which functions of this module look up:

    - ``law(steps, batch_size) -> Law``: without it only the training itself can be audited;
    - ``displaces``: True if a record always takes another's place in its batch;
    - ``rate``: chance that a batch has a record, if it is not batch_size / records;
    - ``pin(records, batch_size)``: a sampler that draws alike for one record more or less;
    - ``block(records)``: number of records that are permuted among themselves;
    - ``label``: its name in results, if it is not the name of the class.

    Example:
        >>> [len(batch) for batch in Shuffle().batches(10, 4, rng=np.random.default_rng(0))]
        [4, 4, 2]
    """

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch: arrays of record indices, the first batch first.

        ``batch_size`` is at most ``records``; where sizes vary, it is the expected one.
        """
        ...


def find_law(sampler: Sampler, steps: int, batch_size: int | None = None) -> Law:
    """Return the distribution of a record's effect on an epoch of ``steps`` batches.

    Args:
        sampler: The sampler.
        steps: Batches per epoch.
        batch_size: Needed by samplers whose distribution depends on it.

    Raises:
        InvalidArgument: The sampler has no distribution, or none for these settings.

    Example:
        >>> find_law(PartialShuffle(100), 50, 10)
        Law(steps=10, absent=1, rate=None)
    """
    _validate.whole(1, steps=steps)
    make = getattr(sampler, "law", None)
    if make is None:
        raise InvalidArgument(
            f"Expected a sampler with a law, got {sampler!r}. Add a method law(steps, batch_size) "
            "to its class that returns epsilometer.samplers.Law: how many batches a record may be "
            "in, and the mean of its batch. Without it only the training itself can be audited, "
            "by DPSGD or TrainFunction."
        )
    law = make(steps, batch_size)
    if not isinstance(law, Law) or law.steps > steps:
        raise InvalidArgument(
            f"Expected law({steps}, {batch_size}) of {sampler!r} to return an "
            f"epsilometer.samplers.Law of at most {steps} steps, got {law!r}."
        )
    return law


def is_poisson(sampler: Sampler) -> bool:
    """Tell whether accounting by Poisson sampling applies to a sampler."""
    try:
        return find_law(sampler, getattr(sampler, "steps", None) or 1, 1).is_poisson
    except InvalidArgument:
        return False


def has_known_order(sampler: Sampler) -> bool:
    """Tell whether a record's batch is public: its distribution leaves one batch."""
    try:
        return find_law(sampler, getattr(sampler, "steps", None) or 2, 1).steps == 1
    except InvalidArgument:
        return False


def is_displacing(sampler: Sampler) -> bool:
    """Tell whether a record always takes the place of another in its batch."""
    return bool(getattr(sampler, "displaces", False))


def expected_rate(sampler: Sampler, records: int, batch_size: int) -> float:
    """Return the chance that a batch has a given record."""
    pinned = pin_sampler(sampler, records, batch_size)
    return getattr(pinned, "rate", None) or batch_size / records


def pin_sampler(sampler: Sampler, records: int, batch_size: int) -> Sampler:
    """Return the sampler with rate and steps fixed, so that removing a record changes neither."""
    pin = getattr(sampler, "pin", None)
    return sampler if pin is None else pin(records, batch_size)


def label_sampler(sampler: Sampler) -> str:
    """Return the name of a sampler in results.

    Example:
        >>> label_sampler(Shuffle()), label_sampler(PartialShuffle(60))
        ('Shuffle', 'PartialShuffle of 60')
    """
    return getattr(sampler, "label", type(sampler).__name__)


@dataclass(frozen=True)
class Sequential:
    """Consecutive slices in the stored order, the same in every epoch. No randomness.

    Accountant: the Gaussian mechanism once per epoch, without amplification.
    Who: ``DataLoader(shuffle=False)``; a ``tf.data`` pipeline without ``shuffle``.

    Attributes:
        drop_last: Leave a ragged last batch out.

    Example:
        >>> [b.tolist() for b in Sequential().batches(6, 2, rng=np.random.default_rng(0))]
        [[0, 1], [2, 3], [4, 5]]
    """

    drop_last: bool = False
    displaces: ClassVar[bool] = True
    words: ClassVar[str] = "going through the records in order"

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch; see :class:`Sampler`. ``rng`` is not used."""
        _check(records, batch_size)
        return _cut_order(np.arange(records), batch_size, self.drop_last)

    def law(self, steps: int, batch_size: int | None) -> Law:
        """Return the distribution of a record whose batch everyone knows."""
        return Law(steps=1, absent=1)


@dataclass(frozen=True)
class Shuffle:
    """A fresh uniform permutation every epoch, cut into batches.

    Accountant: the shuffle accountant (``epsilometer shuffle``). The Poisson accountant does not
    apply: its ε is too small.
    Who: ``DataLoader(shuffle=True)``, Keras, nearly everyone; Opacus with
    ``poisson_sampling=False``.

    Attributes:
        drop_last: Leave a ragged last batch out, with other records every epoch. The accountant
            assumes a share of 1/(T + 1), an upper limit. If none is left out, use ``Shuffle()``.

    Example:
        >>> [b.tolist() for b in Shuffle().batches(6, 2, rng=np.random.default_rng(0))]
        [[3, 2], [5, 4], [0, 1]]
    """

    drop_last: bool = False
    displaces: ClassVar[bool] = True
    words: ClassVar[str] = "shuffling every epoch"

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch; see :class:`Sampler`."""
        _check(records, batch_size)
        return _cut_order(rng.permutation(records), batch_size, self.drop_last)

    def law(self, steps: int, batch_size: int | None) -> Law:
        """Return the distribution of a record in one of all batches."""
        chance = self.drop_last / (steps + 1)
        return Law(steps=steps, absent=1, secrecy="permutation", left_out=chance)

    def block(self, records: int) -> int:
        """Return the number of records that are permuted among themselves: all."""
        return records

    def chance_after(self, position: FloatArray, records: int) -> FloatArray:
        """Return P(a record's place in the order ≥ position), one row for all records."""
        return np.asarray((records - position)[None, :] / records)

    def log_likeliest(self, sizes: IntArray, records: int, batch_size: int) -> float:
        """Return ln of the chance of the likeliest epoch: all orders within batches count as it."""
        return _log_orders(sizes) - math.lgamma(records + 1)


@dataclass(frozen=True)
class PartialShuffle:
    """A shuffle within a buffer only, afresh every epoch, cut into batches.

    By blocks (Annamalai et al. 2025, Algorithm 3): records 0 … buffer−1 are permuted among
    themselves, then the next ``buffer``, and so on; the last block may be shorter. A record can
    only land in the batches that its block touches.

    Sliding: the buffer holds the next ``buffer`` records; a uniform one of them is taken and the
    next record steps in. Every order with position ≥ record − buffer + 1 is then equally likely,
    so a record may come late, but never early.

    A buffer of all records, or more, is :class:`Shuffle`.

    Accountant: by blocks, that of shuffling with the batches of one block only; sliding: none.
    Who: ``tf.data.Dataset.shuffle(buffer)`` and WebDataset slide; shuffling shard by shard works
    by blocks.

    Attributes:
        buffer: Records in the buffer, 1 or more.
        sliding: Slide instead of working block by block.
        drop_last: Leave a ragged last batch out.

    Example:
        >>> [b.tolist() for b in PartialShuffle(4).batches(6, 2, rng=np.random.default_rng(0))]
        [[2, 0], [1, 3], [5, 4]]
    """

    buffer: int
    sliding: bool = False
    drop_last: bool = False
    displaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.whole(1, buffer=self.buffer)

    @property
    def label(self) -> str:
        """Name of the sampler, with the buffer."""
        return f"PartialShuffle of {self.buffer}"

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch; see :class:`Sampler`."""
        _check(records, batch_size)
        draw = _slide_buffer if self.sliding else _permute_blocks
        return _cut_order(draw(records, min(self.buffer, records), rng), batch_size, self.drop_last)

    def law(self, steps: int, batch_size: int | None) -> Law:
        """Return the distribution of a record whose block fills whole batches."""
        if batch_size is None:
            raise InvalidArgument(f"Expected a batch_size with {self!r}, got none.")
        if self.sliding:
            raise InvalidArgument(
                "Expected PartialShuffle by blocks, got a sliding one: the law of its batches "
                "is not known. Audit the training itself."
            )
        if self.drop_last and self.buffer > steps * batch_size:  # all records are one block
            return Law(steps=steps, absent=1, left_out=1 / (steps + 1))
        # Without secrecy: a last block that is shorter fills fewer batches.
        return Law(steps=min(steps, -(-self.buffer // batch_size)), absent=1)

    def block(self, records: int) -> int:
        """Return the number of records permuted among themselves; 0 for a sliding buffer."""
        return 0 if self.sliding else min(self.buffer, records)

    def chance_after(self, position: FloatArray, records: int) -> FloatArray:
        """Return P(a record's place in the order ≥ position), one row per record."""
        record, buffer = np.arange(records)[:, None], min(self.buffer, records)
        if not self.sliding:
            start = record // buffer * buffer
            end = np.minimum(start + buffer, records)
            return np.asarray(np.clip((end - position) / (end - start), 0.0, 1.0))
        arrival = np.maximum(0, record - buffer + 1)
        last = records - buffer + 1  # from here on the buffer only empties
        waited = np.maximum(0, np.minimum(position, last) - arrival)
        left = (1 - 1 / buffer) ** waited
        emptying = np.clip((records - position) / max(1, buffer - 1), 0.0, 1.0)
        return np.asarray(np.where(position > last, left * emptying, left))

    def log_likeliest(self, sizes: IntArray, records: int, batch_size: int) -> float:
        """Return ln of the chance of the likeliest epoch: at most that of one order each."""
        if self.sliding:
            steady = (records - self.buffer) * math.log(self.buffer)
            return _log_orders(sizes) - steady - math.lgamma(self.buffer + 1)
        whole = _log_orders(sizes) - records // self.buffer * math.lgamma(self.buffer + 1)
        return whole - math.lgamma(records % self.buffer + 1)


@dataclass(frozen=True)
class BatchThenShuffle:
    """Consecutive slices that never change, in a fresh uniform order every epoch.

    Accountant: the shuffle accountant for batch-then-shuffle. The batch-mates of a record are
    always the same, so its batch can be made to stand out: ε is larger than for :class:`Shuffle`.
    Without ``drop_last`` a slice may be of one record: a batch stands out by B + 1, not 2B.
    Who: ``dataset.batch(…).shuffle(…)`` in ``tf.data``; batches made in advance.

    Attributes:
        drop_last: Leave a ragged last slice out; otherwise it is shuffled with the others.

    Example:
        >>> [b.tolist() for b in BatchThenShuffle().batches(6, 2, rng=np.random.default_rng(0))]
        [[4, 5], [0, 1], [2, 3]]
    """

    drop_last: bool = False
    displaces: ClassVar[bool] = True

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch; see :class:`Sampler`."""
        _check(records, batch_size)
        slices = list(_cut_order(np.arange(records), batch_size, self.drop_last))
        return (slices[place] for place in rng.permutation(len(slices)))

    def law(self, steps: int, batch_size: int | None) -> Law:
        """Return the distribution of a record with companions of +1; other slices are alike."""
        if batch_size is None:
            raise InvalidArgument(f"Expected a batch_size with {self!r}, got none.")
        return Law(steps=steps, absent=2 * batch_size - 1 if self.drop_last else batch_size)

    def log_likeliest(self, sizes: IntArray, records: int, batch_size: int) -> float:
        """Return ln of the chance of the likeliest epoch: all slice orders are equally likely."""
        return -math.lgamma(sizes.size + 1)


@dataclass(frozen=True)
class BallsInBins:
    """Every record picks one batch of the epoch, uniformly and independently of all others.

    Every record comes exactly once per epoch; batch sizes vary, and a batch may be empty.

    Accountant: that of balls in bins (Chua et al. 2025); the Poisson accountant does not apply.
    Who: few. JAX Privacy's ``BallsInBinsSampling`` draws the bins once and keeps them for all
    epochs, which is another distribution: one fixed order.

    Attributes:
        steps: Batches per epoch; ⌈records / batch_size⌉ if not given.

    Example:
        >>> [b.tolist() for b in BallsInBins().batches(6, 2, rng=np.random.default_rng(0))]
        [[3, 4, 5], [1, 2], [0]]
    """

    steps: int | None = None
    words: ClassVar[str] = "balls in bins"

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch; see :class:`Sampler`."""
        _check(records, batch_size)
        steps = self.steps or -(-records // batch_size)
        picked = rng.integers(steps, size=records)
        ends = np.cumsum(np.bincount(picked, minlength=steps))
        return iter(np.split(np.argsort(picked, kind="stable"), ends[:-1]))

    def law(self, steps: int, batch_size: int | None) -> Law:
        """Return the distribution of a record in one of all batches, joining the others."""
        return Law(steps=_same_steps(self.steps, steps), absent=0, secrecy="allocation")

    def log_likeliest(self, sizes: IntArray, records: int, batch_size: int) -> float:
        """Return ln of the chance of any epoch: all are equally likely."""
        return -records * math.log(sizes.size)


@dataclass(frozen=True)
class Poisson:
    """Every batch takes every record with the same chance, independently of everything else.

    Batch sizes vary, a batch may be empty, and a record may come several times in an epoch, or not
    at all.

    Accountant: the Poisson accountant, by privacy-loss distributions (``accounting.pld``).
    Who: Opacus's ``DPDataLoader`` (``poisson_sampling=True``); hardly anyone else.

    Attributes:
        rate: The chance, in (0, 1]. If not given: batch_size / records with ``steps``, else one
            over the number of batches.
        steps: Batches per epoch; ⌈records / batch_size⌉ if not given.

    Example:
        >>> [b.tolist() for b in Poisson().batches(6, 2, rng=np.random.default_rng(0))]
        [[0, 5], [1], []]
    """

    rate: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_rate(self.rate)

    @property
    def words(self) -> str:
        """The name of the sampler, for display."""
        at = "" if self.rate is None else f" at rate {self.rate:.4g}"
        return f"Poisson sampling{at}"

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch; see :class:`Sampler`. Batches are sorted."""
        _check(records, batch_size)
        rate = expected_rate(self, records, batch_size)
        sizes = rng.binomial(records, rate, size=self.steps or -(-records // batch_size))
        return (_draw_subset(records, size, rng) for size in sizes.tolist())

    def law(self, steps: int, batch_size: int | None) -> Law:
        """Return the distribution of a record that each batch includes by a coin toss."""
        rate = 1 / steps if self.rate is None else self.rate
        return Law(steps=_same_steps(self.steps, steps), absent=0, rate=rate)

    def pin(self, records: int, batch_size: int) -> "Poisson":
        """Return the sampler with rate and steps fixed."""
        # 1/steps, as ``law`` has it: batch_size / records is more where the last batch is ragged.
        usual = -(-records // batch_size)
        rate = self.rate or (batch_size / records if self.steps else 1 / usual)
        return Poisson(rate=rate, steps=self.steps or usual)

    def log_likeliest(self, sizes: IntArray, records: int, batch_size: int) -> float:
        """Return ln of the chance of the likeliest epoch: every coin shows its likelier side."""
        rate = expected_rate(self, records, batch_size)
        return records * sizes.size * math.log(max(rate, 1 - rate))


@dataclass(frozen=True)
class WithoutReplacement:
    """Every batch is a fresh uniform subset of ``batch_size`` records, independent of the others.

    A record may come several times in an epoch, or not at all; all batches are full.

    Accountant: that of fixed-size sampling without replacement, for the replace adjacency
    (dp-accounting's ``SampledWithoutReplacementDpEvent``).
    Who: code that calls ``rng.choice(n, batch_size, replace=False)`` at every step.

    Attributes:
        steps: Batches per epoch; ⌈records / batch_size⌉ if not given.

    Example:
        >>> [b.tolist() for b in WithoutReplacement().batches(6, 2, rng=np.random.default_rng(0))]
        [[3, 4], [1, 2], [0, 1]]
    """

    steps: int | None = None
    displaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch; see :class:`Sampler`. Batches are sorted."""
        _check(records, batch_size)
        steps = self.steps or -(-records // batch_size)
        return (_draw_subset(records, batch_size, rng) for _ in range(steps))

    def law(self, steps: int, batch_size: int | None) -> Law:
        """Return the distribution of a record that each batch has with chance 1/steps."""
        return Law(steps=_same_steps(self.steps, steps), absent=1, rate=1 / steps)

    def log_likeliest(self, sizes: IntArray, records: int, batch_size: int) -> float:
        """Return ln of the probability of any epoch: all subsets are equally likely."""
        picked, left = math.lgamma(batch_size + 1), math.lgamma(records - batch_size + 1)
        return -sizes.size * (math.lgamma(records + 1) - picked - left)


def check_same_steps(sampler: Sampler, *, batch_size: int, records: int) -> None:
    """Refuse add/remove neighbours if the number of batches reveals the target."""
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


def _check(records: int, batch_size: int) -> None:
    _validate.whole(1, records=records, batch_size=batch_size)
    if batch_size > records:
        raise InvalidArgument(f"Expected batch_size ≤ records = {records}, got {batch_size}.")


def _check_steps(steps: int | None) -> None:
    if steps is not None:
        _validate.whole(1, steps=steps)


def _check_rate(rate: float | None) -> None:
    if rate is not None:
        _validate.positive(rate=rate)
        _validate.probability(rate=rate)


def _same_steps(own: int | None, steps: int) -> int:
    if own not in (None, steps):
        raise InvalidArgument(f"Expected the sampler's steps to be {steps}, got {own}.")
    return steps


def _log_orders(sizes: IntArray) -> float:
    """Return ln of the number of orders with the same batches."""
    return sum(math.lgamma(size + 1) for size in sizes.tolist())


def _cut_order(order: IntArray, batch_size: int, drop_last: bool) -> Iterator[IntArray]:
    end = order.size // batch_size * batch_size if drop_last else order.size
    return (order[start : start + batch_size] for start in range(0, end, batch_size))


def _draw_subset(records: int, size: int, rng: np.random.Generator) -> IntArray:
    return np.sort(rng.choice(records, size, replace=False, shuffle=False))


def _permute_blocks(records: int, buffer: int, rng: np.random.Generator) -> IntArray:
    whole = records // buffer * buffer
    blocks = rng.permuted(np.arange(whole).reshape(-1, buffer), axis=1)
    return np.concatenate([blocks.ravel(), whole + rng.permutation(records - whole)])


def _slide_buffer(records: int, buffer: int, rng: np.random.Generator) -> IntArray:
    waiting, taken = list(range(buffer)), []
    for coming, pick in enumerate(rng.integers(buffer, size=records - buffer).tolist(), buffer):
        taken.append(waiting[pick])
        waiting[pick] = coming
    return np.concatenate([np.asarray(taken, np.int64), rng.permutation(waiting)])
