"""What is in Flower's messages."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epsilometer._extras import needs
from epsilometer.errors import InvalidArgument

with needs("flwr", extra="flower"):
    from flwr.app import Array, ArrayRecord, Message, RecordDict

Arrays: TypeAlias = dict[str, NDArray[Any]]
CLIPPING_NORM = "clipping_norm"  # what Flower calls it in the config that it sends to clients
NORM_BIT = "norm_bit"  # by which clients say that they had to clip
JUST_BELOW = 1 - 1e-5  # rounding must not make a canary count as clipped


def is_training(message: Message) -> bool:
    """Whether a message asks for training, or answers that."""
    return message.metadata.message_type.partition(".")[0] == "train"


def weights_in(content: RecordDict) -> Arrays:
    """The model in a message."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise InvalidArgument(
            f"Expected one ArrayRecord in messages of training, got {len(records)}: what a canary "
            "should answer is not known. Under secure aggregation use canary_mod."
        )
    return decoded(records[0])


def decoded(arrays: ArrayRecord) -> Arrays:
    """Arrays as NumPy has them."""
    return {name: array.numpy() for name, array in arrays.items()}


def record(arrays: Arrays) -> ArrayRecord:
    """Arrays as Flower has them."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def sent_norm(content: RecordDict) -> float | None:
    """The clipping norm that clients were sent, where they clip."""
    for config in content.config_records.values():
        if CLIPPING_NORM in config:
            return float(config[CLIPPING_NORM])  # type: ignore[arg-type]
    return None


def typical(replies: list[RecordDict]) -> RecordDict:
    """A reply as clients make them: the median of every number, and no arrays."""
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
