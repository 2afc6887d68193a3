"""Define records, and check arrays of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray


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


def mislabel(record: Record, *, classes: int, rng: np.random.Generator) -> Record:
    """Return the record with a wrong label, drawn uniformly from the others.

    Example:
        >>> mislabel(Record([0.5], 1), classes=2, rng=np.random.default_rng(0)).label
        0
    """
    _validate.whole(2, classes=classes)
    if record.label >= classes:
        raise InvalidArgument(
            f"Expected a label from 0 to {classes - 1} among {classes} classes, got {record.label}."
        )
    shift = int(rng.integers(1, classes))
    return Record(features=record.features, label=(record.label + shift) % classes)


def check_records(features: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, IntArray]:
    """Check features as finite floats and labels as whole numbers from 0, one per record.

    float32 and float64 are kept; other numbers become float64.
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
            f"Expected labels to be whole numbers from 0, got {describe_array(classes)}. "
            "np.unique(labels, return_inverse=True)[1] makes such of any."
        )
    return rows, classes.astype(np.int64)


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


def describe_array(array: NDArray[Any]) -> str:
    """Describe what is wrong with an array of numbers, for an error."""
    if array.dtype.kind in "iuf" and np.isnan(array).any():
        return f"{np.isnan(array).sum()} nan of {array.size}"
    if array.dtype.kind in "i" and array.size and array.min() < 0:
        return f"{array.min()}"
    return f"shape {array.shape} of {array.dtype}"
