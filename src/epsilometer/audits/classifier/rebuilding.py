"""Rebuild a record from fitted coefficients and all other records.

Where a loss is minimised, the gradients of all records and of the penalty sum to 0. Whoever knows
all records but one computes the gradient of the last, which is its residual times its features; the
gradient of the intercept is the residual itself. Their ratio is the record.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from epsilometer.audits.classifier.leave_one_out.families import class_weights
from epsilometer.audits.classifier.sklearn_models import identify
from epsilometer.types import FloatArray, IntArray

_TRIED = 300  # records
_CLOSE = 0.05  # standard deviations of a column by which a rebuilt value may be off


class Rebuilt(NamedTuple):
    """How many records were rebuilt, of how many that were tried."""

    hits: int
    tried: int


class _Linear(NamedTuple):
    """A linear model as its gradients have it: residuals of each class, and the penalty."""

    residuals: FloatArray
    penalty: FloatArray


def rebuild_records(model: Any, reached: Any, codes: IntArray, *, seed: int = 0) -> Rebuilt | None:
    """Rebuild up to 300 records from a fitted linear model; None where it is of another kind.

    A record counts as rebuilt where each column is within 5 % of its standard deviation.

    Example:
        >>> from sklearn.linear_model import RidgeClassifier
        >>> X, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
        >>> rebuild_records(RidgeClassifier().fit(X, y), X, y)
        Rebuilt(hits=50, tried=50)
    """
    read = _READERS.get(identify(model))
    features = reached.toarray() if hasattr(reached, "toarray") else reached
    try:
        features = np.asarray(features, np.float64)
    except (TypeError, ValueError):
        return None
    if read is None or not getattr(model, "fit_intercept", False):
        return None
    linear = read(model, features, codes)
    if linear is None:
        return None
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(6,)))
    tried = rng.permutation(len(features))[:_TRIED]
    total = linear.residuals.T @ features + linear.penalty  # 0 where it was solved
    intercept = linear.residuals.sum(axis=0)
    spread = np.where((spread := features.std(axis=0)) > 0, spread, np.inf)
    hits = 0
    for record in tried.tolist():
        own = linear.residuals[record]
        gradient = np.outer(own, features[record]) - total  # minus those of all others
        at_intercept = own - intercept
        largest = int(np.argmax(np.abs(at_intercept)))
        if at_intercept[largest] == 0:
            continue
        rebuilt = gradient[largest] / at_intercept[largest]
        hits += bool(np.all(np.abs(rebuilt - features[record]) <= _CLOSE * spread))
    return Rebuilt(hits, tried.size)


def _read_logistic(model: Any, features: FloatArray, codes: IntArray) -> _Linear | None:
    if getattr(model, "l1_ratio", None) or model.solver == "liblinear":
        return None  # an l1 penalty has no gradient at 0; liblinear penalises the intercept
    decision = features @ model.coef_.T + model.intercept_
    weights = class_weights(
        model.class_weight, model.classes_, np.bincount(codes).astype(np.float64)
    )[codes]
    if len(model.coef_) == 1:
        residuals = scipy.special.expit(decision) - (codes == 1)[:, None]
    else:
        residuals = scipy.special.softmax(decision, axis=1)
        residuals[np.arange(codes.size), codes] -= 1
    penalised = np.isfinite(model.C) and model.penalty is not None
    return _Linear(
        model.C * weights[:, None] * residuals if penalised else weights[:, None] * residuals,
        model.coef_ if penalised else np.zeros_like(model.coef_),
    )


def _read_ridge(model: Any, features: FloatArray, codes: IntArray) -> _Linear | None:
    coefficients = np.atleast_2d(model.coef_)
    decision = features @ coefficients.T + model.intercept_
    places = np.arange(2, 3) - 1 if len(coefficients) == 1 else np.arange(len(coefficients))
    targets = np.where(codes[:, None] == places, 1.0, -1.0)
    weight = getattr(model, "class_weight", None)
    weights = class_weights(weight, np.unique(codes), np.bincount(codes).astype(np.float64))[codes]
    if isinstance(weight, dict):
        return None
    return _Linear(weights[:, None] * (decision - targets), model.alpha * coefficients)


_READERS: dict[str, Callable[[Any, FloatArray, IntArray], _Linear | None]] = {
    "sklearn.LogisticRegression": _read_logistic,
    "sklearn.RidgeClassifier": _read_ridge,
}
