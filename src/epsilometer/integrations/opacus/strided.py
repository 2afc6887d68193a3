"""Canaries on disjoint sets of coordinates: adding them and scoring all costs one pass each.

Coordinate j of all parameters, written one tensor after the other, belongs to canary j mod P, where
P is the first prime from the number of canaries on: so each canary has its share of every tensor,
and does not fall on one row or column of a matrix. Within its coordinates a canary is a vector of
random signs, of norm 1. Canaries share no coordinate, so none is seen in another's direction.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

if TYPE_CHECKING:
    import torch

_CHUNK = 2**22  # values that are worked on at a time: 16 MiB of float32


class StridedCanaries:
    """Directions in the space of some tensors, each on coordinates of its own.

    Guarantee: orthonormal to the rounding of float32; independent of everything but ``key``. Noise
        that is independent with scale σ in every coordinate has independent components of scale σ
        in their directions.
    Assumption: at most as many canaries as coordinates.

    Args:
        count: How many.
        sizes: Coordinates of each tensor.
        key: From which the signs follow.
        device: Where the tensors are; one byte a coordinate is kept there.

    Example:
        >>> import torch
        >>> canaries = StridedCanaries(count=3, sizes=[40, 60], key=7)
        >>> tensors = [torch.zeros(8, 5), torch.zeros(60)]
        >>> canaries.add(tensors, np.array([5.0, 0.0, -2.0]))
        >>> canaries.dots(tensors).round(4) + 0.0
        array([ 5.,  0., -2.])
    """

    def __init__(self, *, count: int, sizes: Sequence[int], key: int, device: Any = "cpu") -> None:
        _validate.whole(1, count=count)
        _validate.whole(0, key=key)
        total = sum(sizes)
        if count > total:
            raise InvalidArgument(
                f"Expected at most one canary a parameter, got {count:,} for {total:,} trainable "
                "parameters. Ask for fewer canaries."
            )
        with needs("torch", extra="torch"):
            import torch
        self.count, self.dimension = count, total
        self.period = next_prime(count)
        self._length = max(1, _CHUNK // self.period) * self.period
        self._groups = _group_tensors(sizes, self._length)
        bits = np.unpackbits(np.frombuffer(np.random.default_rng(key).bytes(-(-total // 8)), "u1"))
        self._signs = torch.from_numpy(bits[:total].astype(np.int8) * 2 - 1).to(device)
        owners = np.arange(self.period)
        self._norms = np.sqrt((total - owners + self.period - 1) // self.period)

    def add(self, tensors: "Sequence[torch.Tensor]", amplitudes: FloatArray) -> None:
        """Add every canary with its amplitude, in place."""
        import torch

        wave = np.zeros(self.period, np.float32)
        wave[: self.count] = amplitudes / self._norms[: self.count]
        if not wave.any():
            return
        for places, start, end in self._groups:
            flats = [tensors[place].view(-1) for place in places]
            turned = torch.from_numpy(np.roll(wave, -(start % self.period))).to(flats[0])
            for begin in range(start, end, self._length):
                signs = self._signs[begin : min(begin + self._length, end)]
                whole = signs.numel() // self.period * self.period
                added = torch.empty(signs.numel(), dtype=turned.dtype, device=turned.device)
                rows = signs[:whole].view(-1, self.period)
                torch.mul(rows, turned, out=added[:whole].view(-1, self.period))
                torch.mul(signs[whole:], turned[: signs.numel() - whole], out=added[whole:])
                if len(flats) == 1:
                    flats[0][begin - start : begin - start + signs.numel()].add_(added)
                else:
                    ends = np.cumsum([flat.numel() for flat in flats[:-1]]).tolist()
                    torch._foreach_add_(flats, added.tensor_split(ends))

    def dots(
        self,
        tensors: "Sequence[torch.Tensor]",
        less: "Sequence[torch.Tensor] | None" = None,
    ) -> FloatArray:
        """Return the inner product of every canary with ``tensors``, or with ``tensors − less``."""
        import torch

        parts = []
        for places, start, end in self._groups:
            first = _Flat([tensors[place] for place in places])
            second = None if less is None else _Flat([less[place] for place in places])
            total = torch.zeros(self.period, dtype=torch.float64, device=self._signs.device)
            for begin in range(start, end, self._length):
                stop = min(begin + self._length, end)
                values = first.piece(begin - start, stop - start)
                if second is not None:
                    values = values - second.piece(begin - start, stop - start)
                values = values * self._signs[begin:stop]
                whole = values.numel() // self.period * self.period
                total += values[:whole].view(-1, self.period).sum(0)
                total[: values.numel() - whole] += values[whole:]
            parts.append(torch.roll(total, start % self.period))
        found = torch.stack(parts).sum(0).cpu().numpy()
        return np.asarray((found / self._norms)[: self.count], np.float64)


class _Flat:
    """Several tensors as one vector, in float32: a large one is not copied as a whole."""

    def __init__(self, tensors: "Sequence[torch.Tensor]") -> None:
        import torch

        flats = [tensor.reshape(-1) for tensor in tensors]
        self._flat = flats[0] if len(flats) == 1 else torch.cat([flat.float() for flat in flats])

    def piece(self, begin: int, end: int) -> "torch.Tensor":
        return self._flat[begin:end].float()


def _group_tensors(sizes: Sequence[int], most: int) -> list[tuple[list[int], int, int]]:
    """Return tensors that are worked on together, with the first and last of their coordinates."""
    groups: list[tuple[list[int], int, int]] = []
    end = 0
    for place, size in enumerate(sizes):
        start, end = end, end + size
        if groups and end - groups[-1][1] <= most:
            groups[-1] = [*groups[-1][0], place], groups[-1][1], end
        else:
            groups.append(([place], start, end))
    return groups


def next_prime(least: int) -> int:
    """Return the first prime that is not smaller.

    Example:
        >>> next_prime(500), next_prime(2)
        (503, 2)
    """
    number = max(2, least)
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number
