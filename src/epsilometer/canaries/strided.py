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
        self._starts = np.cumsum([0, *sizes[:-1]])
        bits = np.unpackbits(np.frombuffer(np.random.default_rng(key).bytes(-(-total // 8)), "u1"))
        signs = torch.from_numpy(bits[:total].astype(np.int8) * 2 - 1).to(device)
        self._signs = [
            signs[start : start + size] for start, size in zip(self._starts, sizes, strict=True)
        ]
        owners = np.arange(self.period)
        self._norms = np.sqrt((total - owners + self.period - 1) // self.period)

    def add(self, tensors: "Sequence[torch.Tensor]", amplitudes: FloatArray) -> None:
        """Add every canary with its amplitude, in place."""
        import torch

        wave = np.zeros(self.period, np.float32)
        wave[: self.count] = amplitudes / self._norms[: self.count]
        if not wave.any():
            return
        for tensor, signs, start in zip(tensors, self._signs, self._starts, strict=True):
            flat = tensor.view(-1)
            turned = torch.from_numpy(np.roll(wave, -(int(start) % self.period))).to(flat)
            for part, sign in self._chunks(flat, signs):
                whole = part.numel() // self.period * self.period
                rows = part[:whole].view(-1, self.period)
                rows.add_(sign[:whole].view(-1, self.period) * turned)
                part[whole:].add_(sign[whole:] * turned[: part.numel() - whole])

    def dots(
        self,
        tensors: "Sequence[torch.Tensor]",
        less: "Sequence[torch.Tensor] | None" = None,
    ) -> FloatArray:
        """Return the inner product of every canary with ``tensors``, or with ``tensors − less``."""
        import torch

        parts = []
        others: Sequence[Any] = [None] * len(tensors) if less is None else less
        for tensor, other, signs, start in zip(
            tensors, others, self._signs, self._starts, strict=True
        ):
            flat = tensor.reshape(-1)
            total = torch.zeros(self.period, dtype=torch.float64, device=flat.device)
            base = None if other is None else other.reshape(-1)
            at = 0
            for part, sign in self._chunks(flat, signs):
                values = part.float()
                if base is not None:
                    values = values - base[at : at + part.numel()]
                at += part.numel()
                values = values * sign
                whole = values.numel() // self.period * self.period
                total += values[:whole].view(-1, self.period).sum(0)
                total[: values.numel() - whole] += values[whole:]
            parts.append(torch.roll(total, int(start) % self.period))
        found = torch.stack(parts).sum(0).cpu().numpy() if parts else np.zeros(self.period)
        return np.asarray((found / self._norms)[: self.count], np.float64)

    def _chunks(self, flat: "torch.Tensor", signs: "torch.Tensor") -> Any:
        """Yield pieces of a tensor and its signs; each begins with the same canary as the first."""
        length = max(1, _CHUNK // self.period) * self.period
        for begin in range(0, flat.numel(), length):
            yield flat[begin : begin + length], signs[begin : begin + length]


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
