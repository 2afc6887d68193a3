"""Was the canary in? Its cosine with what training did to the model.

Only what training can move counts: the trainable floating-point parameters of a module, the
floating-point arrays of a list or mapping. Counters and other integers never do.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.federated.sphere import Directions
from epsilometer.errors import InvalidArgument
from epsilometer.networks.loss import is_module
from epsilometer.types import FloatArray


def final_cosines(
    canaries: Directions,
    model: Any,
    *,
    initial: Any = None,
    statistic: Literal["update", "model"] = "update",
) -> FloatArray:
    """The cosine of every canary with what training did to the model, shape ``(count,)``.

    Args:
        canaries: The directions that were planted.
        model: θ_T: a torch module, a mapping of names to arrays, a list of arrays, or a vector.
            Of a state_dict, floating-point buffers count too, as nothing says that they are no
            parameters: hand over the module, or the parameters alone.
        initial: θ_0, of the same kind; copied before training, if that works in place.
        statistic: ``"update"`` compares with θ_T − θ_0, since initial weights are public where
            models are trained by many; ``"model"`` with θ_T, as the one-shot papers do. What
            the initial weights add to the latter is noise to the canaries.

    Example:
        >>> from epsilometer.audits.federated.sphere import SphereCanaries
        >>> canaries = SphereCanaries(count=3, dimension=1000, key=7)
        >>> before = {"weight": np.ones(1000, np.float32), "steps": np.array(0)}
        >>> after = {"weight": before["weight"] + canaries.inject([0, 2], norm=1.0)}
        >>> final_cosines(canaries, after, initial=before).round(1) + 0.0
        array([0.7, 0. , 0.7])
    """
    if statistic not in ("update", "model"):
        raise InvalidArgument(f"Expected statistic to be 'update' or 'model', got {statistic!r}.")
    if (statistic == "update") != (initial is not None):
        raise InvalidArgument(
            "Expected the initial model with statistic='update' and with no other, got "
            f"{'none' if initial is None else 'one'} with {statistic!r}. "
            "Without it, statistic='model' compares with the model itself."
        )
    vector = trainable(model)
    if initial is not None:
        start = trainable(initial)
        if start.shape != vector.shape:
            raise InvalidArgument(
                f"Expected an initial model of {vector.size} trainable numbers, got {start.size}."
            )
        vector = vector - start
    return canaries.cosines(_seen(vector, canaries))


def largest_cosines(canaries: Directions, updates: Iterable[Any]) -> FloatArray:
    """The largest cosine of every canary over the updates of all rounds, shape ``(count,)``.

    Rounds whose update is zero show nothing and are passed over. Hand over the noisy mean updates,
    or θ_t − θ_{t−1} for what is seen after the server's optimiser. The law of a maximum is not
    known: compare with canaries that took part in no round.

    Args:
        canaries: Those that took part, and those that did not.
        updates: One for each round, of any kind that ``final_cosines`` takes.
    """
    largest: FloatArray = np.full(canaries.count, -np.inf)
    rounds = 0
    for update in updates:
        vector = trainable(update)
        rounds += 1
        if vector.any():
            largest = np.maximum(largest, canaries.cosines(_seen(vector, canaries)))
    if np.isneginf(largest).all():
        raise InvalidArgument(
            f"Expected updates of some round, got {rounds} of zero. "
            "Nothing was trained, so nothing can be seen of canaries."
        )
    return largest


def trainable(model: Any) -> FloatArray:
    """What training can move, as one vector: parameters in their order, each as C lays it out.

    Example:
        >>> trainable([np.ones((1, 2)), np.array([3])])  # the second is a counter
        array([1., 1.])
    """
    if is_module(model):
        parts = [parameter for parameter in model.parameters() if parameter.requires_grad]
    elif isinstance(model, Mapping):
        parts = list(model.values())
    elif isinstance(model, Sequence) and any(np.ndim(_array(part)) for part in model):
        parts = list(model)
    else:
        parts = [model]
    arrays = [_array(part) for part in parts]
    floats = [array.ravel() for array in arrays if array.dtype.kind == "f" and array.size]
    if not floats:
        raise InvalidArgument(
            f"Expected trainable floating-point parameters, got {len(arrays)} arrays without any."
        )
    return np.concatenate(floats)


def _array(part: Any) -> NDArray[Any]:
    if hasattr(part, "detach"):  # a torch tensor
        part = part.detach().cpu()
        part = part.float() if "bfloat16" in str(part.dtype) else part  # NumPy has no such type
    return np.asarray(part)


def _seen(vector: FloatArray, canaries: Directions) -> FloatArray:
    if vector.size != canaries.dimension:
        raise InvalidArgument(
            f"Expected {canaries.dimension} trainable numbers, as canaries have, got {vector.size}."
        )
    if not np.isfinite(vector).all():
        raise InvalidArgument(
            f"Expected finite parameters, found {int((~np.isfinite(vector)).sum())} nan or "
            "infinite: training diverged, and canaries cannot be seen in it."
        )
    if not vector.any():
        raise InvalidArgument(
            "Expected a model that training moved, got an update of zero. Without clients, or with "
            "a learning rate of 0, canaries cannot be seen."
        )
    return vector
