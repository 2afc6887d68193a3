"""DTP itself, where all features that there could be can be written down."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.leave_one_out.estimators import is_exactly
from epsilometer.audits.classifier.leave_one_out.pdtp import DtpOver, dtp_over
from epsilometer.errors import InvalidArgument
from epsilometer.types import IntArray

LARGEST_DOMAIN = 1 << 20  # combinations of values


def dtp_exact(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    domain: Sequence[Sequence[Any]] | None = None,
    records: IntArray | str | None = None,
    **options: Any,
) -> DtpOver:
    """DTP by asking about every combination of values (training_privacy, Definition 4.1).

    Guarantees: the maximum over the whole domain and all classes; ``query`` counts through the
        domain with the last column fastest.
    Assumes: nobody can ask about values outside the domain.

    Args:
        estimator: As for ``pdtp``.
        X: Features.
        y: Labels.
        domain: Values of each column; for categorical and Bernoulli naive Bayes what they know.
        records: As for ``pdtp``.
        options: As for ``dtp_over``.

    Example:
        >>> from sklearn.naive_bayes import CategoricalNB
        >>> X, y = [[0, 0], [0, 1], [1, 0], [1, 1], [1, 1]], [0, 0, 0, 1, 1]
        >>> found = dtp_exact(CategoricalNB(), X, y)
        >>> found.values.round(3)
        array([0.656, 0.561, 0.561, 0.552, 0.552])
        >>> enumerated([[0, 1], [0, 1]], 2)[found.query[0]]  # where the first shows most
        array([0, 0])
    """
    columns = np.shape(X)[1]
    grid = enumerated(_known_domain(estimator, X) if domain is None else domain, columns)
    found = dtp_over(estimator, X, y, grid, records=records, **options)
    told = tuple(text for text in found.caveats if "lower bound of DTP" not in text)
    return dataclasses.replace(found, caveats=told)


def enumerated(domain: Sequence[Sequence[Any]], columns: int) -> NDArray[Any]:
    """All combinations, one a row, the last column fastest."""
    if len(domain) != columns:
        raise InvalidArgument(f"Expected values of {columns} columns, got {len(domain)}.")
    size = math.prod(len(values) for values in domain)
    if not 0 < size <= LARGEST_DOMAIN:
        raise InvalidArgument(
            f"Expected 1 to {LARGEST_DOMAIN:,} combinations of values, got {size:,}. "
            "dtp_over asks about some of them, dtp_upper_bound needs none."
        )
    axes = np.meshgrid(*(np.asarray(values) for values in domain), indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1)


def _known_domain(estimator: Any, X: Any) -> list[Sequence[Any]]:  # noqa: N803
    columns = np.shape(X)[1]
    if is_exactly(estimator, "sklearn.naive_bayes", "CategoricalNB"):
        known = np.asarray(X).max(axis=0).astype(np.int64) + 1
        least = 0 if estimator.min_categories is None else estimator.min_categories
        return [range(values) for values in np.maximum(known, least)]
    if is_exactly(estimator, "sklearn.naive_bayes", "BernoulliNB"):
        edge = estimator.binarize
        return [(0, 1) if edge is None else (edge, edge + 1)] * columns
    raise InvalidArgument(
        f"Expected domain=[values of each column] for {type(estimator).__name__}, got none. "
        "Where values are not few, dtp_over asks about those you choose."
    )
