"""Leave-one-out by definition: scikit-learn fits again without the record."""
# ruff: noqa: N803 - X, as in scikit-learn

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from epsilometer.audits.classifier.leave_one_out.families import Family, family_of


def proba(model: Any, at: Any) -> NDArray[Any]:
    """Of a decision function by the documented map, written out here once more."""
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(at))
    decision = model.decision_function(at)
    if decision.ndim == 1:
        decision = np.stack([np.zeros_like(decision), decision], axis=1)
    weights = np.exp(decision - decision.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def refitted(estimator: Any, X: Any, y: Any, record: int, at: Any) -> NDArray[Any]:
    """Probabilities at given rows without a record, with a column for every class of y."""
    model, columns = _without(estimator, X, y, record)
    result = np.zeros((len(at), np.unique(y).size))
    result[:, columns] = proba(model, at)
    return result


def refitted_logs(estimator: Any, X: Any, y: Any, records: Any) -> Any:
    """ln p at each record without it; −inf for a class that is gone with it."""
    result = np.full((len(records), np.unique(y).size), -np.inf)
    for row, record in enumerate(records):
        model, columns = _without(estimator, X, y, record)
        result[row, columns] = model.predict_log_proba(X[[record]])[0]
    return result


def _without(estimator: Any, X: Any, y: Any, record: int) -> tuple[Any, NDArray[Any]]:
    """The model fitted without a record, and which of the classes of y it knows."""
    kept = np.arange(len(y)) != record
    model = clone(estimator).fit(X[kept], y[kept])
    return model, np.searchsorted(np.unique(y), model.classes_)


def assert_is_leave_one_out(
    family: Family, estimator: Any, X: Any, y: Any, *, records: Any = None, atol: float = 1e-9
) -> None:
    """ln p of the family agrees with refits: with all records, at each, and at all without few."""
    y = np.asarray(y)
    records = np.arange(len(y)) if records is None else np.asarray(records)
    assert family_of(estimator) is family
    assert family.refuses(estimator, X, y) is None
    model = family.fit(estimator, X, y)
    assert_same(model.log_proba(X), proba(clone(estimator).fit(X, y), X), atol=atol)
    classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    assert model.classes.tolist() == classes.tolist()
    last = records[counts[codes[records]] == 1]
    assert (model.own(last)[np.arange(last.size), codes[last]] == -np.inf).all()
    by_hand = [refitted(estimator, X, y, int(t), X[[t]])[0] for t in records]
    assert_same(model.own(records), np.array(by_hand), atol=atol)
    for record in records[:3]:
        by_hand_there = refitted(estimator, X, y, int(record), X)
        assert_same(model.without(int(record), X), by_hand_there, atol=atol)


def assert_same(log_proba: Any, by_hand: Any, *, atol: float) -> None:
    """Up to atol of ln p; beside it scikit-learn has a small p as 1 − p, with that rounding."""
    np.testing.assert_allclose(np.exp(log_proba), by_hand, rtol=atol, atol=1e-15)
    np.testing.assert_allclose(np.exp(log_proba).sum(axis=1), 1.0, atol=1e-12)
