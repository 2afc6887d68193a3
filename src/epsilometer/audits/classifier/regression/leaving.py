"""Predict at each record with it and without it: exactly if supported, else by refits."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.chosen import choose_records
from epsilometer.audits.classifier.leave_one_out.linear import RidgeFit
from epsilometer.audits.classifier.leave_one_out.nearest_neighbours import weigh_by_distance
from epsilometer.audits.classifier.leave_one_out.refits import PATIENCE, Fits, refit
from epsilometer.audits.classifier.regression.targets import FitRegressor, Targets
from epsilometer.audits.classifier.sklearn_models import (
    Preprocessing,
    clone_estimator,
    identify,
    unwrap_pipeline,
)
from epsilometer.engine.engines import Engine
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

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
    read = _EXACT.get(identify(inner.estimator)) if targets.times is None else None
    exact = read(inner.estimator, inner.features, targets) if read is not None else None
    wanted = records
    if records is None and exact is None and targets.records > _REFITTED:
        drawn = max(_FEWEST, min(_DRAWN, _ROWS // targets.records))
        wanted = f"sample:{drawn}"
    chosen = choose_records(wanted, targets.records, seed=seed)
    if exact is not None:
        name, full, without = exact
        full, without = full[chosen.records], without[chosen.records]
        return Left(
            records=chosen.records,
            full=full,
            without=without,
            null=full,
            drawn=chosen.unseen is not None,
            path=f"exact: {name}{inner.path_suffix}",
            caveats=inner.caveats,
        )
    fits = _Refits(FitRegressor(inner.estimator, inner.features, targets), seed)
    found = refit(
        _Leaving(fits),
        np.arange(targets.records),  # fits are queried by row number
        targets.values,
        chosen.records,
        seed=seed,
        engine=engine,
        directory=directory,
        patience=patience,
    )
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


def _leave_least_squares(
    estimator: Any,
    X: Any,  # noqa: N803
    targets: Targets,
) -> tuple[str, FloatArray, FloatArray] | None:
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
    return "least squares", fit.predict(design), fit.remove(every, None)


def _leave_neighbours(
    estimator: Any,
    X: Any,  # noqa: N803
    targets: Targets,
) -> tuple[str, FloatArray, FloatArray] | None:
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

    def average(far: FloatArray, near: IntArray) -> FloatArray:
        weights = weigh_by_distance(far, estimator.weights)[:, :, None]
        found: FloatArray = (weights * targets.values[near]).sum(axis=1) / weights.sum(axis=1)
        return found

    return (
        "k nearest neighbours",
        average(distances[:, :-1], nearest[:, :-1]),
        average(distances[stays].reshape(shape), nearest[stays].reshape(shape)),
    )


_EXACT = {
    "sklearn.LinearRegression": _leave_least_squares,
    "sklearn.Ridge": _leave_least_squares,
    "sklearn.KNeighborsRegressor": _leave_neighbours,
}
