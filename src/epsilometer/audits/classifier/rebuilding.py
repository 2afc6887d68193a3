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
_STATISTICS = ("sklearn.LinearDiscriminantAnalysis",)  # computed from means, which are remarked on
_UNSOLVED = (
    "of {}, computing them was not tried: with these settings its coefficients are not the "
    "solution of equations that are solved here"
)
UNTRACED = "of {}, computing them was not tried: the features that reach it are not known"
_FACTOR = (
    "of {}, which has no intercept, a record follows up to a factor: anyone who knows one of its "
    "numbers computes the others"
)
_OFF = (
    "of {}, computing them failed: its coefficients are not the solution for all records, so it "
    "was fitted to some of them, with weights or to other columns"
)
_ZERO = 1e-9  # share of the largest coefficient below which one is 0
_OFTEN = 3  # gradients of a usual record, by which the sum of all is off where the data are others
_LOOSE = 10  # times the tolerance of a solver, by which a sum is off where they are the same
_OTHERS = "of {}, computing them failed: it separates other classes than those of the records"


class Rebuilt(NamedTuple):
    """How many records were rebuilt, and how many were tried; 0 if the hits may be random.

    Attributes:
        hits: Number of records that were rebuilt.
        tried: Number of records that were tried.
        why: Why none could be tried, though the coefficients of a linear model are known.
    """

    hits: int
    tried: int
    why: str = ""


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

    Equations of smooth losses are solved; ``why`` names models that have none which are solved.

    A record counts as rebuilt if each column is within 5 % of its standard deviation. With few
    columns that also happens by chance, and hits that may be random are not counted. ``codes``
    are positions of classes or, for a regressor, its targets. Each of several outputs is tried as
    if it were the only one.

    Example:
        >>> from sklearn.linear_model import RidgeClassifier
        >>> X, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
        >>> rebuild_records(RidgeClassifier().fit(X, y), X, y).hits
        50
    """
    if codes.ndim == 2:
        return _rebuild_by_outputs(model, reached, codes, seed=seed)
    if codes.dtype.kind == "i" and codes.max() > 1 and _is_binary(model):
        return _rebuild_by_classes(model, reached, codes, seed=seed)
    model, features = _drop_empty(model, reached)
    width = getattr(features, "shape", ())[1:]
    shape = np.shape(getattr(model, "coef_", ()))
    if not shape or shape[-1:] != width or identify(model) in _STATISTICS:
        return None
    linear: _Linear | str | None = _UNSOLVED
    if identify(model) in _READERS:
        linear = _read_linear(model, features, codes)
    if isinstance(linear, str):
        return Rebuilt(0, 0, linear.format(type(model).__name__))
    return None if linear is None else _rebuild(linear, model, features, codes, seed=seed)


def _drop_empty(model: Any, reached: Any) -> tuple[Any, Any]:
    """Return a model with dense coefficients, without empty columns of sparse features."""
    coefficients: Any = getattr(model, "coef_", None)
    if hasattr(coefficients, "toarray"):
        coefficients = coefficients.toarray()
    if not isinstance(coefficients, np.ndarray) or identify(model) not in _READERS:
        return model, reached
    model, features = copy.copy(model), reached
    if hasattr(reached, "tocsr"):
        used = np.flatnonzero(np.diff(reached.tocsc().indptr))  # empty columns have no effect
        features, coefficients = reached.tocsr()[:, used].toarray(), coefficients[..., used]
    model.coef_ = coefficients
    return model, features


def _read_linear(model: Any, reached: Any, codes: IntArray | FloatArray) -> _Linear | str | None:
    """Return the equations of a model, why there are none, or None if they are not about these."""
    try:
        features = np.asarray(reached, np.float64)
    except (TypeError, ValueError):
        return None
    if features.ndim != 2 or features.shape[0] != codes.size:
        return None
    return _READERS[identify(model)](model, features, codes)


def _rebuild(
    linear: _Linear, model: Any, reached: Any, codes: IntArray | FloatArray, *, seed: int
) -> Rebuilt:
    """Compute records from the equations of a model, and count those that are right."""
    features = np.asarray(reached, np.float64)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(6,)))
    tried = rng.permutation(len(features))[:_TRIED]
    if not linear.known.any():
        return Rebuilt(0, tried.size)  # all coefficients are 0
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
    if not hits and _is_off(linear, model, total[:, known], np.abs(features[:, known])):
        return Rebuilt(0, 0, _OFF.format(type(model).__name__))
    return Rebuilt(hits, tried.size)


def _is_off(linear: _Linear, model: Any, total: FloatArray, sizes: FloatArray) -> bool:
    """Tell whether gradients do not sum to 0, by more than a solver's tolerance explains."""
    usual = np.median(np.abs(linear.residuals).max(axis=1) * sizes.max(axis=1))
    name, loose = identify(model), 0.0
    if name in _TOLERANT:
        loose = _LOOSE * model.tol * (linear.scale.sum() if "Logistic" in name else 1.0)
    return bool(np.abs(total).max() > max(_OFTEN * usual, loose))


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


def _is_binary(model: Any) -> bool:
    """Tell whether a linear classifier separates two classes."""
    return len(getattr(model, "classes_", ())) == 2 and identify(model) in _READERS


def _rebuild_by_classes(
    model: Any, reached: Any, codes: IntArray | FloatArray, *, seed: int
) -> Rebuilt:
    """Rebuild records from a classifier of two classes among more: each against all others."""
    every = np.arange(min(int(codes.max()) + 1, _OUTPUTS))
    tries = (
        rebuild_records(model, reached, (codes == each).astype(np.int64), seed=seed)
        for each in every
    )
    best = max((each for each in tries if each), key=lambda each: each.hits, default=None)
    if best is None or not best.hits:  # it may be one of each pair of classes
        return Rebuilt(0, 0, _OTHERS.format(type(model).__name__))
    return best


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


def _read_logistic(model: Any, features: FloatArray, codes: IntArray) -> _Linear | str:
    strengths = {float(each) for each in np.ravel(getattr(model, "C_", getattr(model, "C", 1.0)))}
    ratios: Any = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", None))
    shares = {float(each or 0.0) for each in np.ravel(ratios)}
    if len(strengths) != 1 or len(shares) != 1:
        return _UNSOLVED  # a different penalty for each class
    c, l1 = strengths.pop(), shares.pop()
    many = len(model.coef_) > 1
    if codes.max() + 1 != (len(model.coef_) if many else 2):
        return _OTHERS
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
    penalised = identify(model) in _SUPPORT or model.solver == "liblinear"
    held = model.intercept_ / model.intercept_scaling
    gradient = ((1 - l1) * held + l1 * np.sign(held)) / model.intercept_scaling
    return np.asarray(gradient if penalised else 0.0)


def _read_ridge(model: Any, features: FloatArray, codes: IntArray) -> _Linear | str:
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


def _read_regression(model: Any, features: FloatArray, targets: FloatArray) -> _Linear | str:
    """Read the loss of one target, with an l2 or l1 penalty."""
    if targets.ndim != 1 or np.size(model.coef_) != features.shape[1]:
        return _UNSOLVED
    if not model.fit_intercept:
        return _FACTOR
    name, coefficients = identify(model), np.reshape(model.coef_, (1, -1))
    tiny = np.abs(coefficients) <= _ZERO * np.abs(coefficients).max()
    coefficients = np.where(
        tiny, 0.0, coefficients
    )  # as answers tell them, a 0 has rounding errors
    decision = (features @ coefficients.T + np.ravel(model.intercept_))[:, 0]
    residuals = _LOSSES.get(name, _square_loss)(model, decision, targets)
    if residuals is None:
        return _UNSOLVED
    known = (coefficients[0] != 0) | (name not in _ABSOLUTE)
    if getattr(model, "positive", False) or name in _SELECTING:
        known = coefficients[0] != 0  # others are held at 0
    return _Linear(
        residuals[:, None],
        _find_penalty(model, coefficients, targets.size),
        _find_intercept_penalty(model) if name in _SUPPORT else np.zeros(1),
        np.asarray(known),
        np.ones(targets.size),
        "squares",
    )


def _find_penalty(model: Any, coefficients: FloatArray, n: int) -> FloatArray:
    """Return the gradient of a regressor's penalty on coefficients."""
    name = identify(model)
    if name in _BAYESIAN:
        return np.asarray(coefficients * model.lambda_ / model.alpha_)
    if name in _SUPPORT:
        return coefficients
    strength = float(np.ravel(getattr(model, "alpha_", getattr(model, "alpha", 0.0)))[0])
    if name in _ABSOLUTE:
        share = 1.0 if "Lasso" in name else getattr(model, "l1_ratio_", model.l1_ratio)
        both = (1 - share) * coefficients + share * np.sign(coefficients)
        return np.asarray(strength * n * both)
    return strength * (2 if name in _HUBER else 1) * coefficients


def _square_loss(model: Any, decision: FloatArray, targets: FloatArray) -> FloatArray:
    return decision - targets


def _huber_loss(model: Any, decision: FloatArray, targets: FloatArray) -> FloatArray:
    apart = (decision - targets) / model.scale_
    return np.asarray(2 * np.clip(apart, -model.epsilon, model.epsilon))


def _deviance_loss(model: Any, decision: FloatArray, targets: FloatArray) -> FloatArray:
    """Return the gradient of half the mean deviance, whose variance is a power of the mean."""
    power = float({"PoissonRegressor": 1, "GammaRegressor": 2}.get(type(model).__name__, 0))
    power = float(getattr(model, "power", power))
    logs = uses_logs(model)
    mean = np.exp(decision) if logs else decision
    slope = mean if logs else 1.0
    return np.asarray((mean - targets) * mean**-power * slope / targets.size)


def uses_logs(model: Any) -> bool:
    """Tell whether a regressor's coefficients give the logarithm of its predictions."""
    if identify(model) == "sklearn.TweedieRegressor":
        return bool(model.link == "log" or (model.link == "auto" and model.power > 0))
    return identify(model) in _DEVIANCE


def _support_loss(model: Any, decision: FloatArray, targets: FloatArray) -> FloatArray | None:
    if model.loss != "squared_epsilon_insensitive":
        return None  # its slope jumps at records whose share in the sum is not known
    apart = decision - targets
    beyond = np.maximum(np.abs(apart) - model.epsilon, 0.0)
    return np.asarray(2 * model.C * np.sign(apart) * beyond)


def _read_svc(model: Any, features: FloatArray, codes: IntArray) -> _Linear | str:
    if model.loss != "squared_hinge" or model.penalty != "l2" or model.multi_class != "ovr":
        return _UNSOLVED
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


_LASSO = ("Lasso", "LassoCV", "LassoLars", "LassoLarsCV", "LassoLarsIC")
_ABSOLUTE = tuple(f"sklearn.{name}" for name in (*_LASSO, "ElasticNet", "ElasticNetCV"))
_BAYESIAN = ("sklearn.BayesianRidge", "sklearn.ARDRegression")
_SELECTING = (
    "sklearn.ARDRegression",
    "sklearn.OrthogonalMatchingPursuit",
    "sklearn.OrthogonalMatchingPursuitCV",
)
_SUPPORT = ("sklearn.LinearSVC", "sklearn.LinearSVR")
_HUBER = ("sklearn.HuberRegressor",)
_DEVIANCE = tuple(f"sklearn.{name}Regressor" for name in ("Poisson", "Gamma", "Tweedie"))
_SQUARES = tuple(f"sklearn.{name}" for name in ("LinearRegression", "Ridge", "RidgeCV"))
_LOGISTIC = ("sklearn.LogisticRegression", "sklearn.LogisticRegressionCV")
_TOLERANT = (*_LOGISTIC, *_HUBER, *_DEVIANCE)
_LOSSES: dict[str, Callable[[Any, FloatArray, FloatArray], FloatArray | None]] = {
    **dict.fromkeys(_HUBER, _huber_loss),
    **dict.fromkeys(_DEVIANCE, _deviance_loss),
    "sklearn.LinearSVR": _support_loss,
}
_READERS: dict[str, Callable[[Any, FloatArray, Any], _Linear | str]] = {
    **dict.fromkeys(_LOGISTIC, _read_logistic),
    "sklearn.RidgeClassifier": _read_ridge,
    "sklearn.RidgeClassifierCV": _read_ridge,
    "sklearn.LinearSVC": _read_svc,
    **dict.fromkeys((*_SQUARES, *_ABSOLUTE, *_BAYESIAN, *_SELECTING, *_LOSSES), _read_regression),
}
