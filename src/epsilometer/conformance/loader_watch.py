"""Record which records a DataLoader draws, without changing its draws."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from epsilometer.conformance.participation import ParticipationWatch
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.types import IntArray

NAME = "batches of the loader"


class LoaderWatch:
    """Record the indices of every logical batch that a loader draws.

    The loader's batch sampler becomes an instance of a subclass that iterates as before and records
    what it yields. So it does not matter who iterates: the loader itself, its worker processes'
    queue, a ``BatchMemoryManager`` that splits batches, or another loader made of the same sampler.

    Guarantee: the draws, their order and their random numbers are unchanged.
    Assumption: iterators are made after the watch began. Workers and prefetching draw batches
        ahead of their step, and an epoch that ends early drops them. So batches are compared
        with steps by their totals only.

    Args:
        loader: The loader.
        sampler: Sampler of its logical batches; its own batch sampler by default.

    Attributes:
        records: Records of the loader's dataset.
        drawn: Logical batches drawn so far.
        batches: Logical batches that the last :meth:`take` returned.
    """

    def __init__(self, loader: Any, sampler: Any = None) -> None:
        self.records = len(loader.dataset)
        self.drawn = self.batches = 0
        self._waiting: list[IntArray] = []  # not taken yet
        self._unfed: list[tuple[int, IntArray]] = []  # epochs and batches
        self._epochs = self._fed = 0
        self._steps: int | None = None  # taken since the first batch came
        self._obstacle = ""
        self._open = True
        own = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._loader, self._sampler = loader, own if sampler is None else sampler
        self._type = type(self._sampler)
        self._watched: Any = None
        self._begin()

    def close(self) -> None:
        """Stop recording and restore the loader."""
        self._open = False
        if type(self._sampler) is self._watched:
            self._sampler.__class__ = self._type

    def take(self) -> IntArray | None:
        """Return the records drawn since the last call; None if no batch was drawn.

        Call it once at the end of every step. With several loader batches per step, or batches
        drawn ahead, it returns several batches: see :attr:`batches`.
        """
        taken, self._waiting = self._waiting, []
        self.batches = len(taken)
        if self.drawn:
            self._steps = (self._steps or 0) + 1
        return np.concatenate(taken) if taken else None

    def feed(self, participation: ParticipationWatch, *, rate: float | None = None) -> None:
        """Pass on every batch drawn since the last call, epoch by epoch.

        Args:
            participation: Watch that receives them.
            rate: Booked rate, if it is not always the same.
        """
        unfed, self._unfed = self._unfed, []
        for epoch, indices in unfed:
            if epoch != self._fed:
                participation.begin_epoch()
                self._fed = epoch
            participation.see(indices, rate=rate)

    def check(self, steps: int) -> Check:
        """Check that the steps of a run used this loader, each with a new batch.

        Args:
            steps: Number of steps since the watch began.
        """
        since = self._steps if self.drawn else steps
        seen = f"{steps} steps, {self.drawn} batches drawn"
        detail = ""
        if self._obstacle:
            seen = self._obstacle
        elif self.drawn == 0:
            detail = "Another loader was used, or an iterator that was made before the watch began."
        elif since is not None and since > self.drawn:
            detail = "Steps were taken without a new batch: on the batch before, or on other data."
        tested = steps > 0 and not self._obstacle and since is not None
        return Check(
            name=NAME,
            outcome=judge.judge_limit(since if tested else None, limit=self.drawn),
            expected="every step uses a new batch of the loader that is accounted for",
            seen=seen if steps else "no step was taken",
            value=float(self.drawn),
            detail=detail,
            steps=steps,
        )

    def _begin(self) -> None:
        watch, kind = self, self._type

        def iterate(sampler: Any) -> Iterator[Any]:
            # Start at once: some samplers draw their order when an iterator is made.
            return watch._record(kind.__iter__(sampler))

        def reduce(sampler: Any, protocol: Any) -> Any:
            plain: Any = object.__new__(find_type(sampler))  # copies and pickles are not watched
            plain.__dict__.update(sampler.__dict__)
            return _get_plain, (plain,)

        members = {"__iter__": iterate, "__reduce_ex__": reduce, "watched_type": kind}
        try:
            self._watched = type(kind.__name__, (kind,), {**members, "__doc__": kind.__doc__})
            self._sampler.__class__ = self._watched
        except TypeError:  # a list of batches, say: such objects cannot change
            self._obstacle = f"a {kind.__name__} as batch sampler cannot be watched"

    def _record(self, items: Iterable[Any]) -> Iterator[Any]:
        epoch = 0
        for item in items:
            if self._open:
                if epoch == 0:
                    self._epochs += 1
                    epoch = self._epochs
                self._keep(epoch, item)
            yield item

    def _keep(self, epoch: int, item: Any) -> None:
        indices = read_indices(item, self.records)
        self.drawn += 1
        if indices is None:
            return  # keys of another kind: then only batches are counted
        self._waiting.append(indices)
        self._unfed.append((epoch, indices))


def _get_plain(sampler: Any) -> Any:
    """Return the object unchanged: used to copy a watched sampler."""
    return sampler


def find_type(sampler: Any) -> type:
    """Return the original type of a sampler, whether or not it is watched."""
    kind = type(sampler)
    while hasattr(kind, "watched_type"):
        kind = kind.watched_type
    return kind


def read_indices(item: Any, records: int) -> IntArray | None:
    """Return the indices of a batch; None if they are not indices.

    Example:
        >>> read_indices([3, 1, -1], 10), read_indices(4, 10), read_indices(["a"], 10)
        (array([3, 1, 9]), array([4]), None)
    """
    if hasattr(item, "detach"):  # a torch tensor
        item = item.detach().cpu().numpy()
    try:
        array = np.atleast_1d(np.asarray(item))
    except (TypeError, ValueError):
        return None
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        return None
    indices = array.astype(np.int64)
    indices[indices < 0] += records
    inside = indices.min() >= 0 and indices.max() < records
    return indices if inside else None
