"""Count the canaries in the batches that a language model is trained on."""

import hashlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from epsilometer._extras import needs
from epsilometer._files import write_whole
from epsilometer.audits.text.canaries import Canary, read_tokenizer, split_tokens
from epsilometer.audits.text.measuring import open_arrays
from epsilometer.types import BoolArray, IntArray

COUNTS = "counts.npz"
_LEVEL = 1e-6  # probability that canaries of one copy each are mistaken for more
_EXPECTED = 20  # sightings from which on their absence is worth a warning during training
_STRIDE = 4  # of the lengths that are looked for: texts of about the same length share a pass
_FACTOR, _FIRST, _SECOND = 0x1E3779B97F4A7C15, 0x3F84D5B5B5470917, 0x1B03738712FAD5C9


@dataclass(frozen=True, eq=False, kw_only=True)
class CanaryCounts:
    """Count how often each canary was in the batches that the model received in training.

    Attributes:
        counts: Rows that held each canary, with a loss on all tokens of its secret; shape ``(n,)``.
        rows: Number of rows in all batches.
        joined: Number of rows that held several canaries.
        records: Number of records in the training set; 0 if unknown.
        unlabelled: Number of rows of unknown loss: labels were expected, and did not reach the
            model.
        tokens: Digest of the tokens of all canaries; None if unknown.
        whole: Whether batches were watched from the first one on.
        steps: Steps after which they were saved.
    """

    counts: IntArray
    rows: int
    joined: int = 0
    records: int = 0
    unlabelled: int = 0
    tokens: int | None = None
    whole: bool = True
    steps: int = 0

    @property
    def trained(self) -> BoolArray | None:
        """Which canaries were trained on; None if that is not known of all."""
        known = self.whole and self.rows and not self.unlabelled
        return self.counts > 0 if known else None

    def take(self, chosen: BoolArray, places: slice) -> "CanaryCounts":
        """Return the counts of the chosen canaries."""
        return replace(self, counts=self.counts[places][chosen[places]])

    def count_copies(self, declared: int) -> int:
        """Return how many copies each canary counts as: more than declared if seen more often.

        Guarantees: too many with probability at most 1e-6 if records enter batches with equal
            probability.

        Example:
            >>> CanaryCounts(counts=np.full(100, 6), rows=3_000, records=1_000).count_copies(1)
            2
        """
        seen, once = int(self.counts.sum()), self._expect_once()
        if not once or seen <= scipy.stats.poisson.isf(_LEVEL, once * declared):
            return declared
        return max(declared, math.ceil(seen / once - 0.1))

    def is_short(self, declared: int) -> bool:
        """Tell whether canaries were seen less than half as often as expected by now."""
        due = self._expect_once() * declared
        return due >= _EXPECTED and bool(self.counts.sum() < due / 2)

    def describe(self, declared: int, *, named: str) -> Iterator[str]:
        """Say how the training of planted canaries differs from what was declared, if it does."""
        missing, copies = int((self.counts == 0).sum()), self.count_copies(declared)
        if missing:
            yield (
                f"Of {self.counts.size:,} planted of {named}, {missing:,} were in no batch as "
                "whole texts with a loss on their secret. Reach and power count only the others."
            )
        elif self.is_short(declared):
            yield f"Planted of {named} were in batches less than half as often as declared."
        elif copies > declared:
            yield (
                f"Planted of {named} were in batches more often than declared: each counts as "
                f"{copies} records."
            )

    def _expect_once(self) -> float:
        """Return how often the canaries would be seen if each were one record."""
        return self.rows / self.records * self.counts.size if self.records else 0.0

    def add(self, later: "CanaryCounts") -> "CanaryCounts":
        """Return these counts plus those of the resumed run."""
        return replace(
            later,
            counts=self.counts + later.counts,
            rows=self.rows + later.rows,
            joined=self.joined + later.joined,
            unlabelled=self.unlabelled + later.unlabelled,
            whole=self.whole and later.whole,
        )

    def save(self, folder: Path) -> None:
        """Write the counts next to the canaries, for the owner only: they reveal coin tosses."""
        packed = io.BytesIO()
        np.savez(packed, **{name: each for name, each in vars(self).items() if each is not None})
        write_whole(folder / COUNTS, packed.getvalue())


def load_counts(folder: Path) -> CanaryCounts | None:
    """Read what ``CanaryCounts.save`` wrote; None if there is nothing."""
    if not (folder / COUNTS).exists():
        return None
    with open_arrays(folder / COUNTS) as kept:
        plain = {name: kept[name] for name in {*kept} & {*CanaryCounts.__dataclass_fields__}}
        return CanaryCounts(
            **{name: each if each.ndim else each.item() for name, each in plain.items()}
        )


def digest_tokens(every: Sequence[Sequence[int]]) -> int:
    """Return a 63-bit digest of the tokens of some texts, for comparison only.

    Example:
        >>> digest_tokens([[1, 2], [3]]) == digest_tokens([[1], [2, 3]])
        False
    """
    plain = json.dumps([list(ids) for ids in every]).encode("ascii")
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big") >> 1


class BatchWatch:
    """Count canaries in the batches that a torch module is trained on, whatever produced them.

    A row holds a canary if it has the tokens of its text, except for the first few, which may
    differ after other text. Canaries that are truncated, dropped or never drawn are not counted,
    nor those with a masked label on a token of the secret.

    Guarantees: batches, weights and random streams stay as they are. Nothing waits for a GPU.
    Assumes: the module is called with token ids ``(rows, tokens)``, first or as ``input_ids``.

    Args:
        module: The module that is called in training mode.
        tokenizer: Tokenizer, as for ``CausalModel``.
        canaries: Canaries to count, planted or not.
        records: Number of records in the training set, if known.
        before: Counts of the run that is resumed.
        compiled: Whether ``torch.compile`` is applied to the module; otherwise batches of a
            compiled module are unknown.
        labelled: Whether the module gets ``labels``, in which -100 has no loss. Then the loss of
            rows without labels is unknown; otherwise all tokens are assumed to have a loss.

    Example:
        >>> import torch
        >>> class Letters:
        ...     def encode(self, text): return [ord(letter) % 32 for letter in text]
        >>> module = torch.nn.Embedding(32, 4)
        >>> watch = BatchWatch(module, Letters(), [Canary("ab", "cde"), Canary("ab", "xyz")])
        >>> _ = module(torch.tensor([[1, 2, 3, 4, 5, 0, 0]]))
        >>> watch.collect().counts
        array([1, 0])
    """

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        canaries: Sequence[Canary],
        *,
        records: int = 0,
        before: CanaryCounts | None = None,
        compiled: bool = False,
        labelled: bool = False,
    ) -> None:
        with needs("torch", extra="torch"):
            import torch
        self._torch, self.module = torch, module
        self._records, self._before, self._labelled = records, before, labelled
        self._powers: dict[Any, Any] = {}
        # Lengths, sorted hashes of ends of canaries, and how many of their tokens are secrets.
        self._tables: list[tuple[int, Any, Any]] = []
        self._places = np.zeros(len(canaries), np.int64)  # of canaries, in all tables
        known = read_tokenizer(tokenizer)
        parts = [split_tokens(known, canary) for canary in canaries]
        every = [prompt + secret for prompt, secret in parts]
        self._digest = digest_tokens(every)
        self._fill_tables(every, np.array([len(secret) for _, secret in parts], np.int64))
        # By device: sums of every hash, then of unlabelled rows, all rows and joined ones; and the
        # tables there.
        self._devices: dict[Any, Any] = {}
        eager: Any = torch.compiler.disable
        see = eager(self._see) if compiled else self._see
        self._handle = module.register_forward_pre_hook(see, with_kwargs=True)

    def close(self) -> None:
        """Stop counting."""
        self._handle.remove()

    def collect(self) -> CanaryCounts:
        """Return the counts so far, of all processes of a run together: each must call this."""
        torch = self._torch
        device = next((each.device for each in self.module.parameters()), torch.device("cpu"))
        total = self._make_sums(device)
        for sums, _ in self._devices.values():
            total += sums.to(device)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
        found = total.cpu().numpy()
        own = CanaryCounts(
            counts=found[self._places],
            rows=int(found[-2]),
            joined=int(found[-1]),
            records=self._records,
            unlabelled=int(found[-3]),
            tokens=self._digest,
        )
        return own if self._before is None else self._before.add(own)

    def _see(self, module: Any, args: Any, named: Any) -> None:
        torch = self._torch
        ids = named.get("input_ids", args[0] if args else None)
        usable = isinstance(ids, torch.Tensor) and ids.ndim == 2 and not ids.is_floating_point()
        if not (module.training and torch.is_grad_enabled() and usable):
            return
        if torch.compiler.is_compiling():  # then the batches are unknown
            return
        with torch.no_grad():
            self._count(ids.long(), named)

    def _count(self, ids: Any, named: Any) -> None:
        if ids.device not in self._devices:
            tables = [
                (length, hashes.to(ids.device), secrets.to(ids.device))
                for length, hashes, secrets in self._tables
            ]
            self._devices[ids.device] = self._make_sums(ids.device), tables
        sums, tables = self._devices[ids.device]
        labels, starts = named.get("labels"), named.get("position_ids")
        masked = None  # tokens without a loss before each place
        if labels is not None and labels.shape == ids.shape:
            masked = self._torch.nn.functional.pad((labels == -100).cumsum(1), (1, 0))
        elif self._labelled:
            sums[-3] += ids.shape[0]
        ends = self._torch.arange(ids.shape[1], device=ids.device)
        first_end, last_start = ends.new_full((2, ids.shape[0], 1), ids.shape[1])
        last_start.fill_(-1)
        offset = 0
        for length, hashes, secrets in tables:
            if ids.shape[1] >= length:
                found = self._hash(ids, length)
                place = self._torch.searchsorted(hashes, found).clamp_(max=hashes.numel() - 1)
                hit = hashes[place] == found
                if masked is not None:
                    begin = ends[length - 1 :] + 1 - secrets[place]
                    hit &= masked[:, length:] == masked.gather(1, begin)
                sums.index_add_(0, (offset + place).flatten(), hit.flatten().long())
                end = ends[length - 1 :].where(hit, ids.shape[1])
                start = ends[: 1 - length or None].where(hit, -1)
                first_end = first_end.minimum(end.amin(1, keepdim=True))
                last_start = last_start.maximum(start.amax(1, keepdim=True))
            offset += hashes.numel()
        if starts is None and "cu_seq_lens_q" not in named:
            sums[-2] += ids.shape[0]
            sums[-1] += (last_start > first_end).sum()  # not of texts that overlap
        else:  # several records in a row, which the model separates
            sums[-2] += ids.shape[0] if starts is None else (starts == 0).sum()

    def _fill_tables(self, every: Sequence[Sequence[int]], secrets: IntArray) -> None:
        torch = self._torch
        lengths = np.array([_choose_length(len(ids)) for ids in every])
        offset = 0
        for length in np.unique(lengths).tolist():
            places = np.flatnonzero(lengths == length)
            ends = torch.tensor(
                [list(every[at][-length:]) for at in places.tolist()], dtype=torch.long
            )
            hashes, own = torch.unique(self._hash(ends, length)[:, 0], return_inverse=True)
            most = np.ones(hashes.numel(), np.int64)  # tokens of one end that are secrets
            np.maximum.at(most, own.numpy(), np.minimum(secrets[places], length))
            self._tables.append((length, hashes, torch.from_numpy(most)))
            self._places[places] = offset + own.numpy()
            offset += hashes.numel()

    def _make_sums(self, device: Any) -> Any:
        size = sum(hashes.numel() for _, hashes, _ in self._tables) + 3
        return self._torch.zeros(size, dtype=self._torch.long, device=device)

    def _hash(self, ids: Any, length: int) -> Any:
        """Return a hash of every passage of this length: polynomials of mixed ids modulo 2⁶⁴."""
        power, inverse = self._find_powers(ids.shape[1] + 1, ids.device)
        mixed = (ids + 1) * _FIRST
        mixed = (mixed ^ (mixed >> 31)) * _SECOND
        sums = self._torch.nn.functional.pad((mixed * power[: ids.shape[1]]).cumsum(1), (1, 0))
        return (sums[:, length:] - sums[:, :-length]) * inverse[: ids.shape[1] + 1 - length]

    def _find_powers(self, size: int, device: Any) -> Any:
        known = self._powers.get(device)
        if known is None or known.shape[1] < size:
            factors = np.array([[_FACTOR], [pow(_FACTOR, -1, 1 << 64)]], np.uint64)
            steps = np.repeat(factors, 2 * size, axis=1)
            steps[:, 0] = 1
            powers = np.cumprod(steps, axis=1, dtype=np.uint64).view(np.int64)
            known = self._powers[device] = self._torch.from_numpy(powers).to(device)
        return known


def _choose_length(tokens: int) -> int:
    """Return how many tokens of a text to search for: without the first, in few lengths."""
    usable = max(1, tokens - 1)
    return usable - usable % _STRIDE if usable >= _STRIDE else usable
