r"""Write preprocessing without a record as a linear map of columns that stay fixed.

Without record r, preprocessed columns are :math:`z = \phi A_r`. The columns of :math:`\phi` are a
constant, the numbers, and where they are missing, or products of these; only the small matrix
:math:`A_r` changes. Mean imputation adds a multiple of the missingness, a scaler multiplies and
adds a constant, products of scaled columns are sums of products, and principal components are
eigenvectors of a covariance from which one record is subtracted. Maps of maps are maps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.scaling import (
    CONSTANT,
    FILLS,
    KINDS,
    MOST_CHANGED,
    SCALERS,
    Filled,
    Part,
    apply_steps,
    apply_transformers,
    group_fillings,
    impute,
    is_numeric,
    is_rotation,
    join_parts,
    name_steps,
    read_scaler,
    transform,
)
from epsilometer.audits.classifier.sklearn_models import clone_estimator, identify
from epsilometer.types import BoolArray, FloatArray, IntArray

_MOST_CELLS = 1 << 26  # largest number of cells of the fixed columns
_MOST_ENTRIES = 1 << 22  # largest number of entries of one map
_MOST_TERMS = 32  # largest number of terms of a product of columns
LEFT = 1e-6  # share of a sum of squares below which its difference has lost too many digits
NOISE = 1e-24  # mean square, relative to weights, that is rounding
_CANCELLED = 1e-4  # share of its terms below which a sum of products loses too many digits
_TINY = 1e-14  # spread below which scikit-learn may take a column for constant
_GAP = 1e-7  # relative distance of eigenvalues below which their vectors are not determined
_PROBED = 64  # records by which it is estimated how many need refits
_BLOCK = 1 << 21  # entries of all maps of a block of records


class Map(ABC):
    """Columns that are linear combinations of fixed ones, with all records and without each.

    Attributes:
        basis: The fixed columns, ``(records, p)``; the first is 1.
        rows: Which of them each column combines, ``(columns, w)``; the first is the constant.
        unsure: Records without which a map cannot be computed safely; known after ``weigh``.
    """

    def __init__(self, basis: FloatArray, rows: IntArray) -> None:
        self.basis, self.rows = basis, rows
        self.unsure = np.zeros(len(basis), bool)

    @abstractmethod
    def weigh(self, records: IntArray | None) -> FloatArray:
        """Return weights of the combined columns without each record, ``(b, columns, w)``.

        With None instead of records, there is one matrix: with all records.
        """

    @property
    def block(self) -> int:
        """Number of records to compute at a time."""
        wide = max(self.rows.size, len(self.rows) ** 2, self.basis.shape[1])
        return int(max(1, min(_BLOCK // wide, 1 << 12)))

    def compute(self, record: int | None) -> FloatArray:
        """Return the columns of all records, as without a record."""
        weights = self.weigh(None if record is None else np.array([record]))
        wide = widen(weights, self.rows, self.basis.shape[1])[0]
        return np.asarray(self.basis @ wide)


def widen(weights: FloatArray, rows: IntArray, width: int) -> FloatArray:
    """Return maps as matrices ``(b, width, columns)``."""
    if _is_whole(rows, width):
        return np.ascontiguousarray(np.swapaxes(weights, 1, 2))
    result = np.zeros((len(weights), width, len(rows)))
    for place in range(rows.shape[1]):
        result[:, rows[:, place], np.arange(len(rows))] += weights[:, :, place]
    return result


def pull(weights: FloatArray, rows: IntArray, vectors: FloatArray) -> FloatArray:
    """Return φ A for a vector φ per map, or one for all: ``(b, columns)``."""
    if rows.shape[1] > _MOST_TERMS:
        wide = np.broadcast_to(vectors, (len(weights), vectors.shape[-1]))
        if _is_whole(rows, wide.shape[1]):
            return np.asarray((weights @ wide[:, :, None])[:, :, 0])
    return np.asarray(np.einsum("bkw,bkw->bk", weights, np.atleast_2d(vectors)[:, rows]))


def sandwich(weights: FloatArray, rows: IntArray, matrix: FloatArray) -> FloatArray:
    """Return Aᵀ M A for each map, ``(b, columns, columns)``."""
    terms = rows.shape[1]
    if terms**2 > len(matrix) or _is_whole(rows, len(matrix)):
        wide = widen(weights, rows, len(matrix))
        return np.asarray(np.swapaxes(wide, 1, 2) @ (matrix @ wide))
    result = np.zeros((len(weights), len(rows), len(rows)))
    for one in range(terms):
        for other in range(terms):
            part = matrix[np.ix_(rows[:, one], rows[:, other])]
            if part.any():
                result += weights[:, :, one, None] * weights[:, None, :, other] * part
    return result


def _is_whole(rows: IntArray, width: int) -> bool:
    return rows.shape[1] == width and bool((rows == np.arange(width)).all())


class Scatter:
    """Mean and scatter of some records, and of maps of them without one of these."""

    def __init__(self, basis: FloatArray, rows: IntArray) -> None:
        self.count, self.rows = len(basis), rows
        self.mean = basis.mean(axis=0)
        self._basis = basis
        terms, self._own = rows.shape[1], None
        if terms**2 <= basis.shape[1]:
            self._own = np.empty((len(rows), terms, terms))
            centred = basis - self.mean
            for one, other in np.ndindex(terms, terms):
                columns = centred[:, rows[:, one]], centred[:, rows[:, other]]
                self._own[:, one, other] = np.einsum("nk,nk->k", *columns)

    @cached_property
    def matrix(self) -> FloatArray:
        """Sums of products of all columns of the basis about their means."""
        centred = self._basis - self.mean
        return np.asarray(centred.T @ centred)

    def squares(self, weights: FloatArray) -> FloatArray:
        """Return sums of squares of columns about their means, ``(b, columns)``."""
        if self._own is not None:
            turned = np.swapaxes(np.swapaxes(weights, 0, 1) @ self._own, 0, 1)
        elif _is_whole(self.rows, len(self.mean)):
            turned = weights @ self.matrix
        else:
            wide = widen(weights, self.rows, len(self.mean))
            return np.asarray(np.maximum(((self.matrix @ wide) * wide).sum(axis=1), 0.0))
        return np.asarray(np.maximum(np.einsum("bkw,bkw->bk", turned, weights), 0.0))

    def squares_without(
        self, weights: FloatArray, gone: FloatArray
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return x − m of records and sums of squares without them, and which lost digits."""
        away = pull(weights, self.rows, gone - self.mean)
        squares = self.squares(weights)
        left = squares - self.count / max(1, self.count - 1) * away**2
        varies = squares > NOISE * self.count * (weights**2).sum(axis=2)
        lost = varies & (left < LEFT * squares)
        return away, np.where(varies, np.maximum(left, 0.0), 0.0), lost.any(axis=1)


class Columns(Map):
    """Columns of numbers, each scaled, with gaps that are filled.

    Args:
        filled: The columns.
        scalers: Which columns are scaled, and how.
        changed: Records that change them in another way.
    """

    def __init__(
        self, filled: Filled, scalers: Sequence[tuple[IntArray, Any]], changed: BoolArray
    ) -> None:
        n, width = filled.table.shape
        self.filled, self.scalers = filled, tuple(scalers)
        self._middle, self._size = filled.table.mean(axis=0), filled.table.std(axis=0)
        self._size[self._size <= CONSTANT * np.abs(self._middle)] = 1.0
        gaps = np.flatnonzero(filled.gaps.any(axis=0))
        numbers = (filled.table - self._middle) / self._size
        basis = np.column_stack([np.ones(n), numbers, filled.gaps[:, gaps]])
        rows = np.zeros((width, 2 + (gaps.size > 0)), np.int64)
        rows[:, 1] = 1 + np.arange(width)
        rows[gaps, 2:] = 1 + width + np.arange(gaps.size)[:, None]
        super().__init__(basis, rows)
        # What is subtracted, and what divides, without each record, and last with all
        self._centre, self._spread = np.zeros((n + 1, width)), np.ones((n + 1, width))
        self.unsure |= changed
        for columns, scaler in self.scalers:
            own = Filled(
                table=filled.table[:, columns],
                gaps=filled.gaps[:, columns],
                fills=filled.fills[:, columns],
            )
            centre, spread = SCALERS[identify(scaler)](scaler, own, np.arange(n))
            fitted = clone_estimator(scaler).fit(own.table)
            self._centre[-1, columns], self._spread[-1, columns] = read_scaler(fitted, len(columns))
            deviation, span = own.table.std(axis=0), np.ptp(own.table, axis=0)
            match identify(scaler):
                case "sklearn.StandardScaler":  # which does not scale equal numbers
                    deviation[span <= 4 * np.spacing(np.abs(own.table).max(axis=0))] = 0.0
                    spread = np.where(deviation == 0, 1.0, spread)
                case "sklearn.RobustScaler":  # nor this where quartiles are equal
                    spread = np.where(spread == 0, 1.0, spread)
            deviation[span == 0] = 0.0
            # scikit-learn may take these for constant, or an outlier has left few digits
            small = spread <= np.maximum(LEFT * deviation, _TINY)
            small |= deviation <= CONSTANT * np.abs(self._middle[columns])
            small = (small & (deviation > 0)) | ~np.isfinite(centre + spread)
            self.unsure |= small.any(axis=1)
            self._centre[:-1, columns] = np.where(np.isfinite(centre), centre, 0.0)
            self._spread[:-1, columns] = np.where(small, 1.0, spread)

    def weigh(self, records: IntArray | None) -> FloatArray:
        """Return weights of the constant, the number and its gap."""
        some = np.array([-1]) if records is None else records
        spread = self._spread[some]
        weights = np.zeros((len(some), *self.rows.shape))
        weights[:, :, 0] = (self._middle - self._centre[some]) / spread
        weights[:, :, 1] = self._size / spread
        if records is not None and self.rows.shape[1] > 2:
            weights[:, :, 2] = self.filled.move(records) / spread
        return weights


class _Standard(Map):
    """Columns of a map, with means and standard deviations of 0 and 1."""

    def __init__(self, inner: Map, scaler: Any) -> None:
        super().__init__(inner.basis, inner.rows)
        self.unsure = inner.unsure
        self._inner, self._scaler = inner, scaler
        self._all = Scatter(inner.basis, inner.rows)
        weights = inner.weigh(None)
        sizes = np.square(weights * np.abs(self._all.mean)[inner.rows]).sum(axis=2)[0]
        spread = self._all.squares(weights)[0] / self._all.count
        self._constant = spread <= 1e-20 * sizes
        self.is_clear = bool((self._constant | (spread > CONSTANT**2 * sizes)).all())

    def weigh(self, records: IntArray | None) -> FloatArray:
        """Return the weights of the map, scaled."""
        weights, count = self._inner.weigh(records), self._all.count
        mean = pull(weights, self.rows, self._all.mean)
        if records is None:
            squares = self._all.squares(weights)
        else:
            away, squares, lost = self._all.squares_without(weights, self.basis[records])
            count -= 1
            mean -= away / count
            self.unsure[records] |= lost & ~self._constant.all()
        if self._scaler.with_mean:
            weights[:, :, 0] -= mean
        if self._scaler.with_std:
            alone = self._constant | (squares == 0)
            weights /= np.where(alone, 1.0, np.sqrt(squares / count))[:, :, None]
        return weights


class _Products(Map):
    """Products of a map's columns: sums of products of what these combine."""

    def __init__(self, inner: Map, powers: IntArray) -> None:
        self._inner, terms = inner, inner.rows.shape[1]
        degree = int(powers.sum(axis=1).max(initial=1))
        factors = [np.repeat(np.arange(len(own)), own) for own in powers]
        # A product of fewer columns has factors 1, which is what the last column is for
        self._factors = np.full((len(powers), degree), powers.shape[1])
        for place, own in enumerate(factors):
            self._factors[place, : own.size] = own
        padded = np.vstack([inner.rows, np.zeros((1, terms), np.int64)])
        grids = np.meshgrid(*[np.arange(terms)] * degree, indexing="ij")
        self._picked = np.stack([grid.ravel() for grid in grids])  # term of each factor
        chosen = np.stack(
            [padded[self._factors[:, d]][:, self._picked[d]] for d in range(degree)], axis=2
        )
        keys, places = np.unique(
            np.sort(chosen, axis=2).reshape(-1, degree), axis=0, return_inverse=True
        )
        basis = np.ones((len(inner.basis), len(keys)))
        for d in range(degree):
            basis *= inner.basis[:, keys[:, d]]  # the first key is the constant alone
        super().__init__(basis, places.reshape(chosen.shape[:2]))
        self.unsure = inner.unsure
        self._sizes = np.sqrt((basis**2).mean(axis=0))[self.rows]
        self._most = np.maximum(1.0, self._measure(self.weigh(None))) / _CANCELLED

    def _measure(self, weights: FloatArray) -> FloatArray:
        """Return the size of the terms that each column adds up."""
        return np.asarray(np.einsum("bkw,kw->bk", np.abs(weights), self._sizes))

    def weigh(self, records: IntArray | None) -> FloatArray:
        """Return products of the weights."""
        inner = self._inner.weigh(records)
        one = np.zeros((len(inner), 1, inner.shape[2]))
        one[:, :, 0] = 1.0
        padded = np.concatenate([inner, one], axis=1)
        weights = np.ones((len(inner), *self.rows.shape))
        for d, picked in enumerate(self._picked):
            weights *= padded[:, self._factors[:, d]][:, :, picked]
        if records is not None:
            self.unsure[records] |= (self._measure(weights) > self._most).any(axis=1)
        return weights


class _Components(Map):
    """Principal components of a map's columns."""

    def __init__(self, inner: Map, step: Any, kept: int) -> None:
        width = inner.basis.shape[1]
        super().__init__(inner.basis, np.tile(np.arange(width), (kept, 1)))
        self.unsure = inner.unsure
        self._inner, self._step = inner, step
        self._all = Scatter(inner.basis, inner.rows)
        weights = inner.weigh(None)
        self.is_clear = bool(self._are_clear(self._turn(weights, None)[0])[0])

    def weigh(self, records: IntArray | None) -> FloatArray:
        """Return directions of the components, times the map's matrices."""
        weights = self._inner.weigh(records)
        values, vectors, mean = self._turn(weights, records)
        if records is not None:
            self.unsure[records] |= ~self._are_clear(values)
        kept = len(self.rows)
        wide = widen(weights, self._inner.rows, self.basis.shape[1])
        result = np.swapaxes(vectors[:, :, :kept], 1, 2) @ np.swapaxes(wide, 1, 2)
        result[:, :, 0] -= np.einsum("bk,bkc->bc", mean, vectors[:, :, :kept])
        if self._step.whiten:
            result /= np.sqrt(np.maximum(values[:, :kept], 1e-300))[:, :, None]
        return np.asarray(result)

    def _turn(
        self, weights: FloatArray, records: IntArray | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return variances of all components, their directions, and means of columns."""
        rows, count = self._inner.rows, self._all.count
        covariance = sandwich(weights, rows, self._all.matrix)
        mean = pull(weights, rows, self._all.mean)
        if records is not None:
            away, _, lost = self._all.squares_without(weights, self.basis[records])
            self.unsure[records] |= lost
            covariance -= count / (count - 1) * away[:, :, None] * away[:, None, :]
            count -= 1
            mean -= away / count
        values, vectors = np.linalg.eigh(covariance / (count - 1))
        return values[:, ::-1], vectors[:, :, ::-1], mean

    def _are_clear(self, values: FloatArray) -> BoolArray:
        """Tell whether components that are kept are determined, and their number is the same."""
        kept, share = len(self.rows), self._step.n_components
        gaps = -np.diff(values[:, : kept + 1], axis=1)
        clear = (gaps > _GAP * values[:, :1]).all(axis=1) & (
            values[:, kept - 1] > _GAP * values[:, 0]
        )
        if isinstance(share, float):
            shares = np.cumsum(values, axis=1) / values.sum(axis=1, keepdims=True)
            clear &= (shares[:, kept - 1] > share + _GAP) & (
                (kept == 1) | (shares[:, kept - 2] < share - _GAP)
            )
        return np.asarray(clear)


class _Joined(Map):
    """Columns of several maps, side by side."""

    def __init__(self, parts: Sequence[Map]) -> None:
        self._parts, most = parts, max(part.rows.shape[1] for part in parts)
        basis: list[FloatArray] = [np.ones((len(parts[0].basis), 1))]
        rows, start = [], 0
        for part in parts:
            moved = np.where(part.rows > 0, part.rows + start, 0)
            rows.append(np.pad(moved, ((0, 0), (0, most - moved.shape[1]))))
            basis.append(part.basis[:, 1:])
            start += part.basis.shape[1] - 1
        super().__init__(np.hstack(basis), np.vstack(rows))
        for part in parts:
            self.unsure |= part.unsure

    def weigh(self, records: IntArray | None) -> FloatArray:
        """Return the weights of all maps."""
        each = [part.weigh(records) for part in self._parts]
        for part in self._parts:
            self.unsure |= part.unsure
        count, most = len(each[0]), self.rows.shape[1]
        weights = np.zeros((count, *self.rows.shape))
        start = 0
        for own in each:
            weights[:, start : start + own.shape[1], : min(most, own.shape[2])] = own
            start += own.shape[1]
        return weights


@dataclass(frozen=True, eq=False, kw_only=True)
class Mapped:
    """A pipeline's last estimator, and its features as a map.

    Attributes:
        last: The estimator.
        map: The features, with and without each record.
        filling: As of ``scaling.Peeled``.
        steps: Names of the steps.
    """

    last: Any
    map: Map
    filling: IntArray
    steps: tuple[str, ...]

    @property
    def features(self) -> FloatArray:
        """What the model is queried with."""
        return self.map.basis

    @property
    def changed(self) -> BoolArray:
        """Records known to need refits."""
        return self.map.unsure


def peel_maps(
    estimator: Any,
    X: Any,  # noqa: N803
    *,
    turns: bool = False,
    without: int | None = None,
) -> Mapped | None:
    """Return a pipeline's last estimator and its features as a map; None: not supported.

    Args:
        estimator: The pipeline.
        X: Features of all records.
        turns: Whether a rotation of the features changes nothing, so that a last one is left out.
        without: The record without which missing values are imputed.

    Example:
        >>> from sklearn.impute import SimpleImputer
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from sklearn.pipeline import make_pipeline
        >>> X = np.array([[1.0], [2.0], [6.0], [np.nan]])
        >>> mapped = peel_maps(make_pipeline(SimpleImputer(), GaussianNB()), X)
        >>> mapped.map.compute(2).ravel()
        array([1. , 2. , 6. , 1.5])
    """
    steps = getattr(estimator, "steps", [("", estimator)])
    if hasattr(estimator, "steps") and identify(estimator) != "sklearn.Pipeline":
        return None  # another class may train in another way
    before = steps[:-1]
    rotated = turns and bool(before) and is_rotation(before[-1][1])
    if rotated:
        before = before[:-1]
    part = apply_steps(before, X, _MAPPED_KINDS, without=without)
    if part is None or not is_numeric(part.table):
        return None
    if rotated and np.shape(part.table)[1] >= len(part.changed) - 1:
        return None
    found = _find_map(part)
    filling, scattered = group_fillings(part.fills)
    found.unsure |= part.changed | scattered
    if (
        found.rows.size > _MOST_ENTRIES
        or found.basis.size > _MOST_CELLS
        or not np.isfinite(found.basis).all()
    ):
        return None
    probed = np.unique(np.linspace(0, len(found.basis) - 1, _PROBED).astype(np.int64))
    for start in range(0, probed.size, found.block):
        found.weigh(probed[start : start + found.block])
    if found.unsure[probed].mean() > MOST_CHANGED:
        return None
    return Mapped(
        last=steps[-1][1],
        map=found,
        filling=filling,
        steps=name_steps(estimator) if len(steps) > 1 else (),
    )


def _find_map(part: Part) -> Map:
    if isinstance(part.map, Map):
        return part.map
    table = np.asarray(part.table, np.float64)
    return Columns(Filled.complete(table), (), part.changed)


def _put(found: Map | None, part: Part) -> Part | None:
    """Return a part with another map."""
    if found is None or found.rows.size > _MOST_ENTRIES:
        return None
    return replace(part, map=found, table=found.compute(None))


def _impute(step: Any, part: Part) -> Part | None:
    """Fill gaps with a mean or median, which nearly every record changes."""
    if step.strategy not in ("mean", "median") or not part.is_fixed:
        return impute(step, part)
    known = isinstance(step.missing_values, float) and np.isnan(step.missing_values)
    if not known or not is_numeric(part.table, gaps=True):
        return None
    table = np.array(part.table, np.float64)
    gaps = np.isnan(table)
    indicators = gaps[:, gaps.any(axis=0)] if step.add_indicator else gaps[:, :0]
    empty = gaps.all(axis=0)
    if getattr(step, "keep_empty_features", False):
        table[:, empty], gaps[:, empty] = 0.0, False
    else:
        table, gaps = table[:, ~empty], gaps[:, ~empty]
    fills = np.zeros((len(table) + 1, table.shape[1]))
    for column in np.flatnonzero(gaps.any(axis=0)):
        fills[:, column] = FILLS[step.strategy](table[:, column])
        table[gaps[:, column], column] = fills[-1, column]
    alone = np.isnan(fills[:-1]).any(axis=1)  # who alone has a number
    alone |= (indicators & (indicators.sum(axis=0) == 1)).any(axis=1)  # or a gap
    fills = np.where(np.isnan(fills), fills[-1], fills)
    extra = indicators.shape[1]
    filled = Filled(
        table=np.hstack([table, indicators]),
        gaps=np.pad(gaps, ((0, 0), (0, extra))),
        fills=np.pad(fills, ((0, 0), (0, extra))),
    )
    return _put(Columns(filled, (), part.changed | alone), part)


def _scale(step: Any, part: Part) -> Part | None:
    """Scale columns; a second scaler undoes the first."""
    clips = getattr(step, "clip", False) or getattr(step, "unit_variance", False)
    if clips or not is_numeric(part.table):
        return None
    found = _find_map(part)
    if not isinstance(found, Columns):
        if identify(step) != "sklearn.StandardScaler":
            return None
        scaled = _Standard(found, step)
        return _put(scaled if scaled.is_clear else None, part)
    switches = ("with_mean", "with_std", "with_centering", "with_scaling")
    if found.scalers and not all(getattr(step, name, True) for name in switches):
        return None
    every = np.arange(found.filled.table.shape[1])
    return _put(Columns(found.filled, [(every, step)], found.unsure), part)


def _multiply(step: Any, part: Part) -> Part | None:
    """Multiply columns of a map."""
    if part.map is None:
        return transform(step, part)
    powers = clone_estimator(step).fit(part.table[:1]).powers_
    terms = part.map.rows.shape[1] ** int(powers.sum(axis=1).max(initial=1))
    if terms > _MOST_TERMS or len(powers) * terms * 4 > _MOST_ENTRIES:
        return None
    return _put(_Products(part.map, powers), part)


def _project(step: Any, part: Part) -> Part | None:
    """Project on principal components."""
    if not is_numeric(part.table) or step.n_components == "mle":
        return None
    table = np.asarray(part.table, np.float64)
    exact = ("full", "covariance_eigh")
    fitted = [clone_estimator(step).fit(table[start:]) for start in range(2)]
    if len(table) - 2 <= table.shape[1] or any(one._fit_svd_solver not in exact for one in fitted):
        return None
    found = _Components(_find_map(part), step, int(fitted[0].n_components_))
    return _put(found if found.is_clear else None, part)


def _join(step: Any, part: Part) -> Part | None:
    """Apply transformers to their columns, and concatenate the results."""
    parts = apply_transformers(step, part)
    if not parts:
        return None
    joined = join_parts(part, parts)
    if all(each.map is None for each in parts):
        return joined
    maps = [_find_map(each) for each in parts]
    columns = [each for each in maps if isinstance(each, Columns)]
    if len(columns) < len(maps):
        return replace(joined, map=_Joined(maps))
    scalers, start = [], 0
    for each in columns:
        scalers += [(own + start, scaler) for own, scaler in each.scalers]
        start += each.filled.table.shape[1]
    filled = Filled(
        table=np.hstack([each.filled.table for each in columns]),
        gaps=np.hstack([each.filled.gaps for each in columns]),
        fills=np.hstack([each.filled.fills for each in columns]),
    )
    unsure = np.any([each.unsure for each in columns], axis=0)
    return replace(joined, map=Columns(filled, scalers, unsure))


_MAPPED_KINDS: dict[str, Callable[[Any, Part], Part | None]] = {
    **KINDS,
    **dict.fromkeys(SCALERS, _scale),
    "sklearn.SimpleImputer": _impute,
    "sklearn.PolynomialFeatures": _multiply,
    "sklearn.PCA": _project,
    "sklearn.ColumnTransformer": _join,
}
