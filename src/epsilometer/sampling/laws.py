"""Describe what an epoch shows of one record, and which random numbers draw it."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Law:
    """What a play shows, up to the order of batches.

    Attributes:
        steps: Batches the target may be in; the others say nothing.
        present: Mean of a batch with the target.
        absent: Mean of such a batch when the target is zeroed out.
        rate: Chance that a batch has the target; None where exactly one has it.
    """

    steps: int
    present: int
    absent: int
    rate: float | None = None


class Draw(NamedTuple):
    """Which numbers of the stream: consecutive runs of a world."""

    key: int
    world: int
    first: int
    runs: int
    epochs: int

    @property
    def every(self) -> range:
        """The runs."""
        return range(self.first, self.first + self.runs)

    def part(self, start: int, runs: int) -> "Draw":
        """At most ``runs`` of them, from the one at ``start``."""
        return self._replace(first=self.first + start, runs=min(runs, self.runs - start))
