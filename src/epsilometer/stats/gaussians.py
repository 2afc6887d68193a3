r"""Compute the privacy of Gaussian pairs: one mechanism, or two normals of unequal spread.

Everything rests on Mills' ratio :math:`M(x) = \\Phi(-x)/\\varphi(x)`: where the privacy loss is ε
the densities satisfy :math:`p = e^\\varepsilon q`, so the two tails beyond share one factor and the
difference :math:`P - e^\\varepsilon Q` is taken between Mills' ratios, never between tails.
"""

import math
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.stats import search
from epsilometer.types import FloatArray

Rule: TypeAlias = Literal["exact", "threshold"]
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_SMALL_MU = 0.5
_FARTHEST = 1e75  # its fourth power is still finite: beyond it ε would be computed as 0


def gaussian_delta(sigma: float, epsilon: float, *, log: bool = False) -> float:
    """Return δ of the Gaussian mechanism of sensitivity 1 (Balle & Wang 2018, Theorem 8).

    Args:
        sigma: Standard deviation of the noise for sensitivity 1.
        epsilon: At least 0.
        log: Return ln δ, which does not underflow.

    Example:
        >>> round(gaussian_delta(1.0, 1.0), 6)
        0.126937
    """
    _validate.positive(sigma=sigma)
    _validate.at_least(0, epsilon=epsilon)
    log_delta = float(_log_delta(epsilon * sigma - 0.5 / sigma, 1 / sigma))
    return log_delta if log else math.exp(log_delta)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Return ε of the Gaussian mechanism of sensitivity 1 at ``delta``, to 1e-12 relative.

    0 where the mechanism is (0, δ)-DP, infinite at δ = 0. Equals the ε of μ-GDP with μ = 1/σ.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 6)
        4.377178
    """
    _validate.positive(sigma=sigma)
    _validate.probability(delta=delta)
    if delta == 0:
        return math.inf
    mu, target = 1 / sigma, math.log(delta)
    # Solved for x = ε/μ − μ/2, where ε = 0 is x = −μ/2: ε itself would cancel at small σ.
    low = -mu / 2
    if _log_delta(low, mu) <= target:
        return 0.0
    high = math.sqrt(-2 * target)  # δ(x) is below Φ(−x), which is below exp(−x²/2)
    ends = search.bisect(lambda x: _log_delta(x, mu) > target, low, high)
    return float(mu * (ends[1] + mu / 2))


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Return the smallest σ with which the Gaussian mechanism is (ε, δ)-DP, to 1e-12.

    Example:
        >>> round(gaussian_sigma(1.0, 1e-5), 5)
        3.73063
    """
    _validate.at_least(0, epsilon=epsilon)
    _validate.open_unit(delta=delta)
    target = math.log(delta)

    def too_little(log_sigma: FloatArray) -> NDArray[np.bool_]:
        sigma = np.exp(log_sigma)
        return _log_delta(epsilon * sigma - 0.5 / sigma, 1 / sigma) > target

    ends = search.bisect(too_little, -350.0, 800.0)
    return float(np.exp(ends[1]))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return ε at ``delta`` of μ-Gaussian DP (Dong et al. 2022, Corollary 1).

    Example:
        >>> gdp_epsilon(0.0, 1e-5)
        0.0
    """
    _validate.at_least(0, mu=mu)
    return gaussian_epsilon(1 / mu, delta) if mu > 1e-300 else 0.0


def two_gaussians_epsilon(
    mean_absent: float,
    std_absent: float,
    mean_present: float,
    std_present: float,
    delta: float,
    rule: Rule = "exact",
    *,
    relative: float = 0.0,
) -> float:
    """Return ε at ``delta`` between two normal distributions: the larger of both directions.

    Args:
        mean_absent: Mean of the score without the record.
        std_absent: Its standard deviation, above 0.
        mean_present: Mean with the record.
        std_present: Its standard deviation, above 0.
        delta: In [0, 1]. At 0 the answer is infinite unless the two distributions are equal.
        rule: ``"exact"`` takes the best of all attacks, whose regions are bounded by the roots of
            a quadratic (one-shot paper, version 2, Appendix B); ``"threshold"`` only attacks that
            say "present" above a threshold (version 1), and so gives 0 when the score points the
            wrong way.
        relative: How much the answer may exceed the truth; 0 is rounding alone. A thousandth
            takes a quarter of the time.

    Example:
        >>> round(two_gaussians_epsilon(0.0, 1.0, 1.0, 1.05, 1e-6), 4)
        6.1488
    """
    return max(
        two_gaussians_directions(
            mean_absent, std_absent, mean_present, std_present, delta, rule, relative=relative
        )
    )


def two_gaussians_directions(
    mean_absent: float,
    std_absent: float,
    mean_present: float,
    std_present: float,
    delta: float,
    rule: Rule = "exact",
    *,
    relative: float = 0.0,
) -> tuple[float, float]:
    """Return both directions of ``two_gaussians_epsilon``: present→absent, absent→present."""
    _validate.positive(std_absent=std_absent, std_present=std_present)
    _validate.number(mean_absent=mean_absent, mean_present=mean_present)
    forward, backward = solve_two_gaussians(
        mean_present - mean_absent, std_absent, std_present, delta, rule, relative=relative
    )
    return float(forward), float(backward)


def solve_two_gaussians(
    gap: ArrayLike,
    std_absent: ArrayLike,
    std_present: ArrayLike,
    delta: float,
    rule: Rule = "exact",
    *,
    relative: float = 0.0,
) -> FloatArray:
    """Return ``two_gaussians_directions`` of many pairs at once, shape ``(2, ...)``.

    Args:
        gap: Mean with the record minus the mean without it, one per pair.
        std_absent: Standard deviations without the record, above 0.
        std_present: Those with it.
        delta: See ``two_gaussians_epsilon``, as the others.
        rule: Threshold rule of all pairs.
        relative: Largest relative error of each answer.
    """
    _validate.probability(delta=delta)
    if rule not in ("exact", "threshold"):
        raise InvalidArgument(f"Expected rule to be 'exact' or 'threshold', got {rule!r}.")
    shift, spread = _scale_both_ways(gap, std_absent, std_present)
    epsilon = np.zeros(shift.shape)
    leaks = _pair_delta(shift, spread, epsilon, rule) > delta
    shift, spread = shift[leaks], spread[leaks]
    if delta == 0:
        epsilon[leaks] = _find_largest_loss(shift, spread, rule)
        return epsilon

    def exceeds(at: FloatArray) -> NDArray[np.bool_]:
        return _pair_delta(shift, spread, at, rule) > delta

    high = search.grow(exceeds, np.ones(shift.shape), limit=1e300)
    # The upper end is the safe one: δ is not exceeded there.
    epsilon[leaks] = search.bisect(exceeds, np.zeros(shift.shape), high, relative=relative)[1]
    return epsilon


def two_gaussians_delta(
    mean_absent: float, std_absent: float, mean_present: float, std_present: float, epsilon: float
) -> tuple[float, float]:
    """Return δ at ``epsilon`` of two normal distributions: present→absent, then absent→present."""
    _validate.positive(std_absent=std_absent, std_present=std_present)
    _validate.at_least(0, epsilon=epsilon)
    pairs = _scale_both_ways(mean_present - mean_absent, std_absent, std_present)
    forward, backward = _pair_delta(*pairs, np.asarray(epsilon), "exact")
    return float(forward), float(backward)


def _scale_both_ways(
    gap: ArrayLike, std_absent: ArrayLike, std_present: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return shift and spread of P = N(shift, spread²) against Q = N(0, 1) in both directions."""
    gap, absent, present = np.broadcast_arrays(gap, std_absent, std_present)
    # With both distributions swapped, and mirrored so that higher still means "this one".
    with np.errstate(over="ignore"):
        shift = np.stack([gap / absent, gap / present])
        spread = np.stack([present / absent, absent / present])
    if not np.all((np.abs(shift) <= _FARTHEST) & (spread <= _FARTHEST)):
        raise InvalidArgument(
            f"Expected two distributions within {_FARTHEST:g} standard deviations of each other, "
            "and neither so many times as wide as the other."
        )
    return shift, spread


def _find_largest_loss(shift: FloatArray, spread: FloatArray, rule: Rule) -> FloatArray:
    """Return the supremum of ln(p/q): finite only where P is the narrower."""
    if rule == "threshold":
        return np.full(shift.shape, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = -np.log(spread) + shift**2 / (2 * (1 - spread**2))
    return np.where(spread < 1, loss, np.inf)


def _pair_delta(
    shift: FloatArray, spread: FloatArray, epsilon: FloatArray, rule: Rule
) -> FloatArray:
    """Return P − e^ε Q over the region where the attack says P."""
    m, s = (shift if rule == "threshold" else np.abs(shift)), spread  # a region may be mirrored
    # ln(p/q) − ε = a z² + b z + c
    a, b = 0.5 * (s - 1) * (s + 1) / (s * s), m / (s * s)
    c = -np.log(s) - 0.5 * (m / s) ** 2 - epsilon
    with np.errstate(all="ignore"):  # formulas of other cases, which np.where leaves out
        square = b * b - 4 * a * c
        low, high = _roots(a, b, c, np.sqrt(square))
        # A wider P wins in both tails, a narrower one between the roots. Of equal spreads (a = 0)
        # one root is infinite, and the tail beyond it empty.
        wider = a >= 0
        first, second = np.where(wider, high, low), np.where(wider, low, high)
        gained = _tail_gap((first - m) / s, first, s, epsilon)
        if rule == "exact":
            side = np.where(wider, -1.0, 1.0)
            gained = gained - side * _tail_gap(side * (second - m) / s, side * second, s, epsilon)
    # Without two roots the loss passes ε nowhere, or (P wider) everywhere.
    return np.where(square > 0, gained, 0.0)


def _tail_gap(u: FloatArray, z: FloatArray, s: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Φ(−u) − e^ε Φ(−z), where φ(u)/s = e^ε φ(z): in the tails that shared factor is taken out."""
    tail = np.exp(-u * u / 2 - _LOG_SQRT_2PI) * (_mills(u) - _mills(z) / s)
    # Beyond e^700 two such terms would be infinite, and their difference nan.
    second = np.exp(np.minimum(epsilon + scipy.special.log_ndtr(-z), 700.0))
    bulk = scipy.special.ndtr(-u) - second
    return np.where((u > 0) & (z > 0), tail, bulk)


def _roots(
    a: FloatArray, b: FloatArray, c: FloatArray, root: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the roots of a z² + b z + c without cancellation; ``root`` is √(b² − 4ac) > 0."""
    q = -0.5 * (b + np.copysign(root, b))
    return np.minimum(q / a, c / q), np.maximum(q / a, c / q)


def _mills(x: FloatArray | float) -> FloatArray:
    return np.asarray(_SQRT_HALF_PI * scipy.special.erfcx(np.asarray(x) / math.sqrt(2)))


def _log_delta(x: ArrayLike, mu: ArrayLike) -> FloatArray:
    """ln δ of N(μ, 1) against N(0, 1) where ε = μ(x + μ/2)."""
    x, mu = np.broadcast_arrays(x, mu)
    with np.errstate(all="ignore"):
        # In the tail both terms share φ(x); in the bulk Φ(−x) is near 1 and nothing cancels badly.
        tail = -x * x / 2 - _LOG_SQRT_2PI + np.log(_mills_gap(x, mu))
        second = np.exp(-x * x / 2 - _LOG_SQRT_2PI) * _mills(x + mu)
        bulk = np.log(scipy.special.ndtr(-x) - second)
        return np.asarray(np.where((x > -1) | (mu < _SMALL_MU), tail, bulk))


def _mills_gap(x: FloatArray, mu: FloatArray) -> FloatArray:
    """M(x) − M(x + μ): for small μ the integral of −M' = 1 − tM(t), for large the difference."""
    plain = _mills(x) - _mills(x + mu)
    if np.all(mu >= _SMALL_MU):
        return plain
    nodes, weights = _list_nodes()
    t = x[..., None] + mu[..., None] * (nodes + 1) / 2
    small = mu / 2 * ((1 - t * _mills(t)) @ weights)
    return np.asarray(np.where(mu < _SMALL_MU, small, plain))


@cache
def _list_nodes() -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights of Gauss–Legendre; found when asked, as NumPy loads much for it."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    return nodes, weights
