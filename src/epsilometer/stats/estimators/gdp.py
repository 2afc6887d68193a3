"""μ of Gaussian differential privacy from both error rates, then ε at δ (Nasr et al. 2023)."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial, derivation
from epsilometer.stats.estimators.counting import RULES, Judge, finder
from epsilometer.stats.estimators.method import Method
from epsilometer.stats.estimators.ranks import Frontier
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.thresholds import Looks
from epsilometer.types import FloatArray


def mu_of_rates(fpr: FloatArray, fnr: FloatArray) -> FloatArray:
    """μ = Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) (Dong et al. 2022, Equation 6), floored at 0.

    Example:
        >>> mu_of_rates(np.array([0.05, 0.5]), np.array([0.05, 0.9])).round(4)
        array([3.2897, 0.    ])
    """
    with np.errstate(invalid="ignore"):  # one rate 0, the other 1: ∞ − ∞, no evidence
        mu = -ndtri(fpr) - ndtri(fnr)
    return np.asarray(np.where(mu > 0, mu, 0.0))


def _merit(looks: Looks, delta: float) -> FloatArray:
    fpr = binomial.clopper_pearson_upper(looks.false_positives, looks.n_out, alpha=looks.alpha_fpr)
    fnr = binomial.clopper_pearson_upper(looks.false_negatives, looks.n_in, alpha=looks.alpha_fnr)
    return mu_of_rates(fpr, fnr)[None, :]


def _beats(looks: Looks, delta: float, mark: float) -> NDArray[np.bool_]:
    return np.asarray(_merit(looks, delta)[0] > mark)


_FRONTIER = Frontier(  # of μ-GDP
    least_fpr=lambda tpr, mu, delta: ndtr(ndtri(tpr) - mu),
    most_tpr=lambda fpr, mu, delta: ndtr(ndtri(fpr) + mu),
)


def _epsilon(mu: float, delta: float) -> float:
    if delta == 0:
        raise InvalidArgument("gdp needs delta > 0: at δ = 0 every Gaussian mechanism has ε = ∞.")
    return gdp_epsilon(mu, delta)


METHOD = Method(
    find=finder(
        Judge(merit=_merit, beats=_beats, frontier=_FRONTIER),
        directions=("both", "both"),
        epsilon_of=_epsilon,
        merit="μ",
    ),
    derive=derivation.gaussian_dp,
    rules=RULES,
    exact=True,
    guarantees="Exceeds the true ε in at most 1 − confidence of audits of a Gaussian mechanism.",
    assumes="Independent runs, and a trade-off curve that is Gaussian: full-batch DP-SGD or a "
    "Gaussian sum seen whole. For other mechanisms the number can be far too large.",
    cites=("nasr2023", "dong2022", "balle2018", "clopper1934"),
)
