"""Compute a linear model's coefficients from its answers, and training records from these.

Log-odds of such a model are linear in its features, so as many answers as coefficients determine
the model. Its answers then reveal as much as its file. Rounded answers do as well: at the point
between two records where a rounded answer changes, the probability is known exactly.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from epsilometer.audits.classifier.attacks.shadows import show_logs
from epsilometer.audits.classifier.leaks import Leak
from epsilometer.audits.classifier.model_tables import follow_records
from epsilometer.audits.classifier.rebuilding import UNTRACED, Rebuilt, rebuild_records, uses_logs
from epsilometer.audits.classifier.sklearn_models import identify, predict_logs, take_rows
from epsilometer.types import FloatArray, IntArray

_ASKED = 20_000  # largest number of queries
_HALVINGS = 45  # bisection steps between two records: down to rounding
_WIDEST = 3000  # largest number of coefficients to solve for
_RANK = 1e-10  # singular values below this share of the largest count as 0
_LEAST = 1e-12  # weight of an answer that is nearly certain, and has lost its digits
_UNREAD = (
    "Whether answers reveal these coefficients was not tested.",
    "The queries tried do not reveal these coefficients; others may. Limit the number of queries.",
)
_SQUARES = ("sklearn.RidgeClassifier", "sklearn.RidgeClassifierCV")
_SOFTMAX = ("sklearn.LogisticRegression", "sklearn.LogisticRegressionCV")


def compute_from_answers(
    model: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    codes: IntArray,
    classes: Any,
    *,
    decimals: int | None = None,
    seed: int = 0,
) -> tuple[Leak, ...]:
    """Return what an API's answers reveal about single records to an adversary with all others.

    Guarantee: every record that is counted was computed from answers as they are shown.
    Assumption: the adversary knows how the model was trained, and the strength of its penalty, also
        where that was chosen by the data. Models that are not linear are
        skipped. A linear model is reported as *unread* if its coefficients reveal records but
        could not be computed from its answers here: others may succeed.

    Args:
        model: A fitted model.
        X: The features it was fitted to, and is queried at.
        codes: Position of each record's label among the classes.
        classes: All labels, in order.
        decimals: Decimals to which probabilities are rounded; None: not at all; −1: labels only.
        seed: Seed by which records are chosen.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> X = np.random.default_rng(0).normal(size=(80, 3))
        >>> y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)
        >>> model = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(X, y)
        >>> compute_from_answers(model, X, y, np.array([0, 1]))[0].records
        80
    """
    route = follow_records(model, X)
    leaks = [_describe_untried(UNTRACED.format(name)) for name in route.linear]
    for place, (estimator, features) in enumerate(route.reached):
        name = type(estimator).__name__
        held = rebuild_records(estimator, features, codes, seed=seed)
        if held is not None and held.why:
            leaks.append(_describe_untried(held.why))
        if held is None or not held.hits:
            continue  # not linear, or not solved precisely enough to compute records
        told, asked = None, []
        if decimals != -1:  # labels alone are not used
            logs = show_logs(predict_logs(model, X, classes=classes), decimals)
            told = _read_odds(estimator, logs)
            asked = [] if told is None else [_Asked(features, told, *_weigh(logs))]
        if decimals is not None and told is not None and told.shape[1] == 1:
            asked += _bisect(model, X, place, decimals=decimals, classes=classes, seed=seed)
        tries = [_solve_coefficients(estimator, features, each) for each in asked]
        found = [rebuild_records(each, features, codes, seed=seed) for each in tries if each]
        leaks.append(_describe(name, held.tried, found, codes.size))
    return tuple(leaks)


def compute_from_numbers(
    model: Any,
    X: Any,  # noqa: N803
    targets: FloatArray,
    answers: FloatArray,
    *,
    seed: int = 0,
) -> tuple[Leak, ...]:
    """Return what a regressor's answers reveal about a record to an adversary with all others.

    Guarantee and assumption are those of ``compute_from_answers``.

    Args:
        model: A fitted model.
        X: The features it was fitted to, and is queried at.
        targets: The targets it was fitted to.
        answers: Predictions at X as they are shown, ``(records, outputs)``.
        seed: Seed by which records are chosen.

    Example:
        >>> from sklearn.linear_model import Ridge
        >>> X = np.random.default_rng(0).normal(size=(80, 3))
        >>> y = X[:, 0] + X[:, 1] ** 2
        >>> compute_from_numbers(model := Ridge().fit(X, y), X, y, model.predict(X))[0].records
        80
    """
    route = follow_records(model, X)
    leaks = [_describe_untried(UNTRACED.format(name)) for name in route.linear]
    for estimator, features in route.reached:
        held = rebuild_records(estimator, features, targets, seed=seed)
        if held is not None and held.why:
            leaks.append(_describe_untried(held.why))
        if held is None or not held.hits:
            continue
        told = np.asarray(answers, np.float64).reshape(len(targets), -1)
        found = []
        if told.shape[1] == len(np.atleast_2d(estimator.coef_)):
            if uses_logs(estimator):
                told = np.log(np.maximum(told, np.finfo(np.float64).tiny))
            rows = np.flatnonzero(np.isfinite(told).all(axis=1))[:_ASKED]
            asked = _Asked(features, told, rows, np.ones(rows.size))
            solved = _solve_coefficients(estimator, features, asked)
            found = [rebuild_records(solved, features, targets, seed=seed)] if solved else []
        leaks.append(_describe(type(estimator).__name__, held.tried, found, len(targets)))
    return tuple(leaks)


def _describe(name: str, tried: int, found: Sequence[Rebuilt | None], of: int) -> Leak:
    """Describe what was computed from the coefficients that answers reveal."""
    hits = max((each.hits for each in found if each is not None), default=0)
    if hits:
        said = (
            f"The answers reveal the coefficients of {name}, from which anyone who knows "
            f"all other records computes the missing one: {hits:,} of {tried:,} tried."
        )
        return Leak(kind="rebuilt", records=round(hits / tried * of), finding=said)
    said = (
        f"Anyone with the coefficients of {name} and all other records computes the "
        f"missing one. {_UNREAD[bool(found)]}"
    )
    return Leak(kind="unread", records=0, finding=said)


def _describe_untried(why: str) -> Leak:
    """Describe a linear model from whose coefficients no records were computed."""
    said = f"Answers may reveal coefficients, from which records may follow: {why}."
    return Leak(kind="unread", records=0, finding=said)


class _Asked(NamedTuple):
    """Queries and the log-odds learned from them.

    Attributes:
        features: Features of each query as they reach the estimator.
        odds: Log-odds there, one column per row of coefficients.
        rows: Which queries are used.
        weight: Weight of each of these.
    """

    features: Any
    odds: FloatArray
    rows: IntArray
    weight: FloatArray


def _weigh(logs: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return which answers determine all odds, and their weights.

    An answer near 0 or 1 has few digits left, so its weight is small.
    """
    rows = np.flatnonzero(np.isfinite(logs).all(axis=1))[:_ASKED]
    return rows, np.maximum(1 - np.exp(logs[rows].max(axis=1)), _LEAST)


def _bisect(
    model: Any,
    X: Any,  # noqa: N803
    place: int,
    *,
    decimals: int,
    classes: Any,
    seed: int,
) -> list[_Asked]:
    """Find points between two records where a rounded answer changes: there p is known exactly.

    Columns of whole numbers may be codes and stay unchanged. Nothing is returned if there are no
    other columns, or if the model refuses such queries.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(9,)))
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) != 2 or hasattr(X, "tocsr"):
        return []
    pairs = rng.integers(shape[0], size=(min(_ASKED, 40 * (shape[1] + 2)), 2))
    start = take_rows(X, pairs[:, 0])
    ways = {place: _find_way(X, place, pairs) for place in range(shape[1])}

    def move(share: FloatArray) -> Any:
        """Return points between the first record of each pair and the second."""
        moved = start.copy()
        for column, way in ways.items():
            if way is not None and hasattr(X, "iloc"):
                moved.isetitem(column, np.asarray(start.iloc[:, column], np.float64) + share * way)
            elif way is not None:
                moved[:, column] = start[:, column] + share * way
        return moved

    def ask(share: FloatArray) -> FloatArray:
        logs = predict_logs(model, move(share), classes=classes)
        return np.asarray(np.exp(show_logs(logs, decimals)[:, 1]))

    try:
        first, last = ask(np.zeros(len(start))), ask(np.ones(len(start)))
        step = 10.0**-decimals
        steps = np.maximum(np.round(np.abs(last - first) / step), 1)
        edge = np.minimum(first, last) + (np.floor(rng.random(steps.size) * steps) + 0.5) * step
        before, after = np.zeros(len(start)), np.ones(len(start))
        for _ in range(_HALVINGS):
            middle = (before + after) / 2
            beyond = (ask(middle) > edge) == (last > first)
            after, before = np.where(beyond, middle, after), np.where(beyond, before, middle)
        reached = follow_records(model, move((before + after) / 2)).reached
    except Exception:  # it does not take such points
        return []
    apart = np.flatnonzero(np.abs(last - first) > step / 2)
    if place >= len(reached) or apart.size < 2:
        return []
    edge = np.clip(edge, step / 4, 1 - step / 4)  # where no answer changes, it may be beyond
    odds = np.log(edge / (1 - edge))[:, None]
    return [_Asked(reached[place].features, odds, apart, (edge * (1 - edge))[apart])]


def _find_way(X: Any, column: int, pairs: IntArray) -> FloatArray | None:  # noqa: N803
    """Return by how much a column differs within pairs; None where it is not a measurement."""
    values = np.asarray(X.iloc[:, column] if hasattr(X, "iloc") else X[:, column])
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        return None
    if not np.isfinite(numbers).all() or (numbers == np.round(numbers)).all():
        return None
    return np.asarray(numbers[pairs[:, 1]] - numbers[pairs[:, 0]])


def _read_odds(estimator: Any, logs: FloatArray) -> FloatArray | None:
    """Return the decision values that answers determine; None if they do not."""
    count, classes = len(np.atleast_2d(estimator.coef_)), logs.shape[1]
    with np.errstate(invalid="ignore"):  # classes that are impossible, whose answers are left out
        if count == 1 and classes == 2:
            return np.asarray(logs[:, 1:] - logs[:, :1])
        centred = np.asarray(logs - logs.mean(axis=1, keepdims=True))
    if count != classes:
        return None
    if identify(estimator) in _SOFTMAX and estimator.solver != "liblinear":
        return centred
    if identify(estimator) in _SQUARES and estimator.fit_intercept:
        # Targets are 1 and −1, and decisions of least squares sum to what targets do
        return np.asarray(centred + (2 - classes) / classes)
    return None  # one class against the rest: answers do not determine the sum of decisions


def _solve_coefficients(estimator: Any, features: Any, asked: _Asked) -> Any:
    """Return a copy with the coefficients that answers determine; None if they do not."""
    if features.shape[1] > _WIDEST or asked.rows.size < 2:
        return None
    rows, weight = _densify(features, np.arange(min(features.shape[0], _ASKED))), asked.weight
    middle = rows.mean(axis=0) * bool(estimator.fit_intercept)
    # With an l2 penalty, coefficients lie in the span of the features
    _, sizes, turned = np.linalg.svd(rows - middle, full_matrices=False)
    turned, sizes = turned[sizes > _RANK * sizes[0]], sizes[sizes > _RANK * sizes[0]]
    known = (_densify(asked.features, asked.rows) - middle) @ turned.T / sizes
    if estimator.fit_intercept:
        known = np.column_stack([known, np.ones(len(known))])
    told = weight[:, None] * asked.odds[asked.rows]
    found = np.linalg.lstsq(weight[:, None] * known, told, rcond=None)[0]
    solved = copy.copy(estimator)
    slopes = (found[: sizes.size] / sizes[:, None]).T @ turned
    solved.coef_ = slopes.reshape(np.shape(estimator.coef_))
    if estimator.fit_intercept:
        solved.intercept_ = found[-1] - slopes @ middle
    return solved


def _densify(features: Any, rows: IntArray) -> FloatArray:
    if hasattr(features, "tocsr"):
        return np.asarray(features.tocsr()[rows].toarray(), np.float64)
    return np.asarray(features, np.float64)[rows]
