"""Truths computed otherwise than in the package: by definition, by brute force, or in mpmath."""

import mpmath
import numpy as np
import scipy.stats

from epsilometer import Scores

FLAKE = 1e-6  # chance that a correct estimator fails a test; every slack below follows from it


def gaussian_delta(mu: float, epsilon: float, digits: int) -> mpmath.mpf:
    """δ of N(μ, 1) against N(0, 1) at ε, by its definition, with digits to spare."""
    with mpmath.workdps(digits):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        second = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - second


def discrete_epsilon(inside: np.ndarray, outside: np.ndarray, delta: float) -> float:
    """ε of two laws on the same points, the larger direction, from the hockey-stick divergence."""
    return max(_one_direction(inside, outside, delta), _one_direction(outside, inside, delta))


def _one_direction(p: np.ndarray, q: np.ndarray, delta: float) -> float:
    low, high = 0.0, 60.0
    if np.maximum(p - q, 0).sum() <= delta:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        exceeds = np.maximum(p - np.exp(middle) * q, 0).sum() > delta
        low, high = (middle, high) if exceeds else (low, middle)
    return high


def best_by_trying_all(scores: Scores, delta: float, alpha: float) -> float:
    """Algorithm 1 of the shuffling paper mended: every distinct threshold, both directions."""
    best = 0.0
    for threshold in np.unique(np.concatenate([scores.inside, scores.outside])):
        for strict in (False, True):
            called_out = scores.outside > threshold if strict else scores.outside >= threshold
            missed_in = scores.inside <= threshold if strict else scores.inside < threshold
            fpr = _clopper_pearson(int(called_out.sum()), scores.n_out, alpha / 2)
            fnr = _clopper_pearson(int(missed_in.sum()), scores.n_in, alpha / 2)
            if 1 - fnr - delta > 0:
                best = max(best, np.log((1 - fnr - delta) / fpr))
            if 1 - fpr - delta > 0:
                best = max(best, np.log((1 - fpr - delta) / fnr))
    return best


def _clopper_pearson(k: int, n: int, alpha: float) -> float:
    return 1.0 if k == n else float(scipy.stats.beta.isf(alpha, k + 1, n - k))


def even_normals(n: int) -> np.ndarray:
    """A normal sample without noise: even quantiles."""
    return scipy.stats.norm.ppf((np.arange(n) + 0.5) / n)


def too_often(wrong: int, audits: int, rate: float = 0.05) -> bool:
    """Whether so many errors would come by chance with probability below FLAKE."""
    return wrong > scipy.stats.binom.isf(FLAKE, audits, rate)
