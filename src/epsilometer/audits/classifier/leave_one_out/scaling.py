"""Leave records out of a pipeline's preprocessing without fitting it again.

A scaler divides each column by a number that changes with every record, in closed form. Encoders
change only with records that alone have a category: these few are refitted. Missing values are
imputed by one of a few values, whichever record leaves (a median moves up or down): records are
left out of one model for each value, or refitted if there are many.
"""

from collections.abc import Callable, Mapping, Sequence
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

MOST_CELLS = 1 << 27  # largest number of cells of a table that is kept without scaling
MOST_CHANGED = 0.1  # largest share of records to refit
_MOST_FILLINGS = 32  # largest number of models that differ in imputed values
CONSTANT = 1e-9  # relative spread below which scikit-learn may take a column for constant


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
        return np.where(found > CONSTANT * self.spread, found, self.spread)

    def measure_spread(self, records: IntArray) -> FloatArray:
        """Return what scaling divides by; 0 where a column is constant without a record."""
        found = np.tile(self.spread, (len(records), 1))
        for columns, scaler in self.scalers:
            own = Filled.complete(self.features[:, columns])
            found[:, columns] = SCALERS[identify(scaler)](scaler, own, records)[1]
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Filled:
    """Columns of numbers with gaps, which are filled otherwise without each record.

    Attributes:
        table: The columns, filled as with all records.
        gaps: Where they have gaps.
        fills: What fills them without each record, and last with all: n + 1 rows.
    """

    table: FloatArray
    gaps: BoolArray
    fills: FloatArray

    @classmethod
    def complete(cls, table: FloatArray) -> "Filled":
        """Return columns without gaps."""
        (n, width), nothing = table.shape, np.zeros(1)
        return cls(
            table=table,
            gaps=np.broadcast_to(nothing > 0, (n, width)),
            fills=np.broadcast_to(nothing, (n + 1, width)),
        )

    def move(self, records: IntArray) -> FloatArray:
        """Return by how much what fills gaps differs without each record."""
        return np.asarray(self.fills[records] - self.fills[-1])

    def quantile(self, column: int, records: IntArray, share: float) -> FloatArray:
        """Return a quantile of a column without each record, by linear interpolation."""
        gaps, fills = self.gaps[:, column], self.fills[records, column]
        known = self.table[~gaps, column]
        ranks = np.full(len(gaps), known.size)
        order = np.argsort(known, kind="stable")
        ranks[np.flatnonzero(~gaps)[order]] = np.arange(known.size)
        order, ranks = known[order], ranks[records]
        # Without the record, gaps come after the smaller numbers
        first = np.searchsorted(order, fills)
        first = first - (ranks < first)
        count = gaps.sum() - gaps[records]
        place = (len(gaps) - 2) * share
        low = int(np.floor(place))
        below, above = (
            np.where((t >= first) & (t < first + count), fills, order[u])
            for t in (low, min(low + 1, len(gaps) - 2))
            for u in [_skip(np.where(t < first, t, t - count), ranks, known.size)]
        )
        return np.asarray(below + (place - low) * (above - below))


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """Columns after some steps; values are imputed as without a record, if one is named."""

    table: Any
    changed: BoolArray
    fills: FloatArray  # imputed values without each record, and last with all: n + 1 rows
    kinds: Mapping[str, Callable[[Any, "Part"], "Part | None"]]  # how to apply each kind of step
    without: int | None = None
    scaler: Any = None
    pieces: tuple[tuple[int, Any], ...] = ()  # width and scaler of each part that was joined
    rotated: bool = False
    map: Any = None  # a ``maps.Map``, if values change with records

    @property
    def scalers(self) -> tuple[tuple[int, Any], ...]:
        """Width and scaler of each group of columns."""
        return self.pieces or ((self.table.shape[1], self.scaler),)

    @property
    def is_fixed(self) -> bool:
        """Whether the values are the same whichever record is left out."""
        scaled = any(scaler is not None for _, scaler in self.scalers)
        return not scaled and not self.rotated and self.map is None


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
    part = apply_steps(estimator.steps[:-1], X, KINDS, without=without)
    if part is None or not is_numeric(part.table):
        return None
    features = np.asarray(part.table, np.float64)
    centre, spread = np.zeros(features.shape[1]), np.ones(features.shape[1])
    filling, scattered = group_fillings(part.fills)
    changed, scalers, start = part.changed | scattered, [], 0
    for width, scaler in part.scalers:
        columns = np.arange(start, start + width)
        start += width
        if scaler is None:
            continue
        fitted = clone_estimator(scaler).fit(features[:, columns])
        centre[columns], spread[columns] = read_scaler(fitted, width)
        scalers.append((columns, scaler))
    peeled = Peeled(
        last=estimator.steps[-1][1],
        features=features,
        centre=centre,
        spread=spread,
        scalers=tuple(scalers),
        changed=changed,
        filling=filling,
        rotated=part.rotated,
        steps=name_steps(estimator),
    )
    # A column that is constant without a record is not scaled at all. Only a record at an end of
    # its range can cause that, but any may be the last that keeps quartiles apart.
    for columns, scaler in scalers:
        table = features[:, columns]
        ends = np.unique([table.argmin(axis=0), table.argmax(axis=0)])
        if identify(scaler) == "sklearn.RobustScaler":
            ends = np.arange(len(table))
        varies = table.std(axis=0) > 0
        small = peeled.measure_spread(ends)[:, columns] <= CONSTANT * spread[columns]
        changed[ends[(small & varies).any(axis=1)]] = True
    if changed.mean() > MOST_CHANGED or not np.isfinite(features).all():
        return None
    if any(_has_no_range(peeled, columns) for columns, _ in scalers):
        return None
    return replace(peeled, changed=changed)


def group_fillings(fills: FloatArray) -> tuple[IntArray, BoolArray]:
    """Return the imputation without each record, and which records share theirs with too few."""
    if not fills.shape[1]:
        return np.zeros(len(fills) - 1, np.int64), np.zeros(len(fills) - 1, bool)
    _, found, counts = np.unique(fills, axis=0, return_inverse=True, return_counts=True)
    found = found.reshape(-1)
    order = np.argsort(-counts, kind="stable")
    order = np.r_[found[-1], order[order != found[-1]]]  # the one with all records comes first
    places = np.argsort(order)[found[:-1]]
    return places, places >= _MOST_FILLINGS


def name_steps(pipeline: Any) -> tuple[str, ...]:
    """Return the names of a pipeline's preprocessing."""
    return tuple(type(step).__name__ for _, step in pipeline.steps[:-1])


def apply_steps(
    steps: Sequence[tuple[str, Any]],
    X: Any,  # noqa: N803
    kinds: Mapping[str, Callable[[Any, Part], Part | None]],
    *,
    without: int | None,
) -> Part | None:
    """Apply steps of a pipeline; None if leaving records out of one is not supported."""
    if len(getattr(X, "shape", ())) != 2:
        return None  # for example, a list of texts
    n = count_rows(X)
    part: Part | None = Part(
        table=X,
        changed=np.zeros(n, bool),
        fills=np.zeros((n + 1, 0)),
        kinds=kinds,
        without=without,
    )
    for _, step in steps:
        part = None if part is None else apply_step(step, part)
    return part


def _has_no_range(peeled: Peeled, columns: IntArray) -> bool:
    """Tell whether a varying column has equal quartiles, which one record may separate."""
    table = peeled.features[:, columns]
    quartiles = np.quantile(table, (0.25, 0.75), axis=0)
    narrow = quartiles[1] - quartiles[0] <= CONSTANT * table.std(axis=0)
    robust = any(
        identify(scaler) == "sklearn.RobustScaler" and np.array_equal(own, columns)
        for own, scaler in peeled.scalers
    )
    return robust and bool((narrow & (table.std(axis=0) > 0)).any())


def apply_step(step: Any, part: Part) -> Part | None:
    """Apply a step to a part; None if leaving records out of the step is not supported."""
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return part
    kind = identify(step)
    if kind in part.kinds:
        return part.kinds[kind](step, part)
    if not part.is_fixed or not is_stateless(step, part.table):
        return None
    return transform(step, part)


def transform(step: Any, part: Part, changed: BoolArray | None = None) -> Part | None:
    """Apply a step that most records do not change."""
    if not part.is_fixed:
        return None
    table = clone_estimator(step).fit_transform(part.table)
    return _put(table, part, part.changed if changed is None else part.changed | changed)


def _put(table: Any, part: Part, changed: BoolArray) -> Part | None:
    """Return a part with another table; None if that is too large."""
    if np.prod(table.shape) > MOST_CELLS:
        return None
    table = table.toarray() if hasattr(table, "toarray") else table
    return replace(part, table=table, changed=changed, pieces=())


def _scale(step: Any, part: Part) -> Part | None:
    clips = getattr(step, "clip", False) or getattr(step, "unit_variance", False)
    if not part.is_fixed or clips or not is_numeric(part.table):
        return None
    return replace(part, table=np.asarray(part.table, np.float64), scaler=step, pieces=())


def _run(step: Any, part: Part) -> Part | None:
    found: Part | None = part
    for _, inner in step.steps:
        found = None if found is None else apply_step(inner, found)
    return found


def _join(step: Any, part: Part) -> Part | None:
    """Apply transformers to their columns, and concatenate the results."""
    parts = apply_transformers(step, part)
    if not parts or any(each.rotated for each in parts):
        return None
    return replace(join_parts(part, parts), pieces=tuple(p for each in parts for p in each.scalers))


def apply_transformers(step: Any, part: Part) -> list[Part] | None:
    """Return what a ``ColumnTransformer`` makes of each group of columns."""
    if not part.is_fixed or step.transformer_weights is not None:
        return None
    fitted = clone_estimator(step).fit(part.table)
    parts: list[Part] = []
    for name, inner, columns in fitted.transformers_:
        if (isinstance(inner, str) and inner == "drop") or np.size(columns) == 0:
            continue
        given = next((each for own, each, _ in step.transformers if own == name), step.remainder)
        table = _take_columns(part.table, columns)
        found = None if table is None else apply_step(given, replace(part, table=table, pieces=()))
        if found is None or not is_numeric(found.table):
            return None
        parts.append(found)
    return parts


def join_parts(part: Part, parts: Sequence[Part]) -> Part:
    """Return a part with the columns of others."""
    return replace(
        part,
        table=np.hstack([np.asarray(each.table, np.float64) for each in parts]),
        changed=np.any([each.changed for each in parts], axis=0),
        fills=np.hstack([each.fills for each in parts]),
    )


def _encode(step: Any, part: Part) -> Part | None:
    """Apply an encoder, which changes only with records that alone have a category."""
    counted = ("min_frequency", "max_categories")
    if any(getattr(step, name, None) is not None for name in counted):
        return None
    if not isinstance(step.categories, str):
        return transform(step, part)
    table = part.table
    alone = np.zeros(count_rows(table), bool)
    for column in range(table.shape[1]):
        values = np.asarray(table.iloc[:, column] if hasattr(table, "iloc") else table[:, column])
        given = values.astype(np.str_) if values.dtype.kind == "O" else values
        _, place, counts = np.unique(given, return_inverse=True, return_counts=True)
        alone |= counts[place.reshape(-1)] == 1
    return transform(step, part, alone)


def impute(step: Any, part: Part) -> Part | None:
    """Impute missing values as without the named record, or with all."""
    counted = step.strategy in ("most_frequent", "constant")  # which also work on texts
    if not part.is_fixed or step.add_indicator or hasattr(part.table, "tocsr"):
        return None
    if not isinstance(step.missing_values, float) or not np.isnan(step.missing_values):
        return None
    if not counted and (step.strategy not in FILLS or not is_numeric(part.table, gaps=True)):
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
        found = FILLS[step.strategy](numbers)
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
    left = np.arange(values.size)
    rest = Filled.complete(values[:, None]).quantile(0, left, 0.5) if left.size > 1 else np.nan
    found[:-1][there] = rest
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


def _rotate(step: Any, part: Part) -> Part | None:
    """Keep columns as they are where all components are kept: that is a rotation."""
    if part.rotated or not is_rotation(step) or not is_numeric(part.table):
        return None
    table = np.asarray(part.table, np.float64)
    if table.shape[1] >= len(table) - 1:
        return None
    return replace(part, table=table, rotated=True)


def is_rotation(step: Any) -> bool:
    """Tell whether a step keeps all principal components as they are."""
    whole = identify(step) == "sklearn.PCA" and step.n_components is None
    return bool(whole and not step.whiten and step.svd_solver != "arpack")  # which drops one


def _take_columns(X: Any, columns: Any) -> Any:  # noqa: N803
    if isinstance(columns, (str, int)):
        return None  # a single column, as text vectorizers take it
    if hasattr(X, "iloc"):
        named = len(columns) and isinstance(columns[0], str)
        return X.loc[:, columns] if named else X.iloc[:, columns]
    return X[:, columns] if hasattr(X, "shape") and not hasattr(X, "tocsr") else None


def is_numeric(X: Any, *, gaps: bool = False) -> bool:  # noqa: N803
    """Tell whether a table has numbers alone, or gaps too."""
    if hasattr(X, "tocsr"):
        return False
    try:
        table = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return False
    return table.ndim == 2 and (gaps or bool(np.isfinite(table).all()))


def read_scaler(fitted: Any, width: int) -> tuple[FloatArray, FloatArray]:
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


def _standard(scaler: Any, columns: Filled, records: IntArray) -> tuple[FloatArray, FloatArray]:
    table, gaps, n = columns.table, columns.gaps, len(columns.table)
    mean = table.mean(axis=0)
    deviations = table - mean
    squares = (deviations**2).sum(axis=0)
    own, move = deviations[records], columns.move(records)
    filled = gaps.sum(axis=0) - gaps[records]  # gaps of the other records
    total = move * filled - own
    across = (deviations * gaps).sum(axis=0) - own * gaps[records]
    left = squares - own**2 + move * (2 * across + move * filled) - total**2 / (n - 1)
    lost = left < 0.1 * squares  # a difference of nearly equal numbers is rounding
    for row, column in zip(*np.nonzero(lost), strict=True):
        others = table[:, column] + gaps[:, column] * move[row, column]
        others = np.delete(others, records[row])
        left[row, column] = np.square(others - others.mean()).sum()
    spread = np.sqrt(np.maximum(left, 0.0) / (n - 1))
    centre = mean + total / (n - 1)
    return (
        centre if scaler.with_mean else np.zeros_like(centre),
        np.where((squares > 0) & scaler.with_std, spread, 1.0),
    )


def _skip(places: IntArray, ranks: IntArray, size: int) -> IntArray:
    """Return places among sorted values for places among those without a rank."""
    return np.asarray(np.clip(places + (places >= ranks), 0, size - 1), np.int64)


def _min_max(scaler: Any, columns: Filled, records: IntArray) -> tuple[FloatArray, FloatArray]:
    low, high = scaler.feature_range
    gaps, rows = columns.gaps, columns.table[records]  # a gap is never filled beyond the range
    first = np.sort(np.where(gaps, np.inf, columns.table), axis=0)[:2]
    last = np.sort(np.where(gaps, -np.inf, columns.table), axis=0)[-2:]
    known = ~gaps[records]
    least = np.where(known & (rows == first[0]), first[1], first[0])
    most = np.where(known & (rows == last[1]), last[0], last[1])
    spread = np.where(last[1] == first[0], 1.0, most - least) / (high - low)
    return np.asarray(least - low * spread), np.asarray(spread)


def _robust(scaler: Any, columns: Filled, records: IntArray) -> tuple[FloatArray, FloatArray]:
    centre, spread = np.empty((2, len(records), columns.table.shape[1]))
    for column in range(columns.table.shape[1]):
        low, half, high = (
            columns.quantile(column, records, share / 100)
            for share in (scaler.quantile_range[0], 50.0, scaler.quantile_range[1])
        )
        centre[:, column] = half
        spread[:, column] = high - low if np.ptp(columns.table[:, column]) > 0 else 1.0
    return (
        centre if scaler.with_centering else np.zeros_like(centre),
        spread if scaler.with_scaling else np.ones_like(spread),
    )


# What scalers subtract, and what they divide by, without each record
SCALERS: dict[str, Callable[[Any, Filled, IntArray], tuple[FloatArray, FloatArray]]] = {
    "sklearn.StandardScaler": _standard,
    "sklearn.MinMaxScaler": _min_max,
    "sklearn.RobustScaler": _robust,
}
FILLS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "mean": _fill_by_mean,
    "median": _fill_by_median,
    "most_frequent": _fill_by_commonest,
}
KINDS: dict[str, Callable[[Any, Part], Part | None]] = {
    **dict.fromkeys(SCALERS, _scale),
    "sklearn.Pipeline": _run,
    "sklearn.ColumnTransformer": _join,
    "sklearn.OneHotEncoder": _encode,
    "sklearn.OrdinalEncoder": _encode,
    "sklearn.SimpleImputer": impute,
    "sklearn.PCA": _rotate,
}


def describe_steps(steps: Sequence[str], refitted: int) -> str:
    """Describe the steps that records were left out of, and how many were refitted."""
    some = f"; {refitted:,} fitted again" if refitted else ""
    return f" through {', '.join(steps)}{some}" if steps else some
