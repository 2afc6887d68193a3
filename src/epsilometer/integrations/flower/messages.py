"""Read and make the contents of Flower's messages: models, numbers, clipping norms."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument

with needs("flwr", extra="flower"):
    from flwr.app import Array, ArrayRecord, Message, RecordDict

Arrays: TypeAlias = dict[str, NDArray[Any]]
JUST_BELOW = 1 - 1e-5  # rounding must not make a canary count as clipped
PLANTED = "epsilometer-canary"  # under which a planting client reports what it planted
_CLIPPING_NORM = "clipping_norm"  # its name in the config that Flower sends to clients


def is_training(message: Message) -> bool:
    """Tell whether a message requests training, or answers such a request."""
    return message.metadata.message_type.partition(".")[0] == "train"


def list_evaluated(messages: Iterable[Message]) -> list[Arrays]:
    """Return the models that clients are asked to evaluate, each once."""
    contents = (m.content for m in messages if m.metadata.message_type.startswith("evaluate"))
    records = (record for content in contents for record in content.array_records.values())
    return [to_arrays(record) for record in {id(record): record for record in records}.values()]


def read_weights(content: RecordDict) -> Arrays:
    """Return the model in a message."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise InvalidArgument(
            f"Expected one ArrayRecord in messages of training, got {len(records)}: what a canary "
            "should answer is not known. Under secure aggregation use canary_mod."
        )
    return to_arrays(records[0])


def to_arrays(arrays: ArrayRecord) -> Arrays:
    """Convert arrays to NumPy."""
    return {name: array.numpy() for name, array in arrays.items()}


def to_record(arrays: Arrays) -> ArrayRecord:
    """Convert arrays to Flower's type."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def read_norm(content: RecordDict) -> float | None:
    """Return the clipping norm that clients received, if they clip."""
    for config in content.config_records.values():
        if _CLIPPING_NORM in config:
            return float(config[_CLIPPING_NORM])  # type: ignore[arg-type]
    return None


def read_number(content: RecordDict, key: str) -> float | None:
    """Return a number of a client's reply, by its name."""
    for record in content.metric_records.values():
        value = record.get(key)
        if isinstance(value, int | float):
            return float(value)
    return None


def make_typical(replies: list[RecordDict]) -> RecordDict:
    """Return a typical reply of clients: the median of every number, and no arrays."""
    found = RecordDict()
    for name, part in replies[0].items():
        if isinstance(part, ArrayRecord):
            found[name] = ArrayRecord()
        else:
            found[name] = type(part)(
                {key: _median(replies, name, key, value) for key, value in part.items()}
            )
    return found


def _median(replies: list[RecordDict], name: str, key: str, value: Any) -> Any:
    if not isinstance(value, int | float):
        return value  # a list, or words: as the first client has it
    every: list[Any] = [reply[name].get(key, value) for reply in replies if name in reply]
    return type(value)(np.median(every))


def are_equal(one: ArrayRecord | None, other: ArrayRecord | None) -> bool:
    """Tell whether two models are equal; usually they are the same object."""
    if one is other:
        return True
    if one is None or other is None or list(one) != list(other):
        return False
    return all(
        mine.data is theirs.data or mine.data == theirs.data
        for mine, theirs in zip(one.values(), other.values(), strict=True)
    )


def look_like_updates(sent: Arrays, replies: list[RecordDict]) -> bool:
    """Tell whether all replies are much shorter than their distance from the sent weights."""
    if not replies:
        return False
    own = to_arrays(next(iter(replies[0].array_records.values())))
    pairs = [(own[name], value) for name, value in sent.items() if name in own]
    length = sum(float(np.sum(np.square(part, dtype=np.float64))) for part, _ in pairs)
    apart = sum(float(np.sum(np.square(part - value, dtype=np.float64))) for part, value in pairs)
    return 0 < 4 * length < apart
