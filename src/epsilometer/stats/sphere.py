"""Cosines of random directions: their exact law, whatever they are compared with."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
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


def cosines_of(cosines: ArrayLike, *, dimension: int) -> FloatArray:
    """Cosines of canaries that took part, as float64; what cannot be that is refused."""
    _validate.whole(2, dimension=dimension)
    known = np.atleast_1d(np.asarray(cosines, np.float64))
    if known.ndim != 1 or known.size == 0:
        raise InvalidArgument(
            f"Expected one cosine for each canary, got shape {known.shape}. "
            "If no canary took part, nothing was audited: train longer, or sample more clients."
        )
    lost = int(np.isnan(known).sum())
    if lost:
        raise InvalidArgument(
            f"Expected cosines of canaries that took part, found {lost} nan of {known.size}. "
            "Leave out canaries that never took part; a model that diverged has no cosines."
        )
    if not known.any():
        raise InvalidArgument(
            f"Expected cosines of canaries that took part, got {known.size} zeros. "
            "The update is zero, or no canary took part in it."
        )
    if known.size > dimension:
        raise InvalidArgument(
            f"Expected at most as many canaries as dimensions, got {known.size} in {dimension}. "
            "More are not independent of each other."
        )
    if np.abs(known).max() > 1 + 1e-5:  # float32 rounds; a sum of products does not exceed 1
        raise InvalidArgument(
            f"Expected cosines in [-1, 1], got {known[np.argmax(np.abs(known))]:.6g}. "
            "Divide by the norm of the update."
        )
    return np.clip(known, -1.0, 1.0)


def log_ratio(gain: FloatArray, log_loss: FloatArray) -> FloatArray:
    """ε of a rate less δ over the other rate; 0 where they show nothing, ∞ where that one is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(np.log(gain) - log_loss, posinf=np.inf).clip(min=0.0)


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
