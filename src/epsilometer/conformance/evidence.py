"""Compute evidence against a correct program: e-values of residual noise, as logarithms.

An e-value has expectation at most 1 where the program is right, so it reaches k/α with probability
at most α/k. For a product over steps this holds at all steps together (Ville 1939). Averages of
e-values with weights that sum to at most 1 are e-values again. "Right" means here: residuals, in
units of the accounted σC, are independent Gaussian noise of scale *at least* 1.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from epsilometer.stats.sphere import cosine_logsf
from epsilometer.types import FloatArray

# Scales that are bet on where there is too little noise. Not below 0.05: on a lattice of 1/16,
# which is allowed, a narrower Gaussian finds 0 too often.
SMALLER = np.array(
    [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99]
)
LARGER = np.array([1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 10.0, 100.0])
SMALL = 1e-3  # a residual below it counts as none
COARSEST = 1 / 16  # lattice spacing, in units of the noise, up to which rounding is a remark
SMALL_SHARE = math.erf(COARSEST / 2 / math.sqrt(2)) * 1.02  # of 0 on that lattice, and 2 %
LEAST_POSITIVE = 0.5 - SMALL_SHARE / 2
TIE_SHARE = COARSEST / (2 * math.sqrt(math.pi)) * 1.02  # of equal pairs on that lattice, and 2 %
_SMALL_SHARES = np.array([0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 0.9, 0.999])
_TIE_SHARES = np.array([0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 0.999])
_SIGN_SHARES = np.array([0.52, 0.55, 0.6, 0.75, 0.9, 0.99])
_CUTS = np.array([1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0])
# Of |x| < cut at most, on any lattice that is allowed: rounding moves a value by 1/32 at most.
_LOG_WITHIN = np.log(scipy.special.erf((_CUTS + COARSEST / 2) / math.sqrt(2)))
_BLURRED_CUTS = np.array([2.0, 2.5, 3.0, 3.5])[:, None]
_BLURS = np.array([1 / 40, 1 / 10])  # variances of what was added to truncated noise
_LOG_KEPT = np.log(scipy.special.erf(_BLURRED_CUTS / math.sqrt(2)))
_FLAT = (2.25, 3.0, 4.0, 8.0)  # exponents of exp(−|x|^β); 2 is Gaussian, ∞ uniform
_PEAKED = (1.0, 1.5)  # 1 is Laplace
_PEAKED_SCALES = (1.0, math.sqrt(2))
_BUMPS = (0.8, 0.95, 0.99)  # distance of two Gaussian bumps from 0, of variance 1 together
_STAKES = np.array([0.5, 1.0, 2.0, 4.0, -0.5, -1.0, -2.0, -4.0])
_LOG_2PI = math.log(2 * math.pi)


def average(logs: ArrayLike) -> float:
    """Return the logarithm of the average of e-values.

    Example:
        >>> round(math.exp(average([0.0, math.log(3.0)])), 12)
        2.0
    """
    values = np.asarray(logs, np.float64).ravel()
    if values.size == 0:
        return -math.inf
    return float(np.logaddexp.reduce(values)) - math.log(values.size)


def add_weighted(logs: Iterable[float]) -> float:
    """Return the logarithm of a sum of e-values that have their weights already."""
    every = list(logs)
    return float(np.logaddexp.reduce(every)) if every else -math.inf


def scale_ratios(count: ArrayLike, squares: ArrayLike, scales: FloatArray = SMALLER) -> FloatArray:
    r"""Return log-likelihood ratios of noise of other scales against scale 1.

    :math:`\ln \prod N(0, s^2)/N(0, 1) = -n \ln s - (s^{-2} - 1) S / 2`, where S is the sum of n
    squares. For s < 1 its exponential has expectation at most 1 under every scale of at least 1 and
    every mean. For s > 1 this holds under every scale of at most 1.

    Args:
        count: Numbers ``n`` of residuals, any shape.
        squares: Sums of their squares, broadcast against ``count``.
        scales: Scales s, shape ``(k,)``.

    Returns:
        Of the broadcast shape, with ``(k,)`` appended.

    Example:
        >>> scale_ratios(100, 25.0, np.array([0.5])).round(2)  # noise of half the scale
        array([31.81])
    """
    n, total = np.asarray(count, np.float64)[..., None], np.asarray(squares, np.float64)[..., None]
    return np.asarray(-n * np.log(scales) - (scales**-2.0 - 1) * total / 2)


def small_ratios(small: int, count: int) -> FloatArray:
    """Return log ratios for more residuals near 0 than noise of scale 1 on a lattice of 1/16."""
    return _binomial_ratios(small, count, null=SMALL_SHARE, shares=_SMALL_SHARES)


def tie_ratios(ties: int, count: int) -> FloatArray:
    """Return log ratios for more equal pairs than noise on a lattice of 1/16 of its scale has."""
    return _binomial_ratios(ties, count, null=TIE_SHARE, shares=_TIE_SHARES)


def sign_ratios(positive: int, count: int) -> FloatArray:
    """Return log ratios for signs that are not balanced, in both directions.

    On a lattice of 1/16 zeros are not positive values: then a little less than half of all are.
    """
    many = _binomial_ratios(positive, count, null=0.5, shares=_SIGN_SHARES)
    few = _binomial_ratios(positive, count, null=LEAST_POSITIVE, shares=1 - _SIGN_SHARES)
    return np.concatenate([many, few])


def truncation_ratios(largest: float, count: int) -> FloatArray:
    """Return log ratios of noise truncated at 1 to 5 times its scale, from its largest value.

    Larger scales exceed a cut more often, so no scale of 1 or more needs to be known.
    """
    return np.where(largest < _CUTS, -count * _LOG_WITHIN, -np.inf)


def blurred_ratios(residuals: FloatArray) -> FloatArray:
    r"""Return log ratios of noise that was truncated and then blurred, as by an estimated mean.

    Let W be N(0, 1), and X = √(1−b) W + √b Z the residual. Truncating W at c multiplies the density
    at x by :math:`P(|W| < c \mid X = x)/P(|W| < c)`, where W given x is N(√(1−b) x, b). Values
    beyond the cut so lower the ratio, and do not end it. Larger scales exceed a cut more often.
    """
    size = np.abs(residuals)[:, None, None]
    keep, spread = np.sqrt(1 - _BLURS), np.sqrt(_BLURS)
    within = scipy.special.ndtr((_BLURRED_CUTS - keep * size) / spread)
    within -= scipy.special.ndtr((-_BLURRED_CUTS - keep * size) / spread)
    logs = np.log(np.maximum(within, 1e-300)).sum(axis=0)  # far beyond the cut, nothing remains
    return np.asarray(logs - residuals.size * _LOG_KEPT).ravel()


def flat_ratios(residuals: FloatArray) -> FloatArray:
    """Return log ratios of variance 1 with lighter tails than a Gaussian, down to none.

    Their even moments are at most those of N(0, 1), so under a larger scale the expectation of
    the ratio, :math:`E_g[e^{a x^2/2}] \\sqrt{1 - a}` with a = 1 − 1/s², is at most 1 as well.
    """
    normal = -(residuals**2) / 2 - _LOG_2PI / 2
    powers = [np.sum(_log_power(residuals, beta) - normal) for beta in _FLAT]
    bumps = [np.sum(_log_bumps(residuals, at) - normal) for at in _BUMPS]
    return np.array([*powers, *bumps])


def peaked_ratios(residuals: FloatArray) -> FloatArray:
    """Return log ratios of heavier tails, against the likeliest Gaussian of scale 1 or more.

    Dividing by the largest likelihood of the null keeps the expectation at most 1 under each of its
    scales (universal inference, Wasserman et al. 2020).
    """
    square = max(1.0, float(np.mean(residuals**2)))
    best = -residuals.size / 2 * (_LOG_2PI + math.log(square)) - np.sum(residuals**2) / (2 * square)
    return np.array(
        [
            np.sum(_log_power(residuals / scale, beta)) - residuals.size * math.log(scale) - best
            for beta in _PEAKED
            for scale in _PEAKED_SCALES
        ]
    )


def calibrate(log_p: float) -> float:
    r"""Turn a p-value into an e-value, both as logarithms.

    :math:`(1 - p + p \ln p) / (p \ln^2 p)`, the average of :math:`\kappa p^{\kappa - 1}` over κ
    (Vovk & Wang 2021): about 1/p, less a square of its logarithm.

    Example:
        >>> round(calibrate(math.log(1e-6)), 2), round(calibrate(0.0), 2)
        (8.56, -0.69)
    """
    if log_p > -1e-4:
        return -math.log(2)  # its limit at p = 1
    if log_p == -math.inf:
        return math.inf
    p = math.exp(log_p)
    return math.log(1 - p + p * log_p) - log_p - 2 * math.log(-log_p)


def cosine_log_p(cosine: float, dimension: int) -> float:
    """Return ln of the exact two-sided p-value of a cosine of independent noise."""
    return math.log(2) + float(cosine_logsf(min(abs(cosine), 1.0), dimension))


def smallest_log_p(logs: Iterable[float]) -> float:
    """Combine p-values, however they depend on each other (Bonferroni), as logarithms."""
    every = list(logs)
    return min(0.0, min(every) + math.log(len(every))) if every else 0.0


def find_least_likely(
    cosines: Sequence[float] | FloatArray, sizes: Sequence[int]
) -> tuple[int, float]:
    """Find the least likely cosine for independent noise, among many; return its index and ln p.

    The p-value is that of one cosine times their number, at most 1. The one is chosen by how it
    falls in its tail: where another one had a smaller p-value, this errs towards no evidence.

    Example:
        >>> place, log_p = find_least_likely([0.1, 0.5, -0.1], [100, 100, 2000])
        >>> place, round(log_p, 1)
        (1, -15.0)
    """
    squares = np.minimum(np.square(cosines), 1.0)
    with np.errstate(divide="ignore"):
        falls = -np.log1p(-squares) * (np.asarray(sizes) - 1)
    worst = int(np.argmax(falls))
    log_p = cosine_log_p(float(cosines[worst]), int(sizes[worst]))
    return worst, min(0.0, log_p + math.log(len(sizes)))


def stake_ratios(cosine: float, dimension: int) -> FloatArray:
    """Return log ratios for cosines that lean to one side: λ√d·cos − λ²/2, for several λ.

    A random direction is sub-Gaussian, E exp(λ√d·cos) ≤ exp(λ²/2): its even moments
    (2k−1)!!/(d(d+2)…) are at most those of N(0, 1/d).
    """
    return _STAKES * math.sqrt(dimension) * cosine - _STAKES**2 / 2


def _binomial_ratios(hits: int, count: int, *, null: float, shares: FloatArray) -> FloatArray:
    hit, missed = np.log(shares / null), np.log((1 - shares) / (1 - null))
    return np.asarray(hits * hit + (count - hits) * missed)


def _log_power(x: FloatArray, beta: float) -> FloatArray:
    """Return the log density of variance 1 whose tails fall as exp(−|x|^β)."""
    log_alpha = (math.lgamma(1 / beta) - math.lgamma(3 / beta)) / 2
    front = math.log(beta) - math.log(2) - log_alpha - math.lgamma(1 / beta)
    return np.asarray(front - (np.abs(x) * math.exp(-log_alpha)) ** beta)


def _log_bumps(x: FloatArray, at: float) -> FloatArray:
    width = math.sqrt(1 - at**2)
    both = np.logaddexp(-(((x - at) / width) ** 2) / 2, -(((x + at) / width) ** 2) / 2)
    return np.asarray(both - math.log(2 * width) - _LOG_2PI / 2)
