"""Predict at each record with it and without it: exactly if supported, else by refits."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.chosen import choose_records
from epsilometer.audits.classifier.leave_one_out.linear import RidgeFit
from epsilometer.audits.classifier.leave_one_out.mapped import MappedRidge
from epsilometer.audits.classifier.leave_one_out.maps import peel_maps
from epsilometer.audits.classifier.leave_one_out.nearest_neighbours import (
    NearestSearch,
    is_euclidean,
    weigh_by_distance,
)
from epsilometer.audits.classifier.leave_one_out.refits import PATIENCE, Fits, LeaveOneOut, refit
from epsilometer.audits.classifier.leave_one_out.scaling import describe_steps
from epsilometer.audits.classifier.regression.targets import FitRegressor, Targets
from epsilometer.audits.classifier.sklearn_models import (
    Preprocessing,
    clone_estimator,
    identify,
    unwrap_pipeline,
)
from epsilometer.engine.engines import Engine
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

_REFITTED = 2000  # records up to which all are refitted by default
_DRAWN = 500  # largest number of records to draw from more than that
_FEWEST = 40  # smallest number of records to draw
_ROWS = 2_000_000  # total rows of all models that are fitted without a record
_SHORT = 5.0  # seconds of a fit that may be timed twice


@dataclass(frozen=True, eq=False, kw_only=True)
class Left:
    """Predictions at records with them and without them, shape ``(records, outputs)``.

    Attributes:
        records: Row numbers of the records that were left out.
        full: Predictions of the model trained on all records.
        without: Predictions of the model trained without the record.
        null: Predictions of a model trained on all records with another seed.
        drawn: Whether the records were drawn at random, or are all.
        path: How it was computed.
        caveats: Caveats for readers.
    """

    records: IntArray
    full: FloatArray
    without: FloatArray
    null: FloatArray
    drawn: bool
    path: str
    caveats: tuple[str, ...] = ()


def leave_out(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    targets: Targets,
    *,
    records: IntArray | str | None = None,
    preprocessing: Preprocessing = "refit",
    seed: int = 0,
    engine: Engine | None = None,
    directory: Any = None,
    patience: float = PATIENCE,
) -> Left:
    """Leave records out of a regressor, one at a time.

    Guarantee: if ``path`` says exact, values agree with refitting; the same arguments give the same
        bytes. By default, all records are left out of exact families and of tables of up to 2,000
        records. From n records of larger tables, 2,000,000 / n are drawn at random, between 40 and
        500.
    Assumption: that of ``epsilometer.pdtp``.

    Example:
        >>> from sklearn.linear_model import LinearRegression
        >>> from epsilometer.audits.classifier.regression.targets import read_targets
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0.0, 1.0, 2.0, 5.0]
        >>> left = leave_out(LinearRegression(), X, read_targets(y))
        >>> left.path, left.without.ravel().round(2)
        ('exact: least squares', array([-1.33,  1.29,  3.14,  3.  ]))
    """
    inner = unwrap_pipeline(estimator, X, targets.fitted, preprocessing=preprocessing, seed=seed)
    exact = None
    if targets.times is None:
        read = _EXACT.get(identify(inner.estimator))
        if read is not None:
            exact = read(inner.estimator, inner.features, targets)
        elif preprocessing == "refit":
            exact = _leave_mapped(estimator, X, targets)
    wanted = records
    if records is None and exact is None and targets.records > _REFITTED:
        drawn = max(_FEWEST, min(_DRAWN, _ROWS // targets.records))
        wanted = f"sample:{drawn}"
    chosen = choose_records(wanted, targets.records, seed=seed)
    fits = _Refits(FitRegressor(inner.estimator, inner.features, targets), seed)

    def fit_without(some: IntArray) -> LeaveOneOut:
        return refit(
            _Leaving(fits),
            np.arange(targets.records),  # fits are queried by row number
            targets.values,
            some,
            seed=seed,
            engine=engine,
            directory=directory,
            patience=patience,
        )

    if exact is not None:
        full, without = exact.full[chosen.records], exact.without[chosen.records]
        again, path = exact.again[chosen.records], f"exact: {exact.name}{inner.path_suffix}"
        if again.any():
            fitted = fit_without(chosen.records[again])
            full[again], without[again] = fitted.full, fitted.without
            path += f"; {again.sum():,} fitted again"
        return Left(
            records=chosen.records,
            full=full,
            without=without,
            null=full,
            drawn=chosen.unseen is not None,
            path=path,
            caveats=inner.caveats,
        )
    found = fit_without(chosen.records)
    caveats = [*inner.caveats, *found.caveats]
    if records is None and wanted is not None:
        caveats.append(
            f"{chosen.records.size} of {targets.records:,} records were drawn at random and left "
            "out, since each needs a separate fit."
        )
    return Left(
        records=chosen.records,
        full=found.full,
        without=found.without,
        null=found.null,
        drawn=chosen.unseen is not None,
        path=f"refits{inner.path_suffix}",
        caveats=tuple(caveats),
    )


@dataclass(frozen=True, eq=False)
class _Leaving:
    """The estimator for ``refit``, which supplies its own fits."""

    fits: "_Refits"

    def leave_one_out(self, X: Any, y: Any, *, seed: int) -> "_Refits":  # noqa: N803
        return self.fits


class _Refits(Fits):
    """Refit a regressor one model at a time."""

    path = "refits"
    caveats = (
        "Training is random. Both fits use the same seed, but with one record fewer the draws "
        "may differ and are then part of the value: compare it with that of another seed alone.",
    )

    def __init__(self, fit: FitRegressor, seed: int) -> None:
        self.fit, self.seed = fit, seed

    def seconds(self, records: IntArray, queries: Any) -> float:
        """Time one refit; time it again if short, since the first is slow."""
        took: list[float] = []
        while len(took) < 2 and sum(took) < _SHORT:
            start = time.perf_counter()
            self.without(records[:1], None)
            took.append(time.perf_counter() - start)
        return records.size * min(took)

    def describe(self) -> dict[str, Any]:
        """Return the estimator and the records."""
        fit = self.fit
        return {"estimator": fit.estimator, "X": fit.features, "y": fit.targets.fitted}

    def whole(self, queries: Any, *, seed: int | None) -> FloatArray:
        """Return predictions of a model trained on all records, at the queried records."""
        given = self.seed if seed is None else seed
        model = self.fit.fit(slice(None), seed=given, overwrite=seed is not None)
        return self.fit.predict(model, queries)

    def without(self, records: IntArray, queries: Any) -> FloatArray:
        """Return predictions of models trained without one record each, at that record."""
        return np.concatenate([self._remove(int(record)) for record in records])

    def _remove(self, record: int) -> FloatArray:
        others = np.delete(np.arange(self.fit.targets.records), record)
        try:
            return self.fit(others, seed=self.seed, overwrite=False)(np.array([record]))
        except InvalidArgument:
            raise
        except Exception as error:
            raise InvalidArgument(
                f"Expected {type(self.fit.estimator).__name__} to be fitted when a record is left "
                f"out, it raised {type(error).__name__}.",
                withheld=f"Without record {record}: {' '.join(str(error).split())}",
            ) from error


@dataclass(frozen=True, eq=False, kw_only=True)
class _Exact:
    """Predictions at all records with them and without them, and who needs refits."""

    name: str
    full: FloatArray
    without: FloatArray
    again: BoolArray


def _leave_mapped(estimator: Any, X: Any, targets: Targets) -> _Exact | None:  # noqa: N803
    """Leave records out behind preprocessing that is a linear map of fixed columns."""
    steps = getattr(estimator, "steps", None)
    read = _EXACT.get(identify(steps[-1][1])) if isinstance(steps, list) and steps else None
    mapped = None if read is None else peel_maps(estimator, X, turns=True)
    if read is None or mapped is None or mapped.filling.any():
        return None
    last, found = mapped.last, mapped.map
    exact = read(last, found.compute(None), targets)
    neighbours = getattr(last, "n_neighbors", None)
    if exact is None or (neighbours is not None and not is_euclidean(last)):
        return None
    search = None if neighbours is None else NearestSearch(found, int(neighbours))
    ridge = None
    if search is None:
        ridge = MappedRidge(
            found,
            targets.values,
            np.ones(targets.records),
            penalty=float(getattr(last, "alpha", 0.0)),
            intercept=bool(last.fit_intercept),
        )
    without, again = np.empty_like(exact.full), np.zeros(targets.records, bool)
    block = found.block if search is None else min(found.block, search.block)
    for start in range(0, targets.records, block):
        some = np.arange(start, min(start + block, targets.records))
        weights = found.weigh(some)
        if ridge is not None:
            without[some], safe = ridge.predict(some, weights)
        elif search is not None:
            distances, nearest, safe = search.find(some, weights)
            without[some] = _average(last, targets, distances, nearest)
        again[some] = ~safe
    through = describe_steps(mapped.steps, 0)
    again |= mapped.changed
    return _Exact(name=exact.name + through, full=exact.full, without=without, again=again)


def _leave_least_squares(
    estimator: Any,
    X: Any,  # noqa: N803
    targets: Targets,
) -> _Exact | None:
    """Return predictions from leverages; None if parameters or columns need refits."""
    alpha = getattr(estimator, "alpha", 0.0)
    if hasattr(X, "toarray") or estimator.positive or np.ndim(alpha) != 0:
        return None
    try:
        features = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return None
    intercept = bool(estimator.fit_intercept)
    if features.ndim != 2 or not np.isfinite(features).all():
        return None
    centred = features - features.mean(axis=0) if intercept else features
    if not alpha and np.linalg.matrix_rank(centred) < features.shape[1]:
        return None
    design = np.column_stack([centred, np.ones(len(centred))]) if intercept else centred
    fit = RidgeFit(
        design,
        targets.values,
        np.ones(len(design)),
        float(alpha),
        penalised=features.shape[1],
    )
    every = np.arange(len(design))
    return _Exact(
        name="least squares",
        full=fit.predict(design),
        without=fit.remove(every, None),
        again=np.zeros(len(design), bool),
    )


def _leave_neighbours(
    estimator: Any,
    X: Any,  # noqa: N803
    targets: Targets,
) -> _Exact | None:
    """Return means over the nearest neighbours, with and without each record."""
    k = int(estimator.n_neighbors)
    if estimator.metric == "precomputed" or targets.records <= k + 1:
        return None
    index = clone_estimator(estimator).fit(X, targets.values)
    distances, nearest = index.kneighbors(X, n_neighbors=k + 1)
    rows = np.arange(targets.records)
    stays = nearest != rows[:, None]
    stays[stays.all(axis=1), -1] = False  # if it is not among them, the k nearest stay
    shape = (targets.records, k)

    return _Exact(
        name="k nearest neighbours",
        full=_average(estimator, targets, distances[:, :-1], nearest[:, :-1]),
        without=_average(
            estimator, targets, distances[stays].reshape(shape), nearest[stays].reshape(shape)
        ),
        again=np.zeros(targets.records, bool),
    )


def _average(
    estimator: Any, targets: Targets, distances: FloatArray, nearest: IntArray
) -> FloatArray:
    """Return weighted means of the neighbours' targets."""
    weights = weigh_by_distance(distances, estimator.weights)[:, :, None]
    found: FloatArray = (weights * targets.values[nearest]).sum(axis=1) / weights.sum(axis=1)
    return found


_EXACT = {
    "sklearn.LinearRegression": _leave_least_squares,
    "sklearn.Ridge": _leave_least_squares,
    "sklearn.KNeighborsRegressor": _leave_neighbours,
}
