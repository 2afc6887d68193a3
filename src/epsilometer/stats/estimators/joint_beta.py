"""Bayesian: the posterior of (FPR, FNR), integrated over what (ε, δ)-DP allows.

FPR and FNR have independent Beta(k+½, n−k+½) posteriors (Jeffreys' prior). The bound is the ε whose
privacy region holds α of their mass. The region is the whole one, attacks worse than guessing
included, as in the paper (Zanella-Béguelin et al. 2023).
"""

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.stats import binomial, search
from epsilometer.stats.derivation import Derivation, count_errors_at, known, paid, shown
from epsilometer.stats.estimators.counting import RULES, Judge, finder
from epsilometer.stats.estimators.method import Method
from epsilometer.stats.thresholds import Looks
from epsilometer.types import FloatArray

# Trapezoid rule in normal scores of the FNR's posterior: the integrand is smooth and falls off
# like a Gaussian, where that rule converges faster than any power of the step.
_SCORES = np.linspace(-8.5, 8.5, 341)
_WEIGHTS = np.exp(-(_SCORES**2) / 2) / np.sqrt(2 * np.pi) * (_SCORES[1] - _SCORES[0])
_LARGEST = 700.0  # e^ε still is a double


def _merit(looks: Looks, delta: float) -> FloatArray:
    """The largest ε whose region holds less than α, at the best look; 0 at the others."""
    size = looks.thresholds.size
    merit, best = search.largest_refuted(
        _is_refuted(looks, delta), size, limit=_LARGEST, relative=1e-7, at_once=1
    )
    merits = np.zeros((1, size))
    merits[0, best] = merit
    return merits


def _beats(looks: Looks, delta: float, mark: float) -> NDArray[np.bool_]:
    size = looks.thresholds.size
    return _is_refuted(looks, delta)(np.full(size, mark), np.arange(size))


def _is_refuted(
    looks: Looks, delta: float
) -> Callable[[FloatArray, NDArray[np.intp]], NDArray[np.bool_]]:
    """Of each (ε, look): whether the region of ε holds less than the look's α."""
    fp, fn = looks.false_positives[:, None] + 0.5, looks.false_negatives[:, None] + 0.5
    tn, tp = looks.n_out - fp + 1, looks.n_in - fn + 1
    fnr = binomial.beta_at(fn, tp, _SCORES)
    alpha = looks.alpha_fpr + looks.alpha_fnr

    def refuted(epsilon: FloatArray, at: NDArray[np.intp]) -> NDArray[np.bool_]:
        low, high = _find_allowed_fpr(fnr[at], epsilon[:, None], delta)
        inside = scipy.special.betainc(fp[at], tn[at], high) - scipy.special.betainc(
            fp[at], tn[at], low
        )
        return np.asarray(np.maximum(inside, 0.0) @ _WEIGHTS < alpha)

    return refuted


def _find_allowed_fpr(
    fnr: FloatArray, epsilon: FloatArray, delta: float
) -> tuple[FloatArray, FloatArray]:
    """The interval of FPR that (ε, δ)-DP leaves at each FNR."""
    up, down = np.exp(epsilon), np.exp(-epsilon)
    low = np.maximum(1 - delta - up * fnr, down * (1 - delta - fnr))
    high = np.minimum(1 - down * (fnr - delta), delta + up * (1 - fnr))
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def _derive(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    laws = "FPR ~ Beta(k + ½, n − k + ½), FNR ~ Beta(l + ½, m − l + ½)"
    if has:
        k, n = has["false positives"], has["scores outside"]
        missed, m = has["false negatives"], has["scores inside"]
        laws += (
            f" = Beta({shown(k + 0.5)}, {shown(n - k + 0.5)}), "
            f"Beta({shown(missed + 0.5)}, {shown(m - missed + 0.5)})"
        )
    mass = (
        f": P({shown(bound.epsilon)}) = {shown(has['level of the FPR'] + has['level of the FNR'])}"
        if has
        else ""
    )
    return Derivation(
        counted=count_errors_at(bound),
        formula=(
            f"{laws}: the posterior of the rates under Jeffreys' prior",
            "P(ε) = Pr[1 − FNR ≤ e^ε·FPR + δ, 1 − FPR ≤ e^ε·FNR + δ, and both of the opposite "
            "attack]: the mass of the rates that (ε, δ)-DP allows",
            f"ε is where it reaches α′{mass}",
        ),
        holds=(
            "It does not say how often the bound errs: its α is a posterior probability under a "
            "prior, not a fraction of audits.",
            paid(bound),
        ),
    )


METHOD = Method(
    find=finder(Judge(merit=_merit, beats=_beats), directions=("both",)),
    derive=_derive,
    rules=RULES,
    exact=False,
    guarantees="A credible statement under Jeffreys' prior, not one about how often it errs.",
    assumes="Runs are independent of each other.",
    cites=("zanella2023",),
)
