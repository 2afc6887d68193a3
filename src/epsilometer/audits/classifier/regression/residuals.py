"""Turn residuals of shadow models into a pool that every membership attack can use.

A model's confidence in a record's target is exp(−r²/2), with r its residual in units of the median
residual of all models: a normal likelihood, up to a factor. So a loss threshold ranks records by
their residuals, and likelihood ratios compare residuals with and without the record.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from epsilometer.audits.classifier.attacks.shadows import Halves, ShadowPool
from epsilometer.audits.classifier.regression.targets import FitRegressor
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.shards import Arrays
from epsilometer.types import BoolArray, FloatArray

_CLASSES = np.array(["not its number", "its number"])


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressorHalves(Halves):
    """Regressors trained on about half of the records each.

    Attributes:
        fit: Trains on some rows, and returns a function that predicts at rows.
    """

    fit: FitRegressor

    def describe(self) -> dict[str, Any]:
        """Return how models are trained."""
        return {"fit": name_of(type(self.fit.estimator))}

    def fingerprint(self) -> str:
        """Return a hash of the records, and of how models are trained."""
        features = self.fit.features
        if hasattr(features, "iloc"):  # a table: by its columns alone
            features = {str(name): np.asarray(features[name]) for name in features.columns}
        return fingerprint([self.fit.estimator, features, self.fit.targets.fitted])

    def train(self, member: BoolArray, seed: int) -> Arrays:
        """Train one model, and query it about all records."""
        predict = self.fit(np.flatnonzero(member), seed=seed)
        return {"predictions": predict(slice(None))}


def show_predictions(
    predictions: FloatArray,
    *,
    rounding: float | None,
    noise: float | None,
    rng: np.random.Generator,
) -> FloatArray:
    """Return predictions as others see them: with noise, and rounded to multiples of a unit.

    Example:
        >>> show_predictions(np.array([1.26, 3.9]), rounding=0.5, noise=None,
        ...     rng=np.random.default_rng(0))
        array([1.5, 4. ])
    """
    seen = predictions
    if noise is not None:
        seen = seen + rng.normal(0.0, noise, seen.shape)
    return seen if rounding is None else np.round(seen / rounding) * rounding


def make_pool(predictions: FloatArray, member: BoolArray, values: FloatArray) -> ShadowPool:
    """Return a pool of confidences in each record's target.

    The unit of residuals depends on predictions alone, not on membership: the scores of a record
    that changes nothing are uninformative.

    Args:
        predictions: Predictions of each model at all records, shape ``(models, records, outputs)``.
        member: Whether each model was trained on each record, shape ``(models, records)``.
        values: The targets, shape ``(records, outputs)``.

    Example:
        >>> member = np.array([[True, False], [False, True]])
        >>> said = np.where(member, 1.0, 2.0)[:, :, None]
        >>> pool = make_pool(said, member, np.array([[1.0], [1.0]]))
        >>> pool.own.round(2)
        array([[ 0. , -0.5],
               [-0.5,  0. ]], dtype=float32)
    """
    residuals = np.abs(predictions - values)
    some = [each[each > 0] for each in np.moveaxis(residuals, 2, 0)]
    scale = np.array([np.median(each) if each.size else 1.0 for each in some])
    squared = np.mean(np.minimum(residuals / scale, 1e6) ** 2, axis=2)
    own = 0.0 - 0.5 * squared
    with np.errstate(divide="ignore"):
        rest = np.log(-np.expm1(own))
    models = len(member)
    return ShadowPool(
        log_proba=np.stack([own, rest], axis=2).astype(np.float32),
        member=member,
        labels=np.zeros(values.shape[0], np.int64),
        classes=_CLASSES,
        train_accuracy=np.full(models, np.nan),
        test_accuracy=np.full(models, np.nan),
        kept="own",
        coins=True,
    )
