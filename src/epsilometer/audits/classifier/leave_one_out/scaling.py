"""Leave records out of a pipeline's preprocessing without fitting it again.

A scaler divides each column by a number that changes with every record, in closed form. Encoders
change only with records that alone have a category: these few are refitted. Missing values are
imputed by one of a few values, whichever record leaves (a median moves up or down): records are
left out of one model for each value, or refitted if there are many.
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

_MOST_CELLS = 1 << 27  # largest number of cells of a table that is kept without scaling
_MOST_CHANGED = 0.1  # largest share of records to refit
_MOST_FILLINGS = 32  # largest number of models that differ in imputed values
_CONSTANT = 1e-9  # relative spread below which scikit-learn may take a column for constant


@dataclass(frozen=True, eq=False, kw_only=True)
class Peeled:
    """A pipeline's last estimator, and its features before scaling.

    Attributes:
        last: The estimator.
        features: Features as they would reach it unscaled, ``(records, columns)``.
        centre: What scaling subtracts, with all records.
        spread: What scaling divides by, with all records.
        scalers: The columns of each scaler, and the scaler.
        changed: Records whose removal changes preprocessing in another way.
        filling: Index of the imputation without each record; 0 is that with all records, which
            the features here have.
        rotated: Whether the columns are rotated at the end.
        steps: Names of the steps.
    """

    last: Any
    features: FloatArray
    centre: FloatArray
    spread: FloatArray
    scalers: tuple[tuple[IntArray, Any], ...]
    changed: BoolArray
    filling: IntArray
    rotated: bool
    steps: tuple[str, ...]

    @property
    def scaled(self) -> FloatArray:
        """The features that reach the estimator, except for a rotation."""
        return self.scale(self.features)

    def scale(self, queries: FloatArray) -> FloatArray:
        """Scale queries as with all records."""
        return np.asarray((queries - self.centre) / self.spread)

    def spread_without(self, records: IntArray) -> FloatArray:
        """Return what scaling divides by without each of these records, ``(records, columns)``.

        A column that is constant without a record keeps its value: these are in ``changed``.
        """
        found = self.measure_spread(records)
        return np.where(found > _CONSTANT * self.spread, found, self.spread)

    def measure_spread(self, records: IntArray) -> FloatArray:
        """Return what scaling divides by; 0 where a column is constant without a record."""
        found = np.tile(self.spread, (len(records), 1))
        for columns, scaler in self.scalers:
            table = self.features[:, columns]
            found[:, columns] = _SPREADS[identify(scaler)](scaler, table, records)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class _Part:
    """Columns after some steps; values are imputed as without a record, if one is named."""

    table: Any
    changed: BoolArray
    fills: FloatArray  # imputed values without each record, and last with all: n + 1 rows
    without: int | None = None
    scaler: Any = None
    pieces: tuple[tuple[int, Any], ...] = ()  # width and scaler of each part that was joined
    rotated: bool = False

    @property
    def scalers(self) -> tuple[tuple[int, Any], ...]:
        return self.pieces or ((self.table.shape[1], self.scaler),)

    @property
    def is_scaled(self) -> bool:
        return any(scaler is not None for _, scaler in self.scalers)


def peel_scaling(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    *,
    without: int | None = None,
) -> Peeled | None:
    """Return a pipeline's last estimator and its unscaled features; None: not supported.

    If a record is named, missing values are imputed as they are without it.

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
        return None  # for example, a list of texts
    *before, (_, last) = estimator.steps
    n = count_rows(X)
    part: _Part | None = _Part(
        table=X, changed=np.zeros(n, bool), fills=np.zeros((n + 1, 0)), without=without
    )
    for _, step in before:
        part = None if part is None else _apply(step, part)
    if part is None or not _is_numeric(part.table):
        return None
    features = np.asarray(part.table, np.float64)
    centre, spread = np.zeros(features.shape[1]), np.ones(features.shape[1])
    filling, scattered = _group_fillings(part.fills)
    changed, scalers, start = part.changed | scattered, [], 0
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
        filling=filling,
        rotated=part.rotated,
        steps=tuple(type(step).__name__ for _, step in before),
    )
    # A column that is constant without a record is not scaled at all. Only a record at an end of
    # its range can cause that.
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


def _group_fillings(fills: FloatArray) -> tuple[IntArray, BoolArray]:
    """Return the imputation without each record, and which records share theirs with too few."""
    if not fills.shape[1]:
        return np.zeros(len(fills) - 1, np.int64), np.zeros(len(fills) - 1, bool)
    _, found, counts = np.unique(fills, axis=0, return_inverse=True, return_counts=True)
    found = found.reshape(-1)
    order = np.argsort(-counts, kind="stable")
    order = np.r_[found[-1], order[order != found[-1]]]  # the one with all records comes first
    places = np.argsort(order)[found[:-1]]
    return places, places >= _MOST_FILLINGS


def _has_no_range(peeled: Peeled, columns: IntArray) -> bool:
    """Tell whether a varying column has equal quartiles, which one record may separate."""
    table = peeled.features[:, columns]
    quartiles = np.quantile(table, (0.25, 0.75), axis=0)
    narrow = quartiles[1] - quartiles[0] <= _CONSTANT * table.std(axis=0)
    robust = any(
        identify(scaler) == "sklearn.RobustScaler" and np.array_equal(own, columns)
        for own, scaler in peeled.scalers
    )
    return robust and bool((narrow & (table.std(axis=0) > 0)).any())


def _apply(step: Any, part: _Part) -> _Part | None:
    """Apply a step to a part; None if leaving records out of the step is not supported."""
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
    """Apply a step that most records do not change."""
    if part.is_scaled or part.rotated:
        return None
    table = clone_estimator(step).fit_transform(part.table)
    return _put(table, part, part.changed if changed is None else part.changed | changed)


def _put(table: Any, part: _Part, changed: BoolArray) -> _Part | None:
    """Return a part with another table; None if that is too large."""
    if np.prod(table.shape) > _MOST_CELLS:
        return None
    table = table.toarray() if hasattr(table, "toarray") else table
    return replace(part, table=table, changed=changed, pieces=())


def _scale(step: Any, part: _Part) -> _Part | None:
    clips = getattr(step, "clip", False) or getattr(step, "unit_variance", False)
    if part.is_scaled or part.rotated or clips or not _is_numeric(part.table):
        return None
    return replace(part, table=np.asarray(part.table, np.float64), scaler=step, pieces=())


def _run(step: Any, part: _Part) -> _Part | None:
    found: _Part | None = part
    for _, inner in step.steps:
        found = None if found is None else _apply(inner, found)
    return found


def _join(step: Any, part: _Part) -> _Part | None:
    """Apply transformers to their columns, and concatenate the results."""
    if part.is_scaled or part.rotated or step.transformer_weights is not None:
        return None
    fitted = clone_estimator(step).fit(part.table)
    parts: list[_Part] = []
    for name, inner, columns in fitted.transformers_:
        if (isinstance(inner, str) and inner == "drop") or np.size(columns) == 0:
            continue
        given = next((each for own, each, _ in step.transformers if own == name), step.remainder)
        table = _take_columns(part.table, columns)
        found = None if table is None else _apply(given, replace(part, table=table, pieces=()))
        if found is None or found.rotated or not _is_numeric(found.table):
            return None
        parts.append(found)
    if not parts:
        return None
    return replace(
        part,
        table=np.hstack([np.asarray(each.table, np.float64) for each in parts]),
        changed=np.any([each.changed for each in parts], axis=0),
        fills=np.hstack([each.fills for each in parts]),
        pieces=tuple(piece for each in parts for piece in each.scalers),
    )


def _encode(step: Any, part: _Part) -> _Part | None:
    """Apply an encoder, which changes only with records that alone have a category."""
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
    """Impute missing values as without the named record, or with all."""
    counted = step.strategy in ("most_frequent", "constant")  # which also work on texts
    if part.is_scaled or part.rotated or step.add_indicator or hasattr(part.table, "tocsr"):
        return None
    if not isinstance(step.missing_values, float) or not np.isnan(step.missing_values):
        return None
    if not counted and (step.strategy not in _FILLS or not _is_numeric(part.table, gaps=True)):
        return None
    imputer, fills = clone_estimator(step).fit(part.table), [part.fills]
    table = np.asarray(part.table, None if counted else np.float64)
    for place in range(0 if step.strategy == "constant" else table.shape[1]):
        column = table[:, place]
        try:
            gaps = np.not_equal(column, column).astype(bool)  # nan is not equal to itself
            values, codes = np.unique(column[~gaps], return_inverse=True)
        except TypeError:  # values without an order
            return None
        if not gaps.any() or gaps.all():
            continue
        numbers = np.full(column.size, np.nan)
        numbers[~gaps] = codes if counted else column[~gaps]
        found = _FILLS[step.strategy](numbers)
        fills.append(found[:, None])
        if part.without is not None and not np.isnan(found[part.without]):
            fill = found[part.without]
            imputer.statistics_[place] = values[int(fill)] if counted else fill
    put = _put(imputer.transform(part.table), part, part.changed)
    return None if put is None else replace(put, fills=np.hstack(fills))


def _fill_by_mean(column: FloatArray) -> FloatArray:
    """Return the mean without each value, and last that of all; missing values change nothing."""
    there = ~np.isnan(column)
    values = np.sort(column[there])
    found = np.full(column.size + 1, values.mean())
    before, after = np.cumsum(values), np.cumsum(values[::-1])[::-1]  # a difference would round
    ranks = np.searchsorted(values, column[there])  # equal for equal values
    others = np.r_[0.0, before][ranks] + np.r_[after, 0.0][ranks + 1]
    found[:-1][there] = others / (values.size - 1) if values.size > 1 else np.nan
    return found


def _fill_by_median(column: FloatArray) -> FloatArray:
    """Return the median without each value, and last that of all."""
    there = ~np.isnan(column)
    values = column[there]
    found = np.full(column.size + 1, np.median(values))
    order = np.argsort(values, kind="stable")
    ranks = np.argsort(order)
    found[:-1][there] = _quantile_without(values[order], ranks, 0.5) if values.size > 1 else np.nan
    return found


def _fill_by_commonest(column: FloatArray) -> FloatArray:
    """Return the most frequent value without each, and last that of all; ties: the smallest."""
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    top = int(counts.argmax())
    found = np.full(column.size + 1, values[top])
    counts[top] -= 1
    rest = values[counts.argmax()] if counts.any() else np.nan
    found[:-1][column == values[top]] = rest
    return found


def _rotate(step: Any, part: _Part) -> _Part | None:
    """Keep columns as they are where all components are kept: that is a rotation."""
    # arpack drops one component
    whole = step.n_components is None and not step.whiten and step.svd_solver != "arpack"
    if part.rotated or not whole or not _is_numeric(part.table):
        return None
    table = np.asarray(part.table, np.float64)
    if table.shape[1] >= len(table) - 1:
        return None
    return replace(part, table=table, rotated=True)


def _take_columns(X: Any, columns: Any) -> Any:  # noqa: N803
    if isinstance(columns, (str, int)):
        return None  # a single column, as text vectorizers take it
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
    """Return what a fitted scaler subtracts, and what it divides by."""
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
    """Return a quantile of sorted values without each rank, by linear interpolation."""
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
_FILLS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "mean": _fill_by_mean,
    "median": _fill_by_median,
    "most_frequent": _fill_by_commonest,
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
    """Describe the steps that records were left out of, and how many were refitted."""
    some = f"; {len(refitted):,} fitted again" if len(refitted) else ""
    return f" through {', '.join(peeled.steps)}{some}"
