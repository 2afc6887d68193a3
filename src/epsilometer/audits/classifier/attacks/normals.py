"""Fit a normal distribution to the shadow models' confidence in each record."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray, IntArray

Variance: TypeAlias = Literal["auto", "record", "global"]
Centre: TypeAlias = Literal["mean", "median"]
LEAST_VARIANCE = 1e-8  # added to each: equal models do not give infinite likelihoods
_TOGETHER = 2**20  # values of models and records that are computed together
_LN_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)
class Normals:
    """Normal distributions of one side of the shadows, one per record.

    Attributes:
        mean: Means, shape ``(n,)``.
        variance: Variances, shape ``(n,)``, or one for all.
    """

    mean: FloatArray
    variance: FloatArray

    def log_density(self, values: FloatArray) -> FloatArray:
        """Return the log-density at one value per record."""
        variance = self.variance + LEAST_VARIANCE
        return np.asarray(
            -0.5 * (_LN_2PI + np.log(variance) + (values - self.mean) ** 2 / variance)
        )


def fit_normals(
    read: Callable[[slice], FloatArray],
    member: BoolArray,
    sides: Sequence[bool],
    *,
    variance: Variance,
    centre: Centre = "mean",
) -> list[Normals]:
    """Fit a normal distribution per record: to models with the record, or to those without it.

    A record without any such model gets the mean of the others' centres and standard deviations.

    Args:
        read: Returns confidences of a block of records, shape ``(models, block)``.
        member: Whether each model was trained on each record, shape ``(models, n)``.
        sides: Which distributions to fit: True for models with the record.
        variance: Variance of each record's own models, or of all together about their own centres.
        centre: Mean or median.

    Example:
        >>> values = np.array([[0.0], [20.0]])
        >>> read = lambda block: values[:, block]
        >>> (fit,) = fit_normals(read, np.ones((2, 1), bool), [True], variance="record")
        >>> fit.mean, fit.variance
        (array([10.]), array([100.]))
    """
    fits = [_Fit(member, side, variance, centre) for side in sides]
    for block in divide_records(member):
        values = read(block)
        for fit in fits:
            fit.add(values, block)
    return [fit.finish() for fit in fits]


class _Fit:
    """Sums for one side, accumulated block by block."""

    def __init__(self, member: BoolArray, side: bool, variance: Variance, centre: Centre) -> None:
        self.member, self.side, self.variance, self.centre = member, side, variance, centre
        self.counts = count_models(member, inside=side)
        if not self.counts.any():
            raise InvalidArgument("Expected some model on this side for some record, got none.")
        self.middle, self.squares = np.zeros(member.shape[1]), np.zeros(member.shape[1])
        self.apart = 0.0

    def add(self, values: FloatArray, block: slice) -> None:
        """Add a block of records."""
        where, counts = self.member[:, block] == self.side, self.counts[block]
        middle = mean = np.sum(values, axis=0, where=where, dtype=np.float64) / np.maximum(
            counts, 1
        )
        if self.centre == "median":
            middle, some = np.zeros(counts.size), counts > 0
            middle[some] = np.nanmedian(np.where(where, values, np.nan)[:, some], axis=0)
        self.middle[block] = middle
        apart = values - (mean if self.variance == "record" else middle)
        if self.variance == "global":
            self.apart += float(apart.sum(where=where))
        self.squares[block] = np.square(apart, out=apart).sum(axis=0, where=where)

    def finish(self) -> Normals:
        """Return the distributions."""
        some = self.counts > 0
        middle = np.where(some, self.middle, self.middle[some].mean())
        if self.variance == "global":
            total = self.counts.sum()
            return Normals(middle, self.squares.sum() / total - (self.apart / total) ** 2)
        spread = self.squares / np.maximum(self.counts, 1)
        absent = np.sqrt(spread[some]).mean() ** 2
        return Normals(middle, np.where(some, spread, absent))


def count_models(member: BoolArray, *, inside: bool) -> IntArray:
    """Return how many models were trained with each record, or without it."""
    having = np.asarray(member.sum(axis=0), np.int64)
    return having if inside else len(member) - having


def divide_records(member: BoolArray) -> Iterator[slice]:
    """Yield blocks of records, so that memory does not grow with their number."""
    models, records = member.shape
    width = max(1, _TOGETHER // models)
    return (slice(start, start + width) for start in range(0, records, width))
