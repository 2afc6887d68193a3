"""Bayesian: the posterior of (FPR, FNR), integrated over what (ε, δ)-DP allows.

FPR and FNR have independent Beta(k+½, n−k+½) posteriors (Jeffreys' prior). The bound is the ε whose
privacy region holds α of their mass; the region is the whole one, attacks worse than guessing
included, as in the paper (Zanella-Béguelin et al. 2023).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from epsilometer.stats import binomial, search
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
    """The largest ε whose region holds less than α, at the best look; 0 at the others."""
    fp, fn = looks.false_positives[:, None] + 0.5, looks.false_negatives[:, None] + 0.5
    tn, tp = looks.n_out - fp + 1, looks.n_in - fn + 1
    fnr = binomial.beta_at(fn, tp, _SCORES)
    alpha = looks.alpha_fpr + looks.alpha_fnr

    def refuted(epsilon: float, at: NDArray[np.intp]) -> NDArray[np.bool_]:
        low, high = _allowed_fpr(fnr[at], epsilon, delta)
        inside = betainc(fp[at], tn[at], high) - betainc(fp[at], tn[at], low)
        return np.asarray(np.maximum(inside, 0.0) @ _WEIGHTS < alpha)

    merit, best = search.largest_refuted(refuted, fnr.shape[0], limit=_LARGEST)
    merits = np.zeros((1, fnr.shape[0]))
    merits[0, best] = merit
    return merits


def _allowed_fpr(fnr: FloatArray, epsilon: float, delta: float) -> tuple[FloatArray, FloatArray]:
    """The interval of FPR that (ε, δ)-DP leaves at each FNR."""
    up, down = np.exp(epsilon), np.exp(-epsilon)
    low = np.maximum(1 - delta - up * fnr, down * (1 - delta - fnr))
    high = np.minimum(1 - down * (fnr - delta), delta + up * (1 - fnr))
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def _medians(looks: Looks, delta: float) -> FloatArray:
    """ε at the posterior medians: beyond it the region holds a quarter of the posterior or more."""
    fp, fn = looks.false_positives + 0.5, looks.false_negatives + 0.5
    fpr = binomial.beta_at(fp, looks.n_out - fp + 1, np.float64(0.0))
    fnr = binomial.beta_at(fn, looks.n_in - fn + 1, np.float64(0.0))
    return np.asarray(epsilon_of_rates(fpr, fnr, delta).max(axis=0))


METHOD = Method(
    find=finder(Judge(merit=_merit, optimistic=_medians), directions=("both",)),
    rules=RULES,
    exact=False,
    guarantees="A credible statement under Jeffreys' prior, not one about how often it errs.",
    assumes="Runs are independent of each other.",
    cites=("zanella2023",),
)
