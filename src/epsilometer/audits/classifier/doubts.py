"""Find reasons why measurements of rows say little about people: copies, varying answers."""

import warnings
from typing import Any

import numpy as np

from epsilometer.audits.classifier.leave_one_out.families import family_of
from epsilometer.audits.classifier.sklearn_models import (
    clone_with_seed,
    count_rows,
    predict_logs,
    seed_globals,
    take_rows,
    unwrap_pipeline,
)
from epsilometer.types import BoolArray, IntArray

_ASKED = 200  # records about which a model is queried twice
_SAME = 1e-6  # largest difference of equal answers: sums on several cores differ
_VARIED = 0.8  # share of distinct values from which a column identifies people
_FEWEST = 20  # distinct rows needed to decide that
_MANY = 0.05  # share of rows with copies above which rates over all rows are in doubt


def find_doubts(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    classes: Any,
    codes: IntArray,
    *,
    seed: int = 0,
) -> tuple[list[str], list[str]]:
    """Return reasons why measurements of rows say little about people, and remarks.

    Args:
        estimator: Not fitted.
        X: Features.
        classes: All labels, in order.
        codes: Position of each record's label among them.
        seed: Seed of training.
    """
    copies, many = describe_copies(find_copies(X))
    vary = describe_varying(estimator, X, classes, codes, seed=seed)
    doubts = [each for each in (copies if many else "", vary) if each]
    return doubts, [copies] if copies and not many else []


def find_copies(X: Any) -> BoolArray:  # noqa: N803
    """Return which rows occur more than once in a table, if that is unlikely to be coincidence.

    Coincidence is possible if no column is a measurement or a name: many people share few answers.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(30, 2))
        >>> int(find_copies(np.vstack([rows, rows[:3]])).sum())
        6
    """
    n = count_rows(X)
    nobody = np.zeros(n, bool)
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if hasattr(X, "tocsr") or len(shape) != 2 or not shape[1]:
        return nobody
    # A row is identified by a sum of its columns with random weights: two sums are equal by chance
    # in one of 2⁶⁴ pairs, and memory does not grow with the columns
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(10,)))
    weights = rng.integers(2**63, size=shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    sums, most = np.zeros(n, np.uint64), 0
    for place, weight in enumerate(weights):
        column = np.asarray(X.iloc[:, place] if hasattr(X, "iloc") else X[:, place])
        given = column.astype(np.str_) if column.dtype.kind == "O" else column
        values, codes = np.unique(given, return_inverse=True)
        sums += codes.astype(np.uint64) * weight
        most = max(most, values.size)
    _, rows, counts = np.unique(sums, return_inverse=True, return_counts=True)
    if counts.size < _FEWEST or most < _VARIED * counts.size:
        return nobody
    return np.asarray(counts[np.ravel(rows)] > 1)


def describe_copies(copies: BoolArray) -> tuple[str, bool]:
    """Describe rows with copies, and return whether they are too many for overall rates to hold."""
    count = int(copies.sum())
    if not count:
        return "", False
    said = (
        f"{count:,} of {copies.size:,} rows occur more than once, with values that no two people "
        "share by chance. If they belong to one person, leaving one out keeps the copies, so "
        "that person's risk was not measured. Train on one row per person, and audit that."
    )
    return said, count > _MANY * copies.size


def describe_varying(
    estimator: Any,
    X: Any,  # noqa: N803
    classes: Any,
    codes: IntArray,
    *,
    seed: int = 0,
) -> str:
    """Return a caveat if a trained model answers the same query differently; else an empty text.

    Noise added to answers hides a record from a single query only.
    """
    inner = unwrap_pipeline(estimator, X, codes, preprocessing="fixed", seed=seed).estimator
    if family_of(inner) is not None:
        return ""  # these are known to be deterministic
    model = clone_with_seed(estimator, seed, overwrite=False)
    asked = take_rows(X, np.arange(min(_ASKED, codes.size)))
    with seed_globals(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, classes[codes])
        one, other = (np.exp(predict_logs(model, asked, classes=classes)) for _ in range(2))
        vary = np.abs(one - other).max(axis=1) > _SAME
        if hasattr(model, "predict"):
            said = [np.asarray(model.predict(asked)) for _ in range(2)]
            vary |= said[0] != said[1]
    if not vary.any():
        return ""
    return (
        f"The trained model gave two different answers to the same query at {int(vary.sum()):,} "
        f"of {vary.size:,} records. Each record was queried once; repeated queries average the "
        "noise out. Audit the model without noise in its answers."
    )
