"""Bayesian: the posterior of (FPR, FNR), integrated over what (ε, δ)-DP allows.

FPR and FNR have independent Beta(k+½, n−k+½) posteriors (Jeffreys' prior). The bound is the ε whose
privacy region holds α of their mass; the region is the whole one, attacks worse than guessing
included, as in the paper (Zanella-Béguelin et al. 2023).
"""

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer.stats import search
from epsilometer.stats.estimators.counting import RULES, Judge, finder
from epsilometer.stats.estimators.method import Method
from epsilometer.stats.thresholds import Looks
from epsilometer.stats.tradeoff import epsilon_of_rates
from epsilometer.types import FloatArray

# Trapezoid rule in normal scores of the FNR's posterior: the integrand is smooth and falls off
# like a Gaussian, where that rule converges faster than any power of the step.
_SCORES = np.linspace(-8.5, 8.5, 341)
_WEIGHTS = np.exp(-(_SCORES**2) / 2) / np.sqrt(2 * np.pi) * (_SCORES[1] - _SCORES[0])
_LARGEST = 700.0  # e^ε still is a double


def _merit(looks: Looks, delta: float) -> FloatArray:
    """The largest ε whose region holds less than the look's α, for all looks at once."""
    fp, fn = looks.false_positives[:, None] + 0.5, looks.false_negatives[:, None] + 0.5
    tn, tp = looks.n_out - fp + 1, looks.n_in - fn + 1
    fnr = np.where(
        _SCORES < 0,
        scipy.special.betaincinv(fn, tp, scipy.special.ndtr(_SCORES)),
        scipy.special.betainccinv(fn, tp, scipy.special.ndtr(-_SCORES)),
    )
    alpha = looks.alpha_fpr + looks.alpha_fnr

    def refuted(epsilon: FloatArray) -> NDArray[np.bool_]:
        low, high = _allowed_fpr(fnr, epsilon[:, None], delta)
        inside = scipy.special.betainc(fp, tn, high) - scipy.special.betainc(fp, tn, low)
        return np.asarray(np.maximum(inside, 0.0) @ _WEIGHTS < alpha)

    start = np.zeros(fnr.shape[0])
    at_zero = refuted(start)
    high = search.grow(refuted, start + 1.0, limit=_LARGEST)
    low, _ = search.bisect(refuted, start, high, relative=1e-9)
    return np.where(at_zero, low, 0.0)[None, :]


def _allowed_fpr(
    fnr: FloatArray, epsilon: FloatArray, delta: float
) -> tuple[FloatArray, FloatArray]:
    """The interval of FPR that (ε, δ)-DP leaves at each FNR."""
    up, down = np.exp(epsilon), np.exp(-epsilon)
    low = np.maximum(1 - delta - up * fnr, down * (1 - delta - fnr))
    high = np.minimum(1 - down * (fnr - delta), delta + up * (1 - fnr))
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def _medians(looks: Looks, delta: float) -> FloatArray:
    """ε at the posterior medians: beyond it the region holds a quarter of the posterior or more."""
    fpr = scipy.special.betaincinv(
        looks.false_positives + 0.5, looks.n_out - looks.false_positives + 0.5, 0.5
    )
    fnr = scipy.special.betaincinv(
        looks.false_negatives + 0.5, looks.n_in - looks.false_negatives + 0.5, 0.5
    )
    return np.asarray(epsilon_of_rates(fpr, fnr, delta).max(axis=0))


METHOD = Method(
    find=finder(Judge(merit=_merit, optimistic=_medians), directions=("both",)),
    rules=RULES,
    exact=False,
    guarantees="A credible statement under Jeffreys' prior, not one about how often it errs.",
    assumes="Runs are independent of each other.",
    cites=("zanella2023",),
)
