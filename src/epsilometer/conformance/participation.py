"""Watch which records enter which step, and say whether they do so by Poisson sampling."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from epsilometer import _validate
from epsilometer.conformance import draws
from epsilometer.conformance.evidence_check import Bets, EvidenceCheck
from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

LEVEL = 1e-4
_FACTORS = np.array([1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 8.0, 16.0])  # times the booked rate
_AGAIN_ODDS = np.array([1 / 16, 1 / 4, 1 / 2, 2.0, 4.0, 16.0])
_OFTEN_ODDS = np.array([1 / 4, 1 / 2, 1 / 1.25, 1.25, 2.0, 4.0, 16.0])
_MANY_ROWS = 20  # expected in a step: then next to none has one row or none
_OFTEN_SHARES = (0.5, 0.2, 0.05, 0.01)  # of the records, by how often they were drawn so far
_STAKES = np.array([0.5, 0.05, 0.005])
_NEW_SIZE = 0.5  # weight of sizes not seen yet, beside 1 for each batch seen
_KEPT = 1 << 16  # batches that later ones are compared with


class _Draw(NamedTuple):
    """A batch, beside what was drawn before it."""

    records: int
    rate: float
    size: int
    new: int = 0  # records of the batch that are new in this epoch
    all_new: int = 0  # records of the training set that were new in this epoch
    often: tuple[tuple[int, int], ...] = ()  # (of the batch, of all) among those drawn most often
    equal: int = 0  # earlier batches of the same records
    as_large: int = 0  # earlier batches of the same size


class _Past:
    """What was drawn so far: how often each record, whether in this epoch, which batches."""

    def __init__(self, records: int) -> None:
        self.records = records
        self._counts = np.zeros(records, np.int32)
        self._epoch_of = np.full(records, -1, np.int32)
        self._often = np.array([records])  # how many records were drawn 0, 1, 2, … times
        self._epoch, self._new = 0, records
        self._sizes: Counter[int] = Counter()
        self._batches: Counter[bytes] = Counter()

    def begin_epoch(self) -> None:
        self._epoch, self._new = self._epoch + 1, self.records

    def compare(self, batch: IntArray, rate: float) -> _Draw:
        """Return a batch beside what came before, of which it is not yet a part."""
        counts = self._counts[batch]
        return _Draw(
            records=self.records,
            rate=rate,
            size=batch.size,
            new=int(np.count_nonzero(self._epoch_of[batch] != self._epoch)),
            all_new=self._new,
            often=tuple(
                (int(np.count_nonzero(counts >= least)), among) for least, among in self._groups()
            ),
            equal=self._batches[_digest(batch)],
            as_large=self._sizes[batch.size],
        )

    def add(self, batch: IntArray) -> None:
        counts = self._counts[batch]
        self._new -= int(np.count_nonzero(self._epoch_of[batch] != self._epoch))
        self._epoch_of[batch] = self._epoch
        self._counts[batch] += 1
        left = np.bincount(counts, minlength=self._often.size)
        if left.size == self._often.size and left[-1]:
            self._often, left = np.append(self._often, 0), np.append(left, 0)
        self._often = self._often - left
        self._often[1:] += left[:-1]
        if len(self._batches) < _KEPT:
            self._batches[_digest(batch)] += 1
            self._sizes[batch.size] += 1

    def _groups(self) -> list[tuple[int, int]]:
        """Return, for each share, the least count and the number of records that have it."""
        above = np.cumsum(self._often[::-1])[::-1]  # drawn k times or more
        if above.size == 1:
            return [(1, 0)] * len(_OFTEN_SHARES)
        least = [
            1 + int(np.argmin(np.abs(above[1:] - share * self.records))) for share in _OFTEN_SHARES
        ]
        return [(count, int(above[count])) for count in least]


class _Question(EvidenceCheck):
    """One thing that Poisson sampling says about a batch, given all earlier ones."""

    missing = "no batch was seen"

    def __init__(self, *, shares: int, level: float) -> None:
        self._bets = Bets()
        super().__init__(shares=shares, level=level)

    def ratios(self, draw: _Draw) -> FloatArray | None:
        """Return the log ratios of a batch; None where it says nothing."""
        raise NotImplementedError

    def value_now(self) -> float:
        """Return the evidence so far."""
        return self._bets.value()

    def see(self, draw: _Draw) -> None:
        """Take the next batch."""
        ratios = self.ratios(draw)
        if ratios is not None:
            self._bets.add(ratios, self.tested + 1)
            self.keep_largest(self.tested + 1)


class _Rate(_Question):
    """Batches that are too large."""

    name = "sampling rate"
    expected = "every record enters a batch with the booked rate at most"
    what = "of the records in a batch"

    def begin(self) -> None:
        self._fewer = Bets()
        self._fewest = -math.inf
        self._drawn, self._booked, self._records = 0, 0.0, 0

    def ratios(self, draw: _Draw) -> FloatArray:
        self._drawn += draw.size
        self._booked += draw.rate
        self._records = draw.records
        larger = np.minimum(_FACTORS * draw.rate, (1 + draw.rate) / 2)
        smaller = draw.rate / _FACTORS
        self._fewer.add(
            draws.rate_ratios(draw.size, draw.records, draw.rate, smaller), self.tested + 1
        )
        self._fewest = max(self._fewest, self._fewer.value())
        return draws.rate_ratios(draw.size, draw.records, draw.rate, larger)

    def measure(self) -> tuple[float, None, None]:
        return self._drawn / (self._records * self.tested), None, None

    def describe(self) -> str:
        return f"{self.measure()[0]:.4g} {self.what}, {self._booked / self.tested:.4g} booked"

    def deserves_remark(self) -> bool:
        return self.judge(self._fewest) == judge.VIOLATED


class _RowRate(_Rate):
    """Steps of too many gradient rows, wherever their records come from."""

    name = "rows per step"
    expected = "no more gradient rows than records at the booked rate"
    what = "of the records in the rows of a step"
    missing = "no gradient rows were counted"

    def deserves_remark(self) -> bool:
        """Say nothing of fewer rows than booked: single rows were not counted either."""
        return False


class _Sizes(_Question):
    """Batches of a fixed size."""

    name = "batch sizes"
    expected = "sizes that vary as independent records make them vary"
    missing = "fewer than two batches were seen"
    what = "batches", "records"

    def begin(self) -> None:
        self._sizes: Counter[int] = Counter()
        self._batches = 0

    def ratios(self, draw: _Draw) -> FloatArray | None:
        # Sizes are bet to come back in proportion to how often they came.
        weight = self._sizes[draw.size] + _NEW_SIZE / (draw.records + 1)
        before = self._batches
        self._sizes[draw.size] += 1
        self._batches += 1
        if before == 0:
            return None
        bet = math.log(weight / (before + _NEW_SIZE))
        return np.array([bet - draws.log_size_chance(draw.size, draw.records, draw.rate)])

    def describe(self) -> str:
        size, often = self._sizes.most_common(1)[0]
        return f"{often} of {self._batches} {self.what[0]} have {size} {self.what[1]}"


class _RowSizes(_Sizes):
    """Steps of a fixed number of rows, as where batches are cut off."""

    name = "sizes of steps"
    missing = "fewer than two steps of one batch each were seen"
    what = "steps", "gradient rows"


class _Again(_Question):
    """Records that come once per epoch, as in every kind of shuffling."""

    name = "records drawn again"
    expected = "a record's chance is the same after it was drawn in an epoch"

    def begin(self) -> None:
        self._new, self._expected, self._drawn = 0, 0.0, 0

    def ratios(self, draw: _Draw) -> FloatArray:
        self._new += draw.new
        self._drawn += draw.size
        self._expected += draw.size * draw.all_new / draw.records
        sizes = {"drawn": draw.size, "records": draw.records}
        return np.append(
            draws.marked_ratios(draw.new, draw.all_new, odds=_AGAIN_ODDS, **sizes),
            draws.most_ratio(draw.new, draw.all_new, **sizes),
        )

    def describe(self) -> str:
        return (
            f"{self._new} of {self._drawn} records drawn were new in their epoch, "
            f"{self._expected:.0f} expected"
        )


class _Often(_Question):
    """Records that are drawn more often than others."""

    name = "equal chances"
    expected = "all records have the same chance, however often they were drawn"

    def begin(self) -> None:
        self._seen, self._expected, self._drawn = 0, 0.0, 0

    def ratios(self, draw: _Draw) -> FloatArray:
        self._seen += draw.often[0][0]
        self._expected += draw.size * draw.often[0][1] / draw.records
        self._drawn += draw.size
        return np.concatenate(
            [
                draws.marked_ratios(
                    hits, among, drawn=draw.size, records=draw.records, odds=_OFTEN_ODDS
                )
                for hits, among in draw.often
            ]
        )

    def describe(self) -> str:
        drawn = max(1, self._drawn)
        return (
            f"records drawn often before got {self._seen / drawn:.1%} of draws, "
            f"{self._expected / drawn:.1%} expected"
        )


class _Repeats(_Question):
    """Batches that were drawn before, as with the same seed in every epoch."""

    name = "fresh batches"
    expected = "every batch is drawn anew"

    def begin(self) -> None:
        self._equal = 0

    def ratios(self, draw: _Draw) -> FloatArray:
        self._equal += draw.equal > 0 and 0 < draw.size < draw.records
        if draw.as_large == 0:
            return np.zeros_like(_STAKES)
        stays = np.log1p(-_STAKES)
        if draw.equal == 0:
            return np.asarray(stays)
        won = math.log(draw.equal / draw.as_large) + draws.log_subsets(draw.records, draw.size)
        return np.asarray(np.logaddexp(stays, np.log(_STAKES) + won))

    def describe(self) -> str:
        return f"{self._equal} of {self.tested} batches hold the very records of an earlier one"


_BY_BATCH = (_Rate, _Sizes, _Again, _Often, _Repeats)


class ParticipationWatch:
    """Watch which records are drawn, one batch after the other, and how many rows they become.

    Seven checks share ``level``: too large a rate of records and of gradient rows, batches and
    steps of a fixed size, records that come once per epoch, records of unequal chances, batches
    that repeat. Their evidence is made of likelihood ratios, each given all earlier batches. Two
    checks are exact: a record twice in a batch, and more gradient rows than records drawn.

    Guarantee: at most a share ``level`` of right runs is ever accused, whenever it is stopped. It
        does not depend on how batches are divided into epochs.
    Assumption: in a right run every record enters every batch independently, all with the same
        chance, at most the booked rate. Fewer records than the rate says are a remark.

    Args:
        records: Records of the training set.
        rate: The booked rate of a batch, in (0, 1].
        level: Chance of accusing a right run, for all checks together.

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
        self._past = _Past(records)
        shares = len(_BY_BATCH) + 2
        self._by_batch = [question(shares=shares, level=level) for question in _BY_BATCH]
        self._row_rate = _RowRate(shares=shares, level=level)
        self._row_sizes = _RowSizes(shares=shares, level=level)
        self._twice: tuple[int, int] | None = None  # batch, and how many records too many
        self._joined = 0  # records that came twice in a step of several batches
        self._drawn = self._rows = self._row_steps = 0
        self._excess: tuple[int, int, int] | None = None  # step, records drawn, rows

    def begin_epoch(self) -> None:
        """Begin an epoch: no record has been drawn in it yet."""
        self._past.begin_epoch()

    def see(self, indices: Sequence[int] | IntArray, *, rate: float | None = None) -> None:
        """Take the next batch, as the sampler drew it.

        Args:
            indices: Of its records, from 0 to ``records − 1``, in any order.
            rate: The booked rate of this batch, where it is not always the same.
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
        """Take the number of gradient rows of the next step.

        Batches may be drawn ahead of their step, so only totals are compared. A batch of no record
        may become one row of random numbers.

        Args:
            drawn: Records drawn since the step before, in all batches.
            rows: Gradient rows that were clipped and summed in this step.
            rate: The booked rate of this step, where it is not that of a batch.
        """
        _validate.whole(0, drawn=drawn, rows=rows)
        booked = self.rate if rate is None else rate
        _check_rate(booked)
        entered = min(rows, self.records) if rows > 1 else 0
        draw = _Draw(records=self.records, rate=booked, size=entered)
        self._row_rate.see(draw)
        # Of several batches a record may be in two; small steps are not told from empty ones.
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
        """Take the records of a step that adds up several batches: who is in two counts twice."""
        every = _read_indices(indices, self.records)
        self._joined += every.size - np.unique(every).size

    @property
    def _questions(self) -> list[_Question]:
        return [*self._by_batch, self._row_rate, self._row_sizes]

    @property
    def violated(self) -> bool:
        """Whether any check is violated by now; that stays."""
        crossed = any(question.crossed for question in self._questions)
        return crossed or self._twice is not None or self._excess is not None

    def checks(self) -> tuple[Check, ...]:
        """Return what was found so far."""
        sampled = [question.check() for question in self._questions]
        return (*sampled, self._check_twice(), self._check_rows())

    def _check_twice(self) -> Check:
        at, extra = self._twice or (self.batches, 0)
        seen = "no batch was seen"
        if self.batches:
            seen = f"in none of {self.batches} batches"
        outcome = judge.judge_limit(extra if self.batches else None, limit=0)
        if self._twice is not None:
            seen = f"{_count(extra, 'record')} too many in batch {at}"
        elif self._joined:  # Opacus books such a step at a multiple of the rate
            outcome = judge.REMARK
            seen = (
                f"{_count(self._joined, 'record')} in two batches that became one step: they count "
                "twice there, which the booked rate does not say"
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


def _digest(batch: IntArray) -> bytes:
    return hashlib.blake2b(batch.tobytes(), digest_size=16).digest()


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)
