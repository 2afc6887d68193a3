"""Fit a normal law to what the shadow models say of each record."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray

Variance: TypeAlias = Literal["auto", "record", "global"]
Centre: TypeAlias = Literal["mean", "median"]
LEAST_VARIANCE = 1e-8  # added to each: models that never differ are not infinitely sure
_BLOCK = 2**12  # records that are checked together
_LN_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)
class Normals:
    """A normal law for each record: what one side of the shadows says.

    Attributes:
        mean: Shape ``(n,)``.
        variance: Shape ``(n,)``, or one for all.
    """

    mean: FloatArray
    variance: FloatArray

    def log_density(self, values: FloatArray) -> FloatArray:
        """Return ln of the density at one value per record."""
        variance = self.variance + LEAST_VARIANCE
        return np.asarray(
            -0.5 * (_LN_2PI + np.log(variance) + (values - self.mean) ** 2 / variance)
        )


def fit_normals(
    values: FloatArray, where: BoolArray, *, variance: Variance, centre: Centre = "mean"
) -> Normals:
    """Fit a normal law for each record to some of its models.

    A record without any such model has the mean of the others' centres and standard deviations.

    Args:
        values: Confidences, shape ``(models, n)``.
        where: Which models count for each record, shape ``(models, n)``.
        variance: Variance of each record's own models, or of all together about their own centres.
        centre: Mean or median.

    Example:
        >>> fit = fit_normals(np.array([[0.0], [20.0]]), np.ones((2, 1), bool), variance="record")
        >>> fit.mean, fit.variance
        (array([10.]), array([100.]))
    """
    counts = where.sum(axis=0)
    if not counts.any():
        raise InvalidArgument("Expected some model on this side for some record, got none.")
    some = counts > 0
    each = np.maximum(counts, 1)
    middle = mean = np.sum(values, axis=0, where=where, dtype=np.float64) / each
    if centre == "median":
        middle = np.zeros(counts.size)
        middle[some] = np.nanmedian(np.where(where, values, np.nan)[:, some], axis=0)
    middle = np.where(some, middle, middle[some].mean())
    if variance == "global":
        apart = values[where] - np.broadcast_to(middle, where.shape)[where]
        return Normals(middle, np.asarray(apart.var()))
    spread = np.empty(counts.size)
    for block in _divide_records(counts.size):
        apart = values[:, block] - mean[block]
        spread[block] = np.square(apart, out=apart).sum(axis=0, where=where[:, block])
    spread /= each
    absent = np.sqrt(spread[some]).mean() ** 2
    return Normals(middle, np.where(some, spread, absent))


def _divide_records(count: int) -> Iterator[slice]:
    """Yield blocks of records, whose values of all models stay in a cache."""
    return (slice(start, start + _BLOCK) for start in range(0, count, _BLOCK))
