"""Rebuild a record from fitted coefficients and all other records.

At the minimum of a loss, the gradients of all records and of the penalty sum to 0. Anyone with all
records but one can compute the gradient of the last, which is its residual times its features. The
gradient of the intercept is the residual itself; their ratio is the record.
"""

import copy
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import scipy.special
from scipy.spatial import cKDTree

from epsilometer.audits.classifier.leave_one_out.families import class_weights
from epsilometer.audits.classifier.sklearn_models import identify
from epsilometer.types import BoolArray, FloatArray, IntArray

_Link: TypeAlias = Literal["logistic", "softmax", "squares"]
_TRIED = 300  # largest number of records to try
_OUTPUTS = 8  # largest number of outputs to try
_CLOSE = 0.05  # standard deviations of a column by which a rebuilt value may be off
_CHANCE = 1e-3  # probability below which hits are not attributed to chance


class Rebuilt(NamedTuple):
    """How many records were rebuilt, and how many were tried; 0 if the hits may be random."""

    hits: int
    tried: int


class _Linear(NamedTuple):
    """The terms of a linear model's gradient.

    Attributes:
        residuals: Weighted residuals of each record and class, the factors of its features.
        penalty: Gradient of the penalty, one row per class.
        intercept: Gradient of the penalty on intercepts, 0 if there is none; None: no intercepts.
        known: Which coefficients have a gradient: at 0, those with an l1 penalty have none.
        scale: Weight of each residual.
        link: How residuals follow from decisions.
    """

    residuals: FloatArray
    penalty: FloatArray
    intercept: FloatArray | None
    known: BoolArray
    scale: FloatArray
    link: _Link


def rebuild_records(
    model: Any, reached: Any, codes: IntArray | FloatArray, *, seed: int = 0
) -> Rebuilt | None:
    """Rebuild up to 300 records from a fitted linear model; None for other models.

    A record counts as rebuilt if each column is within 5 % of its standard deviation. With few
    columns that also happens by chance, and hits that may be random are not counted. ``codes``
    are positions of classes or, for a regressor, its targets. Each of several outputs is tried as
    if it were the only one.

    Example:
        >>> from sklearn.linear_model import RidgeClassifier
        >>> X, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
        >>> rebuild_records(RidgeClassifier().fit(X, y), X, y)
        Rebuilt(hits=50, tried=50)
    """
    if codes.ndim == 2:
        return _rebuild_by_outputs(model, reached, codes, seed=seed)
    read = _READERS.get(identify(model))
    features = reached
    if read is not None and hasattr(reached, "tocsr") and hasattr(model, "coef_"):
        used = np.flatnonzero(np.diff(reached.tocsc().indptr))  # empty columns have no effect
        features, model = reached.tocsr()[:, used].toarray(), copy.copy(model)
        model.coef_ = model.coef_[..., used]
    try:
        features = np.asarray(features, np.float64)
    except (TypeError, ValueError):
        return None
    if read is None or features.ndim != 2 or features.shape[0] != codes.size:
        return None
    if np.shape(getattr(model, "coef_", ()))[-1:] != features.shape[1:]:
        return None
    linear = read(model, features, codes)
    if linear is None or not linear.known.any():
        return None
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(6,)))
    tried = rng.permutation(len(features))[:_TRIED]
    total = linear.residuals.T @ features + linear.penalty  # 0 at the minimum
    own = linear.residuals[tried]
    known = linear.known & (features.std(axis=0) > 0)
    spread = features.std(axis=0)[known]
    true = features[tried][:, known] / spread
    rows = np.arange(tried.size)
    if linear.intercept is None:
        # Minus the gradients of all others; that of the record's own class is the longest
        labels = np.asarray(codes[tried], np.int64)
        place = labels if own.shape[1] > 1 else np.zeros(tried.size, np.int64)
        gradient = own[rows, place][:, None] * features[tried] - total[place]
        at = gradient @ np.atleast_2d(model.coef_).T
        residual = _solve_residuals(linear, at, place, labels, linear.scale[tried])
        with np.errstate(divide="ignore", invalid="ignore"):
            guesses = [gradient / each[:, None] for each in residual]
    else:
        at_intercept = own - (linear.residuals.sum(axis=0) + linear.intercept)
        largest = np.abs(at_intercept).argmax(axis=1)
        gradient = own[rows, largest][:, None] * features[tried] - total[largest]
        with np.errstate(divide="ignore", invalid="ignore"):
            guesses = [gradient / at_intercept[rows, largest][:, None]]
    hits = max(_count_hits(each[:, known] / spread, true) for each in guesses)
    return Rebuilt(hits, tried.size)


def _rebuild_by_outputs(
    model: Any, reached: Any, targets: IntArray | FloatArray, *, seed: int
) -> Rebuilt | None:
    """Rebuild records from each output, and return the result with the most hits."""
    found = []
    for place in range(min(targets.shape[1], _OUTPUTS)):
        one = copy.copy(model)
        for name in ("coef_", "intercept_"):
            values = np.asarray(getattr(model, name, 0.0))
            if values.ndim == 1 + (name == "coef_") and len(values) == targets.shape[1]:
                setattr(one, name, values[place])
        found.append(rebuild_records(one, reached, targets[:, place], seed=seed))
    return max((each for each in found if each), key=lambda each: each.hits, default=None)


def _solve_residuals(
    linear: _Linear, at: FloatArray, place: IntArray, codes: IntArray, scale: FloatArray
) -> list[FloatArray]:
    """Return both solutions for the residual r of the own class, without intercepts.

    The gradient g of a record is r·x, so its decisions are x·θ = g·θ / r, and r follows from these.
    For least squares, r = scale · (g·θ / r − target). For other losses, r = scale · (p − label),
    with the smallest and the largest solution.

    Args:
        linear: The model.
        at: g·θ, ``(records, classes)``, or one column for two classes.
        place: Column of the own class.
        codes: Labels.
        scale: Weights of these records.
    """
    rows = np.arange(codes.size)
    one = at.shape[1] == 1
    sign = np.where(codes == 1, 1.0, -1.0) if one else np.ones(codes.size)  # sign of the target
    if linear.link == "squares":
        half = scale * sign / 2
        root = np.sqrt(np.maximum(half**2 + scale * at[rows, place], 0.0))
        return [root - half, -root - half]
    share = np.geomspace(1e-9, 1.0, 4001)
    size = scale[:, None] * share  # size of the residual, with the sign opposite to the target's
    decisions = -at[:, None, :] / (sign[:, None] * size)[:, :, None]
    if linear.link == "softmax":
        said = scipy.special.softmax(decisions, axis=2)[rows, :, place]
    else:
        said = scipy.special.expit(sign[:, None] * decisions[rows, :, place])
    beyond = scale[:, None] * (1 - said) - size > 0
    crossed = beyond[:, :-1] != beyond[:, 1:]
    places = crossed.argmax(axis=1), share.size - 2 - crossed[:, ::-1].argmax(axis=1)
    found = [-sign * np.sqrt(size[rows, each] * size[rows, each + 1]) for each in places]
    return [np.where(crossed.any(axis=1), each, np.nan) for each in found]


def _count_hits(rebuilt: FloatArray, true: FloatArray) -> int:
    """Return how many are near their own records; 0 if equally many are near others'."""
    there = np.isfinite(rebuilt).all(axis=1)
    rebuilt, true = rebuilt[there], true[there]
    if not len(true):
        return 0
    hits = int(np.sum(np.abs(rebuilt - true).max(axis=1) <= _CLOSE))
    if not hits:
        return 0
    near = cKDTree(rebuilt).count_neighbors(cKDTree(true), _CLOSE, p=np.inf)
    strangers = (near - hits + 1) / len(true) ** 2
    by_chance = scipy.special.bdtrc(hits - 1, len(true), min(1.0, float(strangers)))
    return hits if by_chance <= _CHANCE else 0


def _read_logistic(model: Any, features: FloatArray, codes: IntArray) -> _Linear | None:
    strengths = {float(each) for each in np.ravel(getattr(model, "C_", getattr(model, "C", 1.0)))}
    ratios: Any = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", None))
    shares = {float(each or 0.0) for each in np.ravel(ratios)}
    if len(strengths) != 1 or len(shares) != 1:
        return None  # a different penalty for each class
    c, l1 = strengths.pop(), shares.pop()
    many = len(model.coef_) > 1
    if codes.max() + 1 != (len(model.coef_) if many else 2):
        return None  # the model has other classes
    decision = features @ model.coef_.T + model.intercept_
    weights = _weigh_records(model, codes)
    if not many:
        residuals = scipy.special.expit(decision) - (codes == 1)[:, None]
    elif model.solver == "liblinear":
        residuals = scipy.special.expit(decision) - (codes[:, None] == np.arange(len(model.coef_)))
    else:
        residuals = scipy.special.softmax(decision, axis=1)
        residuals[np.arange(codes.size), codes] -= 1
    penalised = np.isfinite(c) and getattr(model, "penalty", "") is not None
    weights = c * weights if penalised else weights
    coefficients = model.coef_ * penalised
    penalty = (1 - l1) * coefficients + l1 * penalised * np.sign(model.coef_)
    return _Linear(
        weights[:, None] * residuals,
        penalty,
        _find_intercept_penalty(model, l1=l1),
        np.asarray((model.coef_ != 0).all(axis=0) | (l1 == 0) | (not penalised)),
        weights,
        "softmax" if many and model.solver != "liblinear" else "logistic",
    )


def _weigh_records(model: Any, codes: IntArray) -> FloatArray:
    """Return the weight of each record by its class."""
    given = getattr(model, "class_weight", None)
    names = model.classes_ if isinstance(given, dict) else np.unique(codes)
    weights = class_weights(given, names, np.bincount(codes).astype(np.float64))
    return np.asarray(weights[codes])


def _find_intercept_penalty(model: Any, *, l1: float = 0.0) -> FloatArray | None:
    """Return the gradient of the penalty on intercepts, which only liblinear has."""
    if not model.fit_intercept:
        return None
    penalised = identify(model) == "sklearn.LinearSVC" or model.solver == "liblinear"
    held = model.intercept_ / model.intercept_scaling
    gradient = ((1 - l1) * held + l1 * np.sign(held)) / model.intercept_scaling
    return np.asarray(gradient if penalised else 0.0)


def _read_ridge(model: Any, features: FloatArray, codes: IntArray) -> _Linear | None:
    coefficients = np.atleast_2d(model.coef_)
    decision = features @ coefficients.T + model.intercept_
    places = np.arange(2, 3) - 1 if len(coefficients) == 1 else np.arange(len(coefficients))
    targets = np.where(codes[:, None] == places, 1.0, -1.0)
    weights = _weigh_records(model, codes)
    return _Linear(
        weights[:, None] * (decision - targets),
        getattr(model, "alpha_", getattr(model, "alpha", 0.0)) * coefficients,
        np.zeros(1) if model.fit_intercept else None,
        np.ones(features.shape[1], bool),
        weights,
        "squares",
    )


def _read_regression(model: Any, features: FloatArray, targets: FloatArray) -> _Linear | None:
    """Read least squares of one target, with an l2 or l1 penalty."""
    if not model.fit_intercept or targets.ndim != 1 or np.size(model.coef_) != features.shape[1]:
        return None
    coefficients = np.reshape(model.coef_, (1, -1))
    decision = features @ coefficients.T + np.ravel(model.intercept_)
    penalty = np.ravel(getattr(model, "alpha_", getattr(model, "alpha", 0.0)))[0]
    share, known = 0.0, np.ones(features.shape[1], bool)
    if identify(model) in _ABSOLUTE:
        share = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", 1.0))
        known, penalty = coefficients[0] != 0, penalty * targets.size
    return _Linear(
        decision - targets[:, None],
        penalty * ((1 - share) * coefficients + share * np.sign(coefficients)),
        np.zeros(1),
        known,
        np.ones(targets.size),
        "squares",
    )


def _read_svc(model: Any, features: FloatArray, codes: IntArray) -> _Linear | None:
    if model.loss != "squared_hinge" or model.penalty != "l2" or model.multi_class != "ovr":
        return None
    decision = features @ model.coef_.T + model.intercept_
    places = np.arange(2, 3) - 1 if len(model.coef_) == 1 else np.arange(len(model.coef_))
    sides = np.where(codes[:, None] == places, 1.0, -1.0)
    weights = 2 * model.C * _weigh_records(model, codes)
    return _Linear(
        -weights[:, None] * sides * np.maximum(0.0, 1 - sides * decision),
        model.coef_,
        _find_intercept_penalty(model),
        np.ones(features.shape[1], bool),
        weights,
        "squares",
    )


_ABSOLUTE = tuple(f"sklearn.{name}" for name in ("Lasso", "LassoCV", "ElasticNet", "ElasticNetCV"))
_READERS: dict[str, Callable[[Any, FloatArray, Any], _Linear | None]] = {
    "sklearn.LinearRegression": _read_regression,
    "sklearn.Ridge": _read_regression,
    "sklearn.RidgeCV": _read_regression,
    "sklearn.LogisticRegression": _read_logistic,
    "sklearn.LogisticRegressionCV": _read_logistic,
    "sklearn.RidgeClassifier": _read_ridge,
    "sklearn.RidgeClassifierCV": _read_ridge,
    "sklearn.LinearSVC": _read_svc,
    **dict.fromkeys(_ABSOLUTE, _read_regression),
}
