"""LiRA: how likely is the target's confidence under models with the record, and without it?

Carlini et al. 2022. Confidence is ln p/(1−p) of the record's own label; over models it is taken to
be normal, with a mean of each record's own.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from epsilometer.audits.classifier.attacks.membership import RecordScores
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, own_and_rest
from epsilometer.errors import InvalidArgument
from epsilometer.types import BoolArray, FloatArray

Variance: TypeAlias = Literal["auto", "record", "global"]
Centre: TypeAlias = Literal["mean", "median"]
_ENOUGH = 32  # models on a side from which each record may have a variance of its own
_LEAST = 1e-8  # variance added to each: models that never differ are not infinitely sure
_LN_2PI = float(np.log(2 * np.pi))


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
        """ln of the density at one value a record."""
        variance = self.variance + _LEAST
        return np.asarray(
            -0.5 * (_LN_2PI + np.log(variance) + (values - self.mean) ** 2 / variance)
        )


def lira(
    pool: ShadowPool,
    target: int | ArrayLike,
    *,
    online: bool = True,
    variance: Variance = "auto",
    centre: Centre = "mean",
) -> RecordScores:
    """Scores of the likelihood-ratio attack.

    Online: ln density with the record − ln density without it, at the target's confidence; "in"
    iff above 0. Offline, which needs no model with the record: by how many standard deviations the
    target is surer than models without it (a monotone form of 1 − Pr[model without > target]).

    Args:
        pool: The shadows.
        target: ln p of the target, shape ``(n, classes)``, or the number of a model of the pool.
        online: Whether models with the record are used.
        variance: ``"record"``: of each record's own models. ``"global"``: of all, about each
            record's own centre, which is better where models are few. ``"auto"``: ``"record"``
            where every record has 32 models on either side. Always divided by the number of
            models, not one less.
        centre: Of a record's models.

    Example:
        >>> member = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], bool)
        >>> p = np.where(member, [[0.9], [0.8], [0.8], [0.9]], [[0.6], [0.5], [0.5], [0.6]])
        >>> every = np.stack([p, 1 - p], axis=2)
        >>> every[:, 1] = every[:, 1, ::-1]
        >>> pool = ShadowPool.from_arrays(np.log(every), member, ["a", "b"])
        >>> lira(pool, np.log([[0.9, 0.1], [0.4, 0.6]])).values > 0
        array([ True, False])
    """
    if variance not in ("auto", "record", "global") or centre not in ("mean", "median"):
        raise InvalidArgument(
            "Expected variance to be 'auto', 'record' or 'global' and centre 'mean' or 'median', "
            f"got {variance!r} and {centre!r}."
        )
    shadows, found = pool.against(target)
    seen = shadows.margins_of(own_and_rest(found.astype(np.float32), shadows.columns))
    sides = (True, False) if online else (False,)
    if variance == "auto":
        fewest = min(int((shadows.member == side).sum(axis=0).min()) for side in sides)
        variance = "record" if fewest >= _ENOUGH else "global"
    fits = [
        normals(shadows.margin, shadows.member == side, variance=variance, centre=centre)
        for side in sides
    ]
    if online:
        inside, outside = fits
        values = inside.log_density(seen) - outside.log_density(seen)
    else:
        (outside,) = fits
        values = (seen - outside.mean) / np.sqrt(outside.variance + _LEAST)
    return RecordScores(
        attack=f"LiRA, {'online' if online else 'offline'}",
        values=values,
        threshold=0.0,
        convention=f"ln p/(1−p) of the own label; {centre} and {variance} variance, "
        f"{shadows.models} shadows",
        cites=("carlini2022",),
    )


def normals(
    values: FloatArray, where: BoolArray, *, variance: Variance, centre: Centre = "mean"
) -> Normals:
    """A normal law for each record, fitted to some of its models.

    A record without any such model has the mean of the others' centres and standard deviations.

    Args:
        values: Confidences, shape ``(models, n)``.
        where: Which models count for each record, shape ``(models, n)``.
        variance: Of each record's own models, or of all together about their own centres.
        centre: Mean or median.

    Example:
        >>> fit = normals(np.array([[0.0], [20.0]]), np.array([[True], [True]]), variance="record")
        >>> fit.mean, fit.variance
        (array([10.]), array([100.]))
    """
    counts = where.sum(axis=0)
    if not counts.any():
        raise InvalidArgument("Expected some model on this side for some record, got none.")
    some = counts > 0
    each = np.maximum(counts, 1)
    mean = np.sum(values, axis=0, where=where, dtype=np.float64) / each
    middle = _medians(values, where, counts) if centre == "median" else mean
    middle = np.where(some, middle, middle[some].mean())
    if variance == "global":
        apart = values[where] - np.broadcast_to(middle, where.shape)[where]
        return Normals(middle, np.asarray(apart.var()))
    spread = np.square(values - mean).sum(axis=0, where=where) / each
    absent = np.sqrt(spread[some]).mean() ** 2
    return Normals(middle, np.where(some, spread, absent))


def _medians(values: FloatArray, where: BoolArray, counts: FloatArray) -> FloatArray:
    ordered = np.sort(np.where(where, values, np.inf), axis=0)
    at = np.arange(counts.size)
    low, high = np.maximum(counts - 1, 0) // 2, counts // 2
    with np.errstate(invalid="ignore"):
        return np.asarray((ordered[low, at] + ordered[np.minimum(high, len(values) - 1), at]) / 2)
