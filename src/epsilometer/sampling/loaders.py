"""Watch the indices of a user's loader, and identify its sampler.

Indices are read here; :mod:`~epsilometer.sampling.recognition` decides what drew them.
"""

import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.recognition import (
    Epoch,
    Recognised,
    find_batch_size,
    flatten_epoch,
    recognise,
    write_range,
)
from epsilometer.sampling.samplers import Sampler, has_known_order
from epsilometer.types import IntArray

_MOST = 4_000_000  # indices watched by default: takes seconds
_FEW = 20  # epochs below which the reader is warned


@dataclass(frozen=True, kw_only=True)
class LoaderReport:
    """The sampler that a loader was found to be, and the evidence.

    Guarantees: if the loader is one of our samplers, this sampler is refuted with probability at
    most ``1 - confidence``.
    Does not guarantee that the named sampler is the right one: deviations below those listed in
    ``evidence`` go unnoticed. A buffer that holds nearly all records passes as a full shuffle, and
    shuffling that never crosses a batch as none.

    Attributes:
        sampler: The sampler; None if it is none of ours.
        name: The sampler in words.
        accountant: The accountant that applies, in words; begins with "none" if none does.
        epochs: Number of epochs watched.
        records: Size of the training set.
        batch_size: Records in a full batch, or the rounded mean if it varies.
        steps: Batches per epoch; the largest number if it varies.
        confidence: Confidence of the guarantee.
        evidence: What was observed, in sentences with numbers.
        caveats: What could not be observed, and what to check.
    """

    sampler: Sampler | None
    name: str
    accountant: str
    epochs: int
    records: int
    batch_size: int
    steps: int
    confidence: float
    evidence: tuple[str, ...]
    caveats: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FromLoader:
    """A user's own loader: a sampler like any other, which can also be watched.

    Nothing is trained and no record is loaded: only indices are read, from ``batch_sampler`` or
    ``sampler`` of a ``DataLoader``. This advances the loader's own randomness as training does, so
    watch a loader that is not in use.

    Assumes: iterating again is a new epoch. Training uses exactly the records of the index sampler
    (a ``DataLoader`` subclass that draws in ``__iter__`` is not detected).

    Attributes:
        loader: A ``torch.utils.data`` ``DataLoader`` (Opacus's ``DPDataLoader`` too), a batch
            sampler (yields lists of indices), or a sampler (yields indices); any object that does
            the same, without torch.
        records: Size of the training set; by default that of the loader's dataset.
        batch_size: Batch size for a sampler of single indices.
        set_epoch: Call the sampler's ``set_epoch(0)``, ``set_epoch(1)``, … before each watched
            epoch, as ``DistributedSampler`` needs. Leave False if your training does not.
    """

    loader: Any
    records: int | None = None
    batch_size: int | None = None
    set_epoch: bool = False

    def __post_init__(self) -> None:
        if self.records is not None:
            _validate.whole(1, records=self.records)
        if self.batch_size is not None:
            _validate.whole(1, batch_size=self.batch_size)

    def batches(
        self, records: int, batch_size: int, *, rng: np.random.Generator
    ) -> Iterator[IntArray]:
        """Return the loader's next epoch; indices beyond ``records`` are an error.

        ``batch_size`` matters only for a sampler of single indices. ``rng`` is not used: the
        loader has its own randomness.
        """
        _validate.whole(1, records=records, batch_size=batch_size)
        return (_inside(batch, records) for batch in self._epoch(self.batch_size or batch_size))

    def watch(
        self,
        *,
        epochs: int | None = None,
        most: int = _MOST,
        target: int | None = None,
        confidence: float = 0.999,
        rng: np.random.Generator,
    ) -> LoaderReport:
        """Watch epochs of the loader and identify its sampler; see :class:`LoaderReport`.

        Args:
            epochs: Number of epochs to watch, 2 or more. By default about 400,000 indices, in 20
                to 400 epochs.
            most: Number of indices after which no further epoch is started; a longer or endless
                epoch is an error.
            target: A record whose batches are listed in the evidence; all records are watched.
            confidence: Confidence of being right about a loader that is one of our samplers, in
                (0, 1).
            rng: Generator for the candidates' epochs that the loader is compared with.
        """
        _validate.open_unit(confidence=confidence)
        _validate.whole(1, most=most)
        if epochs is not None:
            _validate.whole(2, epochs=epochs)
        size = self.batch_size or _single_size(self.loader)
        seen = [_limit(self._number(0, size), most)]
        records = self.records or _dataset_size(self.loader)
        guessed = records is None
        wanted = epochs or min(400, max(20, 400_000 // max(1, seen[0].record.size)))
        total = seen[0].record.size
        while len(seen) < wanted and total + seen[-1].record.size <= most:
            seen.append(_limit(self._number(len(seen), size), most))
            total += seen[-1].record.size
        if len(seen) < 2:
            raise InvalidArgument(
                f"Expected room for two epochs in most={most}, got one of {total} indices. "
                "Whether epochs are independent cannot be seen in one: raise most."
            )
        if records is None:
            records = 1 + max(int(epoch.record.max(initial=0)) for epoch in seen)
        if target is not None:
            _validate.whole(0, target=target)
        for epoch in seen:
            _inside(epoch.record, records)
        if target is not None and target >= records:
            raise InvalidArgument(f"Expected target < records = {records}, got {target}.")
        verdict = recognise(seen, records, 1 - confidence, rng)
        facts = [
            f"Watched {len(seen)} epochs of {write_range(e.sizes.size for e in seen)} batches: "
            f"{total} indices of {records} records.",
            *verdict.evidence,
        ]
        if target is not None:
            facts.append(_landing(seen, target))
        return LoaderReport(
            sampler=verdict.sampler,
            name=verdict.name,
            accountant=verdict.accountant,
            epochs=len(seen),
            records=records,
            batch_size=find_batch_size(seen),
            steps=max(epoch.sizes.size for epoch in seen),
            confidence=confidence,
            evidence=tuple(facts),
            caveats=self._caveats(len(seen), wanted, guessed, verdict),
        )

    def _caveats(
        self, watched: int, wanted: int, guessed: bool, verdict: Recognised
    ) -> tuple[str, ...]:
        said = list(verdict.caveats)
        if guessed:
            said.append(
                "The loader does not say how many records there are: one more than the highest "
                "observed index was assumed."
            )
        if watched < max(wanted, _FEW):
            said.append(f"Only {watched} epochs were watched; small deviations cannot be detected.")
        if not self.set_epoch and _with_set_epoch(self.loader) is not None:
            said.append(
                "The sampler has set_epoch, which was not called: if your training calls "
                "it before every epoch, watch with set_epoch=True."
            )
        if verdict.sampler is not None and not has_known_order(verdict.sampler):
            said.append(
                "These statistics test the distribution only: an order drawn from a fixed or "
                "guessable seed looks the same and hides nothing."
            )
        return tuple(said)

    def _number(self, number: int, size: int | None) -> Iterator[IntArray]:
        if self.set_epoch:
            sampler = _with_set_epoch(self.loader)
            if sampler is None:
                raise InvalidArgument(
                    "Expected a sampler with set_epoch, as set_epoch=True says, got none in "
                    f"{type(self.loader).__name__}."
                )
            sampler.set_epoch(number)
        return self._epoch(size)

    def _epoch(self, size: int | None) -> Iterator[IntArray]:
        source = _index_source(self.loader)
        items = iter(source)
        if items is source:
            raise InvalidArgument(
                "Expected a loader that starts again at every epoch, got an iterator "
                f"({type(source).__name__}) that can be read once."
            )
        first = next(items, None)
        if first is None:
            return
        items = chain([first], items)
        if not _is_index(first):
            yield from map(_batch, items)
            return
        if size is None:
            raise InvalidArgument(
                "Expected batch_size for a sampler of single indices, got none. "
                "Say how many records make a batch, or give the DataLoader."
            )
        while chunk := list(islice(items, size)):
            yield _batch(chunk)


def watch_loader(
    loader: Any,
    *,
    records: int | None = None,
    batch_size: int | None = None,
    set_epoch: bool = False,
    epochs: int | None = None,
    most: int = _MOST,
    target: int | None = None,
    confidence: float = 0.999,
    rng: np.random.Generator,
) -> LoaderReport:
    """Recognise the sampler of a loader, and name the accountant that applies to it.

    Same as ``FromLoader(loader, records, batch_size, set_epoch).watch(…)``.

    Example:
        >>> in_order = [[0, 1, 2], [3, 4, 5]]
        >>> report = watch_loader(in_order, rng=np.random.default_rng(0))
        >>> report.name, report.accountant
        ('sequential', 'the Gaussian mechanism once per epoch, without amplification')
    """
    watched = FromLoader(loader, records=records, batch_size=batch_size, set_epoch=set_epoch)
    return watched.watch(epochs=epochs, most=most, target=target, confidence=confidence, rng=rng)


def _limit(batches: Iterable[IntArray], most: int) -> Epoch:
    def counted() -> Iterator[IntArray]:
        left = most + most // 4  # endless empty batches must end too
        for batch in batches:
            left -= max(1, batch.size)
            if left < 0:
                raise InvalidArgument(
                    f"Expected an epoch to end within most={most} indices, got more. "
                    "If the loader never ends give it an end; if the epoch is that long raise most."
                )
            yield batch

    epoch = flatten_epoch(counted())
    if epoch.record.size == 0:
        raise InvalidArgument(
            f"Expected batches of record indices, got {epoch.sizes.size} batches and no index."
        )
    return epoch


def _is_index(item: Any) -> bool:
    if isinstance(item, (int, np.integer)):
        return True
    return hasattr(item, "item") and getattr(item, "shape", None) == ()


def _batch(items: Any) -> IntArray:
    """Return indices as an array, from ints, NumPy arrays or tensors; refuse anything else."""
    try:
        if hasattr(items, "detach"):  # a torch tensor
            items = items.detach().cpu().numpy()
        elif isinstance(items, (list, tuple)) and items and hasattr(items[0], "detach"):
            items = [item.item() for item in items]
        array = np.asarray(items)
    except (TypeError, ValueError, RuntimeError):
        array = np.zeros((), object)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgument(
            f"Expected batches of record indices (whole numbers), got {reprlib.repr(items)}. "
            "Only indices can be watched: give the DataLoader, its batch_sampler or its sampler; "
            "an IterableDataset has none."
        )
    return array.astype(np.int64)


def _inside(indices: IntArray, records: int) -> IntArray:
    if indices.size and (indices.min() < 0 or indices.max() >= records):
        worst = indices.min() if indices.min() < 0 else indices.max()
        raise InvalidArgument(f"Expected indices from 0 to {records - 1}, got {worst}.")
    return indices


def _index_source(loader: Any) -> Any:
    kinds = {kind.__name__ for kind in type(getattr(loader, "dataset", None)).__mro__}
    source = _inner(loader) if hasattr(loader, "batch_sampler") else loader
    if "IterableDataset" in kinds or not hasattr(type(source), "__iter__"):
        raise InvalidArgument(
            f"Expected a loader of record indices, got {type(loader).__name__}"
            f"{' of an IterableDataset' if 'IterableDataset' in kinds else ''}. "
            "Give a DataLoader over records that have indices, or its batch sampler or sampler."
        )
    return source


def _single_size(loader: Any) -> int | None:
    """Return 1 for a DataLoader that does not batch and takes one record at a time."""
    alone = hasattr(loader, "batch_sampler") and loader.batch_sampler is None
    return 1 if alone else None


def _dataset_size(loader: Any) -> int | None:
    for name in ("dataset", "data_source"):
        if hasattr(type(getattr(loader, name, None)), "__len__"):
            return len(getattr(loader, name))
    inner = _inner(loader)
    return None if inner is None else _dataset_size(inner)


def _with_set_epoch(loader: Any) -> Any:
    while loader is not None and not hasattr(loader, "set_epoch"):
        loader = _inner(loader)
    return loader


def _inner(loader: Any) -> Any:
    """Return the batch sampler of a loader, else its sampler, else None; empty ones count."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return getattr(loader, "sampler", None) if batch_sampler is None else batch_sampler


def _landing(seen: list[Epoch], target: int) -> str:
    landed = np.concatenate([epoch.batch[epoch.record == target] for epoch in seen])
    if landed.size == 0:
        return f"Record {target} never occurred."
    often = np.bincount(landed)
    return (
        f"Record {target} came {landed.size} times, in {np.count_nonzero(often)} different "
        f"batches, from {landed.min()} to {landed.max()}; most often ({often.max()} times) in "
        f"batch {often.argmax()}."
    )
