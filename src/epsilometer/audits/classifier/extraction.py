"""Compute a linear model's coefficients from its answers, and training records from these.

Log-odds of such a model are linear in its features, so that as many answers as it has coefficients
give these away, and with them all that its file does to whoever knows all other records.
"""

import copy
from typing import Any

import numpy as np

from epsilometer.audits.classifier.attacks.shadows import show_logs
from epsilometer.audits.classifier.model_file import Leak
from epsilometer.audits.classifier.model_tables import follow_records
from epsilometer.audits.classifier.rebuilding import rebuild_records
from epsilometer.audits.classifier.sklearn_models import identify, predict_logs
from epsilometer.types import FloatArray, IntArray

_ASKED = 20_000  # questions at most
_WIDEST = 3000  # coefficients that are solved for
_RANK = 1e-10  # of the largest singular value: less is no direction of the features
_LEAST = 1e-12  # weight of an answer that is nearly certain, and has lost its digits
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
    """Return what an API's answers tell of single records to whoever knows all others.

    Guarantee: records that are counted were computed, from answers as they are shown.
    Assumption: whoever asks knows how the model was trained. Of models that are not linear nothing
        is computed, and nothing is said.

    Args:
        model: Fitted.
        X: The features it was fitted to, about which it is asked.
        codes: Position of each record's label among the classes.
        classes: All labels, in order.
        decimals: To which probabilities are rounded; None: not at all.
        seed: By which records are chosen.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> X = np.random.default_rng(0).normal(size=(80, 3))
        >>> y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)
        >>> model = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(X, y)
        >>> compute_from_answers(model, X, y, np.array([0, 1]))[0].records
        80
    """
    leaks = []
    logs: FloatArray | None = None
    for estimator, features in follow_records(model, X).reached:
        name = type(estimator).__name__
        held = rebuild_records(estimator, features, codes, seed=seed)
        if held is None or not held.hits:
            continue  # not linear, or not solved so exactly that records follow
        if logs is None:
            logs = show_logs(predict_logs(model, X, classes=classes), decimals)
        solved = _solve_coefficients(estimator, features, logs)
        found = None if solved is None else rebuild_records(solved, features, codes, seed=seed)
        if found is not None and found.hits:
            said = (
                f"From answers at {min(codes.size, _ASKED):,} points the coefficients of {name} "
                "follow, and from these, whoever knows all other records computes the missing one: "
                f"{found.hits:,} of {found.tried:,} tried."
            )
            leaks.append(
                Leak(
                    kind="rebuilt",
                    records=round(found.hits / found.tried * codes.size),
                    finding=said,
                )
            )
        elif decimals is not None and solved is not None:
            said = (
                f"Rounding hides the coefficients of {name}, from which whoever knows all other "
                "records computes the missing one. Many questions, chosen where answers change, "
                "find them nevertheless: limit how often one may ask."
            )
            leaks.append(Leak(kind="statistics", records=0, finding=said))
    return tuple(leaks)


def _solve_coefficients(estimator: Any, features: Any, logs: FloatArray) -> Any:
    """Return a copy with the coefficients that answers tell; None where they do not tell them."""
    coefficients = np.atleast_2d(estimator.coef_)
    sparse = hasattr(features, "tocsr")
    usable = np.flatnonzero(np.isfinite(logs).all(axis=1))[:_ASKED]
    if features.shape[1] > _WIDEST or usable.size < 2:
        return None
    logs = logs[usable]
    if len(coefficients) == 1:
        odds = (logs[:, 1] - logs[:, 0])[:, None]
    elif identify(estimator) in _SOFTMAX and estimator.solver != "liblinear":
        odds = logs - logs.mean(axis=1, keepdims=True)
    elif identify(estimator) in _SQUARES and estimator.fit_intercept:
        # Targets are 1 and −1, and decisions of least squares sum to what targets do
        total = 2 - logs.shape[1]
        odds = logs - logs.mean(axis=1, keepdims=True) + total / logs.shape[1]
    else:
        return None  # of each class against the others: answers tell no sum of them
    if odds.shape[1] != len(coefficients):
        return None
    asked = np.asarray(features.tocsr()[usable].toarray() if sparse else features, np.float64)
    asked = asked if sparse else asked[usable]
    middle = asked.mean(axis=0) * bool(estimator.fit_intercept)
    # With an l2 penalty, coefficients have no part that no feature has
    _, sizes, turned = np.linalg.svd(asked - middle, full_matrices=False)
    turned, sizes = turned[sizes > _RANK * sizes[0]], sizes[sizes > _RANK * sizes[0]]
    known = (asked - middle) @ turned.T / sizes
    if estimator.fit_intercept:
        known = np.column_stack([known, np.ones(len(known))])
    # An answer of nearly 0 or 1 has few digits left, and counts for as little
    likeliest = np.exp(logs.max(axis=1))
    weight = np.maximum(1 - likeliest, _LEAST)[:, None]
    found = np.linalg.lstsq(weight * known, weight * odds, rcond=None)[0]
    solved = copy.copy(estimator)
    slopes = (found[: sizes.size] / sizes[:, None]).T @ turned
    solved.coef_ = slopes.reshape(np.shape(estimator.coef_))
    if estimator.fit_intercept:
        solved.intercept_ = found[-1] - slopes @ middle
    return solved
