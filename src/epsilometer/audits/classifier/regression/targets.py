"""Read what a regressor predicts: one number per record, several, or a time until an event."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.sklearn_models import clone_with_seed, seed_globals, take_rows
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets of all records.

    Attributes:
        fitted: Targets as ``fit`` takes them.
        values: What predictions are compared with, shape ``(records, outputs)``; for survival
            models, whether the event happened.
        times: For survival models, the time of each record's event or censoring; None for others.
    """

    fitted: NDArray[Any]
    values: FloatArray
    times: FloatArray | None = None

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.values)

    @property
    def outputs(self) -> int:
        """Number of outputs per record."""
        return int(self.values.shape[1])


def read_targets(y: Any) -> Targets:
    """Read numbers, one or several per record, or (event, time) pairs as in scikit-survival.

    Raises:
        InvalidArgument: They are not finite numbers, or are all equal.

    Example:
        >>> read_targets([1.5, 2.5]).values
        array([[1.5],
               [2.5]])
        >>> survival = np.array([(True, 3.0), (False, 5.0)], [("event", "?"), ("time", "f8")])
        >>> read_targets(survival).values.ravel(), read_targets(survival).times
        (array([1., 0.]), array([3., 5.]))
    """
    given = np.asarray(y)
    if given.dtype.names is not None:
        return _read_survival(given)
    try:
        values = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            "Expected numbers in y, got something else. Classes are audited as em.Classifier."
        ) from error
    if values.ndim not in (1, 2) or values.size == 0:
        raise InvalidArgument(
            f"Expected y of shape (records,) or (records, outputs), got {values.shape}."
        )
    if not np.isfinite(values).all():
        missing = int(np.sum(~np.isfinite(values)))
        raise InvalidArgument(f"Expected finite numbers in y, found {missing} nan or infinite.")
    table = values.reshape(len(values), -1)
    if (table == table[0]).all():
        raise InvalidArgument("Expected numbers that differ in y, all records have the same.")
    return Targets(values, table)


def _read_survival(given: NDArray[Any]) -> Targets:
    names = given.dtype.names or ()
    kinds = [given.dtype[name].kind for name in names]
    if given.ndim != 1 or len(names) != 2 or kinds[0] != "b" or kinds[1] not in "iuf":
        raise InvalidArgument(
            f"Expected y of numbers, or of pairs (event, time), got fields {', '.join(names)}."
        )
    times = given[names[1]].astype(np.float64)
    if not (np.isfinite(times) & (times >= 0)).all():
        raise InvalidArgument("Expected finite times of 0 or more in y, got others.")
    return Targets(given, given[names[0]].astype(np.float64)[:, None], times)


@dataclass(frozen=True, eq=False)
class FitRegressor:
    """Train a fresh copy of an estimator on some rows, and predict at others.

    A survival model predicts the cumulative hazard at the end of a record's time. Its difference
    from whether the event happened is the martingale residual.

    Attributes:
        estimator: A scikit-learn regressor, or a survival model with
            ``predict_cumulative_hazard_function``.
        features: Features of all records.
        targets: Targets of all records.
    """

    estimator: Any
    features: Any
    targets: Targets

    def __call__(
        self, rows: IntArray | slice, *, seed: int, overwrite: bool = True
    ) -> Callable[[IntArray | slice], FloatArray]:
        """Train on rows; return a function that predicts at rows, shape ``(rows, outputs)``."""
        model = self.fit(rows, seed=seed, overwrite=overwrite)
        return lambda at: self.predict(model, at)

    def fit(self, rows: IntArray | slice, *, seed: int, overwrite: bool = True) -> Any:
        """Return a model that was trained on some rows."""
        model = clone_with_seed(self.estimator, seed, overwrite=overwrite)
        with seed_globals(seed):
            model.fit(take_rows(self.features, rows), self.targets.fitted[rows])
        return model

    def predict(self, model: Any, at: IntArray | slice) -> FloatArray:
        """Return predictions at rows; nan is refused."""
        features = take_rows(self.features, at)
        if self.targets.times is None:
            found: FloatArray = np.asarray(model.predict(features), np.float64)
            found = found.reshape(len(found), -1)
        else:
            found = self._gather_hazard(model, features, self.targets.times[at])
        if found.shape[1] != self.targets.outputs:
            raise InvalidArgument(
                f"Expected {self.targets.outputs} numbers per record from "
                f"{type(model).__name__}, got {found.shape[1]}."
            )
        if np.isnan(found).any():
            raise InvalidArgument(
                f"Expected numbers from {type(model).__name__}, got nan for "
                f"{int(np.isnan(found).any(axis=1).sum())} of {len(found)} records."
            )
        return found

    def _gather_hazard(self, model: Any, features: Any, times: FloatArray) -> FloatArray:
        if not hasattr(model, "predict_cumulative_hazard_function"):
            raise InvalidArgument(
                f"Expected predict_cumulative_hazard_function of {type(model).__name__}, which "
                "was given times until an event, found none."
            )
        functions = model.predict_cumulative_hazard_function(features)
        ends = [(function, *_find_domain(function)) for function in functions]
        return np.array(
            [
                [float(function(min(max(time, low), high)))]
                for (function, low, high), time in zip(ends, times.tolist(), strict=True)
            ]
        )


def _find_domain(function: Any) -> tuple[float, float]:
    """Return the times between which a hazard is known: those of the records it was fitted to."""
    low, high = getattr(function, "domain", (0.0, np.inf))
    return float(low), float(high)
