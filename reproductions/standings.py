"""Decides how what was published and what is measured compare, from numbers alone.

A row is compared by its digits where data and size are the paper's, and by order where they are
not, or where the paper prints no number. Several rows of a table are tested jointly as well: each
may be within error while all of them lie on one side.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import scipy.stats

from epsilometer.cli.reproduce import Expect, Item, Row, Stated

AGREES, DIFFERS, CANNOT_TELL = "agrees", "differs", "cannot tell"
SAME_DIRECTION, NOT_MEASURED, OURS_ALONE = "same direction", "not measured", "only ours"
STANDINGS = (AGREES, SAME_DIRECTION, CANNOT_TELL, DIFFERS, NOT_MEASURED)
LEVEL = 0.05  # of a joint test


class Number(NamedTuple):
    """A number, within what its digits allow, and its standard error if that is known."""

    value: float
    low: float
    high: float
    error: float | None

    @property
    def rounding(self) -> float:
        """Standard deviation of what digits leave open."""
        return (self.high - self.low) / np.sqrt(12) if np.isfinite(self.value) else 0.0


class Pair(NamedTuple):
    """A published number and ours."""

    published: Number
    ours: Number
    freedom: int  # degrees, of the spreads that are known

    @property
    def known(self) -> bool:
        """Whether there is an error to compare with."""
        return self.ours.error is not None and self.published.error is not None

    @property
    def error(self) -> float:
        """Combined standard error, that of rounding with it."""
        parts = [part for number in self[:2] for part in (number.error or 0, number.rounding)]
        return float(np.linalg.norm(parts))

    @property
    def difference(self) -> float:
        """Ours less published."""
        return self.ours.value - self.published.value

    @property
    def is_rounding(self) -> bool:
        """Whether digits of both can be of one number."""
        published, ours = self.published, self.ours
        if ours.value == published.value:  # infinite both, maybe
            return True
        return ours.low < published.high and published.low < ours.high

    @property
    def z(self) -> float:
        """As a standard normal number: spreads of few runs have the tails of a t."""
        tail = scipy.stats.t.sf(abs(self.difference) / self.error, self.freedom)
        return float(np.sign(self.difference) * scipy.stats.norm.isf(tail))


class Joint(NamedTuple):
    """Rows of one group, or one row of several numbers, tested together.

    Attributes:
        of: What they are.
        count: How many numbers.
        beyond: How many of them are over two standard errors off.
        low: In how many ours is below the published.
        p: Chance of being so far off, or so one-sided, if nothing differs.
    """

    of: str
    count: int
    beyond: int
    low: int
    p: float


def decide(item: Item) -> dict[str, str]:
    """Return the standing of every row."""
    return {row.name: _decide(item, row) for row in item.rows}


def _decide(item: Item, row: Row) -> str:
    if not str(row.published):
        return OURS_ALONE
    if not row.ours.value:
        return NOT_MEASURED
    if row.expect != Expect():
        return _meet(item, row)
    if not row.published.value:
        return CANNOT_TELL
    other = (row.setting or item.setting) == "other"
    return _order(item, row) if other else _compare(row, list(pair_numbers(item, row)))


def _compare(row: Row, pairs: list[Pair]) -> str:
    """Whether digits are met, or differences are within error."""
    if row.exact:
        return AGREES if all(pair.is_rounding for pair in pairs) else DIFFERS
    if not all(pair.known for pair in pairs):
        return CANNOT_TELL
    if any(abs(pair.difference) > 2 * pair.error for pair in pairs):
        return DIFFERS
    return CANNOT_TELL if any(map(_cannot_fail, pairs)) else AGREES


def _cannot_fail(pair: Pair) -> bool:
    """Whether every smaller positive number would have passed, too."""
    ours = pair.ours.value
    return pair.published.value <= ours and ours - 2 * pair.error <= 0 < ours


def pair_numbers(item: Item, row: Row) -> Iterator[Pair]:
    """Return each published number beside ours; a spread that one lacks is the other's."""
    published, ours = row.published, row.ours
    theirs = published.runs or item.published_runs
    runs = ours.runs or item.runs
    spreads = (published.spread or ours.spread, ours.spread or published.spread)
    freedom = (theirs if published.spread else 1) + (runs if ours.spread else 1) - 2
    numbers = (_numbers(published, spreads[0], theirs), _numbers(ours, spreads[1], runs))
    for one, other in zip(*numbers, strict=True):
        yield Pair(one, other, freedom or 10**6)  # spreads of one run are known otherwise


def _numbers(stated: Stated, spread: str, runs: int) -> list[Number]:
    values = stated.value.split(", ")
    spreads = spread.split(", ") if spread else [""] * len(values)
    lows, highs = (text.split(", ") if text else values for text in (stated.low, stated.high))
    return [
        Number(
            value=_read(value),
            low=_read(low) - _half_unit(low),
            high=_read(high) + _half_unit(high),
            error=float(by) / np.sqrt(runs) if by else None,
        )
        for value, by, low, high in zip(values, spreads, lows, highs, strict=True)
    ]


def _read(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


def _half_unit(text: str) -> float:
    """Half a unit of the last digit, or hardly less: what is just beyond it is beyond it."""
    digits = text.partition(".")[2]
    return 0.5 * 10.0 ** -len(digits) * (1 - 1e-9) if np.isfinite(_read(text)) else 0.0


def _order(item: Item, row: Row) -> str:
    """Whether ours are in the published order: numbers of a list, or rows of a group."""
    own = list(pair_numbers(item, row))
    if len(own) > 1:
        return _judge(_same_order(one, other) for one, other in combinations(own, 2))
    rivals = [
        next(pair_numbers(item, other))
        for other in item.rows
        if other.name != row.name
        and other.group == row.group
        and other.published.value
        and other.ours.value
    ]
    return _judge(_same_order(own[0], rival) for rival in rivals)


def _same_order(one: Pair, other: Pair) -> bool | None:
    """None where either order is within two standard errors, or a published tie."""
    published = _sign(one.published, other.published)
    ours = _sign(one.ours, other.ours)
    return None if 0 in (published, ours) else published == ours


def _sign(one: Number, other: Number, *, apart: float = 2.0) -> int:
    """Which is larger: 0 where it cannot be said, by so many standard errors."""
    difference = one.value - other.value
    error = np.hypot(one.error or 0, other.error or 0)
    return 0 if abs(difference) <= apart * error else int(np.sign(difference))


def _judge(answers: Iterator[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    if not known:
        return CANNOT_TELL
    return SAME_DIRECTION if all(known) else DIFFERS


def _meet(item: Item, row: Row) -> str:
    """Whether ours is what is demanded, beyond two standard errors where these are known."""
    expect, own = row.expect, _measured(item, row)
    if expect.shape:
        has_shape = _SHAPES[expect.shape](own)
        return CANNOT_TELL if has_shape is None else SAME_DIRECTION if has_shape else DIFFERS
    here = own[expect.part - 1]
    if expect.equals:
        others = [_reference(item, name, expect.part).value for name in expect.equals]
        return AGREES if all(here.value == other for other in others) else DIFFERS
    if expect.near:
        near = [_sign(here, _reference(item, name, expect.part)) == 0 for name in expect.near]
        return SAME_DIRECTION if all(near) else DIFFERS
    answers: list[bool | None] = []
    for wanted, names, ties in (
        (1, expect.above, False),
        (-1, expect.below, False),
        (1, expect.at_least, True),
        (-1, expect.at_most, True),
    ):
        for name in names:
            other = _reference(item, name, expect.part)
            found = _sign(here, other)
            if here.value == other.value and not here.error:
                answers.append(ties)
            else:
                answers.append(None if found == 0 else found == wanted)
    if any(answer is False for answer in answers):
        return DIFFERS
    return CANNOT_TELL if None in answers else SAME_DIRECTION


def _rises(numbers: list[Number]) -> bool:
    return all(later.value > earlier.value for earlier, later in pairwise(numbers))


def _jumps(numbers: list[Number]) -> bool | None:
    """Whether all but the first are alike, and the first is not; None where errors hide it."""
    first, *later = (number.value for number in numbers)
    gap = abs(np.mean(later) - first)
    errors = [number.error for number in numbers if number.error is not None]
    if len(errors) < len(numbers):
        return bool(np.ptp(later) < gap)
    # Later ones are of the same models, so that their mean is no surer than one of them.
    seen = gap > 2 * np.hypot(errors[0], max(errors[1:]))
    level = _is_level(numbers[1:])
    return level if seen or level is False else None


def _is_level(numbers: list[Number]) -> bool | None:
    """Whether no two differ; None where errors are so large that none of them could be too low.

    Of many pairs one is two standard errors apart by chance: all of them share that error.
    """
    pairs = list(combinations(numbers, 2))
    apart = float(scipy.stats.norm.isf(scipy.stats.norm.sf(2) / len(pairs)))
    if any(_sign(one, other, apart=apart) for one, other in pairs):
        return False
    allowed = apart * max(np.hypot(one.error or 0, other.error or 0) for one, other in pairs)
    return None if allowed > abs(np.mean([number.value for number in numbers])) else True


_SHAPES: dict[str, Callable[[list[Number]], bool | None]] = {
    "rises": _rises,
    "jumps, then stays": _jumps,
    "stays": _is_level,
}


def _measured(item: Item, row: Row) -> list[Number]:
    return _numbers(row.ours, row.ours.spread, row.ours.runs or item.runs)


def _reference(item: Item, name: str | float, part: int) -> Number:
    if not isinstance(name, str):
        return Number(float(name), float(name), float(name), None)
    row = next(row for row in item.rows if row.name == name)
    return _measured(item, row)[part - 1]


def compare_jointly(item: Item) -> list[Joint]:
    """Return tests of rows that are compared by their digits: by group, or by row of several.

    Of rows of a group, which are independent: the sum of squares, and the sum; of numbers of one
    row, which need not be: the farthest. Each p is paid for: by two tests, or by as many numbers.
    """
    groups: dict[str, list[Pair]] = {}
    found = []
    for row in item.rows:
        other = (row.setting or item.setting) == "other" or row.expect != Expect()
        if other or row.exact or not row.published.value or not row.ours.value:
            continue
        pairs = list(pair_numbers(item, row))
        if not all(pair.known for pair in pairs):
            continue
        if len(pairs) > 1:
            farthest = max(abs(pair.z) for pair in pairs)
            p = min(1.0, len(pairs) * 2 * float(scipy.stats.norm.sf(farthest)))
            found.append(_joint(row.name, pairs, p))
        else:
            groups.setdefault(row.group, []).extend(pairs)
    for group, pairs in groups.items():
        if len(pairs) > 1:
            z = np.array([pair.z for pair in pairs])
            squares = scipy.stats.chi2.sf(np.sum(z**2), z.size)
            one_sided = 2 * scipy.stats.norm.sf(abs(z.sum()) / np.sqrt(z.size))
            found.append(_joint(group, pairs, min(1.0, 2 * float(min(squares, one_sided)))))
    return found


def _joint(of: str, pairs: list[Pair], p: float) -> Joint:
    beyond = sum(abs(pair.difference) > 2 * pair.error for pair in pairs)
    low = sum(pair.ours.value < pair.published.value for pair in pairs)
    return Joint(of, len(pairs), beyond, low, p)


def differs_jointly(tests: list[Joint]) -> bool:
    """Whether the rows of a table cannot all be of what was published: p by number of tests."""
    return bool(tests) and len(tests) * min(test.p for test in tests) < LEVEL


def count_standings(standings: Mapping[str, str]) -> dict[str, int]:
    """Return how many rows have which, those that only we measured aside."""
    values = list(standings.values())
    return {standing: values.count(standing) for standing in STANDINGS}
