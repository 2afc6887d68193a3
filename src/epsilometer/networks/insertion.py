"""Insert gradients into the batches of a training: what canaries look like to a trainer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from epsilometer.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor


class Inserted(NamedTuple):
    """What canaries do to the batches of a step.

    Attributes:
        keep: Which of the records keep their own gradients, ``(runs, batch)``; None if none does.
        amounts: How much of each canary is added, ``(runs, canaries)``, in clipping norms.
        drawn: Whether the batch has the canary's record, there or not, ``(runs, canaries)``.
    """

    keep: "Tensor | None"
    amounts: "Tensor"
    drawn: "Tensor"


class Canaries(Protocol):
    """Gradients that take part in training.

    Must keep: ``directions`` are unit vectors, one a row, over the parameters of one model.
    """

    @property
    def directions(self) -> FloatArray:
        """Shape ``(canaries, size)``."""
        ...

    @property
    def records(self) -> int:
        """How many records they add to the training set, after its own."""
        ...

    def insert(self, batch: "Tensor") -> Inserted:
        """What happens in these batches of record numbers, ``(runs, batch)``; −1 is no record."""
        ...


@dataclass(frozen=True)
class NoCanaries:
    """Training as it is, or with the gradient of record 0 made 0.

    Attributes:
        zeroed: Whether record 0 counts for nothing: zero-out adjacency of a record with its own
            gradient.
    """

    zeroed: bool = False

    @property
    def directions(self) -> FloatArray:
        """None."""
        return np.zeros((0, 0))

    @property
    def records(self) -> int:
        """None."""
        return 0

    def insert(self, batch: "Tensor") -> Inserted:
        """Nothing, as of :class:`Canaries`."""
        none = batch.new_zeros(len(batch), 0)
        return Inserted(batch >= int(self.zeroed), none.float(), none.bool())
