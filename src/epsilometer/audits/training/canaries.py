"""Records that stand out, for audits that see no more than the trained model.

*Which record* and *which change* are chosen apart and put together: one drawn at random, of noise,
or with the highest loss; then given a wrong label, or noise against shadow models.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.core.record import Record, check_records, describe_array
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import as_input, evaluating, is_module, losses
from epsilometer.types import FloatArray, IntArray

Gradient: TypeAlias = Callable[[FloatArray, int], ArrayLike]


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
    rows, classes = check_records(features, labels)
    chosen = int(rng.integers(len(rows)))
    return Record(features=rows[chosen], label=int(classes[chosen]))


def noise_record(features: ArrayLike, labels: ArrayLike, *, rng: np.random.Generator) -> Record:
    """A record that means nothing: uniform noise within each feature's range, any class.

    Args:
        features: Of all records, shape ``(n, …)``; only their ranges are used.
        labels: Their classes; each that occurs is as likely as any other.
        rng: What draws.
    """
    rows, classes = check_records(features, labels)
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
    rows, classes = check_records(features, labels)
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
                f"Expected a gradient of shape {x.shape} without nan, got {describe_array(slope)}."
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


def _several(classes: IntArray) -> IntArray:
    found = np.unique(classes)
    if found.size < 2:
        raise InvalidArgument(f"Expected labels of two classes or more, got only {found[0]}.")
    return found


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
