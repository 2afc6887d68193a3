"""When canaries take part: as the records of a loader do, step by step."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Law, Sampler, find_law


@dataclass(eq=False, kw_only=True)
class Schedule:
    """Draws who takes part in the next step, for every canary, planted or not.

    Guarantees: every canary's steps have the law of a record's under ``sampler``, independently of
        the other canaries and of whether it is planted.
    Assumes: the loader is gone through to its end every epoch.

    Attributes:
        count: How many canaries.
        batches: Batches of an epoch.
        sampler: ``Poisson`` (its rate, or 1/batches), or one with records once per epoch.
        rng: Where it draws from.

    Example:
        >>> from epsilometer.samplers import Shuffle
        >>> schedule = Schedule(count=4, batches=2, sampler=Shuffle(), rng=np.random.default_rng(0))
        >>> first, second = schedule.step(), schedule.step()
        >>> bool(np.all(first ^ second))  # once per epoch, each
        True
    """

    count: int
    batches: int
    sampler: Sampler
    rng: np.random.Generator
    _slots: NDArray[np.int64] = field(init=False, repr=False)
    _law: Law = field(init=False, repr=False)
    _position: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        _validate.whole(1, count=self.count, batches=self.batches)
        self._law = _find_law(self.sampler, self.batches)
        self._slots = self._drawn()

    def step(self, batches: int = 1) -> NDArray[np.bool_]:
        """Who takes part in the next step, which uses so many batches; shape ``(count,)``."""
        _validate.whole(1, batches=batches)
        if self._law.is_poisson:
            return np.asarray(self.rng.random(self.count) < self.chance(batches))
        took = np.zeros(self.count, np.bool_)
        for _ in range(batches):
            took |= self._slots == self._position % self.batches
            self._position += 1
            if self._position % self.batches == 0 and self._law.steps > 1:  # a secret place
                self._slots = self._drawn()
        return took

    def chance(self, batches: int = 1) -> float:
        """Of taking part in a step of so many batches, for one who knows no more."""
        return min(1.0, batches * (self._law.rate or 1 / self.batches))

    @property
    def epoch(self) -> int:
        """How many epochs are over."""
        return self._position // self.batches

    def _drawn(self) -> NDArray[np.int64]:
        return self.rng.integers(self.batches, size=self.count)


def _find_law(sampler: Sampler, batches: int) -> Law:
    """Return the law of one record, by which canaries can take part one by one."""
    try:
        law = find_law(sampler, batches)
    except InvalidArgument:
        law = None
    if law is None or (law.rate is not None and not law.is_poisson):
        raise InvalidArgument(
            f"Expected Poisson, Shuffle or Sequential for canaries, got {sampler!r}."
        )
    return law
