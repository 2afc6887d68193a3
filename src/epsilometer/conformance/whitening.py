"""Whiten declared correlated noise: turn residuals back into what must be independent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.conformance.summary import StepSummary, summarise_step
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

MOST_KEPT = 1 << 22  # numbers that are kept of earlier steps; of more, only those of the sketch
_MOST_DIAGONALS = 4096  # of a Toeplitz matrix; 4,096 sketches are 32 MiB
_LEVELS = 32  # of a tree


@dataclass(frozen=True, kw_only=True)
class Row:
    """How one step's noise is whitened: own · residual + Σ weight · what was kept of that step.

    Attributes:
        own: Weight of this step's residual; the noise that is new in it has the scale 1/own.
        earlier: (step, weight) pairs.
    """

    own: float
    earlier: tuple[tuple[int, float], ...]


class Whitening:
    r"""The law of correlated noise that a program declares: DP-FTRL or matrix factorisation.

    Noise of step t is :math:`r_t = \sum_{s \le t} B_{ts} z_s`, z independent, where B is the mixing
    matrix, or :math:`B = C^{-1}` of an encoder C. Then :math:`z_t = \sum_s C_{ts} r_s`; of a mixing
    matrix z follows by forward substitution. As many steps are kept as the matrix has diagonals.

    Guarantee: residuals of the declared law become independent noise of scale 1.
    Assumption: residuals are in units of the noise z, which is the same in all steps.

    Args:
        declared: Mixing matrix B as an array, lower triangular, one row for each step or more; or a
            ``MatrixNoise``, ``SquareRoot``, ``TreeNoise`` or ``IndependentNoise`` of ours. An
            encoder that is an array is given to :meth:`by_encoder`.

    Example:
        >>> declared = Whitening([[1.0, 0.0], [-0.5, 1.0]])
        >>> stream = declared.start()
        >>> [float(stream.next([np.array([r])])[0][0]) for r in (2.0, 0.0)]
        [2.0, 1.0]
    """

    def __init__(self, declared: Any) -> None:
        rows, from_noise, kept, name = _read_declaration(declared)
        self._rows, self._from_noise, self.kept, self.name = rows, from_noise, kept, name

    @classmethod
    def by_encoder(cls, encoder: Any) -> "Whitening":
        """Declare noise :math:`C^{-1} z` by its encoder C, lower triangular."""
        own = cls.__new__(cls)
        matrix = _as_triangular(encoder)
        own._rows, own._from_noise = _rows_of_encoder(matrix), False
        own.kept, own.name = _count_diagonals(matrix), f"an encoder of {len(matrix)} steps"
        return own

    @classmethod
    def by_tree(cls) -> "Whitening":
        """Declare noise of a binary tree: each step adds a node and takes away those below it."""
        own = cls.__new__(cls)
        own._rows, own._from_noise = _row_of_tree, True
        own.kept, own.name = _LEVELS, "a binary tree"
        return own

    def row(self, step: int) -> Row:
        """Return how step ``step`` is whitened, counted from 0."""
        return self._rows(step)

    def start(self) -> "Stream":
        """Begin to whiten a run."""
        return Stream(self)

    def fits(self, sizes: Sequence[int]) -> bool:
        """Tell whether all coordinates of earlier steps may be kept, and not their sketch alone."""
        return self.kept * sum(sizes) <= MOST_KEPT


class Stream:
    """Whitens the residuals of one run, step by step, with bounded memory."""

    def __init__(self, declared: Whitening) -> None:
        self._declared, self._step = declared, 0
        self._kept: dict[int, list[FloatArray]] = {}

    def next(self, residuals: Sequence[FloatArray]) -> list[FloatArray]:
        """Return the independent noise of the next step, one array per residual."""
        row = self._declared.row(self._step)
        white = [row.own * array for array in residuals]
        for step, weight in row.earlier:
            for place, array in enumerate(self._kept[step]):
                white[place] += weight * array
        self._kept[self._step] = white if self._declared._from_noise else list(residuals)
        self._forget()
        self._step += 1
        return [array.copy() for array in white]

    def _forget(self) -> None:
        """Drop what no later step needs: all but the latest, or of a tree all but its nodes."""
        if self._declared._rows is _row_of_tree:
            done = self._step + 1
            nodes = {(done >> level << level) - 1 for level in range(_LEVELS) if done >> level & 1}
            self._kept = {step: kept for step, kept in self._kept.items() if step in nodes}
            return
        oldest = self._step - self._declared.kept + 1
        self._kept.pop(oldest - 1, None)

    def whiten_sketches(self, step: StepSummary) -> StepSummary:
        """Return a summary of the whitened sketch alone; cosines within the step stay.

        Coordinates of one step are independent in any case, so that cosines keep their law.
        """
        parts = [part for part in step.tensors if part.sketch.size]
        white = self.next([part.sketch for part in parts])
        named = [(part.name, array) for part, array in zip(parts, white, strict=True)]
        own = summarise_step(
            named,
            sketch=[np.arange(array.size) for array in white],
            ties=step.ties or (0, 0),  # a lattice cannot be told after whitening
        )
        return StepSummary(tensors=own.tensors, cosines=step.cosines, ties=own.ties)


def _read_declaration(declared: Any) -> tuple[Callable[[int], Row], bool, int, str]:
    if isinstance(declared, Whitening):
        return declared._rows, declared._from_noise, declared.kept, declared.name
    if type(declared).__module__.startswith("epsilometer.networks"):
        return _read_own(declared)
    matrix = _as_triangular(declared)
    name = f"a mixing matrix of {len(matrix)} steps"
    return _rows_of_mixing(matrix), True, _count_diagonals(matrix), name


def _read_own(declared: Any) -> tuple[Callable[[int], Row], bool, int, str]:
    """Read a declaration of ``epsilometer.networks``, which exists only where torch does."""
    from epsilometer.sampling.noise import IndependentNoise, MatrixNoise, SquareRoot, TreeNoise

    if isinstance(declared, TreeNoise):
        return _row_of_tree, True, _LEVELS, "a binary tree"
    if isinstance(declared, IndependentNoise):
        return _rows_of_diagonals(np.ones(1)), False, 1, "independent noise"
    encoder = declared.encoder if isinstance(declared, MatrixNoise) else declared
    if isinstance(encoder, SquareRoot):
        if encoder.bands is not None and encoder.bands > _MOST_DIAGONALS:
            raise InvalidArgument(
                f"Expected at most {_MOST_DIAGONALS} bands, got {encoder.bands}: "
                "an earlier step is kept for each of them."
            )
        k = np.arange(1, encoder.bands or _MOST_DIAGONALS)
        diagonals = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
        rows = _rows_of_diagonals(diagonals, all_of_them=encoder.bands is None)
        return rows, False, diagonals.size, f"{encoder!r}"
    if not isinstance(declared, MatrixNoise):
        raise InvalidArgument(f"Expected noise that is declared, got {_validate.short(declared)}.")
    matrix = _as_triangular(encoder)
    return _rows_of_encoder(matrix), False, _count_diagonals(matrix), repr(declared)


def _as_triangular(given: Any) -> FloatArray:
    matrix = np.asarray(given, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise InvalidArgument(f"Expected a square matrix, got shape {matrix.shape}.")
    if not np.isfinite(matrix).all():
        raise InvalidArgument("Expected a matrix of finite numbers, got others.")
    if np.triu(matrix, 1).any() or not (np.diag(matrix) > 0).all():
        raise InvalidArgument(
            "Expected a lower triangular matrix with a positive diagonal: noise of a step is made "
            "of new noise and of that of earlier steps."
        )
    return matrix


def _count_diagonals(matrix: FloatArray) -> int:
    rows, columns = np.nonzero(matrix)
    return int((rows - columns).max()) + 1


def _take_row(matrix: FloatArray, step: int) -> tuple[FloatArray, list[int]]:
    if step >= len(matrix):
        raise InvalidArgument(
            f"Expected at most {len(matrix)} steps, as many as were declared, got more."
        )
    return matrix[step], [int(place) for place in np.flatnonzero(matrix[step, :step])]


def _rows_of_encoder(matrix: FloatArray) -> Callable[[int], Row]:
    def row(step: int) -> Row:
        weights, earlier = _take_row(matrix, step)
        return Row(
            own=float(weights[step]),
            earlier=tuple((place, float(weights[place])) for place in earlier),
        )

    return row


def _rows_of_mixing(matrix: FloatArray) -> Callable[[int], Row]:
    def row(step: int) -> Row:
        weights, earlier = _take_row(matrix, step)
        own = 1 / float(weights[step])
        return Row(
            own=own, earlier=tuple((place, -own * float(weights[place])) for place in earlier)
        )

    return row


def _rows_of_diagonals(diagonals: FloatArray, *, all_of_them: bool = False) -> Callable[[int], Row]:
    """Rows of an encoder that has the same numbers along each diagonal."""

    def row(step: int) -> Row:
        if all_of_them and step >= diagonals.size:
            raise InvalidArgument(
                f"Expected at most {diagonals.size} steps of noise in which all earlier steps "
                "are mixed, got more: give its bands."
            )
        lags = range(min(step, diagonals.size - 1), 0, -1)
        return Row(
            own=float(diagonals[0]),
            earlier=tuple((step - lag, float(diagonals[lag])) for lag in lags),
        )

    return row


def _row_of_tree(step: int) -> Row:
    """The node of this step takes the place of those below it, whose noise is taken away."""
    done = step + 1
    level = (done & -done).bit_length() - 1
    return Row(own=1.0, earlier=tuple((step - (1 << below), 1.0) for below in range(level)))
