r"""Compute log-likelihood ratios of noisy sums, with the target record and without it.

An adversary sees one noisy sum :math:`o_t` for each step of an epoch, along a direction of their
choice, in units of the clipping norm and *not* divided by the batch size. The noise has standard
deviation σ. They know the means but not which batch the target was in. After a shift that takes
the other batches to mean 0, the target's batch has mean :math:`a` with it and :math:`b` without:

============================  ==============  =====  =======  ==================================
adversary or sampler          shift           a      b        the target is
============================  ==============  =====  =======  ==================================
:func:`target_canary`         0               1      0        in one batch of an epoch
:func:`balls_in_bins`         0               1      0        in one batch of an epoch
:func:`partially_informed`    1               2      1        in one batch of an epoch
:func:`worst_case`            B               2      1        in one batch of an epoch
:func:`batch_then_shuffle`    B               2B     2B − 1   in one batch of an epoch
:func:`poisson`               0               1      0        in each batch with probability 1/T
:func:`without_replacement`   B               2      1        in each batch with probability 1/T
============================  ==============  =====  =======  ==================================

With one batch of T the ratio is a ratio of two mixtures (:func:`one_of`), else a product of
ratios of two (:func:`each_with`). Epochs are independent, so their logarithms add. Everything is
computed in the log domain: no σ is too small, no observation too far out.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray


def target_canary(observations: ArrayLike, *, sigma: float) -> FloatArray:
    r"""Know the target's gradient only: its batch has mean 1 or 0, the others 0.

    .. math:: \ln\Lambda = \sum_{\text{epochs}} -\frac{1}{2\sigma^2}
       + \ln\frac{1}{T}\sum_t e^{o_t/\sigma^2}

    The paper prints it without the 1/T, which moves all thresholds but no error rate.

    Args:
        observations: Noisy sums along the target's gradient, shape ``(..., epochs, steps)``.
        sigma: Standard deviation of their noise.

    Returns:
        ln Λ, shape ``(...)``.

    Example:
        >>> runs = [[[0.9, -1.1]], [[-1.1, 0.3]]]  # two of one epoch of two steps
        >>> target_canary(runs, sigma=1.0).round(4)
        array([-0.1662, -0.6727])
    """
    return _one_of(observations, sigma=sigma, shift=0, present=1, absent=0)


def balls_in_bins(observations: ArrayLike, *, sigma: float) -> FloatArray:
    """Draw a batch for each record independently: as :func:`target_canary`."""
    return target_canary(observations, sigma=sigma)


def partially_informed(observations: ArrayLike, *, sigma: float) -> FloatArray:
    """Set the last record of every other batch to −1: means 1 or 0 in the target's, else −1.

    Args:
        observations: Noisy sums along the target's gradient, shape ``(..., epochs, steps)``.
        sigma: Standard deviation of their noise.

    Returns:
        ln Λ, shape ``(...)``.
    """
    return _one_of(observations, sigma=sigma, shift=1, present=2, absent=1)


def worst_case(observations: ArrayLike, *, sigma: float, batch_size: int = 1) -> FloatArray:
    r"""Set all other records to −1: means 2 − B or 1 − B in the target's batch, else −B.

    With :math:`x_t = o_t + B`, the law of the batched Gaussian mechanism,

    .. math:: \ln\Lambda = \sum_{\text{epochs}} -\frac{3}{2\sigma^2}
       + \ln\sum_t e^{2x_t/\sigma^2} - \ln\sum_t e^{x_t/\sigma^2}.

    Args:
        observations: Noisy sums along the target's gradient, shape ``(..., epochs, steps)``.
        sigma: Standard deviation of their noise.
        batch_size: B, which the observations contain and the ratio does not.

    Returns:
        ln Λ, shape ``(...)``.

    Example:
        >>> float(worst_case([[0.9, -1.1]], sigma=1.0).round(4))
        0.2912
    """
    _validate.whole(1, batch_size=batch_size)
    return _one_of(observations, sigma=sigma, shift=batch_size, present=2, absent=1)


def batch_then_shuffle(observations: ArrayLike, *, sigma: float, batch_size: int) -> FloatArray:
    """Shuffle whole batches: the target's has mean B or B − 1, the others −B.

    The target's companions are always the same, so the adversary lets them all be +1: that batch
    stands out by 2B, and the shuffling hides nothing.

    Args:
        observations: Noisy sums along the target's gradient, shape ``(..., epochs, steps)``.
        sigma: Standard deviation of their noise.
        batch_size: B.

    Returns:
        ln Λ, shape ``(...)``.
    """
    _validate.whole(1, batch_size=batch_size)
    twice = 2 * batch_size
    return _one_of(observations, sigma=sigma, shift=batch_size, present=twice, absent=twice - 1)


def poisson(observations: ArrayLike, *, sigma: float, rate: float | None = None) -> FloatArray:
    r"""Put the target into each batch with probability q: mean 1 if it is there, else 0.

    .. math:: \ln\Lambda = \sum_t \ln\bigl(1 - q + q e^{(2o_t - 1)/2\sigma^2}\bigr)

    Args:
        observations: Noisy sums along the target's gradient, shape ``(..., epochs, steps)``.
        sigma: Standard deviation of their noise.
        rate: q; one in the number of steps by default.

    Returns:
        ln Λ, shape ``(...)``.
    """
    return _each_with(observations, sigma=sigma, shift=0, present=1, absent=0, rate=rate)


def without_replacement(
    observations: ArrayLike, *, sigma: float, batch_size: int = 1, rate: float | None = None
) -> FloatArray:
    """Draw B records for each batch: means 2 − B or 1 − B with the target, else −B.

    Args:
        observations: Noisy sums along the target's gradient, shape ``(..., epochs, steps)``.
        sigma: Standard deviation of their noise.
        batch_size: B.
        rate: Probability that a batch has the target; one in the number of steps by default.

    Returns:
        ln Λ, shape ``(...)``.
    """
    _validate.whole(1, batch_size=batch_size)
    return _each_with(observations, sigma=sigma, shift=batch_size, present=2, absent=1, rate=rate)


def one_of(x: Any, *, sigma: float, present: float, absent: float, xp: Any = np) -> Any:
    r"""ln Λ when one of the T batches, each as likely, has mean a = present or b = absent.

    .. math:: \ln\Lambda = \sum_{\text{epochs}} -\frac{a^2 - b^2}{2\sigma^2}
       + \ln\sum_t e^{a x_t/\sigma^2} - \ln\sum_t e^{b x_t/\sigma^2}

    Args:
        x: Observations less the mean of the other batches, shape ``(..., epochs, steps)``: an
            array of the module ``xp``.
        sigma: Standard deviation of the noise.
        present: Mean of the target's batch with the target.
        absent: Mean of it without.
        xp: NumPy or torch, whichever ``x`` belongs to.
    """
    scaled = x / sigma**2
    apart = (present - absent) * (present + absent) / (2 * sigma**2)
    ratio = _log_sum(present * scaled, xp) - _log_sum(absent * scaled, xp)
    return (ratio - apart).sum(-1)


def each_with(
    x: Any, *, sigma: float, present: float, absent: float, rate: float, xp: Any = np
) -> Any:
    r"""ln Λ when each batch has the target with probability q, and then mean a or b.

    .. math:: \ln\Lambda = \sum_t \ln\frac{1 - q + q e^{(2a x_t - a^2)/2\sigma^2}}
       {1 - q + q e^{(2b x_t - b^2)/2\sigma^2}}

    Args:
        x: Observations less the mean of the other batches, shape ``(..., epochs, steps)``: an
            array of the module ``xp``.
        sigma: Standard deviation of the noise.
        present: Mean of a batch that has the target.
        absent: Mean of such a batch when the target is zeroed out.
        rate: Probability q that a batch has it.
        xp: NumPy or torch, whichever ``x`` belongs to.
    """
    without = x * 0 + (math.log1p(-rate) if rate < 1 else -math.inf)

    def log_mixture(mean: float) -> Any:
        tilted = (mean * x - mean**2 / 2) / sigma**2 + math.log(rate)
        return xp.logaddexp(without, tilted)

    ratio = log_mixture(present) - (log_mixture(absent) if absent else 0.0)
    return ratio.sum(-1).sum(-1)


def _one_of(
    observations: ArrayLike, *, sigma: float, shift: int, present: int, absent: int
) -> FloatArray:
    x = _check(observations, sigma) + shift
    return np.asarray(one_of(x, sigma=sigma, present=present, absent=absent))


def _each_with(
    observations: ArrayLike,
    *,
    sigma: float,
    shift: int,
    present: int,
    absent: int,
    rate: float | None,
) -> FloatArray:
    x = _check(observations, sigma) + shift
    rate = 1 / x.shape[-1] if rate is None else rate
    _validate.probability(rate=rate)
    if rate == 0:
        raise InvalidArgument("Expected rate > 0, got 0: a target that never takes part.")
    return np.asarray(each_with(x, sigma=sigma, present=present, absent=absent, rate=rate))


def _check(observations: ArrayLike, sigma: float) -> FloatArray:
    _validate.positive(sigma=sigma)
    x = np.asarray(observations, np.float64)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        raise InvalidArgument(
            f"Expected observations of shape (..., epochs, steps), got {x.shape}. "
            "One epoch alone is observations[None, :]."
        )
    if not np.isfinite(x).all():
        raise InvalidArgument(
            f"Expected finite observations, found {np.sum(~np.isfinite(x))} of {x.size} that are "
            "not. Score a run that diverged as ±inf yourself."
        )
    return x


def _log_sum(exponents: Any, xp: Any) -> Any:
    """Logarithm of the sum of exponentials over the last axis."""
    most = xp.amax(exponents, -1)
    return most + xp.log(xp.exp(exponents - most[..., None]).sum(-1))
