"""Bound μ of Gaussian DP by the rank sum or by both error rates; ε at δ follows.

Nasr et al. 2023 limit both error rates at a threshold. The rank sum needs none.
"""

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial, derivation, rank_sum
from epsilometer.stats.estimators.counting import RULES, Judge, finder
from epsilometer.stats.estimators.method import Found, Method
from epsilometer.stats.estimators.ranks import Frontier
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.thresholds import Looks, Observed, RankGrid, RankSum, ThresholdRule
from epsilometer.types import FloatArray

_LARGEST = 64.0  # μ beyond which ε of any δ is larger than anybody claims


def mu_of_rates(fpr: FloatArray, fnr: FloatArray) -> FloatArray:
    """μ = Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) (Dong et al. 2022, Equation 6), floored at 0.

    Example:
        >>> mu_of_rates(np.array([0.05, 0.5]), np.array([0.05, 0.9])).round(4)
        array([3.2897, 0.    ])
    """
    with np.errstate(invalid="ignore"):  # one rate 0, the other 1: ∞ − ∞, no evidence
        mu = -scipy.special.ndtri(fpr) - scipy.special.ndtri(fnr)
    return np.asarray(np.where(mu > 0, mu, 0.0))


def _merit(looks: Looks, delta: float) -> FloatArray:
    fpr = binomial.clopper_pearson_upper(looks.false_positives, looks.n_out, alpha=looks.alpha_fpr)
    fnr = binomial.clopper_pearson_upper(looks.false_negatives, looks.n_in, alpha=looks.alpha_fnr)
    return mu_of_rates(fpr, fnr)[None, :]


def _beats(looks: Looks, delta: float, mark: float) -> NDArray[np.bool_]:
    return np.asarray(_merit(looks, delta)[0] > mark)


_FRONTIER = Frontier(  # of μ-GDP
    least_fpr=lambda tpr, mu, delta: scipy.special.ndtr(scipy.special.ndtri(tpr) - mu),
    most_tpr=lambda fpr, mu, delta: scipy.special.ndtr(scipy.special.ndtri(fpr) + mu),
)


_find_at_threshold = finder(
    Judge(merit=_merit, beats=_beats, frontier=_FRONTIER),
    directions=("both", "both"),
    epsilon_of=gdp_epsilon,
    merit="μ",
)


def _find(
    observed: Observed,
    *,
    delta: float,
    alpha: float,
    rule: ThresholdRule,
    rng: np.random.Generator,
) -> Found:
    """Return the largest μ that the scores refute, by their rank sum or at a threshold."""
    if delta == 0:
        raise InvalidArgument("gdp needs delta > 0: at δ = 0 every Gaussian mechanism has ε = ∞.")
    if not isinstance(rule, RankSum) or alpha < rank_sum.LEAST_ALPHA:
        # Of so small a chance little is lost by sharing it out among ranks.
        chosen = RankGrid() if isinstance(rule, RankSum) else rule
        return _find_at_threshold(observed, delta=delta, alpha=alpha, rule=chosen, rng=rng)
    law = rank_sum.get_law(observed.n_in, observed.n_out, alpha)
    seen = law.count(observed, rng)
    mu = law.find_merit(seen.won, rank_sum.shift_normals, largest=_LARGEST)
    return Found(
        epsilon=gdp_epsilon(mu, delta),
        direction="both",
        threshold=-math.inf,
        basis=(
            ("pairs won", seen.won),
            ("pairs", law.pairs),
            ("ties broken", int(seen.tied)),
            ("least to refute", law.find_least(rank_sum.shift_normals, mu)),
            ("draws", law.draws),
            ("α", alpha),
            ("μ", mu),
        ),
    )


METHOD = Method(
    find=_find,
    derive=derivation.gaussian_dp,
    rules=(RankSum, *RULES),
    exact=True,
    guarantees="Exceeds the true ε in at most 1 − confidence of audits of a Gaussian mechanism.",
    assumes="Independent runs, and a trade-off curve that is Gaussian: full-batch DP-SGD or a "
    "published Gaussian sum. For other mechanisms the number can be far too large.",
    cites=("nasr2023", "dong2022", "balle2018", "mann1947", "clopper1934"),
)
