"""Records that stand out, for audits that see no more than the trained model.

*Which record* and *which change* are chosen apart and put together: one drawn at random, of noise,
or with the highest loss; then given a wrong label, or noise against shadow models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.attacks.loss import as_input, evaluating, is_module, losses
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

Gradient: TypeAlias = Callable[[FloatArray, int], ArrayLike]


@dataclass(frozen=True, eq=False)
class Record:
    """One record: its features, of any shape, and its class.

    Example:
        >>> Record(features=[0.0, 1.0], label=3).label
        3
    """

    features: FloatArray
    label: int

    def __post_init__(self) -> None:
        features = _features("features of a record", self.features)
        if features.ndim == 0 or features.size == 0:
            raise InvalidArgument(
                f"Expected the features of a record as an array, got {self.features!r}."
            )
        _validate.whole(0, label=self.label)
        object.__setattr__(self, "features", _validate.frozen(features.copy()))
        object.__setattr__(self, "label", int(self.label))


def random_record(features: ArrayLike, labels: ArrayLike, *, rng: np.random.Generator) -> Record:
    """A record of the data, each as likely as any other.

    Args:
        features: Of all records, shape ``(n, …)``.
        labels: Their classes, whole numbers from 0, shape ``(n,)``.
        rng: What draws.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> random_record([[0.0], [1.0]], [0, 1], rng=rng).features
        array([1.])
    """
    rows, classes = records(features, labels)
    chosen = int(rng.integers(len(rows)))
    return Record(features=rows[chosen], label=int(classes[chosen]))


def noise_record(features: ArrayLike, labels: ArrayLike, *, rng: np.random.Generator) -> Record:
    """A record that means nothing: uniform noise within each feature's range, any class.

    Args:
        features: Of all records, shape ``(n, …)``; only their ranges are used.
        labels: Their classes; each that occurs is as likely as any other.
        rng: What draws.
    """
    rows, classes = records(features, labels)
    noise = rng.uniform(rows.min(axis=0), rows.max(axis=0)).astype(rows.dtype)
    return Record(features=noise, label=int(rng.choice(_several(classes))))


def highest_loss(features: ArrayLike, labels: ArrayLike, *, shadows: Any) -> Record:
    """The record that models trained without it find hardest: of the highest mean loss.

    Args:
        features: Of all records, shape ``(n, …)``.
        labels: Their classes.
        shadows: A list of models (with ``predict_proba``, or torch modules that return logits),
            or their losses on the records, shape ``(n,)`` or ``(models, n)``. Infinite ones
            count; the first of equals is taken.

    Example:
        >>> highest_loss([[0.0], [1.0], [2.0]], [0, 1, 1], shadows=[0.1, 2.0, 0.5]).features
        array([1.])
    """
    rows, classes = records(features, labels)
    if isinstance(shadows, (list, tuple)) and any(map(_is_model, shadows)):
        shadows = [losses(model, rows, classes) for model in shadows]
    mean = np.atleast_2d(_numbers(shadows)).mean(axis=0)
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


def mislabelled(record: Record, *, classes: int, rng: np.random.Generator) -> Record:
    """The record with a wrong label, each of the others as likely as any.

    Example:
        >>> mislabelled(Record([0.5], 1), classes=2, rng=np.random.default_rng(0)).label
        0
    """
    _validate.whole(2, classes=classes)
    if record.label >= classes:
        raise InvalidArgument(
            f"Expected a label from 0 to {classes - 1} among {classes} classes, got {record.label}."
        )
    shift = int(rng.integers(1, classes))
    return Record(features=record.features, label=(record.label + shift) % classes)


def adversarial(
    record: Record,
    gradient: Gradient | Sequence[Any],
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    steps: int = 40,
    step: float = 0.01,
) -> Record:
    """The record moved uphill: ``steps`` times x ← x + step · sign(mean gradient of the loss).

    Nothing limits how far it goes but the steps, as the audit of Bayesian networks has it.

    Args:
        record: Where it starts; its label stays.
        gradient: ``gradient(x, y)``, the mean gradient of shadow models' losses at the features
            ``x``, of their shape; or torch modules that return logits.
        loss: ``loss(logits, labels)`` of modules; cross-entropy by default.
        steps: How many.
        step: How far each moves every feature.

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
                f"Expected a gradient of shape {x.shape} without nan, got {_described(slope)}."
            )
        x += x.dtype.type(step) * np.sign(slope).astype(x.dtype)
    return Record(features=x, label=record.label)


def mean_gradient(
    modules: Sequence[Any], *, loss: Callable[[Any, Any], Any] | None = None
) -> Gradient:
    """The mean gradient of torch modules' losses at a record, without dropout, as a function.

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
            (slope,) = torch.autograd.grad(value, at)  # leaves the weights' own gradients alone
            total += slope[0].double().cpu().numpy()
        return total / len(shadows)

    return gradient


def records(features: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, IntArray]:
    """Features as finite floats and labels as whole numbers from 0, as many of either.

    float32 and float64 stay what they are; other numbers become float64.
    """
    rows, classes = _features("features", features), np.asarray(labels)
    if rows.ndim < 2 or rows.size == 0:
        raise InvalidArgument(
            f"Expected features of shape (n, …) of one record or more, got shape {rows.shape}."
        )
    if classes.shape != (len(rows),):
        raise InvalidArgument(
            f"Expected one label for each of {len(rows)} records, got shape {classes.shape}."
        )
    if classes.dtype.kind not in "iu" or np.any(classes < 0):
        raise InvalidArgument(
            f"Expected labels to be whole numbers from 0, got {_described(classes)}. "
            "np.unique(labels, return_inverse=True)[1] makes such of any."
        )
    return rows, classes.astype(np.int64)


def _several(classes: IntArray) -> IntArray:
    found = np.unique(classes)
    if found.size < 2:
        raise InvalidArgument(f"Expected labels of two classes or more, got only {found[0]}.")
    return found


def _features(name: str, value: Any) -> FloatArray:
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu().numpy()
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError as error:
        raise InvalidArgument(f"Expected numbers for {name}, got ragged ones.") from error
    if array.dtype.kind not in "biuf":
        raise InvalidArgument(
            f"Expected numbers for {name}, got {array.dtype}. Encode text, as one-hot columns say."
        )
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise InvalidArgument(
            f"Expected finite {name}, found {int((~np.isfinite(array)).sum())} nan or infinite. "
            "Fill them in, or leave those records out."
        )
    return array


def _is_model(value: Any) -> bool:
    return is_module(value) or hasattr(value, "predict_proba")


def _numbers(value: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            "Expected losses as numbers, or a list of models with predict_proba or of torch "
            f"modules, got {type(value).__name__}."
        ) from error


def _described(array: NDArray[Any]) -> str:
    if array.dtype.kind in "iuf" and np.isnan(array).any():
        return f"{np.isnan(array).sum()} nan of {array.size}"
    if array.dtype.kind in "i" and array.size and array.min() < 0:
        return f"{array.min()}"
    return f"shape {array.shape} of {array.dtype}"
