"""Follow training records through a fitted model, and recognise their rows and values elsewhere.

Estimators inside pipelines, ensembles and searches may have stored the features that reached them,
so each transformed table is searched for, not only the input.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial import cKDTree

from epsilometer.audits.classifier.model_state import walk_objects
from epsilometer.types import BoolArray, FloatArray, IntArray

PREDICTIONS = "predictions of training records"
_PROJECTIONS = 4  # rows that agree in this many random directions are equal
_NEAR = 1e-4  # standard deviations by which equal rows may differ: single precision is enough
_ROUNDED = 0.03  # standard deviations by which rounded rows may differ
_DECOYS = 10  # tables of people who do not exist, for each table to search for
_WHOLE = 0.5  # share of a table's rows from which matches are beyond chance
_MOST = 48  # largest number of tables to follow
_RUN = 8  # records from which columns are compared by their correlation
_CHAIN = 4  # consecutive midpoints between neighbouring values that determine these values
_VARIED = 0.8  # share of distinct values from which a column is a measurement
_APART = 4  # ranks between neighbours in a list of quantiles
_DIGITS = 6  # digits beyond which two people do not share a value by chance


class Reached(NamedTuple):
    """An estimator inside a model, and the features that reach it."""

    estimator: Any
    features: Any


class Route(NamedTuple):
    """The path of training records through a model.

    Attributes:
        tables: Name and rows of each table, the input first.
        reached: Estimators inside the model, and their features.
        lost: Names of estimators whose features could not be followed.
        linear: Those of them that have coefficients.
    """

    tables: list[tuple[str, Any]]
    reached: list[Reached]
    lost: list[str]
    linear: list[str]


def follow_records(model: Any, X: Any) -> Route:  # noqa: N803 - as in scikit-learn
    """Return each table that records become on their way through a fitted model.

    Example:
        >>> from sklearn.decomposition import PCA
        >>> from sklearn.naive_bayes import GaussianNB
        >>> from sklearn.pipeline import make_pipeline
        >>> X, y = np.random.default_rng(0).normal(size=(9, 3)), np.arange(9) % 2
        >>> route = follow_records(make_pipeline(PCA(2), GaussianNB()).fit(X, y), X)
        >>> [(name, table.shape) for name, table in route.tables]
        [('training rows', (9, 3)), ('transformed training rows', (9, 2))]
        >>> [type(each.estimator).__name__ for each in route.reached]
        ['PCA', 'GaussianNB']
    """
    walk = _Walk()
    walk.keep("training rows", X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about feature names, which arrays lack
        walk.enter(model, X)
    met = {id(each.estimator) for each in walk.reached} | walk.composed
    lost = [
        value
        for where, value in walk_objects(model)
        if _is_fitted(value) and id(value) not in met and "._" not in where
    ]
    names, linear = (
        sorted({type(each).__name__ for each in some})
        for some in (lost, [each for each in lost if hasattr(each, "coef_")])
    )
    return Route(walk.tables, walk.reached, names, linear)


def _is_fitted(value: Any) -> bool:
    """Tell whether an object is a fitted estimator, by scikit-learn's conventions."""
    if isinstance(value, type) or not hasattr(value, "fit"):
        return False
    return any(name.endswith("_") and name[:1] != "_" for name in getattr(value, "__dict__", {}))


class _Walk:
    """Apply the parts of a model one after the other, as the model does."""

    def __init__(self) -> None:
        self.tables: list[tuple[str, Any]] = []
        self.reached: list[Reached] = []
        self.composed: set[int] = set()
        self._seen: set[tuple[int, int]] = set()
        self._held: list[Any] = []

    def keep(self, name: str, features: Any) -> None:
        """Store a table of numbers unless it is there already."""
        table = read_table(features)
        if table is None or len(self.tables) >= _MOST:
            return
        if not any(_are_equal(table, other) for _, other in self.tables):
            self.tables.append((name, table))

    def enter(self, part: Any, features: Any) -> None:
        """Follow records through a part, and through its own parts."""
        key = (id(part), id(features))
        if key in self._seen or len(self._seen) > 20 * _MOST:
            return None
        self._seen.add(key)
        self._held.append(features)  # kept alive, so that its id stays unique
        steps = getattr(part, "steps", None)
        if isinstance(steps, list):
            self.composed.add(id(part))
            for _, step in steps[:-1]:
                features = self._pass_through(step, features)
            return self.enter(steps[-1][1], features) if steps else None
        if isinstance(getattr(part, "transformers_", None), list):
            self.composed.add(id(part))
            return self._enter_columns(part, features)
        if _is_fitted(part):
            self.reached.append(Reached(part, features))
        self._enter_children(part, features)
        return None

    def _pass_through(self, step: Any, features: Any) -> Any:
        if step is None or isinstance(step, str):
            return features
        self.enter(step, features)
        after = _apply(step, features)
        if after is None:
            return features
        self.keep("transformed training rows", after)
        return after

    def _enter_columns(self, part: Any, features: Any) -> None:
        for _, step, columns in part.transformers_:
            chosen = select_columns(features, columns)
            if chosen is not None:
                self.keep("training rows", chosen)
                self._pass_through(step, chosen)

    def _enter_children(self, part: Any, features: Any) -> None:
        """Follow records into the estimators that a part holds, in sequence where they fit."""
        forms = [features]
        own = getattr(part, "estimators_features_", None) or ()
        columns = dict(zip(map(id, getattr(part, "estimators_", ())), own, strict=False))
        for child in _list_children(part):
            chosen = columns.get(id(child))
            some = None if chosen is None else select_columns(features, chosen)
            if some is not None:
                self.keep("training rows", some)
                self.enter(child, some)
                continue
            fitting = [each for each in forms[:4] if _fits(child, each)]
            if not fitting and (after := _apply(part, features)) is not None:
                fitting = [after] if _fits(child, after) else []  # such as a selection of columns
            for form in fitting:
                self.enter(child, form)
                if hasattr(child, "transform") and (after := _apply(child, form)) is not None:
                    self.keep("transformed training rows", after)
                    forms.append(after)
        if hasattr(part, "calibrators"):  # they are fitted to the classifier's predictions
            self.keep(PREDICTIONS, _predict(part.estimator, features))
        if hasattr(part, "final_estimator_"):
            self.enter(part.final_estimator_, _apply(part, features))


def _list_children(part: Any) -> list[Any]:
    """Return fitted estimators that an object holds itself, or in its lists and dictionaries."""
    found: list[Any] = []
    waiting: list[Any] = [*getattr(part, "__dict__", {}).values()]
    for value in waiting:
        if isinstance(value, (list, tuple)) and len(value) < 10_000:
            waiting += value
        elif isinstance(value, dict) and len(value) < 10_000:
            waiting += value.values()
        elif isinstance(value, np.ndarray) and value.dtype == object and value.size < 10_000:
            waiting += value.ravel().tolist()
        elif not isinstance(value, type) and (
            hasattr(value, "fit") or hasattr(value, "calibrators")
        ):
            found += [] if any(value is other for other in found) else [value]
    return found


def _fits(part: Any, features: Any) -> bool:
    width = getattr(part, "n_features_in_", None)
    shape: tuple[int, ...] = getattr(features, "shape", ())
    return width is None or (len(shape) == 2 and shape[1] == width)


def _apply(step: Any, features: Any) -> Any:
    try:
        return step.transform(features)
    except Exception:  # it refuses these features, so they do not reach it
        return None


def _predict(estimator: Any, features: Any) -> Any:
    for name in ("decision_function", "predict_proba"):
        try:
            said = np.asarray(getattr(estimator, name)(features), np.float64)
            return said.reshape(len(said), -1)
        except Exception:  # another kind of estimator, or other features
            continue
    return None


def select_columns(features: Any, columns: Any) -> Any:
    """Return columns of a table, by name, number, slice or mask; None if it lacks them."""
    try:
        if callable(columns):
            columns = columns(features)
        if hasattr(features, "iloc"):
            names = [columns] if isinstance(columns, (str, int)) else columns
            by_name = isinstance(columns, str) or (
                not isinstance(columns, slice) and all(isinstance(each, str) for each in names)
            )
            return features[columns] if by_name else features.iloc[:, columns]
        chosen = features[:, columns]
        return chosen if getattr(chosen, "shape", (0, 0))[-1] else None
    except Exception:  # the columns are those of another table
        return None


def read_table(X: Any) -> Any:  # noqa: N803
    """Return a matrix of numbers, sparse or dense; None if there are no numeric columns."""
    if X is None:
        return None
    if hasattr(X, "tocsr"):
        return X.tocsr().astype(np.float64)
    if hasattr(X, "select_dtypes"):
        X = X.select_dtypes("number")  # noqa: N806
    try:
        table = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return _read_mixed(X)
    return table if table.ndim == 2 and table.shape[1] else None


def _read_mixed(X: Any) -> Any:  # noqa: N803
    """Return the numeric columns of an array of objects."""
    table = np.asarray(X, object)
    if table.ndim != 2:
        return None
    columns = []
    for column in table.T:
        try:
            columns.append(column.astype(np.float64))
        except (TypeError, ValueError):
            continue
    return np.column_stack(columns) if columns else None


def _are_equal(one: Any, other: Any) -> bool:
    if one.shape != other.shape or hasattr(one, "tocsr") != hasattr(other, "tocsr"):
        return False
    if hasattr(one, "tocsr"):
        return abs(one - other).max() == 0 if one.nnz == other.nnz else False
    return np.array_equal(one, other, equal_nan=True)


class Table:
    """Rows to search for, identified by their projections on a few random directions.

    Attributes:
        name: What its rows are, in words.
        values: The rows, shape ``(n, columns)``, dense or sparse.
    """

    def __init__(self, name: str, values: Any, seed: int) -> None:
        self.name, self.values = name, values
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(5,)))
        self._directions = self._rng.normal(size=(values.shape[1], _PROJECTIONS))
        self.sparse = hasattr(values, "tocsr")
        if self.sparse:
            spread = np.sqrt(np.asarray(values.multiply(values).mean(axis=0)).ravel())
            self._centre = np.zeros(values.shape[1])
        else:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about empty columns
                self._centre = np.nan_to_num(np.nanmean(_finite(values), axis=0))
                spread = np.nanstd(_finite(values), axis=0)
        self._spread = np.where(np.nan_to_num(spread) > 0, np.nan_to_num(spread), 1.0)
        self._at = self.project(values)
        self._decoys: list[FloatArray] = []

    def project(self, values: Any) -> FloatArray:
        """Return the projections of rows, in standard deviations."""
        if hasattr(values, "tocsr"):
            found: Any = values.multiply(1 / self._spread) @ self._directions
            return np.asarray(found) - (self._centre / self._spread) @ self._directions
        scaled = (_finite(np.asarray(values, np.float64)) - self._centre) / self._spread
        # A missing value is a value like any other: two are equal.
        return np.nan_to_num(np.clip(scaled, -1e9, 1e9), nan=7.77) @ self._directions

    def find_rows(self, values: Any) -> BoolArray:
        """Return which rows are among these; none if decoys match as often."""
        at = self.project(values)
        tree = cKDTree(at)
        found = _find_near(tree, self._at)
        if 2 * found.sum() < len(at) and (rounded := self._find_rounded(at, tree)).any():
            return rounded
        if not found.any():
            return found
        strangers = max((_find_near(tree, each).sum() for each in self._draw_decoys()), default=0)
        chance = strangers and (found.sum() < _WHOLE * len(self._at) or found.sum() <= strangers)
        thin = self.sparse and self.values.nnz < 3 * len(self._at)
        none = bool(chance) or (thin and not found.all())
        return np.zeros_like(found) if none else found

    def _find_rounded(self, at: FloatArray, tree: Any) -> BoolArray:
        """Return rows with near matches; none if decoys have them too."""
        nothing = np.zeros(len(self._at), bool)
        if self.sparse or len(at) < _RUN:
            return nothing
        own = cKDTree(self._at)
        near = np.asarray(own.query(at, distance_upper_bound=_ROUNDED)[0]) <= _ROUNDED
        if np.mean(near) < 0.9:
            return nothing
        found = tree.query(self._at, distance_upper_bound=_ROUNDED)[0] <= _ROUNDED
        for decoy in self._draw_decoys():
            if np.sum(tree.query(decoy, distance_upper_bound=_ROUNDED)[0] <= _ROUNDED) > (
                found.sum() / 10
            ):
                return nothing
        return np.asarray(found)

    def _draw_decoys(self) -> list[FloatArray]:
        """Return rows of people who do not exist: each column is shuffled independently."""
        if not self._decoys and not self.sparse:
            self._decoys = [
                self.project(self._rng.permuted(self.values, axis=0)) for _ in range(_DECOYS)
            ]
        return self._decoys

    def select_columns(self, values: FloatArray) -> "IntArray | None":
        """Return the table's columns that match those of an array; None if fewer than two do."""
        if self.sparse or values.shape[1] * self.values.shape[1] > 1 << 16:
            return None
        chosen = np.full(values.shape[1], -1)
        for place, column in enumerate(values.T):
            given = column[~np.isnan(column)]
            for own in range(self.values.shape[1]):
                if own in chosen or not np.isin(given[:_RUN], self.values[:, own]).all():
                    continue
                if given.size and np.isin(given, self.values[:, own]).all():
                    chosen[place] = own
                    break
        return chosen if (chosen >= 0).sum() > 1 else None

    def match_scaled(self, values: FloatArray) -> bool:
        """Tell whether each column is one of the table's in another unit, in the same order."""
        if self.sparse or len(values) != len(self.values):
            return False
        if values.shape[1] * self.values.shape[1] > 1 << 20 or len(values) < _RUN:
            return False
        own, other = standardise(self.values), standardise(values)
        varies = np.abs(other).max(axis=0) > 0
        alike = np.abs(other.T @ own / len(own)).max(axis=1, initial=0.0)
        return bool(varies.sum() > 1 and (alike[varies] > 1 - 1e-9).all())


def _finite(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values), values, np.nan)


def standardise(values: FloatArray) -> FloatArray:
    """Return columns with mean 0 and variance 1; constant columns become 0."""
    filled = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    centred = filled - filled.mean(axis=0)
    spread = centred.std(axis=0)
    return np.asarray(np.where(spread > 0, centred, 0.0) / np.where(spread > 0, spread, 1.0))


def scale_range(values: FloatArray) -> FloatArray:
    """Return columns scaled to the range from 0 to 1."""
    filled = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    low, high = filled.min(axis=0), filled.max(axis=0)
    return np.asarray((filled - low) / np.where(high > low, high - low, 1.0))


def _find_near(tree: Any, at: FloatArray) -> BoolArray:
    away, _ = tree.query(at, distance_upper_bound=_NEAR * 10)
    return np.asarray(away <= _NEAR * (1 + np.abs(at).max(axis=1) * 1e-3))


def are_near(table: Table, matrix: Any, rows: FloatArray) -> bool:
    """Tell whether any of these rows is in a matrix."""
    return bool(_find_near(cKDTree(table.project(matrix)), table.project(rows)).any())


def list_statistics(table: Table, matrix: Any, means: FloatArray) -> list[tuple[int, str]]:
    """Return the statistics that a matrix holds: number of people concerned, and a sentence."""
    found = []
    if are_near(table, matrix, means):
        said = "holds means of records: anyone who knows all but one can compute that one."
        found.append((table.values.shape[0], said))
    if table.sparse or hasattr(matrix, "tocsr") or not np.isfinite(table.values).all():
        return found
    for ends in (table.values.min(axis=0), table.values.max(axis=0)):
        alone = int(np.sum((table.values == ends).sum(axis=0) == 1))  # columns with a single holder
        if alone and np.isclose(matrix, ends, rtol=1e-6, atol=0).all(axis=1).any():
            said = "holds the smallest or largest value of columns: {} are of one person each."
            found.append((alone, said))
    return found


class OwnValues:
    """Values of measurements that belong to one record alone, and not by chance to others."""

    def __init__(self, table: FloatArray) -> None:
        values, records, columns, ranks = [], [], [], []
        self._middles: list[tuple[FloatArray, IntArray]] = []
        for place, column in enumerate(table.T):
            given = np.flatnonzero(np.isfinite(column))
            order = given[np.argsort(column[given], kind="stable")]
            every, first, counts = np.unique(column[order], return_index=True, return_counts=True)
            if every.size < max(_VARIED * given.size, _RUN):
                continue
            own = (counts == 1) & _has_digits(every)
            middles = (every[1:] + every[:-1]) / 2
            self._middles.append((_round_last(middles), np.where(own, order[first], -1)))
            values.append(every[own])
            records.append(order[first[own]])
            ranks.append(first[own])
            columns.append(np.full(int(own.sum()), place))
        self._values = np.concatenate(values) if values else np.zeros(0)
        if not values:
            return
        sort = np.argsort(self._values, kind="stable")
        self._values = self._values[sort]
        self._records, self._columns, self._ranks = (
            np.concatenate(each)[sort] for each in (records, columns, ranks)
        )

    def find_records(self, numbers: FloatArray) -> IntArray:
        """Return the records whose values are among these numbers; none for quantiles."""
        nobody = np.zeros(0, np.int64)
        given = np.unique(numbers[np.isfinite(numbers)])
        if not self._values.size or given.size < _RUN:
            return nobody
        with np.errstate(over="ignore"):
            single = np.array_equal(given, given.astype(np.float32))
        held = self._values.astype(np.float32) if single else _round_last(self._values)
        hit = np.isin(held, given if single else _round_last(given))
        if single and hit.any():  # few digits match by chance: compare with values 0.1 % off
            others = np.isin((self._values * (1 + 1e-3)).astype(np.float32), given)
            if hit.sum() <= 4 * others.sum() + _RUN:
                return nobody
        found = [nobody]
        for column in np.unique(self._columns[hit]):
            at = hit & (self._columns == column)
            most = 2 * at.sum() > np.sum(self._columns == column)
            if at.sum() >= _RUN and (most or not _are_quantiles(np.sort(self._ranks[at]))):
                found.append(self._records[at])
        return np.unique(np.concatenate(found))

    def find_between(self, numbers: FloatArray) -> IntArray:
        """Return the records whose values follow from midpoints between neighbouring values.

        Each midpoint constrains all other values, so that a few determine them to many digits.
        """
        given = _round_last(np.unique(numbers[np.isfinite(numbers)]))
        found = [np.zeros(0, np.int64)]
        for middles, records in self._middles if given.size >= _RUN else ():
            ends = np.flatnonzero(np.diff(np.r_[False, np.isin(middles, given), False]))
            for start, stop in ends.reshape(-1, 2).tolist():
                if stop - start >= _CHAIN:
                    found.append(records[start : stop + 1])
        every = np.unique(np.concatenate(found))
        return every[every >= 0]


def _has_digits(values: FloatArray) -> BoolArray:
    """Tell which values have more than six digits."""
    with np.errstate(divide="ignore"):
        power = np.floor(np.log10(np.abs(values)))
    scale = 10.0 ** np.clip(_DIGITS - 1 - np.nan_to_num(power, neginf=0.0), -300, 300)
    return np.asarray(np.abs(values - np.round(values * scale) / scale) > 1e-10 * np.abs(values))


def _round_last(values: FloatArray) -> FloatArray:
    """Return values without the last digits, which depend on the order of sums."""
    mantissa, power = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**40), power - 40))


def _are_quantiles(ranks: IntArray) -> bool:
    """Tell whether values are separated in rank, like deciles: evenly, or none near another.

    Some quantiles lie between two records and match neither, so gaps need not be even.
    """
    gaps = np.diff(ranks)
    return bool(gaps.max() - gaps.min() <= 1 or gaps.min() >= _APART)


def find_once(table: FloatArray) -> list[tuple[FloatArray, FloatArray, IntArray]]:
    """Return per column the values of one record alone, all values, and the records."""
    found = []
    for column in table.T:
        # In single precision: interpolated quantiles may differ in the last digit.
        given = np.flatnonzero(np.isfinite(column))
        every, first, counts = np.unique(
            column[given].astype(np.float32), return_index=True, return_counts=True
        )
        if (counts == 1).any():
            found.append((every[counts == 1], every, given[first[counts == 1]]))
    return found


def list_means(values: Any, codes: IntArray, *, pairs: bool = False) -> FloatArray:
    """Return the means of all records, and of each class that has several.

    Args:
        values: Rows of a table.
        codes: Class of each row.
        pairs: Return only means of classes of two records, where each person can compute the other.
    """
    everybody = [] if pairs else [np.ones(codes.size, bool)]
    groups = [*everybody, *(codes == code for code in np.unique(codes))]
    sizes = range(2, 3) if pairs else range(2, codes.size + 1)
    means = [
        np.asarray(values[group].mean(axis=0)).ravel() for group in groups if group.sum() in sizes
    ]
    return np.stack(means) if means else np.zeros((0, values.shape[1]))
