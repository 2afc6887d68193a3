"""Choose outlying records, for audits that see only the trained model.

The *record* and its *change* are chosen separately. The record is drawn at random, made of noise,
or has the highest loss. Then it gets a wrong label, or is moved to increase the loss of shadow
models that were not trained on it (shibahara2021).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.core.record import Record, check_records, describe_array
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import as_input, evaluating, is_module, losses
from epsilometer.types import FloatArray, IntArray

Gradient: TypeAlias = Callable[[FloatArray, int], ArrayLike]
Way: TypeAlias = Literal["random", "random + adversarial", "high loss", "high loss + adversarial"]
WAYS: tuple[Way, ...] = get_args(Way)
_FEWEST = 2  # smallest number of records to train a model on
_SEEN = 512  # records whose losses are computed at once
Training: TypeAlias = Callable[[FloatArray, IntArray, np.random.Generator], Any]


def random_record(features: ArrayLike, labels: ArrayLike, *, rng: np.random.Generator) -> Record:
    """Return a uniformly random record of the data.

    Args:
        features: Features of all records, shape ``(n, …)``.
        labels: Their classes, whole numbers from 0, shape ``(n,)``.
        rng: Source of randomness.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> random_record([[0.0], [1.0]], [0, 1], rng=rng).features
        array([1.])
    """
    rows, classes = check_records(features, labels)
    chosen = int(rng.integers(len(rows)))
    return Record(features=rows[chosen], label=int(classes[chosen]))


def highest_loss(features: ArrayLike, labels: ArrayLike, *, shadows: Any) -> Record:
    """Return the record with the highest mean loss under models trained without it.

    Args:
        features: Features of all records, shape ``(n, …)``.
        labels: Their classes.
        shadows: A list of models (with ``predict_proba``, or torch modules that return logits),
            or their losses on the records, shape ``(n,)`` or ``(models, n)``. Infinite losses
            count; among ties the first record is returned.

    Example:
        >>> highest_loss([[0.0], [1.0], [2.0]], [0, 1, 1], shadows=[0.1, 2.0, 0.5]).features
        array([1.])
    """
    rows, classes = check_records(features, labels)
    if isinstance(shadows, (list, tuple)) and any(map(_is_model, shadows)):
        shadows = [losses(model, rows, classes) for model in shadows]
    mean = np.atleast_2d(_read_losses(shadows)).mean(axis=0)
    if mean.shape != (len(rows),):
        raise InvalidArgument(
            f"Expected losses of {len(rows)} records, or models that give them, "
            f"got shape {np.shape(shadows)}."
        )
    if np.isnan(mean).any():
        raise InvalidArgument(
            f"Expected losses of shadow models without nan, found {np.isnan(mean).sum()}. "
            "A model that diverged is no shadow: train it again, or leave it out."
        )
    hardest = int(np.argmax(mean))
    return Record(features=rows[hardest], label=int(classes[hardest]))


def adversarial(
    record: Record,
    gradient: Gradient | Sequence[Any],
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    steps: int = 40,
    step: float = 0.01,
) -> Record:
    """Move the record to increase the loss: ``steps`` times x ← x + step · sign(mean gradient).

    Only the number of steps limits how far it moves, as in the audit of Bayesian networks.

    Args:
        record: The starting record; its label stays.
        gradient: ``gradient(x, y)``, the mean gradient of shadow models' losses at the features
            ``x``, of their shape; or torch modules that return logits.
        loss: ``loss(logits, labels)`` of modules; cross-entropy by default.
        steps: How many.
        step: Change of every feature per step.

    Example:
        >>> moved = adversarial(Record([0.0, 0.0], 1), lambda x, y: [2.0, -1.0])
        >>> moved.features.round(2)
        array([ 0.4, -0.4])
    """
    _validate.whole(0, steps=steps)
    _validate.positive(step=step)
    if not callable(gradient):
        at = mean_gradient(gradient, loss=loss)
    elif loss is not None or is_module(gradient):
        raise InvalidArgument(
            "Expected a function gradient(x, y) without a loss, or a list of torch modules, got "
            f"{type(gradient).__name__}{'' if loss is None else ' and a loss'}."
        )
    else:
        at = gradient
    x = np.array(record.features)
    for _ in range(steps):
        slope = np.asarray(at(x.copy(), record.label))
        if slope.shape != x.shape or slope.dtype.kind not in "iuf" or np.isnan(slope).any():
            raise InvalidArgument(
                f"Expected a gradient of shape {x.shape} without nan, got {describe_array(slope)}."
            )
        x += x.dtype.type(step) * np.sign(slope).astype(x.dtype)
    return Record(features=x, label=record.label)


def mean_gradient(
    modules: Sequence[Any], *, loss: Callable[[Any, Any], Any] | None = None
) -> Gradient:
    """Return a function for the mean gradient of torch modules' losses, without dropout.

    Args:
        modules: Shadow models that return logits; their weights and modes stay as they are.
        loss: ``loss(logits, labels)``; cross-entropy by default.
    """
    with needs("torch", extra="torch"):
        import torch
    shadows = list(modules)
    if not shadows or not all(is_module(module) for module in shadows):
        kinds = sorted({type(module).__name__ for module in shadows})
        raise InvalidArgument(
            "Expected shadow models as torch modules, or a function gradient(x, y), "
            f"got {', '.join(kinds) or 'none'}."
        )
    measured = loss or torch.nn.functional.cross_entropy

    def gradient(x: FloatArray, y: int) -> NDArray[np.float64]:
        total = np.zeros(x.shape)
        for module in shadows:
            at = as_input(module, x[None]).requires_grad_(True)
            with evaluating(module), torch.enable_grad():
                value = measured(module(at), torch.tensor([y], device=at.device)).sum()
            (slope,) = torch.autograd.grad(value, at)  # does not change the weights' own gradients
            total += slope[0].double().cpu().numpy()
        return total / len(shadows)

    return gradient


def _is_model(value: Any) -> bool:
    return is_module(value) or hasattr(value, "predict_proba")


def _read_losses(value: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            "Expected losses as numbers, or a list of models with predict_proba or of torch "
            f"modules, got {type(value).__name__}."
        ) from error


@dataclass(frozen=True, eq=False, kw_only=True)
class Chosen:
    """Hold the record that differs, and the data without it.

    Attributes:
        record: The record that only one of the datasets has.
        place: Row of the data that the record came from.
        others: All other rows in increasing order: those in both datasets.
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
    """Train shadow models on separate data, each with its own randomness.

    Guarantees: no record of ``apart_from`` is trained on, even if both datasets have it.

    Args:
        train: ``train(features, labels, rng)`` trains like the audited program, and returns a torch
            module or a model with ``predict_proba``.
        features: Features of the shadows' records, ``(n, …)``.
        labels: Their classes.
        apart_from: Features of the records that :func:`differing_record` chooses from.
        models: Number of models; ten in the paper.
        rng: Source of randomness, split among the models.
    """
    _validate.whole(1, models=models)
    rows, classes = check_records(features, labels)
    audited = set(_name_rows(np.asarray(apart_from)))
    own = np.array([name not in audited for name in _name_rows(rows)])
    if own.sum() < _FEWEST:
        raise InvalidArgument(
            f"Expected separate records for shadow models, got {int(own.sum())} that are not "
            "among those of the audit. Split the data."
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
    """Choose the record that an audit adds or removes.

    Guarantees: the random choice depends on ``rng`` alone, that by loss on the shadows alone.
        Moving a record does not affect which one is chosen.
    Assumes: shadows were trained on other data, as by :func:`shadow_models`; otherwise the hardest
        record is just one that they were not trained on.

    Args:
        features: Features of the records to choose from, ``(n, …)``, of two records or more.
        labels: Their classes.
        way: One of ``WAYS``.
        shadows: Models that return logits (torch) or have ``predict_proba``; not needed for
            ``"random"``, and may then be empty.
        rng: Source of randomness.
        gradient: ``gradient(x, y)`` of the shadows' mean loss, where they are not torch modules.
        steps: Steps of noise.
        step: Change of every feature per step.
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
        record = highest_loss(rows, classes, shadows=_measure_losses(shadows, rows, classes))
    else:
        record = random_record(rows, classes, rng=rng)
    same = (rows == record.features).reshape(len(rows), -1).all(1) & (classes == record.label)
    place = int(np.flatnonzero(same)[0])
    if way.endswith("adversarial"):
        uphill = mean_gradient(shadows) if gradient is None else gradient
        record = _move_uphill(record, uphill, steps, step, _find_limits(rows, within))
    others = np.delete(np.arange(len(rows)), place)
    return Chosen(record=record, place=place, others=others)


def _measure_losses(
    shadows: Sequence[Any], rows: FloatArray, classes: IntArray
) -> list[FloatArray]:
    """Return each model's losses on all records."""
    if not len(shadows):
        raise InvalidArgument("Expected shadow models to tell how hard records are, got none.")
    parts = [slice(start, start + _SEEN) for start in range(0, len(rows), _SEEN)]
    return [
        np.concatenate([losses(model, rows[part], classes[part]) for part in parts])
        for model in shadows
    ]


def _move_uphill(
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


def _find_limits(
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


def _name_rows(rows: FloatArray) -> list[bytes]:
    """Return a key per record, the same for equal ones, in single precision as in training."""
    with np.errstate(over="ignore"):
        seen = rows.astype(np.float32) + 0.0  # −0 is 0
    return [hashlib.blake2b(row.tobytes()).digest() for row in seen]
