"""Which record makes the difference: four ways, by shadow models that have not seen it.

As shibahara2021 has them: a record drawn at random, or the one that shadow models find hardest; as
it is, or moved uphill against them.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.audits.training.canaries import (
    Gradient,
    adversarial,
    highest_loss,
    mean_gradient,
    random_record,
)
from epsilometer.core.record import Record, check_records
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import losses
from epsilometer.types import FloatArray, IntArray

Way: TypeAlias = Literal["random", "random + adversarial", "high loss", "high loss + adversarial"]
WAYS: tuple[Way, ...] = get_args(Way)
_FEWEST = 2  # records that a model can be trained on
_SEEN = 512  # records whose losses are computed at once
Training: TypeAlias = Callable[[FloatArray, IntArray, np.random.Generator], Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Chosen:
    """The record that differs, and the data without it.

    Attributes:
        record: What the one data set has and the other has not.
        place: Where the record came from: which row of the data.
        others: All other rows, rising: what both data sets have.
    """

    record: Record
    place: int
    others: IntArray


def shadow_models(
    train: Training,
    features: ArrayLike,
    labels: ArrayLike,
    *,
    apart_from: ArrayLike,
    models: int = 10,
    rng: np.random.Generator,
) -> list[Any]:
    """Models trained on data of their own, each with randomness of its own.

    Guarantees: no record of ``apart_from`` is trained on, also where both data have it.

    Args:
        train: ``train(features, labels, rng)``, trains as what is audited does and returns a torch
            module, or a model with ``predict_proba``.
        features: Of the shadows' records, ``(n, …)``.
        labels: Their classes.
        apart_from: Features of the records that :func:`differing_record` chooses from.
        models: How many; ten in the paper.
        rng: Split among them.
    """
    _validate.whole(1, models=models)
    rows, classes = check_records(features, labels)
    audited = set(_names(np.asarray(apart_from)))
    own = np.array([name not in audited for name in _names(rows)])
    if own.sum() < _FEWEST:
        raise InvalidArgument(
            "Expected records of their own for shadow models, got "
            f"{int(own.sum())} that are not among those of the audit. Split the data, or take test "
            "data."
        )
    return [train(rows[own], classes[own], stream) for stream in rng.spawn(models)]


def differing_record(
    features: ArrayLike,
    labels: ArrayLike,
    way: Way,
    *,
    shadows: Sequence[Any],
    rng: np.random.Generator,
    gradient: Gradient | None = None,
    steps: int = 40,
    step: float = 0.01,
    within: tuple[ArrayLike, ArrayLike] | Literal["data"] | None = None,
) -> Chosen:
    """Chooses the record that an audit adds or leaves out.

    Guarantees: the random way depends on ``rng`` alone, high loss on the shadows alone; a record
        that is moved is the one that the same way would choose unmoved.
    Assumes: shadows were trained on other data than these, as by :func:`shadow_models`; else the
        hardest record is one that they happen not to have seen.

    Args:
        features: Of the records to choose from, ``(n, …)``, of two records or more.
        labels: Their classes.
        way: One of ``WAYS``.
        shadows: Models that return logits (torch) or have ``predict_proba``; not needed for
            ``"random"``, and may then be empty.
        rng: What draws.
        gradient: ``gradient(x, y)`` of the shadows' mean loss, where they are no torch modules.
        steps: Of noise.
        step: How far each moves every feature.
        within: Limits of features, ``(lowest, highest)``, to which the moved record is clipped
            after every step; ``"data"`` for each feature's range in the data; None for none, as in
            the paper.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, y = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.2]]), [0, 1, 1]
        >>> chosen = differing_record(
        ...     x, y, "random + adversarial", shadows=[], rng=rng,
        ...     gradient=lambda x, y: [1.0, -1.0], within="data",
        ... )
        >>> chosen.place, chosen.record.features, chosen.others
        (2, array([0.9, 0. ]), array([0, 1]))
    """
    if way not in WAYS:
        raise InvalidArgument(f"Expected one of {', '.join(map(repr, WAYS))}, got {way!r}.")
    rows, classes = check_records(features, labels)
    if len(rows) < 2:
        raise InvalidArgument("Expected two records or more, one of which differs, got one.")
    if way.startswith("high loss"):
        record = highest_loss(rows, classes, shadows=_losses(shadows, rows, classes))
    else:
        record = random_record(rows, classes, rng=rng)
    same = (rows == record.features).reshape(len(rows), -1).all(1) & (classes == record.label)
    place = int(np.flatnonzero(same)[0])
    if way.endswith("adversarial"):
        uphill = mean_gradient(shadows) if gradient is None else gradient
        record = _moved(record, uphill, steps, step, _limits(rows, within))
    others = np.delete(np.arange(len(rows)), place)
    return Chosen(record=record, place=place, others=others)


def _losses(shadows: Sequence[Any], rows: FloatArray, classes: IntArray) -> list[FloatArray]:
    """Of every model on every record."""
    if not len(shadows):
        raise InvalidArgument("Expected shadow models to tell how hard records are, got none.")
    parts = [slice(start, start + _SEEN) for start in range(0, len(rows), _SEEN)]
    return [
        np.concatenate([losses(model, rows[part], classes[part]) for part in parts])
        for model in shadows
    ]


def _moved(
    record: Record, uphill: Gradient, steps: int, step: float, limits: tuple[Any, Any] | None
) -> Record:
    if limits is None:
        return adversarial(record, uphill, steps=steps, step=step)
    low, high = limits
    if np.any(record.features < low) or np.any(record.features > high):
        raise InvalidArgument(
            "Expected limits that the record keeps before it is moved, it goes from "
            f"{record.features.min():g} to {record.features.max():g}. Give within='data'?"
        )
    _validate.whole(0, steps=steps)
    for _ in range(steps):
        moved = adversarial(record, uphill, steps=1, step=step)
        kept = np.clip(moved.features, low, high).astype(moved.features.dtype)
        record = Record(features=kept, label=record.label)
    return record


def _limits(
    rows: FloatArray, within: tuple[ArrayLike, ArrayLike] | Literal["data"] | None
) -> tuple[Any, Any] | None:
    if within is None:
        return None
    if isinstance(within, str):
        if within != "data":
            raise InvalidArgument(
                f"Expected limits (lowest, highest), 'data' or None, got {within!r}."
            )
        return rows.min(axis=0), rows.max(axis=0)
    try:
        low, high = (np.broadcast_to(np.asarray(each, float), rows.shape[1:]) for each in within)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            "Expected limits (lowest, highest), each a number or of the shape of a record, "
            f"{rows.shape[1:]}, got {_validate.short(within)}."
        ) from error
    if not (low <= high).all():
        raise InvalidArgument(
            "Expected the lowest to be at most the highest among limits, got "
            f"{np.min(low):.3g} to {np.max(high):.3g}, some the other way round or nan."
        )
    return low, high


def _names(rows: FloatArray) -> list[bytes]:
    """Of records: equal ones have one name. In single precision, as models see them."""
    with np.errstate(over="ignore"):
        seen = rows.astype(np.float32) + 0.0  # −0 is 0
    return [hashlib.blake2b(row.tobytes()).digest() for row in seen]
