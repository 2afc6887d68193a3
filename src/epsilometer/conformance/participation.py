"""Watch which records enter which step, and test whether they do so by Poisson sampling."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from epsilometer import _validate
from epsilometer.conformance.draw_checks import (
    BY_BATCH,
    Draw,
    DrawCheck,
    Past,
    RowRateCheck,
    RowSizesCheck,
)
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.errors import InvalidArgument
from epsilometer.types import IntArray

LEVEL = 1e-4
_MANY_ROWS = 20  # expected in a step: then hardly any step has at most one row


class ParticipationWatch:
    """Watch which records are drawn, batch by batch, and how many gradient rows they become.

    Seven checks share ``level``: too large a rate of records and of gradient rows, batches and
    steps of a fixed size, records that come once per epoch, records with unequal probabilities,
    repeated batches. Their evidence consists of likelihood ratios, each given all earlier batches.
    Two checks are exact: a record twice in a batch, and more gradient rows than records drawn.

    Guarantee: at most a fraction ``level`` of correct runs is ever flagged, at any stopping time.
        It does not depend on how batches are divided into epochs.
    Assumption: in a correct run every record enters every batch independently, all with the same
        probability, at most the booked rate. Fewer records than booked are a remark.

    Args:
        records: Records of the training set.
        rate: The booked rate of a batch, in (0, 1].
        level: Probability of flagging a correct run, for all checks together.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> watch = ParticipationWatch(1000, 0.05)
        >>> for batch in rng.permutation(1000).reshape(20, 50):  # an epoch of shuffling
        ...     watch.see(batch)
        >>> [check.name for check in watch.checks() if check.outcome == "violated"]
        ['batch sizes', 'records drawn again', 'equal chances']
    """

    def __init__(self, records: int, rate: float, *, level: float = LEVEL) -> None:
        _validate.whole(1, records=records)
        _check_rate(rate)
        _validate.open_unit(level=level)
        self.records, self.rate, self.level = records, rate, level
        self.batches = 0
        self._past = Past(records)
        shares = len(BY_BATCH) + 2
        self._by_batch = [question(shares=shares, level=level) for question in BY_BATCH]
        self._row_rate = RowRateCheck(shares=shares, level=level)
        self._row_sizes = RowSizesCheck(shares=shares, level=level)
        self._twice: tuple[int, int] | None = None  # batch, and how many records too many
        self._joined = 0  # records that came twice in a step of several batches
        self._drawn = self._rows = self._row_steps = 0
        self._excess: tuple[int, int, int] | None = None  # step, records drawn, rows

    def begin_epoch(self) -> None:
        """Begin an epoch, in which no record has been drawn yet."""
        self._past.begin_epoch()

    def see(self, indices: Sequence[int] | IntArray, *, rate: float | None = None) -> None:
        """Add the next batch, as the sampler drew it.

        Args:
            indices: Indices of its records, from 0 to ``records − 1``, in any order.
            rate: The booked rate of this batch, if it is not always the same.
        """
        booked = self.rate if rate is None else rate
        _check_rate(booked)
        every = _read_indices(indices, self.records)
        batch = np.unique(every)
        self.batches += 1
        if batch.size < every.size and self._twice is None:
            self._twice = (self.batches, every.size - batch.size)
        draw = self._past.compare(batch, booked)
        for question in self._by_batch:
            question.see(draw)
        self._past.add(batch)

    def see_rows(self, drawn: int, rows: int, *, rate: float | None = None) -> None:
        """Add the number of gradient rows of the next step.

        Batches may be drawn ahead of their step, so only totals are compared. An empty batch may
        become one row of random numbers.

        Args:
            drawn: Records drawn since the step before, in all batches.
            rows: Gradient rows that were clipped and summed in this step.
            rate: The booked rate of this step, if it is not that of a batch.
        """
        _validate.whole(0, drawn=drawn, rows=rows)
        booked = self.rate if rate is None else rate
        _check_rate(booked)
        entered = min(rows, self.records) if rows > 1 else 0
        draw = Draw(records=self.records, rate=booked, size=entered)
        self._row_rate.see(draw)
        # A record may be in two of several batches; small steps look like empty ones.
        if booked <= self.rate and entered and booked * self.records >= _MANY_ROWS:
            self._row_sizes.see(draw)
        if drawn == 0 and self._drawn == 0:
            return  # nothing is known about batches that were drawn before the watch began
        self._row_steps += 1
        self._drawn += max(drawn, 1)
        self._rows += rows
        if self._rows > self._drawn and self._excess is None:
            self._excess = (self._row_steps, self._drawn, self._rows)

    def see_joined(self, indices: Sequence[int] | IntArray) -> None:
        """Add the records of a step that sums several batches: a record in two counts twice."""
        every = _read_indices(indices, self.records)
        self._joined += every.size - np.unique(every).size

    @property
    def _questions(self) -> list[DrawCheck]:
        return [*self._by_batch, self._row_rate, self._row_sizes]

    @property
    def violated(self) -> bool:
        """Whether any check has ever been violated."""
        crossed = any(question.crossed for question in self._questions)
        return crossed or self._twice is not None or self._excess is not None

    def checks(self) -> tuple[Check, ...]:
        """Return the checks so far."""
        sampled = [question.check() for question in self._questions]
        return (*sampled, self._check_twice(), self._check_rows())

    def _check_twice(self) -> Check:
        at, extra = self._twice or (self.batches, 0)
        seen = "no batch was observed"
        if self.batches:
            seen = f"in none of {self.batches} batches"
        outcome = judge.judge_limit(extra if self.batches else None, limit=0)
        if self._twice is not None:
            seen = f"{_count(extra, 'record')} too many in batch {at}"
        elif self._joined:  # Opacus books such a step at a multiple of the rate
            outcome = judge.REMARK
            seen = (
                f"{_count(self._joined, 'record')} in two batches that became one step: they "
                "count twice there, which the booked rate does not cover"
            )
        return Check(
            name="once per batch",
            outcome=outcome,
            expected="no record twice in a batch",
            seen=seen,
            value=float(extra) if self.batches else None,
            steps=at,
        )

    def _check_rows(self) -> Check:
        at, drawn, rows = self._excess or (self._row_steps, self._drawn, self._rows)
        counted = self._row_steps > 0
        seen = f"{_count(rows, 'row')} of {_count(drawn, 'record')} drawn"
        return Check(
            name="rows per record",
            outcome=judge.judge_limit(rows if counted else None, limit=drawn),
            expected="no more gradient rows than records drawn",
            seen=seen if counted else "no gradient rows of batches that were seen drawn",
            value=rows / drawn if counted else None,
            steps=at,
        )


def _read_indices(indices: Any, records: int) -> IntArray:
    array = np.asarray(indices)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgument(
            f"Expected a batch of record indices (whole numbers), got {_validate.short(indices)}."
        )
    if array.min() < 0 or array.max() >= records:
        worst = array.min() if array.min() < 0 else array.max()
        raise InvalidArgument(f"Expected indices from 0 to {records - 1}, got {worst}.")
    return array.astype(np.int64)


def _check_rate(rate: float) -> None:
    _validate.positive(rate=rate)
    _validate.probability(rate=rate)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)
