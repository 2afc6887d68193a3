"""Check successive batches of records against Poisson sampling.

Each check has its own evidence: likelihood ratios of a batch, given all earlier ones.
"""

import hashlib
import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from epsilometer.conformance import draws
from epsilometer.conformance.evidence_check import Bets, EvidenceCheck
from epsilometer.core import judge
from epsilometer.types import FloatArray, IntArray

_FACTORS = np.array([1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 8.0, 16.0])  # times the booked rate
_AGAIN_ODDS = np.array([1 / 16, 1 / 4, 1 / 2, 2.0, 4.0, 16.0])
_OFTEN_ODDS = np.array([1 / 4, 1 / 2, 1 / 1.25, 1.25, 2.0, 4.0, 16.0])
_OFTEN_SHARES = (0.5, 0.2, 0.05, 0.01)  # of the records, by how often they were drawn so far
_STAKES = np.array([0.5, 0.05, 0.005])
_NEW_SIZE = 0.5  # weight of sizes not observed yet; each observed batch has weight 1
_KEPT = 1 << 16  # batches that later ones are compared with


class Draw(NamedTuple):
    """Describe a batch relative to what was drawn before it."""

    records: int
    rate: float
    size: int
    new: int = 0  # records of the batch that are new in this epoch
    all_new: int = 0  # records of the training set that were new in this epoch
    often: tuple[tuple[int, int], ...] = ()  # (of the batch, of all) among those drawn most often
    equal: int = 0  # earlier batches of the same records
    as_large: int = 0  # earlier batches of the same size


class Past:
    """Count what was drawn so far: how often each record, whether in this epoch, which batches."""

    def __init__(self, records: int) -> None:
        self.records = records
        self._counts = np.zeros(records, np.int32)
        self._epoch_of = np.full(records, -1, np.int32)
        self._often = np.array([records])  # how many records were drawn 0, 1, 2, … times
        self._epoch, self._new = 0, records
        self._sizes: Counter[int] = Counter()
        self._batches: Counter[bytes] = Counter()

    def begin_epoch(self) -> None:
        """Begin an epoch, in which no record has been drawn yet."""
        self._epoch, self._new = self._epoch + 1, self.records

    def compare(self, batch: IntArray, rate: float) -> Draw:
        """Compare a batch with everything drawn before it."""
        counts = self._counts[batch]
        return Draw(
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
        """Add a batch to what was drawn."""
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
        """Return, for each share, the smallest count and the number of records that have it."""
        above = np.cumsum(self._often[::-1])[::-1]  # drawn k times or more
        if above.size == 1:
            return [(1, 0)] * len(_OFTEN_SHARES)
        least = [
            1 + int(np.argmin(np.abs(above[1:] - share * self.records))) for share in _OFTEN_SHARES
        ]
        return [(count, int(above[count])) for count in least]


class DrawCheck(EvidenceCheck):
    """Test one consequence of Poisson sampling for a batch, given all earlier ones."""

    missing = "no batch was observed"

    def __init__(self, *, shares: int, level: float) -> None:
        self._bets = Bets()
        super().__init__(shares=shares, level=level)

    def compute_ratios(self, draw: Draw) -> FloatArray | None:
        """Return the log ratios of a batch; None if it is not informative."""
        raise NotImplementedError

    def compute_evidence(self) -> float:
        """Return the evidence so far."""
        return self._bets.value()

    def see(self, draw: Draw) -> None:
        """Add the next batch."""
        ratios = self.compute_ratios(draw)
        if ratios is not None:
            self._bets.add(ratios, self.tested + 1)
            self.keep_largest(self.tested + 1)


class _Rate(DrawCheck):
    """Detect batches that are too large."""

    name = "sampling rate"
    expected = "every record enters a batch with the booked rate at most"
    what = "of the records in a batch"

    def begin(self) -> None:
        self._fewer = Bets()
        self._fewest = -math.inf
        self._drawn, self._booked, self._records = 0, 0.0, 0

    def compute_ratios(self, draw: Draw) -> FloatArray:
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


class RowRateCheck(_Rate):
    """Detect steps with too many gradient rows, wherever their records come from."""

    name = "rows per step"
    expected = "no more gradient rows than records at the booked rate"
    what = "of the records in the rows of a step"
    missing = "no gradient rows were counted"

    def deserves_remark(self) -> bool:
        """Return False: fewer rows than booked may be single rows, which were not counted."""
        return False


class _Sizes(DrawCheck):
    """Detect batches of a fixed size."""

    name = "batch sizes"
    expected = "sizes that vary as independent records make them vary"
    missing = "fewer than two batches were observed"
    what = "batches", "records"

    def begin(self) -> None:
        self._sizes: Counter[int] = Counter()
        self._batches = 0

    def compute_ratios(self, draw: Draw) -> FloatArray | None:
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


class RowSizesCheck(_Sizes):
    """Detect steps with a fixed number of rows, as when batches are truncated."""

    name = "sizes of steps"
    missing = "fewer than two steps of one batch each were observed"
    what = "steps", "gradient rows"


class _Marked(DrawCheck):
    """Detect records, marked by earlier batches, that are drawn more or less often than others."""

    def begin(self) -> None:
        self._hits, self._expected, self._drawn = 0, 0.0, 0

    def compare(self, draw: Draw, hits: int, among: int, odds: FloatArray) -> FloatArray:
        """Return the log ratios of the marked records in a batch."""
        sizes = {"drawn": draw.size, "records": draw.records}
        return draws.marked_ratios(hits, among, odds=odds, **sizes)

    def count(self, draw: Draw, hits: int, among: int) -> None:
        """Count the marked records in a batch."""
        self._hits += hits
        self._drawn += draw.size
        self._expected += draw.size * among / draw.records


class _Again(_Marked):
    """Detect records that come once per epoch, as in any kind of shuffling."""

    name = "records drawn again"
    expected = "a record's chance is the same after it was drawn in an epoch"

    def compute_ratios(self, draw: Draw) -> FloatArray:
        self.count(draw, draw.new, draw.all_new)
        all_new = draws.most_ratio(draw.new, draw.all_new, drawn=draw.size, records=draw.records)
        return np.append(self.compare(draw, draw.new, draw.all_new, _AGAIN_ODDS), all_new)

    def describe(self) -> str:
        return (
            f"{self._hits} of {self._drawn} records drawn were new in their epoch, "
            f"{self._expected:.0f} expected"
        )


class _Often(_Marked):
    """Detect records that are drawn more often than others."""

    name = "equal chances"
    expected = "all records have the same chance, however often they were drawn"

    def compute_ratios(self, draw: Draw) -> FloatArray:
        self.count(draw, *draw.often[0])
        groups = [self.compare(draw, hits, among, _OFTEN_ODDS) for hits, among in draw.often]
        return np.concatenate(groups)

    def describe(self) -> str:
        drawn = max(1, self._drawn)
        return (
            f"records drawn often before got {self._hits / drawn:.1%} of draws, "
            f"{self._expected / drawn:.1%} expected"
        )


class _Repeats(DrawCheck):
    """Detect batches that were drawn before, as with the same seed in every epoch."""

    name = "fresh batches"
    expected = "every batch is freshly drawn"

    def begin(self) -> None:
        self._equal = 0

    def compute_ratios(self, draw: Draw) -> FloatArray:
        self._equal += draw.equal > 0 and 0 < draw.size < draw.records
        if draw.as_large == 0:
            return np.zeros_like(_STAKES)
        stays = np.log1p(-_STAKES)
        if draw.equal == 0:
            return np.asarray(stays)
        won = math.log(draw.equal / draw.as_large) + draws.log_subsets(draw.records, draw.size)
        return np.asarray(np.logaddexp(stays, np.log(_STAKES) + won))

    def describe(self) -> str:
        return f"{self._equal} of {self.tested} batches have exactly the records of an earlier one"


def _digest(batch: IntArray) -> bytes:
    return hashlib.blake2b(batch.tobytes(), digest_size=16).digest()


BY_BATCH = (_Rate, _Sizes, _Again, _Often, _Repeats)
