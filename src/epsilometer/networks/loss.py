"""Compute the loss of a model on a record, which is low if the record was trained on.

It accepts any classifier with ``predict_proba``, and any torch module that returns logits.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    from epsilometer.core.record import Record


def negative_loss(model: Any, record: "Record") -> float:
    """Return the score of a record: the log-probability that the model assigns to its label.

    Guarantees: higher means "was in"; −inf if the probability is 0 or the model does not know the
        label.
    Assumes: the model has ``predict_proba`` (and ``classes_``, if its classes are not 0, 1, …), or
        is a torch module that returns logits of shape ``(n, classes)``.

    Example:
        >>> from epsilometer.core.record import Record
        >>> class Coin:
        ...     def predict_proba(self, features):
        ...         return np.full((len(features), 2), 0.5)
        >>> round(negative_loss(Coin(), Record(features=[1.0, 2.0], label=1)), 4)
        -0.6931
    """
    return -float(losses(model, record.features[None], np.array([record.label]))[0])


def losses(model: Any, features: FloatArray, labels: IntArray) -> FloatArray:
    """Return cross-entropy of the model on each record, shape ``(n,)``; +inf is possible.

    Assumes: what ``negative_loss`` assumes.
    """
    if is_module(model):
        return _module_losses(model, features, labels)
    if hasattr(model, "predict_proba"):
        return _classifier_losses(model, features, labels)
    raise InvalidArgument(
        "Expected a model with predict_proba, or a torch module that returns logits, got "
        f"{type(model).__name__}. Write a score of your own: score(model, record) -> number."
    )


def is_module(model: Any) -> bool:
    """Tell whether a value is a torch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """Switch to evaluation mode, without dropout; restore the modes of all parts afterwards."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def _classifier_losses(model: Any, features: FloatArray, labels: IntArray) -> FloatArray:
    probabilities: NDArray[Any] = np.asarray(model.predict_proba(features), np.float64)
    if probabilities.ndim != 2 or len(probabilities) != len(features):
        raise InvalidArgument(
            f"Expected predict_proba to return {len(features)} rows of probabilities, got shape "
            f"{probabilities.shape}."
        )
    classes = np.asarray(getattr(model, "classes_", np.arange(probabilities.shape[1])))
    found = classes[None, :] == np.asarray(labels)[:, None]  # a label it never saw has none
    given = np.where(found, probabilities, 0.0).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(-np.log(given))


def _module_losses(module: Any, features: FloatArray, labels: IntArray) -> FloatArray:
    import torch

    with evaluating(module), torch.no_grad():
        logits = module(as_input(module, features))
        if logits.ndim != 2 or logits.shape[0] != len(features):
            raise InvalidArgument(
                f"Expected the module to return logits of shape ({len(features)}, classes), "
                f"got {tuple(logits.shape)}."
            )
        if int(np.max(labels)) >= logits.shape[1] or int(np.min(labels)) < 0:
            raise InvalidArgument(
                f"Expected labels from 0 to {logits.shape[1] - 1}, as many as the module has "
                f"logits, got {np.min(labels)} to {np.max(labels)}."
            )
        target = torch.as_tensor(np.array(labels), device=logits.device)
        found = torch.nn.functional.cross_entropy(logits.double(), target, reduction="none")
    return np.asarray(found.cpu().numpy())


def as_input(module: Any, features: FloatArray) -> Any:
    """Return the features as a tensor on the module's device, of the type of its weights."""
    import torch

    weights = next(iter(module.parameters()), torch.zeros(()))
    return torch.tensor(np.array(features), dtype=weights.dtype, device=weights.device)
