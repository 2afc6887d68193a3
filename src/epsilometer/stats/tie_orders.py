"""Decide how often equal scores are put in a random order.

An order that is drawn at random makes ranks exact, on average over orders. But a seed is shared,
and most users keep the default. Where scores bring chance of their own, as places of equal scores
in their arrays do, a seed is not lucky for all of them. Scores that are all equal, sorted, or
counted in few bins bring little: by one order, 60 + 60 scores that are all alike would prove
ε ≥ 0.28 to everyone, and randomised response of ε = 1, counted, 20 + 20, a false bound in 7.5 % of
audits. Such scores are ordered several times: what the first order proves is taken, or what the
middle one proves where that is less. So it is as valid as the first, and rests on no lucky order.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from epsilometer.core.scores import ScoreCounts
from epsilometer.stats.shared_seeds import is_sorted
from epsilometer.stats.thresholds import Observed
from epsilometer.types import FloatArray, IntArray

Counted = TypeVar("Counted")
_ORDERS = 9
_ENOUGH = math.log(3_000)  # ways: one seed then errs in 0.3 % of audits more or less than α
_LOOKED_AT = 1 << 15  # scores of a side


def count_orders(observed: Observed) -> int:
    """Return the number of random orders to draw for scores with ties across both sides.

    Of runs that are not counted, an order must depend on places in the arrays.
    """
    if isinstance(observed, ScoreCounts):
        both = (observed.outside_bins > 0) & (observed.inside_bins > 0)
        shared = observed.outside_bins[both], observed.inside_bins[both]
        totals, placed = (observed.n_out, observed.n_in), (False, False)
    else:
        sides = [side[:_LOOKED_AT] for side in (observed.outside, observed.inside)]
        (out, out_sizes), (ins, in_sizes) = (np.unique(side, return_counts=True) for side in sides)
        shared = out_sizes[np.isin(out, ins)], in_sizes[np.isin(ins, out)]
        totals = sides[0].size, sides[1].size
        placed = not is_sorted(sides[0]), not is_sorted(sides[1])
    if observed.design == "runs":
        ways = sum(map(measure_chance, shared, totals, placed))
    else:  # which canaries were in is left to chance, too
        ways = measure_chance(np.concatenate(shared), sum(totals), places=False)
    return 1 if ways >= _ENOUGH else _ORDERS


def choose_order(
    first: Counted, draw: Callable[[], Counted], value: Callable[[Counted], float], orders: int
) -> Counted:
    """Return the counts of the first order, or of the median order if it proves less.

    Args:
        first: Counts in the first order.
        draw: Function that counts in another order.
        value: Function that measures how much counts prove.
        orders: Number of orders, including the first.
    """
    every = sorted([first, *(draw() for _ in range(1, orders))], key=value)
    return min(first, every[(orders - 1) // 2], key=value)


def count_orders_of_pairs(differences: FloatArray) -> int:
    """Return the number of random orders to draw for pairs of equal scores."""
    some = differences[:_LOOKED_AT]
    sizes = np.array([(some == 0).sum(), (some > 0).sum(), (some < 0).sum()])
    ways = measure_chance(sizes, some.size, places=not is_sorted(some))
    return 1 if ways >= _ENOUGH else _ORDERS


def measure_chance(sizes: IntArray, total: int, places: bool) -> float:
    """Return the logarithm of the number of ways in which groups of equal scores arise.

    Args:
        sizes: Sizes of the groups; the other scores count as one more.
        total: Scores of the side.
        places: Count the places of groups in the array, too; else only their sizes vary.

    Example:
        >>> round(math.exp(measure_chance(np.array([14, 6]), 20, places=True)))
        38760
        >>> round(math.exp(measure_chance(np.array([14, 6]), 20, places=False)), 1)
        8.5
    """
    parts = np.append(sizes, total - sizes.sum())
    parts = parts[parts > 0]
    if places:
        return math.lgamma(total + 1) - sum(math.lgamma(part + 1) for part in parts.tolist())
    spread = (parts.size - 1) * math.log(2 * math.pi * math.e * total)  # entropy of a multinomial
    return max(0.0, (spread + float(np.log(parts / total).sum())) / 2)
