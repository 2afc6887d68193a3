"""Compare parts of one step's noise that must be independent, by their cosines.

It compares the beginnings of neighbouring tensors and of tensors of the same shape. Within a
tensor, it compares neighbours and halves along each axis.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

LEAST_DIRECTION = 8  # coordinates; of fewer, rounded noise may well be the same twice
COMPARED = 1 << 18  # coordinates of all tensors together
MOST_COMPARED = 1 << 15  # of one tensor: there a cosine of 0.05 is 6 standard deviations or more
Values: TypeAlias = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Select the coordinates of one tensor that are compared, the same in every step.

    Attributes:
        beginning: How many of its first coordinates are compared with other tensors'.
        block: Length of every axis of the part that is compared with itself: all of a short axis;
            of a long one as many of its first half as of its second, from the start of each.
    """

    beginning: int
    block: tuple[int, ...]

    def find_places(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the places of the block in the ravel of a tensor of this shape.

        Example:
            >>> Compared(beginning=4, block=(4, 2)).find_places((9, 2))
            array([ 0,  1,  2,  3,  8,  9, 10, 11])
        """
        places = np.zeros(1, np.int64)
        for length, kept in zip(shape, self.block, strict=True):
            axis = np.arange(kept)
            if kept < length:
                axis[kept // 2 :] += length // 2 - kept // 2
            places = (places[:, None] * length + axis).ravel()
        return places


def choose_compared(
    shapes: Sequence[tuple[int, ...]], *, total: int = COMPARED, most: int = MOST_COMPARED
) -> tuple[Compared, ...]:
    """Choose the part of each tensor to compare; all of it if the tensors are small.

    Equal shapes have equal parts. Noise that repeats along an axis, or from tensor to tensor, also
    repeats in these parts.

    Args:
        shapes: Shapes of the tensors, with at least one axis.
        total: Approximate number of coordinates of all blocks together; also of all beginnings.
        most: Coordinates of one block, or of one beginning.

    Example:
        >>> choose_compared([(4,), (1000, 1000)], total=10_000)[1]
        Compared(beginning=9996, block=(96, 96))
    """
    sizes = [math.prod(shape) for shape in shapes]
    cap = _find_cap(sizes, lambda kept: sum(kept) <= total, largest=most)
    return tuple(
        Compared(beginning=min(size, cap), block=_choose_block(shape, cap))
        for shape, size in zip(shapes, sizes, strict=True)
    )


def _choose_block(shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Cut the longest axes to one length, such that few enough coordinates are left."""
    cap = _find_cap(shape, lambda kept: math.prod(kept) <= most, largest=max(shape))
    if cap < max(shape):
        cap = max(2, cap - cap % 4)  # halves of even length, so that neighbours remain neighbours
    return tuple(min(length, cap) for length in shape)


def _find_cap(
    lengths: Sequence[int], is_met: Callable[[Sequence[int]], bool], *, largest: int
) -> int:
    """Return the largest cap, at least 1, such that lengths cut to it meet a limit."""
    low, high = 1, max(1, largest)
    while low < high:
        middle = (low + high + 1) // 2
        if is_met([min(length, middle) for length in lengths]):
            low = middle
        else:
            high = middle - 1
    return low


class Comparisons:
    """Make all comparisons within a step, for tensors with these names and shapes.

    Attributes:
        parts: Part of each tensor that is compared.

    Example:
        >>> rows = Comparisons([("weight", (8, 2))])
        >>> noise = np.repeat(np.random.default_rng(0).normal(size=(4, 2)), 2, axis=0)
        >>> [(what, round(cosine, 2)) for what, cosine, _ in rows.take([noise])][:1]
        [('neighbours along axis 0 of weight', 1.0)]
    """

    def __init__(self, named: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        self.parts = choose_compared([shape for _, shape in named])
        names = [name for name, _ in named]
        self._pairs: defaultdict[int, list[tuple[str, int, int]]] = defaultdict(list)  # by size
        last: dict[tuple[int, ...], int] = {}
        for place, (name, shape) in enumerate(named):
            # The one before, the last of this shape, and the longest: its beginning holds all that
            # one seed for every tensor would repeat.
            longest = max(range(place), key=lambda at: self.parts[at].beginning, default=-1)
            for other in sorted({place - 1, last.get(shape, place - 1), longest} - {-1}):
                size = min(self.parts[other].beginning, self.parts[place].beginning)
                if size >= LEAST_DIRECTION:
                    self._pairs[size].append((f"{names[other]} and {name}", other, place))
            last[shape] = place
        self._alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # by block
        for place, part in enumerate(self.parts):
            self._alike[part.block].append(place)
        self._names = {
            block: [
                [f"{what} along axis {axis} of {names[place]}" for place in places]
                for axis in range(len(block))
                for what in ("neighbours", "halves")
            ]
            for block, places in self._alike.items()
        }

    def take(self, arrays: Sequence[Values]) -> tuple[tuple[str, float, int], ...]:
        """Return (what, cosine, dimension) of all comparisons of these arrays."""
        beginnings, blocks = [], []
        for part, array in zip(self.parts, arrays, strict=True):
            flat = array.ravel()
            beginnings.append(flat[: part.beginning])
            whole = part.block == array.shape
            block = array if whole else flat[part.find_places(array.shape)].reshape(part.block)
            blocks.append(block)
        return self.compute(beginnings, blocks)

    def compute(
        self, beginnings: Sequence[Values], blocks: Sequence[Values]
    ) -> tuple[tuple[str, float, int], ...]:
        """Return (what, cosine, dimension) of all comparisons of these parts of the tensors."""
        found: list[tuple[str, float, int]] = []
        for size, pairs in self._pairs.items():
            first = np.stack([beginnings[other][:size] for _, other, _ in pairs])
            second = np.stack([beginnings[place][:size] for _, _, place in pairs])
            found += _compare_all([what for what, _, _ in pairs], first, second)
        for block, places in self._alike.items():
            stack = np.stack([blocks[place] for place in places])
            names = iter(self._names[block])
            for axis, length in enumerate(block):
                half = length // 2
                turned = np.moveaxis(stack, axis + 1, 1)
                even, odd = turned[:, 0 : 2 * half : 2], turned[:, 1 : 2 * half : 2]
                found += _compare_all(next(names), even, odd)
                found += _compare_all(next(names), turned[:, :half], turned[:, half : 2 * half])
        return tuple(found)


def _compare_all(
    names: Sequence[str], first: Values, second: Values
) -> Iterable[tuple[str, float, int]]:
    """Return the cosine of each part in one stack with its counterpart in the other."""
    a, b = first.reshape(len(names), -1), second.reshape(len(names), -1)
    size = a.shape[1]
    if size < LEAST_DIRECTION:
        return []
    norms = np.sqrt(np.einsum("ni,ni->n", a, a)) * np.sqrt(np.einsum("ni,ni->n", b, b))
    known = norms > 0
    products = np.einsum("ni,ni->n", a, b)[known] / norms[known]
    return zip(compress(names, known), np.clip(products, -1, 1).tolist(), repeat(size))
