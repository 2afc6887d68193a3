"""Compute limits on a success probability, each in its own tail, accurate to 5·10⁸ trials."""

from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.types import FloatArray

_NEWTON_STEPS = 60  # one or two are enough from a good start
_CONVERGED = 1e-12  # relative
_LEAST, _MOST = np.finfo(float).tiny, 1 - np.finfo(float).eps  # x that differ from 0 and 1
_SHAPES = {"clopper_pearson": (1.0, 0.0), "jeffreys": (0.5, 0.5)}  # added to k and n − k


def clopper_pearson_upper(successes: ArrayLike, trials: ArrayLike, *, alpha: float) -> FloatArray:
    r"""Return the one-sided exact upper limit :math:`p^+` on a success probability.

    :math:`p^+` solves :math:`\Pr[\mathrm{Bin}(n, p^+) \le k] = \alpha`, and is 1 when
    :math:`k = n` (Clopper & Pearson 1934). It errs only towards being too large, which is
    the safe side for both error rates of an attack.

    The same number bounds an order statistic: the chance that a new score exceeds the
    :math:`(k+1)`-th largest of n is Beta(k+1, n−k) distributed for any continuous distribution.

    Args:
        successes: Counts ``k``, any shape.
        trials: Counts ``n``, broadcast against ``successes``.
        alpha: Chance that the limit is below the truth, in (0, 1). Not halved inside.

    Returns:
        Limits in [0, 1], of the broadcast shape.

    Example:
        >>> clopper_pearson_upper(0, [10, 100], alpha=0.05).round(4)
        array([0.2589, 0.0295])
    """
    return upper_limit(successes, trials, alpha=alpha, kind="clopper_pearson")[0]


def clopper_pearson_lower(successes: ArrayLike, trials: ArrayLike, *, alpha: float) -> FloatArray:
    """Return the one-sided exact lower limit, 0 if ``k = 0``; see ``clopper_pearson_upper``."""
    failures = np.asarray(trials) - np.asarray(successes)
    return upper_limit(failures, trials, alpha=alpha, kind="clopper_pearson")[1]


def upper_limit(
    successes: ArrayLike,
    trials: ArrayLike,
    *,
    alpha: float,
    kind: Literal["clopper_pearson", "jeffreys"],
) -> tuple[FloatArray, FloatArray]:
    """Return the upper limit and its complement, each to full precision.

    The complement is the lower limit on the probability of failure, so one inversion serves both.
    """
    _validate.open_unit(alpha=alpha)
    k, n = np.broadcast_arrays(successes, trials)
    more, rest = _SHAPES[kind]
    a, b = k + more, np.maximum(n - k + rest, 0.5)  # k = n has no quantile; it is set below
    small = a <= b  # the quantile is found from whichever end of [0, 1] it is nearer to
    x = beta_quantile(np.where(small, a, b), np.where(small, b, a), alpha, from_above=small)
    x = np.where(k < n, x, 0.0)
    return np.where(small, x, 1 - x), np.where(small, 1 - x, x)


def beta_at(a: ArrayLike, b: ArrayLike, scores: FloatArray | np.float64) -> FloatArray:
    """Return x with Pr[Beta(a, b) < x] = Φ(score), each in its own tail."""
    small = np.less_equal(a, b)
    mirrored = np.where(small, scores, -scores)  # Beta(a, b) is 1 − Beta(b, a)
    x = beta_quantile(
        np.where(small, a, b),
        np.where(small, b, a),
        scipy.special.ndtr(-np.abs(mirrored)),
        from_above=mirrored > 0,
    )
    return np.where(small, x, 1 - x)


def beta_quantile(
    a: ArrayLike,
    b: ArrayLike,
    alpha: ArrayLike,
    *,
    from_above: NDArray[np.bool_] | bool,
) -> FloatArray:
    """Return x with mass ``alpha`` of Beta(a ≤ b) above it, or below it.

    SciPy's inverse is a starting point only: at (1000, 499999001) it is off by a factor of two.
    """
    aim = np.maximum(alpha, _LEAST)  # smaller ones have too few digits to aim at
    a, b, aim, above = np.broadcast_arrays(a, b, aim, from_above)
    x = _own(scipy.special.betainccinv, scipy.special.betaincinv, a, b, aim, above)
    return _refine(x, a, b, aim, above)


def _refine(
    x: FloatArray, a: FloatArray, b: FloatArray, aim: FloatArray, above: NDArray[np.bool_]
) -> FloatArray:
    """SciPy's forward functions are right, so Newton steps on the logarithms correct its inverse.

    The logarithm of a Beta tail is concave in log x, so steps from a bad start overshoot once and
    then converge. Beyond the precision of floats they might alternate forever: a bracket prevents
    that.
    """
    log_b, sign = scipy.special.betaln(a, b), np.where(above, -1.0, 1.0)
    low, high = np.full(x.shape, _LEAST), np.full(x.shape, _MOST)
    with np.errstate(all="ignore"):
        rough = np.where(above, a / (a + b), np.exp((np.log(aim * a) + log_b) / a))
        x = np.clip(np.where(np.isnan(x), rough, x), low, high)
        for _ in range(_NEWTON_STEPS):
            tail = _own(scipy.special.betaincc, scipy.special.betainc, a, b, x, above)
            density = np.exp(a * np.log(x) + (b - 1) * np.log1p(-x) - log_b)  # of log x
            step = sign * np.log(tail / aim) * tail / density
            step = np.clip(np.where(tail > 0, step, -sign / 2), -1.0, 1.0)
            low, high = np.where(step > 0, low, x), np.where(step > 0, x, high)
            x = x * np.exp(-step)
            x = np.where((low <= x) & (x <= high), x, np.sqrt(low) * np.sqrt(high))
            if np.all(np.abs(step) < _CONVERGED):
                break
    return np.where(x < _MOST, x, 1.0)


def _own(
    upper: np.ufunc,
    lower: np.ufunc,
    a: FloatArray,
    b: FloatArray,
    x: FloatArray,
    above: NDArray[np.bool_],
) -> FloatArray:
    """``upper(a, b, x)`` where ``above``, else ``lower(a, b, x)``; nothing is computed in vain."""
    out = np.empty(x.shape)
    upper(a, b, x, out=out, where=above)
    lower(a, b, x, out=out, where=~above)
    return out
