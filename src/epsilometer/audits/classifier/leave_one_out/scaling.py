"""Leave records out of a pipeline's preprocessing without fitting it again.

A scaler divides each column by a number that changes with every record, in closed form. Encoders
and imputers change with few records: those that alone have a category, or that move a statistic by
which gaps are filled. These few are fitted again, all others are exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from epsilometer.audits.classifier.sklearn_models import (
    clone_estimator,
    count_rows,
    identify,
    is_stateless,
)
from epsilometer.types import BoolArray, FloatArray, IntArray

_MOST_CELLS = 1 << 27  # of a table that is kept without scaling
_MOST_CHANGED = 0.1  # share of records that are fitted again
_CONSTANT = 1e-9  # of a column's spread: below it scikit-learn may take it for constant


@dataclass(frozen=True, eq=False, kw_only=True)
class Peeled:
    """A pipeline's last estimator, and what reaches it but for scaling.

    Attributes:
        last: The estimator.
        features: As they would reach it unscaled, ``(records, columns)``.
        centre: What scaling subtracts, with all records.
        spread: Standard deviation by which it divides, with all records.
        scalers: The columns of each scaler, and the scaler.
        changed: Records without which preprocessing changes in another way.
        rotated: Whether the columns are rotated at the end.
        steps: Names of the steps.
    """

    last: Any
    features: FloatArray
    centre: FloatArray
    spread: FloatArray
    scalers: tuple[tuple[IntArray, Any], ...]
    changed: BoolArray
    rotated: bool
    steps: tuple[str, ...]

    @property
    def scaled(self) -> FloatArray:
        """What reaches the estimator, but for a rotation."""
        return self.scale(self.features)

    def scale(self, queries: FloatArray) -> FloatArray:
        """Scale queries as with all records."""
        return np.asarray((queries - self.centre) / self.spread)

    def spread_without(self, records: IntArray) -> FloatArray:
        """Return by what scaling divides without each of these records, ``(records, columns)``.

        Of a column that is constant without a record it is what it was: these are in ``changed``.
        """
        found = self.measure_spread(records)
        return np.where(found > _CONSTANT * self.spread, found, self.spread)

    def measure_spread(self, records: IntArray) -> FloatArray:
        """Return the same, 0 where a column is constant without a record."""
        found = np.tile(self.spread, (len(records), 1))
        for columns, scaler in self.scalers:
            table = self.features[:, columns]
            found[:, columns] = _SPREADS[identify(scaler)](scaler, table, records)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class _Part:
    """What some steps make of some columns."""

    table: Any
    changed: BoolArray
    scaler: Any = None
    pieces: tuple[tuple[int, Any], ...] = ()  # width and scaler of each, where they were joined
    rotated: bool = False

    @property
    def scalers(self) -> tuple[tuple[int, Any], ...]:
        return self.pieces or ((self.table.shape[1], self.scaler),)

    @property
    def is_scaled(self) -> bool:
        return any(scaler is not None for _, scaler in self.scalers)


def peel_scaling(estimator: Any, X: Any) -> Peeled | None:  # noqa: N803 - as in scikit-learn
    """Return a pipeline's last estimator and what reaches it but for scaling; None: not known here.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> X = np.array([[1.0], [2.0], [6.0]])
        >>> peeled = peel_scaling(make_pipeline(StandardScaler(), GaussianNB()), X)
        >>> peeled.spread_without(np.arange(3)).ravel()
        array([2. , 2.5, 0.5])
    """
    if identify(estimator) != "sklearn.Pipeline" or len(estimator.steps) < 2:
        return None
    if len(getattr(X, "shape", ())) != 2:
        return None  # a list of texts, say
    *before, (_, last) = estimator.steps
    nobody = np.zeros(count_rows(X), bool)
    part: _Part | None = _Part(table=X, changed=nobody)
    for _, step in before:
        part = None if part is None else _apply(step, part)
    if part is None or not _is_numeric(part.table):
        return None
    features = np.asarray(part.table, np.float64)
    centre, spread = np.zeros(features.shape[1]), np.ones(features.shape[1])
    changed, scalers, start = part.changed.copy(), [], 0
    for width, scaler in part.scalers:
        columns = np.arange(start, start + width)
        start += width
        if scaler is None:
            continue
        fitted = clone_estimator(scaler).fit(features[:, columns])
        centre[columns], spread[columns] = _read_scaler(fitted, width)
        scalers.append((columns, scaler))
    peeled = Peeled(
        last=last,
        features=features,
        centre=centre,
        spread=spread,
        scalers=tuple(scalers),
        changed=changed,
        rotated=part.rotated,
        steps=tuple(type(step).__name__ for _, step in before),
    )
    # A column that is constant without a record is not scaled at all: only who holds an end of
    # its range can do that.
    for columns, _ in scalers:
        table = features[:, columns]
        ends = np.unique([table.argmin(axis=0), table.argmax(axis=0)])
        varies = table.std(axis=0) > 0
        small = peeled.measure_spread(ends)[:, columns] <= _CONSTANT * spread[columns]
        changed[ends[(small & varies).any(axis=1)]] = True
    if changed.mean() > _MOST_CHANGED or not np.isfinite(features).all():
        return None
    if any(_has_no_range(peeled, columns) for columns, _ in scalers):
        return None
    return replace(peeled, changed=changed)


def _has_no_range(peeled: Peeled, columns: IntArray) -> bool:
    """Tell whether a column that varies has equal quartiles, which one record may part."""
    table = peeled.features[:, columns]
    quartiles = np.quantile(table, (0.25, 0.75), axis=0)
    narrow = quartiles[1] - quartiles[0] <= _CONSTANT * table.std(axis=0)
    robust = any(
        identify(scaler) == "sklearn.RobustScaler" and np.array_equal(own, columns)
        for own, scaler in peeled.scalers
    )
    return robust and bool((narrow & (table.std(axis=0) > 0)).any())


def _apply(step: Any, part: _Part) -> _Part | None:
    """Return what a step makes of a part; None where leaving records out of it is not known."""
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return part
    kind = identify(step)
    if kind in _KINDS:
        return _KINDS[kind](step, part)
    if kind in _SPREADS:
        return _scale(step, part)
    if part.is_scaled or part.rotated or not is_stateless(step, part.table):
        return None
    return _transform(step, part)


def _transform(step: Any, part: _Part, changed: BoolArray | None = None) -> _Part | None:
    """Apply a step that is the same without most records."""
    if part.is_scaled or part.rotated:
        return None
    table = clone_estimator(step).fit_transform(part.table)
    if np.prod(table.shape) > _MOST_CELLS:
        return None
    table = table.toarray() if hasattr(table, "toarray") else table
    return _Part(table=table, changed=part.changed if changed is None else part.changed | changed)


def _scale(step: Any, part: _Part) -> _Part | None:
    clips = getattr(step, "clip", False) or getattr(step, "unit_variance", False)
    if part.is_scaled or part.rotated or clips or not _is_numeric(part.table):
        return None
    return replace(part, table=np.asarray(part.table, np.float64), scaler=step)


def _run(step: Any, part: _Part) -> _Part | None:
    found: _Part | None = part
    for _, inner in step.steps:
        found = None if found is None else _apply(inner, found)
    return found


def _join(step: Any, part: _Part) -> _Part | None:
    """Treat columns apart, and put them side by side."""
    if part.is_scaled or part.rotated or step.transformer_weights is not None:
        return None
    fitted = clone_estimator(step).fit(part.table)
    parts: list[_Part] = []
    for name, inner, columns in fitted.transformers_:
        if (isinstance(inner, str) and inner == "drop") or np.size(columns) == 0:
            continue
        given = next((each for own, each, _ in step.transformers if own == name), step.remainder)
        table = _take_columns(part.table, columns)
        found = None if table is None else _apply(given, _Part(table=table, changed=part.changed))
        if found is None or found.rotated or not _is_numeric(found.table):
            return None
        parts.append(found)
    if not parts:
        return None
    return _Part(
        table=np.hstack([np.asarray(each.table, np.float64) for each in parts]),
        changed=np.any([each.changed for each in parts], axis=0),
        pieces=tuple(piece for each in parts for piece in each.scalers),
    )


def _encode(step: Any, part: _Part) -> _Part | None:
    """Apply an encoder: who alone has a category changes its list."""
    counted = ("min_frequency", "max_categories")
    if any(getattr(step, name, None) is not None for name in counted):
        return None
    if not isinstance(step.categories, str):
        return _transform(step, part)
    table = part.table
    alone = np.zeros(count_rows(table), bool)
    for column in range(table.shape[1]):
        values = np.asarray(table.iloc[:, column] if hasattr(table, "iloc") else table[:, column])
        given = values.astype(np.str_) if values.dtype.kind == "O" else values
        _, place, counts = np.unique(given, return_inverse=True, return_counts=True)
        alone |= counts[place.reshape(-1)] == 1
    return _transform(step, part, alone)


def _impute(step: Any, part: _Part) -> _Part | None:
    """Fill gaps: who moves the statistic that fills them changes all that are filled."""
    if part.is_scaled or step.add_indicator or not _is_numeric(part.table, gaps=True):
        return None
    table = np.asarray(part.table, np.float64)
    gaps = np.isnan(table)
    if not isinstance(step.missing_values, float) or not np.isnan(step.missing_values):
        return None
    moved = np.zeros(len(table), bool)
    if step.strategy != "constant":
        for column in np.flatnonzero(gaps.any(axis=0)):
            moved |= _find_moved(step.strategy, table[:, column])
    return _transform(step, part, moved)


def _find_moved(strategy: str, column: FloatArray) -> BoolArray:
    """Tell which records change a column's median, mean or commonest value when they leave."""
    there = ~np.isnan(column)
    values = column[there]
    moved = np.ones(column.size, bool)
    moved[~there] = False
    if strategy == "median" and values.size > 2:
        order = np.argsort(values, kind="stable")
        ranks = np.argsort(order, kind="stable")
        without = _quantile_without(values[order], ranks, 0.5)
        moved[there] = without != np.median(values)
    elif strategy == "most_frequent":
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        top, *others = np.sort(counts)[::-1].tolist()
        if not others or top > others[0] + 1:
            moved[:] = False  # one fewer is still the commonest
        else:
            moved[there] = counts[place.reshape(-1)] == top
    return moved


def _rotate(step: Any, part: _Part) -> _Part | None:
    """Keep columns as they are where all components are kept: that is a rotation."""
    whole = step.n_components is None and not step.whiten
    if part.rotated or not whole or not _is_numeric(part.table):
        return None
    table = np.asarray(part.table, np.float64)
    if table.shape[1] >= len(table) - 1:
        return None
    return replace(part, table=table, rotated=True)


def _take_columns(X: Any, columns: Any) -> Any:  # noqa: N803
    if isinstance(columns, (str, int)):
        return None  # one column, as vectorizers of texts take it
    if hasattr(X, "iloc"):
        named = len(columns) and isinstance(columns[0], str)
        return X.loc[:, columns] if named else X.iloc[:, columns]
    return X[:, columns] if hasattr(X, "shape") and not hasattr(X, "tocsr") else None


def _is_numeric(X: Any, *, gaps: bool = False) -> bool:  # noqa: N803
    if hasattr(X, "tocsr"):
        return False
    try:
        table = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return False
    return table.ndim == 2 and (gaps or bool(np.isfinite(table).all()))


def _read_scaler(fitted: Any, width: int) -> tuple[FloatArray, FloatArray]:
    """Return what a fitted scaler subtracts, and by what it divides."""
    if identify(fitted) == "sklearn.MinMaxScaler":
        return np.asarray(-fitted.min_ / fitted.scale_), np.asarray(1 / fitted.scale_)
    centre = getattr(fitted, "mean_", None)
    centre = getattr(fitted, "center_", None) if centre is None else centre
    if getattr(fitted, "with_mean", True) is False:
        centre = None
    spread = fitted.scale_
    return (
        np.zeros(width) if centre is None else np.asarray(centre),
        np.ones(width) if spread is None else np.asarray(spread),
    )


def _standard(scaler: Any, table: FloatArray, records: IntArray) -> FloatArray:
    if not scaler.with_std:
        return np.ones((len(records), table.shape[1]))
    n = len(table)
    deviations = table - table.mean(axis=0)
    squares = (deviations**2).sum(axis=0)
    left = squares - deviations[records] ** 2 * (n / (n - 1))
    lost = left < 0.1 * squares  # a difference of nearly equal numbers is rounding
    for row, column in zip(*np.nonzero(lost), strict=True):
        others = np.delete(table[:, column], records[row])
        left[row, column] = np.square(others - others.mean()).sum()
    spread = np.sqrt(np.maximum(left, 0.0) / (n - 1))
    return np.where(squares > 0, spread, 1.0)


def _min_max(scaler: Any, table: FloatArray, records: IntArray) -> FloatArray:
    low, high = scaler.feature_range
    order = np.sort(table, axis=0)
    rows = table[records]
    least = np.where(rows == order[0], order[1], order[0])
    most = np.where(rows == order[-1], order[-2], order[-1])
    constant = order[-1] == order[0]
    return np.asarray(np.where(constant, 1.0, most - least) / (high - low))


def _robust(scaler: Any, table: FloatArray, records: IntArray) -> FloatArray:
    if not scaler.with_scaling:
        return np.ones((len(records), table.shape[1]))
    found = np.ones((len(records), table.shape[1]))
    for column in range(table.shape[1]):
        order = np.argsort(table[:, column], kind="stable")
        ranks = np.empty(len(table), np.int64)
        ranks[order] = np.arange(len(table))
        low, high = (
            _quantile_without(table[order, column], ranks[records], share / 100)
            for share in scaler.quantile_range
        )
        if table[order[0], column] < table[order[-1], column]:
            found[:, column] = high - low
    return found


def _quantile_without(order: FloatArray, ranks: IntArray, share: float) -> FloatArray:
    """Return a quantile of sorted values without that of each rank, between neighbours linearly."""
    place = (len(order) - 2) * share
    low = int(np.floor(place))
    high = min(low + 1, len(order) - 2)
    below, above = (order[each + (each >= ranks)] for each in (low, high))
    return np.asarray(below + (place - low) * (above - below))


_SPREADS: dict[str, Callable[[Any, FloatArray, IntArray], FloatArray]] = {
    "sklearn.StandardScaler": _standard,
    "sklearn.MinMaxScaler": _min_max,
    "sklearn.RobustScaler": _robust,
}
_KINDS: dict[str, Callable[[Any, _Part], _Part | None]] = {
    "sklearn.Pipeline": _run,
    "sklearn.ColumnTransformer": _join,
    "sklearn.OneHotEncoder": _encode,
    "sklearn.OrdinalEncoder": _encode,
    "sklearn.SimpleImputer": _impute,
    "sklearn.PCA": _rotate,
}


def describe_steps(peeled: Peeled, refitted: Sequence[int] | IntArray) -> str:
    """Say through what records were left out, and how many were fitted again."""
    some = f"; {len(refitted):,} fitted again" if len(refitted) else ""
    return f" through {', '.join(peeled.steps)}{some}"
