"""Estimate the weight of every client in a release, by regression on all updates.

A correct server may use less of an update than accounted for, or clip it differently. The
statistics used here ignore that: they use, for each array, the part of an update that no other
update has, and the part of a median that no mixture of updates has.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from epsilometer.types import FloatArray

MOST_KEPT = 1 << 22  # numbers of all updates of a round: 32 MiB
_JITTER = 1e-10  # relative, of products of updates: some may be equal
_ALIKE = 1e-6  # relative, of squared lengths: what is shorter may be rounding
_WEIGHTS_EACH = 10  # for each update: fresh noise is a tenth of an array at most
_TRIMMED = 5  # one value in this many is left out at either end
_SHORT = (1.0, 0.95)  # in clipping norms: what is shorter may be the only thing averaged


class Lean(NamedTuple):
    """How far a residual leans along a shift, in units of noise of unknown scale.

    Attributes:
        along: Product of shift and residual, minus what a correct server may show.
        square: Squared length of the shift.
    """

    along: float
    square: float


class SampledUpdates:
    """Hold a sample of coordinates of every clipped update of a round, as large as memory allows.

    Args:
        sizes: Sizes of the arrays that are joined in an update.

    Attributes:
        clients: Which client sent each update; None if unknown.
        norms: Norms of updates before clipping, in clipping norms.
        still: Indices of arrays that were not released, which are skipped.
        by_layer: Factors by which arrays would be longer if each were clipped separately,
            ``(arrays,)`` each.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._ends = np.cumsum(sizes)
        self._stride = 1
        self._rows: list[FloatArray] = []
        self._examples: list[float] = []
        self.by_layer: list[FloatArray] = []
        self.clients: list[Hashable | None] = []
        self.norms: list[float] = []
        self.still: frozenset[int] = frozenset()

    def add(
        self,
        update: FloatArray,
        *,
        client: Hashable | None,
        norm: float,
        examples: float,
        by_layer: Sequence[float],
    ) -> None:
        """Add a clipped update: a sample of its coordinates, its client and its norms."""
        self.by_layer.append(np.asarray(by_layer, np.float64))
        self._rows.append(update[:: self._stride].copy())
        self.clients.append(client)
        self.norms.append(norm)
        self._examples.append(examples)
        self.thin(MOST_KEPT)

    def thin(self, most: int) -> None:
        """Keep at most this many numbers."""
        while self._rows and len(self._rows) * self._rows[0].size > most:
            self._stride *= 2
            self._rows = [row[::2].copy() for row in self._rows]

    @property
    def examples(self) -> FloatArray:
        """Numbers of examples."""
        return np.array(self._examples)

    def scale(self, shares: FloatArray | float, *, unit: float) -> None:
        """Express updates in units of noise.

        Args:
            shares: Weight of every update in the accounted mean.
            unit: Standard deviation of the accounted noise.
        """
        self._shares = np.broadcast_to(shares, (len(self._rows),))
        self._unit = unit

    def compare(
        self, residual: FloatArray, *, most: float, earlier: Sequence[FloatArray] = ()
    ) -> "WeightEstimates | None":
        """Return how the residual depends on single updates; None if no array is large enough.

        Args:
            residual: In units of noise, all coordinates.
            most: What one client may add, in units of noise.
            earlier: Means of earlier rounds, all coordinates.
        """
        count = len(self._rows)
        if count < 2:
            return None
        found = WeightEstimates(self, most=most, earlier=len(earlier))
        sampled = residual[:: self._stride]
        before = [mean[:: self._stride] / self._unit for mean in earlier]
        for place, low, high in self._list_arrays(least=2 * count):
            rows = self._cut(low, high) / self._unit
            found.add_array(rows, sampled[low:high], place, [mean[low:high] for mean in before])
        return found if found.arrays else None

    def measure_beside(self, residual: FloatArray) -> tuple[int, float]:
        """Return the dimension outside the span of updates, and the residual's squared norm there.

        Args:
            residual: All coordinates.
        """
        count, degrees, squares = len(self._rows), 0, 0.0
        sampled = residual[:: self._stride]
        for _, low, high in self._list_arrays(least=2 * count):
            part = sampled[low:high]
            basis = np.linalg.qr(self._cut(low, high).T)[0]
            left = part - basis @ (basis.T @ part)
            degrees += high - low - count
            squares += float(left @ left)
        return degrees, squares

    def replace_mixtures(
        self, residual: FloatArray, rng: np.random.Generator
    ) -> list[tuple[int, FloatArray]] | None:
        """Return the residual with fresh noise instead of its component in the span of updates.

        However little of the updates a correct server used, the result is its noise. Arrays come
        with their indices; those with fewer than ten weights per update are left out. None if only
        a sample of coordinates was kept.

        Args:
            residual: All coordinates.
            rng: Source of the fresh noise.
        """
        count, found = len(self._rows), list[tuple[int, FloatArray]]()
        if self._stride > 1 or not count:
            return None
        for place, low, high in self._list_arrays(least=_WEIGHTS_EACH * count):
            part, size = residual[low:high], high - low
            basis = np.linalg.qr(self._cut(low, high).T)[0]
            left = part - basis @ (basis.T @ part)
            scale = float(np.linalg.norm(left)) / math.sqrt(size - count)
            found.append((place, left + scale * (basis @ rng.standard_normal(count))))
        return found

    def _list_arrays(self, *, least: int) -> Iterator[tuple[int, int, int]]:
        """Yield index, start and end of arrays of at least this size; smaller ones are mixtures.

        Arrays that were not released are skipped.
        """
        ends = (-(-self._ends // self._stride)).tolist()
        for place, (low, high) in enumerate(pairwise([0, *ends])):
            if high - low >= least and place not in self.still:
                yield place, low, high

    def _cut(self, low: int, high: int) -> FloatArray:
        """Return an array of all updates, one row each."""
        return np.array([row[low:high] for row in self._rows])


class WeightEstimates:
    """Estimate the weight of every client, and of other means, from a residual.

    Args:
        sample: The updates.
        most: What one client may add, in units of noise.
        earlier: How many means of earlier rounds are compared.

    Attributes:
        arrays: How many arrays were checked.
        explained: How many directions in the span of updates were checked, and the sum of squares
            of the residual in these.
        single: Products of every update with the residual, and squared lengths, ``(2, clients)``.
        earlier: Leans towards means of earlier rounds.
    """

    def __init__(self, sample: SampledUpdates, *, most: float, earlier: int = 0) -> None:
        self.arrays, self.explained = 0, (0, 0.0)
        self.earlier = [Lean(0.0, 0.0)] * earlier
        self.clients, self._norms = sample.clients, np.array(sample.norms)
        self.single = np.zeros((2, len(self.clients)))
        self._most, self._shares = most, sample._shares
        more = np.maximum(0.0, np.array(sample.by_layer) - 1)
        # By how much more of every array of every client is released, (clients, arrays) or so.
        weights = [np.ones((1, 1)), *(w[:, None] for w in self._list_groups()), more]
        self._groups = [np.broadcast_to(w, more.shape) for w in weights]
        self._along, self._square, self._roots = np.zeros((3, len(weights), len(self.clients)))
        self._mixed = np.zeros(len(weights))  # squared lengths of what groups add
        self._others = [Lean(0.0, 0.0), Lean(0.0, 0.0)]  # median, trimmed mean

    def _list_groups(self) -> Iterator[FloatArray]:
        """Yield the excess of groups of clients over what they may add.

        One group is for averaging short updates only, one for counting the longest updates twice.
        """
        for limit in _SHORT:
            short = self._norms <= limit
            total = float(self._shares[short].sum())
            allowed = 1 / np.maximum(np.minimum(self._norms, 1.0), 1e-12)
            factor = 1 / total if total else 0.0
            yield np.where(short, np.maximum(0.0, factor - allowed), 0.0)
        yield np.where(self._norms > _SHORT[-1], 1.0, 0.0)

    def add_array(
        self,
        rows: FloatArray,
        residual: FloatArray,
        place: int,
        earlier: Sequence[FloatArray] = (),
    ) -> None:
        """Add one array.

        Args:
            rows: Updates of all clients, in units of noise, ``(clients, size)``.
            residual: In units of noise, ``(size,)``.
            place: Which array it is.
            earlier: Means of earlier rounds, in units of noise.
        """
        length = float(np.linalg.norm(residual))
        white = residual * (math.sqrt(residual.size) / length) if length else residual
        updates = rows * self._shares[:, None]
        products = updates @ updates.T
        diagonal = np.diag(products).copy()
        if not diagonal.mean() > 1e-100:  # no client changed this array
            return
        self._add_explained(products, updates @ residual)
        self.single += updates @ residual, diagonal
        products[np.diag_indices(len(products))] += _JITTER * float(diagonal.mean())
        inverse = np.linalg.inv(products)
        own = 1 / np.diag(inverse)  # squared length of what no other update has
        along = own * (inverse @ (updates @ white))
        for number, group in enumerate(self._groups):
            part = group[:, place] * own
            self._along[number] += group[:, place] * along
            self._square[number] += part
            self._roots[number] += np.divide(
                part**2, diagonal, out=np.zeros_like(own), where=diagonal > 0
            )
            self._mixed[number] += float(part @ inverse @ part)
        mean = updates.sum(axis=0)
        cut, half = len(rows) // _TRIMMED, len(rows) // 2
        ordered = np.partition(rows, sorted({cut, half, len(rows) - 1 - half, -cut - 1}), axis=0)
        median = (ordered[half] + ordered[len(rows) - 1 - half]) / 2
        others = (median - mean, ordered[cut : len(rows) - cut].mean(axis=0) - mean)
        for leans, shifts in ((self._others, others), (self.earlier, earlier)):
            for number, other in enumerate(shifts):
                shift = other - (inverse @ (updates @ other)) @ updates
                along, square = float(shift @ white), float(shift @ shift)
                leans[number] = Lean(leans[number].along + along, leans[number].square + square)
        self.arrays += 1

    def _add_explained(self, products: FloatArray, along: FloatArray) -> None:
        """Add the squared length of a residual in the span of updates, and its dimensions."""
        squares, axes = np.linalg.eigh(products)
        own = squares > _ALIKE * squares[-1]  # updates may be equal, but for rounding
        count, total = self.explained
        more = float(np.sum((axes[:, own].T @ along) ** 2 / squares[own]))
        self.explained = count + int(own.sum()), total + more

    def lean_to_means(self) -> list[Lean]:
        """Return the leans towards means of short or long updates, a median and a trimmed mean."""
        return [self._lean_to_group(number) for number in (1, 2, 3)] + self._others

    def lean_to_layers(self) -> Lean:
        """Return the lean towards updates whose arrays were clipped separately."""
        return self._lean_to_group(4)

    def list_clients(self) -> Iterator[tuple[Hashable, Lean]]:
        """Yield known clients, each with the evidence that it counts twice."""
        excess = self._find_excess(0)
        for client, along, square in zip(self.clients, excess, self._square[0], strict=True):
            if client is not None:
                yield client, Lean(float(along), float(square))

    def _lean_to_group(self, number: int) -> Lean:
        return Lean(float(self._find_excess(number).sum()), float(self._mixed[number]))

    def _find_excess(self, number: int) -> FloatArray:
        """Return how far the residual leans towards every client adding more than it may.

        An update shorter than the clipping norm may be lengthened, one array at the expense of
        another: weights w of arrays with Σ w²|v|² ≤ C². By Cauchy and Schwarz a sum Σ part · (w −
        1) is at most C·√(Σ part²/|v|²) − Σ part.
        """
        allowed = self._most * np.sqrt(self._roots[number]) - self._square[number]
        return np.asarray(self._along[number] - np.maximum(0.0, allowed), np.float64)
