"""Draw batches for training with samplers of proved ε, for PyTorch or without any framework."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Sampler, label_sampler, pin_sampler
from epsilometer.types import FloatArray, IntArray


@dataclass(frozen=True)
class FixedSize:
    """Another sampler's batches, truncated to at most ``size`` records.

    A batch with more keeps a uniform subset of ``size``; one with fewer can be padded, see
    ``BatchSampler.padded``. So every physical batch has the same shape, as compilers and
    accelerators prefer, and sampling stays Poisson, or balls in bins, except for a rare event.

    Accountant: that of ``inner`` and, for truncation, an extra (1 + e^ε) τ in δ, where τ bounds the
    chance that any batch of all epochs is truncated (Chua et al. 2024): ``em.shuffle_upper``.
    Who: JAX Privacy, with padded batches.

    Attributes:
        inner: ``Poisson()`` or ``BallsInBins()``: records must be drawn independently.
        size: Largest number of records in a batch. See :meth:`fit`.

    Example:
        >>> from epsilometer.sampling import BallsInBins, FixedSize
        >>> sampler = FixedSize.fit(BallsInBins(), records=60_000, batch_size=256, delta=1e-5)
        >>> sampler.size
        406
    """

    inner: Sampler
    size: int

    def __post_init__(self) -> None:
        _validate.whole(1, size=self.size)
        if getattr(self.inner, "displaces", False) or hasattr(self.inner, "inner"):
            raise InvalidArgument(
                "Expected a sampler whose records are drawn independently, as Poisson() or "
                f"BallsInBins(), got {self.inner!r}."
            )

    @classmethod
    def fit(
        cls,
        inner: Sampler,
        *,
        records: int,
        batch_size: int,
        delta: float,
        epochs: int = 1000,
        epsilon: float = 10.0,
    ) -> "FixedSize":
        """Return the smallest size that costs at most a thousandth of δ.

        Args:
            inner: The sampler.
            records: Size of the training set.
            batch_size: Expected records per batch.
            delta: δ of the claim.
            epochs: Largest number of epochs to train.
            epsilon: Largest ε to claim.
        """
        _check(records, batch_size)
        _validate.open_unit(delta=delta)
        steps = _count_steps(inner, records, batch_size)
        rate = getattr(pin_sampler(inner, records, batch_size), "rate", None) or 1 / steps
        allowed = 1e-3 * delta / ((1 + math.exp(epsilon)) * steps * epochs)
        low, high = math.ceil(rate * records), records
        while low < high:
            middle = (low + high) // 2
            if _exceeds(records, rate, middle) <= allowed:
                high = middle
            else:
                low = middle + 1
        return cls(inner, low)

    @property
    def label(self) -> str:
        """Name of the sampler, with the size."""
        return f"{label_sampler(self.inner)} in batches of {self.size}"

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return one epoch; see :class:`Sampler`."""
        steps = _count_steps(self.inner, records, batch_size)
        if records > steps * batch_size:  # more than ``overflow`` counts on
            raise InvalidArgument(
                f"Expected batch_size ≥ {-(-records // steps)}, {records} records over {steps} "
                f"batches, got {batch_size}."
            )
        for batch in self.inner.batches(records, batch_size, rng=rng):
            cut = batch.size > self.size
            yield rng.choice(batch, self.size, replace=False) if cut else batch

    def overflow(self, steps: int, batch_size: int) -> float:
        """Return the chance that a batch is truncated, with ``steps · batch_size`` records."""
        rate = getattr(self.inner, "rate", None) or 1 / steps
        return _exceeds(steps * batch_size, rate, self.size)


class BatchSampler:
    """Draw batches of record indices, epoch by epoch.

    A PyTorch ``DataLoader`` takes it as ``batch_sampler``; without a framework it is an iterator.
    Each ``iter`` is a new epoch.

    Guarantee: batches are those of ``sampler``, with randomness from the operating system unless a
        seed is given. The same seed gives the same batches: keep it secret, like the noise's seed.
    Assumption: every batch is trained on, even an empty one: its step only adds noise. A
        ``collate_fn`` must accept an empty list.

    Args:
        sampler: Sampler of :mod:`epsilometer.sampling`, such as ``BallsInBins()``.
        records: Size of the training set.
        batch_size: Records per batch, the expected number where it varies.
        seed: Seed for reproducible batches; never publish it.

    Example:
        >>> from epsilometer.sampling import BallsInBins, BatchSampler
        >>> batches = BatchSampler(BallsInBins(), records=100, batch_size=10, seed=0)
        >>> len(batches), sum(map(len, batches))  # every record once per epoch
        (10, 100)
    """

    def __init__(
        self, sampler: Sampler, records: int, batch_size: int, *, seed: int | None = None
    ) -> None:
        _check(records, batch_size)
        if seed is not None:
            _validate.whole(0, seed=seed)
        self.sampler = sampler
        self.records = records
        self.batch_size = batch_size
        self.rng = np.random.default_rng(seed)
        self.steps = _count_steps(sampler, records, batch_size)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        """Draw one epoch."""
        for batch in self.sampler.batches(self.records, self.batch_size, rng=self.rng):
            yield batch.tolist()

    def padded(self) -> Iterator[tuple[IntArray, FloatArray]]:
        """Draw one epoch of batches of equal shape: indices, and weights of 1, or 0 for padding.

        Padding repeats record 0. Multiply clipped gradients by the weights: weight 0 adds nothing.

        Example:
            >>> from epsilometer.sampling import BallsInBins, BatchSampler, FixedSize
            >>> sampler = FixedSize(BallsInBins(), size=20)
            >>> batches = BatchSampler(sampler, records=100, batch_size=10, seed=0)
            >>> {indices.shape for indices, _ in batches.padded()}
            {(20,)}
        """
        size = getattr(self.sampler, "size", None)
        if size is None:
            raise InvalidArgument(
                "Expected FixedSize(sampler, size), which bounds the size of batches, got "
                f"{self.sampler!r}."
            )
        for batch in self.sampler.batches(self.records, self.batch_size, rng=self.rng):
            indices, weights = np.zeros(size, np.int64), np.zeros(size)
            indices[: batch.size], weights[: batch.size] = batch, 1.0
            yield indices, weights


def _check(records: int, batch_size: int) -> None:
    _validate.whole(1, records=records, batch_size=batch_size)
    if batch_size > records:
        raise InvalidArgument(f"Expected batch_size ≤ records = {records}, got {batch_size}.")


def _count_steps(sampler: Sampler, records: int, batch_size: int) -> int:
    """Return the number of batches of an epoch, if necessary by drawing one."""
    source = getattr(sampler, "inner", sampler)
    if getattr(source, "displaces", False):
        rng = np.random.default_rng(0)
        return sum(1 for _ in source.batches(records, batch_size, rng=rng))
    return getattr(source, "steps", None) or -(-records // batch_size)


def _exceeds(records: int, rate: float, size: int) -> float:
    """Return the chance that more than ``size`` records are drawn."""
    return float(bdtrc(size, records, rate)) if size < records else 0.0
