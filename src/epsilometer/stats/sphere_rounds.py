r"""What the largest cosine of all rounds estimates, by the law of a maximum.

In units of 1/√d, the cosine of a canary with the update of a round is normal: N(0, 1) where it took
no part, N(μ, 1) where it did. The largest of n rounds then has the law

- :math:`F_0(x) = \Phi(x)^n` of a canary that took part in none,
- :math:`F_1(x) = \Phi(x - \mu)\,\Phi(x)^{n-1}` of one that took part once.

The ratio of their densities, :math:`(e^{\mu x - \mu^2/2} + (n-1)\Phi(x-\mu)/\Phi(x))/n`, rises with
x, so that thresholds are the best attacks. What a maximum shows is computed from what all rounds
show: ε between these laws is never above that of the Gaussian mechanism with σ = 1/μ, whereas two
fitted normal laws of unequal spread can be any distance apart.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epsilometer import _validate
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.claim import DEFAULT_CONFIDENCE
from epsilometer.stats import search
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.sphere import cosines_of
from epsilometer.types import FloatArray

_GRID = 801  # shifts that are tried
_FARTHEST_THRESHOLD = 40.0  # standard deviations: beyond it normal numbers have no chance
_FARTHEST = 10.0  # standard deviations beyond the highest cosine: no shift is larger
_MOST = 1e9  # rounds, for each canary: nobody trains for longer
_RESAMPLES = 400
_STRAY = 1.63  # √k times Kolmogorov's distance, which 1 of 100 samples of the law exceeds


def rounds_epsilon(mu: float, rounds: float, delta: float) -> float:
    """The ε between the largest of ``rounds`` normal numbers and one of them shifted by ``mu``.

    Guarantees: at most ``gdp_epsilon(mu, delta)``, which it is for one round; falls with rounds.

    Example:
        >>> round(rounds_epsilon(5.0, 1, 1e-5), 2), round(rounds_epsilon(5.0, 500, 1e-5), 2)
        (33.1, 26.89)
    """
    _validate.at_least(0, mu=mu)
    _validate.at_least(1, rounds=rounds)
    _validate.open_unit(delta=delta)
    if rounds == 1:
        return gdp_epsilon(mu, delta)
    if mu == 0:
        return 0.0

    def log_ratio(t: float) -> float:
        here = mu * t - mu * mu / 2
        elsewhere = special.log_ndtr(t - mu) - special.log_ndtr(t) + math.log(rounds - 1)
        return float(np.logaddexp(here, elsewhere)) - math.log(rounds)

    def above(t: float) -> float:
        """By how much the attack at threshold t, where the ratio of densities is e^ε, exceeds δ."""
        present = -math.expm1(special.log_ndtr(t - mu) + (rounds - 1) * special.log_ndtr(t))
        return present - math.exp(log_ratio(t) + _log_exceeded(t, rounds)) - delta

    def below(t: float) -> float:
        present = special.log_ndtr(t - mu) + (rounds - 1) * special.log_ndtr(t)
        absent = rounds * special.log_ndtr(t)
        return math.exp(absent) - math.exp(present - log_ratio(t)) - delta

    far = mu + _FARTHEST_THRESHOLD
    even = _last(lambda t: log_ratio(t) <= 0, -far, far)  # where ε is 0
    found = [0.0]
    if above(even) > 0:
        found.append(log_ratio(_last(lambda t: above(t) > 0, even, far)))
    if below(even) > 0:
        found.append(-log_ratio(_last(lambda t: below(t) <= 0, -far, even)))
    return max(found)


def largest_estimate(
    observed: ArrayLike,
    unobserved: ArrayLike,
    *,
    dimension: int,
    delta: float,
    confidence: float = DEFAULT_CONFIDENCE,
    rng: np.random.Generator,
    subject: str = "largest cosines of canaries",
) -> EpsilonEstimate:
    """ε from the largest cosines over rounds, by the law of a maximum.

    The number of rounds is fitted to canaries that took no part (rounds that resemble each other
    count for fewer), the shift to those that did, both by their likelihood; the interval is that
    of resampling canaries that took part.

    Guarantees: none; an estimate is no bound, and never refutes. It is at most the ε of the
        Gaussian mechanism with the fitted shift.
    Assumes: every canary took part in one round, and none moves the update of another. Taking part
        oftener looks like a larger shift. ``caveats`` says where the law does not fit.
    """
    _validate.open_unit(confidence=confidence, delta=delta)
    scale = math.sqrt(dimension)
    inside, outside = (
        scale * cosines_of(sample, dimension=dimension) for sample in (observed, unobserved)
    )
    rounds = max(1.0, outside.size / max(-float(special.log_ndtr(outside).sum()), 1 / _MOST))
    shifts = np.linspace(0.0, max(float(inside.max()), 0.0) + _FARTHEST, _GRID)
    likely = _log_likelihood(inside, shifts, rounds)
    again = rng.multinomial(inside.size, np.full(inside.size, 1 / inside.size), size=_RESAMPLES)
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    best = _peak(shifts, likely.sum(axis=1)[None])[0]
    low, high = np.quantile(_peak(shifts, again @ likely.T), ends)
    epsilon, least, most = (
        rounds_epsilon(float(mu), rounds, delta) for mu in (best, min(low, best), max(high, best))
    )
    return EpsilonEstimate(
        epsilon=epsilon,
        low=least,
        high=most,
        delta=delta,
        confidence=confidence,
        method=f"law of the largest of {rounds:.0f} rounds, one of them shifted by {best:.3g}/√d",
        direction="both",
        subject=subject,
        cites=("andrew2024",),
        caveats=_stray(inside, outside, float(best), rounds),
        basis=(("rounds", rounds), ("shift", float(best))),
    )


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The last point at which ``holds`` is true, between one where it is and one where not."""
    return float(search.bisect(lambda t: np.asarray(holds(float(t))), low, high)[0])


def _log_exceeded(t: float, rounds: float) -> float:
    """ln of the chance that the largest of some normal numbers exceeds t; does not underflow."""
    all_below = rounds * float(special.log_ndtr(t))
    if all_below < -1e-9:
        return math.log(-math.expm1(all_below))
    return math.log(rounds) + float(special.log_ndtr(-t))


def _log_likelihood(x: FloatArray, shifts: FloatArray, rounds: float) -> FloatArray:
    """Of every cosine at every shift, up to what does not depend on the shift: (shifts, k)."""
    here = shifts[:, None] * x - shifts[:, None] ** 2 / 2
    if rounds == 1:
        return here
    elsewhere = special.log_ndtr(x - shifts[:, None]) - special.log_ndtr(x) + math.log(rounds - 1)
    return np.asarray(np.logaddexp(here, elsewhere))


def _peak(at: FloatArray, heights: FloatArray) -> FloatArray:
    """Where each row of heights is highest, by the parabola through the three highest points."""
    rows, top = np.arange(len(heights)), heights.argmax(axis=1)
    inner = np.clip(top, 1, at.size - 2)
    left, mid, right = (heights[rows, inner + i] for i in (-1, 0, 1))
    bent = left - 2 * mid + right
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.where((bent < 0) & (top == inner), (left - right) / (2 * bent), 0.0)
    return np.asarray(at[top] + off * (at[1] - at[0]))


def _stray(inside: FloatArray, outside: FloatArray, mu: float, rounds: float) -> tuple[str, ...]:
    """Says which of the samples the law does not fit."""
    absent = np.exp(rounds * special.log_ndtr(outside))
    present = np.exp(special.log_ndtr(inside - mu) + (rounds - 1) * special.log_ndtr(inside))
    told = []
    for shares, who in ((present, "that took part"), (absent, "that did not take part")):
        k, ranked = shares.size, np.sort(shares)
        apart = max(
            float((np.arange(1, k + 1) / k - ranked).max()),
            float((ranked - np.arange(k) / k).max()),
        )
        if math.sqrt(k) * apart > _STRAY:
            told.append(
                f"The largest cosines of canaries {who} do not have the law of a maximum of "
                f"independent rounds (Kolmogorov's distance {apart:.2g}): the estimate rests on "
                "that they have, the bound does not."
            )
    return tuple(told)
