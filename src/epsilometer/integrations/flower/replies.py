"""Make the replies of canaries, whose arrays are generated on reading and never stored."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer._extras import needs
from epsilometer.audits.federated.directions import Directions
from epsilometer.audits.federated.iterates import Layout
from epsilometer.integrations.flower.messages import Arrays, to_arrays

with needs("flwr", extra="flower"):
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.common.constant import SType

NORM_BIT = "norm_bit"  # by which clients report that they had to clip
_ROUNDING = 4 * float(np.finfo(np.float32).eps)  # relative, of regenerated arrays


class RegeneratedArray(Array):
    """Generate an array of a canary's reply on reading: a thousand replies fit into memory.

    Args:
        example: An array of the same type and shape.
        make: Returns its values.
    """

    def __init__(self, example: NDArray[Any], make: Callable[[], NDArray[Any]]) -> None:
        self.__dict__.update(dtype=str(example.dtype), shape=example.shape, stype=SType.NUMPY)
        self.__dict__["_make"] = make

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """Return the values in Flower's format."""
        return bytes(Array(self.numpy()).data)

    def numpy(self) -> NDArray[Any]:
        """Return the values, newly generated."""
        return np.asarray(self.__dict__["_make"]())


class CanaryReply(RecordDict):
    """Hold a canary's reply, whose arrays a strategy may replace, for example with clipped ones.

    Attributes:
        regenerate: Returns the same arrays, generated on reading, if possible.
    """

    def __init__(self) -> None:
        self.regenerate: Callable[[ArrayRecord], ArrayRecord] = lambda arrays: arrays
        super().__init__()

    def __setitem__(self, key: str, value: Any) -> None:
        """Store a record; arrays are stored as a rule that generates them."""
        super().__setitem__(
            key, self.regenerate(value) if isinstance(value, ArrayRecord) else value
        )


class ReplyMaker:
    """Make the replies of canaries in one model.

    Args:
        layout: Which arrays count.
        canaries: All canaries.
    """

    def __init__(self, layout: Layout, canaries: Directions) -> None:
        self._layout, self._canaries = layout, canaries
        self._row: tuple[int, NDArray[np.float32]] | None = None

    def make(
        self,
        number: int,
        *,
        norm: float,
        asked: RecordDict,
        sent: Arrays,
        example: RecordDict | None,
        weights: Mapping[str, float],
    ) -> RecordDict:
        """Return a canary's reply.

        Args:
            number: Number of the canary.
            norm: Its norm.
            asked: Request to its node.
            sent: The weights in the request; zeros if clients answer with updates.
            example: Example of a client's reply, if known.
            weights: Factors for numbers of the example, by their names.
        """
        planted, content = self._regenerate(sent, number, norm), CanaryReply()
        if example is None:
            content[next(iter(asked.array_records))] = planted
            content["metrics"] = MetricRecord(dict(weights))
        for name, part in () if example is None else example.items():
            if isinstance(part, ArrayRecord):
                content[name] = planted
                continue
            numbers: dict[str, Any] = dict(part)
            for key, weight in weights.items():
                if weight != 1 and isinstance(usual := numbers.get(key), int | float):
                    numbers[key] = type(usual)(usual * weight)
            if NORM_BIT in numbers:
                numbers[NORM_BIT] = 0  # a canary is exactly as long as clipping allows
            content[name] = type(part)(numbers)
        content.regenerate = partial(self._shorten, sent, number)
        return content

    def _regenerate(self, sent: Arrays, number: int, norm: float) -> ArrayRecord:
        """Return the sent weights plus a canary of this norm, generated on reading."""

        def make(name: str) -> NDArray[Any]:
            row = self._make_row(number) * np.float32(norm)
            return self._layout.move_one(name, sent[name], row)

        planted = ArrayRecord()  # which, if made of arrays, would read them
        for name, value in sent.items():
            planted[name] = RegeneratedArray(value, partial(make, name))
        return planted

    def _shorten(self, sent: Arrays, number: int, arrays: ArrayRecord) -> ArrayRecord:
        """Return the same arrays as a canary of another norm, if they equal it up to rounding.

        A strategy that clips replaces every reply by clipped arrays: a thousand would be stored.
        """
        given = to_arrays(arrays)
        if {name: (part.shape, part.dtype) for name, part in given.items()} != {
            name: (part.shape, part.dtype) for name, part in sent.items()
        }:
            return arrays
        row = self._make_row(number)
        along = float(row @ (self._layout.flatten(given) - self._layout.flatten(sent)))
        norm = along / float(row @ row)
        planted = self._regenerate(sent, number, norm)
        rounding = _ROUNDING * abs(norm)
        same = (
            np.allclose(given[name], planted[name].numpy(), rtol=_ROUNDING, atol=rounding)
            for name in sent
        )
        return planted if all(same) else arrays

    def _make_row(self, number: int) -> NDArray[np.float32]:
        """Return a canary's direction; the last one is cached, since arrays are read in turn."""
        if self._row is None or self._row[0] != number:
            self._row = number, self._canaries.rows([number])[0]
        return self._row[1]
