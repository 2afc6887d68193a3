"""Check that observations are plausible for their design, and that none are copies."""

import math

import numpy as np
import scipy

from epsilometer.core.scores import Scores, describe_design
from epsilometer.errors import InvalidArgument
from epsilometer.stats.shared_seeds import is_sorted
from epsilometer.stats.thresholds import Observed
from epsilometer.stats.tie_orders import measure_chance
from epsilometer.types import FloatArray, IntArray

IMPLAUSIBLE = 1e-6  # chance below which a sample refutes what is said of it
_LOOKED_AT = 2**13  # scores of a side; sorting more would take longer than some bounds do
_ODD = 1e-2  # chance below which values that repeat equally often are remarked on
_FEWEST = 5  # values that repeat, below which there is no remark, nor
_ATOMS = 8  # below so many different ones, which may be all that an attack answers
_SHARE = 0.005  # of the values of a side that repeat, below which there is no remark
_COPIES = "Copied rows, or seeds used twice, are not independent and make the bound too large."
_NEAR = 1.1  # times the smallest gap, within which gaps are one step in spite of rounding
_ROUNDED = 0.01  # of the smallest gap, which rounding may add to others
_LARGEST_MULTIPLE = 2.0**40  # of the smallest gap; larger floats are whole numbers anyway
_NEIGHBOURS = 0.3  # of so many repeated values, below which steps explain nothing


def inspect_observations(observed: Observed) -> tuple[str, ...]:
    """Refuse observations that contradict their design; return remarks on suspicious ones.

    Guarantee: each error has a chance of about 10⁻⁶ at most where scores are as declared.

    Raises:
        InvalidArgument: The number inside is implausible for coin tosses; or all values of a side
            repeat equally often, like copied rows; or the sides of pairs were sorted separately.
    """
    _check_inclusion(observed)
    if not isinstance(observed, Scores):
        return ()  # values within a bin are equal without being copies
    if observed.design == "paired":
        refuse_sorted_pairs(observed)
    sides = {"inside": observed.inside, "outside": observed.outside}
    ranked = {name: np.sort(_take_window(side)) for name, side in sides.items()}
    even = _refuse_copies(ranked)
    remarks = tuple(filter(None, (_remark(name, side) for name, side in ranked.items())))
    return (*(remarks or even), *_remark_shared(ranked["inside"], ranked["outside"]))


def refuse_canaries(observed: Observed, method: str) -> None:
    """Refuse canaries of one run where a method needs independent runs."""
    if observed.design != "runs":
        said = describe_design(observed.design, observed.inclusion)
        raise InvalidArgument(
            f"Expected {describe_design('runs')}, for {method}, got {said} (design = "
            f"{observed.design!r}). Scores of one run depend on each other: they are bounded by "
            "one_run and one_run_fdp."
        )


def refuse_sorted_pairs(scores: Scores) -> None:
    """Refuse pairs of which both sides rise, or both fall, all the way: each was sorted alone.

    The k-th score inside is then paired with the k-th outside, and null scores seem separable: a
    false bound in 16 of 30 audits of 300 canaries, and in 9 of 30 by bets on pairs.

    Guarantee: the chance is about 10⁻⁶ at most, if the two scores of a pair are independent.
    """
    pairs = min(scores.n_in, scores.n_out)
    sides = scores.inside[:pairs], scores.outside[:pairs]
    if not all(map(is_sorted, sides)) or (sides[0][0] < sides[0][-1]) != (
        sides[1][0] < sides[1][-1]
    ):
        return
    ways = min(
        measure_chance(np.unique(side, return_counts=True)[1], pairs, places=True) for side in sides
    )
    if ways > -math.log(IMPLAUSIBLE):
        raise InvalidArgument(
            f"Expected the two scores of each pair side by side, got {pairs:,} pairs whose scores "
            "are sorted both inside and outside: who was paired with whom is lost. Give the scores "
            "in the order of the pairs; pairs that are truly so, in another order."
        )


def _check_inclusion(observed: Observed) -> None:
    if observed.design != "coins":
        return
    n_in, total, chance = observed.n_in, observed.n_in + observed.n_out, observed.inclusion
    at_most = scipy.special.bdtr(n_in, total, chance)
    at_least = scipy.special.bdtrc(n_in - 1, total, chance) if n_in else 1.0
    if 2 * min(at_most, at_least) < IMPLAUSIBLE:
        raise InvalidArgument(
            f"Expected about {total * chance:,.0f} of {total:,} canaries inside "
            f"({describe_design('coins', chance)}), got {n_in:,}, which coins give less than once "
            "in a million runs. Give the scores of all canaries; state the coin's chance as "
            "inclusion, or design = 'fixed' where a fixed number was drawn."
        )


def _refuse_copies(ranked: dict[str, FloatArray]) -> tuple[str, ...]:
    """Refuse sides whose values all repeat equally often, alone or both together.

    Returns:
        A remark on few scores that do so, which may be chance.
    """
    even = {name: _measure_evenness(_count_values(side)[1]) for name, side in ranked.items()}
    chance = min(*even.values(), sum(even.values()))
    name = min(even, key=even.__getitem__)
    counts = _count_values(ranked[name])[1]
    if chance >= math.log(IMPLAUSIBLE):
        if chance >= math.log(_ODD) or counts.size < 3:
            return ()
        return (f"Every score {name} occurs exactly {counts[0]} times. {_COPIES}",)
    raise InvalidArgument(
        f"Expected independent scores {name}, got every value exactly {counts[0]} times: "
        f"{counts.size:,} different ones among {ranked[name].size:,} that were checked. Rows "
        "were copied, or files joined that share them. Keep one row for each run or canary."
    )


def _count_values(ranked: FloatArray) -> tuple[FloatArray, IntArray]:
    """Different values of rising scores, and how often each occurs; none where all differ."""
    steps = np.flatnonzero(ranked[1:] != ranked[:-1])
    if steps.size >= ranked.size - 1:  # the usual case
        return ranked[:0], np.zeros(0, np.int64)
    edges = np.concatenate([[-1], steps, [ranked.size - 1]])
    return ranked[edges[1:]], np.diff(edges)


def _remark(name: str, ranked: FloatArray) -> str:
    """Return a remark on scores that repeat though they have many digits."""
    values, counts = _count_values(ranked)
    repeated = int((counts > 1).sum())
    if values.size < _ATOMS or repeated < max(_FEWEST, _SHARE * values.size):
        return ""
    if _is_coarse(values, counts):
        return ""
    return (
        f"{repeated:,} of {values.size:,} different scores {name} occur more than once, though "
        f"they have many digits. {_COPIES}"
    )


def _remark_shared(inside: FloatArray, outside: FloatArray) -> tuple[str, ...]:
    """Return a remark on scores of many digits that stand on both sides: they hide a leak."""
    pooled = np.sort(np.concatenate([inside, outside]), kind="stable")  # two runs, merged
    values, counts = _count_values(pooled)
    if values.size < _ATOMS:
        return ()
    different = (1 + np.count_nonzero(side[1:] != side[:-1]) for side in (inside, outside))
    shared = sum(different) - values.size
    if shared < max(_FEWEST, _SHARE * values.size) or _is_coarse(values, counts):
        return ()
    return (
        f"{shared:,} of {values.size:,} different scores occur both inside and outside, though "
        "they have many digits. Rows given on both sides, or runs of both sides that share a seed, "
        "are not independent and may hide a leak.",
    )


def _measure_evenness(counts: IntArray) -> float:
    """Return ln of the chance that independent scores of any distribution repeat so evenly.

    The most likely distribution has these values alone, all equally probable.
    """
    if counts.size == 0 or (counts != counts[0]).any():
        return 0.0
    values, times = counts.size, int(counts[0])
    n = values * times
    return math.lgamma(n + 1) - values * math.lgamma(times + 1) - n * math.log(values)


def _is_coarse(values: FloatArray, counts: IntArray) -> bool:
    """Tell whether scores repeat because they were rounded or counted, or at some atoms alone.

    Then neighbouring values are often one step apart, as often as they are equal. A step is the
    smallest gap between values of about that size: numbers of few digits have no other.
    """
    finite = np.isfinite(values)
    repeated = int((counts[finite] > 1).sum())
    if repeated < _FEWEST:
        return True
    known = values[finite].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of gaps beyond the largest float
        gaps = np.diff(known)
        if _is_lattice(gaps):
            return True
        sizes, at = np.unique(np.frexp(known)[1][1:], return_inverse=True)
        steps = np.full(sizes.size, np.inf)
        np.minimum.at(steps, at, gaps)
        return bool((gaps <= _NEAR * steps[at]).sum() - sizes.size > _NEIGHBOURS * repeated)


def _is_lattice(gaps: FloatArray) -> bool:
    """Tell whether all gaps are multiples of the smallest one."""
    multiples = gaps / gaps.min()
    if multiples.max() > _LARGEST_MULTIPLE:
        return False
    return bool((np.abs(multiples - np.rint(multiples)) < _ROUNDED).all())


def _take_window(side: FloatArray) -> FloatArray:
    """Return the scores; of very many those in the middle, where copies and neighbours stay."""
    if side.size <= _LOOKED_AT:
        return side
    some = np.sort(side[:: side.size // 1024])
    width = math.ceil(some.size * _LOOKED_AT / side.size)
    start = (some.size - width) // 2
    low, high = some[start], some[min(start + width, some.size - 1)]
    return np.asarray(side[(low < side) & (side < high)])
