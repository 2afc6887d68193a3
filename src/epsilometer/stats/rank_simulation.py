"""Simulate rank looks under the worst (ε, δ)-DP mechanism, if exact computation is too slow.

With U and W order statistics of uniform numbers, a look (k, x) happens under the worst mechanism of
(ε, δ) exactly where e^ε ≥ max((W₍x₎ − δ)/U₍k₎, (1 − δ − U₍k₎)/(1 − W₍x₎)): what is drawn does not
depend on ε, and the bound is a low order statistic of it.
"""

import functools
import math
from collections.abc import Iterator

import numpy as np
import scipy

from epsilometer.stats.rank_walk import Looks
from epsilometer.types import FloatArray, IntArray

_SURE = 0.999  # that the level is no larger than α, for the draws that everybody shares
_CELLS, _FEWEST, _MOST = 240_000, 4_095, 65_535  # draws times looks; draws at 5 %
_EXPONENTIALS = 6  # shapes up to which a sum of them is quicker than a Gamma variable
_STREAM = 20_210_905


def simulate_epsilon(looks: Looks, *, delta: float, alpha: float) -> float:
    """Return an ε at which some look happens with chance ``alpha`` or less; 0 where none is.

    Guarantee: the chance is at most α with the probability ``_SURE`` over the draws. They are the
        same for everyone, and independent of all scores.
    """
    draws = _count_draws(looks.k.size, alpha)
    ratios = _draw_ratios(looks, draws, delta)
    rank = find_safe_rank(draws, alpha)
    if rank == 0:
        return 0.0
    return max(0.0, math.log(max(np.partition(ratios, rank - 1)[rank - 1], 1e-300)))


def _draw_ratios(looks: Looks, draws: int, delta: float) -> FloatArray:
    """The smallest e^ε at which a look happens, for each draw."""
    rng = np.random.default_rng([_STREAM, looks.n_in, looks.n_out])
    least = np.full(draws, np.inf)
    pairs = zip(
        draw_order_statistics(looks.k, looks.n_out, draws, rng),
        draw_order_statistics(looks.x, looks.n_in, draws, rng),
        strict=True,
    )
    for u, w in pairs:
        with np.errstate(divide="ignore"):
            ratio = np.maximum((w - delta) / u, (1 - delta - u) / (1 - w))
        np.minimum(least, ratio, out=least)
    return least


def draw_order_statistics(
    ranks: IntArray, size: int, draws: int, rng: np.random.Generator
) -> Iterator[FloatArray]:
    """Order statistics of this many uniform numbers, one rank after the other."""
    shapes = np.diff(ranks, prepend=0, append=size + 1).tolist()
    steps = [_draw_gamma(shape, draws, rng) for shape in shapes]
    total = functools.reduce(np.add, steps)
    front = np.zeros(draws)
    for step in steps[:-1]:
        front += step
        yield front / total


def _draw_gamma(shape: int, draws: int, rng: np.random.Generator) -> FloatArray:
    if shape <= _EXPONENTIALS:
        return np.asarray(rng.standard_exponential((shape, draws)).sum(axis=0))
    return rng.standard_gamma(shape, draws)


def _count_draws(looks: int, alpha: float) -> int:
    draws = max(_FEWEST, min(_MOST, _CELLS // max(looks, 1)))
    return math.ceil(draws * max(1.0, 0.05 / alpha))


@functools.lru_cache(maxsize=64)
def find_safe_rank(draws: int, alpha: float) -> int:
    """Return the largest rank j with Pr[Beta(j, B + 1 − j) ≤ α] ≥ ``_SURE``."""
    low, high = 0, math.floor(alpha * (draws + 1)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        sure = scipy.special.betainc(middle, draws + 1 - middle, alpha) >= _SURE
        low, high = (middle, high) if sure else (low, middle)
    return low
