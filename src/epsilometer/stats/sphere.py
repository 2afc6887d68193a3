"""Cosines of random directions: their exact null law, and the bound the one-shot paper takes."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.results import EpsilonLowerBound
from epsilometer.stats import binomial
from epsilometer.types import FloatArray


def cosine_cdf(x: ArrayLike, dimension: int) -> FloatArray:
    """Chance that a random direction has cosine at most ``x`` with a fixed one.

    Exact in every dimension: (1 + cos)/2 is Beta((d−1)/2, (d−1)/2) distributed (one-shot paper,
    Theorem 3.1); N(0, 1/d) is only its limit.

    Example:
        >>> cosine_cdf([-0.5, 0.0, 1.0], dimension=2).round(4)
        array([0.3333, 0.5   , 1.    ])
    """
    return cosine_sf(-np.asarray(x, np.float64), dimension)


def cosine_sf(x: ArrayLike, dimension: int) -> FloatArray:
    """Chance that the cosine exceeds ``x``, precise in the upper tail."""
    x, half = _checked(x, dimension)
    # cos² is Beta(½, (d−1)/2): squares of small cosines are exact, 1 − cos² would not be.
    beyond, within = (f(0.5, half, x * x) / 2 for f in (special.betaincc, special.betainc))
    return np.asarray(np.where(x > 0, beyond, 0.5 + within))


def cosine_logsf(x: ArrayLike, dimension: int) -> FloatArray:
    """Logarithm of ``cosine_sf``; does not underflow."""
    x, half = _checked(x, dimension)
    with np.errstate(divide="ignore"):
        plain = np.log(cosine_sf(x, dimension))
        far = np.isneginf(plain) & (x < 1)
        if not far.any():
            return plain
        return np.where(far, _log_tail(np.where(far, x, 0.5), half), plain)


def cosine_quantile(q: ArrayLike, dimension: int) -> FloatArray:
    """The cosine below which a random direction falls with probability ``q``.

    For the upper tail ask for ``-cosine_quantile(1 - q)`` with ``1 - q`` written out: the law is
    symmetric, and 1 − 1e-20 is 1 in floating point.

    Example:
        >>> cosine_quantile([0.05, 0.5], dimension=3).round(6)
        array([-0.9,  0. ])
    """
    q = np.asarray(q, np.float64)
    if np.any(~((q >= 0) & (q <= 1))):
        raise InvalidArgument(f"Expected q in [0, 1], got {q!r}.")
    _, half = _checked(0.0, dimension)
    tail = np.minimum(q, 1 - q)
    inner = (tail > 0) & (tail < 0.5)
    square = binomial.beta_quantile(0.5, half, np.where(inner, 2 * tail, 0.5), from_above=True)
    size = np.sqrt(np.where(inner, square, np.where(tail > 0, 0.0, 1.0)))
    return np.asarray(np.where(q < 0.5, -size, size))


def one_shot_epsilon_lo(
    cosines: ArrayLike, *, dimension: int, delta: float, confidence: float = 0.95
) -> EpsilonLowerBound:
    """ε_lo of the one-shot papers. **Not a valid bound**: to reproduce them.

    Every cosine is tried as threshold ("present" iff at or above it); the FPR there is known
    exactly, the FNR has Jeffreys' upper limit, and the largest ε of both directions is taken at
    no cost. It exceeds the true ε in 5 to 43 % of audits that say 95 %.
    """
    _validate.probability(delta=delta)
    _validate.open_unit(confidence=confidence)
    scores = np.sort(_validate.scores("cosines", cosines))
    log_fpr = cosine_logsf(scores, dimension)
    missed = np.searchsorted(scores, scores)  # cosines below each; equal ones stay together
    fnr, tpr = binomial.upper_limit(missed, scores.size, alpha=1 - confidence, kind="jeffreys")
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.log(tpr - delta) - log_fpr
        below = np.log(cosine_cdf(scores, dimension) - delta) - np.log(fnr)
    epsilons = np.nan_to_num(np.stack([above, below]), nan=0.0, neginf=0.0).clip(min=0.0)
    row, at = np.unravel_index(np.argmax(epsilons), epsilons.shape)
    return EpsilonLowerBound(
        epsilon=float(epsilons[row, at]),
        delta=delta,
        confidence=confidence,
        method="jeffreys",
        threshold_rule="Best(), FPR from the exact null law",
        valid=False,
        direction="present→absent" if row == 0 else "absent→present",
        threshold=float(scores[at]),
        n_in=scores.size,
        n_out=0,
        cites=("andrew2024",),
        caveats=(
            "Not a valid bound: the threshold was chosen on the scores it is used on, at no cost, "
            "and Jeffreys' limit is not exact.",
        ),
    )


def _checked(x: ArrayLike, dimension: int) -> tuple[FloatArray, float]:
    _validate.whole(2, dimension=dimension)
    array = np.asarray(x, np.float64)
    if np.any(~(np.abs(array) <= 1)):
        raise InvalidArgument(f"Expected cosines in [-1, 1], got {array!r}.")
    return array, (dimension - 1) / 2


def _log_tail(x: FloatArray, half: float) -> FloatArray:
    """ln of half the tail of cos² by its continued fraction (DLMF 8.17.22), for deep tails."""
    a, b, y = half, 0.5, (1 - x) * (1 + x)  # 1 − cos² is Beta(half, ½), and small here
    fraction = np.ones_like(y)
    for m in range(60, 0, -1):
        even = m * (b - m) * y / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * y / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1 + odd / (1 + even / fraction)
    front = a * np.log(y) + b * np.log(x * x) - special.betaln(a, b) - math.log(a)
    return np.asarray(front - np.log(fraction) - math.log(2))
