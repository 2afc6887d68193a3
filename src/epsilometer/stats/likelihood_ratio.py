r"""Compute log-likelihood ratios of noisy sums, with the target record and without it.

An adversary sees one noisy sum :math:`o_t` for each step of an epoch, along a direction of their
choice, in units of the clipping norm and *not* divided by the batch size. The noise has standard
deviation σ. They know the means but not which batch the target was in. After a shift that takes
the other batches to mean 0, the target's batch has mean :math:`a` with it and :math:`b` without:

============================  ==============  =====  =======  ==================================
adversary or sampler          shift           a      b        the target is
============================  ==============  =====  =======  ==================================
target canary                 0               1      0        in one batch of an epoch
balls in bins                 0               1      0        in one batch of an epoch
partially informed            1               2      1        in one batch of an epoch
worst case                    B               2      1        in one batch of an epoch
batch then shuffle            B               2B     2B − 1   in one batch of an epoch
Poisson                       0               1      0        in each batch with probability 1/T
without replacement           B               2      1        in each batch with probability 1/T
============================  ==============  =====  =======  ==================================

With one batch of T the ratio is a ratio of two mixtures (:func:`one_of`), else a product of
ratios of two (:func:`each_with`). Epochs are independent, so their logarithms add. Everything is
computed in the log domain: no σ is too small, no observation too far out.
"""

import math
from typing import Any

import numpy as np


def one_of(
    x: Any, *, sigma: float, present: float, absent: float, left_out: float = 0.0, xp: Any = np
) -> Any:
    r"""ln Λ when one of the T batches, each as likely, has mean a = present or b = absent.

    .. math:: \ln\Lambda = \sum_{\text{epochs}} -\frac{a^2 - b^2}{2\sigma^2}
       + \ln\sum_t e^{a x_t/\sigma^2} - \ln\sum_t e^{b x_t/\sigma^2}

    Args:
        x: Observations minus the mean of the other batches, shape ``(..., epochs, steps)``: an
            array of the module ``xp``.
        sigma: Standard deviation of the noise.
        present: Mean of the target's batch with the target.
        absent: Mean of it without.
        left_out: Chance that an epoch leaves the target out, with which no batch stands out.
        xp: NumPy or torch, whichever ``x`` belongs to.
    """
    scaled = x / sigma**2
    if left_out:

        def log_mixture(mean: float) -> Any:
            kept = _log_sum(mean * scaled, xp) - mean**2 / (2 * sigma**2)
            kept = kept + math.log((1 - left_out) / x.shape[-1])
            return xp.logaddexp(kept, kept * 0 + math.log(left_out))

        return (log_mixture(present) - log_mixture(absent)).sum(-1)
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
        x: Observations minus the mean of the other batches, shape ``(..., epochs, steps)``: an
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


def _log_sum(exponents: Any, xp: Any) -> Any:
    """Logarithm of the sum of exponentials over the last axis."""
    most = xp.amax(exponents, -1)
    return most + xp.log(xp.exp(exponents - most[..., None]).sum(-1))
