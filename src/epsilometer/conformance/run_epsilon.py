"""Bound the ε of a run from the noise that was observed, not from the booked noise."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

METHOD = "noise_of_run"
Sampling: TypeAlias = Literal["poisson", "shuffle"]
Part: TypeAlias = tuple[float, float, int]  # noise multiplier, sampling rate, steps

_KAPPA = 0.25  # of the prior κ t^(−1−κ) on t = (1/relative scale)² ≥ 1; below 1/2, for one residual
_MOST_PARTS = 16  # distributions to compose; beyond that, noise is rounded up and rates down
_ROUNDING = 1 + 2.0**-8  # of noise in bfloat16, and its standard deviation
_LARGE = 1e7  # from here on, Stirling's series is exact to 1e-9
_GAUSSIAN = (
    "Holds if noise is Gaussian and independent between steps and coordinates. In each tensor, "
    "its scale must be constant over all steps with the same booked noise, or within each step."
)
_GRADIENT = (
    "Against an adversary who sees every noisy sum and may insert any gradient of the stated "
    "sensitivity, even where noise is smallest. Real data may leak less."
)
_SAMPLING: dict[Sampling, str] = {
    "poisson": "Batches are assumed to be drawn by Poisson sampling at the booked rate.",
    "shuffle": "Batches are assumed to be shuffled before each epoch; only whole epochs count.",
}


@dataclass(frozen=True, kw_only=True)
class NoiseGroup:
    """Hold the observed noise of all steps with the same booked noise multiplier and rate.

    Attributes:
        noise_multiplier: Booked σ: the unit of residuals is σ times the clipping norm.
        rate: Booked sampling rate.
        steps: Number of steps.
        tensors: (name, residuals, sum of their squares) of each tensor, over all these steps.
        quietest: (number of the step in the run, residuals, sum of their squares) of the tensor
            with the smallest noise in that step, or of all tensors together. Steps may be left out.
    """

    noise_multiplier: float
    rate: float
    steps: int
    tensors: tuple[tuple[str, int, float], ...]
    quietest: tuple[tuple[int, int, float], ...] = ()

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier)
        _validate.probability(rate=self.rate)
        _validate.whole(1, steps=self.steps)
        if not self.tensors:
            raise InvalidArgument("Expected noise of at least one tensor, got none.")
        for _, count, squares in self.tensors:
            _validate.whole(1, count=count)
            _validate.at_least(0, squares=squares)
        if len(self.quietest) > self.steps:
            raise InvalidArgument(
                f"Expected noise of at most {self.steps} single steps, got {len(self.quietest)}."
            )


def limit_scale(count: ArrayLike, squares: ArrayLike, *, alpha: float) -> FloatArray:
    r"""Return an anytime upper limit on the scale of Gaussian noise, from n residuals.

    A scale s is excluded where :math:`Q = S/s^2` is so small that the mixture of likelihood ratios
    :math:`\int_1^\infty t^{n/2} e^{-(t - 1) Q/2} \kappa t^{-1-\kappa} dt` reaches 1/α. Under every
    scale of at least s, and every mean, this is a supermartingale that starts at 1 (Ville 1939).

    Guarantee: the scale exceeds the limit, at any step of the run, with probability at most α.
    Assumption: residuals are independent Gaussian noise of one scale; other means are allowed.

    Args:
        count: Numbers n of residuals, any shape.
        squares: Sums of their squares, of the same shape.
        alpha: Error probability of each limit, in (0, 1).

    Example:
        >>> limit_scale([1e3, 1e6], [1e3, 1e6], alpha=0.001).round(4)  # of scale 1
        array([1.1121, 1.0037])
    """
    _validate.open_unit(alpha=alpha)
    n, total = np.asarray(count, np.float64), np.asarray(squares, np.float64)
    sizes, where = np.unique(n, return_inverse=True)
    least = np.array([_find_least_quotient(float(size), alpha) for size in sizes])
    return np.asarray(np.sqrt(total / least[where].reshape(n.shape)))


@lru_cache(maxsize=4096)
def _find_least_quotient(count: float, alpha: float) -> float:
    """Return Q below which a scale is excluded, rounded down so that limits err upwards."""
    n, low, high = np.array([count]), math.log(1e-300), math.log(count)
    while high - low > 1e-13 * max(1.0, -low):
        middle = (low + high) / 2
        if float(_log_mixture(n, np.exp([middle]))[0]) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return math.exp(low)


def bound_epsilon_of_run(
    noise: Sequence[NoiseGroup],
    *,
    sensitivity: float = 1.0,
    delta: float,
    confidence: float = 0.999,
    sampling: Sampling = "poisson",
) -> EpsilonLowerBound:
    """Bound the ε of a run from below, by the observed noise and an accountant that rounds down.

    Upper limits on the noise of every tensor, and of all together, hold jointly (Bonferroni) and at
    any stopping time. The smallest goes through an accountant that rounds down. Half of the level
    is for limits over all steps with the same booked noise, half for single steps, to find a step
    without noise. The larger ε is the bound. The 0.4 % of noise that 8-bit arithmetic may lose is
    tolerated.

    Guarantee: the bound exceeds the ε of the run with probability at most ``1 - confidence``.
    Assumption: noise is Gaussian and independent, of one scale for each tensor and booked noise.
        Batches are drawn as ``sampling`` says; a record may have any gradient of ``sensitivity``.

    Args:
        noise: Observed noise, from ``StepWatch.group_noise``. Leaving out steps only lowers the
            bound.
        sensitivity: Largest change of the sum by one record, in clipping norms: 1 unless clearly
            more was measured.
        delta: δ.
        confidence: One-sided. Bounds of one audit share the confidence; the default costs the
            others very little.
        sampling: How batches are drawn. ``"shuffle"`` assumes 1/rate steps per epoch.

    Returns:
        The bound; infinite if some tensor has no noise. ``threshold`` is an upper limit on the
        smallest noise multiplier, and ``n_in`` the number of steps.

    Example:
        >>> half = NoiseGroup(noise_multiplier=1.0, rate=0.05, steps=100,
        ...                 tensors=(("weight", 10**6, 0.25 * 10**6),))
        >>> print(bound_epsilon_of_run([half], delta=1e-5))
        ε ≥ 17.83 at δ = 1e-05 (0.999 confidence, noise_of_run)
    """
    _validate.open_unit(delta=delta, confidence=confidence)
    if not noise:
        raise InvalidArgument("Expected noise of at least one step, got none.")
    if sampling not in _SAMPLING:
        raise InvalidArgument(f"Expected sampling by 'poisson' or 'shuffle', got {sampling!r}.")
    account = _ACCOUNTANTS[sampling]
    limits = _limit_noise(noise, sensitivity, alpha=(1 - confidence) / 2)
    parts = [
        (limit * group.noise_multiplier, group.rate, group.steps)
        for group, limit in zip(noise, limits, strict=True)
    ]
    epsilon, least = account(parts, delta), min(part[0] for part in parts)
    if sampling == "poisson":
        single = _limit_single_steps(noise, sensitivity, alpha=(1 - confidence) / 2)
        if single and (least_single := min(part[0] for part in single)) < least:
            epsilon, least = max(epsilon, account(single, delta)), least_single
    steps = sum(group.steps for group in noise)
    return EpsilonLowerBound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method=METHOD,
        threshold_rule="upper limit on the noise at every step (Ville 1939)",
        valid=True,
        direction="present→absent",
        threshold=least,
        n_in=steps,
        n_out=0,
        adjacency="add_remove" if sampling == "poisson" else "zero_out",
        adversary="sees every noisy sum and inserts any gradient",
        cites=("nasr2023", "ville1939"),
        caveats=(_GAUSSIAN, _SAMPLING[sampling], _GRADIENT),
        basis=(
            ("least noise, at most", least),
            ("of the booked noise over all steps, at most", min(limits)),
            ("steps", steps),
            ("level", 1 - confidence),
        ),
    )


def merge_parts(parts: Iterable[Part], *, most: int = _MOST_PARTS) -> list[Part]:
    """Merge parts of equal noise and rate; if there are too many, round noise up and rates down.

    Both only lower ε: a noisier sum that a record enters less often reveals less of it.

    Example:
        >>> merge_parts([(1.0, 0.1, 5), (2.0, 0.1, 5), (1.0, 0.1, 2)])
        [(1.0, 0.1, 7), (2.0, 0.1, 5)]
        >>> merge_parts([(1.01, 0.1, 1), (1.02, 0.1, 1), (2.0, 0.1, 1)], most=2)[0][2]
        2
    """
    exact = list(parts)
    ratio = 1.0
    while True:
        merged: dict[tuple[float, float], int] = {}
        for noise, rate, steps in exact:
            key = round_up(noise, ratio), 1 / round_up(1 / rate, ratio) if rate else 0.0
            merged[key] = merged.get(key, 0) + steps
        if len(merged) <= most:
            return [(noise, rate, steps) for (noise, rate), steps in merged.items()]
        ratio = 1.005 if ratio == 1 else ratio**1.5


def round_up(value: float, ratio: float) -> float:
    """Round up to a power of ``ratio``; a ratio of 1 rounds nothing.

    Example:
        >>> round_up(3.0, 2.0), round_up(4.0, 2.0), round_up(3.0, 1.0)
        (4.0, 4.0, 3.0)
    """
    if ratio == 1 or not 0 < value < math.inf:
        return value
    power = math.ceil(math.log(value) / math.log(ratio) - 1e-9)
    return max(value, ratio**power)


def _limit_noise(noise: Sequence[NoiseGroup], sensitivity: float, *, alpha: float) -> list[float]:
    """Return an upper limit on the noise of each group, over its sensitivity, in booked noise."""
    _validate.number(sensitivity=sensitivity)
    if not sensitivity > 0:
        raise InvalidArgument(f"Expected sensitivity > 0, got {sensitivity!r}.")
    every = sum(len(group.tensors) for group in noise)
    limits = []
    for group in noise:
        _, counts, squares = zip(*group.tensors, strict=True)
        # Half of the level is for tensors, half for all together: both limit the smallest noise.
        own = limit_scale(counts, squares, alpha=alpha / 2 / every)
        all_of_them = limit_scale(sum(counts), sum(squares), alpha=alpha / 2 / len(noise))
        limits.append(_ROUNDING * min(float(own.min()), float(all_of_them)) / sensitivity)
    return limits


def _limit_single_steps(
    noise: Sequence[NoiseGroup], sensitivity: float, *, alpha: float
) -> list[Part]:
    """Return steps as parts, each with an upper limit on the smallest noise in it.

    Step t has the share 1/(t(t + 1)) of the level, divided among tensors and all of them together.
    """
    parts: list[Part] = []
    for group in noise:
        if not group.quietest:
            continue
        number, count, squares = np.array(group.quietest, np.float64).T
        level = alpha / (number * (number + 1)) / (len(group.tensors) + 1)
        quantile = 2 * scipy.special.gammaincinv(count / 2, level)
        with np.errstate(divide="ignore", invalid="ignore"):
            limits = np.where(squares > 0, np.sqrt(squares / quantile), 0.0)
        unit = _ROUNDING * group.noise_multiplier / sensitivity
        parts += [(float(unit * limit), group.rate, 1) for limit in limits]
    return parts


def _bound_sampled(parts: Sequence[Part], delta: float) -> float:
    """Return the lower end for batches drawn by Poisson sampling."""
    from epsilometer.accounting.pld import poisson_epsilon_at_least

    return poisson_epsilon_at_least(merge_parts(parts), delta=delta)


def _bound_shuffled(parts: Sequence[Part], delta: float) -> float:
    """Return the lower end for whole epochs of shuffled batches, all with the largest noise."""
    from epsilometer.accounting.shuffle import shuffle_epsilon

    rates = {rate for _, rate, _ in parts}
    if len(rates) > 1 or not min(rates) > 0:
        raise InvalidArgument(
            "Expected one sampling rate above 0 for shuffled batches, "
            f"got {_validate.listed(rates)}."
        )
    (rate,) = rates
    per_epoch = round(1 / rate)
    epochs = sum(steps for _, _, steps in parts) // per_epoch
    if epochs and any(noise == 0 for noise, _, _ in parts) and rate > delta:
        return math.inf  # a step without noise has the record with this probability
    most = max(noise for noise, _, _ in parts)
    if not epochs or not 0 < most < math.inf:
        return 0.0
    found = shuffle_epsilon(noise_multiplier=most, steps=per_epoch, epochs=epochs, delta=delta)
    return found.low


_ACCOUNTANTS: dict[Sampling, Callable[[Sequence[Part], float], float]] = {
    "poisson": _bound_sampled,
    "shuffle": _bound_shuffled,
}


def _log_mixture(count: FloatArray, quotient: FloatArray) -> FloatArray:
    """Logarithm of the mixture at Q: κ e^{Q/2} (Q/2)^{−m} Γ(m, Q/2), m = n/2 − κ."""
    m, half = count / 2 - _KAPPA, quotient / 2
    apart = half / m - 1
    with np.errstate(divide="ignore"):
        log = np.where(np.abs(apart) < 0.5, np.log1p(np.maximum(apart, -0.5)), np.log(half / m))
        beyond = np.log(scipy.special.gammaincc(m, half))
    # Γ(m) e^m m^(−m), by Stirling where both are too large to be subtracted
    stirling = (math.log(2 * math.pi) - np.log(m)) / 2 + 1 / (12 * m)
    exact = scipy.special.gammaln(np.minimum(m, _LARGE)) - np.minimum(m, _LARGE) * (
        np.log(np.minimum(m, _LARGE)) - 1
    )
    front = np.where(m < _LARGE, exact, stirling)
    return np.asarray(math.log(_KAPPA) + m * (apart - log) + front + beyond)
