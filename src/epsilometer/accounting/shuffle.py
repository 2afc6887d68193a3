"""Bound the leakage of shuffled DP-SGD from below: ε, δ, the noise needed, trade-off curve.

The numbers are those of one pair of datasets (one record of +1 or of 0 among records of −1, the
zero-out adjacency), exact to a stated numerical error. The worst pair leaks no less, so they are
lower bounds on the sampler's ε. That this pair is the worst is conjectured (Chua et al. 2024), not
proved.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer.accounting import epochs as exact
from epsilometer.accounting.epochs import Epoch
from epsilometer.core.bound import Direction, EpsilonEstimate
from epsilometer.errors import InvalidArgument
from epsilometer.sampling.samplers import Law, Sampler, Shuffle, find_law, label_sampler
from epsilometer.types import FloatArray

CITES = ("annamalai2025", "chua2024")
_SHUFFLE = Shuffle()
_CONJECTURED = (
    "The ε of one pair of datasets, so a lower bound on the sampler's: that no pair is worse is "
    "only conjectured."
)


@dataclass(frozen=True, kw_only=True)
class DeltaEstimate:
    """The δ at a given ε, with the ends of its numerical error and its direction."""

    delta: float
    low: float
    high: float
    epsilon: float
    direction: Direction


def shuffle_epsilon(
    *,
    noise_multiplier: float,
    steps: int,
    epochs: int = 1,
    delta: float,
    sampler: Sampler = _SHUFFLE,
    batch_size: int | None = None,
    direction: Direction = "both",
) -> EpsilonEstimate:
    """Return a lower bound on the ε of shuffled DP-SGD, exact for one pair of datasets.

    Guarantees: ``low`` to ``high`` contains the pair's ε, except for numerical errors that halving
        every grid would not reveal. Where a sampler leaves records out, ``high`` of the direction
        ``"absent→present"``, the smaller one, was up to 1 % too low; ``low`` holds.
    Assumes: epochs are shuffled independently; the adversary observes all steps.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the clipping norm.
        steps: Batches per epoch.
        epochs: Number of passes over all records.
        delta: δ.
        sampler: ``Shuffle`` by default; also ``BallsInBins``, ``PartialShuffle``,
            ``BatchThenShuffle`` and ``Sequential``.
        batch_size: Needed for ``PartialShuffle`` and ``BatchThenShuffle``.
        direction: One of the two directions; by default the larger ε of both is returned.

    Example:
        >>> print(shuffle_epsilon(noise_multiplier=1.0, steps=100, delta=1e-5))
        ε = 4.066 at δ = 1e-05 (4.066 to 4.066, numerical error, exact)
    """
    _validate.open_unit(delta=delta)
    _validate.whole(1, epochs=epochs)
    epoch = epoch_of(sampler, noise_multiplier, steps, batch_size)
    epsilon, low, high, found = exact.exact_epsilon(
        epoch, epochs=epochs, delta=delta, direction=direction
    )
    return EpsilonEstimate(
        epsilon=epsilon,
        low=low,
        high=high,
        delta=delta,
        confidence=1.0,
        method="exact",
        direction=found,
        subject=setting_in_words(sampler, noise_multiplier, steps, epochs),
        adjacency="zero_out",
        cites=CITES,
        caveats=(_CONJECTURED,),
        basis=(("noise multiplier", noise_multiplier), ("steps", steps), ("epochs", epochs)),
    )


def setting_in_words(sampler: Sampler, noise_multiplier: float, steps: int, epochs: int) -> str:
    """Name the mechanism in words.

    Example:
        >>> from epsilometer.samplers import PartialShuffle
        >>> setting_in_words(PartialShuffle(100), 0.5, 2000, 1)
        'PartialShuffle of 100, 2,000 steps × 1 epoch, noise 0.5'
    """
    name = label_sampler(sampler)
    step, epoch = "step" + "s" * (steps > 1), "epoch" + "s" * (epochs > 1)
    return f"{name}, {steps:,} {step} × {epochs:,} {epoch}, noise {noise_multiplier:g}"


def shuffle_delta(
    *,
    noise_multiplier: float,
    steps: int,
    epochs: int = 1,
    epsilon: float,
    sampler: Sampler = _SHUFFLE,
    batch_size: int | None = None,
    direction: Direction = "both",
) -> DeltaEstimate:
    """Return a lower bound on the δ of shuffled DP-SGD at ``epsilon``; see ``shuffle_epsilon``.

    Example:
        >>> found = shuffle_delta(noise_multiplier=1.0, steps=100, epsilon=4.066)
        >>> round(1e5 * found.delta, 3), found.direction
        (1.0, 'present→absent')
    """
    _validate.at_least(0, epsilon=epsilon)
    _validate.whole(1, epochs=epochs)
    epoch = epoch_of(sampler, noise_multiplier, steps, batch_size)
    delta, low, high, found = exact.exact_delta(
        epoch, epochs=epochs, epsilon=epsilon, direction=direction
    )
    return DeltaEstimate(delta=delta, low=low, high=high, epsilon=epsilon, direction=found)


def shuffle_noise(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    epochs: int = 1,
    sampler: Sampler = _SHUFFLE,
    batch_size: int | None = None,
) -> float:
    """Compute the noise multiplier below which an (ε, δ) claim is certainly false.

    Guarantee: with less noise the claim is false. This much is necessary, not sufficient.
    Assumption: the adversary observes every step; batches are drawn by ``sampler``.

    Example:
        >>> import epsilometer as em
        >>> round(em.shuffle_noise(epsilon=0.72, delta=1e-5, steps=100), 2)
        1.82
    """
    _validate.at_least(0, epsilon=epsilon)
    _validate.open_unit(delta=delta)
    _validate.whole(1, epochs=epochs)
    if epsilon == math.inf:
        return 0.0
    return exact.least_noise(
        lambda noise: epoch_of(sampler, noise, steps, batch_size),
        epochs=epochs,
        epsilon=epsilon,
        delta=delta,
    )


def shuffle_curve(
    fpr: ArrayLike,
    *,
    noise_multiplier: float,
    steps: int,
    epochs: int = 1,
    sampler: Sampler = _SHUFFLE,
    batch_size: int | None = None,
) -> FloatArray:
    """Return the FNR of the best attack on the pair at each FPR."""
    _validate.rates(fpr=fpr)
    _validate.whole(1, epochs=epochs)
    epoch = epoch_of(sampler, noise_multiplier, steps, batch_size)
    return exact.exact_curve(epoch, epochs=epochs, fpr=np.asarray(fpr, np.float64))


def epoch_of(
    sampler: Sampler, noise_multiplier: float, steps: int, batch_size: int | None = None
) -> Epoch:
    """Return the accountant's model of one epoch of a sampler, or refuse the sampler."""
    law = law_of(sampler, noise_multiplier, steps, batch_size)
    if law.rate is not None:
        raise InvalidArgument(
            f"Expected a sampler that takes every record once per epoch, got {sampler!r}. For "
            "Poisson sampling take accounting.pld.poisson_epsilon."
        )
    return Epoch(steps=law.steps, noise=noise_multiplier, absent=law.absent, left_out=law.left_out)


def law_of(
    sampler: Sampler, noise_multiplier: float, steps: int, batch_size: int | None = None
) -> Law:
    """Return the effect of the target on an epoch; require the batch size where it matters."""
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.whole(1, batch_size=1 if batch_size is None else batch_size)
    return find_law(sampler, steps, batch_size)


def published_epsilon(*, noise_multiplier: float, steps: int, delta: float) -> float:
    """Return the bound of Chua et al. (2024) for one epoch, based on the largest batch sum.

    The attack says "in" iff some batch exceeds a threshold C, and C is the best one.

    Example:
        >>> round(published_epsilon(noise_multiplier=1.0, steps=100, delta=1e-5), 4)
        4.0632
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.whole(1, steps=steps)
    _validate.open_unit(delta=delta)
    sigma = noise_multiplier
    best = 0.0
    low, high = -8 * sigma, 2 + 40 * sigma
    for _ in range(4):  # each round looks a hundred times closer
        cuts = np.linspace(low, high, 4001)
        # ln Pr[all below C] of the other batches, and of the target's with and without the record
        others = (steps - 1) * scipy.special.log_ndtr(cuts / sigma)
        caught, false = (
            -np.expm1(others + scipy.special.log_ndtr((cuts - mean) / sigma)) for mean in (2, 1)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            epsilons = np.where(
                (caught > delta) & (false > 0), np.log(caught - delta) - np.log(false), 0
            )
        at = int(np.argmax(epsilons))
        best = max(best, float(epsilons[at]))
        low, high = cuts[max(at - 20, 0)], cuts[min(at + 20, cuts.size - 1)]
    return best
