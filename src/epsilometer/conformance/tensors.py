"""Summarise the residual noise of one step on the device of its tensors.

A small tensor is moved to the host and summarised by the code for arrays. Large ones are reduced on
their device, several at a time: on a GPU, starting an operation costs more than the operation.
There is one transfer for all that the host needs.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epsilometer import _validate
from epsilometer.conformance import evidence
from epsilometer.conformance.comparisons import Compared, Comparisons
from epsilometer.conformance.noise_checks import MOST_ROWS
from epsilometer.conformance.summary import (
    StepSummary,
    TensorSummary,
    choose_sketch,
    read_residual,
    refuse_infinite,
    summarise_tensor,
)
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

_SHARE = 8  # a chunk is that part of all values
_LEAST_CHUNK, _MOST_CHUNK = 1 << 18, 1 << 24  # a small one stays in the cache of a CPU
_LINE = 1 << 12  # values that are counted together; each piece begins a new line
_Values: TypeAlias = NDArray[np.float32]
_Index: TypeAlias = tuple[int | slice, ...]
_Part: TypeAlias = tuple[Tensor, Tensor | None]


class TensorSummariser:
    """Summarise the residuals of the same tensors in every step, on their device.

    Guarantee: the numbers of :func:`epsilometer.conformance.summary.summarise_step`, to the
        accuracy of float32. Cosines are of the same parts of large tensors, which
        :func:`epsilometer.conformance.comparisons.choose_compared` fixes by their shapes. If there
        are more than 2²⁰ rows, tensors with the most rows are summarised as one row each.
    Assumption: tensors keep their order, shapes and device, and squares of their residuals are
        far from the limits of float32.

    In addition to the tensors, a call needs memory for two times ``chunk`` values, and makes one
    transfer to the host: at most 2 MiB, one number per row, and four for every 4,096 values.

    Args:
        named: (name, shape) of each tensor.
        device: Device of all tensors.
        chunk: Values processed at a time; by default an eighth of all, between 2¹⁸ and 2²⁴, and 2¹⁸
            on a CPU.

    Example:
        >>> summariser = TensorSummariser([("weight", (4, 4)), ("bias", (4,))], "cpu")
        >>> noisy, own = torch.full((4, 4), 6.0), torch.full((4, 4), 2.0)
        >>> step = summariser.summarise([(noisy, own), (torch.zeros(4), None)], unit=2.0)
        >>> [(part.name, part.squares, part.small) for part in step.tensors]
        [('weight', 64.0, 0), ('bias', 0.0, 4)]
    """

    def __init__(
        self,
        named: Sequence[tuple[str, tuple[int, ...]]],
        device: torch.device | str,
        *,
        chunk: int | None = None,
    ) -> None:
        self._device = torch.device(device)
        known = [(name, tuple(shape) or (1,)) for name, shape in named]
        shapes = [shape for _, shape in known]
        sizes = [math.prod(shape) for shape in shapes]
        if not known:
            raise InvalidArgument("Expected residuals of at least one tensor, got none.")
        for (name, _), size in zip(known, sizes, strict=True):
            if size == 0:
                raise InvalidArgument(f"Expected numbers in the residual of {name}, got none.")
        if chunk is None:
            most = _LEAST_CHUNK if self._device.type == "cpu" else _MOST_CHUNK
            chunk = min(most, max(_LEAST_CHUNK, sum(sizes) // _SHARE))
        _validate.whole(1, chunk=chunk)
        self._comparisons = Comparisons(known)
        self._plans = [
            _Plan(name, shape, sketch, part, rows=rows)
            for (name, shape), sketch, part, rows in zip(
                known,
                choose_sketch(sizes),
                self._comparisons.parts,
                _choose_rows(shapes),
                strict=True,
            )
        ]
        self._packs = list(_make_packs(self._plans, chunk, self._device))
        self._memory = max((pack.size for pack in self._packs), default=0)

    def summarise(
        self,
        parts: Iterable[tuple[Tensor, Tensor | None]],
        unit: float,
        *,
        ties: tuple[int, int] | None = None,
    ) -> StepSummary:
        """Summarise one step.

        Args:
            parts: The release and the sum before noise of each tensor; None for no sum. Any
                floating-point type, contiguous or not.
            unit: Scale of the accounted noise, σC.
            ties: As of :class:`epsilometer.conformance.summary.StepSummary`.
        """
        _validate.positive(unit=unit)
        moved = self._move(self._check(parts), unit)
        totals = [plan.begin(moved) for plan in self._plans]
        for pack in self._packs:
            pack.read(moved, totals)
        read = [plan.read(total, unit) for plan, total in zip(self._plans, totals, strict=True)]
        return StepSummary(
            tensors=tuple(summary for summary, _, _ in read),
            cosines=self._comparisons.compute(
                [beginning for _, beginning, _ in read], [block for _, _, block in read]
            ),
            ties=ties,
        )

    def _check(self, parts: Iterable[tuple[Tensor, Tensor | None]]) -> list[_Part]:
        """Return the parts without history, in their declared shapes; reject others."""
        given = list(parts)
        if len(given) != len(self._plans):
            raise InvalidArgument(
                f"Expected {len(self._plans)} tensors in every step, got {len(given)}."
            )
        checked: list[_Part] = []
        for plan, (released, own) in zip(self._plans, given, strict=True):
            shape, kind = tuple(released.shape) or (1,), released.device.type
            if shape != plan.shape or kind != self._device.type:
                raise InvalidArgument(
                    f"Expected {plan.name} of shape {plan.shape} on {self._device.type} in every "
                    f"step, got shape {shape} on {kind}."
                )
            sums = None if own is None else own.detach().view(shape)
            checked.append((released.detach().view(shape), sums))
        return checked

    @torch.no_grad()
    def _move(self, parts: Sequence[_Part], unit: float) -> Iterator[_Values]:
        """Yield the values needed on the host, after one transfer: small tensors, then packs."""
        needed = [
            _subtract(part, torch.empty(plan.shape, dtype=_widen([part]), device=self._device))
            for plan, part in zip(self._plans, parts, strict=True)
            if plan.is_moved
        ]
        wide = _widen(parts)
        memory = torch.empty(self._memory, dtype=wide, device=self._device)
        # A GPU writes one byte faster than four, a CPU does not.
        spare = torch.empty_like(memory, dtype=wide if memory.is_cpu else torch.bool)
        for pack in self._packs:
            needed.extend(pack.reduce(parts, memory[: pack.size], spare[: pack.size], unit))
        moved = torch.cat([each.reshape(-1).float() for each in needed]).cpu().numpy()
        ends = accumulate((each.numel() for each in needed), initial=0)
        return (moved[start:stop] for start, stop in pairwise(ends))


def _widen(parts: Iterable[_Part]) -> torch.dtype:
    """Return the type to compute in: bfloat16 minus bfloat16 would be rounded once more."""
    types = {each.dtype for part in parts for each in part if each is not None}
    return torch.float64 if torch.float64 in types else torch.float32


def _subtract(part: _Part, out: Tensor) -> Tensor:
    """Write the residual."""
    released, own = part
    if own is not None and released.dtype == own.dtype == out.dtype:
        return torch.sub(released, own, out=out)
    out.copy_(released)
    return out if own is None else out.sub_(own)


@dataclass(eq=False)
class _Total:
    """Accumulate the statistics of a tensor in one step, in its own units."""

    values: _Values  # of a small tensor, all; else at the places of the plan
    rows: FloatArray  # sums of squares
    total: float = 0.0
    positive: int = 0
    small: int = 0
    largest: float = 0.0


class _Plan:
    """Describe what is needed of one tensor in every step.

    Attributes:
        is_moved: Whether all of it is moved to the host.
        rows: Number of rows in its summary, if it is not moved.
        places: That are moved otherwise: of the sketch, of the beginning, and of the block.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        sketch: NDArray[np.int64],
        compared: Compared,
        *,
        rows: int,
    ) -> None:
        self.name, self.shape, self.rows = name, shape, rows
        self._sketch, self._compared = sketch, compared
        self.is_moved = compared.block == shape
        parts = [sketch, np.arange(compared.beginning), compared.find_places(shape)]
        self.places = np.concatenate(parts)

    def begin(self, moved: Iterator[_Values]) -> _Total:
        """Return its statistics before any pack was read."""
        if self.is_moved:
            return _Total(next(moved), np.zeros(0))
        return _Total(np.empty(self.places.size, np.float32), np.zeros(self.rows))

    def read(self, total: _Total, unit: float) -> tuple[TensorSummary, _Values, _Values]:
        """Return the summary, and the beginning and the block for cosines."""
        if self.is_moved:
            values = total.values.reshape(self.shape)
            residual = read_residual(self.name, values.astype(np.float64) / unit)
            return summarise_tensor(self.name, residual, self._sketch), total.values, values
        refuse_infinite(self.name, total.largest)
        first = self._sketch.size
        second = first + self._compared.beginning
        rows = total.rows / unit**2
        summary = TensorSummary(
            name=self.name,
            count=math.prod(self.shape),
            squares=float(rows.sum()),
            total=total.total / unit,
            largest=total.largest / unit,
            small=total.small,
            positive=total.positive,
            rows=rows,
            sketch=total.values[:first].astype(np.float64) / unit,
        )
        block = total.values[second:].reshape(self._compared.block)
        return summary, total.values[first:second], block


@dataclass(frozen=True, eq=False, kw_only=True)
class _Piece:
    """Describe a contiguous part of a tensor's ravel.

    Attributes:
        tensor: Number of the tensor.
        index: Index of the part.
        size: Values.
        rows: The first that it belongs to, and the one after the last.
        chosen: Which of the plan's places it contains.
        start: Its first value in the pack; a whole number of lines.
    """

    tensor: int
    index: _Index
    size: int
    rows: tuple[int, int]
    chosen: NDArray[np.int64]
    start: int

    @property
    def lines(self) -> slice:
        """Its number of lines in the pack."""
        return slice(self.start // _LINE, math.ceil((self.start + self.size) / _LINE))


class _Pack:
    """Reduce pieces together, line by line in memory."""

    def __init__(
        self, pieces: Sequence[_Piece], places: NDArray[np.int64], device: torch.device
    ) -> None:
        self._pieces = pieces
        self._places = torch.from_numpy(places).to(device)
        self.size = pieces[-1].lines.stop * _LINE

    def reduce(
        self, parts: Sequence[_Part], memory: Tensor, spare: Tensor, unit: float
    ) -> Iterator[Tensor]:
        """Yield what the host needs: sums of squares of every piece, then of all pieces."""
        memory.zero_()  # between pieces there is nothing
        for piece in self._pieces:
            released, own = parts[piece.tensor]
            here = released[piece.index], None if own is None else own[piece.index]
            residual = memory[piece.start : piece.start + piece.size]
            _subtract(here, residual.view(here[0].shape))
            count = piece.rows[1] - piece.rows[0]
            if count == piece.size:
                yield residual.clone()
            else:
                yield torch.linalg.vector_norm(residual.view(count, -1), dim=1)
        yield memory.index_select(0, self._places)
        yield memory.view(-1, _LINE).sum(1)
        yield torch.gt(memory, 0, out=spare).view(-1, _LINE).sum(1, dtype=torch.float32)
        memory.abs_()
        yield memory.view(-1, _LINE).amax(1)  # not a number where any is not
        limit = evidence.SMALL * unit
        yield torch.lt(memory, limit, out=spare).view(-1, _LINE).sum(1, dtype=torch.float32)

    def read(self, moved: Iterator[_Values], totals: Sequence[_Total]) -> None:
        """Add the transferred values to the statistics of the tensors."""
        for piece in self._pieces:
            first, last = piece.rows
            totals[piece.tensor].rows[first:last] += next(moved).astype(np.float64) ** 2
        values, sums, positive, largest, small = (next(moved) for _ in range(5))
        start = 0
        for piece in self._pieces:
            total, stop = totals[piece.tensor], start + piece.chosen.size
            total.values[piece.chosen] = values[start:stop]
            total.total += float(sums[piece.lines].sum(dtype=np.float64))
            total.positive += int(positive[piece.lines].sum(dtype=np.float64))
            total.largest = float(np.maximum(total.largest, largest[piece.lines].max()))
            padding = (piece.lines.stop - piece.lines.start) * _LINE - piece.size
            total.small += int(small[piece.lines].sum(dtype=np.float64)) - padding
            start = stop


def _make_packs(plans: Sequence[_Plan], chunk: int, device: torch.device) -> Iterator[_Pack]:
    """Yield packs of pieces of all large tensors, of ``chunk`` values or a line each."""
    pieces: list[_Piece] = []
    places: list[NDArray[np.int64]] = []
    for tensor, plan in enumerate(plans):
        begin = 0
        for index, size in () if plan.is_moved else _split(plan.shape, chunk):
            start = pieces[-1].lines.stop * _LINE if pieces else 0
            if pieces and start + size > chunk:
                yield _Pack(pieces, np.concatenate(places), device)
                pieces, places, start = [], [], 0
            chosen = np.flatnonzero((plan.places >= begin) & (plan.places < begin + size))
            rows = _find_rows(index, plan.shape) if plan.rows > 1 else (0, 1)
            pieces.append(
                _Piece(tensor=tensor, index=index, size=size, rows=rows, chosen=chosen, start=start)
            )
            places.append(plan.places[chosen] - begin + start)
            begin += size
    if pieces:
        yield _Pack(pieces, np.concatenate(places), device)


def _choose_rows(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Choose the number of rows in each tensor's summary: its own, or 1 if that is too many."""
    rows = [shape[0] for shape in shapes]
    for place in sorted(range(len(shapes)), key=lambda at: -rows[at]):
        if sum(rows) <= MOST_ROWS:
            break
        rows[place] = 1
    return rows


def _split(shape: tuple[int, ...], most: int) -> Iterator[tuple[_Index, int]]:
    """Yield (index, values) of consecutive pieces, of at most ``most`` values each."""
    row = math.prod(shape[1:])
    if row <= most:
        for start in range(0, shape[0], most // row):
            stop = min(start + most // row, shape[0])
            yield (slice(start, stop),), row * (stop - start)
    else:
        for place in range(shape[0]):
            for index, size in _split(shape[1:], most):
                yield (place, *index), size


def _find_rows(index: _Index, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the first row of a piece, and the row after its last."""
    first = index[0]
    if isinstance(first, int):
        return first, first + 1
    return first.indices(shape[0])[:2]
