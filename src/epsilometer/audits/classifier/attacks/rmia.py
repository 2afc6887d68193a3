"""RMIA: did the target gain more on the record than on most others?

Zarifzadeh, Liu, Shokri 2024. The pairwise test of a record against each of a population is counted
by sorting, in O(n log n).
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.classifier.attacks.membership import RecordScores
from epsilometer.audits.classifier.attacks.shadows import FLOOR, ShadowPool, mean_by_side
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray


def rmia(
    pool: ShadowPool,
    target: int | ArrayLike,
    *,
    online: bool = True,
    a: float = 0.3,
    gamma: float = 1.0,
    population: ArrayLike | None = None,
) -> RecordScores:
    """Share of the population z with LR(x, z) ≥ γ, for each record x; "in" iff above ½.

    LR(x, z) = (p(x | target)/p(x)) / (p(z | target)/p(z)), with p of the own label. Online p(x) is
    the mean of its means over models with the record and without it; offline, from models without
    it alone, ((1 + a) p_out(x) + (1 − a))/2.

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        online: Whether models with the record are used.
        a: Offline: how much models without a record tell of those with it, in [0, 1].
        gamma: γ, by how much x must have gained more than z. Where all are compared with one
            population, γ changes no order: above 1, as published, it only makes scores equal.
        population: Which records of the pool are z, shape ``(n,)``; by default all. A record is
            then compared with itself too, which adds the same to every score.

    Example:
        >>> p = np.full((4, 3, 2), 0.5)
        >>> member = [[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 1]]
        >>> pool = ShadowPool.from_arrays(np.log(p), member, ["a", "b", "b"])
        >>> target = np.log([[0.99, 0.01], [0.5, 0.5], [0.7, 0.3]])
        >>> rmia(pool, target, gamma=1.5).values.round(2)  # the first gained on both others
        array([0.67, 0.33, 0.  ])
    """
    _validate.probability(a=a)
    _validate.positive(gamma=gamma)
    shadows, found = pool.against(target)
    seen = np.maximum(found[np.arange(pool.records), pool.columns], FLOOR)
    gained = seen - reference(shadows, online=online, a=a)
    return RecordScores(
        attack=f"RMIA, {'online' if online else 'offline'}",
        values=dominated(gained, gained[_population(population, pool.records)], gamma=gamma),
        threshold=0.5,
        convention=f"γ = {gamma:g}{'' if online else f', a = {a:g}'}, {shadows.models} shadows",
        cites=("zarifzadeh2024",),
    )


def reference(pool: ShadowPool, *, online: bool, a: float) -> FloatArray:
    """ln p(x) of each record: how likely its label is for a model nobody knows, shape ``(n,)``."""
    likely = np.exp(pool.own)
    outside = mean_by_side(pool, likely, inside=False)
    if online:
        mixed = (outside + mean_by_side(pool, likely, inside=True)) / 2
    else:
        mixed = ((1 + a) * outside + (1 - a)) / 2
    return np.log(np.maximum(mixed, math.exp(FLOOR)))


def dominated(gained: FloatArray, population: FloatArray, *, gamma: float) -> FloatArray:
    """Share of a population whose ln ratio is at least ln γ below each of ``gained``.

    Sorting the population once answers every record by a search: O(n log n), nothing n × n.

    Example:
        >>> dominated(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0]), gamma=1.0)
        array([0.5, 1. , 1. ])
    """
    ordered = np.sort(population)
    return np.searchsorted(ordered, gained - math.log(gamma), side="right") / ordered.size


def _population(population: ArrayLike | None, n: int) -> BoolArray:
    if population is None:
        return np.ones(n, bool)
    chosen = np.asarray(population, bool)
    if chosen.shape != (n,) or not chosen.any():
        raise InvalidArgument(
            f"Expected a truth value for each of {n} records in population, some of them true, "
            f"got shape {chosen.shape} with {chosen.sum()} true."
        )
    return chosen
