"""Choose neighbouring batches, and measure how much one record changes what a step releases.

Anything that can take a step on a batch (a function, an optimiser) is a ``Replayer``.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from epsilometer.conformance.evidence_check import leave_untested
from epsilometer.core import judge
from epsilometer.core.findings import Check

REPLACED = "sensitivity to a replaced record"
REMOVED = "sensitivity to a removed record"
LIMITS = {REPLACED: 2.0, REMOVED: 1.0}  # in clipping norms
TOLERANCE = 1e-3  # relative, for the program's own arithmetic
Change: TypeAlias = Literal["scaled", "another record", "another label", "removed"]

_HUGE = 1e3  # times the record
_LARGE = 10.0
_COARSE = (0.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0)  # powers of ten with which a climb begins
_TRIED = 2  # of them, until a record counts as having no size
_CLIMBS = 3  # records for which the size is searched
_ROUNDS = 4  # of a climb; each halves the interval between two sizes
_KEPT = 4  # releases that later ones are compared with
_NEAR = 0.98  # of a limit, at which clipping takes effect


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """Describe a batch that differs from the given one in one record, or has all others equal.

    Attributes:
        place: Index of the record that changes.
        other: Index of another record.
        change: What happens to the record.
        factor: Factor by which its numbers are multiplied, if it is scaled.
        alike: Whether all other records of the batch equal the one at ``other``.
        weights: Factor for the program's parameters before the step. Sensitivity must be limited
            for any parameters.
    """

    place: int
    other: int
    change: Change = "scaled"
    factor: float = 1.0
    alike: bool = False
    weights: float = 1.0

    def __str__(self) -> str:
        if self.change != "scaled":
            return self.change
        return "as it is" if self.factor == 1 else f"{self.factor:.4g} times"

    @property
    def setting(self) -> str:
        """Describe what is special about the rest of the batch."""
        loud = f", weights {self.weights:g} times" if self.weights != 1 else ""
        return (", others alike" if self.alike else "") + loud


@dataclass(frozen=True, eq=False, kw_only=True)
class Replayed:
    """Hold what a step released for a batch, and the state of its random stream.

    Attributes:
        released: As its replayer measures it; empty if the step raised an error.
        state: State of all generators afterwards.
        error: What the step raised; empty if nothing.
        refused: Why the step was not taken, or cannot be compared; empty where it can.
    """

    released: Any
    state: str
    error: str = ""
    refused: str = ""


class Distance(NamedTuple):
    """Distance of two releases, in clipping norms, and what rounding may add to it."""

    value: float
    slack: float


class Replayer(Protocol):
    """Take the same step on batches that differ in one record.

    Attributes:
        count: Records in the batch.
        labelled: Whether a record has a part that can be replaced separately, such as a label.
    """

    count: int
    labelled: bool

    def run(self, neighbour: Neighbour) -> Replayed:
        """Take the step on this batch, with the randomness of all batches of the same index."""
        ...

    def measure(self, first: Replayed, second: Replayed) -> Distance:
        """Measure the distance of two releases."""
        ...

    def find_obstacle(self, run: Replayed, base: Replayed) -> str:
        """Say why a run cannot be compared with that of the original batch; empty if it can."""
        ...


class Pair(NamedTuple):
    """Hold the comparison of two batches.

    Attributes:
        value: Distance of the releases, in clipping norms.
        slack: What rounding may add to it.
        what: Which batches, in words.
        plain: Whether no record was enlarged, and the weights are unchanged.
    """

    value: float
    slack: float
    what: str
    plain: bool


@dataclass
class Comparisons:
    """Collect what was compared so far, and why some batches could not be.

    Attributes:
        pairs: By the name of the check.
        skipped: Reasons, in words.
        scaled: Whether enlarging a record ever changed what was released.
    """

    pairs: dict[str, list[Pair]] = field(default_factory=lambda: {REPLACED: [], REMOVED: []})
    skipped: list[str] = field(default_factory=list)
    scaled: bool = False

    def add(self, distance: Distance, first: Neighbour, second: Neighbour) -> float:
        """Add a pair; return its value as a fraction of the limit."""
        check = REMOVED if "removed" in (first.change, second.change) else REPLACED
        what = f"{first} and {second}{first.setting}"
        plain = first.factor == second.factor == first.weights == 1
        self.pairs[check].append(Pair(distance.value, distance.slack, what, plain))
        return distance.value / LIMITS[check]

    @property
    def largest(self) -> float:
        """The largest change, as a fraction of its limit."""
        return max(
            (pair.value / LIMITS[name] for name, pairs in self.pairs.items() for pair in pairs),
            default=0.0,
        )


def choose_places(count: int, records: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Choose records to change, each with another record if there is one."""
    chosen: list[tuple[int, int]] = []
    for place in map(int, rng.choice(count, min(records, count), replace=False)):
        others = [each for each in range(count) if each != place]
        chosen.append((place, int(rng.choice(others or [place]))))
    return chosen


def compare_neighbours(
    replayer: Replayer,
    *,
    records: int,
    rng: np.random.Generator,
    loud: Sequence[float] = (),
) -> Comparisons:
    """Compare what a step releases for many pairs of neighbouring batches.

    Records are enlarged (with both signs), replaced, relabelled or removed. The others in the batch
    are unchanged, or all equal, to reveal effects between records. For some records, the size with
    the largest effect on the release is searched.

    Args:
        replayer: Takes the steps.
        records: Number of records to change.
        rng: Generator that chooses them.
        loud: Factors for the program's parameters, tried in turn while no record is clipped.
    """
    found = Comparisons()
    for at, (place, other) in enumerate(choose_places(replayer.count, records, rng)):
        own = Neighbour(place=place, other=other)
        _compare_changes(replayer, own, found)
        if replayer.count > 1:
            _compare_changes(replayer, replace(own, alike=True), found)
        if at < _CLIMBS:  # each with sizes of its own, so that together they lie closer
            _Climb(replayer, own, found).search(offset=at / _CLIMBS)
        for weights in loud if at == 0 else ():
            if found.largest < _NEAR:
                _compare_changes(replayer, replace(own, weights=weights), found)
    return found


def conclude(name: str, found: Comparisons, *, tolerance: float = TOLERANCE) -> Check:
    """Judge the largest change by its limit; not tested if nothing could be compared."""
    limit, pairs = LIMITS[name], found.pairs[name]
    expected = f"a change of {describe_norms(limit)} at most"
    # Rounding must be small compared with the limit, or the change larger than both.
    clear = [pair for pair in pairs if pair.slack <= max(limit / 2, pair.value - 2 * limit)]
    obstacle = _find_obstacle(found, pairs, clear)
    if obstacle:
        return leave_untested(name, expected, obstacle)
    worst = max(clear, key=lambda pair: pair.value - pair.slack)
    allowed = limit * (1 + tolerance) + worst.slack
    plain = [pair.value for pair in clear if pair.plain]
    own = f"; records that were not enlarged change it by {max(plain):.4g}" if plain else ""
    return Check(
        name=name,
        outcome=judge.judge_limit(worst.value, limit=allowed),
        expected=expected,
        seen=f"a change of {describe_norms(worst.value)}",
        value=worst.value,
        detail=f"record {worst.what}; {len(clear):,} pairs of batches compared{own}",
        steps=1,
    )


def describe_norms(value: float) -> str:
    """Describe a length in clipping norms."""
    text = f"{value:.4g}"
    return f"{text} clipping norm" if text == "1" else f"{text} clipping norms"


def _find_obstacle(found: Comparisons, pairs: list[Pair], clear: list[Pair]) -> str:
    if not pairs:
        return "; ".join(list(dict.fromkeys(found.skipped))[:2]) or "nothing to compare"
    if not clear:
        return "released values are rounded too coarsely"
    if not found.scaled and found.largest < _NEAR:
        return (
            f"no record changes the sum by more than {found.largest:.2g} of the limit, and none "
            "can be enlarged: whether it would be clipped is unknown"
        )
    return ""


def _compare_changes(replayer: Replayer, own: Neighbour, found: Comparisons) -> None:
    """Compare the batches in which one record is changed with each other."""
    base = replayer.run(own)
    kept = [(own, base)]
    if base.error or base.refused:
        found.skipped.append(replayer.find_obstacle(base, base))
        return
    for neighbour in _list_changes(own, labelled=replayer.labelled):
        run = replayer.run(neighbour)
        if obstacle := replayer.find_obstacle(run, base):
            found.skipped.append(obstacle)
            continue
        for first, earlier in kept:
            distance = replayer.measure(earlier, run)
            found.add(distance, first, neighbour)
            if first == own and neighbour.change == "scaled" and distance.value > 0:
                found.scaled = True
        if len(kept) < _KEPT:
            kept.append((neighbour, run))


def _list_changes(own: Neighbour, *, labelled: bool) -> Iterator[Neighbour]:
    """List the changes of a record; the one that all others are compared with comes first."""
    yield replace(own, change="removed")
    sizes = [_HUGE, -_HUGE] if own.alike else [_HUGE, -_HUGE, _LARGE, -_LARGE]
    for factor in sizes if own.weights == 1 else ():
        yield replace(own, factor=factor)
    if own.other != own.place:
        yield replace(own, change="another record")
        if labelled:
            yield replace(own, change="another label")


class _Climb:
    """Search the size of a record at which it changes the release most.

    A record is compared with its removal or, if that is impossible, with its negative. Sizes begin
    with powers of ten; then intervals next to the largest change are halved. If a record changes
    less than the limit, the size at which it would just exceed it is tried.
    """

    def __init__(self, replayer: Replayer, own: Neighbour, found: Comparisons) -> None:
        self._replayer, self._own, self._found = replayer, own, found
        self._shares: dict[float, float] = {}  # by the power of ten
        self._base = replayer.run(own)
        self._removed = self._run(replace(own, change="removed"))

    def search(self, *, offset: float) -> None:
        """Try sizes until a limit is exceeded, or the search ends."""
        for power in _COARSE:
            self._try(power + offset)
            self._found.scaled |= len(set(self._shares.values())) > 1
            if len(self._shares) == _TRIED and not self._found.scaled:
                return  # integers, such as those of a text, have no size
        for _ in range(_ROUNDS):
            self._aim()
            for power in self._list_beside_largest():
                self._try(power)
        self._compare_opposite(self._largest)

    @property
    def _largest(self) -> float:
        """Return the smallest size with the largest change: an edge, if there is a plateau."""
        top = max(self._shares.values())
        return min(power for power, share in self._shares.items() if share >= top * (1 - 1e-4))

    def _aim(self) -> None:
        """Try the size that would just exceed the limit if changes grew with it."""
        below = [(share, power) for power, share in self._shares.items() if 0.05 < share < 0.999]
        if below:
            share, power = max(below)
            self._try(power + math.log10(1.004 / share))

    def _list_beside_largest(self) -> list[float]:
        at, powers = self._largest, sorted(self._shares)
        place = powers.index(at)
        return [(at + each) / 2 for each in (*powers[max(0, place - 1) : place + 2],) if each != at]

    def _try(self, power: float) -> None:
        if power in self._shares or max(self._shares.values(), default=0.0) > 1 + 10 * TOLERANCE:
            return
        if self._removed is None:
            self._shares[power] = self._compare_opposite(power)
            return
        own = replace(self._own, factor=10**power)
        run = self._run(own)
        share = 0.0
        if run is not None:
            distance = self._replayer.measure(run, self._removed)
            share = self._found.add(distance, own, replace(self._own, change="removed"))
        self._shares[power] = share

    def _compare_opposite(self, power: float) -> float:
        own, opposite = (replace(self._own, factor=sign * 10**power) for sign in (1, -1))
        first, second = self._run(own), self._run(opposite)
        if first is None or second is None:
            return 0.0
        distance = self._replayer.measure(first, second)
        return self._found.add(distance, own, opposite)

    def _run(self, neighbour: Neighbour) -> Replayed | None:
        run = self._replayer.run(neighbour)
        if obstacle := self._replayer.find_obstacle(run, self._base):
            self._found.skipped.append(obstacle)
            return None
        return run
