"""Decide by several statistics per run: "in" iff all, or any, reach their thresholds.

What thresholds are worth depends on two counts alone: runs with the record that are missed, and
runs without it that are flagged. The best pair of thresholds is found exactly: a threshold
of "all" can be raised to the next value of a run with the record without missing another, so those
values are all that need be tried, and the counts of all pairs are two running sums of a table.
"Any" is "all" of the opposite: a run is out iff every statistic is below its threshold.

With three or four statistics the first two thresholds are found so for all values of the others,
or for quantiles of them where runs are many. Then two at a time are chosen again while the others
stay, until no pair is worth more.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Literal, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Adjacency
from epsilometer.core.scores import Scores
from epsilometer.errors import InvalidArgument
from epsilometer.stats.binomial import clopper_pearson_upper
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.thresholds import Best, Fixed, HoldOut
from epsilometer.types import BoolArray, FloatArray, IntArray

Joining: TypeAlias = Literal["all", "any"]
_CELLS = 2**21  # of the table of counts that are held at a time
_TRIES, _ALL_CELLS = 2000, 2**27  # of thresholds beyond two: some seconds at most
_GAIN = 1e-12  # below it a climb has arrived
_ENDLESS = 1e300  # stands for −ln 0, so that nothing is nan
_HALF = HoldOut(0.5)


@dataclass(frozen=True, kw_only=True)
class JointThresholds:
    """A decision: in iff all (or any) statistics reach their thresholds.

    Attributes:
        joining: ``"all"`` (the paper's type 1) or ``"any"`` (type 2).
        thresholds: One per statistic; −inf and +inf where it has no effect.
        epsilon: What the counts on which it was chosen are worth; 0 where nothing was found.
    """

    joining: Joining
    thresholds: tuple[float, ...]
    epsilon: float

    def decides(self, statistics: ArrayLike) -> BoolArray:
        """Return which runs are classified as runs with the record, by statistics ``(runs, k)``."""
        reached = np.asarray(statistics, np.float64) >= np.array(self.thresholds)
        return np.asarray(reached.all(1) if self.joining == "all" else reached.any(1))


@dataclass(frozen=True, eq=False)
class Rates:
    """Error rates by counts of errors: as they are, or limits of them.

    Attributes:
        fnr: For 0, 1, … missed runs, rising.
        fpr: For 0, 1, … false alarms, rising.
        delta: δ of the ε they are worth.
    """

    fnr: FloatArray
    fpr: FloatArray
    delta: float

    def worth(self, missed: IntArray, alarms: IntArray) -> FloatArray:
        """Return ε of the two rates, the larger direction; below 0 where they show nothing."""
        hit, quiet = self._logs
        first = hit[0][missed] - hit[1][alarms]
        return np.maximum(first, quiet[0][alarms] - quiet[1][missed])

    @property
    def opposite(self) -> "Rates":
        """Of the opposite decision: what was missed is now a false alarm."""
        return Rates(self.fpr, self.fnr, self.delta)

    @cached_property
    def _logs(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        with np.errstate(divide="ignore"):
            above = [
                np.log(np.maximum(1 - self.delta - rate, 0.0)) for rate in (self.fnr, self.fpr)
            ]
            below = [np.maximum(np.log(rate), -_ENDLESS) for rate in (self.fnr, self.fpr)]
        return (above[0], below[1]), (above[1], below[0])


def raw_rates(n_in: int, n_out: int, *, delta: float, least: float = 0.0) -> Rates:
    """Return shares of errors as counted, floored at ``least``; they give no bound.

    The paper of these decisions has no floor and does not say how it stayed finite: with none, a
    single run beyond all others is worth ∞.
    """
    fnr, fpr = (np.maximum(np.arange(n + 1) / n, least) for n in (n_in, n_out))
    return Rates(fnr, fpr, delta)


def limit_rates(n_in: int, n_out: int, *, delta: float, alpha: float) -> Rates:
    """Return Clopper and Pearson's upper limits, each at ``alpha``."""
    fnr, fpr = (clopper_pearson_upper(np.arange(n + 1), n, alpha=alpha) for n in (n_in, n_out))
    return Rates(fnr, fpr, delta)


def best_thresholds(
    inside: ArrayLike,
    outside: ArrayLike,
    *,
    joining: Joining,
    rates: Rates,
) -> JointThresholds:
    """Return the thresholds with the largest ε on these runs, which is not a bound.

    Guarantee: with one or two statistics no thresholds give more; nor with three and up to about
        300 runs per side, or four and up to 40.
    Assumption: rates rise with counts.

    Args:
        inside: Statistics of runs with the record, shape ``(runs, k)``; larger speaks for it.
        outside: The same for runs without it.
        joining: In iff all, or any, statistics reach their thresholds.
        rates: Error rates by counts.

    Example:
        >>> inside, outside = [[2, 2], [3, 2], [0, 0]], [[0, 3], [3, 0], [1, 1]]
        >>> rates = raw_rates(3, 3, delta=0.0, least=0.1)
        >>> found = best_thresholds(inside, outside, joining="all", rates=rates)
        >>> found.thresholds, round(found.epsilon, 3)
        ((2.0, 2.0), 1.897)
    """
    known_in, known_out = _check_statistics(inside, outside)
    if joining == "all":
        worth, thresholds = _find_best_of_all(known_in, known_out, rates)
    else:
        worth, thresholds = _find_best_of_all(-known_out, -known_in, rates.opposite)
        thresholds = np.nextafter(-thresholds, np.inf)  # any > is any ≥ the next number
    epsilon = max(0.0, math.inf if worth > _ENDLESS / 2 else worth)
    return JointThresholds(joining=joining, thresholds=tuple(thresholds.tolist()), epsilon=epsilon)


def joint_bound(
    inside: ArrayLike,
    outside: ArrayLike,
    *,
    joining: Joining,
    delta: float,
    confidence: float = DEFAULT_CONFIDENCE,
    rule: HoldOut | Best = _HALF,
    seed: int = 0,
    adversary: str = "unstated",
    adjacency: Adjacency = "unstated",
) -> EpsilonLowerBound:
    """Bound ε from below, by a decision on several statistics.

    Guarantee: with ``HoldOut``, exceeds the true ε in at most ``1 - confidence`` of audits,
        whatever the statistics: thresholds are chosen on runs that the bound then never sees.
    Assumption: runs are independent.

    Args:
        inside: Statistics of runs with the record, shape ``(runs, k)``; larger speaks for it.
        outside: The same for runs without it.
        joining: In iff all, or any, statistics reach their thresholds.
        delta: δ of the bound.
        confidence: One-sided.
        rule: ``HoldOut(fraction)``; or ``Best()``, the paper's: the largest ε on all runs, with
            rates floored at one run. The latter is marked as not valid.
        seed: Seed of the split.
        adversary: Whose view the statistics are computed from.
        adjacency: The neighbouring relation.
    """
    known_in, known_out = _check_statistics(inside, outside)
    rng = np.random.default_rng(seed)
    if isinstance(rule, Best):
        n_in, n_out = len(known_in), len(known_out)
        rates = raw_rates(n_in, n_out, delta=delta, least=1 / min(n_in, n_out))
        found = best_thresholds(known_in, known_out, joining=joining, rates=rates)
        bound = _bound_of(found, known_in, known_out, delta, confidence, seed)
        caveats = (
            "the best thresholds on these same runs, not accounted for, and rates without "
            "limits: as in the paper, floored at one run",
        )
        basis = (*bound.basis, ("rates floored at", 1 / min(n_in, n_out)))
        bound = replace(bound, epsilon=found.epsilon, valid=False, caveats=caveats, basis=basis)
    else:
        (chosen_in, used_in), (chosen_out, used_out) = (
            _split_halves(known, rule.fraction, rng) for known in (known_in, known_out)
        )
        rates = limit_rates(
            len(chosen_in), len(chosen_out), delta=delta, alpha=(1 - confidence) / 2
        )
        found = best_thresholds(chosen_in, chosen_out, joining=joining, rates=rates)
        bound = _bound_of(found, used_in, used_out, delta, confidence, seed)
    return replace(
        bound,
        threshold_rule=f"{rule!r}, {joining} of {known_in.shape[1]} statistics",
        adversary=adversary,
        adjacency=adjacency,
    )


def _bound_of(
    found: JointThresholds,
    inside: FloatArray,
    outside: FloatArray,
    delta: float,
    confidence: float,
    seed: int,
) -> EpsilonLowerBound:
    """Bound ε by the decision, as a score of 0 or 1."""
    decided = Scores(*(found.decides(known).astype(np.float64) for known in (inside, outside)))
    return epsilon_lower_bound(
        decided, delta=delta, confidence=confidence, rule=Fixed(0.5), seed=seed
    )


def _find_best_of_all(
    inside: FloatArray, outside: FloatArray, rates: Rates
) -> tuple[float, FloatArray]:
    k = inside.shape[1]
    if k == 1:
        worth, thresholds = _find_best_pair(
            np.hstack([inside] * 2), np.hstack([outside] * 2), rates, 0
        )
        return worth, thresholds[1:]
    if k == 2:
        return _find_best_pair(inside, outside, rates, 0)
    others = _choose_others(inside, outside, rates)
    worth, two = _find_best_given(
        inside, outside, rates, [0, 1], np.array([-math.inf, -math.inf, *others])
    )
    return _climb(inside, outside, rates, worth, np.array([*two, *others]))


def _choose_others(inside: FloatArray, outside: FloatArray, rates: Rates) -> FloatArray:
    """Return thresholds of the third and fourth statistic, the first that are worth most."""
    every = _list_others(inside)
    values = [np.unique(column) for column in inside.T[:2]]
    if len(every) * values[0].size * values[1].size > _CELLS:  # one table at a time
        given = (np.array([-math.inf, -math.inf, *others]) for others in every)
        best = [_find_best_given(inside, outside, rates, [0, 1], each)[0] for each in given]
        return np.asarray(every[int(np.argmax(best))])
    hits, alarms = (_count_in_tables(values, known, every) for known in (inside, outside))
    tried = (hits[:, :, :1] > 0) & (hits[:, :1, :] > 0)  # none beyond all runs that are left
    worth = np.where(tried, rates.worth(len(inside) - hits, alarms), -math.inf)
    return np.asarray(every[int(np.argmax(worth.max(axis=(1, 2))))])


def _count_in_tables(values: list[FloatArray], known: FloatArray, others: FloatArray) -> IntArray:
    """Count runs that reach two thresholds, in one table for each row of ``others``."""
    reached = [
        np.searchsorted(value, column, "right") - 1
        for value, column in zip(values, known.T, strict=False)
    ]
    left = (known[:, 2:] >= others[:, None]).all(2) & (np.minimum(*reached) >= 0)
    table, run = left.nonzero()
    shape = len(others), values[0].size, values[1].size
    place = np.ravel_multi_index((table, reached[0][run], reached[1][run]), shape)
    cells = np.bincount(place, minlength=math.prod(shape)).reshape(shape)
    return np.asarray(cells[:, ::-1, ::-1].cumsum(1).cumsum(2)[:, ::-1, ::-1])


def _list_others(inside: FloatArray) -> FloatArray:
    """Return thresholds of the third and fourth statistic: all of them, or quantiles."""
    n, k = inside.shape
    tries = min(_TRIES, _ALL_CELLS // n**2)
    each = max(2, int(tries ** (1 / (k - 2))))
    columns = []
    for column in inside.T[2:]:
        values = np.unique(column)
        at = np.linspace(0, values.size - 1, min(each, values.size)).round().astype(np.int64)
        columns.append(values[at])
    return np.array(list(product(*columns)))


def _climb(
    inside: FloatArray, outside: FloatArray, rates: Rates, worth: float, thresholds: FloatArray
) -> tuple[float, FloatArray]:
    """Choose two thresholds at a time again, until no pair gives a larger ε."""
    improved = True
    while improved:
        improved = False
        for pair in map(list, combinations(range(thresholds.size), 2)):
            better, two = _find_best_given(inside, outside, rates, pair, thresholds)
            if better > worth + _GAIN:
                worth, improved = better, True
                thresholds[pair] = two
    return worth, thresholds


def _find_best_given(
    inside: FloatArray, outside: FloatArray, rates: Rates, pair: list[int], thresholds: FloatArray
) -> tuple[float, FloatArray]:
    """Return the best two thresholds where the others stay as they are."""
    others = thresholds.copy()
    others[pair] = -math.inf
    in_left, out_left = (known[(known >= others).all(1)][:, pair] for known in (inside, outside))
    if not len(in_left):
        return -math.inf, others[pair]
    return _find_best_pair(in_left, out_left, rates, len(inside) - len(in_left))


def _find_best_pair(
    inside: FloatArray, outside: FloatArray, rates: Rates, missed: int
) -> tuple[float, FloatArray]:
    """Return the best of all pairs of inside values; ``missed`` runs are missed already."""
    (first, second), places_in = _find_places(inside, inside)
    _, places_out = _find_places(inside, outside)
    best = (-math.inf, np.full(2, -math.inf))
    rows = max(1, _CELLS // second.size)
    seen = np.zeros((2, second.size), np.int64)
    for stop in range(first.size, 0, -rows):
        start = max(0, stop - rows)
        hits, alarms = (
            _count_reached(places, start, stop, second.size, row)
            for places, row in zip((places_in, places_out), seen, strict=True)
        )
        worth = rates.worth(missed + len(inside) - hits, alarms)
        i, j = divmod(int(worth.argmax()), second.size)
        if worth[i, j] > best[0]:
            best = float(worth[i, j]), np.array([first[start + i], second[j]])
    return best


def _find_places(inside: FloatArray, known: FloatArray) -> tuple[tuple[FloatArray, ...], IntArray]:
    """Return inside values, rising, and how many of them each run reaches, less one."""
    values = tuple(np.unique(column) for column in inside.T)
    places = [
        np.searchsorted(value, column, "right") - 1
        for value, column in zip(values, known.T, strict=True)
    ]
    reached = np.stack(places, axis=1)
    return values, reached[(reached >= 0).all(1)]


def _count_reached(
    places: IntArray, start: int, stop: int, width: int, above: IntArray
) -> IntArray:
    """Count runs that reach both thresholds; ``above`` holds the counts of later rows."""
    here = places[(places[:, 0] >= start) & (places[:, 0] < stop)]
    cells = np.bincount(
        (here[:, 0] - start) * width + here[:, 1], minlength=(stop - start) * width
    ).reshape(stop - start, width)
    columns = cells[::-1].cumsum(0)[::-1] + above
    above[:] = columns[0]
    return np.asarray(columns[:, ::-1].cumsum(1)[:, ::-1])


def _split_halves(
    known: FloatArray, fraction: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    part = round(fraction * len(known))
    if not 0 < part < len(known):
        raise InvalidArgument(
            "Expected at least two runs with the record and two without it to hold some out, "
            f"got {len(known)}."
        )
    order = rng.permutation(len(known))
    return known[order[:part]], known[order[part:]]


def _check_statistics(inside: ArrayLike, outside: ArrayLike) -> tuple[FloatArray, FloatArray]:
    known = [np.asarray(side, np.float64) for side in (inside, outside)]
    for side in known:
        if side.ndim != 2 or 0 in side.shape or side.shape[1] != known[0].shape[1]:
            raise InvalidArgument(
                "Expected statistics of shape (runs, k), k the same inside and outside, got "
                f"{known[0].shape} and {known[1].shape}."
            )
        if not np.isfinite(side).all():
            raise InvalidArgument(
                "Expected finite statistics, got nan or infinity. A spread of 0 has no inverse: "
                "give −spread, which orders runs alike. A run that diverged must count: score it."
            )
    return known[0], known[1]
