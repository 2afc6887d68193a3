"""Check arguments: each error says in one sentence what was expected and what was given."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

_LISTED = 12  # names in a message


def number(**named: Any) -> None:
    """Refuse values that are not real numbers, including nan."""
    for name, value in named.items():
        whole_one = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        real = isinstance(value, (float, np.floating)) and not math.isnan(value)
        if not (whole_one or real):
            raise InvalidArgument(f"Expected a number for {name}, got {short(value)}.")


def probability(**named: float) -> None:
    """Refuse values outside [0, 1]."""
    number(**named)
    for name, value in named.items():
        if not 0 <= value <= 1:
            raise InvalidArgument(f"Expected {name} in [0, 1], got {value!r}.")


def open_unit(**named: float) -> None:
    """Refuse values outside (0, 1)."""
    number(**named)
    for name, value in named.items():
        if not 0 < value < 1:
            raise InvalidArgument(f"Expected {name} in (0, 1), got {value!r}.")


def at_least(least: float, **named: float) -> None:
    """Refuse values below ``least``."""
    number(**named)
    for name, value in named.items():
        if not value >= least:
            raise InvalidArgument(f"Expected {name} ≥ {least}, got {short(value)}.")


def positive(**named: float) -> None:
    """Refuse values that are infinite, or not above 0."""
    number(**named)
    for name, value in named.items():
        if not 0 < value < math.inf:
            raise InvalidArgument(f"Expected {name} > 0 and finite, got {value!r}.")


def whole(least: int, **named: int) -> None:
    """Refuse values that are not whole numbers of ``least`` or more."""
    for name, value in named.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise InvalidArgument(f"Expected a whole number for {name}, got {short(value)}.")
    at_least(least, **named)


def scores(name: str, value: Any) -> FloatArray:
    """Return a read-only one-dimensional float array, copied only if necessary.

    float32 and float64 arrays, also memory-mapped ones, keep their type. Integers and booleans
    become float64. Torch tensors on any device are accepted without importing torch.
    """
    array = _as_array(name, value)
    if array.ndim != 1:
        raise InvalidArgument(
            f"Expected a one-dimensional array for {name}, got shape {array.shape}. "
            "Give one score for each run or canary."
        )
    if array.size == 0:
        raise InvalidArgument(
            f"Expected at least one score in {name}, got none. "
            "An audit needs scores with the record and scores without it."
        )
    if np.isnan(array.min()):  # min propagates nan, and needs no second array
        raise InvalidArgument(
            f"Expected no nan in {name}, found {np.isnan(array).sum()} of {array.size}. "
            "A run that diverged is an observation too: score it as ±inf, do not drop it."
        )
    return frozen(array)


def frozen(array: FloatArray) -> FloatArray:
    """Return a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view


def rates(**named: Any) -> None:
    """Refuse arrays with elements outside [0, 1]."""
    for name, value in named.items():
        array = np.asarray(value, np.float64)
        if not np.all((array >= 0) & (array <= 1)):
            raise InvalidArgument(f"Expected {name} in [0, 1], got {short(value)}.")


def _as_array(name: str, value: Any) -> FloatArray:
    # A masked array, recognised without loading numpy.ma.
    if isinstance(value, np.ndarray) and np.any(getattr(value, "mask", False)):
        raise InvalidArgument(
            f"Expected no masked scores in {name}: a run left out is evidence lost. "
            "Score a diverged run as ±inf."
        )
    try:
        if hasattr(value, "detach"):  # a torch tensor
            value = value.detach().cpu()
            if str(value.dtype) == "torch.bfloat16":  # NumPy has no such type
                value = value.float()
            value = value.numpy()
        array: NDArray[Any] = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        kind = type(value).__name__  # not its contents, which may be of a record
        raise InvalidArgument(f"Expected numbers for {name}, got a {kind} of others.") from error
    if array.dtype.kind in "biuf":
        kept = array.dtype in (np.float32, np.float64)
        return array if kept else array.astype(np.float64)
    kind = "text" if array.dtype.kind in "SU" else array.dtype.name
    raise InvalidArgument(
        f"Expected numbers for {name}, got {kind}. "
        "An array of objects is converted by .astype(float)."
    )


def short(value: Any) -> str:
    """Return a value as shown in a message, truncated if long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def excerpt(error: Exception) -> str:
    """Return the start and the end of an error message, where the position in a file is."""
    text = str(error)
    return text if len(text) <= 200 else f"{text[:97]}...{text[-100:]}"


def listed(names: Iterable[Any]) -> str:
    """Return names as shown in a message: the first ones, truncated, and how many more."""
    every = list(names)
    first = ", ".join(map(short, every[:_LISTED]))
    more = len(every) - _LISTED
    return f"{first} and {more} more" if more > 0 else first or "none"
