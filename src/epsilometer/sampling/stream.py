"""Generate normal numbers from counters: random access, and the same on every device.

All randomness is Philox4x32-10 of a 64-bit key and the counter (block of draws: 61 bits, purpose
and world: 3 bits, run: 64 bits). No counter is used twice, so no two runs, sides, blocks or
purposes share a number. A block of four words makes four normals by Box–Muller: two radii from the
first two, two angles from the others. A radius word below 2¹⁶ takes 32 further bits from its own
counter purpose, so that radii reach 9.5 and tails are right; from 32 bits alone they would stop at
6.7, and from a float32 clamped at 10⁻⁷ at 5.68, which would fabricate leakage.

This module is the reference for NumPy and torch; ``_normals_cpu`` and ``_normals_cuda`` are faster
equivalents.
"""

import math
from typing import Any, NamedTuple

import numpy as np

LOW = 0xFFFFFFFF
NORMALS, TAILS, PLACES = 0, 2, 4  # purposes: what a counter is used for, plus the side
_RARE = 1 << 16  # a radius word below this is a tail


class Draw(NamedTuple):
    """Which numbers of the stream are drawn: consecutive runs of one side."""

    key: int
    world: int
    first: int
    runs: int
    epochs: int

    @property
    def every(self) -> range:
        """The numbers of the runs."""
        return range(self.first, self.first + self.runs)

    def part(self, start: int, runs: int) -> "Draw":
        """Return at most ``runs`` of them, from the one at ``start``."""
        return self._replace(first=self.first + start, runs=min(runs, self.runs - start))


class Arrays(NamedTuple):
    """NumPy, or torch on a device: a common interface to functions of different names."""

    xp: Any
    device: str = "cpu"

    def whole(self, numbers: range) -> Any:
        """Return consecutive numbers."""
        if self.xp is np:
            return np.arange(len(numbers), dtype=np.uint64) + np.uint64(numbers.start)
        return self.xp.arange(numbers.start, numbers.stop, device=self.device)

    def floats(self, words: Any) -> Any:
        """Return words in double precision."""
        return words.astype(np.float64) if self.xp is np else words.double()


def four_normals(
    arrays: Arrays, key: int, *, world: int, runs: range, blocks: range
) -> tuple[Any, Any, Any, Any]:
    """Return the four normals per block and run, in float64, each ``(runs, blocks)``."""
    xp = arrays.xp
    drawn = words(arrays, key, NORMALS + world, runs=runs, blocks=blocks)
    radii = [(arrays.floats(word) + 0.5) * 2.0**-32 for word in drawn[:2]]
    if min(int(word.min()) for word in drawn[:2]) < _RARE:
        more = words(arrays, key, TAILS + world, runs=runs, blocks=blocks)
        for unit, word, extra in zip(radii, drawn, more, strict=False):
            rare = word < _RARE
            unit[rare] = tail_unit(arrays.floats(word[rare]), arrays.floats(extra[rare]))
    r0, r1 = (xp.sqrt(-2 * xp.log(unit)) for unit in radii)
    a0, a1 = (arrays.floats(word) * (2 * math.pi * 2.0**-32) for word in drawn[2:])
    return r0 * xp.cos(a0), r1 * xp.cos(a1), r0 * xp.sin(a0), r1 * xp.sin(a1)


def tail_unit(word: Any, more: Any) -> Any:
    """Return a uniform number from 64 bits: the radius √(−2 ln u) reaches 9.5."""
    return (word + (more + 0.5) * 2.0**-32) * 2.0**-32


def words(arrays: Arrays, key: int, purpose: int, *, runs: range, blocks: range) -> list[Any]:
    """Return four words for each run and each block, each of shape ``(runs, blocks)``."""
    run, block = arrays.whole(runs)[:, None], arrays.whole(blocks)[None, :]
    zero = run * 0 + block * 0
    c0, c1 = zero + (block & LOW), zero + ((block >> 32) | (purpose << 29))
    c2, c3 = zero + (run & LOW), zero + (run >> 32)
    return list(philox((c0, c1, c2, c3), (key & LOW, key >> 32)))


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon et al. 2011); words are 64-bit integers below 2³².

    Products wrap modulo 2⁶⁴, signed ones too, and the mask takes the sign off again.
    """
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((p1 >> 32) & LOW) ^ c1 ^ k0, p1 & LOW
        c2, c3 = ((p0 >> 32) & LOW) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c0, c1, c2, c3
