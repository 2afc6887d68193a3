"""Whiten declared correlated noise: turn residuals back into independent noise."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from epsilometer import _validate
from epsilometer.conformance.summary import StepSummary, summarise_step
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

MOST_KEPT = 1 << 22  # numbers to keep of earlier steps; beyond that, only the sketch is kept
_MOST_DIAGONALS = 4096  # of a Toeplitz matrix; 4,096 sketches are 32 MiB
_LEVELS = 32  # of a tree


class Row(NamedTuple):
    """Describe how one step's noise is whitened: own · residual + Σ weight · kept value.

    Attributes:
        own: Weight of this step's residual; its new noise has the scale 1/own.
        earlier: (step, weight) pairs.
    """

    own: float
    earlier: tuple[tuple[int, float], ...]


class _Law(NamedTuple):
    """Describe how all steps are whitened.

    Attributes:
        row: Returns the row of a step, counted from 0.
        from_noise: Whether the whitened noise of a step is kept, not its residual.
        kept: Number of steps to keep.
        name: Its name.
    """

    row: Callable[[int], Row]
    from_noise: bool
    kept: int
    name: str


class Whitening:
    r"""Whiten the correlated noise that a program declares: DP-FTRL or matrix factorisation.

    Noise of step t is :math:`r_t = \sum_{s \le t} B_{ts} z_s`, z independent, where B is the mixing
    matrix, or :math:`B = C^{-1}` of an encoder C. Then :math:`z_t = \sum_s C_{ts} r_s`; with a
    mixing matrix, z follows by forward substitution. As many steps are kept as the matrix has
    diagonals.

    Guarantee: residuals of the declared distribution become independent noise of scale 1.
    Assumption: residuals are in units of the noise z, which is the same in all steps.

    Args:
        declared: Mixing matrix B as a lower triangular array, with at least one row per step; or a
            ``MatrixNoise``, ``SquareRoot``, ``TreeNoise`` or ``IndependentNoise``. For an encoder
            as an array, use :meth:`by_encoder`.

    Example:
        >>> declared = Whitening([[1.0, 0.0], [-0.5, 1.0]])
        >>> stream = declared.start()
        >>> [float(stream.next([np.array([r])])[0][0]) for r in (2.0, 0.0)]
        [2.0, 1.0]
    """

    def __init__(self, declared: Any) -> None:
        self._law = _read_law(declared)
        self.kept, self.name = self._law.kept, self._law.name

    @classmethod
    def by_encoder(cls, encoder: Any) -> "Whitening":
        """Declare noise :math:`C^{-1} z` by its encoder C, lower triangular."""
        return cls(_read_matrix(encoder, mixing=False))

    @classmethod
    def by_tree(cls) -> "Whitening":
        """Declare noise of a binary tree: each step adds a node and removes those below it."""
        return cls(_TREE)

    def row(self, step: int) -> Row:
        """Return how step ``step`` is whitened, counted from 0."""
        return self._law.row(step)

    def make_encoder(self, steps: int) -> FloatArray:
        """Return C, which whitens the residuals of this many steps.

        Example:
            >>> Whitening.by_tree().make_encoder(2)
            array([[1., 0.],
                   [1., 1.]])
        """
        encoder = np.zeros((steps, steps))
        for step in range(steps):
            row = self.row(step)
            encoder[step, step] = row.own
            for earlier, weight in row.earlier:
                if self._law.from_noise:
                    encoder[step] += weight * encoder[earlier]
                else:
                    encoder[step, earlier] = weight
        return encoder

    def start(self) -> "Stream":
        """Start whitening a run."""
        return Stream(self)

    def fits(self, sizes: Sequence[int]) -> bool:
        """Tell whether all coordinates of earlier steps can be kept, not only their sketch."""
        return self.kept * sum(sizes) <= MOST_KEPT


class Stream:
    """Whiten the residuals of one run, step by step, with bounded memory."""

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
        self._kept[self._step] = white if self._declared._law.from_noise else list(residuals)
        self._forget()
        self._step += 1
        return [array.copy() for array in white]

    def _forget(self) -> None:
        """Drop what no later step needs: all but the latest, or all but the nodes of a tree."""
        if self._declared._law is _TREE:
            done = self._step + 1
            nodes = {(done >> level << level) - 1 for level in range(_LEVELS) if done >> level & 1}
            self._kept = {step: kept for step, kept in self._kept.items() if step in nodes}
            return
        oldest = self._step - self._declared.kept + 1
        self._kept.pop(oldest - 1, None)

    def whiten_sketches(self, step: StepSummary) -> StepSummary:
        """Return a summary of the whitened sketch only; cosines within the step are kept.

        Coordinates of one step are independent in any case, so cosines keep their distribution.
        """
        parts = [part for part in step.tensors if part.sketch.size]
        white = self.next([part.sketch for part in parts])
        named = [(part.name, array) for part, array in zip(parts, white, strict=True)]
        own = summarise_step(
            named,
            sketch=[np.arange(array.size) for array in white],
            ties=step.ties or (0, 0),  # a lattice cannot be detected after whitening
        )
        return StepSummary(tensors=own.tensors, cosines=step.cosines, ties=own.ties)


def _read_law(declared: Any) -> _Law:
    if isinstance(declared, (Whitening, _Law)):
        return declared if isinstance(declared, _Law) else declared._law
    if type(declared).__module__ != "epsilometer.sampling.noise":  # which exists where torch does
        return _read_matrix(declared, mixing=True)
    from epsilometer.sampling.noise import IndependentNoise, MatrixNoise, SquareRoot, TreeNoise

    match declared:
        case TreeNoise():
            return _TREE
        case IndependentNoise():
            return _read_diagonals(np.ones(1), name="independent noise")
        case SquareRoot() | MatrixNoise(encoder=SquareRoot()):
            return _read_square_root(getattr(declared, "encoder", declared))
        case MatrixNoise():
            return _read_matrix(declared.encoder, mixing=False, name=repr(declared))
    raise InvalidArgument(f"Expected noise that is declared, got {_validate.short(declared)}.")


def _read_matrix(given: Any, *, mixing: bool, name: str = "") -> _Law:
    """Return the whitening of a mixing matrix, or of an encoder."""
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

    def row(step: int) -> Row:
        if step >= len(matrix):
            raise InvalidArgument(
                f"Expected at most {len(matrix)} steps, as many as were declared, got more."
            )
        weights = matrix[step]
        own = 1 / float(weights[step]) if mixing else float(weights[step])
        # For a mixing matrix, earlier noise is subtracted before the rest is divided.
        sign = -own if mixing else 1.0
        earlier = (int(place) for place in np.flatnonzero(weights[:step]))
        return Row(own, tuple((place, sign * float(weights[place])) for place in earlier))

    kind = "a mixing matrix" if mixing else "an encoder"
    rows, columns = np.nonzero(matrix)
    diagonals = int((rows - columns).max()) + 1
    return _Law(row, mixing, diagonals, name or f"{kind} of {len(matrix)} steps")


def _read_square_root(encoder: Any) -> _Law:
    bands = encoder.bands
    if bands is not None and bands > _MOST_DIAGONALS:
        raise InvalidArgument(
            f"Expected at most {_MOST_DIAGONALS} bands, got {bands}: "
            "an earlier step is kept for each of them."
        )
    k = np.arange(1, bands or _MOST_DIAGONALS)
    diagonals = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
    return _read_diagonals(diagonals, name=repr(encoder), all_of_them=bands is None)


def _read_diagonals(diagonals: FloatArray, *, name: str, all_of_them: bool = False) -> _Law:
    """Return the whitening of an encoder that is constant along each diagonal."""

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

    return _Law(row, False, diagonals.size, name)


def _find_row_of_tree(step: int) -> Row:
    """Replace the nodes below this step's node, whose noise is removed."""
    done = step + 1
    level = (done & -done).bit_length() - 1
    return Row(own=1.0, earlier=tuple((step - (1 << below), 1.0) for below in range(level)))


_TREE = _Law(_find_row_of_tree, True, _LEVELS, "a binary tree")
