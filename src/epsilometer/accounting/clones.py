r"""Bound the ε of shuffling from above by clones: other records sometimes look like the target.

After Feldman, McMillan and Talwar (2021), with constants for Gaussian noise. A record's neighbour
is the same record zeroed out. Proof, for one epoch of T batches:

1. Reveal to the adversary the target's slot in its batch, and all other slots of all batches.
   The T records of that slot are still permuted uniformly, so step t shows N(f_t + z_{π(t)}, σ²I)
   for a uniform π. f_t and all z, |z| ≤ 1, may depend on earlier steps; the target has z = g or 0.
2. *Clones.* Let φ_z be the density of a step with z. Where φ_g ≤ φ_z/p and φ_0 ≤ φ_z/p, another
   record's step is a step of the target with probability p/2, one of its absence with p/2, and
   something else otherwise. Elsewhere φ_g has a mass of at most d(p) = Φ(−x) with
   x = σ(ln(1/p) − 2/σ²)/2, since |g − z| ≤ 2, and φ_0 less. Pretending that the split is exact
   adds at most p·d(p) to the mass of a step, and η = (1 + p d(p))^{T−1} − 1 to an epoch.
3. *Halves.* On H = {|ln φ_g/φ_0| ≤ e}, which misses a mass of at most
   m = Φ(−(σe − 1/2σ)) + Φ(−(σe + 1/2σ)) of either where e ≥ 1/2σ²,

       φ_g = (e^e a + b)/(e^e + 1),  φ_0 = (a + e^e b)/(e^e + 1),  (φ_g + φ_0)/2 = (a + b)/2

   for two measures a, b ≥ 0 of the same mass.
4. So the epoch shows no more than how many steps are an a and how many a b: of C ~ Bin(T − 1, p)
   clones each is either with probability 1/2, and the target is an a with probability
   e^e/(e^e + 1), and without the record 1/(e^e + 1). Which steps these are, and all others, have
   one distribution with the record and without it.
5. Masses above 1: what is not a clone has at most 1 + p(m + d(p))/(1 − p) times its due, so that
   with M = (1 + p(m + d(p))/(1 − p))^{T−1}, over E epochs,

       δ(ε) ≤ M^E δ_counts(ε) + E (1 + η)^E (m + e^ε η).

Fewer clones leak more, so C is rounded down; counts are composed as losses are.
"""

import math

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from epsilometer import _validate
from epsilometer.accounting.loss_distribution import LossDistribution, find_epsilon
from epsilometer.types import FloatArray

_SHARE = 0.02  # of δ for each of the two approximations
_CEILINGS = (0.5, 2.0, 10.0)
_REACH = 1e-4  # of δ: counts that are left out, all epochs together
_BLOCKS = 40  # values to which the number of clones is rounded down
_LOSS_CELL = 0.01  # of the standard deviation of an epoch's loss
_ROUNDING = 1e-9  # relative: more than floating point does


def clones_epsilon(*, noise_multiplier: float, steps: int, epochs: int = 1, delta: float) -> float:
    """Compute an upper bound on the ε of DP-SGD whose records are shuffled every epoch.

    Guarantee: at least the true ε, for all data and all adaptive training. Infinite where the bound
        is vacuous: it needs thousands of steps and noise of several clipping norms.
    Assumption: a uniform permutation per epoch, cut into batches; a neighbour is zeroed out.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the clipping norm.
        steps: Batches per epoch; the last one is full.
        epochs: Number of passes over all records.
        delta: δ.

    Example:
        >>> round(clones_epsilon(noise_multiplier=5.0, steps=100_000, delta=1e-5), 2)
        0.03
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.whole(1, steps=steps, epochs=epochs)
    _validate.open_unit(delta=delta)
    sigma, others = noise_multiplier, steps - 1
    if others == 0:
        return math.inf
    half = _SHARE * delta / epochs / 2
    limit = 0.5 / sigma**2 - float(ndtri(half)) / sigma
    found = []
    for ceiling in _CEILINGS:  # the ε that p is chosen for; the bound holds for any p
        rare = _SHARE * delta / epochs * math.exp(-ceiling) / others
        distance, log_p = rare, 0.0
        for _ in range(3):  # p d(p) is to be ``rare``
            log_p = 2 * float(ndtri(distance)) / sigma - 2 / sigma**2
            distance = min(rare * math.exp(-log_p), 0.5)
        found.append(_compute(sigma, others, epochs, delta, math.exp(log_p), limit))
    return min(found)


def _compute(
    sigma: float, others: int, epochs: int, delta: float, chance: float, limit: float
) -> float:
    """Return ε for given p (``chance``) and e (``limit``), as derived in the module docstring."""
    distance, missed = _miss_clones(sigma, chance), _miss_halves(sigma, limit)
    extra = math.expm1(others * math.log1p(chance * distance))
    swell = math.exp(epochs * others * math.log1p(chance * (missed + distance) / (1 - chance)))
    law = _tabulate(others, chance, limit, _REACH * delta / epochs)
    grown = (1 + extra) ** epochs * epochs

    def spent(epsilon: float) -> float:
        return grown * (missed + math.exp(epsilon) * extra)

    if law is None or spent(0.0) >= delta:
        return math.inf
    epsilon = 0.0
    for _ in range(4):  # what is spent grows with ε: from below, until it is enough
        left = (delta - spent(epsilon * 1.0001 + 1e-6)) / swell
        if left <= 0:
            return math.inf
        allowed, epsilon = epsilon * 1.0001 + 1e-6, _read(law, epochs, left)
        if epsilon <= allowed:
            return epsilon * (1 + _ROUNDING)
    return math.inf


def _miss_clones(sigma: float, chance: float) -> float:
    """Return d(p): the mass of the target's step where another record's is below p times it."""
    return float(ndtr(-sigma * (-math.log(chance) - 2 / sigma**2) / 2))


def _miss_halves(sigma: float, limit: float) -> float:
    """Return m: the mass of the target's step, or of its absence, outside H."""
    return float(ndtr(-(sigma * limit - 0.5 / sigma)) + ndtr(-(sigma * limit + 0.5 / sigma)))


def _read(law: LossDistribution, epochs: int, delta: float) -> float:
    if -math.expm1(epochs * math.log1p(-law.infinite)) >= delta:
        return math.inf
    return find_epsilon([(law, epochs)], delta, rounding="up")


def _tabulate(others: int, chance: float, limit: float, rare: float) -> LossDistribution | None:
    """Return the distribution of the loss of an epoch's counts, rounded up."""
    fewest = int(binom.ppf(rare / 4, others, chance))  # at most rare/4 lie below
    most = int(binom.isf(rare / 4, others, chance))
    if fewest < 1:
        return None
    starts = np.unique(np.linspace(fewest, most, _BLOCKS).astype(np.int64))
    weights = np.diff(binom.cdf(np.append(starts - 1, others), others, chance))
    lost = float(binom.cdf(fewest - 1, others, chance))
    up, down = 1 / (1 + math.exp(-limit)), 1 / (1 + math.exp(limit))
    losses, masses = [], []
    for clones, weight in zip(starts.tolist(), weights.tolist(), strict=True):
        reach = math.ceil(math.sqrt(clones * math.log(8 / rare) / 2)) + 1  # Hoeffding 1963
        first, last = max(0, clones // 2 - reach), min(clones + 1, clones // 2 + reach)
        counts = np.arange(first, last + 1)
        both = binom.pmf(np.stack([counts - 1, counts]), clones, 0.5)
        with_it = up * both[0] + down * both[1]
        rest = clones + 1 - counts
        losses.append(_log_ratio(counts, rest, limit))
        masses.append(weight * with_it)
        lost += weight * max(rare / 4, 1 - float(with_it.sum()))
    all_losses, all_masses = np.concatenate(losses), np.concatenate(masses)
    mean = float(all_masses @ all_losses)
    spread = math.sqrt(max(float(all_masses @ (all_losses - mean) ** 2), 1e-24))
    cell = _LOSS_CELL * spread
    start = math.floor(float(all_losses.min()) / cell)
    at = np.floor(all_losses / cell).astype(np.int64) - start
    present = np.bincount(at, all_masses).astype(np.float64)
    absent = np.bincount(at, all_masses * np.exp(-all_losses)).astype(np.float64)
    return LossDistribution.from_cells(
        cell * start, cell, present, absent, beyond=lost, rounding="up"
    )


def _log_ratio(counts: FloatArray, rest: FloatArray, limit: float) -> FloatArray:
    """Return ln((e^e k + r)/(k + e^e r)) for k steps that are an a and r that are a b."""
    odds = math.exp(-limit)  # numerator and denominator over e^e: no overflow
    return np.asarray(np.log(counts + odds * rest) - np.log(odds * counts + rest))
